"""Calibrate the predictions in FILE on validation rows, and write them to a new file.

FILE and --val are predictions of one model, with logits or probs. --val has labels. zoo:NAME reads the model's
predictions from the store of `nescio zoo`. All other fields are copied. FILE and --val must have different rows. The
new file can be passed to every other command.

  temperature  divide all logits by one number; predicted classes stay the same (Guo et al. 2017)
  vector       scale and shift the logits of each class; predicted classes may change, and many rows are needed

examples:
  nescio calibrate test.npz --val val.npz --output calibrated.npz
  nescio calibrate test.npz --val val.npz --calibration vector --output calibrated.parquet --format json
"""

from __future__ import annotations

from dataclasses import dataclass

from nescio.api.calibration import CalibrateOptions
from nescio.api.calibration import calibrate as run
from nescio.commands._output import TextOrJson
from nescio.options import REQUIRED, option

__all__ = ["Options", "run"]


@dataclass(frozen=True, kw_only=True)
class Options(CalibrateOptions):
    output: str = option(REQUIRED)
    format: TextOrJson = option("text")
