"""Speed of von Mises–Fisher samples, constants and training steps with them, compared with steps of InfoNCE."""

from __future__ import annotations

from typing import Any

import torch
from _table import best_of
from bench_ssl import BATCH, GPU, ROWS, ours
from bench_training import data
from torch.nn.functional import normalize

from nescio.distributions.vmf_sampling import sample
from nescio.distributions.von_mises_fisher import log_normalizer, mean_resultant
from nescio.runtime import runtime_for

DRAWS, MEANS, D = 16, 200, 2048
VALUES = 1_000_000


def sampling(kappa: float, device: torch.device) -> dict[str, Any]:
    """Sampled vectors per second, compared with drawing only the normal numbers."""
    mean, k = normalize(torch.randn(MEANS, D, device=device), dim=1), torch.full((MEANS,), kappa, device=device)

    def mine() -> None:
        sample(mean, k, DRAWS)
        if GPU:
            torch.cuda.synchronize()

    peer, _ = best_of(lambda: torch.randn(DRAWS, MEANS, D, device=device), 5)
    seconds, _ = best_of(mine, 5)
    rates = {"peer_s": f"{DRAWS * MEANS / peer:,.0f}/s", "ours_s": f"{DRAWS * MEANS / seconds:,.0f}/s"}
    description = f"vMF samples, d {D}, κ {kappa:g}"
    return {
        "work": description,
        "peer": "bare randn",
        **rates,
        "ratio": peer / seconds,
        "target": "50,000/s",
        "note": "",
    }


def with_gradient(name: str, function: Any, device: torch.device) -> dict[str, Any]:
    """Values per second of a function of κ from 1e-3 to 1e6, with its gradient, compared with the logarithm."""
    kappa = torch.logspace(-3, 6, VALUES, device=device, requires_grad=True)

    def rate(work: Any) -> float:
        def once() -> None:
            torch.autograd.grad(work(kappa).sum(), kappa)
            if GPU:
                torch.cuda.synchronize()

        return VALUES / best_of(once, 5)[0]

    peer_rate, our_rate = rate(lambda k: k.double().log()), rate(lambda k: function(k, D))
    rates = {"peer_s": f"{peer_rate:,.0f}/s", "ours_s": f"{our_rate:,.0f}/s", "ratio": our_rate / peer_rate}
    return {"work": f"{name} with its gradient, d {D}", "peer": "log κ in float64", **rates, "target": "5,000,000/s"}


def run() -> list[dict[str, Any]]:
    runtime, dataset = runtime_for(), data(ROWS)
    rows = [sampling(kappa, runtime.device) for kappa in (1.0, 1e2, 1e4)]
    rows += [with_gradient(name, f, runtime.device) for name, f in (("log C", log_normalizer), ("A", mean_resultant))]
    baseline = ours("infonce", dataset, runtime)
    for name in ("mc-infonce", "hib", "elk", "nivmf"):
        seconds = ours(name, dataset, runtime)
        rates = {
            "peer_s": f"{BATCH / baseline:,.0f}/s",
            "ours_s": f"{BATCH / seconds:,.0f}/s",
            "ratio": baseline / seconds,
        }
        rows.append({"work": f"train {name}", "peer": "infonce", **rates, "target": "0.5 ×", "note": ""})
    return rows


if __name__ == "__main__":
    from _table import show

    show(run())
