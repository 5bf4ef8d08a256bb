"""How far each row's representation can be trusted, without any label: from the embeddings of two or more models.

EMBEDDINGS are files, one per model, with `embeddings` (n, d) of the same rows: .npz, .safetensors, .parquet, .csv (with
columns emb_0 …), folders, or a plain array in a .npy file; `index` (n,) names the rows where they are not in one order.
The models should be siblings: one algorithm, other seeds. d may differ between them.

A row is reliable where the models agree on which references are nearest to it (neighbourhood consistency, NC, from 0 to
1; Park et al. 2024). Beside NC: the distance to the nearest references (Dist), the length of the embedding (Norm), its
log-likelihood under a mixture fitted to the references (LL), each the mean over models, and the variance between models
(FV).

The references are other rows, best 5,000 of those that the models learnt from: --references, one file per model in the
same order. Without them the rows are halved and each half is judged against (at most 5,000 rows of) the other, so that
every row gets a score; or --split-references takes N rows as references, which then get none.

--to FILE has the columns index, nc (higher = more reliable), and u_nc, u_dist, u_norm, u_ll, u_fv (all: higher = less
reliable).

examples:
  nescio reliability seed0.npz seed1.npz seed2.npz --to scores.csv
  nescio reliability a.npz b.npz --references train_a.npz,train_b.npz --to out --images photos/
  nescio reliability a.npz b.npz --split-references 2000 --k 50 --json
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from nescio.analysis.representations.candidates import Candidate, load_members
from nescio.analysis.representations.ranking import RowScores, Scoring, score_columns, score_rows
from nescio.commands._inputs import limit_option
from nescio.commands._output import folders_and_files, json_of, print_findings, say, say_written, scores_option
from nescio.errors import BadInput
from nescio.options import argument, nested, option
from nescio.predictions.subset import random_subset

ONE = (
    "One model has no neighbourhood consistency: NC is how far models agree on what is near to a row, so it needs the "
    "embeddings of a second one, best of the same algorithm with another seed. `nescio rank {} --to FILE` gives what "
    "one model has: Dist, Norm and LL."
)


@dataclass(frozen=True, kw_only=True)
class Options:
    files: tuple[str, ...] = argument("embeddings, one file per model", metavar="EMBEDDINGS")
    references: tuple[str, ...] = option(
        (),
        "embeddings of the references, one file per model in the same order",
        style="words",
        metavar="FILE,…",
        unset="the other half of the rows, at most 5000",
        group="references",
    )
    scoring: Scoring = nested(Scoring())
    limit: int | None = limit_option("rows that are judged")
    to: tuple[str, ...] = scores_option("row")
    images: str | None = option(
        None,
        "the images of the rows, for the page: a folder of images, by name or in order of their names, or the test "
        "images of a dataset",
        metavar="SET",
        unset="rows are named by index",
        group="output",
    )
    root: str | None = option(
        None, "folder of datasets", unset="$NESCIO_DATA, else ~/.cache/nescio/data", group="output"
    )
    least: int = option(24, "least reliable rows to list", metavar="N", group="output")
    format: str = option("table", switches={"json": "strict JSON, alone on stdout"}, group="output")


def run(options: Options) -> int:
    if options.least < 1:
        raise BadInput(f"--least is a number of rows from 1 on, not {options.least}.")
    folders, files = folders_and_files(options.to)
    if options.images and not folders:
        raise BadInput("--images are shown on the page: name its folder with --to.")
    scored = score_rows(candidate_of(options), options.scoring)
    for file in files:
        from nescio.predictions.columns import save_columns

        save_columns(file, score_columns(scored.scores))
    for folder in folders:
        _write_page(scored, options, folder)
    if options.format == "json":
        say(json_of(_plain(scored, options)))
    else:
        _print(scored, options)
    return 0


def candidate_of(options: Options) -> Candidate:
    """The embeddings in the files."""
    files, references = options.files, options.references
    if len(files) == 1:
        raise BadInput(ONE.format(files[0]))
    if references and options.scoring.split is not None:
        raise BadInput("--references gives the references and --split-references takes them from the rows: drop one.")
    if references and len(references) != len(files):
        raise BadInput(
            f"There are {len(files)} files of embeddings and {len(references)} of references: give one of each per "
            "model, in the same order."
        )
    tests = [random_subset(dump, options.limit, options.scoring.seed) for dump in load_members(files)]
    return Candidate("", tests, load_members(references) if references else None)


def _write_page(scored: RowScores, options: Options, folder: str) -> None:
    from nescio.report.pages import write_page
    from nescio.report.representations import scored_story

    pictures = _thumbnails(scored, options.images, options) if options.images else None
    write_page(scored_story(scored, options.least, pictures), folder)


def _thumbnails(scored: RowScores, data: str, options: Options) -> dict[int, tuple[bytes, str]]:
    """Row → small picture and name, of the rows that the page shows."""
    from nescio.datasets.decode import thumbnail
    from nescio.datasets.images import ImageSet, rows_by_key, set_name

    index, every = scored.scores.index, len(scored.candidate.tests[0])
    try:
        images = ImageSet(set_name(data)).load(options.root)
        places = rows_by_key(index, images, every)
    except BadInput:  # a set that nobody has divided: the rows may be all of it
        images = ImageSet(set_name(data), split="given").load(options.root)
        places = rows_by_key(index, images, every)
    wanted = {int(row) for rows in (scored.least(options.least), scored.most(options.least)) for row in rows}
    pictures = {}
    for row in sorted(wanted):
        source = images.source(int(places[row]))
        name = Path(source).name if isinstance(source, str) else str(index[row])
        pictures[row] = thumbnail(source), name
    return pictures


def _print(scored: RowScores, options: Options) -> None:
    from nescio.report.representations import components_tables, least_table, quantile_table, scored_sentences

    notes = [f"{name}: {reason}" for name, reason in scored.scores.reasons.items()]
    likely = components_tables({"": scored.choice})
    tables = [quantile_table(scored), *likely, least_table(scored, options.least)]
    print_findings(scored_sentences(scored), tables, [*notes, *scored.notes])
    say_written(options.to, len(scored.nc))


def _plain(scored: RowScores, options: Options) -> dict[str, Any]:
    from nescio.measures.siblings import kind
    from nescio.report.representations import quantiles

    rows, scoring = scored.rows, scored.scoring
    return {
        "files": options.files,
        "models": scored.candidate.members,
        "features": scored.candidate.features,
        "n": len(scored.nc),
        "references": rows.references,
        "halves": len(rows.parts) > 1,
        "k": scored.k,
        "k_dist": scoring.k_dist,
        "distance": scoring.distance,
        "similarity": scoring.similarity,
        "components": asdict(scored.choice),
        "chance": scored.chance,
        "quantiles": {kind(name): quantiles(scored, name) for name in scored.names},
        "least": [
            {"index": scored.scores.index[row], "nc": float(scored.nc[row])} for row in scored.least(options.least)
        ],
        "reasons": dict(scored.scores.reasons),
        "notes": scored.notes,
        "to": options.to,
    }
