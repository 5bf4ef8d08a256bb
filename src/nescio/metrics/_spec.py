"""Registry of metrics, with what reports need to know about each."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal, TypedDict, TypeVar, Unpack, get_args

from nescio.arrays.types import Array
from nescio.errors import BadInput
from nescio.registry import Registry, source_file

if TYPE_CHECKING:
    from nescio.metrics._outcomes import Outcomes

Kind = str  # a key of KINDS
KINDS: dict[str, str] = {  # kind -> the arrays that its metrics read; `nescio.analysis.metric_kinds` prepares them
    "predictions": "f(probs, labels)",
    "ranking": "f(u, wrong): does u rank wrong predictions above right ones",
    "detection": "f(u, out): does u rank out-of-distribution rows above the others",
    "mixture": "f(u, wrong, u_out): does u rank failures, out-of-distribution rows among them, above right predictions",
    "threshold": "f(u, threshold)",
    "acceptance": "share of in-distribution rows up to a threshold on u",
    "rejection": "share of out-of-distribution rows above a threshold on u",
    "retrieval": "f(embeddings, labels)",
    "retrieval-ranking": "f(embeddings, labels, u)",
    "votes": "f(u, annotations)",
    "pairs": "f(a, b): two numbers for every row",
    "crops": "f(u, u_cropped): whole images and their crops",
    "segmentation": "f(predicted, labels, classes)",
    "curve": "not a scalar: f(u, wrong) -> arrays",
    "other": "other arrays",
}
Bias = Literal[
    "none",
    "positive",  # higher on few rows than in the population
    "calibrated",  # the same, and 0 in the population where the predicted probabilities are right
]
Better = Literal["higher", "lower", "neither"]
F = TypeVar("F", bound=Callable[..., Any])


@dataclass(frozen=True)
class Metric:
    """One registered metric: the function and how to read it."""

    name: str
    function: Callable[..., Any]
    kinds: tuple[Kind, ...]
    better: Better
    prepared: bool  # takes a prepared Ranking or Outcomes in place of its two arrays
    values: Mapping[str, tuple[float, ...]] = field(default_factory=dict)  # parameter -> values shown on a scorecard
    classwise: bool = False  # of every class's probability: skipped for large predictions
    of_blocks: Callable[..., float] | None = None  # the same of (probs, labels) that come in row blocks
    of_top: Callable[[Outcomes], float] | None = (
        None  # the same of the Outcomes of the k most probable classes together
    )
    bias: Bias = "none"
    row_values: Callable[..., Array] | None = None  # (n,) of Outcomes: the metric is their mean
    row_bins: Callable[..., tuple[Array, int] | None] | None = None  # of Outcomes: bins whose gaps add up to the metric
    of_ranking: Callable[..., float] | None = None  # the same of the Ranking of a mixture
    bounded: bool = False  # scorecards of shards report the largest error by rounded scores
    splits_ties: bool = False  # depends on whether rows of one class and one u are one tie group

    @property
    def sentence(self) -> str:
        return (self.function.__doc__ or "").strip().split("\n")[0]


class MetricFacts(TypedDict, total=False):
    """The optional fields of a metric."""

    values: Mapping[str, tuple[float, ...]]
    classwise: bool
    of_blocks: Callable[..., float]
    of_top: Callable[[Outcomes], float]
    bias: Bias
    row_values: Callable[..., Array]
    row_bins: Callable[..., tuple[Array, int] | None]
    of_ranking: Callable[..., float]
    bounded: bool
    splits_ties: bool


registry: Registry[Metric] = Registry(
    "metric",
    aliases={
        "accuracy": ("acc", "top1", "top_1"),
        "auroc": ("auc", "roc_auc"),
        "aupr": ("auprc", "pr_auc", "average_precision", "ap"),
        "fpr_at_tpr": ("fpr95", "fpr_95", "fpr_at_95", "fpr@95tpr", "fpr@tpr95", "fpr_at_tpr95"),
        "ece": ("expected_calibration_error",),
        "classwise_ece": ("cece",),
        "brier": ("brier_score",),
        "nll": ("log_loss", "cross_entropy", "negative_log_likelihood"),
        "recall_at_1": ("r@1", "recall@1"),
        "kendall": ("kendall_tau", "kendalltau"),
        "spearman": ("spearmanr", "spearman_rho"),
        "e_aurc": ("excess_aurc",),
        "miou": ("mean_iou",),
    },
    others=dict.fromkeys(
        ("auarc", "ausc", "aupr_in", "aupr_out", "ace", "sce", "tace", "mce", "ada_ece", "rms_calibration_error"), ""
    ),
)


def metric(
    *kinds: Kind, better: Better, prepared: bool = False, name: str | None = None, **facts: Unpack[MetricFacts]
) -> Callable[[F], F]:
    """Register a pure function of arrays as a metric, and return it unchanged; see `Metric` for its facts."""

    def register(function: F) -> F:
        label = name or function.__name__
        where = f"The metric {label} ({source_file(function)})"
        if better not in get_args(Better):
            raise BadInput(f"{where} has better={better!r}: it is {', '.join(map(repr, get_args(Better)))}.")
        if unknown := next((kind for kind in kinds if kind not in KINDS), None):
            raise BadInput(f"{where} is of the kind {unknown!r}: the kinds are {', '.join(KINDS)}.")
        registry.add(label, Metric(label, function, kinds, better, prepared, **facts))
        return function

    return register
