"""How far each row's representation can be trusted, without any label: from the embeddings of two or more models.

EMBEDDINGS are files, one a model, with `embeddings` (n, d) of the same rows: .npz, .safetensors, .parquet, .csv (with
columns emb_0 …), folders, or a plain array in a .npy file; `index` (n,) names the rows where they are not in one order.
The models should be siblings: one algorithm, other seeds. d may differ between them.

A row is reliable where the models agree on which references are nearest to it (neighbourhood consistency, NC, from 0 to
1; Park et al. 2024). Beside NC: the distance to the nearest references (Dist), the length of the embedding (Norm), its
log-likelihood under a mixture fitted to the references (LL), each the mean over models, and the variance between models
(FV).

The references are other rows, best 5,000 of those that the models learnt from: --references, a file a model in the same
order. Without them the rows are halved and each half is judged against (at most 5,000 rows of) the other, so that every
row gets a score; or --split-references takes N rows as references, which then get none.

--to writes index, nc (higher = more reliable), and u_nc, u_dist, u_norm, u_ll, u_fv (all: higher = less reliable).

examples:
  nescio reliability seed0.npz seed1.npz seed2.npz --to scores.csv
  nescio reliability a.npz b.npz --references train_a.npz train_b.npz --report out --images photos/
  nescio reliability a.npz b.npz --split-references 2000 --k 50 --json
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from nescio.commands._output import json_of, say
from nescio.errors import BadInput

if TYPE_CHECKING:
    from nescio.analysis.ranking import How
    from nescio.report.representations import Judged

ONE = (
    "One model has no neighbourhood consistency: NC asks whether models agree on what is near to a row, so it needs "
    "the embeddings of a second one, best of the same algorithm with another seed. `nescio rank {} --to FILE` gives "
    "what one model has: Dist, Norm and LL."
)


def configure(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("files", nargs="+", metavar="EMBEDDINGS", help="a file of embeddings for every model")
    which = parser.add_argument_group("references")
    which.add_argument(
        "--references",
        nargs="+",
        metavar="FILE",
        help="embeddings of the references, a file for every model in the same order (default: the other half of the "
        "rows, at most 5000)",
    )
    which.add_argument(
        "--split-references", type=int, metavar="N", help="N of the rows, the rest is judged (default: two halves)"
    )
    add_scoring(parser)
    shown = parser.add_argument_group("output")
    shown.add_argument("--to", metavar="FILE", help="a line for every row: .csv, .parquet or .npz (default: none)")
    shown.add_argument("--report", metavar="DIR", help="write index.html and tables there (default: none)")
    shown.add_argument(
        "--images",
        metavar="SET",
        help="the images of the rows, for the page: a folder of images, by name or in order of their names, or the "
        "test images of a dataset (default: rows are told by index)",
    )
    shown.add_argument("--root", help="folder of datasets (default: $NESCIO_DATA, else ~/.cache/nescio/data)")
    shown.add_argument(
        "--least", type=int, default=24, metavar="N", help="least reliable rows that are told (default: 24)"
    )
    shown.add_argument("--json", action="store_true", help="strict JSON, alone on stdout")


def add_scoring(parser: argparse.ArgumentParser) -> None:
    """How rows are scored; `nescio rank` takes the same."""
    how = parser.add_argument_group("scores")
    how.add_argument(
        "--k",
        type=int,
        help="neighbours of NC (default: 100, or a twentieth of the references where they are fewer than 2000)",
    )
    how.add_argument("--k-dist", type=int, default=1, metavar="K", help="neighbours of Dist (default: 1)")
    how.add_argument(
        "--distance",
        choices=("cosine", "euclidean"),
        default="cosine",
        help="between embeddings; cosine: at length one, and LL by a von Mises–Fisher mixture; euclidean: as they are, "
        "and a Gaussian mixture (default: cosine)",
    )
    how.add_argument(
        "--similarity",
        choices=("jaccard", "overlap"),
        default="jaccard",
        help="of two sets of neighbours: shared of all, or shared of k (default: jaccard)",
    )
    how.add_argument(
        "--components", type=int, default=20, metavar="C", help="of LL's mixture; 0: no LL, quicker (default: 20)"
    )
    how.add_argument("--seed", type=int, default=0, help="of the division into halves and of the mixture (default: 0)")


def how_of(args: argparse.Namespace) -> How:
    from nescio.analysis.ranking import How

    return How(
        k=args.k,
        k_dist=args.k_dist,
        metric=args.distance,
        similarity=args.similarity,
        components=args.components,
        split=args.split_references,
        seed=args.seed,
        tasks=getattr(args, "tasks", "one-vs-one"),
    )


def run(args: argparse.Namespace) -> int:
    from nescio.analysis.ranking import columns_of, save_columns

    if args.least < 1:
        raise BadInput(f"--least is a number of rows from 1 on, not {args.least}.")
    if args.images and not args.report:
        raise BadInput("--images are shown on the page: name its folder with --report.")
    judged = judge(args)
    if args.to:
        save_columns(args.to, columns_of(judged.scores))
    page = _page(judged, args) if args.report else None
    if args.json:
        say(json_of(_plain(judged, args)))
    else:
        _print(judged, args, page)
    return 0


def judge(args: argparse.Namespace) -> Judged:
    """The rows of the files and their scores."""
    from nescio.analysis.ranking import Candidate, division, neighbours, own_references, read, scored
    from nescio.report.representations import Judged

    if len(args.files) == 1:
        raise BadInput(ONE.format(args.files[0]))
    how, refs = how_of(args), None
    if args.references:
        if how.split is not None:
            raise BadInput(
                "--references gives the references and --split-references takes them from the rows: drop one."
            )
        if len(args.references) != len(args.files):
            raise BadInput(
                f"There are {len(args.files)} files of embeddings and {len(args.references)} of references: give one "
                "of each a model, in the same order."
            )
        refs = read(args.references)
    candidate = Candidate("", read(args.files), refs)
    rows = division([candidate], how)
    k = neighbours(rows, how)
    scores = scored(candidate, rows, k, how)
    if not scores.u:
        raise BadInput(next(iter(scores.reasons.values())))
    return Judged(candidate, scores, rows, k, how, tuple(own_references(scores)))


def _page(judged: Judged, args: argparse.Namespace) -> Path:
    from nescio.report.representations import judged_story, write_story

    shown = _thumbnails(judged, args) if args.images else None
    return write_story(judged_story(judged, args.least, shown), args.report)


def _thumbnails(judged: Judged, args: argparse.Namespace) -> dict[int, tuple[bytes, str]]:
    """Row → small picture and name, of the rows that the page shows."""
    from nescio.datasets.pictures import pictures, places_of, thumbnail

    index, every = judged.scores.index, len(judged.candidate.tests[0])
    shown = pictures(args.images, args.root, divided=True)
    try:
        at = places_of(index, shown, every)
    except BadInput:  # a set without test images of its own: the rows may be all of it
        shown = pictures(args.images, args.root)
        at = places_of(index, shown, every)
    wanted = {int(row) for rows in (judged.least(args.least), judged.most(args.least)) for row in rows}
    found = {}
    for row in sorted(wanted):
        source = shown.images.source(int(at[row]))
        name = Path(source).name if isinstance(source, str) else str(judged.scores.index[row])
        found[row] = thumbnail(source), name
    return found


def _print(judged: Judged, args: argparse.Namespace, page: Path | None) -> None:
    from rich.console import Console
    from rich.text import Text

    from nescio import report
    from nescio.report.representations import judged_sentences, least_table, quantile_table

    console = Console()
    console.print(Text(" ".join(judged_sentences(judged))), end="\n\n")
    report.terminal([quantile_table(judged), least_table(judged, args.least)], console)
    for name, reason in judged.scores.reasons.items():
        print(f"{name}: {reason}", file=sys.stderr)
    for note in judged.notes:
        print(note, file=sys.stderr)
    if args.to:
        say(f"{args.to} holds the scores of {len(judged.nc):,} rows.")
    if page is not None:
        say(f"The page is {page}.")


def _plain(judged: Judged, args: argparse.Namespace) -> dict[str, Any]:
    import numpy as np

    from nescio.analysis.ranking import chance, natural
    from nescio.report.representations import QUANTILES

    def quantiles(name: str) -> dict[str, float]:
        values = np.quantile(natural(name, judged.scores.u[name]), list(QUANTILES.values()))
        return dict(zip(QUANTILES, values.tolist(), strict=True))

    how, rows = judged.how, judged.rows
    return {
        "files": args.files,
        "models": judged.candidate.members,
        "features": judged.candidate.features,
        "n": len(judged.nc),
        "references": rows.references,
        "halves": len(rows.parts) > 1,
        "k": judged.k,
        "k_dist": how.k_dist,
        "distance": how.metric,
        "similarity": how.similarity,
        "chance": chance(judged.k, rows.references, how.similarity),
        "quantiles": {name.partition("@")[0]: quantiles(name) for name in judged.names},
        "least": [{"index": judged.scores.index[row], "nc": float(judged.nc[row])} for row in judged.least(args.least)],
        "reasons": dict(judged.scores.reasons),
        "notes": list(judged.notes),
        "to": args.to,
    }
