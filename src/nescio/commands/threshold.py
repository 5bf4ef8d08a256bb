"""Find the abstention threshold that guarantees a maximum selective risk.

FILE has labelled predictions on rows that were not used for training, as for `nescio evaluate`. NAME=FILE names the
model, and zoo:NAME reads its predictions from the store of `nescio zoo`. `nescio export` accepts the guarantee only for
that model. The guarantee: if only rows with uncertainty ≤ threshold are accepted, the error rate of accepted new rows
is at most --risk, with probability 1 − delta. Calibration is not needed. New rows must have the same distribution.

  ltt   Learn-then-Test: exact binomial tests of up to 100 thresholds in a fixed order (Angelopoulos et al. 2021)
  sgr   selective guaranteed risk: bisection over the coverage with exact binomial bounds (Geifman & El-Yaniv 2017)
  both  each at delta / 2; the result with the higher coverage

Choose one of them in advance: the best of several tests has no guarantee. A fitted temperature uses other rows than the
guarantee, either --val or some rows of FILE that are then left out.

Exit code: 0 found, 1 not attainable or not found (in JSON "threshold" is null), 2 bad input.

examples:
  nescio threshold preds.npz --risk 0.01
  nescio threshold preds.npz --risk 0.05 --delta 0.01 --measure entropy --guarantee sgr
  nescio threshold preds.npz --risk 0.05 --fit-temperature --test test.npz
  nescio threshold preds.npz --coverage 0.8                  the risk that is guaranteed at this coverage
  nescio threshold preds.npz --risk 0.05 --train train.npz --measure nnguide --save-measure nnguide.safetensors
  nescio threshold zoo:NAME --risk 0.05 --format json > g.json && nescio export zoo:NAME --threshold g.json
"""

from __future__ import annotations

from dataclasses import dataclass

from nescio.api.thresholds import ThresholdOptions
from nescio.api.thresholds import threshold as run
from nescio.commands._output import TextOrJson
from nescio.options import option

__all__ = ["Options", "run"]


@dataclass(frozen=True, kw_only=True)
class Options(ThresholdOptions):
    format: TextOrJson = option("text")
