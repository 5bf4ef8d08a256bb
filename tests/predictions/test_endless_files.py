"""Files of 50 GB without content are refused before every byte of them is read."""

import os
import time

import numpy as np
import pytest

from nescio import BadInput, Predictions
from nescio.predictions.model_predictions import predictions_from_file

SIZE = 50_000_000_000


@pytest.mark.parametrize("ending", [".parquet", ".npz", ".safetensors", ".csv", ".pt", ".npy", ".bin"])
def test_a_sparse_file_is_refused_before_its_checksum_is_taken(tmp_path, ending):
    path = tmp_path / f"zeros{ending}"
    path.touch()
    os.truncate(path, SIZE)
    before = time.process_time()
    with pytest.raises(BadInput, match="zeros"):
        predictions_from_file(path)
    assert time.process_time() - before < 5  # the checksum takes more than 20


def test_a_pipe_is_refused(tmp_path):
    os.mkfifo(tmp_path / "preds.npz")
    with pytest.raises(BadInput, match=r"preds\.npz"):
        predictions_from_file(tmp_path / "preds.npz")


def test_a_small_table_of_many_labels_is_refused(tmp_path):
    import pyarrow as pa
    import pyarrow.parquet as pq

    pq.write_table(pa.table({"label": np.zeros(20_000_000, np.int64)}), tmp_path / "labels.parquet")
    with pytest.raises(BadInput, match="100 times its file"):
        Predictions.load(tmp_path / "labels.parquet")
