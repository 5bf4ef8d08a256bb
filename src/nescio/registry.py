"""Registries of named entries, built in by decorator or plugged in by entry point or file."""

from __future__ import annotations

import inspect
import os
import re
import sys
from collections.abc import Iterable, Iterator, Mapping
from functools import partial
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Generic, TypeVar

from nescio.errors import BadInput, FaultyPlugin, did_you_mean

T = TypeVar("T")
PLUGINS = "NESCIO_PLUGINS"  # modules that every process of a command imports, by name


def add_plugin(path: str) -> None:
    """Import a Python file whose decorators register plug-ins; child processes import it too."""
    file = Path(os.path.realpath(os.path.expanduser(path)))
    if not file.exists():
        others = os.listdir(file.parent) if file.parent.is_dir() else []
        raise BadInput(f"--plugin {path}: there is no such file.{did_you_mean(file.name, others)}")
    if file.suffix != ".py" or not file.is_file():
        raise BadInput(f"--plugin takes a Python file, such as mine.py, not {path}.")
    if not file.stem.isidentifier():
        raise BadInput(f"--plugin imports {path} by its name, which Python cannot: rename it, such as my_method.py.")
    names = os.environ.get(PLUGINS, "").split()
    if file.stem not in names:
        spec = find_spec(file.stem)
        if spec is not None and spec.origin != str(file):
            raise BadInput(f"There is a module named {file.stem} already: rename {path}.")
        sys.path.append(str(file.parent))  # worker processes start with the same path
        os.environ[PLUGINS] = " ".join([*names, file.stem])
    try:
        import_module(file.stem)
    except BadInput:
        raise
    except Exception as error:  # any error of the file, in one sentence
        if isinstance(error, ImportError) and (error.name or "nescio").partition(".")[0] != "nescio":
            raise  # a missing package: the command prints how to install it
        raise BadInput(f"{path} cannot be imported ({type(error).__name__}: {error}).") from error


def folded(name: str) -> str:
    """A name without case, spaces, hyphens, underscores and @, to compare spellings."""
    return re.sub(r"[\s_@-]+", "", name).casefold()


def canonical(name: str, names: Iterable[str], aliases: Mapping[str, str]) -> str:
    """The name for a spelling or an alias of it; any other text is returned unchanged."""
    matches = [candidate for candidate in names if folded(candidate) == folded(name)]
    return matches[0] if len(matches) == 1 else aliases.get(folded(name), name)


def by_alias(aliases: Mapping[str, tuple[str, ...]]) -> dict[str, str]:
    """Folded alias → name, from name → aliases."""
    return {folded(alias): name for name, names_of_alias in aliases.items() for alias in names_of_alias}


def canonical_name(kind: str, name: str) -> str:
    """The registered name of this kind for any spelling or alias of it."""
    registered: str = import_module(f"nescio.{kind}s").registry.canonical(name)
    return registered


def is_registered(kind: str, name: str) -> bool:
    """Whether a text is a registered name of this kind, or a spelling or alias of one."""
    return canonical_name(kind, name) in import_module(f"nescio.{kind}s").registry


def is_plugin_code(function: object) -> bool:
    """Whether a function is defined outside of nescio."""
    code = inspect.unwrap(function.func if isinstance(function, partial) else function)  # type: ignore[arg-type]
    return str(getattr(code, "__module__", "")).partition(".")[0] != "nescio"


def source_file(function: object) -> str:
    """The source file of a class or a function, relative to the current folder if possible."""
    try:
        file = Path(inspect.getsourcefile(inspect.unwrap(function)) or "")  # type: ignore[arg-type]
    except TypeError:  # the object is not Python code
        return "an unknown file"
    folder = Path.cwd()
    return str(file.relative_to(folder) if file.is_relative_to(folder) else file)


def plugin_fault(kind: str, name: str, function: object, error: Exception) -> FaultyPlugin:
    """One sentence about an error of plug-in code, with the name and the file of the plug-in."""
    reason = str(error) if isinstance(error, BadInput) else f"{type(error).__name__}: {error}"
    return FaultyPlugin(f"The {kind} {name} ({source_file(function)}) fails: {reason.rstrip('.')}.")


class Registry(Generic[T]):
    """Entries of one kind by name. A duplicate name raises; an unknown name lists the registered ones.

    Other packages add entries by the entry-point group `nescio.<kind>s`. Importing the entry point must register the
    entry, by the same decorator as built-in ones.

    aliases  name → other names of the same thing in the field; case, hyphens and underscores never matter
    others   known names that nescio lacks → what to use instead, or "": no similar name is suggested for them
    """

    def __init__(
        self, kind: str, aliases: Mapping[str, tuple[str, ...]] | None = None, others: Mapping[str, str] | None = None
    ) -> None:
        self.kind = kind
        self.group = f"nescio.{kind}s"
        self.aliases = by_alias(aliases or {})
        self.others = {folded(name): sentence for name, sentence in (others or {}).items()}
        self._parts: dict[str, T] = {}
        self._plugged = False

    def add(self, name: str, entry: T) -> T:
        if name in self._parts:
            raise BadInput(f"There are two {self.kind}s named {name!r}; give the new one another name.")
        self._parts[name] = entry
        return entry

    def plug_in(self) -> None:
        """Import the files of --plugin and the entry points of other packages, once."""
        if self._plugged:
            return
        self._plugged = True
        from importlib.metadata import entry_points

        for name in os.environ.get(PLUGINS, "").split():
            import_module(name)

        for point in entry_points(group=self.group):
            try:
                point.load()
            except Exception as error:  # a broken plug-in must not disable the built-in entries
                reason = f"{type(error).__name__}: {error}".splitlines()[0]
                print(
                    f"nescio: the {self.kind} {point.value!r} of another package is left out ({reason}).",
                    file=sys.stderr,
                )

    def __getitem__(self, name: str) -> T:
        if name not in self._parts:
            self.plug_in()
        if (registered := self.canonical(name)) in self._parts:
            return self._parts[registered]
        names = ", ".join(sorted(self._parts))
        advice = self.others.get(folded(registered))
        hint = did_you_mean(name, self._parts) if advice is None else f" {advice}" if advice else ""
        raise BadInput(
            f"There is no {self.kind} named {name!r}.{hint} There are: {names}. For a {self.kind} of your own add "
            "--plugin FILE.py."
        )

    def canonical(self, name: str) -> str:
        """The registered name for a spelling or an alias of it; any other text is returned unchanged."""
        return name if name in self else canonical(name, self._parts, self.aliases)

    def __iter__(self) -> Iterator[str]:
        self.plug_in()
        return iter(list(self._parts))

    def __len__(self) -> int:
        self.plug_in()
        return len(self._parts)

    def __contains__(self, name: object) -> bool:
        self.plug_in()
        return name in self._parts

    def items(self) -> list[tuple[str, T]]:
        self.plug_in()
        return list(self._parts.items())

    def parts(self) -> list[T]:
        self.plug_in()
        return list(self._parts.values())
