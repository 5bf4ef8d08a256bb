"""From which uncertainty on a model must abstain, so that its answers are wrong no more often than promised.

FILE holds labelled predictions on rows that the model was not trained on, as for `nescio evaluate`. The promise: answer
where u ≤ threshold and abstain elsewhere, and with confidence 1 − delta the share of wrong answers (the selective risk)
on new rows like these is at most --risk. It needs no calibrated model; it does need rows like those to come.

  sgr   bisection over the coverage, every one of ⌈log₂ n⌉ looks with an exact binomial limit at delta/⌈log₂ n⌉
        (Geifman & El-Yaniv 2017)
  ltt   Learn-then-Test: exact binomial tests of up to 100 thresholds in a fixed order, the most restrictive first
        (Angelopoulos et al. 2021); usually keeps a little more, and promises the risk itself, no smaller bound
  both  each with half of delta, and the one that keeps more rows

A temperature that is fitted sees other rows than the guarantee: --val, or a part of FILE that is then left out.

Exit code: 0 found; 1 not attainable, or not found (--json then has "threshold": null); 2 bad input.

examples:
  nescio threshold preds.npz --risk 0.01
  nescio threshold preds.npz --risk 0.05 --delta 0.01 --measure entropy --method ltt
  nescio threshold preds.npz --risk 0.05 --temperature fit --check test.npz
  nescio threshold preds.npz --coverage 0.8                  which risk can be promised at this coverage
  nescio threshold preds.npz --risk 0.05 --json > promise.json && nescio export MODEL --threshold promise.json
"""

from __future__ import annotations

import argparse
import sys
from dataclasses import asdict
from typing import Any

from nescio.commands._output import json_of, say
from nescio.guarantee import Guard, Judged, guard, rows_needed, upper_limit
from nescio.predictions import Predictions


