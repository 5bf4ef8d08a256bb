"""Write small predictions files to try nescio on: train.npz, val.npz, test.npz and unknown.npz.

They are predictions of a classifier of the handwritten digits 0 to 7. unknown.npz has the digits 8 and 9.

examples:
  nescio sample
  nescio evaluate sample/test.npz --val sample/val.npz --ood unknown=sample/unknown.npz
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from nescio.commands._output import say
from nescio.options import option


@dataclass(frozen=True, kw_only=True)
class Options:
    output: str = option("sample")
    seed: int = option(0)


def run(options: Options) -> int:
    from nescio.analysis.sample import sample_predictions

    folder = Path(options.output)
    folder.mkdir(parents=True, exist_ok=True)
    for name, predictions in sample_predictions(options.seed).items():
        predictions.save(folder / f"{name}.npz")
    say(f"{folder} contains train.npz, val.npz, test.npz and unknown.npz. Try:")
    say(f"  nescio evaluate {folder}/test.npz")
    say(f"  nescio evaluate {folder}/test.npz --val {folder}/val.npz --ood unknown={folder}/unknown.npz --output out")
    say(f"  nescio threshold {folder}/test.npz --risk 0.05")
    return 0
