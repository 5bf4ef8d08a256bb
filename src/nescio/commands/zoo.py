"""Which pretrained model knows when it is wrong? Asks many about your images, and compares what they know.

MODEL is a timm name (resnet50, vit_base_patch16_224.augreg_in21k_ft_in1k), torchvision:NAME, store:KEY for a network
of `nescio train`, or a glob such as 'resnet*'. Every model sees images as its weights were tested: its own size, crop,
interpolation, mean and deviation. Images are decoded once for all models that see them alike.

Weights come from --weights (a checkpoint, or a folder of files named by models), from the caches of the Hugging Face
hub and of torch on this machine, else from the network. Everything finished lies in the store: run the same command
again and only what is missing is done. A model that fails costs its own line, never the others.

With --out, models are also asked about images of classes that none of them was taught, and graded on how well each
notices the easiest to the hardest of them (`nescio run cood --help` says how).

examples:
  nescio zoo resnet50 vit_small_patch16_224 torchvision:vgg16 --data imagenet:/data/imagenet
  nescio zoo 'efficientnet*' --data imagenet:/data/imagenet --limit 5000          a quick look
  nescio zoo --family vit --data imagenet:/data/imagenet --published results-imagenet.csv
  nescio zoo tf_efficientnet_lite0 --weights efficientnet-lite0.pth --data npz:val.npz
  nescio zoo resnet50 --data imagenet:/data/imagenet --out folder:/data/imagenet21k --also imagenet-o=folder:/data/o
  nescio zoo store:3f2a --data cifar10
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator, Sequence
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from nescio.commands._output import json_of, say
from nescio.commands._run_cood import Names, add_overlap, names_of
from nescio.commands._study import Lines, numbers
from nescio.errors import BadInput

if TYPE_CHECKING:
    from nescio.datasets.classes import Labelled
    from nescio.networks.ask import Answers
    from nescio.networks.models import Model
    from nescio.networks.published import Published
    from nescio.predictions.entries import Entry
    from nescio.protocols.cood import Plan
    from nescio.work.local import Failure
    from nescio.work.store import Store

    Grading = tuple[Plan, Names | None, list[str]]  # how, names of the classes of both sets, what to know of them
    Table = dict[str, list[Published]]


def configure(parser: argparse.ArgumentParser) -> None:
    which = parser.add_argument_group("models")
    which.add_argument("models", nargs="*", metavar="MODEL", help="names and globs")
    which.add_argument("--family", metavar="F", help="every pretrained model of a family, such as vit, deit, resnet")
    which.add_argument("--all", action="store_true", help="every pretrained classifier of timm and torchvision")
    which.add_argument(
        "--weights",
        type=Path,
        metavar="PATH",
        help="a checkpoint for the one model, or a folder with MODEL.safetensors, .pth, .pt, .bin … "
        "(default: $NESCIO_WEIGHTS, then the hubs' caches, then the network)",
    )
    images = parser.add_argument_group("images")
    images.add_argument(
        "--data", required=True, metavar="SET", help="labelled images of the models' classes: imagenet:PATH, npz:PATH …"
    )
    images.add_argument("--out", metavar="SET", help="labelled images of other classes, all of them")
    images.add_argument(
        "--also",
        action="append",
        default=[],
        metavar="NAME=SET",
        help="a fixed set of other classes beside --out, such as imagenet-o=folder:PATH",
    )
    images.add_argument("--classes", metavar="LIST", help="only these classes of --data, as 0-9,17 (default: all)")
    images.add_argument(
        "--limit",
        type=int,
        metavar="N",
        help="only N images of each set, spaced evenly over its classes (default: all)",
    )
    images.add_argument(
        "--skip-damaged",
        action="store_true",
        help="leave out images that cannot be read, the same for all models; every image is decoded once more for it",
    )
    how = parser.add_argument_group("asking")
    how.add_argument(
        "--passes", type=int, default=30, help="with dropout on, for models that have it; 0: none (default: 30)"
    )
    how.add_argument(
        "--drop",
        type=float,
        metavar="RATE",
        help="dropout before the head of timm models, which are built without (default: what the model has)",
    )
    how.add_argument("--embeddings", action="store_true", help="keep what the last layer is given as well")
    how.add_argument(
        "--batch", type=int, metavar="B", help="images at a time (default: 512 of 224² on a GPU, 32 on a CPU)"
    )
    how.add_argument(
        "--published",
        metavar="CSV",
        help="a table with columns model and top1 (timm's results-imagenet.csv): a warning where ours is another",
    )
    grading = parser.add_argument_group("grading of --out")
    grading.add_argument("--estimation", type=int, default=150, help="images of a class that grade it (default: 150)")
    grading.add_argument("--test", type=int, default=50, help="images of a class that are detected (default: 50)")
    add_overlap(parser)
    place = parser.add_argument_group("place")
    place.add_argument(
        "--store", default="store", help="folder of finished work; a second run does what is missing (default: store)"
    )
    place.add_argument("--root", help="folder of datasets (default: $NESCIO_DATA, else ~/.cache/nescio/data)")
    place.add_argument("--device", default="auto", help="cpu, cuda, or auto: the GPU if there is one (default)")
    place.add_argument(
        "--precision", choices=("auto", "float32", "bf16"), default="auto", help="auto: bf16 on a GPU (default: auto)"
    )
    place.add_argument(
        "--forget", action="store_true", help="remove decoded images when the last model that sees them so is done"
    )
    place.add_argument("--workers", type=int, default=0, help="processes that judge the answers (default: 0, this one)")
    place.add_argument("--report", metavar="DIR", help="page, tables and rows there (default: STORE/report)")
    place.add_argument("--json", action="store_true", help="print the rows as JSON, alone on stdout; write no page")


def run(args: argparse.Namespace) -> int:
    from nescio.commands._study import show
    from nescio.networks.published import read_published
    from nescio.work.store import Store

    store = Store(args.store)
    also = dict(_named(text) for text in args.also)
    if also and not args.out:
        raise BadInput("--also names further sets beside --out; name that one first.")
    table = read_published(args.published) if args.published else None
    grading = grading_of(args) if args.out else None
    answers, notes = asked(args, store, also)
    answers, warnings = (answers, []) if table is None else _compared(answers, table, args.published)
    for line in (*notes, *warnings):
        print(f"note: {line}", file=sys.stderr)
    studies = list(_studies(args, store, answers, also, grading))
    for study in studies:
        study.notes += [*notes, *warnings]
    if studies:  # what failed before there were rows is told with them
        studies[0].failures[:0] = answers.failures
    lost, ends = [] if studies else answers.failures, list[int]()
    if args.json:
        say(json_of([row for study in studies for row in study.rows]))
        lost = [failure for study in studies for failure in study.failures] or lost
    else:
        folder = Path(args.report or Path(args.store) / "report")
        ends = [show(study, place, others) for study, place, others in _pages(studies, folder)]
        lost = [*lost, *(failure for study in studies if not study.rows for failure in study.failures)]
    for failure in lost:
        print(f"failed: {failure.task.name}: {failure.reason}", file=sys.stderr)
    return 1 if lost or any(ends) else 0


def _pages(studies: Sequence[Any], folder: Path) -> Iterator[tuple[Any, Path, dict[str, str]]]:
    """Each study that found something, the folder of its page, and the pages beside it: their addresses from there, and
    what they tell."""
    both = len(studies) > 1 and all(study.rows for study in studies)
    beside = [{"cood/index.html": "New classes →"}, {"../index.html": "← Known classes"}]
    for study, place, others in zip(studies, (folder, folder / "cood"), beside, strict=False):
        if study.rows:
            yield study, place, others if both else {}


def asked(args: argparse.Namespace, store: Store, also: dict[str, str]) -> tuple[Answers, list[str]]:
    """What the models say about all sets, and what to know of those that were left out."""
    from nescio.datasets.classes import chosen, labelled
    from nescio.datasets.views import undamaged
    from nescio.networks.ask import Settings, ask_all
    from nescio.networks.models import pick
    from nescio.runtime import runtime

    settings = Settings(args.passes, args.drop, args.embeddings, args.batch, args.weights, args.root)
    place = settings.place
    if place is not None and not place.exists():
        raise BadInput(f"There is no folder and no file of weights at {place}.")
    folder = place if place is not None and place.is_dir() else None
    models = pick(args.models, store, root=args.root, family=args.family, everything=args.all, folder=folder)
    if place is not None and place.is_file() and len(models) > 1:
        raise BadInput(f"{place} is one checkpoint and {len(models)} models are named: name one, or a folder of files.")
    notes: list[str] = []

    def images_of(spec: str, classes: Sequence[int] | None = None, **kind: bool) -> Labelled:
        images = chosen(labelled(spec, args.root, **kind), classes, args.limit)
        if args.skip_damaged:
            images, note = undamaged(images, store, _tell)
            notes.extend([note] if note and note not in notes else [])
        return images

    inside = images_of(args.data, _classes(args.classes))
    outside = [images_of(spec, outside=True) for spec in (args.out, *also.values()) if spec]
    models, left = _fitting(models, inside, args)
    notes += left
    pairs: list[tuple[Model, Labelled]] = []
    for model in models:
        own = inside
        if model.from_store:  # of a set without test images of its own, training saw the larger part
            own = images_of(args.data, _classes(args.classes), divided=True)
        pairs += [(model, images) for images in (own, *outside)]
    here = runtime(args.device).at(args.precision)
    with closing(Lines(0)) as lines:
        answers = ask_all(
            pairs,
            store,
            here,
            settings,
            forget=args.forget,
            say=_tell,
            watch=lambda *counts: lines("asking the models", *counts),
        )
    return replace(answers, failures=_together(answers.failures, args.models)), notes


def _tell(line: str) -> None:
    print(line, file=sys.stderr, flush=True)


def _together(failures: Sequence[Failure], named: Sequence[str]) -> list[Failure]:
    """Of models that no one named, those without weights in one line: there may be a thousand."""
    from nescio.networks.weights import ABSENT

    absent = [
        each for each in failures if each.reason.startswith(ABSENT) and each.task.name.split(" on ")[0] not in named
    ]
    if len(absent) < 3:
        return list(failures)
    one = replace(absent[0], task=replace(absent[0].task, name=f"{len(absent)} answers that need weights"))
    return [*(each for each in failures if each not in absent), one]


def _fitting(models: Sequence[Model], images: Labelled, args: argparse.Namespace) -> tuple[list[Model], list[str]]:
    """Of models that no one named, those with the set's classes; the others are no failures."""
    from nescio.datasets.classes import numbered

    kept: list[Model] = []
    for model in models:
        if model.name not in args.models:
            try:
                numbered(images, model.classes, model.taught)
            except BadInput:
                continue
        kept.append(model)
    left = len(models) - len(kept)
    if not kept:
        numbered(images, models[0].classes, models[0].taught)  # says why
    return kept, [
        f"{left} models answer with other classes than {images.name} has; they were not asked."
    ] if left else []


