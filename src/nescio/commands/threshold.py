"""Find the abstention threshold that guarantees a maximum selective risk.

FILE has labelled predictions on rows that were not used for training, as for `nescio evaluate`. NAME=FILE names the
model, and zoo:NAME reads its predictions from the store of `nescio zoo`. `nescio export` accepts the guarantee only for
that model. The guarantee: if only rows with uncertainty ≤ threshold are accepted, the error rate of accepted new rows
is at most --risk, with probability 1 − delta. Calibration is not needed. New rows must have the same distribution.

  ltt   Learn-then-Test: exact binomial tests of up to 100 thresholds in a fixed order (Angelopoulos et al. 2021)
  sgr   selective guaranteed risk: bisection over the coverage with exact binomial bounds (Geifman & El-Yaniv 2017)
  both  each at delta / 2; the result with the higher coverage

Choose one of them in advance: the best of several tests has no guarantee. A fitted temperature uses other rows than the
guarantee, either --val or some rows of FILE that are then left out.

Exit code: 0 found, 1 not attainable or not found (in JSON "threshold" is null), 2 bad input.

examples:
  nescio threshold preds.npz --risk 0.01
  nescio threshold preds.npz --risk 0.05 --delta 0.01 --measure entropy --guarantee sgr
  nescio threshold preds.npz --risk 0.05 --fit-temperature --test test.npz
  nescio threshold preds.npz --coverage 0.8                  the risk that is guaranteed at this coverage
  nescio threshold preds.npz --risk 0.05 --train train.npz --measure nnguide --save-measure nnguide.safetensors
  nescio threshold zoo:NAME --risk 0.05 --format json > g.json && nescio export zoo:NAME --threshold g.json
"""

from __future__ import annotations

import math
import sys
from dataclasses import asdict, dataclass, replace
from typing import Any, Literal

from nescio import measures
from nescio.analysis.thresholds import (
    GuaranteedThreshold,
    ThresholdOutcome,
    guarantee_threshold,
    rows_needed,
    upper_limit,
)
from nescio.commands._inputs import InputOptions, check_apart
from nescio.commands._output import TextOrJson, json_of, say
from nescio.errors import BadInput
from nescio.options import argument, nested, option
from nescio.provenance import current_provenance

MORE = {2: "twice", 10: "ten times"}  # factors on the number of rows for which the coverage is estimated
MOST_ROWS = 1_000_000  # an estimate is not made for more rows than this


@dataclass(frozen=True, kw_only=True)
class Options:
    files: tuple[str, ...] = argument("labelled predictions that set the threshold", default=(), metavar="FILE")
    risk: float | None = option(None)
    coverage: float | None = option(None)
    delta: float = option(0.05, "probability that the guarantee fails", metavar="D")
    measure: str = option("msp")
    guarantee: Literal["ltt", "sgr", "both"] = option("ltt", "test that gives the guarantee for --risk")
    temperature: float | None = option(None, unset="1, or fitted")
    fit_temperature: bool = option(False, "fit the temperature to --val, or else to --fit-rows of FILE")
    val: str | None = option(None)
    fit_rows: int | None = option(None, unset="a tenth, at most 5000")
    seed: int = option(0)
    test: str | None = option(None)
    train: str | None = option(None)
    save_measure: str | None = option(
        None, "file to write the fitted measure to, for `nescio export`", metavar="FILE.safetensors"
    )
    inputs: InputOptions = nested(InputOptions())
    format: TextOrJson = option("text")


