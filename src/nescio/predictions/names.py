"""Names of fields in files, and maps from other names to fields."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Any

from nescio.errors import BadInput, closest_match, did_you_mean

FlatFields = dict[str, Any]  # key -> array: a field, or `scores/NAME`, `variants/NAME`, `groups/NAME`
MAPPINGS = ("scores", "variants", "groups")
ARRAYS = (
    *("index", "labels", "in_distribution", "logits", "probs", "members", "embeddings", "annotations"),
    *("predicted", "correct", "confidence", "class_names", "notes", "normalized"),
)
FIELDS = [*ARRAYS, *(f"{field}/NAME" for field in MAPPINGS)]

# Common names of a field in other files; they are suggested, never used without confirmation.
SYNONYMS = {
    **dict.fromkeys(("y", "label", "target", "targets", "y_true", "true", "gt", "label_ids"), "labels"),
    **dict.fromkeys(("logit", "pre_softmax", "unnormalized", "predictions"), "logits"),
    **dict.fromkeys(("prob", "p", "softmax", "probabilities", "proba", "y_prob"), "probs"),
    **dict.fromkeys(("emb", "embedding", "features", "feature", "feats"), "embeddings"),
    **dict.fromkeys(("id", "ids", "idx", "key", "keys"), "index"),
    **dict.fromkeys(("votes", "annotation"), "annotations"),
    **dict.fromkeys(("pred", "preds", "y_pred", "prediction"), "predicted"),
    **dict.fromkeys(("conf", "confs", "msp"), "confidence"),
    **dict.fromkeys(("right", "hit", "is_correct"), "correct"),
    **dict.fromkeys(("u", "uncertainty", "score", "scores"), "scores/NAME"),
    **dict.fromkeys(("group", "groups", "domain"), "groups/NAME"),
    **dict.fromkeys(("variant", "variants", "tta"), "variants/NAME"),
}


SYNONYMS |= dict.fromkeys(("image_id", "filename", "file", "path", "uid"), "index")
TRUTH = ("labels", "correct", "annotations", "in_distribution")  # fields that out-of-distribution images need not have


def is_field(key: str) -> bool:
    field, slash, _ = key.partition("/")
    return key in ARRAYS or (field in MAPPINGS and bool(slash))


def unknown_name(
    noun: str, name: str, synonyms: Mapping[str, str], choices: list[str], others: Iterable[str] = ()
) -> str:
    """The message about an unknown name, with a suggestion and a map that reads it and the `others`."""
    guess = synonyms.get(name.lower()) or closest_match(name, choices)
    suggestion = f" (did you mean {guess!r}?)" if guess else ""
    proposal = proposed_map([*others, name])
    advice = f"; give the map {proposal}" if proposal else ""
    return f"'{printable(name)}' is not a known {noun}{suggestion}: the {noun}s are {', '.join(choices)}{advice}."


def proposed_map(names: Iterable[str]) -> str:
    """FIELD=NAME,… for the names in a file whose fields can be guessed; "" if none can."""
    proposed: dict[str, str] = {}
    for name in dict.fromkeys(re.sub(r"_?\d{1,9}$", "", name) or name for name in names):
        field = name if is_field(name) else SYNONYMS.get(name.lower()) or closest_match(name, ARRAYS) or ""
        if is_field(field) and "/" not in field and not re.search(r"[=,\s]", name) and name.isprintable():
            proposed.setdefault(field, name)
    return ",".join(f"{field}={name}" for field, name in proposed.items() if len(name) <= 60)


def printable(name: str) -> str:
    """A name or value from a file, shortened to one printable line."""
    brief = name if len(name) <= 60 else f"{name[:60]}…"
    return brief if brief.isprintable() else repr(brief)[1:-1]


class FieldNames:
    """The field of each name in a file. Without a map all names must be fields.

    With a map, names that are neither in the map nor fields are ignored and noted.
    """

    def __init__(self, mapping: Mapping[str, str] | None, ood: bool = False) -> None:
        """Check the map; `ood` rows need no labels."""
        for field in mapping or {}:
            if not is_field(field):
                raise BadInput(unknown_name("field", str(field), SYNONYMS, FIELDS))
        self.mapping = dict(mapping or {})
        self.field_of = {name: field for field, name in self.mapping.items()}
        if len(self.field_of) < len(self.mapping):
            raise BadInput("the map gives one name of the file to two fields: give every field its own.")
        self.optional = TRUTH if ood else ()
        self.used: set[str] = set()
        self.ignored: list[str] = []

    def field(self, name: str) -> str | None:
        """The field of a name in the file; None if it is ignored."""
        if name in self.field_of:
            self.used.add(name)
            return self.field_of[name]
        if not self.mapping or (is_field(name) and name not in self.mapping):
            return name
        self.ignored.append(name)
        return None

    def select(self, arrays: Mapping[str, object]) -> FlatFields:
        """The arrays by field, without those that the map does not name; BadInput if the map names a missing one."""
        selected = {field: array for name, array in arrays.items() if (field := self.field(name)) is not None}
        self.check(arrays)
        return selected

    def numbered(self, column: str) -> tuple[str, int] | None:
        """(field, number) of a column that is a mapped name with a number: score_0, score_1 … or score0, score1 …"""
        match = re.fullmatch(r"(.*?)_?(\d{1,9})", column, re.DOTALL | re.ASCII)
        if not match or match[1] not in self.field_of:
            return None
        self.used.add(match[1])
        return self.field_of[match[1]], int(match[2])

    def check(self, present: Iterable[str]) -> None:
        """Refuse a map that names what the file does not contain."""
        required = (name for name, field in self.field_of.items() if field not in self.optional)
        missing = next((name for name in required if name not in self.used), None)
        if missing is not None:
            names = list(present)
            fields = ", ".join(map(printable, names[:20])) or "nothing"
            hint = did_you_mean(missing, names) if missing not in names else ""
            raise BadInput(
                f"there is no {missing!r} to read {self.field_of[missing]} from: the file contains {fields}.{hint}"
            )

    @property
    def notes(self) -> tuple[str, ...]:
        if not self.ignored:
            return ()
        more = f" and {len(self.ignored) - 5} more" if len(self.ignored) > 5 else ""
        return (f"Not read, since the map does not name them: {', '.join(map(printable, self.ignored[:5]))}{more}.",)
