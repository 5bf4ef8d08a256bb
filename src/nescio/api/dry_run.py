"""Estimated cost of a run: its steps, the number of finished ones, and the time and disk space of the others."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from datetime import timedelta
from shutil import disk_usage

from nescio.api.results import ApiResult
from nescio.report.format import plural
from nescio.report.text import format_records
from nescio.rows import Row
from nescio.work.dry_run import StageCost
from nescio.work.steps import Context

UNITS = {"TB": 10**12, "GB": 10**9, "MB": 10**6, "KB": 10**3}


@dataclass(repr=False)
class CostEstimate(ApiResult):
    """The stages of a run that did not start.

    extra_seconds  processor seconds of the command itself: start-up, charts
    models         a line for each prediction, if there are any
    """

    stages: Sequence[StageCost]
    context: Context
    workers: int
    extra_seconds: float
    models: Sequence[dict[str, str]] = ()

    @property
    def rows(self) -> list[Row]:  # type: ignore[override]
        return [asdict(stage) | {"missing": stage.missing} for stage in self.stages]

    def __repr__(self) -> str:
        return "\n".join(self.sentences())

    def sentences(self) -> list[str]:
        from nescio.benchmarks.costs import machine_of

        missing = sum(stage.missing for stage in self.stages)
        if not missing:
            return ["Everything is finished."]
        seconds, size = sum(stage.seconds for stage in self.stages), sum(stage.bytes for stage in self.stages)
        root = self.context.store.root.absolute()
        free = disk_usage(next(folder for folder in (root, *root.parents) if folder.is_dir())).free
        time = f"{duration(seconds / self.workers + self.extra_seconds)} with {plural(self.workers, 'worker').lower()}"
        lines = [f"{missing:,} steps are missing: about {time}, {size_text(size)} of {size_text(free)} that are free."]
        if any(stage.estimated for stage in self.stages):
            where = f"docs/performance.md ({machine_of(self.context.device).name})"
            lines.append(f"Figures: short epochs are measured on this machine, other work is that of {where}.")
        if unknown := sum(stage.unknown for stage in self.stages):
            lines.append(f"The sum omits {unknown:,} of them, whose cost is unknown.")
        return [*lines, "Steps that depend on results are represented by placeholders. Nothing was done."]

    def show(self, brief: bool = True) -> None:
        if self.models:
            print(format_records(self.models), end="")
        print(format_records([_stage_record(stage) for stage in self.stages]), end="")
        print("\n".join(self.sentences()))


def _stage_record(stage: StageCost) -> dict[str, str]:
    sources = {"seen here": stage.measured, "figures": stage.estimated, "unknown": stage.unknown}
    by = ", ".join(f"{count:,} {word}" for word, count in sources.items() if count)
    estimated_steps = stage.measured + stage.estimated
    return {
        "stage": stage.stage,
        "finished": f"{stage.finished:,}",
        "missing": f"{stage.missing:,}",
        "worker time": duration(stage.seconds) if estimated_steps else "",
        "disk": size_text(stage.bytes) if estimated_steps else "",
        "by": by,
    }


def duration(seconds: float) -> str:
    """A duration such as 0:02:07, or 1,234 hours above a day."""
    return f"{seconds / 3600:,.0f} hours" if seconds >= 100 * 3600 else str(timedelta(seconds=max(1, round(seconds))))


def size_text(size: float) -> str:
    """Bytes for people: 1.5 GB."""
    unit, scale = next((unit for unit in UNITS.items() if size >= unit[1]), ("bytes", 1))
    return f"{size / scale:.{int(scale > 1)}f} {unit}"
