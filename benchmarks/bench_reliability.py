"""Time of the reliability scores of one candidate (10 members, 10,000 tests, 5,000 references, d 512), against sorted
lists and Python sets.

The peer is timed for one k on a fifth of the tests and scaled. bench_density times the mixture of LL.
"""

from __future__ import annotations

import tracemalloc
from typing import Any

import bench_nc
import numpy as np
from _table import best_of, show

from nescio import Predictions
from nescio.measures import neighborhood_inconsistency
from nescio.measures.siblings import member_spaces, sibling_scores

MEMBERS, TESTS, REFS, D = 10, 10_000, 5_000, 512
KS = (1, 2, 5, 10, 20, 50, 100, 200, 500, 1000)  # values of k in the paper (§4.5)
SECONDS, BYTES = 8.0, 500e6


def data() -> tuple[list[Any], list[Any]]:
    """Embeddings of members: one scene under a separate rotation and noise for each member."""
    rng = np.random.default_rng(0)
    scene = rng.standard_normal((REFS + TESTS, D), dtype=np.float32)
    refs, tests = [], []
    for _ in range(MEMBERS):
        rotation = rng.standard_normal((D, D), dtype=np.float32) / np.float32(D**0.5)
        member = scene @ rotation + 0.7 * rng.standard_normal(scene.shape, dtype=np.float32)
        refs.append(member[:REFS])
        tests.append(member[REFS:])
    return refs, tests


def run() -> list[dict[str, Any]]:
    refs, tests = data()
    few_tests = [each[: bench_nc.TESTS] for each in tests]
    peer_seconds, peer_u = best_of(lambda: bench_nc.plain(refs, few_tests), 1)
    all_predictions = [
        [Predictions(embeddings=each) for each in embeddings_of_members] for embeddings_of_members in (refs, tests)
    ]
    seconds, u = best_of(lambda: neighborhood_inconsistency(*all_predictions, k=KS), 3)
    # the peer computes in float32, so that the hundredth neighbour sometimes differs
    assert np.allclose(u[KS.index(bench_nc.K)][: bench_nc.TESTS], peer_u, atol=2e-3)
    tracemalloc.start()
    neighborhood_inconsistency(*all_predictions, k=KS)
    memory = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert memory < BYTES
    peer = peer_seconds * TESTS / bench_nc.TESTS
    work = f"NC, {MEMBERS} members, {TESTS:,} × {REFS:,} × {D}, k {KS[0]} to {KS[-1]}, {len(KS)} of them"
    rows = [
        {
            "work": work,
            "peer": f"argsort and sets, k {bench_nc.K} alone, {bench_nc.TESTS:,} tests × {TESTS // bench_nc.TESTS}",
            "peer_s": peer,
            "ours_s": seconds,
            "ratio": peer / seconds,
            "target": f"≤ {SECONDS:g} s",
            "note": f"{memory / 1e6:.0f} MB extra (< {BYTES / 1e6:.0f})",
        }
    ]
    member_seconds, spaces = best_of(lambda: member_spaces(*all_predictions, k_nc=KS, components=0), 1)
    sweep_seconds, _ = best_of(lambda: [spaces.scores(range(m)) for m in range(1, MEMBERS + 1)], 1)
    anew_seconds, _ = best_of(
        lambda: sibling_scores(all_predictions[0][:2], all_predictions[1][:2], k_nc=KS, components=0), 1
    )
    rows.append(
        {
            "work": "every M from 1 to 10, all scores but LL, all k",
            "peer": "each M anew (the time of two members × 27.5)",  # 1 + 2 + … + 10 members are searched
            "peer_s": anew_seconds * 27.5,
            "ours_s": member_seconds + sweep_seconds,
            "ratio": anew_seconds * 27.5 / (member_seconds + sweep_seconds),
            "note": f"{member_seconds:.1f} s for the members, {sweep_seconds:.1f} s for the sweep",
        }
    )
    return rows


if __name__ == "__main__":
    show(run())
