"""Numbers, counts and lists of names as text."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

from nescio.rows import Row

NUMERALS = ("no", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten", "eleven", "twelve")


def format_number(value: float, digits: int = 4) -> str:
    """Format with fixed decimals, and no minus before zero."""
    text = f"{value:.{digits}f}"
    return text.removeprefix("-") if not text.strip("-0.") else text


def format_percent(share: float) -> str:
    """Format as 93.1 %; only exact shares of 0 and 1 are printed as 0 % and 100 %."""
    if share in (0, 1):
        return f"{100 * share:.0f} %"
    for digits in (1, 2, 3, 4):
        text = f"{100 * share:.{digits}f}"
        if float(text) not in (0, 100):
            return f"{text} %"
    return "nearly 100 %" if share > 0.5 else "nearly 0 %"


def format_interval(
    value: float, low: float | None, high: float | None, format: Callable[[float], str] | None = None
) -> str:
    """Format as 0.908 [0.870, 0.940]; without an interval as 0.908."""
    text = format or (lambda number: format_number(number, 3))
    return text(value) if low is None or high is None else f"{text(value)} [{text(low)}, {text(high)}]"


def interval_columns(name: str) -> tuple[str, str]:
    """Return the names of the columns with the ends of an interval, in records and in the data of figures."""
    return f"{name}, from", f"{name}, to"


def count_in_words(n: int) -> str:
    """Write numbers up to twelve as words."""
    return NUMERALS[n] if n < len(NUMERALS) else f"{n:,}"


def plural(n: int, word: str) -> str:
    """Write a count with its noun, as in Three methods."""
    return f"{count_in_words(n).capitalize()} {word}{'' if n == 1 else 's'}"


def count_methods(rows: Iterable[Row]) -> str:
    """Write the numbers of methods and ensembles, as in Four methods and an ensemble; one row per method."""
    rows = list(rows)
    ensembles = sum((row.get("members") or 1) > 1 for row in rows)
    ensemble_text = "an ensemble" if ensembles == 1 else plural(ensembles, "ensemble").lower()
    singles = [plural(len(rows) - ensembles, "method")] if len(rows) > ensembles else []
    return " and ".join([*singles, *([ensemble_text if singles else ensemble_text.capitalize()] if ensembles else [])])


def format_millions(params: float | None) -> str:
    """Format a number of parameters as 25.6 M."""
    return f"{format_number(params / 1e6, 1 if params >= 1e6 else 2)} M" if params else "unknown"


def join_names(names: Sequence[str]) -> str:
    """Join names as a, b and c."""
    return names[0] if len(names) == 1 else f"{', '.join(names[:-1])} and {names[-1]}"


def describe_best(differences: Sequence[Row], who: str = "It", level: float = 0.95, limit: int = 6) -> str:
    """Return the models that are not significantly different from the best, or the difference to the next one.

    differences  `Comparison.differences` of a metric that is better higher
    who          the subject of the sentence
    """
    equals = [row["model"] for row in differences if row["adjusted"] is None or row["adjusted"] > 1 - level]
    if equals:
        return f"{who} is not significantly different from {shorten_names(equals, limit)}."
    closest = max(differences, key=lambda row: float(row["difference"]))
    margin, low, high = (format_number(-closest[name], 3) for name in ("difference", "high", "low"))
    return f"The difference to the next, {closest['model']}, is +{margin} [{low}, {high}]."


def shorten_names(names: Iterable[object], limit: int) -> str:
    """Join names as a, b and 3 more."""
    unique = [str(name) for name in dict.fromkeys(names)]
    first_names = ", ".join(unique[:limit])
    return f"{first_names} and {len(unique) - limit} more" if len(unique) > limit else first_names
