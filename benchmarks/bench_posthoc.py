"""Time and peak memory of all post-hoc scores of one test file, compared with pytorch-ood's detectors if installed.

`python benchmarks/bench_posthoc.py 50000 1000 2048` sets the rows of train and test, the classes and the features.
"""

from __future__ import annotations

import resource
import sys
import time
from importlib.util import find_spec
from typing import Any

import numpy as np
from _table import best_of, show

from nescio import Predictions, measures
from nescio.arrays.parallel import one_blas_thread

LOGITS = ["pnorm", "gen", "renyi", "tsallis", "doctor", "gradnorm"]
FITTED = [
    "mds",
    "mds_plus",
    "rmds",
    "rmds_plus",
    "residual",
    "vim",
    "fdbd",
    "nci",
    "she",
    "kl_matching",
    "nnguide",
    "sirc",
    "react",
    "scale",
    "ash",
    "dice",
]
PEERS = {"mds": "Mahalanobis", "rmds": "RMD", "vim": "ViM", "she": "SHE", "kl_matching": "KLMatching", "gen": "GEN",
         "dice": "DICE", "fdbd": "fDBD"}  # fmt: skip


def network(seed: int, rows: int, classes: int, features: int) -> Predictions:
    """Predictions of a network with a ReLU before its last layer, in float32."""
    weight = (np.random.default_rng(0).normal(size=(classes, features)) / np.sqrt(features)).astype(np.float32)
    rng = np.random.default_rng(seed)
    labels = rng.integers(classes, size=rows)
    embeddings = np.maximum(rng.standard_normal((rows, features), np.float32) + 8 * weight[labels], 0)
    return Predictions(labels=labels, embeddings=embeddings, logits=embeddings @ weight.T + np.float32(0.1))


def score(name: str, train: Predictions, test: Predictions) -> tuple[float, Any]:
    """(seconds, u) of one score."""
    function = getattr(measures, name)
    return best_of(lambda: function(test) if name in LOGITS else function(train)(test), 1)


