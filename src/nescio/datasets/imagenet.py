"""The classes of ImageNet-1k by WordNet id and by name; two names, crane and maillot, stand for two classes each."""

from __future__ import annotations

import re
from functools import cache

CLASSES = 1000


@cache
def wordnet_ids() -> tuple[str, ...]:
    """n01440764 and so on, in order of the classes."""
    from timm.data.imagenet_info import ImageNetInfo

    return tuple(ImageNetInfo("imagenet-1k").label_names())  # type: ignore[no-untyped-call]


@cache
def descriptions() -> tuple[str, ...]:
    """All names of each class in one text: "tench, Tinca tinca"."""
    from timm.data.imagenet_info import ImageNetInfo

    return tuple(ImageNetInfo("imagenet-1k").label_descriptions())  # type: ignore[no-untyped-call]


@cache
def classes_by_name() -> dict[str, tuple[int, ...]]:
    """Normalized name or WordNet id → the classes with it."""
    places: dict[str, list[int]] = {}
    for number, (wordnet, names) in enumerate(zip(wordnet_ids(), descriptions(), strict=True)):
        for name in {wordnet, *map(plain, names.split(","))}:
            places.setdefault(name, []).append(number)
    return {name: tuple(numbers) for name, numbers in places.items()}


def plain(name: str) -> str:
    """Normalize a name for comparison: lower case, and one space between words."""
    return re.sub(r"[\s_-]+", " ", name).strip().lower()
