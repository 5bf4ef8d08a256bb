"""nescio: predictive uncertainty of image models, evaluated."""

from collections.abc import Mapping, Sequence
from os import PathLike
from typing import Literal

from numpy.typing import ArrayLike

from nescio.analysis.scorecard import scorecard as scorecard
from nescio.api.calibration import CalibratedPredictions
from nescio.api.choice import ChosenModel
from nescio.api.comparison import ModelComparison
from nescio.api.dry_run import CostEstimate
from nescio.api.evaluation import ModelEvaluation, PixelEvaluation
from nescio.api.export import Export
from nescio.api.rank import RepresentationRanking
from nescio.api.run import run as run
from nescio.api.thresholds import AbstentionThreshold
from nescio.api.transfer import TransferEvaluation
from nescio.api.verification import Verification
from nescio.api.zoo import ZooResult
from nescio.errors import BadInput as BadInput
from nescio.errors import Undefined as Undefined
from nescio.predictions import Predictions as Predictions
from nescio.predictions import join as join
from nescio.predictions import stack as stack

TYPE_CHECKING: bool
__version__: str

Path = str | PathLike[str]
Source = Path | Predictions  # a file, or predictions in memory

def calibrate(
    files: Mapping[str, Source | Sequence[Source]] | Source | Sequence[Source] = (),
    *,
    val: Source,
    output: Path | None = None,
    calibration: Literal["temperature", "vector"] = "temperature",
    seed: int = 0,
    map: Mapping[str, str | Sequence[str]] | str | Sequence[str] = (),
    logits: Path | ArrayLike | None = None,
    probs: Path | ArrayLike | None = None,
    labels: Path | ArrayLike | None = None,
    limit: int | None = None,
    store: Path = "store",
) -> CalibratedPredictions:
    """Calibrate predictions on validation rows of the same model."""

def choose(
    files: Mapping[str, str | Sequence[str]] | str | Sequence[str] = (),
    *,
    store: Path = "store",
    data: str | None = None,
    facts: str | None = None,
    accuracy: float | None = None,
    coverage: float | None = None,
    max_params: str | None = None,
    max_input_size: int | None = None,
    families: Mapping[str, str | Sequence[str]] | str | Sequence[str] = (),
    measure: str = "msp",
    compare_top: int = 20,
    bootstrap: int | None = None,
    level: float = 0.95,
    limit: int | None = None,
    seed: int = 0,
) -> ChosenModel:
    """Choose the model to deploy by accuracy, coverage and limits."""

def compare(
    files: Mapping[str, Source | Sequence[Source]] | Source | Sequence[Source],
    *,
    measure: str = "msp",
    metrics: Mapping[str, str | Sequence[str]] | str | Sequence[str] = (),
    ood: Mapping[str, Source | Sequence[Source]] | Source | Sequence[Source] = (),
    ood_share: float = 0.5,
    bootstrap: int = 1000,
    level: float = 0.95,
    seed: int = 0,
    map: Mapping[str, str | Sequence[str]] | str | Sequence[str] = (),
    limit: int | None = None,
    store: Path = "store",
) -> ModelComparison:
    """Compare models on the rows that all of them share, by a paired bootstrap over these rows."""

def evaluate(
    files: Mapping[str, Source | Sequence[Source]] | Source | Sequence[Source] = (),
    *,
    train: Source | None = None,
    val: Source | None = None,
    ood: Mapping[str, Source | Sequence[Source]] | Source | Sequence[Source] = (),
    ood_share: float = 0.5,
    choose: Literal["mistakes", "unknown", "both"] | None = None,
    val_ood: Mapping[str, Source | Sequence[Source]] | Source | Sequence[Source] = (),
    ood_tuned: Mapping[str, str | Sequence[str]] | str | Sequence[str] = (),
    views: Mapping[str, Source | Sequence[Source]] | Source | Sequence[Source] = (),
    siblings: Mapping[str, Source | Sequence[Source]] | Source | Sequence[Source] = (),
    group_by: Mapping[str, str | Sequence[str]] | str | Sequence[str] = (),
    calibration: Literal["temperature", "vector"] = "temperature",
    classwise: bool = False,
    bootstrap: int = 0,
    seed: int = 0,
    predictions: Path | None = None,
    score_maps: Mapping[str, str | Sequence[str]] | str | Sequence[str] = (),
    ignore_label: int | None = 255,
    map: Mapping[str, str | Sequence[str]] | str | Sequence[str] = (),
    logits: Path | ArrayLike | None = None,
    probs: Path | ArrayLike | None = None,
    labels: Path | ArrayLike | None = None,
    limit: int | None = None,
    store: Path = "store",
    all: bool = False,
) -> ModelEvaluation | PixelEvaluation:
    """Evaluate saved predictions: accuracy, calibration, misclassification detection and OOD detection."""

def export(
    model: str,
    *,
    threshold: Path | float,
    temperature: float | None = None,
    measure: str | None = None,
    loss_order: Path | None = None,
    output: Path | None = None,
    file_format: Literal["onnx", "pt2"] | None = None,
    weights: Path | None = None,
    class_names: Path | None = None,
    input_size: int | None = None,
    mean: float | Sequence[float] | str | None = None,
    std: float | Sequence[float] | str | None = None,
    interpolation: Literal["nearest", "box", "bilinear", "hamming", "bicubic", "lanczos"] | None = None,
    crop: float | None = None,
    store: Path = "store",
    root: Path | None = None,
    training_data: str | None = None,
) -> Export:
    """Write a network that abstains to one file, for ONNX Runtime or torch.export."""

