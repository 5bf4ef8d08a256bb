"""Scores and ranking of representations without labels."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from nescio.analysis.representations.candidates import Candidate, align_members, load_members
from nescio.analysis.representations.ranking import (
    QUANTITIES,
    CandidateRanking,
    RowScoreOptions,
    rank_candidates,
    ranking_arrays,
    ranking_table,
)
from nescio.api.results import ApiResult, check_row_scores, status
from nescio.api.storage import WEIGHTS, StoreOptions
from nescio.errors import BadInput
from nescio.measures.siblings import kind
from nescio.networks.preprocessing import Preprocessing
from nescio.options import argument, nested, option
from nescio.predictions.subset import random_subset, subset_note
from nescio.rows import Row
from nescio.specs import SIBLINGS, STORE, NetworkName, assignment, items, split
from nescio.work.store import Store

if TYPE_CHECKING:
    from nescio.datasets.image_set import ImageSet
    from nescio.report.blocks import Story
    from nescio.report.tables import Table

ENDINGS = (".npz", ".safetensors", ".parquet", ".csv", ".npy")
HINT = "The rows have labels: give head_data, their training rows, to check this ranking by downstream heads."
REFERENCES = "references"  # --head-data references: their labels are those of the images
ROWS, LABELS, COMPARISON = "rows", "labels", "comparison"  # headings of options


@dataclass(frozen=True, kw_only=True)
class RankOptions:
    """Options of `rank`."""

    candidates: tuple[str, ...] = argument("NAME=MEMBER,MEMBER,… or one MEMBER", metavar="CANDIDATE", style="whole")
    data: str | None = option(None, unset="none, for files", kind="dataset", group=ROWS)
    reference: str | None = option(None, unset="some of the rows or images", group=ROWS)
    limit: int | None = option(None, unset="all", group=ROWS)
    reference_size: int = option(5000, group=ROWS)
    head_data: tuple[str, ...] = option(
        (),
        "labelled rows that train the downstream heads: a dataset, a file per member, or `references`",
        style="repeats",
        metavar="SET|NAME=FILE,…",
        unset="see above",
        group=LABELS,
    )
    unlabelled: bool = option(False, "ignore labels", group=LABELS)
    tasks: Literal["one-vs-one", "multiclass"] = option("one-vs-one", group=LABELS)
    scoring: RowScoreOptions = nested(RowScoreOptions())
    bootstrap: int | None = option(None, unset="1000, or more for many candidates", group=COMPARISON)
    level: float = option(0.95, group=COMPARISON)
    preprocessing: Preprocessing = nested(Preprocessing())
    storage: StoreOptions = nested(StoreOptions(), omit=("checkpoint_seconds",))
    weights: str | None = option(None, unset=WEIGHTS, group="storage")
    row_scores: str | None = option(None, group="output")
    thumbnails: str | None = option(
        None, "images of the rows of one candidate, to show on the page", metavar="SET", group="output"
    )
    list_rows: int = option(24, "number of least reliable rows of one candidate", metavar="N", group="output")


@dataclass(repr=False)
class RepresentationRanking(ApiResult):
    """Ranked candidates, or the scores of the rows of one candidate.

    ranking     values, row scores and comparison
    list_rows   number of least reliable rows of one candidate
    pictures    row → small picture and name, for the page
    row_scores  the file of the scores of every row, if it was written
    """

    ranking: CandidateRanking
    list_rows: int
    pictures: Callable[[], dict[int, tuple[bytes, str]] | None]
    row_scores: str | None = None

    @property
    def rows(self) -> list[Row]:  # type: ignore[override]
        return self.ranking.comparison.rows

    @property
    def notes(self) -> list[str]:
        return self.ranking.notes

    def __repr__(self) -> str:
        return " ".join(self.sentences())

    def sentences(self) -> list[str]:
        from nescio.report.representations import ranking_sentences

        return ranking_sentences(self.ranking)

    def tables(self, brief: bool = True) -> Sequence[Table]:
        from nescio.report.representations import ranking_tables

        return ranking_tables(self.ranking, brief=brief, list_rows=self.list_rows)

    def document(self) -> Sequence[Table]:
        from nescio.report.representations import ranking_tables

        return ranking_tables(self.ranking, brief=False)

    def story(self) -> Story:
        from nescio.report.representations import ranking_story

        return ranking_story(self.ranking, self.list_rows, self.pictures())

    def show(self, brief: bool = True) -> None:
        super().show(brief)
        if self.row_scores is not None:
            print(f"Wrote the scores of {len(self.ranking.rows.keys):,} rows to {self.row_scores}.")

    def plain(self) -> dict[str, object]:
        from nescio.report.representations import quantiles

        def scores(name: str) -> dict[str, object]:
            fields = ("value", "low", "high", "rank", "best")
            rows = {metric: self.ranking.row(name, metric) for metric in self.ranking.metrics}
            return {
                metric: {"better": QUANTITIES[kind(metric)].better} | {field: row[field] for field in fields}
                for metric, row in rows.items()
                if row is not None
            }

        def least(name: str) -> list[dict[str, object]]:
            nc = self.ranking.nc_of(name)
            rows = [] if nc is None else self.ranking.rows_by_nc(name, self.list_rows).tolist()
            return [{"index": self.ranking.rows.keys[row], "nc": float(nc[row])} for row in rows if nc is not None]

        def candidate_plain(candidate: Candidate) -> dict[str, object]:
            name, row_scores = candidate.name, self.ranking.scores[candidate.name]
            return {
                "candidate": name,
                "members": candidate.members,
                "features": candidate.features,
                "scores": scores(name),
                "quantiles": {kind(score): quantiles(self.ranking, name, score) for score in row_scores.u},
                "least": least(name),
                "difference": self.ranking.difference(name),
                "reasons": dict(row_scores.reasons),
                "components": asdict(self.ranking.choices[name]),
            }

        return {
            "choice": self.ranking.group[0] if self.ranking.group else None,
            "group": self.ranking.group,
            "by": self.ranking.nc,
            "k": self.ranking.k,
            "n": len(self.ranking.rows.keys),
            "references": self.ranking.rows.references,
            "halves": len(self.ranking.rows.splits) > 1,
            "distance": self.ranking.scoring.distance,
            "similarity": self.ranking.scoring.similarity,
            "level": self.ranking.comparison.level,
            "resamples": self.ranking.comparison.resamples,
            "k_dist": self.ranking.scoring.k_dist,
            "chance": self.ranking.chance,
            "candidates": [candidate_plain(candidate) for candidate in self.ranking.candidates],
            "agreement": self.ranking.agreement,
            "notes": self.ranking.notes,
        }


def rank(options: RankOptions) -> RepresentationRanking:
    """Score and rank representations by reliability, without labels."""
    check_row_scores(options.row_scores)
    if options.list_rows < 1:
        raise BadInput(f"list_rows must be at least 1, got {options.list_rows}.")
    if options.thumbnails and len(options.candidates) > 1:
        raise BadInput("thumbnails are of one candidate: rank it alone.")
    ranked = rank_candidates(
        candidates_of(options),
        options.scoring,
        labels=not options.unlabelled,
        tasks=options.tasks,
        resamples=options.bootstrap,
        level=options.level,
    )
    labelled = all(candidate.tests[0].labels is not None for candidate in ranked.candidates)
    if labelled and not ranked.losses and not options.unlabelled:
        ranked.notes.append(HINT)
    if options.row_scores is not None:
        from nescio.predictions.columns import save_columns

        save_columns(options.row_scores, ranking_table(ranked), ranking_arrays(ranked))
    pictures = partial(_thumbnails, ranked, options)
    return RepresentationRanking(ranked, options.list_rows, pictures, options.row_scores)


def _thumbnails(ranked: CandidateRanking, options: RankOptions) -> dict[int, tuple[bytes, str]] | None:
    """Row → small picture and name, of the rows that the page shows."""
    from nescio.datasets.class_labels import rows_by_key
    from nescio.datasets.decode import thumbnail
    from nescio.datasets.image_set import ImageSet
    from nescio.datasets.names import dataset_name

    if options.thumbnails is None:
        return None
    data = options.thumbnails
    (name,), index, n = ranked.names, ranked.rows.keys, len(ranked.candidates[0].tests[0])
    try:
        images = ImageSet(dataset_name(data)).load(options.storage.root)
        image_rows = rows_by_key(index, images, n)
    except BadInput:  # the rows may be those of the whole set
        images = ImageSet(dataset_name(data), split="test_or_all").load(options.storage.root)
        image_rows = rows_by_key(index, images, n)
    rows = {int(row) for most in (False, True) for row in ranked.rows_by_nc(name, options.list_rows, most=most)}
    pictures = {}
    for row in sorted(rows):
        source = images.source(int(image_rows[row]))
        pictures[row] = thumbnail(source), Path(source).name if isinstance(source, str) else str(index[row])
    return pictures


# ---- candidates


@dataclass(frozen=True)
class NamedMembers:
    """A candidate as it was typed."""

    name: str
    members: tuple[str, ...]

    @property
    def networks(self) -> bool:
        return _is_network(self.members[0])


def named_members(text: str) -> NamedMembers:
    """NAME=MEMBER,MEMBER,… or one MEMBER, which is then its own name."""
    name, rest = assignment(text)
    members = tuple(items(rest))
    if not all(members) or ("=" in (text[0], text[-1]) and not Path(text).exists()):
        raise BadInput(f"{text!r} is not a candidate: write NAME=MEMBER,MEMBER,….")
    if not name and len(members) > 1:
        raise BadInput(f"{text!r} has several members and no name: write NAME={text}.")
    if len({_is_network(member) for member in members}) > 1:
        raise BadInput(f"{text!r} mixes files and networks: members of one candidate must be of one kind.")
    first = members[0]
    return NamedMembers(name or (first if _is_network(first) else Path(sides(first)[1]).stem), members)


def _is_network(text: str) -> bool:
    """Files are known by their ending, by a folder in their path, or because they are there."""
    if NetworkName.parse(text).kind:
        return True
    is_file = text.lower().endswith(ENDINGS) or os.sep in text or Path(text).exists()
    return not is_file and ":" not in text


def sides(text: str) -> tuple[str | None, str]:
    """REFERENCES:TESTS, or None and one file; a colon may also be part of a path that is there."""
    *before, tests = split(text, ":")
    if not before:
        return None, text
    refs = ":".join(before)
    if not (refs and tests):
        raise BadInput(f"{text!r} is neither a file nor two files REFERENCES:TESTS.")
    return refs, tests


def candidates_of(options: RankOptions) -> list[Candidate]:
    """The embeddings of every candidate, read or predicted."""
    members = [named_members(text) for text in options.candidates]
    names = [candidate.name for candidate in members]
    if twice := [name for name in names if names.count(name) > 1]:
        raise BadInput(f"Two candidates are called {twice[0]!r}: name them, NAME=….")
    for number, one in enumerate(members):
        if twin := next((other for other in members[:number] if set(other.members) == set(one.members)), None):
            raise BadInput(f"{twin.name} and {one.name} have the same members: give different members.")
    networks = [candidate for candidate in members if candidate.networks]
    if options.preprocessing.set_fields and not any("@" in text for one in networks for text in one.members):
        field = options.preprocessing.set_fields[0]
        raise BadInput(f"{field} is of a checkpoint of your own, and none is named: write NAME@FILE.")
    train = _training_rows(options.head_data, members)
    if networks and not options.data:
        raise BadInput(f"{networks[0].members[0]} is a network and needs images: give data.")
    if not networks and (options.data or options.reference):
        raise BadInput("data and reference are for networks, and all candidates are files: omit them.")
    sets = _image_sets(options, train.get(None), networks) if networks else {}
    return [
        _predict_candidate(candidate, options, sets)
        if candidate.networks
        else _read(candidate, train.get(candidate.name), options)
        for candidate in members
    ]


def _training_rows(texts: Sequence[str], members: Sequence[NamedMembers]) -> dict[str | None, str]:
    """Training rows by candidate; None for networks, whose heads use a dataset, and for `references`."""
    rows: dict[str | None, str] = {}
    names = [candidate.name for candidate in members]
    for text in texts:
        name, rest = assignment(text)
        if text == REFERENCES:
            rows |= dict.fromkeys([None, *names], REFERENCES)
        elif name in names:
            rows[name] = rest
        elif not name:
            rows[None] = text
        else:
            raise BadInput(
                f"head_data {text}: write a dataset, `references`, or NAME=FILE,… with one of {', '.join(names)}."
            )
    if rows.get(None, REFERENCES) != REFERENCES and not any(candidate.networks for candidate in members):
        raise BadInput(
            f"head_data {rows[None]}: the candidates are files; write NAME=FILE,… with a file for every member."
        )
    return rows


def _read(members: NamedMembers, train: str | None, options: RankOptions) -> Candidate:
    """A candidate of files."""
    pairs = [sides(text) for text in members.members]
    references = [file for file, _ in pairs if file is not None]
    if references and len(references) < len(pairs):
        raise BadInput(f"{members.name}: some members are REFERENCES:TESTS and some are one file; write all alike.")
    tests = [
        random_subset(predictions, options.limit, options.scoring.seed)
        for predictions in load_members([file for _, file in pairs])
    ]
    refs = load_members(references) if references else None
    labelled = None
    if train == REFERENCES:
        labelled = refs  # if references are drawn from the rows, heads are trained on them by default
    elif train is not None:
        files = items(train)
        if len(files) != len(pairs):
            raise BadInput(f"head_data {members.name}={train}: {len(files)} files for {len(pairs)} members.")
        labelled = load_members(files)
    if labelled is not None and labelled[0].labels is None:
        raise BadInput(f"The rows that heads on {members.name} are trained on have no labels.")
    backbones = [backbone for _, file in pairs if (backbone := _backbone_beside(Path(file)))]
    return Candidate(members.name, tests, refs, labelled, tuple(backbones))


def _backbone_beside(file: Path) -> str | None:
    """The backbone of the network whose stored predictions the file contains; None for other files."""
    from nescio.predictions.model_predictions import PREDICTIONS, STAGE, predictions_from_store

    folder = Path(os.path.realpath(file)).parent
    if file.name != PREDICTIONS or folder.parent.name != STAGE:
        return None
    store = Store(folder.parents[1])
    predictions = predictions_from_store(store, folder.name)
    if NetworkName.parse(predictions.model).kind == STORE:
        store.verify("train", str(predictions.weights))
        return str(store.record("train", str(predictions.weights))["config"]["backbone"])
    return _architecture(predictions.model)


def _architecture(model: str) -> str:
    """torchvision:resnet50, resnet50.a1_in1k → resnet50."""
    return NetworkName.parse(model).name.partition(".")[0]


# ---- networks


def _image_sets(options: RankOptions, train: str | None, networks: Sequence[NamedMembers]) -> dict[str, ImageSet]:
    """The image sets of all networks: tests, refs and train, if given. No image is its own reference."""
    from nescio.datasets.image_set import ImageSet
    from nescio.datasets.names import dataset_name

    if options.limit is not None and options.limit < 1:
        raise BadInput(f"limit must be at least 1, got {options.limit}.")
    if options.reference_size < 1:
        raise BadInput(f"reference_size must be at least 1, got {options.reference_size}.")
    texts = [text for candidate in networks for text in candidate.members]
    # networks of the store may have been trained on a part of this set
    ours = any(NetworkName.parse(text).kind in (STORE, SIBLINGS) for text in texts)
    whole = ImageSet(dataset_name(str(options.data)), "test_or_all")
    tests = _first_loadable([replace(whole, split="test"), whole], options.storage.root) if ours else whole
    tests = replace(tests, sample_size=options.limit, sample_seed=options.scoring.seed)
    sets = {"tests": tests}
    if options.reference:
        sets["refs"] = refs = _training_images(
            options.reference, options.storage.root, options.reference_size, options.scoring.seed
        )
        _check_disjoint(tests, refs, options)
        labelled = all(images.load(options.storage.root).dataset.labelled for images in (tests, refs))
        if train == REFERENCES or (train is None and labelled and refs.data == tests.data):
            sets["train"] = refs
    if train is not None and train != REFERENCES and not options.unlabelled:
        sets["train"] = _training_images(train, options.storage.root)
    return sets


def _omission_notes(tests: ImageSet, options: RankOptions) -> tuple[str, ...]:
    """Notes on images that were omitted from the evaluation."""
    whole = replace(tests, sample_size=None).load(options.storage.root)
    stamp = [f"{whole.name}: {note}" for note in whole.dataset.notes]
    if tests.sample_size is not None and tests.sample_size < len(whole):
        stamp.append(subset_note(tests.sample_size, len(whole), f"images of {whole.name}", tests.sample_seed))
    return tuple(stamp)


def _training_images(data: str, root: str | None, draw: int | None = None, seed: int = 0) -> ImageSet:
    """The training images of `nescio train`; all of them if the dataset cannot be split."""
    from nescio.datasets.image_set import ImageSet
    from nescio.datasets.names import dataset_name

    images = ImageSet(dataset_name(data), "train", sample_size=draw, sample_seed=seed)
    return _first_loadable([images, replace(images, split="train_val")], root)


def _first_loadable(sets: Sequence[ImageSet], root: str | None) -> ImageSet:
    """The first set that can be loaded, else the last. For example, a class of one image cannot be split."""
    for images in sets[:-1]:
        try:
            images.load(root)
        except BadInput:
            continue
        return images
    return sets[-1]


def _check_disjoint(tests: ImageSet, refs: ImageSet, options: RankOptions) -> None:
    import numpy as np

    datasets, backbones = tests.load(options.storage.root), refs.load(options.storage.root)
    count = int(np.isin(datasets.index, backbones.index).sum()) if datasets.revision == backbones.revision else 0
    if count:
        raise BadInput(
            f"{count} of the images of {options.data} are among the references: name other references, or "
            "omit reference, and a part of the images is taken."
        )


def _predict_candidate(members: NamedMembers, options: RankOptions, sets: dict[str, ImageSet]) -> Candidate:
    """A candidate whose members are networks, from their predictions of the images."""
    from nescio.datasets.names import dataset_name
    from nescio.networks.groups import expand_siblings
    from nescio.networks.models import find_network, with_weights
    from nescio.networks.network import describe_preprocessing, with_preprocessing
    from nescio.predict import embed

    context, path = options.storage.context(), Path(options.weights) if options.weights else None
    names = expand_siblings(members.members, context.store)
    datasets = [dataset_name(data) for data in (options.data, options.reference) if data]
    networks = [with_weights(find_network(name, context.store, context.root, datasets), path) for name in names]
    look = (
        options.preprocessing if any(one.custom_weights for one in networks) else Preprocessing()
    )  # others may have some
    networks = with_preprocessing(networks, look, options.data)
    for sentence in describe_preprocessing(networks):
        status(sentence)
    by_role = {role: align_members(embed(networks, images, context), names) for role, images in sets.items()}
    by_role["tests"] = [
        predictions.replace(notes=_omission_notes(sets["tests"], options)) for predictions in by_role["tests"]
    ]
    backbones = tuple(one.trial.backbone if one.trial else _architecture(one.name) for one in networks)
    return Candidate(members.name, by_role["tests"], by_role.get("refs"), by_role.get("train"), backbones)
