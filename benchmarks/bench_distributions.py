"""Samples of the von Mises–Fisher distribution, and steps of the methods that use it beside those of InfoNCE."""

from __future__ import annotations

from typing import Any

import torch
from _table import best_of
from bench_ssl import BATCH, GPU, ROWS, ours
from bench_training import data
from torch.nn.functional import normalize

from nescio.distributions.vmf_sampling import sample
from nescio.runtime import runtime

DRAWS, MEANS, D = 16, 200, 2048


def sampling(kappa: float, device: torch.device) -> dict[str, Any]:
    """Vectors per second, beside the normal numbers alone that they are made from."""
    mean, k = normalize(torch.randn(MEANS, D, device=device), dim=1), torch.full((MEANS,), kappa, device=device)

    def mine() -> None:
        sample(mean, k, DRAWS)
        if GPU:
            torch.cuda.synchronize()

    peer, _ = best_of(lambda: torch.randn(DRAWS, MEANS, D, device=device), 5)
    seconds, _ = best_of(mine, 5)
    rates = {"peer_s": f"{DRAWS * MEANS / peer:,.0f}/s", "ours_s": f"{DRAWS * MEANS / seconds:,.0f}/s"}
    work = f"vMF samples, d {D}, κ {kappa:g}"
    return {"work": work, "peer": "bare randn", **rates, "ratio": peer / seconds, "target": "50,000/s", "note": ""}


def run() -> list[dict[str, Any]]:
    place, dataset = runtime(), data(ROWS)
    rows = [sampling(kappa, place.device) for kappa in (1.0, 1e2, 1e4)]
    plain = ours("infonce", dataset, place)
    for name in ("mc-infonce", "hib", "elk", "nivmf"):
        seconds = ours(name, dataset, place)
        rates = {"peer_s": f"{BATCH / plain:,.0f}/s", "ours_s": f"{BATCH / seconds:,.0f}/s", "ratio": plain / seconds}
        rows.append({"work": f"train {name}", "peer": "infonce", **rates, "target": "0.5 ×", "note": ""})
    return rows


if __name__ == "__main__":
    from _table import show

    show(run())
