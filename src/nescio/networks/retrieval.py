"""Nearest neighbours on a GPU: products in tf32 find candidates, float64 decides.

A product in tf32 keeps 11 bits of every entry, so that a cosine is off by at most MARGIN. The few candidates of a row
are compared in float64. Where others could be nearer than these, all rows are, so that the neighbours are those of
`nescio.arrays.nearest`, whatever a device rounds; similarities within 2⁻⁴⁰ tie, and ties go to the lower row.
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

SPARE = 8, 64  # candidates beyond the one neighbour, or the several, that are wanted: the further, the denser they lie
GROUP = 64  # similarities of which the largest is looked at first
ROWS, FEW = 2048, 256  # queries of one product, of one that looks at all rows in float64
COMPARED = 1 << 15  # candidates that one comparison in float64 takes
MARGIN = 2.0**-9 + 2.0**-12  # of a cosine in tf32: two factors cut to 11 bits, and room for the sum
STEP, BITS = 2.0**40, 20  # similarities as whole numbers, with a row's number below them: galleries of up to 2²⁰ rows


def device_search(device: torch.device) -> Search:
    """A search among the rows of a gallery on a device, in place of `nescio.measures.gallery.search_rows`."""

    sent: list[tuple[Array, Tensor]] = []  # the last gallery: views of one network are looked up in the same

    def search(gallery: Array, queries: Array, cuts: Sequence[int]) -> Array:
        if not sent or sent[0][0] is not gallery:
            sent[:] = [(gallery, torch.as_tensor(gallery).to(device))]
        known = sent[0][1]
        wanted = known if queries is gallery else torch.as_tensor(queries).to(device)
        return nearest_rows(known, wanted, cuts[-1]).cpu().numpy()

    return search


def nearest_rows(gallery: Tensor, queries: Tensor, k: int = 1) -> Tensor:
    """(n, k) the rows of a gallery nearest to every query by cosine, the nearest first; query i never finds row i.

    nearest_rows(x, x)[:, 0] are the neighbours of Recall@1.
    """
    if not k < len(gallery) < 1 << BITS:
        raise BadInput(f"The gallery has {len(gallery)} rows, and k is {k}: more than k, and fewer than 2²⁰.")
    length = _lengths(gallery)
    query_length = length if queries is gallery else _lengths(queries)
    known = gallery / length.to(gallery)
    directions = known if queries is gallery else queries / query_length.to(queries)
    count = min(k + SPARE[k > 1], len(gallery) - 1)
    near = torch.empty(len(queries), k, dtype=torch.int64, device=gallery.device)
    sure = torch.empty(len(queries), dtype=torch.bool, device=gallery.device)
    with _tf32():
        for part in blocks(len(queries), ROWS):
            at, least = _candidates(directions[part] @ known.T, part.start, count)
            for few in blocks(len(at), max(1, COMPARED // count)):
                rows = slice(part.start + few.start, part.start + few.stop)
                dot = (queries[rows, None].double() * gallery[at[few]]).sum(2)
                cosine = dot / length[at[few], 0] / query_length[rows]
                near[rows], last = _first(cosine, at[few], k)
                sure[rows] = least[few] + MARGIN < last
    for unsure in (~sure).nonzero()[:, 0].split(FEW):
        exact = queries[unsure] / query_length[unsure]
        cosine = torch.cat([exact @ (gallery[part] / length[part]).T for part in blocks(len(gallery), ROWS)], 1)
        cosine[torch.arange(len(unsure), device=unsure.device), unsure] = -1.5  # below every cosine
        near[unsure] = _first(cosine, torch.arange(len(gallery), device=unsure.device).expand(len(unsure), -1), k)[0]
    return near


def _candidates(scores: Tensor, start: int, count: int) -> tuple[Tensor, Tensor]:
    """(rows, count) columns of the largest similarities, and (rows,) the last of these; the query's own is left out.

    They lie in the groups of columns with the largest maxima, so that one pass over all similarities is enough.
    """
    n, columns = scores.shape
    own = torch.arange(n, device=scores.device)
    scores[own, start + own] = -torch.inf
    groups = columns // GROUP
    if groups <= count:
        value, at = scores.topk(count, dim=1)
        return at, value[:, -1]
    whole = scores[:, : groups * GROUP].view(n, groups, GROUP)
    which = whole.amax(2).topk(count, dim=1, sorted=False).indices[..., None]
    column = torch.arange(columns, device=scores.device)
    inside = (which * GROUP + column[:GROUP]).flatten(1)
    inside = torch.cat([inside, column[groups * GROUP :].expand(n, -1)], 1)
    value, at = scores.gather(1, inside).topk(count, dim=1)
    return inside.gather(1, at), value[:, -1]


def _first(cosine: Tensor, column: Tensor, k: int) -> tuple[Tensor, Tensor]:
    """The columns of the k largest float64 cosines of every row, ties to the lower, and the k-th cosine."""
    mask = (1 << BITS) - 1
    keys = ((cosine * STEP).round().long() << BITS | (mask - column)).topk(k, dim=1).values
    return mask - (keys & mask), (keys[:, -1] >> BITS) / STEP


def _lengths(rows: Tensor) -> Tensor:
    """(n, 1) float64."""
    length = torch.linalg.vector_norm(rows, dim=1, keepdim=True, dtype=torch.float64)
    if not bool(length.all()):
        raise BadInput("An embedding has length zero, so that it has no cosine; leave that row out.")
    return length


@contextmanager
def _tf32() -> Iterator[None]:
    """Inside, products on a GPU may round to tf32."""
    before = torch.backends.cuda.matmul.allow_tf32
    torch.backends.cuda.matmul.allow_tf32 = True
    try:
        yield
    finally:
        torch.backends.cuda.matmul.allow_tf32 = before