def _classes(text: str | None) -> tuple[int, ...] | None:
    return numbers(text) if text else None


def _named(text: str) -> tuple[str, str]:
    name, sign, rest = text.partition("=")
    if not (name and sign and rest):
        raise BadInput(f"--also {text}: write NAME=SET, such as imagenet-o=folder:PATH.")
    return name, rest


def _compared(answers: Answers, held: Table, table: str) -> tuple[Answers, list[str]]:
    """The entries with the accuracies that a table publishes, and a warning for each that ours is far from."""
    from nescio.networks.published import disagreement, published_of

    warnings, found = list[str](), list[Any]()
    for entry in answers.entries:
        line = None if entry.facts.get("outside") else published_of(entry, held)
        if line is not None:
            entry = replace(entry, facts={**entry.facts, "published_accuracy": line.accuracy})
            warnings += [words] if (words := disagreement(entry, line)) else []
        elif not entry.facts.get("outside"):
            warnings.append(f"{table} has no line for {entry.model}.")
        found.append(entry)
    return replace(answers, entries=found), warnings


def grading_of(args: argparse.Namespace) -> Grading:
    """How --out is graded, checked before any model is asked."""
    from nescio.datasets.classes import labelled
    from nescio.protocols import cood

    order = args.hierarchy_order.replace("-", " ")
    plan = cood.Plan(estimation=args.estimation, test=args.test, hierarchy=args.hierarchy, order=order)
    plan.check()
    notes: list[str] = []
    names = names_of(args, notes)
    cood.refused_classes(plan, names, [])
    for file, held, spec, outside in zip(
        (args.in_names, args.out_names), names or (), (args.data, args.out), (False, True), strict=False
    ):
        if file and len(held) < (classes := len(labelled(spec, args.root, outside=outside).classes)):
            raise BadInput(
                f"{file} has {len(held)} names and {spec} has {classes} classes: name every class, class 0 first."
            )
    return plan, names, notes