def run(options: Options) -> int:
    if (options.risk is None) == (options.coverage is None):
        raise BadInput("One of --risk and --coverage is required, not both.")
    files = options.inputs.files(options.files)
    if len(files) > 1:
        raise BadInput(f"A threshold is set on one FILE, and {len(files)} are given.")
    options.inputs.check_one_model(files[0], {"--val": options.val, "--test": options.test, "--train": options.train})
    read = options.inputs.read
    predictions = read(files[0], options.seed)
    val = read(options.val, options.seed) if options.val else None
    check = read(options.test, options.seed) if options.test else None
    train = read(options.train, options.seed) if options.train else None
    options = replace(options, measure=measures.canonical(options.measure, predictions))
    kind = measures.registry[options.measure].kind if options.measure in measures.registry else "plain"
    if kind == "fitted" and train is None:
        keeps = f" --save-measure {options.measure}.safetensors" if options.measure in measures.PORTABLE else ""
        raise BadInput(
            f"The measure {options.measure!r} is fitted to training rows: "
            f"{_rerun_hint(options, f'--train FILE{keeps}')}."
        )
    if kind != "fitted" and train is not None:
        raise BadInput(
            f"The measure {options.measure!r} is not fitted to training rows: omit --train and --save-measure."
        )
    if options.save_measure and train is None:
        raise BadInput(
            "--save-measure writes a measure that is fitted to --train FILE: give both, or omit --save-measure."
        )
    fitted = None if train is None else measures.fit(options.measure, train)
    score = measures.portable(options.measure, fitted) if options.save_measure else None
    shared = check_apart({"FILE": predictions}, {"--val": val, "--test": check})
    predictions = predictions.replace(notes=(*predictions.notes, *shared))
    guarded = guarantee_threshold(
        predictions,
        risk=options.risk,
        coverage=options.coverage,
        delta=options.delta,
        measure=options.measure,
        method=options.guarantee,
        temperature=_temperature(options),
        val=val,
        fit_rows=options.fit_rows,
        seed=options.seed,
        score=fitted,
    )
    written = (
        {"file": options.save_measure, "sha256": score.save(options.save_measure)}
        if score and options.save_measure
        else None
    )
    guarantee = guarded.guarantee
    outcome = guarded.evaluate(check) if check is not None and guarantee.attainable else None
    ood_rows = 0 if predictions.in_distribution is None else int((~predictions.in_distribution).sum())
    if guarantee.attainable and fitted is not None and not written and options.measure in measures.PORTABLE:
        command = _rerun_hint(options, f"--save-measure {options.measure}.safetensors")
        print(f"nescio threshold: `nescio export` needs the fitted score as a file: {command}.", file=sys.stderr)
    if options.format == "json":
        plain: dict[str, Any] = {"file": files[0], **options.inputs.origin(files[0])}
        plain |= {"classes": predictions.classes, "ood_rows": ood_rows, "notes": predictions.notes}
        plain |= {"score": written} if written else {}
        say(json_of({**plain, **_facts(guarded, outcome)}))
    elif guarantee.attainable:
        kept = [f"{options.save_measure} contains the fitted score: {score.contents}."] if score else []
        say("\n".join([*_sentences(guarded, ood_rows, outcome), *kept, *predictions.notes]))
    else:
        more = _more_rows(guarded)
        said = " ".join(filter(None, (_shortage_sentence(guarded), more, _attainable(guarded))))
        print(f"nescio threshold: {said}", file=sys.stderr)
    return 0 if guarantee.attainable else 1


def _temperature(options: Options) -> float | str:
    """The temperature, or "fit"."""
    fit = options.fit_temperature or options.val is not None
    if fit and options.temperature is not None:
        raise BadInput("--temperature has no effect with a fitted temperature: leave it out.")
    return "fit" if fit else 1.0 if options.temperature is None else options.temperature


def _rerun_hint(options: Options, more: str) -> str:
    """Suggest to repeat the typed command with further options."""
    typed = current_provenance().command
    return f"write `{typed} {more}`" if typed else f"add {more}"


def _facts(guarded: GuaranteedThreshold, check: ThresholdOutcome | None) -> dict[str, Any]:
    guarantee = guarded.guarantee
    facts: dict[str, Any] = {
        "attainable": guarantee.attainable,
        "threshold": guarantee.threshold,
        "measure": guarded.measure,
        "temperature": guarded.temperature,
        "fitted": guarded.fitted,
        **{
            key: value
            for key, value in asdict(guarantee).items()
            if key not in ("threshold", "level", "smallest_limit")
        },
        "coverage": guarantee.coverage,
    }
    if not guarantee.attainable:
        facts |= {"smallest_limit": guarantee.smallest_limit, "reason": _shortage_sentence(guarded)}
    if len(guarded.guarantees) > 1:
        facts["guarantees"] = [{**asdict(one), "coverage": one.coverage} for one in guarded.guarantees]
    if guarantee.risk is not None:
        facts["more_rows"] = [{"rows": rows, "coverage": coverage} for rows, coverage in _estimates(guarded).values()]
    if check is not None:
        facts["check"] = {**asdict(check), "coverage": check.coverage, "risk": check.risk}
    return facts


def _sentences(guarded: GuaranteedThreshold, ood_rows: int, check: ThresholdOutcome | None) -> list[str]:
    guarantee = guarded.guarantee
    assert guarantee.threshold is not None and guarantee.bound is not None
    when = f"{guarded.measure!r} is at most {guarantee.threshold:.4g}"
    if guarded.measure == "msp":
        when = f"the top probability is at least {1 - guarantee.threshold:.4g} ({when})"
    lines = [f"Predict when {when}, else abstain (all digits: --format json)."]
    if guarded.temperature != 1:
        fitted = f", fitted on {guarded.fitted:,} other rows" if guarded.fitted else ""
        but = "" if guarded.score is None else f" for the probability; {guarded.measure!r} reads them undivided"
        lines.append(f"The logits are divided by the temperature {guarded.temperature:.4g}{fitted}{but}.")
    if guarded.at_edge:
        lines.append("This is the edge of its range: the fitted predictions are all correct, or no better than chance.")
    lines.append(
        f"Guarantee: with {_percent(1 - guarantee.delta)} confidence, at most {_percent(guarantee.bound)} of accepted "
        f"predictions on rows of the same distribution are wrong ({_method(guarded)})."
    )
    lines.append(
        _coverage_sentence(
            ThresholdOutcome(guarantee.n, guarantee.accepted, guarantee.errors), "that set the threshold"
        )
    )
    if more := _more_rows(guarded):
        lines.append(more)
    if ood_rows:
        lines.append(f"Left out, without a guarantee: {ood_rows:,} rows of classes that were not in training.")
    if check is not None:
        lines.append(_coverage_sentence(check, "of the check"))
    return lines


