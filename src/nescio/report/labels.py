"""What metrics, measures, datasets and gaps are called where people read them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import PurePath
from typing import TYPE_CHECKING, Any

from nescio.report.format import shorten_names
from nescio.specs import DatasetName, split_severity

if TYPE_CHECKING:
    from nescio.metrics import Metric

METRIC_LABELS = {
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
PLAIN_DESCRIPTIONS = {  # sentences of metrics without a parameter, where their own are about it
    "accuracy": "Share of rows whose most probable class is the label, ties broken by lower class index."
}
ARROWS = {"higher": "↑", "lower": "↓"}
DEFAULT_MEASURE = "msp"  # represents a model unless another one is named: every classifier has it
UNNAMED_SPLITS = frozenset({None, "", "test"})  # names of splits that need no mention


# ---- metrics


def find_metric(metric: str) -> Metric | None:
    """The registered metric behind a row's `metric` (`sac@0.95` is `sac`), or None."""
    from nescio.metrics import registry

    name = metric.partition("@")[0]
    return registry[name] if name in registry else None  # noqa: SIM401 (a registry is no dict)


def direction_of(metric: str) -> str:
    """Which way a metric is better: higher, lower or neither."""
    part = find_metric(metric)
    return part.better if part else "neither"


def bare_label(metric: str) -> str:
    """The name of a metric in a table without its arrow."""
    name, at, parameter = metric.partition("@")
    return f"{METRIC_LABELS.get(name, name.replace('_', ' '))}{at}{parameter}"


def metric_label(metric: str) -> str:
    """The name of a metric in a table, with its arrow: ↑ better when higher, ↓ better when lower."""
    return f"{bare_label(metric)} {ARROWS.get(direction_of(metric), '')}".strip()


def metric_legend(metrics: Iterable[str], names: Mapping[str, str] | None = None) -> tuple[tuple[str, str], ...]:
    """(name, sentence) of every metric once, whatever its parameters; `names` are other names than the labels."""
    metrics, sentences = list(metrics), dict[str, tuple[str, str]]()
    for metric in metrics:
        part = find_metric(metric)
        if part is not None and part.sentence:
            varied = any(other.startswith(f"{part.name}@") for other in metrics)
            sentence = part.sentence if varied else PLAIN_DESCRIPTIONS.get(part.name, part.sentence)
            sentences.setdefault(part.name, ((names or {}).get(metric, metric_label(part.name)), sentence))
    return tuple(sentences.values())


def calibration_label(calibrated: Any) -> str:
    """The `calibrated` column in words: raw, calibrated, or the name of the calibration."""
    if not calibrated:
        return "raw"
    return calibrated if isinstance(calibrated, str) else "calibrated"


def measure_sort_key(measure: str | None) -> tuple[bool, bool]:
    """Sorts the default measure first, then those of the logits, then the others."""
    from nescio.measures import registry

    logits = measure in registry and "logits" in registry[str(measure)].needs
    return measure != DEFAULT_MEASURE, not logits


# ---- data and gaps


def dataset_label(spec: str) -> str:
    """npz:PATH/tiny.npz@32 → tiny at 32 pixels; maps:PATH/carla#sun/-5 → carla, sun -5."""
    kind, path, size = DatasetName.of(spec)
    path, level = split_severity(path or kind) if kind == "maps" else (path or kind, "")
    name = PurePath(path).stem + (f", {level.replace('/', ' ')}" if level else "")
    return f"{name} at {size} pixels" if size else name


def ood_label(split: Any) -> str:
    """The name of an out-of-distribution set: the split without its prefix."""
    return str(split).removeprefix("ood:").removeprefix("ood/")


def group_reasons(reasons: Iterable[Mapping[str, Any]], limit: int = 6) -> list[tuple[str, str]]:
    """(what, reason) with every reason once."""
    groups: dict[str, list[Mapping[str, Any]]] = {}
    for entry in reasons:
        reason, name = str(entry["reason"]), str(entry.get("measure") or "")
        if name and reason.startswith(f"{name} "):  # one reason for several measures, each by its own name
            reason = f"It {reason.removeprefix(name).lstrip()}"
        groups.setdefault(reason, []).append(entry)
    result = []
    for reason, entries in groups.items():
        metrics = shorten_names((bare_label(entry["metric"]) for entry in entries if entry.get("metric")), limit)
        measures = shorten_names((entry["measure"] for entry in entries if entry.get("measure")), limit)
        splits = [ood_label(entry["split"]) for entry in entries if entry.get("split") not in UNNAMED_SPLITS]
        where = shorten_names([*splits, *(_place(entry) for entry in entries if entry.get("shift"))], limit)
        what = " of ".join(part for part in (metrics, measures) if part) or "everything"
        methods = shorten_names((_line(entry) for entry in entries if entry.get("method")), limit)
        what = f"{methods}: {what}" if methods else what
        result.append((f"{what} on {where}" if where else what, reason))
    return result


def _line(entry: Mapping[str, Any]) -> str:
    """A method, or 5 × it of an ensemble; older files do not say how many members there are."""
    return f"{entry['members']} × {entry['method']}" if (entry.get("members") or 1) > 1 else str(entry["method"])


def _place(entry: Mapping[str, Any]) -> str:
    """rain 2, or all levels of rain together."""
    name = str(entry["shift"]).replace("_", " ")
    if entry.get("severity") is None:
        return f"all of {name}"
    return f"{name} {entry['severity']:g}" if entry["severity"] else name
