"""The table of all options of all commands and benchmarks, for developers: `python -m nescio.commands.option_table`."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, is_dataclass
from importlib import import_module

from nescio.commands import COMMANDS
from nescio.options import Leaf, leaves, type_name

LAUNCHERS = ("local", "ray", "slurm")


@dataclass(frozen=True)
class UsedOption:
    """An option of one command."""

    leaf: Leaf
    command: str

    @property
    def meaning(self) -> tuple[str, str]:
        """Type and help, which are the same wherever the name is used."""
        return type_name(self.leaf.hint), self.leaf.help


def option_classes() -> Iterator[tuple[str, Callable[..., object]]]:
    """(command, class of its options) of all commands, benchmarks and launchers."""
    from nescio.benchmarks.base import registry
    from nescio.commands.run import RunOptions
    from nescio.commands.store import PruneOptions, SyncOptions
    from nescio.work.launchers import launcher_class

    for name in COMMANDS:
        module = import_module(f"nescio.commands.{name}")
        if hasattr(module, "Options"):
            yield name, module.Options
    yield from (("run", RunOptions), ("store prune", PruneOptions), ("store sync", SyncOptions))
    yield from ((f"run {benchmark.name}", benchmark.plan) for benchmark in registry.parts())
    yield from ((f"--launcher {name}", launcher_class(name)) for name in LAUNCHERS)


def used_options() -> dict[str, list[UsedOption]]:
    """Option → every use of it; positional arguments are left out."""
    uses: dict[str, list[UsedOption]] = {}
    for command, options in option_classes():
        for leaf in leaves(options) if isinstance(options, type) and is_dataclass(options) else ():
            if not leaf.spec.positional:
                uses.setdefault(leaf.flag, []).append(UsedOption(leaf, command))
    return dict(sorted(uses.items()))


def main() -> None:
    for name, uses in used_options().items():
        meanings: dict[tuple[str, str], list[str]] = {}
        for use in uses:
            meanings.setdefault(use.meaning, []).append(use.command)
        for (kind, text), commands in meanings.items():
            print(f"{name:<22} {kind:<18} {text}  [{', '.join(commands)}]")


if __name__ == "__main__":
    main()
