"""A binary dataset of two groups of classes of another dataset, for the oracle OOD detector."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from nescio.datasets.images import Dataset, Images
from nescio.datasets.readers import DatasetRequest, dataset, load
from nescio.errors import BadInput
from nescio.identity import map_content, seed_for
from nescio.specs import numbers, select, selections


def binary_spec(data: str, inside: tuple[int, ...], outside: tuple[int, ...]) -> str:
    """The name under which `load` gives these classes as in (0) and out (1)."""
    classes = [",".join(map(str, group)) for group in (inside, outside)]
    return map_content(data, lambda name: select("binary", name, *classes))


def data_of(spec: str) -> str:
    """The data in a name that `binary_spec` made."""
    return map_content(spec, lambda name: parse_binary_spec(name)[0])


def parse_binary_spec(spec: str) -> list[str]:
    """[the data, the classes that are in, those that are out] of what `binary_spec` made; a path may hold # itself."""
    return selections(spec.removeprefix("binary:"), 2)


@dataset("binary", path=True, selectors=2)
def binary(request: DatasetRequest) -> Dataset:
    """binary:DATA#0,1,2#7,8: classes 0 to 2 of DATA as class 0, classes 7 and 8 as class 1."""
    spec, *classes = selections(request.path, 2)
    inside, outside = map(numbers, classes)
    whole = load(spec, request.root)
    if strange := [label for label in inside + outside if not 0 <= label < len(whole.classes)]:
        raise BadInput(f"{whole.name} has no class {strange[0]}: they run from 0 to {len(whole.classes) - 1}.")
    if twice := set(inside) & set(outside):
        raise BadInput(f"Class {min(twice)} is named twice: a class is in- or out-of-distribution, once.")

    def merge(images: Images) -> Images:
        kept = images.take(np.flatnonzero(np.isin(images.labels, inside + outside)))
        return replace(kept, labels=np.isin(kept.labels, outside).astype(np.int64))

    return Dataset(
        f"{whole.name}-in-out",
        merge(whole.train),
        merge(whole.test),
        ("in", "out"),
        whole.channels,
        whole.shape,
        f"{seed_for(whole.revision, inside, outside):016x}",
    )
