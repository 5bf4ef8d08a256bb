"""Is a method alive? Trains it on a small task and shows, on the trained weights, that its special part acts.

Every method: the loss falls; a classifier is right more often than by chance, features without labels bring a changed
image nearer to its class; the same seed gives the same weights, saved and reloaded it answers the same, no answer
depends on the rows beside it, draws differ where there are several, spectral normalisation bounds every layer, a native
score that claims so ranks noise above data; and the method's own evidence. The exit code is 1 if anything is dead.

examples:
  nescio verify
  nescio verify due mimo --epochs 10
  nescio verify erm --data cifar10 --backbone resnet18 --epochs 2 --spectral 5
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Literal

from nescio.commands._output import formats, json_of, say
from nescio.commands._work import DATA
from nescio.errors import BadInput
from nescio.options import argument, option


@dataclass(frozen=True, kw_only=True)
class Options:
    methods: tuple[str, ...] = argument("which methods", default=(), metavar="METHOD", unset="all", part="method")
    task: Literal["classification", "segmentation"] = option("classification", "of data with label maps: segmentation")
    data: str = option("digits", "dataset of the task", part="dataset")
    root: str | None = option(None, "folder of datasets", unset=DATA)
    backbone: str = option("conv", "mlp, conv, resnet18 or any timm name")
    epochs: int | None = option(None, "of the task", unset="6; 12 for methods that do not classify")
    spectral: float = option(1.0, "of the spectral norm that is looked at", metavar="TARGET")
    format: str = formats()


def run(options: Options) -> int:
    from nescio.methods import registry
    from nescio.progress import track
    from nescio.report import format_records
    from nescio.testing.evidence import observe, small_trial

    if not options.spectral > 0:
        raise BadInput(f"--spectral must be above 0, not {options.spectral:g}.")
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
    rows, dead = [], 0
    for trial in track(trials, "verify", total=len(trials)):
        seen = dict(observe(trial, spectral=options.spectral, root=options.root))
        rows += [
            {"method": trial.method, "evidence": what, "passed": evidence.passed, "observed": evidence.observed}
            for what, evidence in seen.items()
        ]
        dead += sum(not evidence.passed for evidence in seen.values())
    if options.format == "json":
        say(json_of(rows))
    elif options.format != "table":
        say(format_records(rows, options.format))
    else:
        say(format_records(list(_shown(rows))))
        count = f"{len(rows)} observations on {len(names)} method{'s' * (len(names) != 1)}"
        say(f"{count}: {f'{dead} dead (✗)' if dead else 'all alive'}.")
    return int(dead > 0)


def _shown(rows: list[dict[str, Any]]) -> Iterator[dict[str, str]]:
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
