"""Benchmarks: a plan, a function that runs its steps, and reports on its rows; their registry and stored studies.

    @benchmark("shift", version=1, plan=Plan, presets={"small": Plan()}, reports="nescio.benchmarks.shift.reports")
    def shift(plan: Plan, work: Work) -> None:
        \"""One sentence for `nescio run --help`.

        The rest is the text of `nescio run shift --help`, with examples.
        \"""
        networks = work.run_stage("train", [train_step(trial, work.context.root) for trial in plan.trials()])
        work.evaluate("evaluate", [evaluation("shift", 1, …) for network in networks])

Outside packages bring benchmarks by the entry-point group `nescio.benchmarks`.
"""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from hashlib import sha256
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

from nescio.errors import BadInput
from nescio.files import read_json
from nescio.identity import has_tag, tag
from nescio.options import command_of, instance_of
from nescio.provenance import Provenance, current_config, current_provenance
from nescio.registry import Registry
from nescio.report.blocks import Block, Story
from nescio.report.named_reports import Report, run_reports
from nescio.report.studies import MANIFEST, TIMES, Study, files, read_study
from nescio.report.tables import Table
from nescio.work.launchers import Failure
from nescio.work.step_folder import ENV, environment
from nescio.work.steps import Work
from nescio.work.store import Run as KeptRun
from nescio.work.store import Store
from nescio.work.store_errors import Corrupted, StoreError

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

BUILT_IN = ("all", "uimnet", "selective", "cood", "reliability", "shift", "sensitivity", "url", "posthoc")


@dataclass(frozen=True)
class Benchmark:
    """A plan, the function that runs its steps, and the reports of its rows."""

    name: str
    version: int  # raised by every change of numbers; a column of all rows
    plan: type  # a dataclass whose fields are options
    run: Callable[[Any, Work], Any]  # may return the plan with open fields filled in
    presets: Mapping[str, DataclassInstance]
    sentence: str  # one line for lists
    doc: str  # help text with examples
    reports: str  # module with `story(study)` and `first_look(study)`; importing it registers its named reports
    workers: int | None = None  # default of --workers; None: one per core, one on a GPU

    def story(self, study: Study) -> Story:
        """The story of a study's page, and the commands that made the study or run its plans again."""
        story: Story = self._module.story(study)
        if study.provenance:
            return replace(story, provenance=[text for command in study.provenance for text in command.sentences()])
        commands = [self.command(plan) for plan in study.parts or [study.plan] if plan]
        return replace(story, provenance=[f"Made by `{command}`" for command in commands if command])

    def first_look(self, study: Study) -> Sequence[Table]:
        """The tables for the terminal."""
        tables: Sequence[Table] = self._module.first_look(study)
        return tables

    def command(self, plan: Mapping[str, object]) -> str:
        """The command that runs a plan again; none for a plan that another version of nescio wrote."""
        try:
            return command_of(instance_of(self.plan, plan), ("nescio", "run", self.name), self.presets)
        except BadInput:
            return ""

    @property
    def _module(self) -> Any:
        return import_module(self.reports)


class _Benchmarks(Registry[Benchmark]):
    """The registry of benchmarks; a built-in one is imported when it is named."""

    def __init__(self) -> None:
        super().__init__("benchmark")

    def __getitem__(self, name: str) -> Benchmark:
        if name in BUILT_IN:
            import_module(f"nescio.benchmarks.{name}")
        return super().__getitem__(name)

    def plug_in(self) -> None:
        for name in BUILT_IN:
            import_module(f"nescio.benchmarks.{name}")
        super().plug_in()


registry = _Benchmarks()
Run = Callable[[Any, Work], Any]


