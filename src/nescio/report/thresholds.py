"""Abstention thresholds in words: rule, guarantee and coverage, or why a risk is not attainable."""

from __future__ import annotations

import math

from nescio.analysis.thresholds import GuaranteedThreshold, ThresholdOutcome, rows_needed, upper_limit

ROW_FACTORS = {2: "twice", 10: "ten times"}  # factors on the number of rows for which the coverage is estimated
MAX_ROWS = 1_000_000  # an estimate is not made for more rows than this


def guarantee_sentences(
    guarded: GuaranteedThreshold, ood_rows: int = 0, check: ThresholdOutcome | None = None
) -> list[str]:
    """Return the rule, its guarantee, its coverage, and a check on other rows."""
    guarantee = guarded.guarantee
    assert guarantee.threshold is not None and guarantee.bound is not None
    condition = f"{guarded.measure!r} is at most {guarantee.threshold:.4g}"
    if guarded.measure == "msp":
        condition = f"the top probability is at least {1 - guarantee.threshold:.4g} ({condition})"
    lines = [f"Predict when {condition}, else abstain (all digits: --format json)."]
    if guarded.temperature != 1:
        fitted = f", fitted on {guarded.fitted:,} other rows" if guarded.fitted else ""
        restriction = "" if guarded.score is None else f" for the probability; {guarded.measure!r} reads them undivided"
        lines.append(f"The logits are divided by the temperature {guarded.temperature:.4g}{fitted}{restriction}.")
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
    if estimate := _more_rows(guarded):
        lines.append(estimate)
    if ood_rows:
        lines.append(f"Left out, without a guarantee: {ood_rows:,} rows of classes that were not in training.")
    if check is not None:
        lines.append(_coverage_sentence(check, "of the check"))
    return lines


def refusal_sentences(guarded: GuaranteedThreshold) -> str:
    """Return why the risk is not attainable, and options with which it is."""
    return " ".join(filter(None, (shortage_sentence(guarded), _more_rows(guarded), _attainable(guarded))))


def coverage_estimates(guarded: GuaranteedThreshold) -> dict[str, tuple[int, float]]:
    """Factor → (number of rows, estimated coverage with them); empty if the coverage is given."""
    guarantee = guarded.guarantee
    if guarantee.risk is None:
        return {}
    factors = [factor for factor in ROW_FACTORS if factor * guarantee.n <= MAX_ROWS]
    return {ROW_FACTORS[factor]: (factor * guarantee.n, guarded.with_more_rows(factor)) for factor in factors}


def _more_rows(guarded: GuaranteedThreshold) -> str:
    """Estimate the coverage with more rows."""
    estimates = coverage_estimates(guarded)
    if not estimates:
        return ""
    current = guarded.guarantee.coverage
    if current and all(coverage <= current for _, coverage in estimates.values()):  # all rows are accepted already
        return "More rows would hardly raise the coverage (estimate: the same method on resampled rows)."
    coverages = [f"{_share(coverage)} with {factor} as many rows" for factor, (_, coverage) in estimates.items()]
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


def shortage_sentence(guarded: GuaranteedThreshold) -> str:
    guarantee = guarded.guarantee
    assert guarantee.risk is not None and guarantee.smallest_limit is not None
    needed = rows_needed(guarantee.risk, guarantee.level)
    terms = f"with {_percent(1 - guarantee.delta)} confidence on these {guarantee.n:,} rows"
    if guarantee.smallest_limit <= guarantee.risk:  # of a threshold that was not tested
        method_name = {"sgr": "bisection", "ltt": "Learn-then-Test"}[guarantee.method]
        suggestion = ", or try --guarantee ltt" if [entry.method for entry in guarded.guarantees] == ["sgr"] else ""
        return (
            f"Not found: {method_name} found no threshold with a guaranteed risk of {guarantee.risk:g} {terms}. "
            f"Too many of the most confident predictions are wrong: abstain from all{suggestion}."
        )
    explanation = f"abstain from all; the lowest risk bound of any threshold is {guarantee.smallest_limit:.4g}"
    if needed > guarantee.n:
        best = upper_limit(0, guarantee.n, guarantee.level)
        explanation = f"with no error the bound would be {best:.4g}; at least {needed:,} rows without error are needed"
    return f"Not attainable: a risk of {guarantee.risk:g} cannot be guaranteed {terms}: {explanation}."


def _attainable(guarded: GuaranteedThreshold) -> str:
    """The nearest risk, and a delta, with which the same command finds a threshold on these rows."""
    guarantee = guarded.guarantee
    assert guarantee.risk is not None and guarantee.smallest_limit is not None
    options = []
    lowest_risk = max(guarantee.smallest_limit, guarantee.risk)
    unit = 10 ** (math.floor(math.log10(lowest_risk)) - 1)  # two digits
    first = math.ceil(lowest_risk / unit) * unit
    risks = [round(first * factor, 6) for factor in (1, 1.1, 1.25, 1.5, 2, 3, 5) if guarantee.risk < first * factor < 1]
    if risk := next((risk for risk in risks if guarded.attains(risk, guarantee.delta)), None):
        options.append(f"--risk {risk:g}")
    if delta := next((d for d in (0.1, 0.2) if d > guarantee.delta and guarded.attains(guarantee.risk, d)), None):
        options.append(f"--delta {delta:g}")
    return f"On these rows the same command finds a threshold with {' or '.join(options)}." if options else ""


def _percent(share: float) -> str:
    return f"{100 * share:.4g} %"
