"""What is measured of one network: a step that embeds every set once and turns what it says into rows."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, Unpack

import numpy as np

from nescio import measures, metrics
from nescio.analysis.bootstrap import interval, resample
from nescio.analysis.metric_kinds import retrieval_resampler
from nescio.analysis.metric_specs import parse_metric
from nescio.analysis.resamplers import Resampler, ShareResampler
from nescio.arrays.nearest import nearest_rows, prepare_points
from nescio.arrays.types import Array
from nescio.benchmarks.url import NAME, VERSION, Plan
from nescio.datasets.changes import Crop
from nescio.datasets.image_set import ImageSet, draw_rows
from nescio.errors import BadInput, Undefined
from nescio.files import read_json
from nescio.identity import seed_for
from nescio.networks.network import Network
from nescio.predict import OutputSpec, load_predictions, predict_step
from nescio.predictions import Predictions, stack
from nescio.predictions.model_predictions import FACTS
from nescio.rows import Columns, Row, RowBuilder
from nescio.training import facts_of, title_of, train_step
from nescio.work.step_folder import StepFolder
from nescio.work.steps import Context, Files, Step, files_of, make_evaluation

KEEPING = OutputSpec(precision="float32")  # bf16 has too few digits to order neighbours
CROP = Crop()
# evaluations: by labels; neighbours of a crop are right if they are the image that it was cut from
TRANSFER, OWN_IMAGE = "transfer", "own-image"
UPSTREAM, OUT, MIXED = "upstream", "out", "mixed"  # splits, beside val and test classes of downstream sets
TIED_SHARE = "tied_share"  # metric: share of images with the commonest value, of measures that hardly differ
QUANTILES = tuple(number / 20 for number in range(1, 20))
Name = tuple[str | None, str, int | None]  # target, split, labelled images of a class


@dataclass(frozen=True)
class Targets:
    """The image sets that a network is evaluated on."""

    upstream: ImageSet | None = None
    downstream: Mapping[tuple[str, str], ImageSet] = field(default_factory=dict)  # by name and split
    human: Mapping[str, ImageSet] = field(default_factory=dict)
    tests: Mapping[tuple[str, int | None], ImageSet] = field(default_factory=dict)  # by name and shots; None: all

    def sets(self) -> Iterator[tuple[Name, ImageSet]]:
        if self.upstream is not None:
            yield (None, UPSTREAM, None), self.upstream
        yield from (((name, split, None), images) for (name, split), images in self.downstream.items())
        yield from (((name, "human", None), images) for name, images in self.human.items())
        yield from (((name, "test", shots), images) for (name, shots), images in self.tests.items())


def evaluate_step(
    network: Network,
    targets: Targets,
    names: Sequence[str],
    plan: Plan,
    root: str | None,
    facts: Mapping[str, Any] | None = None,
    others: Sequence[Network] = (),
) -> Step:
    """Embeds every set, and crops of those on which a crop is compared with its image, and takes every metric.

    names   of the measures of uncertainty, the method's own scores first
    facts   further columns of its rows
    others  networks that are averaged with the first
    """
    sets = dict(targets.sets())

    def steps_of(images: ImageSet) -> tuple[Step, ...]:
        return tuple(predict_step(each, images, root=root, output_spec=KEEPING) for each in (network, *others))

    whole = {name: steps_of(images) for name, images in sets.items()}
    crops = {
        name: steps_of(replace(images, change=CROP))
        for name, images in sets.items()
        if name[1] != "val" and (name[0], name[2]) not in targets.tests
    }
    named = {"facts": dict(facts or {}), "measures": list(dict.fromkeys(names)), "bootstrap": plan.bootstrap}
    config = {**named, "sets": list(sets), "crops": list(crops)}
    title = title_of(network.trial) if network.trial else network.name
    make = partial(_evaluate, network=network, sets=sets, whole=whole, crops=crops, named=named)
    title = f"{1 + len(others)} × {title}" if others else title
    parents = [step for steps in (*whole.values(), *crops.values()) for step in steps]
    return make_evaluation(NAME, VERSION, title, config, parents, make)


@dataclass(frozen=True, eq=False)
class Embedded:
    """What a network says about one set: embeddings, labels, which neighbours are right, and u by measure."""

    dump: Predictions
    labels: Array
    votes: Array | None
    u: Mapping[str, Array]

    @property
    def embeddings(self) -> Array:
        if self.dump.embeddings is None:
            raise BadInput("This network gives no embeddings: it has no last layer whose input could be taken.")
        return np.asarray(self.dump.embeddings)


def _evaluate(
    step_folder: StepFolder,
    context: Context,
    network: Network,
    sets: Mapping[Name, ImageSet],
    whole: Mapping[Name, Sequence[Step]],
    crops: Mapping[Name, Sequence[Step]],
    named: Mapping[str, Any],
) -> Files:
    about = {"benchmark": NAME, "version": VERSION, "evaluation": TRANSFER, "members": 1}
    facts = about | _facts(network, whole, context) | named["facts"]
    rows = TransferRows(facts, resamples=named["bootstrap"])

    def embedded(images: ImageSet, steps: Sequence[Step]) -> Embedded:
        dump = averaged([load_predictions(step, context.store) for step in steps])
        loaded = images.load(context.root, context.store).images
        votes = None if loaded.annotations is None or len(loaded) != len(dump) else loaded.annotations
        return Embedded(dump, np.asarray(dump.labels), votes, rows.uncertainties(dump, named["measures"]))

    found = {name: embedded(images, whole[name]) for name, images in sets.items()}
    for (target, split, shots), own in found.items():
        where: Columns = {"target": target, "split": split}
        rows.retrieval(own.u, rows.retrieved(own.embeddings, own.labels, split), **where)
        rows.tied(own.u, **where)
        if own.votes is not None and split == "human":
            rows.by_measure("human_alignment", own.u, own.votes, **where)
        if (target, split, shots) in crops:
            rows.cropped(own, embedded(sets[target, split, shots], crops[target, split, shots]), **where)
    if upstream := found.get((None, UPSTREAM, None)):
        rows.upstream(upstream)
        for (target, split, _), own in found.items():
            if split == "test":
                rows.against(upstream, own, target)
    rows.costs(network, whole, context)
    return files_of(rows)


def averaged(dumps: Sequence[Predictions]) -> Predictions:
    """The predictions of an average of networks; of one, its own.

    Members' embeddings lie in spaces of their own: side by side, each of length one, their cosine is the mean of the
    members' cosines. They have the mean of the members' lengths.
    """
    if len(dumps) == 1:
        return dumps[0]
    whole, parts = stack(list(dumps)), []
    for dump in dumps:
        if dump.embeddings is None:
            raise BadInput("This network gives no embeddings: it has no last layer whose input could be taken.")
        parts.append(np.asarray(dump.embeddings, np.float64))
    lengths = [np.linalg.norm(part, axis=1, keepdims=True) for part in parts]
    ones = [
        np.divide(part, length, where=length > 0, out=part * 0) for part, length in zip(parts, lengths, strict=True)
    ]
    embeddings = np.concatenate(ones, axis=1) * np.mean(lengths, axis=0) / len(dumps) ** 0.5
    native = measures.mutual_information(whole)
    return whole.replace(embeddings=embeddings.astype(np.float32), scores={"native": native})


def _facts(network: Network, whole: Mapping[Name, Sequence[Step]], context: Context) -> Row:
    """The columns that name the network."""
    steps = next(iter(whole.values()))
    params = sum(read_json(step.folder(context.store) / FACTS)["params"] for step in steps)
    if network.trial is None:
        return {"method": "pretrained", "backbone": network.name, "trial": 0, "data_seed": 0, "params": params}
    return network.trial.describe() | {"params": params}


@dataclass(kw_only=True)
class TransferRows(RowBuilder):
    """Gathers the results of one network."""

    resamples: int

    def uncertainties(self, dump: Predictions, names: Sequence[str]) -> dict[str, Array]:
        """u by measure: those that are named, and every score that the method has of its own."""
        u = {}
        for name in dict.fromkeys((*names, *measures.score_names(dump))):
            try:
                u[name] = measures.uncertainty(name, dump)
            except Undefined as reason:
                self.omit(reason, measure=name)
        return u

    def retrieved(self, embeddings: Array, labels: Array, split: str) -> Array:
        """(n,) whether the nearest other row has the same label; one of length zero has none, and is wrong."""
        known, right = embeddings.any(1), np.zeros(len(labels), bool)
        if known.sum() > 1:
            right[known] = metrics.retrieved(embeddings[known], labels[known])
        if zero := int((~known).sum()):
            reason = f"{zero} of {len(labels)} embeddings have length zero, and so no neighbour: they count as wrong."
            self.omit(reason, metric="recall_at_1", split=split)
        return right

    def retrieval(self, u: Mapping[str, Array], right: Array, **columns: Unpack[Columns]) -> None:
        """R@1, and R-AUROC of every measure, with intervals over resampled images."""
        share = ShareResampler(right, parse_metric("recall_at_1"))
        parts: dict[str, Resampler] = {name: retrieval_resampler(values, right) for name, values in u.items()}
        values = resample([share, *parts.values()], len(right), self.resamples, 0) if self.resamples else None
        for place, (name, part) in enumerate([(None, share), *parts.items()]):
            metric, (value,) = "r_auroc" if name else "recall_at_1", part.point()
            if isinstance(value, Undefined):
                self.omit(value, measure=name, metric=metric, split=columns["split"])
                continue
            low, high = (None, None) if values is None else interval(values[place])
            own: Columns = {**columns, "measure": name, "low": low, "high": high}
            self.add(metric, value, len(right), **own)

    def tied(self, u: Mapping[str, Array], **columns: Unpack[Columns]) -> None:
        """A row for every measure that has one value for more than half of the images."""
        for name, values in u.items():
            share = np.unique(values, return_counts=True)[1].max() / len(values)
            if share > 0.5:
                columns["measure"] = name
                self.add(TIED_SHARE, share, len(values), **columns)

    def by_measure(self, metric: str, u: Mapping[str, Array], *others: Array, **columns: Unpack[Columns]) -> None:
        for name, values in u.items():
            try:
                columns["measure"] = name
                self.add(metric, parse_metric(metric)(values, *others), len(values), **columns)
            except Undefined as reason:
                self.omit(reason, measure=name, metric=metric, split=columns["split"])

    def cropped(self, own: Embedded, crop: Embedded, **columns: Unpack[Columns]) -> None:
        """How often a crop is less sure than its image, and whether its neighbour is its image (A.6)."""
        for name in (name for name in own.u if name in crop.u):
            self.by_measure("crop_agreement", {name: own.u[name]}, crop.u[name], **columns)
        known, right = own.embeddings.any(1) & crop.embeddings.any(1), np.zeros(len(own.labels), bool)
        if known.any():
            refs = prepare_points(own.embeddings[known], "cosine")
            neighbour = nearest_rows(refs, prepare_points(crop.embeddings[known], "cosine", like=refs), (1,))[:, 0]
            right[known] = neighbour == np.arange(len(neighbour))
        columns["evaluation"] = OWN_IMAGE
        self.retrieval(crop.u, right, **columns)

    def upstream(self, own: Embedded) -> None:
        """Answers about classes that the network learnt: accuracy, and AUROC of right against wrong ones."""
        if own.dump.logits is None or not own.dump.has_outcomes:
            return
        answers = measures.summary(own.dump).outcomes()
        self.add("accuracy", metrics.accuracy(answers), answers.n, split=UPSTREAM)
        self.by_measure("auroc", own.u, answers.wrong, split=UPSTREAM)

    def against(self, upstream: Embedded, own: Embedded, target: str | None) -> None:
        """Equally many images of both sets: which are downstream (C.4)? And R@1 and R-AUROC of the mixture (C.5)."""
        count = min(len(upstream.labels), len(own.labels))
        chosen = [draw_rows(len(each.labels), count, seed_for("url mixture", target)) for each in (upstream, own)]
        pairs = list(zip((upstream, own), chosen, strict=True))
        u = {name: np.concatenate([each.u[name][rows] for each, rows in pairs]) for name in upstream.u if name in own.u}
        out = np.repeat([False, True], count)
        self.by_measure("auroc", u, out, target=target, split=OUT)
        labels = np.concatenate([2 * each.labels[rows] + side for side, (each, rows) in enumerate(pairs)])
        embeddings = np.concatenate([each.embeddings[rows] for each, rows in pairs])
        self.retrieval(u, self.retrieved(embeddings, labels, MIXED), target=target, split=MIXED)
        for side, (each, rows) in enumerate(pairs):  # Figure 11
            lengths = np.linalg.norm(each.embeddings[rows].astype(np.float64), axis=1)
            for quantile, value in zip(QUANTILES, np.quantile(lengths, QUANTILES), strict=True):
                self.add("length", value, count, target=target, split=(UPSTREAM, OUT)[side], quantile=quantile)

    def costs(self, network: Network, whole: Mapping[Name, Sequence[Step]], context: Context) -> None:
        """Seconds of a training epoch, and milliseconds of an image when it is embedded (C.7), of the first network."""
        step = next(iter(whole.values()))[0]
        facts = read_json(step.folder(context.store) / FACTS)
        self.time(inference_ms=1000 / facts["images_per_second"])
        if network.trial is not None:
            trained = facts_of(train_step(network.trial, context.root), context.store)
            self.time(epoch_seconds=trained["seconds"] / network.trial.training.epochs)
