"""The whole test-bed in a few minutes: ten methods learn handwritten digits, then meet digits they were never taught.

Every method learns the digits 0 to 5 twice (its defaults, and one random setting) on two splits of the data, is
calibrated, ensembled and asked about known digits and about 6 to 9, which it cannot know. The demo prints a table and
writes a page to look at. Nothing is downloaded; run it again and it only shows what is there.
"""

from __future__ import annotations

import sys
from contextlib import closing
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from nescio.commands._output import say
from nescio.commands._study import Lines
from nescio.errors import BadInput

if TYPE_CHECKING:
    from nescio.protocols._networks import Place
    from nescio.protocols.uimnet import Plan


@dataclass(frozen=True, kw_only=True)
class Options:
    to: str = option("demo", "where to write", metavar="DIR")
    workers: int | None = option(None, "processes", unset="one per core", metavar="N")


def run(options: Options) -> int:
    try:
        from nescio.methods import classifiers
    except ImportError as missing:
        raise BadInput(f"The demo trains networks and needs {missing.name}: pip install 'nescio[train]'.") from None
    from nescio.arrays.parallel import threads
    from nescio.protocols import uimnet
    from nescio.protocols._networks import Place
    from nescio.report.studies import print_study, write_study

    folder = Path(options.to)
    plan = replace(uimnet.PRESETS["demo"], methods=tuple(classifiers()))
    place = Place(str(folder / "store"), device="cpu")
    workers = threads() if options.workers is None else options.workers
    with closing(Lines(workers)) as lines:
        study = uimnet.run(plan, place, workers, lines)
    print_study(study)
    page = write_study(study, folder)
    say(f"\nThe page is {page}; open it in a browser. What lies behind it:")
    say(f"  nescio runs --store {folder / 'store'}     every training and prediction, finished or failed")
    say("  nescio verify                    what shows that each method does what it claims")
    say(f"  nescio evaluate {_a_dump(study.plan, place)}     everything about one network")
    for failure in study.failures:
        print(f"failed: {failure.task.name}: {failure.reason}", file=sys.stderr)
    return 1 if study.failures else 0


def _a_dump(plan: Plan, place: Place) -> Path:
    """Predictions of the plain network on the known digits."""
    from nescio.predict import DUMP
    from nescio.protocols import uimnet
    from nescio.protocols._networks import dump_key
    from nescio.work.store import Store

    trial = next(each for each in uimnet.trials_of(plan) if each.method == "erm")
    key = dump_key(trial, "test", plan.outside, place)
    return Store(place.store).path("predict", key) / DUMP