def configure(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("file", metavar="FILE", help="labelled predictions that earn the guarantee")
    asked = parser.add_mutually_exclusive_group(required=True)
    asked.add_argument("--risk", type=float, metavar="R", help="share of wrong answers that is promised, e.g. 0.01")
    asked.add_argument("--coverage", type=float, metavar="C", help="share of rows to answer: the risk limit comes out")
    parser.add_argument(
        "--delta", type=float, default=0.05, metavar="D", help="chance that the promise fails (default: 0.05)"
    )
    parser.add_argument(
        "--measure",
        default="largest",
        help="uncertainty that the threshold acts on: see `nescio measures`; mc-dropout for a variant of "
        "that name, scores/NAME for a score of FILE "
        "(default: largest, one minus the largest probability)",
    )
    parser.add_argument("--method", choices=("sgr", "ltt", "both"), default="sgr", help="for --risk (default: sgr)")
    parser.add_argument(
        "--temperature",
        default=None,
        metavar="T|fit",
        help="divides the logits: a number that these rows had no say in, or fit (default: 1; with --val: fit)",
    )
    parser.add_argument("--val", metavar="FILE", help="rows to fit the temperature on, so that all of FILE is kept")
    parser.add_argument(
        "--fit-rows",
        type=int,
        metavar="N",
        help="rows of FILE that a fitted temperature takes, evenly over the classes (default: a tenth, at most 5000)",
    )
    parser.add_argument("--seed", type=int, default=0, help="of which rows these are (default: 0)")
    parser.add_argument("--check", metavar="FILE", help="other labelled rows: what the threshold does to them")
    parser.add_argument("--json", action="store_true", help="strict JSON, alone on stdout")


def run(args: argparse.Namespace) -> int:
    predictions = Predictions.load(args.file)
    found = guard(
        predictions,
        risk=args.risk,
        coverage=args.coverage,
        delta=args.delta,
        measure=args.measure,
        method=args.method,
        temperature=args.temperature or ("fit" if args.val else 1.0),
        val=Predictions.load(args.val) if args.val else None,
        fit_rows=args.fit_rows,
        seed=args.seed,
    )
    promise = found.guarantee
    check = found.judge(Predictions.load(args.check)) if args.check and promise.attainable else None
    untaught = 0 if predictions.taught is None else int((~predictions.taught).sum())
    if args.json:
        say(json_of({"file": args.file, "classes": predictions.classes, "untaught": untaught, **_facts(found, check)}))
    elif promise.attainable:
        say("\n".join(_sentences(found, untaught, check)))
    else:
        print(f"nescio threshold: {_why_not(found)}", file=sys.stderr)
    return 0 if promise.attainable else 1


def _facts(found: Guard, check: Judged | None) -> dict[str, Any]:
    promise = found.guarantee
    facts: dict[str, Any] = {
        "attainable": promise.attainable,
        "threshold": promise.threshold,
        "measure": found.measure,
        "temperature": found.temperature,
        "fitted": found.fitted,
        **{key: value for key, value in asdict(promise).items() if key not in ("threshold", "level", "least")},
        "coverage": promise.coverage,
    }
    if not promise.attainable:
        facts |= {"least": promise.least, "reason": _why_not(found)}
    if len(found.tried) > 1:
        facts["tried"] = [{**asdict(each), "coverage": each.coverage} for each in found.tried]
    if check is not None:
        facts["check"] = {**asdict(check), "coverage": check.coverage, "risk": check.risk}
    return facts


def _sentences(found: Guard, untaught: int, check: Judged | None) -> list[str]:
    promise = found.guarantee
    assert promise.threshold is not None and promise.bound is not None
    probability = f" (probability ≥ {1 - promise.threshold:.6g})" if found.measure == "largest" else ""
    lines = [f"Answer where {found.measure} ≤ {promise.threshold!r}{probability}, abstain elsewhere."]
    if found.temperature != 1:
        fitted = f", fitted on {found.fitted:,} other rows" if found.fitted else ""
        lines.append(f"The logits are divided by the temperature {found.temperature!r}{fitted}.")
    if found.at_edge:
        lines.append("That is the edge of its range: all answers it was fitted on are right, or no better than chance.")
    lines.append(
        f"With {_percent(1 - promise.delta)} confidence at most {_percent(promise.bound)} of the answers to rows like "
        f"these are wrong ({_method(found)})."
    )
    lines.append(_kept(Judged(promise.n, promise.accepted, promise.errors), "that earned it"))
    if untaught:
        lines.append(f"Left out, and covered by no promise: {untaught:,} rows of classes that were not in training.")
    if check is not None:
        lines.append(_kept(check, "of the check"))
    return lines


def _method(found: Guard) -> str:
    name = {"sgr": "SGR", "ltt": "Learn-then-Test", "coverage": "one exact binomial limit"}[found.guarantee.method]
    return f"{name}, the better of {len(found.tried)}" if len(found.tried) > 1 else name


def _kept(judged: Judged, which: str) -> str:
    kept = f"Of the {judged.n:,} rows {which} {judged.accepted:,} are answered (coverage {_percent(judged.coverage)})"
    return kept + (f", {judged.errors:,} of them wrong ({_percent(judged.risk)})." if judged.risk is not None else ".")


def _why_not(found: Guard) -> str:
    promise = found.guarantee
    assert promise.risk is not None and promise.least is not None
    needed = rows_needed(promise.risk, promise.level)
    asked = f"with {_percent(1 - promise.delta)} confidence on these {promise.n:,} rows"
    if promise.least <= promise.risk:  # of a threshold that was not looked at
        looked = {"sgr": "bisection", "ltt": "Learn-then-Test"}[promise.method]
        other = ", or try --method ltt" if [each.method for each in found.tried] == ["sgr"] else ""
        return (
            f"Not found: {looked} met no threshold that promises a risk of {promise.risk:g} {asked}, "
            f"for too many of the surest answers are wrong; abstain from everything{other}."
        )
    why = f"everything must be abstained from, and the smallest limit of any threshold is {promise.least:.4g}"
    if needed > promise.n:
        best = upper_limit(0, promise.n, promise.level)
        why = f"if every answer were right the limit would be {best:.4g}, and {needed:,} right answers are the fewest"
    return f"Not attainable: a risk of {promise.risk:g} cannot be promised {asked}; {why}."


def _percent(share: float) -> str:
    return f"{100 * share:.4g} %"
