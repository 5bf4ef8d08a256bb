"""A paper's whole protocol: train or read, predict, evaluate, tables and page.

Finished work lies in the store: run the same command again and only what is missing is done. Kill it at any time.
Several runs may share one store at once; nothing is done twice. A network that fails does not stop the others.

examples:
  nescio run uimnet --data digits --methods all --trials 3 --seeds 2 --workers 2
  nescio run selective vit.npz resnet=r50.npz
  nescio run cood --pair resnet=cifar10.npz,cifar100.npz --estimation 40 --test 20
  nescio run reliability --data digits --methods simclr,moco --members 3
  nescio run uimnet --preset paper --dry-run       steps, what is finished, time and disk; nothing is done
  nescio run uimnet --help                         the options of a protocol
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from datetime import timedelta
from pathlib import Path
from shutil import disk_usage
from time import process_time
from typing import Any

from nescio.commands._loggers import check_log
from nescio.commands._output import check_place, json_of, page_option, report_folder, say, size_text
from nescio.commands._work import CrewOptions, PlaceOptions, end, page_place, working
from nescio.errors import BadInput
from nescio.identity import canonical
from nescio.options import add_options, nested, option, options_of
from nescio.protocols import base
from nescio.report import grid
from nescio.report.words import plural
from nescio.work.rehearsal import Rehearsal, StageCost, costs
from nescio.work.store import StoreError


@dataclass(frozen=True)
class RunOptions:
    """What every protocol takes."""

    place: PlaceOptions = nested(PlaceOptions())
    crew: CrewOptions = nested(CrewOptions())
    log: str | None = option(
        None,
        "tensorboard:DIR or wandb:PROJECT: validation NLL, seconds and pace of every finished trial",
        metavar="KIND:PLACE",
        group="output",
    )
    to: str | None = page_option(
        "page, tables and rows there", unset="STORE/report/PROTOCOL-KEY, by the key of the study"
    )
    json: bool = option(False, "print the rows as JSON, alone on stdout; write no page", group="output")
    dry_run: bool = option(
        False,
        "only say which steps there are, what is finished, and what time and disk the others take",
        group="output",
    )


def configure(parser: argparse.ArgumentParser, words: Sequence[str]) -> None:
    protocols = parser.add_subparsers(metavar="PROTOCOL", dest="_protocol", required=True, parser_class=type(parser))
    for name, protocol in base.registry.items():
        sub = protocols.add_parser(
            name,
            help=protocol.sentence.replace("%", "%%"),
            description=protocol.doc,
            formatter_class=argparse.RawDescriptionHelpFormatter,
        )
        add_options(sub, protocol.plan, protocol.presets)
        add_options(sub, RunOptions, start=_start(protocol), words=words)
        sub.set_defaults(_parser=sub)


def _start(protocol: base.Protocol) -> RunOptions:
    return RunOptions(crew=CrewOptions(workers=protocol.workers))


def run(args: argparse.Namespace) -> int:
    protocol = base.registry[args._protocol]
    plan = options_of(args, protocol.plan, protocol.presets)
    options = options_of(args, RunOptions, start=_start(protocol))
    check_log(options.log)
    if options.to is not None and not options.json:
        check_place(Path(options.to), "--to")
    if options.dry_run:
        return _rehearse(protocol, plan, options)
    with working(options.place, options.crew, options.log, canonical(plan)) as work:
        study = base.run(protocol, plan, work)
    if options.json:
        return end(study, None)
    return end(
        study, page_place(report_folder(options.to, options.place.store, "report", base.page_name(study)), study)
    )


# ---- --dry-run


def _rehearse(protocol: base.Protocol, plan: Any, options: RunOptions) -> int:
    """Says what a run would do and take."""
    from nescio.protocols.costs import by_figures, machine_of, waking
    from nescio.work.launchers import one_thread, start

    started = process_time()  # of this process, and so of a worker
    one_thread()
    context = options.place.context()
    workers = max(1, options.crew.launch(options.crew.count(options.place.device)).workers)
    if context.store.root.is_file():
        raise BadInput(f"{context.store.root} is a file, and a store is a folder: name another --store.")
    rehearsal = Rehearsal(context, start("local", 0))
    with suppress(StoreError):  # what all else needs is not there yet: the last line says so
        protocol.run(plan, rehearsal)
    crew = options.crew
    together, places = crew.processes * crew.nodes, min(crew.processes, workers)
    steps = rehearsal.steps.values()
    stages = costs(steps, context.store, lambda step: by_figures(step, context), together, places)
    if options.json:
        say(json_of([asdict(stage) | {"missing": stage.missing} for stage in stages]))
        return 0
    say(grid([_line(stage) for stage in stages]))
    missing = sum(stage.missing for stage in stages)
    if not missing:
        say("Everything is finished.")
        return 0
    seconds, size = sum(stage.seconds for stage in stages), sum(stage.bytes for stage in stages)
    root = context.store.root.absolute()
    free = disk_usage(next(place for place in (root, *root.parents) if place.is_dir())).free
    time = f"{duration(seconds / workers + 2 * started + waking())} with {plural(workers, 'worker').lower()}"
    say(f"{missing:,} steps are missing: about {time}, {size_text(size)} of {size_text(free)} that are free.")
    if any(stage.by_figures for stage in stages):
        where = f"docs/performance.md ({machine_of(context.device).name})"
        say(f"Figures: short epochs are measured on this machine, other work is that of {where}.")
    if unknown := sum(stage.unknown for stage in stages):
        say(f"The cost of {unknown:,} of them is not known, and is not in the sum.")
    say("Steps that results choose are stand-ins for those to come. Nothing was done.")
    return 0


def _line(stage: StageCost) -> dict[str, str]:
    sources = {"seen here": stage.measured, "figures": stage.by_figures, "unknown": stage.unknown}
    by = ", ".join(f"{count:,} {word}" for word, count in sources.items() if count)
    known = stage.measured + stage.by_figures
    return {
        "stage": stage.stage,
        "finished": f"{stage.finished:,}",
        "missing": f"{stage.missing:,}",
        "worker time": duration(stage.seconds) if known else "",
        "disk": size_text(stage.bytes) if known else "",
        "by": by,
    }


def duration(seconds: float) -> str:
    """Hours where there are many: 0:02:07, 1,234 hours."""
    return f"{seconds / 3600:,.0f} hours" if seconds >= 100 * 3600 else str(timedelta(seconds=max(1, round(seconds))))
