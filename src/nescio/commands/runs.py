"""What is in a store: finished, running, queued (SLURM), stopped half-way, and failed with the reason.

examples:
  nescio runs
  nescio runs --failed
  nescio runs --json | jq '.[] | select(.method == "erm") | .key'
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from nescio.commands._output import formats, json_of, say
from nescio.errors import BadInput
from nescio.options import option

FACTS = ("stage", "key", "state", "title", "reason", "owner", "recipe")
STATES = ("finished", "running", "queued", "stopped", "failed")
TRIAL = ("method", "data", "backbone", "spectral", "trial", "data_seed", "init_seed")


@dataclass(frozen=True, kw_only=True)
class Options:
    store: str = option("store", "folder of finished work")
    failed: bool = option(False, "only what failed")
    format: str = formats()


def run(options: Options) -> int:
    from nescio.report import grid
    from nescio.work.slurm import with_queue
    from nescio.work.store import Store

    store = Store(options.store)
    if not store.root.is_dir():
        raise BadInput(f"There is no store in {store.root}.")
    runs = [run for run in with_queue(store) if not options.failed or run.state == "failed"]
    if options.format == "json":
        plain = [
            {name: getattr(run, name) for name in FACTS}
            | {name: run.recipe[name] for name in TRIAL if name in run.recipe}
            for run in runs
        ]
        say(json_of(plain))
        return 0
    states = [run.state for run in runs]
    counts = [f"{states.count(state)} {state}" for state in STATES if state in states]
    if runs:
        say(grid([_row(run) for run in runs], options.format))
    if options.format == "table":
        say(f"{store.root}: {', '.join(counts) if counts else 'nothing failed' if options.failed else 'empty'}.")
    return 0


def _row(run: Any) -> dict[str, str]:
    recipe = run.recipe
    what = [
        f"{name} {recipe[name]:g}" if name == "spectral" else _word(name, recipe[name])
        for name in TRIAL
        if recipe.get(name)
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


def _predicted(run: Any) -> list[str]:
    """Model and images of predictions: pretrained models are in the recipe, networks of the store are its parents."""
    images = run.recipe.get("images")
    if not isinstance(images, dict):
        return [str(run.recipe["model"])] if "model" in run.recipe else []
    model = run.recipe.get("model") or next((f"store:{key}" for key in run.parents), "")
    return [str(model), *(str(images[name]) for name in ("data", "split") if images.get(name))]


def _word(name: str, value: Any) -> str:
    return str(value) if name in ("method", "data", "backbone") else f"{name.replace('_', ' ')} {value}"
