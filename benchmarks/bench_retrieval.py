"""Time of Recall@1 and gallery consistency of four views on 60,502 × 2,048 embeddings, against a blocked product with
its maximum.

On a GPU the product is in tf32, and the neighbours must equal those of float32. A CPU searches a tenth of the rows.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from _table import best_of, show

from nescio import Predictions
from nescio.arrays.nearest import prepare_points
from nescio.arrays.nearest_other import nearest_other
from nescio.measures import gallery_scores
from nescio.measures.gallery import search_rows
from nescio.networks.retrieval import device_search, nearest_rows

D, CLASSES, BLOCK = 2048, 11_316, 2048
GPU = torch.cuda.is_available()
N = 60_502 if GPU else 6_050
VIEWS, K = 4, 20


def data() -> tuple[Any, list[Any]]:
    """Embeddings and views of them."""
    rng = np.random.default_rng(0)
    labels = rng.integers(0, CLASSES, N)
    centres = rng.standard_normal((CLASSES, D), dtype=np.float32)
    embeddings = centres[labels] + 1.5 * rng.standard_normal((N, D), dtype=np.float32)
    return embeddings, [embeddings + 0.5 * rng.standard_normal((N, D), dtype=np.float32) for _ in range(VIEWS)]


def bare(unit: torch.Tensor) -> torch.Tensor:
    """Compute blocked products and the largest similarity of every row, including that with itself."""
    return torch.cat([(block @ unit.T).max(1).indices for block in unit.split(BLOCK)])


def waited(work: Any) -> Any:
    def run() -> Any:
        result = work()
        if GPU:
            torch.cuda.synchronize()
        return result

    return run


def run() -> list[dict[str, Any]]:
    embeddings, views = data()
    device = torch.device("cuda" if GPU else "cpu")
    rows = torch.from_numpy(embeddings).to(device)
    unit = rows / rows.norm(dim=1, keepdim=True)
    torch.backends.cuda.matmul.allow_tf32 = True
    bare_s, _ = best_of(waited(lambda: bare(unit)))
    torch.backends.cuda.matmul.allow_tf32 = False
    if GPU:
        recall_s, neighbours = best_of(waited(lambda: nearest_rows(rows, rows)[:, 0]))
        exact_neighbours = torch.cat(
            [_nearest_other(block, number, unit) for number, block in enumerate(unit.split(BLOCK))]
        )
        different = (neighbours != exact_neighbours).nonzero()[:, 0]
        gap = (
            unit[different].double() * (unit[neighbours[different]] - unit[exact_neighbours[different]]).double()
        ).sum(1)
        assert bool((gap.abs() < 1e-6).all()), "neighbours differ from those of float32 beyond its rounding"
        note = f"{len(different)} of {N:,} neighbours differ from float32's, all within its rounding"
    else:
        recall_s, _ = best_of(lambda: nearest_other(prepare_points(embeddings)))
        note = f"{N * N * D / recall_s / 1e9:.0f} G multiplications a second, by halves of the products"
    predictions, *view_predictions = (Predictions(embeddings=array) for array in (embeddings, *views))
    search = device_search(device) if GPU else search_rows
    views_s, _ = best_of(waited(lambda: gallery_scores(predictions, view_predictions, k=K, search=search)), 1)
    size = f"{N:,} × {D}"
    kind = "tf32" if GPU else "float32"
    peer = f"blocked {kind} product with max"
    recall_row = {"work": f"Recall@1, {size}", "peer": peer, "peer_s": bare_s, "ours_s": recall_s, "note": note}
    consistency_row = {
        "work": f"gallery consistency, {VIEWS} views, k {K}, {size}",
        "peer": "one Recall@1",
        "peer_s": recall_s,
    }
    return [
        recall_row | {"ratio": bare_s / recall_s, "target": 1 / 1.5},
        consistency_row | {"ours_s": views_s, "ratio": recall_s / views_s, "target": 1 / 6 if GPU else None},
    ]


def _nearest_other(block: torch.Tensor, number: int, unit: torch.Tensor) -> torch.Tensor:
    scores = block @ unit.T
    rows = torch.arange(len(block), device=unit.device)
    scores[rows, number * BLOCK + rows] = -torch.inf
    return scores.argmax(1)


if __name__ == "__main__":
    show(run())
