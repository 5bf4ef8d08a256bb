"""Which representation to trust for your images, before anyone labels them: ranked by how far siblings agree.

A CANDIDATE is some networks of one algorithm that differ in their seed (siblings), as NAME=MEMBER,MEMBER,…; a MEMBER is
  REFERENCES:TESTS   two files of embeddings (n, d), of the references and of the rows to be judged
  FILE               one file of embeddings; a part of its rows are the references (see --split-references)
  store:KEY          a network of `nescio train`
  siblings:KEY       that network and all others of the store that differ from it in their init seed alone
  a timm name, torchvision:NAME   a pretrained classifier; its embedding is what its last layer is given
Files are .npz, .npy, .safetensors, .parquet, .csv or folders. Networks look at --images, and at --references: 5,000 of
its training images, best those that they learnt from.

Candidates are ranked by neighbourhood consistency, NC (Park et al. 2024, §4.3): row by row, how far siblings agree on
which references are nearest to it, from 0 to 1. Intervals and the group that cannot be told from the best come from a
paired bootstrap over the rows. A lone model has no NC, because it has no siblings to agree with: it gets Dist (distance
to the nearest references), Norm (length) and LL (log-likelihood under a mixture). Those depend on a space's scale and
its number of features: they compare images of one candidate, and between candidates they mean little, even where
architectures are equal (in the paper they ranked candidates backwards). NC compares between candidates, as long as all
are judged against the same references.

Where there are labels the ranking is compared with that of downstream heads (Table 3): in FILEs whose rows have
`labels`; for networks where --references and --images are one set; else with --train.

examples:
  nescio rank simclr=s0.npz,s1.npz,s2.npz byol=b0.npz,b1.npz,b2.npz
  nescio rank simclr=train0.npz:test0.npz,train1.npz:test1.npz moco=m0r.npz:m0.npz,m1r.npz:m1.npz --report out
  nescio rank simclr=siblings:3f2a moco=siblings:77b0 resnet50 --references cifar10 --images photos/
  nescio rank a=siblings:3f2a b=siblings:77b0 --references tiny-imagenet --images cifar10 --train cifar10
  nescio rank mine=a.npz,b.npz --to scores.parquet --json
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from nescio.commands._output import add_format, json_of, say
from nescio.commands.reliability import add_scoring, how_of
from nescio.errors import BadInput

if TYPE_CHECKING:
    from nescio.analysis.ranking import Candidate, Ranked
    from nescio.datasets.pictures import Pictures
    from nescio.embedding import Asking
    from nescio.predictions import Predictions

ENDINGS = (".npz", ".safetensors", ".parquet", ".csv", ".npy")
NETWORK = ("store:", "siblings:", "torchvision:")
HINT = "The rows have labels: with --train, which names rows to learn from, downstream heads check this ranking."
REFERENCES = "references"  # --train references: their labels are those of the images


def configure(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("candidates", nargs="+", metavar="CANDIDATE", help="NAME=MEMBER,MEMBER,… or one MEMBER")
    images = parser.add_argument_group("rows")
    images.add_argument(
        "--images", metavar="SET", help="for networks: a dataset's test images, or a folder of images without labels"
    )
    images.add_argument(
        "--references",
        metavar="SET",
        help="for networks: a dataset, or a folder of images (default: a part of --images, as for FILEs)",
    )
    images.add_argument(
        "--draw", type=int, default=5000, metavar="N", help="references drawn from --references (default: 5000)"
    )
    images.add_argument(
        "--split-references",
        type=int,
        metavar="N",
        help="take N of the rows as references and judge the rest (default: two halves, each judged against at most "
        "5000 rows of the other, so that every row is judged)",
    )
    labels = parser.add_argument_group("labels")
    labels.add_argument(
        "--train",
        action="append",
        default=[],
        metavar="SET|NAME=FILE,…",
        help="labelled rows that teach the downstream heads: for networks a dataset, whose training images are taken; "
        "for files, a candidate's name and a file for every member; `references`: the references, whose labels must "
        "be those of the images (default: see above)",
    )
    labels.add_argument("--unlabelled", action="store_true", help="do not look at labels where there are some")
    labels.add_argument(
        "--tasks",
        choices=("one-vs-one", "multiclass"),
        default="one-vs-one",
        help="of the downstream heads: every pair of classes, or all at once (default: one-vs-one)",
    )
    add_scoring(parser)
    judged = parser.add_argument_group("comparison")
    judged.add_argument(
        "--resamples", type=int, help="of the bootstrap (default: 1000, or more where many candidates need them)"
    )
    judged.add_argument("--level", type=float, default=0.95, help="of the intervals (default: 0.95)")
    place = parser.add_argument_group("place")
    place.add_argument("--store", default="store", help="folder of networks and finished work (default: store)")
    place.add_argument("--root", help="folder of datasets (default: $NESCIO_DATA, else ~/.cache/nescio/data)")
    place.add_argument(
        "--weights",
        type=Path,
        metavar="PATH",
        help="of pretrained models: a checkpoint, or a folder of files named by models (default: $NESCIO_WEIGHTS, then "
        "the hubs' caches, then the network)",
    )
    place.add_argument("--device", default="auto", help="cpu, cuda, or auto: the GPU if there is one (default)")
    parser.add_argument(
        "--to", metavar="FILE", help="scores of every candidate and row: .csv, .parquet or .npz (default: none)"
    )
    parser.add_argument("--report", metavar="DIR", help="write index.html, rows.csv and tables there (default: none)")
    add_format(parser)


def run(args: argparse.Namespace) -> int:
    from nescio.analysis.ranking import arrays_of, rank, save_columns, table_of

    found = rank(
        candidates_of(args),
        how_of(args),
        labels=not args.unlabelled,
        resamples=args.resamples,
        level=args.level,
        seed=args.seed,
    )
    if not found.truths and not args.unlabelled and all(each.tests[0].labels is not None for each in found.candidates):
        found.notes.append(HINT)
    if args.to:
        save_columns(args.to, table_of(found), arrays_of(found))
    page = None
    if args.report:
        from nescio.report.representations import ranking_story, write_story

        page = write_story(ranking_story(found), args.report, found.comparison.rows)
    _show(found, args, page)
    return 0


# ---- what is meant


@dataclass(frozen=True)
class Named:
    """A candidate as it was typed."""

    name: str
    members: tuple[str, ...]

    @property
    def networks(self) -> bool:
        return _is_network(self.members[0])


def named(text: str) -> Named:
    """NAME=MEMBER,MEMBER,… or one MEMBER, which is then its own name."""
    name, equals, rest = text.partition("=")
    if not equals or Path(text).exists():
        name, rest = "", text
    members = tuple(rest.split(","))
    if not all(members) or (equals and not name and rest != text):
        raise BadInput(f"{text!r} is not a candidate: write NAME=MEMBER,MEMBER,….")
    if not name and len(members) > 1:
        raise BadInput(f"{text!r} has several members and no name: write NAME={text}.")
    kinds = {_is_network(each) for each in members}
    if len(kinds) > 1:
        raise BadInput(f"{text!r} mixes files and networks: members of one candidate must be of one kind.")
    return Named(name or _own_name(members[0]), members)


def _is_network(word: str) -> bool:
    """Files are told by their ending, by a folder in their path, or because they are there."""
    if word.startswith(NETWORK):
        return True
    files = word.lower().endswith(ENDINGS) or os.sep in word or Path(word).exists()
    return not files and ":" not in word


def _own_name(word: str) -> str:
    if _is_network(word):
        return word
    return Path(_sides(word)[1]).stem


def _sides(word: str) -> tuple[str | None, str]:
    """REFERENCES:TESTS, or None and one file; a colon may also be part of a path that is there."""
    if Path(word).exists() or ":" not in word:
        return None, word
    cuts = [at for at, letter in enumerate(word) if letter == ":"]
    pairs = [(word[:at], word[at + 1 :]) for at in cuts]
    there = [pair for pair in pairs if all(each and Path(each).exists() for each in pair)]
    refs, tests = there[0] if there else pairs[-1]
    if not (refs and tests):
        raise BadInput(f"{word!r} is neither a file nor two files REFERENCES:TESTS.")
    return refs, tests


def candidates_of(args: argparse.Namespace) -> list[Candidate]:
    """The embeddings of every candidate, read or made."""
    asked = [named(text) for text in args.candidates]
    if twice := [each.name for each in asked if [other.name for other in asked].count(each.name) > 1]:
        raise BadInput(f"Two candidates are called {twice[0]!r}: name them, NAME=….")
    for number, each in enumerate(asked):
        if twin := next((other for other in asked[:number] if set(other.members) == set(each.members)), None):
            raise BadInput(f"{twin.name} and {each.name} are the same members: they cannot be told apart.")
    networks = [each for each in asked if each.networks]
    taught = _taught(args.train, asked)
    if networks and not args.images:
        raise BadInput(f"{networks[0].members[0]} is a network and must be shown images: name them with --images.")
    if not networks and (args.images or args.references):
        raise BadInput("--images and --references are what networks look at, and all candidates are files: drop them.")
    shown = _Shown.of(args, taught.get(None), networks) if networks else None
    return [
        _embedded(each, args, shown) if shown and each.networks else _read(each, taught.get(each.name))
        for each in asked
    ]


def _taught(texts: Sequence[str], asked: Sequence[Named]) -> dict[str | None, str]:
    """--train by candidate; None for networks, which learn from a set, and `references` for all."""
    found: dict[str | None, str] = {}
    names = [each.name for each in asked]
    for text in texts:
        name, equals, rest = text.partition("=")
        if text == REFERENCES:
            found |= dict.fromkeys([None, *names], REFERENCES)
        elif equals and name in names and rest:
            found[name] = rest
        elif not equals:
            found[None] = text
        else:
            raise BadInput(
                f"--train {text}: write a dataset, `references`, or NAME=FILE,… with one of {', '.join(names)}."
            )
    if None in found and found[None] != REFERENCES and not any(each.networks for each in asked):
        raise BadInput(
            f"--train {found[None]}: the candidates are files; write NAME=FILE,… with a file for every member."
        )
    return found


def _read(asked: Named, taught: str | None) -> Candidate:
    """A candidate of files."""
    from nescio.analysis.ranking import Candidate, read

    sides = [_sides(word) for word in asked.members]
    refs = [side for side, _ in sides if side is not None]
    if refs and len(refs) < len(sides):
        raise BadInput(f"{asked.name}: some members are REFERENCES:TESTS and some are one file; write all alike.")
    tests, known = read([side for _, side in sides]), read(refs) if refs else None
    train: list[Predictions] | None = None
    if taught == REFERENCES:
        train = known  # a part of the rows teaches by itself
    elif taught is not None:
        files = taught.split(",")
        if len(files) != len(sides):
            raise BadInput(f"--train {asked.name}={taught}: {len(files)} files for {len(sides)} members.")
        train = read(files)
    if train is not None and train[0].labels is None:
        raise BadInput(f"The rows that should teach heads on {asked.name} have no labels.")
    return Candidate(asked.name, tests, known, train)


# ---- networks and what they are shown


@dataclass(frozen=True, eq=False)
class _Shown:
    """The images that all networks look at."""

    images: Pictures
    references: Pictures | None
    train: Pictures | None
    train_is_references: bool
    asking: Asking

    @staticmethod
    def of(args: argparse.Namespace, taught: str | None, networks: Sequence[Named]) -> _Shown:
        from nescio.datasets.pictures import pictures, training
        from nescio.embedding import Asking
        from nescio.predictions.entries import spec_of
        from nescio.work.store import Store

        trained = any(word.startswith(("store:", "siblings:")) for each in networks for word in each.members)
        images = pictures(args.images, args.root, divided=trained)
        known = training(args.references, args.root, args.draw, args.seed) if args.references else None
        same = bool(known and known.labelled and images.labelled and spec_of(args.references) == spec_of(args.images))
        train = training(taught, args.root) if taught and taught != REFERENCES and not args.unlabelled else None
        if known is not None and known.images.revision == images.images.revision:
            _check_apart(images, known, args)
        asking = Asking(Store(args.store), args.root, args.weights, args.device)
        return _Shown(images, known, train, taught == REFERENCES or (same and not taught), asking)


def _check_apart(images: Pictures, known: Pictures, args: argparse.Namespace) -> None:
    """No image may be its own reference."""
    import numpy as np

    both = np.isin(images.images.index, known.images.index)
    if both.any():
        raise BadInput(
            f"{int(both.sum())} of the images of {args.images} are among the references: name other references, or "
            "leave --references away, and a part of the images is taken."
        )


def _embedded(asked: Named, args: argparse.Namespace, shown: _Shown) -> Candidate:
    """A candidate of networks, which look at the images."""
    from nescio.analysis.ranking import Candidate, in_one_order
    from nescio.embedding import embed, members_of
    from nescio.work.progress import track

    members = members_of(asked.members, shown.asking.store)
    sets = {"tests": shown.images, "refs": shown.references, "train": shown.train}
    held: dict[str, Any] = {}
    for name, pictures in sets.items():
        if pictures is not None:
            dumps = [embed(each, pictures, shown.asking) for each in track(members, f"{asked.name}, {name}")]
            held[name] = in_one_order(dumps, members)
    found = Candidate(asked.name, held["tests"], held.get("refs"), held.get("train"), "networks")
    return replace(found, train=found.refs) if shown.train_is_references and found.refs is not None else found


# ---- what is printed


def _show(found: Ranked, args: argparse.Namespace, page: Path | None) -> None:
    from nescio import report
    from nescio.report.representations import ranking_sentences, ranking_tables

    if args.format == "json":
        say(json_of(_plain(found)))
        return
    tables = ranking_tables(found, brief=args.format == "table")
    if args.format != "table":
        write = {"markdown": report.markdown, "latex": report.latex}
        say(report.csv_text(found.comparison.rows) if args.format == "csv" else write[args.format](tables))
        return
    from rich.console import Console
    from rich.text import Text

    console = Console()
    console.print(Text(" ".join(ranking_sentences(found))), end="\n\n")
    report.terminal(tables, console)
    for note in found.notes:
        print(note, file=sys.stderr)
    if args.to:
        say(f"{args.to} holds the scores of {len(found.rows.keys):,} rows.")
    if page is not None:
        say(f"The page is {page}.")


def _plain(found: Ranked) -> dict[str, Any]:
    from nescio.analysis.ranking import TOLD
    from nescio.measures.siblings import kind

    def told(name: str) -> dict[str, Any]:
        held = {}
        for metric in found.metrics:
            if (row := found.row(name, metric)) is not None:
                fields = ("value", "low", "high", "rank", "best")
                held[metric] = {"better": TOLD[kind(metric)][1]} | {field: row[field] for field in fields}
        return held

    return {
        "choice": found.group[0] if found.group else None,
        "group": found.group,
        "by": found.nc,
        "k": found.k,
        "n": len(found.rows.keys),
        "references": found.rows.references,
        "halves": len(found.rows.parts) > 1,
        "distance": found.how.metric,
        "similarity": found.how.similarity,
        "level": found.comparison.level,
        "resamples": found.comparison.resamples,
        "candidates": [
            {"candidate": each.name, "members": each.members, "features": each.features, "scores": told(each.name)}
            | {"difference": found.difference(each.name), "reasons": dict(found.scores[each.name].reasons)}
            for each in found.candidates
        ],
        "agreement": found.agreement,
        "notes": found.notes,
    }