def _estimates(guarded: GuaranteedThreshold) -> dict[str, tuple[int, float]]:
    """Factor → (number of rows, estimated coverage with them); empty if the coverage is given."""
    guarantee = guarded.guarantee
    if guarantee.risk is None:
        return {}
    factors = [factor for factor in MORE if factor * guarantee.n <= MOST_ROWS]
    return {MORE[factor]: (factor * guarantee.n, guarded.with_more_rows(factor)) for factor in factors}


def _more_rows(guarded: GuaranteedThreshold) -> str:
    """Estimate the coverage with more rows."""
    estimates = _estimates(guarded)
    if not estimates:
        return ""
    now = guarded.guarantee.coverage
    if now and all(coverage <= now for _, coverage in estimates.values()):  # all rows are accepted already
        return "More rows would hardly raise the coverage (estimate: the same method on resampled rows)."
    coverages = [f"{_share(coverage)} with {times} as many rows" for times, (_, coverage) in estimates.items()]
    return f"Estimated coverage: {', '.join(coverages)} (the same method on resampled rows)."


def _share(coverage: float) -> str:
    return f"about {100 * coverage:.0f} %" if coverage >= 0.005 else "0 %"


def _method(guarded: GuaranteedThreshold) -> str:
    name = {"sgr": "SGR", "ltt": "Learn-then-Test", "coverage": "one exact binomial limit"}[guarded.guarantee.method]
    return f"{name}, the better of {len(guarded.guarantees)}" if len(guarded.guarantees) > 1 else name


def _coverage_sentence(outcome: ThresholdOutcome, description: str) -> str:
    share = _percent(outcome.coverage)
    kept = f"{outcome.accepted:,} of the {outcome.n:,} rows {description} are accepted (coverage {share})"
    return kept + (
        f", {outcome.errors:,} of them wrong ({_percent(outcome.risk)})." if outcome.risk is not None else "."
    )


def _shortage_sentence(guarded: GuaranteedThreshold) -> str:
    guarantee = guarded.guarantee
    assert guarantee.risk is not None and guarantee.smallest_limit is not None
    needed = rows_needed(guarantee.risk, guarantee.level)
    terms = f"with {_percent(1 - guarantee.delta)} confidence on these {guarantee.n:,} rows"
    if guarantee.smallest_limit <= guarantee.risk:  # of a threshold that was not tested
        looked = {"sgr": "bisection", "ltt": "Learn-then-Test"}[guarantee.method]
        other = ", or try --guarantee ltt" if [one.method for one in guarded.guarantees] == ["sgr"] else ""
        return (
            f"Not found: {looked} found no threshold with a guaranteed risk of {guarantee.risk:g} {terms}. "
            f"Too many of the most confident predictions are wrong: abstain from all{other}."
        )
    why = f"abstain from all; the lowest risk bound of any threshold is {guarantee.smallest_limit:.4g}"
    if needed > guarantee.n:
        best = upper_limit(0, guarantee.n, guarantee.level)
        why = f"with no error the bound would be {best:.4g}; at least {needed:,} rows without error are needed"
    return f"Not attainable: a risk of {guarantee.risk:g} cannot be guaranteed {terms}: {why}."


def _attainable(guarded: GuaranteedThreshold) -> str:
    """The nearest risk, and a delta, with which the same command finds a threshold on these rows."""
    guarantee = guarded.guarantee
    assert guarantee.risk is not None and guarantee.smallest_limit is not None
    ways = []
    least = max(guarantee.smallest_limit, guarantee.risk)
    unit = 10 ** (math.floor(math.log10(least)) - 1)  # two digits
    first = math.ceil(least / unit) * unit
    risks = [round(first * factor, 6) for factor in (1, 1.1, 1.25, 1.5, 2, 3, 5) if guarantee.risk < first * factor < 1]
    if risk := next((risk for risk in risks if guarded.attains(risk, guarantee.delta)), None):
        ways.append(f"--risk {risk:g}")
    if delta := next((d for d in (0.1, 0.2) if d > guarantee.delta and guarded.attains(guarantee.risk, d)), None):
        ways.append(f"--delta {delta:g}")
    return f"On these rows the same command finds a threshold with {' or '.join(ways)}." if ways else ""


def _percent(share: float) -> str:
    return f"{100 * share:.4g} %"
