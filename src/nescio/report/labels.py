"""Labels of metrics, measures, datasets and gaps in tables and sentences."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import PurePath
from typing import TYPE_CHECKING

from nescio.report.format import shorten_names
from nescio.rows import Row
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
    "in_as_in": "InAsIn",
    "out_as_out": "OutAsOut",
    "recall_at_1": "R@1",
    "r_auroc": "R-AUROC",
    "kendall": "Kendall τ",
    "spearman": "Spearman ρ",
    "miou": "mIoU",
}
PLAIN_DESCRIPTIONS = {  # descriptions of metrics without a parameter
    "accuracy": "Share of rows whose most probable class is the label, ties broken by lower class index."
}
ARROWS = {"higher": "↑", "lower": "↓"}
DEFAULT_MEASURE = "msp"  # represents a model by default: every classifier has it
UNNAMED_SPLITS = frozenset({None, "", "test"})  # splits that labels do not mention


# ---- metrics


def find_metric(metric: str) -> Metric | None:
    """Return the registered metric of a row's `metric` (`sac@0.95` is `sac`), or None."""
    from nescio.metrics import registry

    name = metric.partition("@")[0]
    return registry[name] if name in registry else None  # noqa: SIM401 (a registry is no dict)


def direction_of(metric: str) -> str:
    """Return which values of a metric are better: higher, lower or neither."""
    registered = find_metric(metric)
    return registered.better if registered else "neither"


def bare_label(metric: str) -> str:
    """Return the label of a metric without its arrow."""
    name, at, parameter = metric.partition("@")
    return f"{METRIC_LABELS.get(name, name.replace('_', ' '))}{at}{parameter}"


def metric_label(metric: str) -> str:
    """Return the label of a metric with its arrow: ↑ higher is better, ↓ lower is better."""
    return f"{bare_label(metric)} {ARROWS.get(direction_of(metric), '')}".strip()


def metric_legend(metrics: Iterable[str], names: Mapping[str, str] | None = None) -> tuple[tuple[str, str], ...]:
    """Return (label, description) of every metric once; `names` replace labels."""
    metrics, sentences = list(metrics), dict[str, tuple[str, str]]()
    for metric in metrics:
        registered = find_metric(metric)
        if registered is not None and registered.sentence:
            several = any(other.startswith(f"{registered.name}@") for other in metrics)
            sentence = registered.sentence if several else PLAIN_DESCRIPTIONS.get(registered.name, registered.sentence)
            sentences.setdefault(registered.name, ((names or {}).get(metric, metric_label(registered.name)), sentence))
    return tuple(sentences.values())


def calibration_label(calibrated: object) -> str:
    """Return raw, calibrated, or the name of the calibration."""
    if not calibrated:
        return "raw"
    return calibrated if isinstance(calibrated, str) else "calibrated"


def measure_sort_key(measure: str | None) -> tuple[bool, bool]:
    """Sort the default measure first, then measures of logits, then the others."""
    from nescio.measures import registry

    logits = measure in registry and "logits" in registry[str(measure)].needs
    return measure != DEFAULT_MEASURE, not logits


# ---- data and gaps


def dataset_label(spec: str) -> str:
    """Return a title: npz:PATH/tiny.npz@32 → tiny at 32 pixels; maps:PATH/carla#sun/-5 → carla, sun -5."""
    kind, path, size = DatasetName.parse(spec)
    path, level = split_severity(path or kind) if kind == "maps" else (path or kind, "")
    name = PurePath(path).stem + (f", {level.replace('/', ' ')}" if level else "")
    return f"{name} at {size} pixels" if size else name


def ood_label(split: object) -> str:
    """Return the name of an OOD set: the split without its prefix."""
    return str(split).removeprefix("ood:").removeprefix("ood/")


def group_reasons(reasons: Iterable[Row], limit: int = 6) -> list[tuple[str, str]]:
    """Return (metrics and measures, reason) with every reason once."""
    groups: dict[str, list[Row]] = {}
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
        locations = shorten_names([*splits, *(_shift_label(entry) for entry in entries if entry.get("shift"))], limit)
        subject = " of ".join(text for text in (metrics, measures) if text) or "everything"
        methods = shorten_names((_method_label(entry) for entry in entries if entry.get("method")), limit)
        subject = f"{methods}: {subject}" if methods else subject
        result.append((f"{subject} on {locations}" if locations else subject, reason))
    return result


def _method_label(entry: Row) -> str:
    """A method, or 5 × a method for an ensemble."""
    return f"{entry['members']} × {entry['method']}" if (entry.get("members") or 1) > 1 else str(entry["method"])


def _shift_label(entry: Row) -> str:
    """A shift with its severity, such as rain 2."""
    name = str(entry["shift"]).replace("_", " ")
    if entry.get("severity") is None:
        return f"all severities of {name}"
    return f"{name} {entry['severity']:g}" if entry["severity"] else name


def network_label(row: Row, *, backbone: bool = False) -> str:
    """Name a network or an average: its method, or the existing network, and how many networks are averaged.

    backbone  name the backbone of trained networks too; a checkpoint is named by its file
    """
    architecture = str(row["backbone"])
    name = PurePath(architecture).stem if "@" in architecture else architecture
    if row["method"] != "pretrained":
        name = f"{row['method']} {name}" if backbone else str(row["method"])
    return name if row["members"] in (None, 1) else f"{name} × {row['members']}"
