"""Check on trained weights that a method's distinctive part has an effect.

Each method is trained on a small task. Its evidence includes: the loss falls, accuracy is above chance, and the same
seed gives the same weights. Saved and reloaded networks predict the same, for any batch. Spectral normalisation bounds
every layer. Each method adds evidence of its own. The exit code is 1 if anything has no effect.

examples:
  nescio verify
  nescio verify due mimo --epochs 10
  nescio verify erm --data cifar10 --backbone resnet18 --epochs 2 --spectral-check 5
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Literal

from nescio.commands._output import Format, json_of, say
from nescio.commands._work import DATA
from nescio.errors import BadInput
from nescio.options import argument, option


@dataclass(frozen=True, kw_only=True)
class Options:
    methods: tuple[str, ...] = argument("methods to check", default=(), metavar="METHOD", unset="all", kind="method")
    task: Literal["classification", "segmentation"] = option("classification")
    data: str = option("digits", kind="dataset")
    root: str | None = option(None, unset=DATA)
    backbone: str = option("conv")
    epochs: int | None = option(None, unset="6; 12 for methods that do not classify")
    spectral_check: float = option(1.0, "bound of the spectral norm in the check of normalisation", metavar="BOUND")
    format: Format = option("table", group="output")


def run(options: Options) -> int:
    from nescio.methods import registry
    from nescio.progress import track
    from nescio.report.text import format_records
    from nescio.testing.evidence import observe, small_trial

    if not options.spectral_check > 0:
        raise BadInput(f"--spectral-check must be above 0, not {options.spectral_check:g}.")
    dense = options.task == "segmentation"
    names = options.methods or [name for name in sorted(registry) if not (dense and registry[name].no_dense_reason)]
    trials = [
        small_trial(
            name,
            data=options.data,
            backbone=options.backbone,
            epochs=options.epochs,
            root=options.root,
            task=options.task,
        )
        for name in names
    ]
    rows, failed = [], 0
    for trial in track(trials, "verify", total=len(trials)):
        seen = dict(observe(trial, spectral=options.spectral_check, root=options.root))
        rows += [
            {"method": trial.method, "evidence": what, "passed": evidence.passed, "observed": evidence.observed}
            for what, evidence in seen.items()
        ]
        failed += sum(not evidence.passed for evidence in seen.values())
    if options.format == "json":
        say(json_of(rows))
    elif options.format != "table":
        say(format_records(rows, options.format))
    else:
        say(format_records(list(_lines(rows))))
        count = f"{len(rows)} observations on {len(names)} method{'s' * (len(names) != 1)}"
        say(f"{count}: {f'{failed} failed (✗)' if failed else 'all passed'}.")
    return int(failed > 0)


def _lines(rows: list[dict[str, Any]]) -> Iterator[dict[str, str]]:
    """A method's name once, then its evidence."""
    last = None
    for row in rows:
        name, last = "" if row["method"] == last else row["method"], row["method"]
        yield {
            "method": name,
            "": "✓" if row["passed"] else "✗",
            "evidence": row["evidence"],
            "observed": row["observed"],
        }