def _studies(
    args: argparse.Namespace, store: Store, answers: Answers, also: dict[str, str], grading: Grading | None
) -> Iterator[Any]:
    """Selective prediction on --data, then detection of --out."""
    from nescio.protocols import cood, selective

    inside = [entry for entry in answers.entries if not entry.facts["outside"]]
    if not inside:
        return
    pairs = list(_pairs(inside, answers.entries, args, also)) if grading else []
    if grading and grading[1] is not None and (args.in_names or args.out_names):
        cood.check_names(grading[1], pairs)
    with closing(Lines(args.workers)) as lines:
        yield selective.run(selective.Plan(), inside, store, args.workers, lines)
    if grading and pairs:
        plan, names, notes = grading
        with closing(Lines(args.workers)) as lines:
            yield cood.run(plan, pairs, store, args.workers, lines, names, notes)


def _pairs(
    inside: Sequence[Entry], entries: Sequence[Entry], args: argparse.Namespace, also: dict[str, str]
) -> Iterator[Any]:
    """Of every model, its answers inside and outside; one that lacks the latter is left to the list of failures."""
    from nescio.predictions.entries import spec_of
    from nescio.protocols.cood import Pair

    held = {(entry.model, entry.data): entry for entry in entries if entry.facts["outside"]}
    for entry in inside:
        outside = held.get((entry.model, spec_of(args.out)))
        others = {name: held.get((entry.model, spec_of(spec))) for name, spec in also.items()}
        if outside is not None:
            yield Pair(entry.model, entry, outside, {name: each for name, each in others.items() if each is not None})
