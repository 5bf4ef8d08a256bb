"""What metrics, numbers and gaps are called where people read them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import PurePath
from typing import TYPE_CHECKING, Any

from nescio.specs import DatasetName, split_severity

if TYPE_CHECKING:
    from nescio.metrics import Metric

LABELS = {
    "nll": "NLL",
    "brier": "Brier",
    "ece": "ECE",
    "classwise_ece": "class-wise ECE",
    "auroc": "AUROC",
    "aupr": "AUPR",
    "fpr_at_tpr": "FPR",
    "gamma": "γ",
    "mcb": "MCB",
    "dsc": "DSC",
    "unc": "UNC",
    "classwise_mcb": "class-wise MCB",
    "top_k_ece": "top-k ECE",
    "top_k_mcb": "top-k MCB",
    "scod_aurc": "SCOD AURC",
    "scod_augrc": "SCOD AUGRC",
    "scod_cost": "SCOD cost",
    "naurc": "NAURC",
    "aurc": "AURC",
    "e_aurc": "E-AURC",
    "augrc": "AUGRC",
    "aurc_over": "AURC over",
    "selective_risk": "risk",
    "sac": "SAC",
    "aulc": "AULC",
    "raulc": "rAULC",
    "in_as_in": "in as in",
    "out_as_out": "out as out",
    "recall_at_1": "R@1",
    "r_auroc": "R-AUROC",
    "kendall": "Kendall τ",
    "spearman": "Spearman ρ",
    "miou": "mIoU",
}
PLAIN = {  # sentences of metrics without a parameter, where their own are about it
    "accuracy": "Share of rows whose most probable class is the label, ties broken by lower class index."
}
ARROWS = {"higher": "↑", "lower": "↓"}
COUNTS = ("no", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten", "eleven", "twelve")
DEFAULT_MEASURE = "msp"  # represents a model unless another one is named: every classifier has it
IN_DISTRIBUTION = frozenset({None, "", "test"})  # names of splits that need no mention


# ---- metrics


def known(metric: str) -> Metric | None:
    """The registered metric behind a row's `metric` (`sac@0.95` is `sac`), or None."""
    from nescio.metrics import registry

    name = metric.partition("@")[0]
    return registry[name] if name in registry else None  # noqa: SIM401 (a registry is no dict)


def better(metric: str) -> str:
    """Which way a metric is better: higher, lower or neither."""
    part = known(metric)
    return part.better if part else "neither"


def bare(metric: str) -> str:
    """The name of a metric in a table without its arrow."""
    name, at, parameter = metric.partition("@")
    return f"{LABELS.get(name, name.replace('_', ' '))}{at}{parameter}"


def label(metric: str) -> str:
    """The name of a metric in a table, with its arrow: ↑ better when higher, ↓ better when lower."""
    return f"{bare(metric)} {ARROWS.get(better(metric), '')}".strip()


def legend(metrics: Iterable[str], names: Mapping[str, str] | None = None) -> tuple[tuple[str, str], ...]:
    """(name, sentence) of every metric once, whatever its parameters; `names` are other names than the labels."""
    metrics, sentences = list(metrics), dict[str, tuple[str, str]]()
    for metric in metrics:
        part = known(metric)
        if part is not None and part.sentence:
            varied = any(other.startswith(f"{part.name}@") for other in metrics)
            sentence = part.sentence if varied else PLAIN.get(part.name, part.sentence)
            sentences.setdefault(part.name, ((names or {}).get(metric, label(part.name)), sentence))
    return tuple(sentences.values())


def stage(calibrated: Any) -> str:
    """The `calibrated` column in words: raw, calibrated, or the name of the calibration."""
    if not calibrated:
        return "raw"
    return calibrated if isinstance(calibrated, str) else "calibrated"


def by_fame(measure: str | None) -> tuple[bool, bool]:
    """Sorts the default measure first, then those of the logits, then the others."""
    from nescio.measures import registry

    logits = measure in registry and "logits" in registry[str(measure)].needs
    return measure != DEFAULT_MEASURE, not logits


# ---- numbers


def number(value: float, digits: int = 4) -> str:
    """A number with fixed decimals, and no minus before a zero."""
    text = f"{value:.{digits}f}"
    return text.removeprefix("-") if not text.strip("-0.") else text


def percent(share: float) -> str:
    """93.1 %; never 100 % of what is not all, nor 0 % of what is not nothing."""
    if share in (0, 1):
        return f"{100 * share:.0f} %"
    for digits in (1, 2, 3, 4):
        text = f"{100 * share:.{digits}f}"
        if float(text) not in (0, 100):
            return f"{text} %"
    return "nearly 100 %" if share > 0.5 else "nearly 0 %"


