"""Which models know when they are wrong: what many models say of the same labelled images, compared.

The models are files of predictions on the same images (FILE, or NAME=FILE to name the model), or what `nescio zoo` kept
in a store. A temperature is fitted on a tenth of each model's rows, at most 5,000; the others judge its answers, raw
and calibrated: accuracy, ECE, AUROC, coverage at an accuracy. Across models: correlations, training regimes, families,
Pareto fronts (Galil et al. 2023; `nescio report STORE --only NAMES` writes one table or figure).

Models with timm's names are known by family and training regime; --facts tells the sizes of files' models.

examples:
  nescio run selective vit.npz resnet50=r50.npz --facts results-imagenet.csv
  nescio run selective --store store --data imagenet:PATH
  nescio run selective *.npz --measures largest,entropy --report page
"""

from __future__ import annotations

import argparse
from contextlib import closing
from pathlib import Path

from nescio.commands.choose import add_models, models_of


def configure(parser: argparse.ArgumentParser) -> None:
    add_models(parser)
    how = parser.add_argument_group("judging")
    how.add_argument(
        "--measures",
        default="largest,entropy,mc-dropout",
        help="of uncertainty, comma-separated (default: largest,entropy,mc-dropout)",
    )
    how.add_argument("--fit-rows", type=int, default=5000, help="most rows that fit a temperature (default: 5000)")
    how.add_argument("--seed", type=int, default=0, help="of the division into those rows and the others (default: 0)")
    place = parser.add_argument_group("place")
    place.add_argument(
        "--workers", type=int, default=0, help="processes, a model each (default: 0, this one, on all cores)"
    )
    place.add_argument("--report", metavar="DIR", help="page, tables and rows there (default: STORE/report)")
    place.add_argument("--json", action="store_true", help="print the rows as JSON, alone on stdout; write no page")


def run(args: argparse.Namespace) -> int:
    from nescio.commands._study import Lines, end
    from nescio.protocols import selective
    from nescio.work.store import Store

    measures = tuple(dict.fromkeys(args.measures.split(",")))
    plan = selective.Plan(fit_rows=args.fit_rows, seed=args.seed, measures=measures)
    plan.check()
    with closing(Lines(args.workers)) as lines:
        study = selective.run(plan, models_of(args), Store(args.store), args.workers, lines)
    return end(study, None if args.json else Path(args.report or Path(args.store) / "report"))
