"""ImageNot: which classes of a labelled dataset are in-domain and which are out-domain, by how alike they look.

Features of a reference model → mean of every class → Ward tree → two equally large sets of classes (UIMNET §2). The
paper takes the 266 classes to the left of the root of ImageNet's tree, and the first 266 to the right. Left and right
of a tree are arbitrary, so the rule here, for any matrix of class means, is:

    in-domain   the smaller child of the root; of two equally large ones that with the smallest class number
    out-domain  the first equally many leaves of the other child, in dendrogram order

Dendrogram order is that of `scipy.cluster.hierarchy.leaves_list`: at every node the child that was merged at the lower
height comes first, a single class before a merged one, and of two single classes that with the smaller number.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, fields, replace
from html import escape
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from nescio.arrays.parallel import blocks
from nescio.errors import BadInput
from nescio.work.progress import track

if TYPE_CHECKING:
    from nescio.datasets import Dataset
    from nescio.runtime import Runtime
    from nescio.work.store import Store

Array = NDArray[Any]
RULE = 1  # version of the rule above; a change that moves a class raises it
KIND = "nescio.partition"  # what a saved partition calls itself
BATCH = 256  # images that a network sees at once
BLOCK_VALUES = 1 << 24  # features are summed in blocks of about this many numbers


# ---- the rule


@dataclass(frozen=True)
class Partition:
    """In-domain and out-domain classes, with the tree that they come from.

    inside   class numbers, ascending
    outside  as many others, ascending
    linkage  (C − 1, 4): the tree as SciPy writes it: two children, height, number of classes
    order    class numbers in dendrogram order
    """

    inside: tuple[int, ...]
    outside: tuple[int, ...]
    linkage: Array = field(compare=False, repr=False)
    order: tuple[int, ...] = field(repr=False)
    classes: tuple[str, ...] = field(repr=False)
    dataset: str = ""
    revision: str = ""
    features: str = ""

    def save(self, path: str | Path) -> Path:
        """Writes the partition as JSON that says what it was made from."""
        path = Path(path)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(self.to_json() + "\n", "utf-8")
        return path

    def to_json(self) -> str:
        values = {
            "kind": KIND,
            "rule": RULE,
            "dataset": self.dataset,
            "revision": self.revision,
            "features": self.features,
            "inside": self.inside,
            "outside": self.outside,
            "classes": self.classes,
            "order": self.order,
            "linkage": self.linkage.tolist(),
        }
        lines = (f" {json.dumps(name)}: {json.dumps(value, ensure_ascii=False)}" for name, value in values.items())
        return "{\n" + ",\n".join(lines) + "\n}"

    @staticmethod
    def load(path: str | Path) -> Partition:
        """Reads what `save` wrote, and checks that its sides are what the rule makes of its tree."""
        try:
            held = json.loads(Path(path).read_text("utf-8"))
        except FileNotFoundError:
            raise BadInput(f"There is no partition {path}: make one with `nescio imagenot`.") from None
        except ValueError:
            raise BadInput(f"{path} is not JSON: a partition is a file that `nescio imagenot` wrote.") from None
        if not isinstance(held, dict) or held.get("kind") != KIND:
            raise BadInput(f"{path} is not a partition: it is not a file that `nescio imagenot` wrote.")
        if held.get("rule") != RULE:
            raise BadInput(f"{path} was made by rule {held.get('rule')}, and this version of nescio knows rule {RULE}.")
        names = [each.name for each in fields(Partition)]
        missing = [name for name in names if name not in held]
        if missing:
            raise BadInput(f"{path} has no {missing[0]}: make it again with `nescio imagenot`.")
        values: Any = {name: tuple(held[name]) if isinstance(held[name], list) else held[name] for name in names}
        try:
            found = Partition(**{**values, "linkage": np.asarray(held["linkage"], np.float64)})
            _check_tree(found.linkage)
            sides = _sides(found.linkage)
        except (ValueError, TypeError, IndexError):
            raise BadInput(f"The tree in {path} is damaged: make it again with `nescio imagenot`.") from None
        if (found.order, found.inside, found.outside) != sides:
            raise BadInput(f"The classes in {path} are not those that the rule makes of its tree: make it again.")
        if len(found.classes) != len(found.order):
            raise BadInput(f"{path} names {len(found.classes)} classes and its tree has {len(found.order)}.")
        return found

    def check(self, dataset: Dataset) -> None:
        """Raises BadInput when the partition was made from other data."""
        if (self.revision, self.classes) != (dataset.revision, dataset.classes):
            raise BadInput(
                f"The partition is of {self.dataset or 'unnamed data'}, revision {self.revision or 'unknown'}, "
                f"and the data is {dataset.name}, revision {dataset.revision}: make it again with `nescio imagenot`."
            )


def partition(means: Any, classes: Sequence[str] | None = None) -> Partition:
    """In-domain and out-domain classes of a matrix of class means (C, d), by the rule of this module (UIMNET §2).

    Ward's tree merges, again and again, the two sets of classes whose union adds least to the sum of squares within
    sets: ‖m_A − m_B‖² · |A||B| / (|A| + |B|), every class counting as one. Rotating, moving or scaling the features
    changes nothing. Renumbering the classes changes the sides only where numbers break a tie: two equally large
    children of the root, two merges that are exactly as good, or a cut that falls between two single sisters, of which
    the smaller number is then out-domain.

    classes  names of the classes; their numbers unless given
    """
    from scipy.cluster.hierarchy import linkage

    means = np.asarray(means)
    if means.ndim != 2 or means.dtype.kind not in "fiub" or not means.shape[1]:
        raise BadInput(f"means has shape {means.shape}: it must hold numbers, (classes, features).")
    if len(means) < 2:
        raise BadInput(f"A partition needs at least two classes, and means has {len(means)}.")
    means = means.astype(np.float64)
    bad = ~np.isfinite(means).all(1)
    if bad.any():
        raise BadInput(f"The mean of class {int(np.argmax(bad))} is not finite: mend its features.")
    names = tuple(map(str, range(len(means)))) if classes is None else tuple(map(str, classes))
    if len(names) != len(means):
        raise BadInput(
            f"There are {len(names)} names and {len(means)} class means: they must describe the same classes."
        )
    tree = linkage(means, "ward")
    order, inside, outside = _sides(tree)
    return Partition(inside, outside, tree, order, names)


def _sides(tree: Array) -> tuple[tuple[int, ...], tuple[int, ...], tuple[int, ...]]:
    """(order, inside, outside) of a tree."""
    from scipy.cluster.hierarchy import leaves_list

    order = tuple(int(leaf) for leaf in leaves_list(tree))
    left = int(tree[-1, 0])
    cut = 1 if left < len(order) else int(tree[left - len(order), 3])
    small, large = sorted((order[:cut], order[cut:]), key=lambda side: (len(side), min(side)))
    return order, tuple(sorted(small)), tuple(sorted(large[: len(small)]))


def _check_tree(tree: Array) -> None:
    """Raises ValueError unless every class and every merge but the last is merged once, after it came to be.

    SciPy does not look at the children in a tree of one merge, and would read memory that is not the tree's.
    """
    n = len(tree) + 1
    if n < 2 or tree.shape != (n - 1, 4) or not np.isfinite(tree).all():
        raise ValueError
    children, made = tree[:, :2], n + np.arange(n - 1)[:, None]
    if not np.array_equal(np.sort(children, axis=None), np.arange(2 * n - 2)) or not (children < made).all():
        raise ValueError
    sizes = np.r_[np.ones(n), tree[:, 3]]
    if not np.array_equal(sizes[children.astype(np.int64)].sum(1), tree[:, 3]):
        raise ValueError


def imagenot(dataset: Dataset, means: Any, features: str) -> Partition:
    """The partition of a dataset from its class means; `features` says what they are means of."""
    made = partition(means, dataset.classes)
    return replace(made, dataset=dataset.name, revision=dataset.revision, features=features)


# ---- class means, of what a reference model sees in the training images


def class_means(features: Any, labels: Any, classes: int | None = None) -> Array:
    """Mean feature vector of every class, (C, d): m_c = 1/n_c Σ_{i: y_i = c} φ(x_i), summed in float64.

    features  (n, …); what follows the first axis is flattened
    labels    (n,) from 0 to C − 1; every class has a row
    classes   C; one more than the largest label unless given
    """
    features, labels = np.asarray(features), np.asarray(labels)
    if labels.ndim != 1 or labels.dtype.kind not in "iu" or not len(labels):
        raise BadInput(f"labels has shape {labels.shape} of {labels.dtype}: it must be (n,), one class number a row.")
    if len(features) != len(labels):
        raise BadInput(
            f"features has {len(features)} rows, labels has {len(labels)}: they must describe the same rows."
        )
    width = int(np.prod(features.shape[1:]))
    rows = blocks(len(labels), max(1, BLOCK_VALUES // max(1, width)))
    return _means(
        ((features[part], labels[part]) for part in rows), int(labels.max()) + 1 if classes is None else classes
    )


def _means(pairs: Iterable[tuple[Array, Array]], classes: int) -> Array:
    """Class means of blocks of (features, labels)."""
    sums, counts = np.zeros((classes, 0)), np.zeros(classes, np.int64)
    for features, labels in pairs:
        if labels.min() < 0 or labels.max() >= classes:
            raise BadInput(
                f"A label is {labels.min() if labels.min() < 0 else labels.max()}: classes run from 0 to {classes - 1}."
            )
        flat = features.reshape(len(features), -1)
        order = np.argsort(labels, kind="stable")
        present, starts = np.unique(labels[order], return_index=True)
        sums = sums if sums.shape[1] else np.zeros((classes, flat.shape[1]))
        sums[present] += np.add.reduceat(flat[order], starts, axis=0, dtype=np.float64)
        counts += np.bincount(labels, minlength=classes)
    return _divided(sums, counts)


def _divided(sums: Array, counts: Array) -> Array:
    if not counts.all():
        raise BadInput(f"Class {int(np.argmin(counts > 0))} has no row: every class needs one, or it has no mean.")
    return np.asarray(sums / counts[:, None])


def pixel_means(dataset: Dataset) -> Array:
    """Mean training image of every class, pixels from 0 to 1: no model at all."""
    images = dataset.train
    rows = blocks(len(images.labels), max(1, BLOCK_VALUES // (dataset.size**2 * dataset.channels)))

    def read() -> Iterator[tuple[Array, Array]]:
        for part in track(rows, "pixels"):
            some = images.take(np.arange(part.start, part.stop))
            yield some.pixels, some.labels

    return _means(read(), len(dataset.classes)) / 255


def dump_means(path: str | Path, dataset: Dataset) -> Array:
    """Class means of the embeddings in a file of Predictions whose labels are those of the dataset."""
    from nescio.predictions import Predictions

    held = Predictions.load(path)
    for name in ("embeddings", "labels"):
        if getattr(held, name) is None:
            raise BadInput(f"{path} has no {name}: class means need embeddings (n, d) and labels (n,).")
    assert held.labels is not None
    classes = len(dataset.classes)
    if int(held.labels.max()) >= classes:
        raise BadInput(
            f"{path} has the label {held.labels.max()}, and {dataset.name} has {classes} classes: is it of other data?"
        )
    return class_means(held.embeddings, held.labels, classes)


def trial_means(key: str, store: Store, dataset: Dataset, runtime: Runtime, root: str | Path | None = None) -> Array:
    """Class means of the embeddings of a trained trial, which lies in a store under its key."""
    from nescio import datasets
    from nescio.methods import registry as methods
    from nescio.training import load_method
    from nescio.trials import from_plain

    if not store.finished("train", key):
        raise BadInput(f"There is no finished training {key!r} in {store.root}: `nescio runs` lists what there is.")
    trial = from_plain(store.recipe("train", key)["recipe"], lambda name: methods[name].recipe_class)
    taught = datasets.load(trial.data, root)
    _check_shape(f"Training {key}", (taught.channels, taught.size), dataset)
    method = load_method(key, trial, store, runtime, root)

    def embed(x: Any) -> Any:
        embeddings = method(x).embeddings
        if embeddings is None:
            raise BadInput(f"{trial.method} has no embeddings: take another method as the reference, erm for one.")
        return embeddings

    return network_means(embed, dataset, runtime, like=taught)


def timm_means(name: str, weights: str | Path, dataset: Dataset, runtime: Runtime) -> Array:
    """Class means of the features before the head of a timm model with the weights in a local file.

    The paper's own reference is a ResNet-18 trained on ImageNet (§2). Nothing is downloaded. Images are normalised as
    the model expects; grey ones are shown in three equal channels.
    """
    import timm
    import torch

    if not timm.is_model(name):
        raise BadInput(f"timm has no model named {name!r}; `timm.list_models()` lists what there is.")
    options: dict[str, Any] = {"num_classes": 0, "pretrained": False}
    network: Any
    try:
        network = timm.create_model(name, img_size=dataset.size, **options)  # transformers are built for one size
    except TypeError:
        network = timm.create_model(name, **options)
    _load_by_name(network, Path(weights))
    network = runtime.place(network).eval()

    def column(values: Sequence[float]) -> Any:
        return torch.tensor(values, dtype=torch.float32, device=runtime.device).view(1, -1, 1, 1)

    own_mean, own_std = column(dataset.mean), column(dataset.std)
    mean, std = column(network.pretrained_cfg["mean"]), column(network.pretrained_cfg["std"])

    def embed(x: Any) -> Any:
        return network((x * own_std + own_mean - mean) / std)  # one channel becomes three here

    return network_means(embed, dataset, runtime)


def _load_by_name(network: Any, path: Path) -> None:
    """The weights in a .safetensors file or a checkpoint of torch; those of the head are left out."""
    import torch

    if not path.is_file():
        raise BadInput(f"There is no file {path}: --weights names a checkpoint on this machine.")
    if path.suffix == ".safetensors":
        from safetensors.torch import load

        held: Any = load(path.read_bytes())
    else:
        held = torch.load(path, map_location="cpu", weights_only=True)
    for name in ("state_dict", "model"):
        held = held[name] if isinstance(held.get(name), dict) else held
    held = {name.removeprefix("module."): tensor for name, tensor in held.items()}
    wanted = network.state_dict()
    missing = [name for name in wanted if name not in held]
    if missing:
        raise BadInput(
            f"{path} has no {missing[0]} ({len(missing)} of {len(wanted)} are missing): is it of another model?"
        )
    for name, tensor in wanted.items():
        if held[name].shape != tensor.shape:
            raise BadInput(
                f"{name} has shape {tuple(held[name].shape)} in {path}, and the model wants {tuple(tensor.shape)}: "
                "is it of another model, or for images of another size (say DATA@SIZE)?"
            )
    network.load_state_dict({name: held[name] for name in wanted})


def network_means(
    embed: Callable[[Any], Any], dataset: Dataset, runtime: Runtime, like: Dataset | None = None
) -> Array:
    """Class means of embed(images (b, ch, h, w)) -> (b, d) over the training images, held one batch at a time.

    like  the data whose normalisation the network knows; the dataset's own unless given
    """
    import torch

    from nescio.datasets import Batches

    classes = len(dataset.classes)
    known = like or dataset
    batches = Batches(dataset.train, known, runtime.device, batch=BATCH, channels_last=runtime.channels_last)
    sums: Any = 0
    with torch.inference_mode():
        for x, y, _ in track(batches, "features", total=len(batches)):
            # A product with the one-hot labels: adding by index is not deterministic on a GPU.
            belongs = torch.nn.functional.one_hot(y, classes).double()
            sums = sums + belongs.T @ embed(x).flatten(1).double()
    return _divided(sums.cpu().numpy(), np.bincount(dataset.train.labels, minlength=classes))


def _check_shape(what: str, shape: tuple[int, int], dataset: Dataset) -> None:
    if shape != (dataset.channels, dataset.size):
        raise BadInput(
            f"{what} knows images of {shape[1]} pixels and {shape[0]} channels; those of {dataset.name} have "
            f"{dataset.size} and {dataset.channels}."
        )


# ---- the tree as a picture

ROW, LEVELS, NAME, CHARACTER, MARGIN = 18, 460, 48, 7.2, 16  # pixels, pixels, characters, pixels a character, pixels


def draw(made: Partition) -> str:
    """The dendrogram as SVG: classes in dendrogram order, in-domain and out-domain ones coloured and marked."""
    from nescio.report.charts import FONT, PAPER

    colours = {"in": PAPER["c1"], "out": PAPER["c2"], "": PAPER["soft"]}
    n, top = len(made.order), 84
    inside, outside = set(made.inside), set(made.outside)
    side = {label: "in" if label in inside else "out" if label in outside else "" for label in range(n)}
    names = [name if len(name) <= NAME else name[: NAME - 1] + "…" for name in made.classes]
    high = float(made.linkage[:, 2].max()) or 1.0
    right = MARGIN + LEVELS
    width = max(right + 24 + CHARACTER * max(map(len, names)), 640) + MARGIN
    height = top + ROW * n + 44

    def across(level: float) -> float:
        return round(right - LEVELS * level / high, 2)

    at = {label: top + ROW * (place + 0.5) for place, label in enumerate(made.order)}
    level = dict.fromkeys(range(n), 0.0)
    branches = []
    for number, (a, b, merged, _) in enumerate(made.linkage.tolist(), start=n):
        a, b = int(a), int(b)
        at[number], level[number] = (at[a] + at[b]) / 2, merged
        side[number] = side[a] if side[a] == side[b] else ""
        for child in (a, b):  # each child's half of the bracket has the child's colour
            path = f"M{across(level[child])} {at[child]:g}H{across(merged)}V{at[number]:g}"
            branches.append(f'<path d="{path}" stroke="{colours[side[child]]}"/>')
    leaves = []
    for label in made.order:
        colour, y = colours[side[label]], at[label]
        mark = {  # not by colour alone
            "in": f'<circle cx="{right + 8}" cy="{y:g}" r="4" fill="{colour}"/>',
            "out": f'<circle cx="{right + 8}" cy="{y:g}" r="3.25" fill="none" stroke="{colour}" stroke-width="1.5"/>',
            "": f'<circle cx="{right + 8}" cy="{y:g}" r="1.5" fill="{colour}"/>',
        }[side[label]]
        name = f'<text x="{right + 18}" y="{y + 4:g}" fill="{colour}">{escape(names[label])}'
        leaves.append(f"{mark}{name}<title>{escape(made.classes[label])}</title></text>")
    unused = n - len(inside) - len(outside)
    title = f"{made.dataset or 'Classes'}: {len(inside)} in-domain, {len(outside)} out-domain"
    key = [("in", "● in-domain"), ("out", "○ out-domain"), *([("", f"· neither ({unused})")] if unused else [])]
    legend = "".join(
        f'<tspan dx="{0 if not i else 18}" fill="{colours[s]}">{t}</tspan>' for i, (s, t) in enumerate(key)
    )
    ticks = "".join(
        f'<path d="M{across(t)} {top - 6}V{top + ROW * n + 6}" stroke="{PAPER["rule"]}"/>'
        f'<text x="{across(t)}" y="{top + ROW * n + 22}" text-anchor="{anchor}" fill="{PAPER["soft"]}">{t:.3g}</text>'
        for t, anchor in ((0.0, "middle"), (high / 2, "middle"), (high, "start"))
    )
    note = f"Ward tree of the class means of {made.features or 'the features'}; height of a merge to the left"
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{width:g}" height="{height:g}" '
        f'viewBox="0 0 {width:g} {height:g}" role="img" font-family="{escape(FONT)}" font-size="12">\n'
        f"<title>{escape(title)}</title>\n"
        f'<rect width="100%" height="100%" fill="{PAPER["ground"]}"/>\n'
        f'<text x="{MARGIN}" y="26" font-size="15" font-weight="600" fill="{PAPER["ink"]}">{escape(title)}</text>\n'
        f'<text x="{MARGIN}" y="45" fill="{PAPER["soft"]}">{escape(note)}</text>\n'
        f'<text x="{MARGIN}" y="65">{legend}</text>\n'
        f"{ticks}\n"
        f'<g fill="none" stroke-width="1.5">{"".join(branches)}</g>\n'
        f"<g>{''.join(leaves)}</g>\n</svg>\n"
    )
