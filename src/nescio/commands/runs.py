"""List the work in a store: finished, running, queued (SLURM), interrupted, failed or damaged, with the reason.

Finished studies are listed with date, data, methods and command, and `nescio report` shows them. Finished work is
damaged if a file is missing or its size has changed. --verify also compares checksums.

examples:
  nescio runs
  nescio runs --failed
  nescio runs --verify
  nescio runs --format json | jq '.[] | select(.method == "erm") | .key'
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from nescio.commands._output import Format, json_of, say
from nescio.errors import BadInput
from nescio.options import option

if TYPE_CHECKING:
    from nescio.work.store import Run, Store

FACTS = ("stage", "key", "state", "title", "reason", "owner", "config")
STATES = ("finished", "running", "queued", "stopped", "failed", "damaged")
TRIAL = ("method", "data", "backbone", "spectral", "trial", "data_seed", "init_seed")


@dataclass(frozen=True, kw_only=True)
class Options:
    store: str = option("store")
    failed: bool = option(False, "show only failed and damaged work")
    verify: bool = option(False, "verify the checksum of every file of finished work")
    format: Format = option("table", group="output")


def run(options: Options) -> int:
    from nescio.report.text import format_records
    from nescio.work.slurm import with_queue
    from nescio.work.store import Store

    store = Store(options.store)
    if not store.root.is_dir():
        raise BadInput(f"There is no store in {store.root}.")
    runs = [_check_files(run, store, options.verify) for run in with_queue(store)]
    if not runs:
        raise BadInput(
            f"{store.root} contains no work: `nescio train`, `zoo` or `run` with --store {store.root} adds it."
        )
    if options.failed:
        runs = [run for run in runs if run.state in ("failed", "damaged")]
    if options.format == "json":
        plain = [
            {name: getattr(run, name) for name in FACTS}
            | {name: _current_name(run, run.config[name]) for name in TRIAL if name in run.config}
            | (_study(run) if _is_study(run) else {})
            for run in runs
        ]
        say(json_of(plain))
        return 0
    states = [run.state for run in runs]
    counts = [f"{states.count(state)} {state}" for state in STATES if state in states]
    if runs:
        say(format_records([_row(run) for run in runs], options.format))
    if options.format != "csv" and (studies := [{"study": run.key} | _study(run) for run in runs if _is_study(run)]):
        say("\n" + format_records(studies, options.format))
    if options.format == "table":
        say(f"{store.root}: {', '.join(counts) if counts else 'nothing failed'}.")
    return 0


def _check_files(run: Run, store: Store, whole: bool) -> Run:
    """Mark finished work as damaged if its files changed: by file size, or by content if `whole`."""
    from nescio.work.store_errors import Corrupted

    if run.state != "finished":
        return run
    try:
        if whole:
            store.verify(run.stage, run.key)
        files = store.record(run.stage, run.key).get("files", {})
        wrong = [name for name, file in files.items() if _size(run.folder / name) != file["bytes"]]
    except (Corrupted, AttributeError, KeyError, TypeError) as error:
        reason = str(error) if isinstance(error, Corrupted) else "config.json is not as it was written."
        return replace(run, state="damaged", reason=reason)
    reason = f"{', '.join(wrong)} went missing or changed: remove the folder {run.key} and run again."
    return replace(run, state="damaged", reason=reason) if wrong else run


def _is_study(run: Run) -> bool:
    return (run.stage, run.state) == ("study", "finished")


def _study(run: Run) -> dict[str, str]:
    """Date, data, methods (or the networks in their place) and command of a finished study."""
    from nescio.benchmarks.base import made_by

    plan = dict(run.config.get("plan") or {})
    plan.setdefault("data", plan.get("pretraining_data"))
    commands = made_by(run.folder)
    names = {"benchmark": run.config.get("benchmark")} | {
        name: plan.get(name) for name in ("data", "methods", "networks")
    }
    texts = {
        name: value if isinstance(value, str) else ", ".join(map(str, value or ())) for name, value in names.items()
    }
    texts["methods"] = texts.pop("networks") or texts["methods"]
    shown_texts = {name: texts[name] for name in ("benchmark", "data", "methods")}
    return (
        {"date": commands[0].date if commands else ""}
        | shown_texts
        | {"command": commands[0].command if commands else ""}
    )


def _size(path: Path) -> int | None:
    return path.stat().st_size if path.is_file() else None


def _row(run: Run) -> dict[str, str]:
    config = run.config
    what = [str(config["model"])] if run.stage == "evaluate" and config.get("model") else []
    what += [
        f"{name} {config[name]:g}" if name == "spectral" else _setting_text(name, _current_name(run, config[name]))
        for name in TRIAL
        if config.get(name)
    ]
    if not what:
        what = _predicted(run) or [run.title]
    return {
        "key": run.key,
        "stage": run.stage,
        "state": run.state,
        "what": " · ".join(what),
        "why": run.reason or run.owner,
    }


def _predicted(run: Run) -> list[str]:
    """Model and images of predictions: pretrained models are in the config, stored networks are its parents."""
    images = run.config.get("images")
    if not isinstance(images, dict):
        return [str(run.config["model"])] if "model" in run.config else []
    model = run.config.get("model") or next((f"store:{key}" for key in run.parents), "")
    return [str(model), *(str(_current_name(run, images[name])) for name in ("data", "split") if images.get(name))]


def _current_name(run: Run, value: object) -> object:
    """A value of a config; content by its current name."""
    return run.names.get(value, value) if isinstance(value, str) else value


def _setting_text(name: str, value: object) -> str:
    return str(value) if name in ("method", "data", "backbone") else f"{name.replace('_', ' ')} {value}"
