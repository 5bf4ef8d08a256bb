"""Which models notice classes that they were never taught, from the easiest to the hardest for each of them.

For every model and every measure of uncertainty: out-classes are sorted by how sure the model is of them on estimation
images; groups of as many classes as the in-data has slide over them; eleven groups, 10 % apart, are the severities 0 to
10; each gives the AUROC of its test images against the in-domain images (Galil et al. 2023, §4 and appendix L).

Models are files of predictions, one about in-domain images and one about images of other classes under class ids of
their own (--pair), or those of a store that `nescio zoo` has asked about both sets (--data and --out).

A class takes part if it has --estimation + --test images (150 + 50); smaller sets need smaller numbers. With
--hierarchy, out-classes that are in-classes, above one or below one are left out; its lines are PARENT CHILD, as in
ImageNet's wordnet.is_a.txt, and classes are named as it names them: folders by WordNet id, or --in-names, --out-names.

examples:
  nescio run cood --pair resnet=cifar10.npz,cifar100.npz --pair vit=cifar10v.npz,cifar100v.npz --estimation 40 --test 20
  nescio run cood --pair resnet=val.npz,out.npz,imagenet-o=hard.npz
  nescio run cood --store store --data imagenet:val --out folder:imagenet21k --hierarchy wordnet.is_a.txt
  nescio run cood --store store --data imagenet:val --out folder:imagenet21k --also imagenet-o=folder:imagenet-o
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING, Any

from nescio.errors import BadInput

if TYPE_CHECKING:
    from nescio.protocols.cood import Pair, Plan

Names = tuple[Sequence[str], Sequence[str]]


def configure(parser: argparse.ArgumentParser) -> None:
    models = parser.add_argument_group("models")
    models.add_argument(
        "--pair",
        action="append",
        default=[],
        metavar="NAME=IN,OUT[,SET=FILE]",
        help="a model by its files of predictions; further files are fixed out-sets, shown beside the severities",
    )
    models.add_argument("--data", metavar="IN", help="in-domain set that models of the store were asked about")
    models.add_argument("--out", metavar="OUT", help="out-domain set that they were asked about")
    models.add_argument(
        "--also",
        action="append",
        default=[],
        metavar="NAME=SET",
        help="a fixed out-set, such as imagenet-o=folder:PATH",
    )
    models.add_argument("--root", help="folder of datasets (default: $NESCIO_DATA, else ~/.cache/nescio/data)")
    how = parser.add_argument_group("grading")
    how.add_argument(
        "--estimation", type=int, default=150, help="images of a class that set its severity (default: 150)"
    )
    how.add_argument("--test", type=int, default=50, help="images of a class that are detected (default: 50)")
    how.add_argument("--severities", type=int, default=11, help="groups from easy to hard (default: 11)")
    how.add_argument(
        "--window",
        type=int,
        metavar="CLASSES",
        help="classes of a group (default: as many as the in-data has; half of the out-classes where they are no more)",
    )
    how.add_argument(
        "--measures",
        default="largest,entropy,mc-dropout",
        help="of uncertainty, comma-separated (default: largest,entropy,mc-dropout)",
    )
    how.add_argument("--seed", type=int, default=0, help="of the division into estimation and test (default: 0)")
    add_overlap(parser)
    place = parser.add_argument_group("place")
    place.add_argument(
        "--store", default="store", help="folder of finished work; a second run does what is missing (default: store)"
    )
    place.add_argument(
        "--workers", type=int, default=0, help="processes, a model each (default: 0, this one, on all cores)"
    )
    place.add_argument("--report", metavar="DIR", help="page, tables and rows there (default: STORE/report)")
    place.add_argument("--json", action="store_true", help="print the rows as JSON, alone on stdout; write no page")


def add_overlap(parser: argparse.ArgumentParser) -> None:
    """Which out-classes are no new ones."""
    kin = parser.add_argument_group("classes that overlap")
    kin.add_argument(
        "--hierarchy", metavar="FILE", help="is-a file: out-classes above or below an in-class are left out"
    )
    kin.add_argument(
        "--hierarchy-order",
        choices=("parent-child", "child-parent"),
        default="parent-child",
        help="of the two names on its lines (default: parent-child)",
    )
    kin.add_argument(
        "--in-names", metavar="FILE", help="names of the in-classes, one a line, class 0 first (default: the dataset's)"
    )
    kin.add_argument("--out-names", metavar="FILE", help="names of the out-classes (default: the dataset's)")


def run(args: argparse.Namespace) -> int:
    from nescio.commands._study import Lines, end
    from nescio.protocols import cood
    from nescio.work.store import Store

    plan, store = plan_of(args), Store(args.store)
    plan.check()
    pairs, notes = pairs_of(args, store)
    names = names_of(args, notes)
    if names is not None and (args.in_names or args.out_names):
        cood.check_names(names, pairs)
    with closing(Lines(args.workers)) as lines:
        study = cood.run(plan, pairs, store, args.workers, lines, names, notes)
    return end(study, None if args.json else Path(args.report or Path(args.store) / "report"))


def plan_of(args: argparse.Namespace) -> Plan:
    from nescio.protocols.cood import Plan

    return Plan(
        estimation=args.estimation,
        test=args.test,
        severities=args.severities,
        window=args.window,
        measures=tuple(dict.fromkeys(args.measures.split(","))),
        hierarchy=args.hierarchy,
        order=args.hierarchy_order.replace("-", " "),
        seed=args.seed,
    )


def pairs_of(args: argparse.Namespace, store: Any) -> tuple[list[Pair], list[str]]:
    """The models, and what to know of those that are left out."""
    from nescio.protocols import cood

    if args.pair:
        if args.data or args.out or args.also:
            raise BadInput("--pair names files; leave --data, --out and --also, which ask for models of a store, away.")
        return [_pair(text) for text in args.pair], []
    if not (args.data and args.out):
        raise BadInput(
            "Name models by their files with --pair NAME=IN,OUT, or models of a store with --data and --out."
        )
    return cood.pairs_of(store, args.data, args.out, dict(_named(text, "--also") for text in args.also))


def _pair(text: str) -> Pair:
    """NAME=IN,OUT[,SET=FILE]."""
    from nescio.protocols.cood import pair_of_files

    name, rest = _named(text, "--pair")
    inside, *others = rest.split(",")
    if not others or not inside or not others[0]:
        raise BadInput(f"--pair {text}: write NAME=IN,OUT, the files about in-domain and about out-domain images.")
    return pair_of_files(name, inside, others[0], dict(_named(each, "--pair") for each in others[1:]))


def _named(text: str, option: str) -> tuple[str, str]:
    name, sign, rest = text.partition("=")
    if not (name and sign and rest):
        raise BadInput(f"{option} {text}: {text!r} is not of the form NAME=VALUE.")
    return name, rest


def names_of(args: argparse.Namespace, notes: list[str]) -> Names | None:
    """Names of the in-classes and of the out-classes, from files or from the datasets; None where there are none."""
    from nescio.protocols.cood import hierarchy

    files = (args.in_names, args.out_names)
    if any(files) and not all(files) and not (args.data and args.out):
        raise BadInput("Give both --in-names and --out-names: overlap is between the two.")
    sides: list[Sequence[str]] = []
    for file, spec, outside in zip(files, (args.data, args.out), (False, True), strict=True):
        if file is not None:
            sides.append(hierarchy.names(file))
            continue
        if spec is None:
            return None
        from nescio.datasets.classes import labelled

        try:
            own = labelled(spec, args.root, outside=outside).classes
        except BadInput as reason:
            if args.hierarchy:
                raise
            notes.append(f"Whether classes of the two sets are the same could not be told: {reason}")
            return None
        if all(name.isdigit() for name in own):  # a number is no name: class 3 of two sets is not one class
            if args.hierarchy:
                raise BadInput(
                    f"The classes of {spec} have numbers, no names: name them with --in-names and --out-names."
                )
            return None
        sides.append(own)
    return sides[0], sides[1]