def theirs(name: str, train: Predictions, test: Predictions) -> tuple[float, Any]:
    """(seconds, u) of the same score by pytorch-ood, from the same features, logits, weights and labels."""
    import torch
    from pytorch_ood import detector

    layer = measures.recover_last_layer(train)
    w, b = torch.tensor(layer.weight, dtype=torch.float32), torch.tensor(layer.bias, dtype=torch.float32)
    head = torch.nn.Linear(w.shape[1], w.shape[0])
    head.weight.data, head.bias.data = w, b
    f, z, y = torch.tensor(train.embeddings), torch.tensor(train.logits[:, 0]), torch.tensor(train.labels)  # type: ignore[index]
    g, t = torch.tensor(test.embeddings), torch.tensor(test.logits[:, 0])  # type: ignore[index]
    start = time.perf_counter()
    with torch.no_grad():
        if name == "GEN":
            u = detector.GEN(None, M=min(100, t.shape[1])).predict_logits(t)
        elif name == "KLMatching":
            u = detector.KLMatching(None).fit_logits(z, y).predict_logits(t)
        else:
            detectors = {
                "Mahalanobis": lambda: detector.Mahalanobis(None),
                "RMD": lambda: detector.RMD(None),
                "ViM": lambda: detector.ViM(None, min(1000, w.shape[1] // 2), w, b),
                "SHE": lambda: detector.SHE(None, head),
                "DICE": lambda: detector.DICE(None, w, b, 0.9),
                "fDBD": lambda: detector.fDBD(None, head),
            }[name]()
            u = detectors.fit_features(f, y).predict_features(g)
    return time.perf_counter() - start, u.numpy()


def bare(train: Predictions, test: Predictions) -> tuple[float, float]:
    """Processor seconds of the matrix products alone, in float32: those of all scores, and those of the neighbours.

    Scatter of the embeddings and of their directions; embeddings by logits; two whitenings with the distances to class
    means; residuals of training and test rows; four products with weights or a bank of rows; logits by templates.
    """
    f: Any = train.embeddings
    g: Any = test.embeddings
    z: Any = np.asarray(test.logits)[:, 0]
    d, c = f.shape[1], z.shape[1]
    whitener, weight, templates = (np.ones(shape, np.float32) for shape in ((d, d), (d, c), (c, c)))
    residual_axes = whitener[:, : d - min(1000, d // 2)]
    products = [lambda: f.T @ f] * 2 + [
        lambda: f.T @ z,
        lambda: f @ residual_axes,
        lambda: g @ residual_axes,
        lambda: z @ templates,
    ]
    products += [lambda: g @ whitener] * 2 + [lambda: g @ weight] * 6

    def neighbours() -> None:
        for start in range(0, len(g), 1000):
            g[start : start + 1000] @ f.T

    with one_blas_thread():  # waiting of several threads would count as processor time
        return sum(processor(product)[0] for product in products), processor(neighbours)[0]


def processor(work: Any) -> tuple[float, Any]:
    """(processor seconds of all threads, result)"""
    start = time.process_time()
    result = work()
    return time.process_time() - start, result


def run(rows: int = 10_000, classes: int = 100, features: int = 512) -> list[dict[str, Any]]:
    train, test = network(1, rows, classes, features), network(2, rows, classes, features)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e6
    begun = time.process_time()
    scores = {name: score(name, train, test) for name in LOGITS + FITTED}  # the first one computes shared results
    used = time.process_time() - begun
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e6
    knn_s, _ = processor(lambda: measures.knn(train)(test))
    products, neighbours = bare(train, test)
    seconds = sum(peer_s for peer_s, _ in scores.values())
    slowest = ", ".join(
        f"{name} {scores[name][0]:.1f} s" for name in sorted(scores, key=lambda name: -scores[name][0])[:6]
    )
    note = f"{used:.1f} processor s, {used / products:.1f} × the bare products; peak {peak:.2f} GB, {before:.2f} before"
    work = f"{rows:,} × {classes:,} test rows, {features:,} features, as many training rows"
    table: list[dict[str, Any]] = [
        {"work": f"{len(scores)} post-hoc scores, {work}", "ours_s": seconds, "note": f"{note}; {slowest}"},
        {"work": "the same and knn, processor seconds", "peer": "bare products", "peer_s": products + neighbours,
         "ours_s": used + knn_s, "ratio": (products + neighbours) / (used + knn_s), "target": 0.25,
         "note": f"knn {knn_s:.1f}, its bare product {neighbours:.1f}"},
    ]  # fmt: skip
    if find_spec("pytorch_ood") is None:
        return table
    peer_total, alone_s = 0.0, 0.0
    for name, peer in PEERS.items():
        peer_s, u = theirs(peer, train, test)
        own_s, _ = score(name, network(1, rows, classes, features), network(2, rows, classes, features))
        rho = np.corrcoef(np.argsort(np.argsort(u)), np.argsort(np.argsort(scores[name][1])))[0, 1]
        peer_total, alone_s = peer_total + peer_s, alone_s + own_s
        table.append({"work": f"{name}, by itself", "peer": f"pytorch-ood {peer}", "peer_s": peer_s, "ours_s": own_s,
                      "ratio": peer_s / own_s, "note": f"rank correlation {rho:.6f}"})  # fmt: skip
    shared_s = sum(scores[name][0] for name in PEERS)
    ratio, note = peer_total / shared_s, f"{peer_total / alone_s:.2f} each by itself"
    table.append({"work": "these eight in one evaluation", "peer": "pytorch-ood", "peer_s": peer_total,
                  "ours_s": shared_s, "ratio": ratio, "target": 3.0, "note": note})  # fmt: skip
    return table


if __name__ == "__main__":
    show(run(*map(int, sys.argv[1:])))
