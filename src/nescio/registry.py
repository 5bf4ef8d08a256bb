"""Named parts: built in by decorator, plugged in by entry point or by a file."""

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

from nescio.errors import BadInput, did_you_mean

T = TypeVar("T")
PLUGINS = "NESCIO_PLUGINS"  # modules that every process of a command imports, by name


def add_plugin(path: str) -> None:
    """Imports a Python file whose decorators register parts; processes that this one starts import it too."""
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
        known = find_spec(file.stem)
        if known is not None and known.origin != str(file):
            raise BadInput(f"There is a module named {file.stem} already: rename {path}.")
        sys.path.append(str(file.parent))  # worker processes start with the same path
        os.environ[PLUGINS] = " ".join([*names, file.stem])
    try:
        import_module(file.stem)
    except BadInput:
        raise
    except Exception as error:  # whatever a person's own file raises, in one sentence
        if isinstance(error, ImportError) and (error.name or "nescio").partition(".")[0] != "nescio":
            raise  # a package that is not installed: the command says how to get it
        raise BadInput(f"{path} cannot be imported ({type(error).__name__}: {error}).") from error


def folded(name: str) -> str:
    """A name without case, spaces, hyphens, underscores and @: how spellings of one name are compared."""
    return re.sub(r"[\s_@-]+", "", name).casefold()


def canonical(name: str, known: Iterable[str], aliases: Mapping[str, str]) -> str:
    """The known name for a spelling or an alias of it, by `folded` names; any other text as it is."""
    spelled = [each for each in known if folded(each) == folded(name)]
    return spelled[0] if len(spelled) == 1 else aliases.get(folded(name), name)


def by_alias(aliases: Mapping[str, tuple[str, ...]]) -> dict[str, str]:
    """Folded alias → name, of name → aliases."""
    return {folded(alias): name for name, found in aliases.items() for alias in found}


def canonical_name(kind: str, name: str) -> str:
    """The name under which a part of this kind is registered, for any spelling or alias of it."""
    registered: str = import_module(f"nescio.{kind}s").registry.canonical(name)
    return registered


def is_registered(kind: str, name: str) -> bool:
    """Whether a text names a registered part of this kind, by any spelling or alias."""
    return canonical_name(kind, name) in import_module(f"nescio.{kind}s").registry


def is_plugin_code(function: object) -> bool:
    """Whether a function is the code of another package or of a person's own file."""
    code = inspect.unwrap(function.func if isinstance(function, partial) else function)  # type: ignore[arg-type]
    return str(getattr(code, "__module__", "")).partition(".")[0] != "nescio"


def source_file(part: object) -> str:
    """The file in which a class or a function is written, as people name it from where they are."""
    try:
        file = Path(inspect.getsourcefile(inspect.unwrap(part)) or "")  # type: ignore[arg-type]
    except TypeError:  # of what is no Python code
        return "an unknown file"
    here = Path.cwd()
    return str(file.relative_to(here) if file.is_relative_to(here) else file)


class Registry(Generic[T]):
    """Parts of one kind by name. A clash raises; an unknown name lists what there is.

    Outside packages add parts by the entry-point group `nescio.<kind>s`; importing the entry point must
    register the part (its decorator does), so that a plug-in and a built-in part take the same road.

    aliases  name → other names of the same thing in the field; case, hyphens and underscores never matter
    others   names in the field of things that are not here → what to use, "" where there is nothing: no similar name is
             suggested for them
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

    def add(self, name: str, part: T) -> T:
        if name in self._parts:
            raise BadInput(f"There are two {self.kind}s named {name!r}; give the new one another name.")
        self._parts[name] = part
        return part

    def plug_in(self) -> None:
        """Imports the files of --plugin and the entry points of outside packages, once."""
        if self._plugged:
            return
        self._plugged = True
        from importlib.metadata import entry_points

        for name in os.environ.get(PLUGINS, "").split():
            import_module(name)

        for point in entry_points(group=self.group):
            try:
                point.load()
            except Exception as error:  # a broken plug-in must not take the built-in parts away
                about = f"{type(error).__name__}: {error}".splitlines()[0]
                print(
                    f"nescio: the {self.kind} {point.value!r} of an outside package is left out ({about}).",
                    file=sys.stderr,
                )

    def __getitem__(self, name: str) -> T:
        if name not in self._parts:
            self.plug_in()
        if (registered := self.canonical(name)) in self._parts:
            return self._parts[registered]
        known = ", ".join(sorted(self._parts))
        other = self.others.get(folded(registered))
        hint = did_you_mean(name, self._parts) if other is None else f" {other}" if other else ""
        raise BadInput(
            f"There is no {self.kind} named {name!r}.{hint} There are: {known}. For a {self.kind} of your own add "
            "--plugin FILE.py."
        )

    def canonical(self, name: str) -> str:
        """The registered name for a spelling or an alias of it; any other text as it is."""
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