def of_hundred(share: float) -> str:
    """91 of 100, and neither all nor none of them where that is not so."""
    whole = round(100 * share)
    if whole == 100 and share < 1:
        return "more than 99 of 100"
    if whole == 0 and share > 0:
        return "less than 1 of 100"
    return f"{whole} of 100"


def count(n: int) -> str:
    """Small numbers in words."""
    return COUNTS[n] if n < len(COUNTS) else f"{n:,}"


def plural(n: int, word: str) -> str:
    """Three methods, one method: the number in words, capitalised."""
    return f"{count(n).capitalize()} {word}{'' if n == 1 else 's'}"


def methods_and_ensembles(rows: Iterable[Mapping[str, Any]]) -> str:
    """Four methods and an ensemble: of what rows are, one for each."""
    rows = list(rows)
    ensembles = sum((row.get("members") or 1) > 1 for row in rows)
    many = "an ensemble" if ensembles == 1 else plural(ensembles, "ensemble").lower()
    single = [plural(len(rows) - ensembles, "method")] if len(rows) > ensembles else []
    return " and ".join([*single, *([many if single else many.capitalize()] if ensembles else [])])


def millions(params: float | None) -> str:
    """25.6 M."""
    return f"{number(params / 1e6, 1 if params >= 1e6 else 2)} M" if params else "unknown"


def listed(names: Sequence[str]) -> str:
    """a, b and c."""
    return names[0] if len(names) == 1 else f"{', '.join(names[:-1])} and {names[-1]}"


def lead_of_best(differences: Sequence[Mapping[str, Any]], who: str = "It", level: float = 0.95, most: int = 6) -> str:
    """From whom the best cannot be told, or how far the next is behind it, of a metric that is better higher.

    differences  other − best, tested: `Comparison.differences`
    who          the best, where the sentence before ends with something else
    """
    alike = [row["model"] for row in differences if row["adjusted"] is None or row["adjusted"] > 1 - level]
    if alike:
        return f"{who} cannot be told from {some(alike, most)}."
    near = max(differences, key=lambda row: float(row["difference"]))
    ahead, low, high = (number(-near[name], 3) for name in ("difference", "high", "low"))
    return f"The difference to the next, {near['model']}, is +{ahead} [{low}, {high}]."


# ---- data and gaps


def data_name(spec: str) -> str:
    """npz:PATH/tiny.npz@32 → tiny at 32 pixels; maps:PATH/carla#sun/-5 → carla, sun -5."""
    kind, path, size = DatasetName.of(spec)
    path, level = split_severity(path or kind) if kind == "maps" else (path or kind, "")
    name = PurePath(path).stem + (f", {level.replace('/', ' ')}" if level else "")
    return f"{name} at {size} pixels" if size else name


def out_name(split: Any) -> str:
    """The name of an out-of-distribution set: the split without its prefix."""
    return str(split).removeprefix("ood:").removeprefix("ood/")


def grouped(reasons: Iterable[Mapping[str, Any]], most: int = 6) -> list[tuple[str, str]]:
    """(what, reason) with every reason once."""
    groups: dict[str, list[Mapping[str, Any]]] = {}
    for entry in reasons:
        reason, name = str(entry["reason"]), str(entry.get("measure") or "")
        if name and reason.startswith(f"{name} "):  # one reason for several measures, each by its own name
            reason = f"It {reason.removeprefix(name).lstrip()}"
        groups.setdefault(reason, []).append(entry)
    result = []
    for reason, entries in groups.items():
        metrics = some((bare(entry["metric"]) for entry in entries if entry.get("metric")), most)
        measures = some((entry["measure"] for entry in entries if entry.get("measure")), most)
        splits = [out_name(entry["split"]) for entry in entries if entry.get("split") not in IN_DISTRIBUTION]
        where = some([*splits, *(_place(entry) for entry in entries if entry.get("condition"))], most)
        what = " of ".join(part for part in (metrics, measures) if part) or "everything"
        methods = some((_line(entry) for entry in entries if entry.get("method")), most)
        what = f"{methods}: {what}" if methods else what
        result.append((f"{what} on {where}" if where else what, reason))
    return result


def _line(entry: Mapping[str, Any]) -> str:
    """A method, or 5 × it of an ensemble; older files do not say how many members there are."""
    return f"{entry['members']} × {entry['method']}" if (entry.get("members") or 1) > 1 else str(entry["method"])


def _place(entry: Mapping[str, Any]) -> str:
    """rain 2, or all levels of rain together."""
    name = str(entry["condition"]).replace("_", " ")
    if entry.get("level") is None:
        return f"all of {name}"
    return f"{name} {entry['level']:g}" if entry["level"] else name


def some(names: Iterable[Any], most: int) -> str:
    """a, b and 3 more."""
    unique = [str(name) for name in dict.fromkeys(names)]
    shown = ", ".join(unique[:most])
    return f"{shown} and {len(unique) - most} more" if len(unique) > most else shown
