"""Output of a dry run: the steps, the number of finished ones, and the time and disk space of the others."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from datetime import timedelta
from shutil import disk_usage

from nescio.commands._output import json_of, say, size_text
from nescio.report.format import plural
from nescio.report.text import format_records
from nescio.work.dry_run import StageCost
from nescio.work.steps import Context


def print_costs(stages: Sequence[StageCost], context: Context, workers: int, beside: float, json: bool = False) -> None:
    """Prints the stages, then the sum.

    beside  processor seconds of the command itself: start-up, charts
    """
    from nescio.benchmarks.costs import machine_of

    if json:
        say(json_of([asdict(stage) | {"missing": stage.missing} for stage in stages]))
        return
    say(format_records([_stage_record(stage) for stage in stages]))
    missing = sum(stage.missing for stage in stages)
    if not missing:
        say("Everything is finished.")
        return
    seconds, size = sum(stage.seconds for stage in stages), sum(stage.bytes for stage in stages)
    root = context.store.root.absolute()
    free = disk_usage(next(folder for folder in (root, *root.parents) if folder.is_dir())).free
    time = f"{duration(seconds / workers + beside)} with {plural(workers, 'worker').lower()}"
    say(f"{missing:,} steps are missing: about {time}, {size_text(size)} of {size_text(free)} that are free.")
    if any(stage.estimated for stage in stages):
        where = f"docs/performance.md ({machine_of(context.device).name})"
        say(f"Figures: short epochs are measured on this machine, other work is that of {where}.")
    if unknown := sum(stage.unknown for stage in stages):
        say(f"The cost of {unknown:,} of them is not known, and is not in the sum.")
    say("Steps that depend on results are represented by placeholders. Nothing was done.")


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
