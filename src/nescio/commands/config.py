"""Files of options: `--config FILE.yaml` sets any option of a command, and every page has the file that repeats it.

    command: run shift          # optional; another command refuses the file
    preset: gpu                 # of a benchmark
    methods: [erm, sngp]
    hparams: {sngp: {bound: 100}}
    training:                   # options may stand in their section, or at the top
      lr: 0.05

The command line overrides the file. Keys are options with underscores.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, get_args

from nescio.errors import BadInput, did_you_mean
from nescio.files import read_text
from nescio.options import PRESET, FromFile, Leaf, is_tuple, leaves, nearest_preset, without_none
from nescio.specs import write_assignment, write_items

if TYPE_CHECKING:
    from yaml import Node

COMMAND = "command"
TRUTH = {**dict.fromkeys(("true", "yes", "on"), True), **dict.fromkeys(("false", "no", "off"), False)}


@dataclass(frozen=True)
class Entry:
    """A value of the file: the keys that lead to it, its YAML node and its line."""

    keys: tuple[str, ...]
    node: Node

    @property
    def line(self) -> int:
        return int(self.node.start_mark.line) + 1


class ConfigFile:
    """A YAML file of options."""

    def __init__(self, path: str | Path) -> None:
        import yaml

        self.path = Path(path)
        try:
            root = yaml.compose(read_text(self.path), Loader=yaml.SafeLoader)
        except OSError as error:
            raise BadInput(f"--config {path} cannot be read: {error.strerror}.") from None
        except (yaml.YAMLError, UnicodeDecodeError, RecursionError) as error:
            mark = getattr(error, "problem_mark", None)
            line = f", line {mark.line + 1}" if mark else ""
            problem = getattr(error, "problem", None) or "it is not a text file of UTF-8"
            raise BadInput(f"{path}{line} is not YAML: {problem}.") from None
        if root is not None and not isinstance(root, yaml.MappingNode):
            raise BadInput(f"{path} must contain lines OPTION: VALUE.")
        self.root = root

    def argv(self) -> list[str]:
        """The options at the top that select other options, for the parser: preset and launcher, for instance."""
        pairs = self._pairs(self.root) if self.root else ()
        return [f"--{key.replace('_', '-')}={node.value}" for key, node in pairs if isinstance(node.value, str)] + [
            f"--{key.replace('_', '-')}={inner.value}"
            for _, node in (self._pairs(self.root) if self.root else ())
            if self._is_mapping(node)
            for key, inner in self._pairs(node)
            if isinstance(inner.value, str)
        ]

    def apply(self, args: argparse.Namespace, command: Sequence[str], options: Sequence[Leaf]) -> None:
        """Set the arguments of the file that the command line omits."""
        named = {(*leaf.path[:-1], leaf.key): leaf for leaf in options}
        flat = {leaf.key: leaf for leaf in reversed(options)}
        for entry in self._entries(self.root, named, flat) if self.root else ():
            if entry.keys == (COMMAND,):
                if entry.node.value != " ".join(command):
                    raise self._error(entry, f"the file is for `nescio {entry.node.value}`")
            elif entry.keys == (PRESET,) and hasattr(args, PRESET):
                args.preset = entry.node.value if args.preset is None else args.preset
            else:
                leaf = named.get(entry.keys) or flat[entry.keys[-1]]
                if not hasattr(args, leaf.dest):
                    setattr(args, leaf.dest, FromFile(self._value(entry, leaf)))

    def _entries(
        self, node: Node, named: Mapping[tuple[str, ...], Leaf], flat: Mapping[str, Leaf], above: tuple[str, ...] = ()
    ) -> Iterator[Entry]:
        sections = {keys[: len(above) + 1] for keys in named if len(keys) > len(above) + 1}
        for key, inner in self._pairs(node):
            keys = (*above, key)
            if keys in sections and self._is_mapping(inner):
                yield from self._entries(inner, named, flat, keys)
            elif keys in named or (not above and (key in flat or key in (COMMAND, PRESET))):
                yield Entry(keys, inner)
            else:
                names = [*(keys[-1] for keys in named if keys[:-1] == above), *(keys[-1] for keys in sections), *flat]
                raise self._error(Entry(keys, inner), f"there is no option {key!r}.{did_you_mean(key, names)}", "")

    def _pairs(self, node: Node) -> Iterator[tuple[str, Node]]:
        seen = set()
        for key, value in node.value:
            name = str(key.value).replace("-", "_")
            if name in seen:
                raise self._error(Entry((name,), key), f"{name!r} is given twice")
            seen.add(name)
            yield name, value

    @staticmethod
    def _is_mapping(node: Node) -> bool:
        return str(node.id) == "mapping"

    def _error(self, entry: Entry, problem: str, end: str = ".") -> BadInput:
        return BadInput(f"{self.path}, line {entry.line}: {problem}{end}")

    def _value(self, entry: Entry, leaf: Leaf) -> object:
        node = entry.node
        try:
            if leaf.hint is bool:
                return TRUTH[str(node.value).lower()]
            if node.id == "scalar":
                return self._scalar(node, leaf)
            texts = list(self._texts(node))
            if not texts and is_tuple(leaf.hint):
                return ()
            if leaf.spec.parse:
                return leaf.read(write_items(texts))
            return tuple(leaf.read(text, get_args(without_none(leaf.hint))[0]) for text in texts)
        except (KeyError, IndexError, TypeError, AttributeError):
            kind = "true or false" if leaf.hint is bool else "of another type"
            raise self._error(entry, f"{entry.keys[-1]} is {kind}") from None
        except BadInput as error:
            raise self._error(entry, str(error).replace(leaf.flag, entry.keys[-1]), "") from None

    def _scalar(self, node: Node, leaf: Leaf) -> object:
        text = "none" if node.tag.endswith(":null") else str(node.value)
        if not leaf.many or text == "none":
            return leaf.read(text)
        return (leaf.read(text, get_args(without_none(leaf.hint))[0]),)

    def _texts(self, node: Node) -> Iterator[str]:
        """The texts of a list, or NAME=VALUE of a mapping; NAME.FIELD=VALUE of nested ones."""
        if node.id == "sequence":
            for item in node.value:
                yield "none" if item.tag.endswith(":null") else str(item.value)
            return
        for name, value in self._pairs(node):
            if self._is_mapping(value):
                yield from (f"{name}.{inner}" for inner in self._texts(value))
            elif value.id == "sequence":
                yield from (write_assignment(name, str(item.value)) for item in value.value)
            else:
                yield write_assignment(name, str(value.value))


# ---- writing


def config_text(argv: Sequence[str], *holders: object, presets: Mapping[str, object] | None = None) -> str:
    """The file that repeats a command: all fields of a plan with presets, and the changed options of other classes.

    words    of the command
    holders  instances of its classes of options; the first may have presets
    """
    import yaml

    plain: dict[str, Any] = {COMMAND: " ".join(argv)}
    for number, holder in enumerate(holders):
        named = presets if number == 0 else None
        if named:
            plain[PRESET] = nearest_preset(holder, named)
        start = named[plain[PRESET]] if named else None
        for leaf in leaves(type(holder), start, chosen=_launcher_of(holder)):
            value = _value_of(holder, leaf)
            if named or value != leaf.default:
                section = plain
                for name in leaf.path[:-1]:
                    section = section.setdefault(name, {})
                section[leaf.key] = _plain(leaf, value)
    head = f"# nescio {plain[COMMAND]} --config config.yaml\n"
    return head + str(yaml.safe_dump(plain, sort_keys=False, allow_unicode=True))


def _launcher_of(holder: object) -> Callable[[Leaf], str | None]:
    def chosen(leaf: Leaf) -> str | None:
        value = leaf.value(holder)
        return value if isinstance(value, str) else None

    return chosen


def _value_of(holder: object, leaf: Leaf) -> object:
    for name in leaf.path:
        holder = holder.get(name, leaf.default) if isinstance(holder, dict) else getattr(holder, name)
    return holder


def _plain(leaf: Leaf, value: object) -> object:
    if leaf.spec.write and value:
        return leaf.write(value)
    return list(value) if isinstance(value, tuple) else value
