"""Nearest neighbours on a GPU: products in tf32 find candidates, float64 decides.

A product in tf32 keeps 11 bits of every entry, so the error of a cosine is at most MARGIN. The few candidates of a row
are compared in float64; if another row could be nearer, all rows are. The neighbours therefore equal those of
`nescio.arrays.nearest` on every device. Similarities within 2⁻⁴⁰ are ties, and the lower row wins.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import torch
from torch import Tensor

from nescio.arrays.parallel import blocks
from nescio.arrays.types import Array
from nescio.errors import BadInput
from nescio.measures.gallery import Search

SPARE = 8, 64  # extra candidates for one neighbour and for several: distant neighbours are denser
GROUP = 64  # similarities per group, of which the maximum is compared first
ROWS, FEW = 2048, 256  # queries of one tf32 product, and of one float64 product with all rows
COMPARED = 1 << 15  # candidates of one float64 comparison
MARGIN = 2.0**-9 + 2.0**-12  # of a cosine in tf32: two factors cut to 11 bits, and room for the sum
STEP, BITS = 2.0**40, 20  # sort keys: similarities as integers above 20 bits of row number


def device_search(device: torch.device) -> Search:
    """A replacement of `nescio.measures.gallery.search_rows` that searches on a device."""

    sent: list[tuple[Array, Tensor]] = []  # the last gallery, reused by views of the same network

    def search(gallery: Array, queries: Array, cuts: Sequence[int]) -> Array:
        if not sent or sent[0][0] is not gallery:
            sent[:] = [(gallery, torch.as_tensor(gallery).to(device))]
        unit_gallery = sent[0][1]
        query_rows = unit_gallery if queries is gallery else torch.as_tensor(queries).to(device)
        return nearest_rows(unit_gallery, query_rows, cuts[-1]).cpu().numpy()

    return search


def nearest_rows(gallery: Tensor, queries: Tensor, k: int = 1) -> Tensor:
    """The k rows of a gallery nearest to every query by cosine (n, k), the nearest first; query i skips row i.

    nearest_rows(x, x)[:, 0] are the neighbours of Recall@1.
    """
    if not k < len(gallery) < 1 << BITS:
        raise BadInput(f"The gallery has {len(gallery)} rows, and k is {k}: more than k, and fewer than 2²⁰.")
    length = _lengths(gallery)
    query_length = length if queries is gallery else _lengths(queries)
    unit_gallery = gallery / length.to(gallery)
    directions = unit_gallery if queries is gallery else queries / query_length.to(queries)
    count = min(k + SPARE[k > 1], len(gallery) - 1)
    nearest = torch.empty(len(queries), k, dtype=torch.int64, device=gallery.device)
    certain = torch.empty(len(queries), dtype=torch.bool, device=gallery.device)
    with _tf32():
        for outer in blocks(len(queries), ROWS):
            candidates, smallest = _candidates(directions[outer] @ unit_gallery.T, outer.start, count)
            for block in blocks(len(candidates), max(1, COMPARED // count)):
                rows = slice(outer.start + block.start, outer.start + block.stop)
                dot = (queries[rows, None].double() * gallery[candidates[block]]).sum(2)
                cosine = dot / length[candidates[block], 0] / query_length[rows]
                nearest[rows], last = _top_columns(cosine, candidates[block], k)
                certain[rows] = smallest[block] + MARGIN < last
    for uncertain in (~certain).nonzero()[:, 0].split(FEW):
        exact = queries[uncertain] / query_length[uncertain]
        cosine = torch.cat([exact @ (gallery[outer] / length[outer]).T for outer in blocks(len(gallery), ROWS)], 1)
        cosine[torch.arange(len(uncertain), device=uncertain.device), uncertain] = -1.5  # below every cosine
        nearest[uncertain] = _top_columns(
            cosine, torch.arange(len(gallery), device=uncertain.device).expand(len(uncertain), -1), k
        )[0]
    return nearest


def _candidates(scores: Tensor, start: int, count: int) -> tuple[Tensor, Tensor]:
    """Columns of the largest similarities (rows, count), and the smallest of these (rows,), without the query itself.

    They are in the groups of columns with the largest maxima, so one pass over all similarities is enough.
    """
    n, columns = scores.shape
    row = torch.arange(n, device=scores.device)
    scores[row, start + row] = -torch.inf
    groups = columns // GROUP
    if groups <= count:
        value, candidates = scores.topk(count, dim=1)
        return candidates, value[:, -1]
    whole = scores[:, : groups * GROUP].view(n, groups, GROUP)
    which = whole.amax(2).topk(count, dim=1, sorted=False).indices[..., None]
    column = torch.arange(columns, device=scores.device)
    inside = (which * GROUP + column[:GROUP]).flatten(1)
    inside = torch.cat([inside, column[groups * GROUP :].expand(n, -1)], 1)
    value, candidates = scores.gather(1, inside).topk(count, dim=1)
    return inside.gather(1, candidates), value[:, -1]


def _top_columns(cosine: Tensor, column: Tensor, k: int) -> tuple[Tensor, Tensor]:
    """The columns of the k largest float64 cosines of every row, ties to the lower, and the k-th cosine."""
    mask = (1 << BITS) - 1
    keys = ((cosine * STEP).round().long() << BITS | (mask - column)).topk(k, dim=1).values
    return mask - (keys & mask), (keys[:, -1] >> BITS) / STEP


def _lengths(rows: Tensor) -> Tensor:
    """(n, 1) float64."""
    length = torch.linalg.vector_norm(rows, dim=1, keepdim=True, dtype=torch.float64)
    if not bool(length.all()):
        raise BadInput("An embedding has length zero, so it has no cosine: remove that row.")
    return length


@contextmanager
def _tf32() -> Iterator[None]:
    """Allow products on a GPU to round to tf32."""
    before = torch.backends.cuda.matmul.allow_tf32
    torch.backends.cuda.matmul.allow_tf32 = True
    try:
        yield
    finally:
        torch.backends.cuda.matmul.allow_tf32 = before
