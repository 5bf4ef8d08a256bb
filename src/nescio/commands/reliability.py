"""Score the reliability of each row's representation without labels, from embeddings of two or more models.

EMBEDDINGS are files with `embeddings` (n, d) of the same rows, one file per model. They are .npz, .safetensors,
.parquet or .csv (columns emb_0 …) files, folders, or .npy arrays. `index` (n,) identifies rows in another order. The
models should be siblings: one algorithm, different seeds. Their d may differ.

A row is reliable if the models agree on its nearest references: neighbourhood consistency, NC, from 0 to 1 (Park et al.
2024). Other scores are the distance to the nearest references (Dist), the length of the embedding (Norm), the
log-likelihood of a mixture (LL), and the variance between models (FV).

References are other rows, best 5,000 rows of the training data, in --reference-files. Without them each half of the
rows is scored against the other. --split-references takes N rows as references and scores the others.

--row-scores FILE has the columns index, nc (higher is more reliable), u_nc, u_dist, u_norm, u_ll and u_fv (higher is
less reliable).

examples:
  nescio reliability seed0.npz seed1.npz seed2.npz --row-scores scores.csv
  nescio reliability a.npz b.npz --reference-files train_a.npz,train_b.npz --output out --thumbnails photos/
  nescio reliability a.npz b.npz --split-references 2000 --k 50 --format json
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from nescio.analysis.representations.candidates import Candidate, load_members
from nescio.analysis.representations.row_scores import RowScoreOptions, RowScores, score_columns, score_rows
from nescio.api.storage import DATA
from nescio.commands._findings import check_row_scores, print_findings, print_written_files
from nescio.commands._output import TextOrJson, json_of, say
from nescio.errors import BadInput
from nescio.options import argument, nested, option
from nescio.predictions.subset import random_subset

ONE = (
    "One model has no neighbourhood consistency: NC is how far models agree on what is near to a row, so it needs the "
    "embeddings of a second one, best of the same algorithm with another seed. `nescio rank {} --row-scores FILE` "
    "computes Dist, Norm and LL of one model."
)


@dataclass(frozen=True, kw_only=True)
class Options:
    files: tuple[str, ...] = argument("embeddings, one file per model", metavar="EMBEDDINGS")
    reference_files: tuple[str, ...] = option(
        (),
        "embeddings of the references, one file per model in the same order",
        metavar="FILE,…",
        unset="the other half of the rows, at most 5000",
        group="references",
    )
    scoring: RowScoreOptions = nested(RowScoreOptions())
    limit: int | None = option(None, unset="all")
    output: str | None = option(None, unset="no page", group="output")
    row_scores: str | None = option(None, group="output")
    thumbnails: str | None = option(
        None, "images of the rows, to show on the page: a dataset or a folder", metavar="SET", group="output"
    )
    root: str | None = option(None, unset=DATA, group="output")
    list_rows: int = option(24, "number of least reliable rows to list", metavar="N", group="output")
    format: TextOrJson = option("text", group="output")


def run(options: Options) -> int:
    if options.list_rows < 1:
        raise BadInput(f"--list-rows must be at least 1, got {options.list_rows}.")
    check_row_scores(options.row_scores)
    if options.thumbnails and options.output is None:
        raise BadInput("--thumbnails are shown on the page: name its folder with --output.")
    scored = score_rows(candidate_of(options), options.scoring)
    if options.row_scores is not None:
        from nescio.predictions.columns import save_columns

        save_columns(options.row_scores, score_columns(scored.scores))
    if options.output is not None:
        _write_page(scored, options, options.output)
    if options.format == "json":
        say(json_of(_plain(scored, options)))
    else:
        _print(scored, options)
    return 0


def candidate_of(options: Options) -> Candidate:
    """The embeddings in the files."""
    files, references = options.files, options.reference_files
    if len(files) == 1:
        raise BadInput(ONE.format(files[0]))
    if references and options.scoring.split is not None:
        raise BadInput(
            "--reference-files gives the references and --split-references takes them from the rows: drop one."
        )
    if references and len(references) != len(files):
        raise BadInput(
            f"There are {len(files)} files of embeddings and {len(references)} of references: give one of each per "
            "model, in the same order."
        )
    tests = [random_subset(predictions, options.limit, options.scoring.seed) for predictions in load_members(files)]
    return Candidate("", tests, load_members(references) if references else None)


def _write_page(scored: RowScores, options: Options, folder: str) -> None:
    from nescio.report.pages import write_page
    from nescio.report.representations import scored_story

    pictures = _thumbnails(scored, options.thumbnails, options) if options.thumbnails else None
    write_page(scored_story(scored, options.list_rows, pictures), folder)


def _thumbnails(scored: RowScores, data: str, options: Options) -> dict[int, tuple[bytes, str]]:
    """Row → small picture and name, of the rows that the page shows."""
    from nescio.datasets.class_labels import rows_by_key
    from nescio.datasets.decode import thumbnail
    from nescio.datasets.image_set import ImageSet
    from nescio.datasets.names import dataset_name

    index, every = scored.scores.index, len(scored.candidate.tests[0])
    try:
        images = ImageSet(dataset_name(data)).load(options.root)
        places = rows_by_key(index, images, every)
    except BadInput:  # no given split: the rows may be the whole set
        images = ImageSet(dataset_name(data), split="test_or_all").load(options.root)
        places = rows_by_key(index, images, every)
    row_numbers = {
        int(row) for rows in (scored.least(options.list_rows), scored.most(options.list_rows)) for row in rows
    }
    pictures = {}
    for row in sorted(row_numbers):
        source = images.source(int(places[row]))
        name = Path(source).name if isinstance(source, str) else str(index[row])
        pictures[row] = thumbnail(source), name
    return pictures


def _print(scored: RowScores, options: Options) -> None:
    from nescio.report.representations import components_tables, least_table, quantile_table, scored_sentences

    notes = [f"{name}: {reason}" for name, reason in scored.scores.reasons.items()]
    likely = components_tables({"": scored.choice})
    tables = [quantile_table(scored), *likely, least_table(scored, options.list_rows)]
    print_findings(scored_sentences(scored), tables, [*notes, *scored.notes])
    print_written_files(options.output, options.row_scores, len(scored.nc))


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
        "halves": len(rows.splits) > 1,
        "k": scored.k,
        "k_dist": scoring.k_dist,
        "distance": scoring.distance,
        "similarity": scoring.similarity,
        "components": asdict(scored.choice),
        "chance": scored.chance,
        "quantiles": {kind(name): quantiles(scored, name) for name in scored.names},
        "least": [
            {"index": scored.scores.index[row], "nc": float(scored.nc[row])} for row in scored.least(options.list_rows)
        ],
        "reasons": dict(scored.scores.reasons),
        "notes": scored.notes,
        "output": options.output,
        "row_scores": options.row_scores,
    }