def benchmark(
    name: str,
    *,
    version: int,
    plan: type,
    presets: Mapping[str, DataclassInstance] | None = None,
    reports: str | None = None,
    workers: int | None = None,
) -> Callable[[Run], Run]:
    """Register a function of (plan, work) as a benchmark; its docstring is the help, its module has the reports."""

    def register(run: Run) -> Run:
        doc = inspect.getdoc(run) or ""
        sentence = doc.partition("\n")[0].rstrip(".")
        if not has_tag(plan):
            tag(f"plan:{name}")(plan)
        module = reports or run.__module__
        registry.add(name, Benchmark(name, version, plan, run, presets or {}, sentence, doc, module, workers))
        return run

    return register


def run(benchmark: Benchmark, plan: DataclassInstance, work: Work) -> Study:
    """Run the missing steps of a plan, and store and return the study."""
    return study_of(benchmark, benchmark.run(plan, work) or plan, work)


def study_of(benchmark: Benchmark, plan: DataclassInstance, work: Work) -> Study:
    """The study of the collected results, which is stored."""
    study = Study(
        benchmark=benchmark.name,
        version=benchmark.version,
        rows=work.rows,
        plan=asdict(plan),
        reasons=work.reasons,
        failures=work.failures,
        notes=work.notes,
        pictures=work.pictures,
        networks=work.networks,
        times=work.times,
        packages=environment()["packages"],
    )
    if study.rows:
        keep(study, work.store)
    return study


def keep(study: Study, store: Store) -> None:
    """Store a study, so that it can be reported again without its networks, and set its key.

    env.json names the command that stored it first: the key is a function of rows and plan alone.
    """
    content = files(replace(study, provenance=[]))
    digests = [sha256(data).hexdigest() for name, data in content.items() if name not in (TIMES, MANIFEST)]
    config = {"benchmark": study.benchmark, "plan": study.plan, "content": digests}
    try:
        with store.work("study", config, version=study.version or 0, title=study.benchmark) as step_folder:
            if step_folder is not None:
                step_folder.env["number"] = 1 + max(
                    (number for run in kept(store) if (number := _number(run)) < math.inf), default=0
                )
                step_folder.env["made"] = asdict(current_provenance())
                for name, data in (content | current_config()).items():
                    step_folder.write(name, data)
        study.key = store.key("study", config, version=study.version or 0)
        study.provenance = made_by(store.path("study", study.key))
    except StoreError as error:  # the tables can still be shown
        study.failures.append(Failure("keeping the study", str(error)))


def kept(store: Store) -> list[KeptRun]:
    """The finished studies of a store, the newest first: by their numbers, not by a clock."""
    runs = [run for run in store.runs("study") if run.state == "finished"]
    return sorted(runs, key=lambda run: (_number(run), run.folder.stat().st_mtime_ns), reverse=True)


def _number(run: KeptRun) -> float:
    """The number of a stored study; infinity if it cannot be read."""
    try:
        number = read_json(run.folder / ENV).get("number", 0)
    except (OSError, ValueError):
        return math.inf
    return number if isinstance(number, int) else math.inf


def made_by(folder: Path) -> list[Provenance]:
    """The command that stored a study first, if env.json names it."""
    try:
        return [Provenance.read(read_json(folder / ENV)["made"])]
    except (OSError, ValueError, KeyError, TypeError):
        return []


def read_kept(store: Store, run: KeptRun) -> Study:
    """A verified study of a store."""
    store.verify("study", run.key)
    if _number(run) == math.inf:
        raise Corrupted(f"{run.folder / ENV} is damaged: remove the folder {run.key} and run again.")
    study = read_study(run.folder, verified=True)
    return replace(study, key=run.key, provenance=made_by(run.folder))


def page_name(study: Study, name: str = "") -> str:
    """The name of the folder of a study's page: no two studies of a store share one.

    name  of the page (default: the benchmark's)
    """
    return "-".join(filter(None, (name or study.benchmark, study.key[:8])))


def named_reports(studies: Sequence[Study], names: Sequence[str]) -> dict[Report, list[Block]]:
    """The named reports of these studies; importing a benchmark's reports registers them."""
    for benchmark in registry.parts():
        import_module(benchmark.reports)
    return run_reports(studies, names)


def story_of(study: Study) -> Story:
    return registry[study.benchmark].story(study)
