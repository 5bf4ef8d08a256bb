"""Preprocessing of images for a user's checkpoint, from options and from the file."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from typing import Any, Literal

from nescio.datasets.view import View
from nescio.errors import BadInput
from nescio.identity import Validated, tag
from nescio.options import option

Interpolation = Literal["nearest", "box", "bilinear", "hamming", "bicubic", "lanczos"]
UNSET = "as the checkpoint says, else as the published weights of the name"
# entries of a checkpoint that contain settings, and possible names of a setting, timm's first
ENTRIES = ("preprocessing", "pretrained_cfg", "args", "hyper_parameters")
NAMES = {
    "input_size": ("input_size", "img_size", "image_size"),
    "mean": ("mean",),
    "std": ("std",),
    "interpolation": ("interpolation",),
    "crop": ("crop_pct", "crop"),
}
CLASS_NAMES = ("class_names", "classes", "label_names")


@tag("preprocessing")
@dataclass(frozen=True)
class Preprocessing(Validated):
    """Settings that replace those of a network's published weights; None keeps them."""

    input_size: int | None = option(
        None,
        "height and width of the input images of a checkpoint NAME@FILE",
        metavar="PIXELS",
        unset="@SIZE of --data, else as the checkpoint says, else as the published weights of the name",
    )
    mean: tuple[float, ...] | None = option(
        None, "mean of the pixels (0 to 1) per channel, for normalisation", metavar="R,G,B", unset=UNSET
    )
    std: tuple[float, ...] | None = option(
        None, "standard deviation of the pixels (0 to 1) per channel, for normalisation", metavar="R,G,B", unset=UNSET
    )
    interpolation: Interpolation | None = option(None, "interpolation of the resized image", unset=UNSET)
    crop: float | None = option(
        None, "side of the central crop as a share of the resized image", metavar="SHARE", unset=UNSET
    )

    def check(self) -> None:
        self.require_min(1, "input_size")
        self.require_min(0, "crop", exclusive=True)
        for name, values in (("mean", self.mean), ("std", self.std)):
            if values is None:
                continue
            if len(values) not in (1, 3) or not all(math.isfinite(value) for value in values):
                raise BadInput(f"Preprocessing.{name} is {values}: it must be one number, or one for each of R, G, B.")
            if name == "std" and min(values) <= 0:
                raise BadInput(f"Preprocessing.std is {values}: it must be above 0.")
        if self.crop is not None and self.crop > 1:
            raise BadInput(f"Preprocessing.crop is {self.crop:g}: it must be at most 1.")

    @property
    def set_fields(self) -> tuple[str, ...]:
        """Names of the settings that are not None."""
        return tuple(entry.name for entry in fields(self) if getattr(self, entry.name) is not None)

    def over(self, other: Preprocessing) -> Preprocessing:
        """These settings; those that are None are taken from another one."""
        return replace(other, **{name: getattr(self, name) for name in self.set_fields})

    def view(self, published: View, mean: tuple[float, ...]) -> View:
        """The view of the published weights, changed by these settings."""
        size = self.input_size or published.size
        share = self.crop or published.size / published.resize
        fill = published.fill
        if published.mode == "border":
            red, green, blue = (round(255 * value) for value in mean)
            fill = (red, green, blue)
        interpolation = self.interpolation or published.interpolation
        return replace(published, size=size, resize=math.floor(size / share), interpolation=interpolation, fill=fill)


def per_channel(values: tuple[float, ...]) -> tuple[float, ...]:
    """Values for three channels; a single value is repeated."""
    return values * 3 if len(values) == 1 else values


# ---- settings in a checkpoint


def read_preprocessing(content: Mapping[str, object], file: object) -> Preprocessing:
    """The settings in a checkpoint; the first entry that has a setting wins."""
    settings: dict[str, Any] = {}
    for entry in ENTRIES:
        entries = _settings(content.get(entry))
        for name, keys in NAMES.items():
            value = next((entries[key] for key in keys if entries.get(key) not in (None, "", ())), None)
            if value is not None:
                settings.setdefault(name, (entry, value))
    try:
        return Preprocessing(**{name: _plain(name, value) for name, (_, value) in settings.items()})
    except (BadInput, TypeError, ValueError) as error:
        where = ", ".join(f"{entry}: {value!r}" for entry, value in settings.values())
        raise BadInput(f"{file} has impossible preprocessing settings ({where[:200]}): {error}") from None


def read_class_names(content: Mapping[str, object]) -> tuple[str, ...] | None:
    """The class names in a checkpoint, class 0 first; None if it has none."""
    for entry in CLASS_NAMES:
        names = _settings(content.get(entry)) or content.get(entry)
        if isinstance(names, str):
            names = _json(names)
        if isinstance(names, (list, tuple)) and names and all(isinstance(name, str) for name in names):
            return tuple(names) if len(set(names)) == len(names) else None
    numbers = _settings(content.get("class_to_idx"))
    places = {number: name for name, number in numbers.items() if isinstance(number, int)}
    whole = places and sorted(places) == list(range(len(numbers)))
    return tuple(str(places[number]) for number in range(len(places))) if whole else None


def _settings(entry: Any) -> Mapping[str, Any]:
    """The settings of an entry: a dictionary, an argparse.Namespace, or JSON of one."""
    entry = _json(entry) if isinstance(entry, str) else entry
    entry = entry if isinstance(entry, Mapping) else getattr(entry, "__dict__", {})
    return {str(name): value for name, value in entry.items()}


def _json(text: str) -> object:
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return None


def _plain(name: str, value: Any) -> Any:
    """A value converted to the type of its field; timm writes sizes as (channels, height, width)."""
    if name == "input_size":
        sides = [int(side) for side in (value if isinstance(value, (list, tuple)) else [value])][-2:]
        if len(set(sides)) > 1:
            raise BadInput("images must be squares.")
        return sides[-1]
    if name == "interpolation":
        return str(value).rpartition(".")[2].lower()
    if name == "crop":
        return float(value)
    return tuple(float(number) for number in (value if isinstance(value, (list, tuple)) else [value]))
