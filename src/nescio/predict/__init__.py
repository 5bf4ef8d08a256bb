"""Predictions of networks for images: the only module that writes predictions files.

store/predict/<key>/predictions Predictions of one network for one image set
store/predict/<key>/facts.json  facts about them: network, rows, accuracy, images per second …
store/shard/<key>/              the same for a range of rows, until all ranges are finished and joined
store/count/<key>/              dense prediction: pixel counts instead of a prediction per pixel
"""

from nescio.predict.inputs import default_batch_size, input_batches, with_view_of
from nescio.predict.many import ManyPredictions, predict_all
from nescio.predict.outputs import OutputBuffer, OutputSpec, predict_images
from nescio.predict.pixels import count_pixels, count_step, load_counts, pixel_maps, pixel_predictions
from nescio.predict.probes import probe_facts, probe_images, probe_step
from nescio.predict.steps import (
    EMBEDDINGS,
    embed,
    embed_crops,
    even_ranges,
    load_predictions,
    predict_step,
    row_ranges,
    stored_predictions,
)

__all__ = [
    "EMBEDDINGS",
    "ManyPredictions",
    "OutputBuffer",
    "OutputSpec",
    "count_pixels",
    "count_step",
    "default_batch_size",
    "embed",
    "embed_crops",
    "even_ranges",
    "input_batches",
    "load_counts",
    "load_predictions",
    "pixel_maps",
    "pixel_predictions",
    "predict_all",
    "predict_images",
    "predict_step",
    "probe_facts",
    "probe_images",
    "probe_step",
    "row_ranges",
    "stored_predictions",
    "with_view_of",
]