def rank(
    candidates: Mapping[str, str | Sequence[str]] | str | Sequence[str],
    *,
    data: str | None = None,
    reference: Path | None = None,
    limit: int | None = None,
    reference_size: int = 5000,
    head_data: Mapping[str, str | Sequence[str]] | str | Sequence[str] = (),
    unlabelled: bool = False,
    tasks: Literal["one-vs-one", "multiclass"] = "one-vs-one",
    k_dist: int = 1,
    similarity: Literal["jaccard", "overlap"] = "jaccard",
    components: int | Sequence[int] | str = (1, 2, 5, 10, 20, 50),
    split_references: int | None = None,
    k: int | None = None,
    distance: Literal["cosine", "euclidean"] = "cosine",
    seed: int = 0,
    bootstrap: int | None = None,
    level: float = 0.95,
    input_size: int | None = None,
    mean: float | Sequence[float] | str | None = None,
    std: float | Sequence[float] | str | None = None,
    interpolation: Literal["nearest", "box", "bilinear", "hamming", "bicubic", "lanczos"] | None = None,
    crop: float | None = None,
    store: Path = "store",
    root: Path | None = None,
    device: str = "auto",
    weights: Path | None = None,
    row_scores: Path | None = None,
    thumbnails: str | None = None,
    list_rows: int = 24,
) -> RepresentationRanking:
    """Score and rank representations by reliability, without labels."""

def threshold(
    files: Mapping[str, Source | Sequence[Source]] | Source | Sequence[Source] = (),
    *,
    risk: float | None = None,
    coverage: float | None = None,
    delta: float = 0.05,
    measure: str = "msp",
    guarantee: Literal["ltt", "sgr", "both"] = "ltt",
    temperature: float | None = None,
    fit_temperature: bool = False,
    val: Source | None = None,
    fit_rows: int | None = None,
    seed: int = 0,
    test: Source | None = None,
    train: Source | None = None,
    save_measure: Path | None = None,
    map: Mapping[str, str | Sequence[str]] | str | Sequence[str] = (),
    logits: Path | ArrayLike | None = None,
    probs: Path | ArrayLike | None = None,
    labels: Path | ArrayLike | None = None,
    limit: int | None = None,
    store: Path = "store",
) -> AbstentionThreshold:
    """Find the abstention threshold that guarantees a maximum selective risk."""

def transfer(
    model: Source,
    *,
    data: str | None = None,
    classes: int | Sequence[int] | str = (),
    crops: int = 4,
    views: Mapping[str, Source | Sequence[Source]] | Source | Sequence[Source] = (),
    siblings: Mapping[str, Source | Sequence[Source]] | Source | Sequence[Source] = (),
    reference: Source | None = None,
    k: int = 20,
    j: int = 50,
    limit: int | None = None,
    bootstrap: int = 1000,
    seed: int = 0,
    weights: Path | None = None,
    input_size: int | None = None,
    mean: float | Sequence[float] | str | None = None,
    std: float | Sequence[float] | str | None = None,
    interpolation: Literal["nearest", "box", "bilinear", "hamming", "bicubic", "lanczos"] | None = None,
    crop: float | None = None,
    store: Path = "store",
    root: Path | None = None,
    device: str = "auto",
    row_scores: Path | None = None,
) -> TransferEvaluation:
    """Evaluate a network's embeddings on images of new classes, and recommend an uncertainty score."""

def verify(
    methods: Mapping[str, str | Sequence[str]] | str | Sequence[str] = (),
    *,
    task: Literal["classification", "segmentation"] = "classification",
    data: str = "digits",
    root: Path | None = None,
    backbone: str = "conv",
    epochs: int | None = None,
    spectral_check: float = 1.0,
) -> Verification:
    """Check on trained weights that the distinctive part of each method has an effect."""

def zoo(
    models: Mapping[str, str | Sequence[str]] | str | Sequence[str] = (),
    *,
    families: Mapping[str, str | Sequence[str]] | str | Sequence[str] = (),
    all_models: bool = False,
    weights: Path | None = None,
    data: str,
    ood_data: str | None = None,
    extra_ood: Mapping[str, str | Sequence[str]] | str | Sequence[str] = (),
    classes: int | Sequence[int] | str | None = None,
    class_names: Path | None = None,
    limit: int | None = None,
    seed: int = 0,
    skip_damaged: bool = False,
    mc_samples: int = 30,
    dropout: float | None = None,
    embeddings: bool = False,
    batch_size: int | None = None,
    shards: int | None = None,
    precision: Literal["auto", "float32", "bf16"] = "auto",
    input_size: int | None = None,
    mean: float | Sequence[float] | str | None = None,
    std: float | Sequence[float] | str | None = None,
    interpolation: Literal["nearest", "box", "bilinear", "hamming", "bicubic", "lanczos"] | None = None,
    crop: float | None = None,
    published: str | None = None,
    pixel_cache: bool = True,
    estimation_images: int = 150,
    test_images: int = 50,
    hierarchy: Path | None = None,
    data_names: Path | None = None,
    ood_names: Path | None = None,
    store: Path = "store",
    root: Path | None = None,
    device: str = "auto",
    checkpoint_seconds: float = 60.0,
    workers: int | None = 0,
    launcher: str = "local",
    dry_run: bool = False,
) -> ZooResult | CostEstimate:
    """Predict with many pretrained models, compare them, and grade their detection of other classes."""
