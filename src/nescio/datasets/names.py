"""Names of datasets: absolute names, and names by content for keys and seeds."""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path

from nescio.datasets.images import Dataset
from nescio.datasets.readers import RequiredImages, load, registry
from nescio.errors import BadInput
from nescio.identity import ContentName, map_content
from nescio.specs import DatasetName, select, selections, split_severity


def is_dataset_name(spec: str) -> bool:
    """digits, folder:PATH … and not a folder on the disk."""
    return DatasetName.parse(spec).kind in registry


def dataset_name(spec: str) -> str:
    """Resolve a dataset typed by a user: a name with its path made absolute; a plain folder is a set without labels."""
    if not is_dataset_name(spec) and Path(os.path.expanduser(spec)).is_dir():
        return f"images:{Path(os.path.expanduser(spec)).resolve()}"
    return absolute_name(spec)


def absolute_name(data: str) -> str:
    """A dataset's registered name, its path absolute: equal sets get equal names, independent of spelling and working
    folder."""
    data = registry.canonical(data)
    name = DatasetName.parse(data)
    if name.path is None:
        return data
    path, level = split_severity(name.path) if name.kind == "maps" else (name.path, "")
    location = Path(os.path.expanduser(path))
    return name.with_path(f"{location.resolve()}{f'#{level}' if level else ''}") if location.exists() else data


def content_name(data: str, dataset: Dataset) -> str:
    """The name of a loaded set for keys: a path is replaced by a digest of its content."""
    kind, path, size = DatasetName.parse(data)
    if path is None:
        return data
    if registry[kind].path is None:  # a published set in a user's folder: keys also contain its revision
        return ContentName(data, kind + (f"@{size}" if size else ""))
    return ContentName(data, f"{kind}:content-{dataset.content}")


def name_for_keys(data: str, root: str | Path | None = None, required: RequiredImages | None = None) -> str:
    """A dataset's absolute name whose digest in keys and seeds follows its content; a name without a path is unchanged.

    wanted  see `load`; None: the first that the set has of training and test images, test images, and all images
    """
    kind, path, _ = DatasetName.parse(data)
    if isinstance(data, ContentName) or path is None or kind not in registry:
        return data
    if selectors := registry[kind].selectors:
        inner, *rest = selections(path, selectors)
        return map_content(name_for_keys(inner, root, required), lambda name: select(kind, name, *rest))
    data = absolute_name(data)
    return content_name(data, _first_loaded(data, root) if required is None else load(data, root, required))


def name_for_keys_if_present(data: str, root: str | Path | None = None, required: RequiredImages | None = None) -> str:
    """The same; without a digest if the set is not on this machine, because a store may contain its predictions."""
    try:
        return name_for_keys(data, root, required)
    except BadInput:
        return absolute_name(data)


def _first_loaded(data: str, root: str | Path | None) -> Dataset:
    try:
        return load(data, root)
    except BadInput as error:
        for required in ("test", "all"):
            with suppress(BadInput):
                return load(data, root, required)  # type: ignore[arg-type]
        raise error


def same_images(one: str, other: str, root: str | Path | None = None) -> bool:
    """Whether two names are of the same images and labels: by their revisions, independent of path and size."""
    if one == other:
        return True
    size, there = DatasetName.parse(one).size, DatasetName.parse(other)
    if there.path is not None and there.size != size and registry[there.kind].size is not None:
        other = there._replace(size=size).with_path(there.path)
    try:
        return load(one, root).revision == load(other, root).revision
    except BadInput:  # without training images, say
        return False
