"""Measures of neighbours in the embedding space, of one network or of several."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np

from nescio.arrays.nearest import METRICS, Points, distances, nearest_rows, prepare_points, unit
from nescio.arrays.parallel import blocks, map_on_threads
from nescio.arrays.types import Array
from nescio.errors import BadInput, Undefined
from nescio.measures._spec import measure
from nescio.measures.row_tools import embeddings_of, select_in_distribution
from nescio.predictions import Predictions

MARKS = 1 << 21  # membership flags in one block of rows, so that the block fits the cache
DIGITS = 12  # decimals to which mean similarities are rounded, so that equal means tie


@measure("fitted", needs=("embeddings",), example={"k": 5}, scorecard_options=lambda rows: {"k": min(10, rows)})
def knn_distance(ref: Predictions, k: int | Sequence[int] = 1, metric: str = "cosine") -> NeighbourDistance:
    """Mean distance to the k nearest reference embeddings.

    u(x) = (1/k)·Σ_{r in k-NN(x)} distance(x, r), with 1 − cos or the Euclidean distance, in float64.
    k may be a sequence, giving (len(k), n). Source: Park et al. 2024, §4.1 (Dist_k).
    """
    refs = prepare_points(embeddings_of(ref, "the reference predictions"), metric, "the reference embeddings")
    return NeighbourDistance(refs, neighbour_counts(k, len(refs)), metric, bool(np.ndim(k)))


@dataclass(frozen=True, eq=False)
class NeighbourDistance:
    """Mean distance to the k nearest references, for every k."""

    refs: Points
    ks: Sequence[int]
    metric: str
    k_is_sequence: bool

    @property
    def arrays(self) -> dict[str, Array]:
        """Arrays for an exported file, for cosines and one k."""
        return {"bank": self.refs.search_rows.T, "k": np.array(self.ks[0]), "width": np.array(self.refs.d)}

    def __call__(self, test: Predictions) -> Array:
        return self._distances(test, "test")

    def leave_one_out(self, ref: Predictions) -> Array:
        """Mean distance of each reference to the nearest other references."""
        if max(self.ks) >= len(self.refs):
            raise Undefined(f"{len(self.refs)} references: leave-one-out needs more than {max(self.ks)}.")
        return self._distances(ref, "reference", exclude_self=True)

    def _distances(self, predictions: Predictions, name: str, exclude_self: bool = False) -> Array:
        embeddings = embeddings_of(predictions, f"the {name} predictions")
        queries = prepare_points(embeddings, self.metric, f"the {name} embeddings", self.refs)
        neighbours = nearest_rows(self.refs, queries, sorted(set(self.ks)), exclude_self=exclude_self)
        return self._aggregate(distances(self.refs, queries, neighbours))

    def _aggregate(self, neighbour_distances: Array) -> Array:
        means = np.stack([neighbour_distances[:, :k].mean(1) for k in self.ks])
        return means if self.k_is_sequence else means[0]


@measure("fitted", needs=("embeddings",), example={"k": 5})
def knn(train: Predictions, k: int = 50) -> KthNeighbour:
    """Squared distance to the k-th nearest training row, of unit-length embeddings: 2 − 2·cos.

    k is at most the number of training rows. Sun et al. (2022).
    """
    if k < 1:
        raise BadInput(f"k is {k}; it must be a whole number of at least 1.")
    rows = embeddings_of(select_in_distribution(train, "knn"), "knn")
    refs = prepare_points(rows, "cosine", "the reference embeddings")
    return KthNeighbour(refs, [min(k, len(refs))], "cosine", False)


class KthNeighbour(NeighbourDistance):
    """Squared distance of unit-length embeddings to the k-th nearest reference."""

    def _aggregate(self, neighbour_distances: Array) -> Array:
        return np.asarray(2 * neighbour_distances[:, : self.ks[0]].max(1))

    def leave_one_out(self, ref: Predictions) -> Array:
        in_distribution = select_in_distribution(ref, "knn")
        if in_distribution is ref:
            return super().leave_one_out(ref)
        u = np.array(self(ref))
        u[ref.in_distribution] = super().leave_one_out(in_distribution)
        return u


@measure("ensemble", needs=("embeddings",), example={"k": 10})
def neighborhood_inconsistency(
    refs: Sequence[Predictions],
    tests: Sequence[Predictions],
    k: int | Sequence[int] = 100,
    metric: str = "cosine",
    *,
    similarity: Literal["jaccard", "overlap"] = "jaccard",
) -> Array:
    """Disagreement of ensemble members on the k nearest reference rows of a test row.

    u(x) = 1 − NC_k(x), NC_k = mean over the M(M−1)/2 pairs of members of |A ∩ B| / |A ∪ B|, with A and B the sets of
    the k nearest references (|A ∩ B| / k for "overlap"). Rows come in the order of tests[0]; k may be a sequence,
    giving (len(k), n). Equation (7) divides by M² instead: it is NC_k·(M − 1)/(2M), of the same ranking.
    Source: Park et al. 2024, §3.3.
    """
    check_members(refs, tests, similarity)
    references, queries = align_members(refs, "reference"), align_members(tests, "test")
    ks = neighbour_counts(k, len(refs[0]))
    cuts = sorted(set(ks))
    dtype = np.min_scalar_type(len(refs[0]) - 1)
    lists = np.empty((len(refs), len(tests[0]), cuts[-1]), dtype)
    for m, (ref, test) in enumerate(zip(references, queries, strict=True)):
        bank = prepare_points(ref, metric, f"the reference embeddings of member {m}")
        lists[m] = nearest_rows(bank, prepare_points(test, metric, f"the test embeddings of member {m}", bank), cuts)
    means = dict(zip(cuts, consistency(lists, cuts, len(refs[0]), similarity), strict=True))
    u = np.stack([1 - means[size] for size in ks])
    return u if np.ndim(k) else u[0]


@measure("ensemble", needs=("embeddings",))
def feature_variance(tests: Sequence[Predictions], metric: str = "cosine", *, unbiased: bool = False) -> Array:
    """Variance of a row's embedding between the members of an ensemble.

    u(x) = Σ_dimensions Var_m(h_m(x)); h has unit length if the metric is cosine. Rows come in the order of tests[0].
    The paper uses the population variance, (M − 1)/M times the `unbiased` one, so it rises with the number M of
    members. Take the unbiased one to compare ensembles of unequal M. Source: Park et al. 2024, §4.1 (FV).
    """
    if metric not in METRICS:
        raise BadInput(f"There is no distance named {metric!r}. There are: {', '.join(METRICS)}.")
    members = align_members(tests, "test")
    widths = {member.shape[1] for member in members}
    if len(widths) > 1:
        raise BadInput(f"The members have {sorted(widths)} features: a variance needs the same number in each.")
    u = np.empty(len(tests[0]))
    for block in blocks(len(u), max(1, (1 << 20) // (len(members) * max(widths)))):
        x = np.stack([np.asarray(member[block], np.float64) for member in members])
        if metric == "cosine":
            x = np.stack([unit(rows, f"the test embeddings of member {m}", block.start) for m, rows in enumerate(x)])
        u[block] = x.var(0, ddof=int(unbiased)).sum(1)
    return u


def consistency(neighbours: Array, cuts: Sequence[int], n_refs: int, similarity: str = "jaccard") -> Array:
    """(len(cuts), n) mean similarity of neighbour sets over pairs of members, exactly equal for any member order.

    lists (m, n, k) contains neighbours as indices below n_refs; for every cut, rising, the first of a row are its set.
    A set becomes a row of bits: the size of an intersection is the number of ones in AND.
    """
    m, n, _ = neighbours.shape
    pairs = m * (m - 1) // 2
    one = 1 << (62 - pairs.bit_length())  # sums of integer multiples of 1/one are exact and fit 64 bits
    total = np.zeros((len(cuts), n), np.int64)
    tables = [_similarities(cut, similarity, one) for cut in cuts]

    def add_block(block: slice) -> None:
        is_neighbour = np.zeros((m, block.stop - block.start, n_refs), bool)
        first = 0
        for cut_number, cut in enumerate(cuts):
            np.put_along_axis(is_neighbour, neighbours[:, block, first:cut].astype(np.intp), True, axis=2)
            first = cut
            bits = _as_words(np.packbits(is_neighbour, axis=2))
            for member in range(m - 1):
                intersection_sizes = np.bitwise_count(bits[member] & bits[member + 1 :]).sum(2, dtype=np.uint32)
                total[cut_number, block] += tables[cut_number][intersection_sizes].sum(0)

    map_on_threads(add_block, blocks(n, max(1, MARKS // (m * n_refs))))
    return np.asarray(np.round(total / (one * pairs), DIGITS))


def _similarities(k: int, similarity: str, unit: int) -> Array:
    """(k + 1,) the similarity of two sets of k that share 0, 1, … k rows, in integer multiples of 1/unit."""
    sizes = np.arange(k + 1)
    return np.round(sizes / (2 * k - sizes if similarity == "jaccard" else k) * unit).astype(np.int64)


def _as_words(octets: Array) -> Array:
    """Bytes as 64-bit words, filled up with zeros."""
    padding = -octets.shape[-1] % 8
    if padding:
        octets = np.concatenate([octets, np.zeros((*octets.shape[:-1], padding), np.uint8)], axis=-1)
    return octets.view(np.uint64)


def neighbour_counts(k: int | Sequence[int], n_refs: int) -> list[int]:
    sizes = np.atleast_1d(np.asarray(k))
    if sizes.ndim != 1 or not len(sizes) or sizes.dtype.kind not in "iu" or sizes.min() < 1:
        raise BadInput(f"k is {k}; it must be a whole number of at least 1, or a list of these.")
    if sizes.max() > n_refs:
        raise BadInput(f"k is {sizes.max()}, but there are only {n_refs} references: choose a smaller k.")
    return [int(size) for size in sizes]


def check_members(refs: Sequence[Predictions], tests: Sequence[Predictions], similarity: str) -> None:
    if len(refs) != len(tests):
        raise BadInput(
            f"There are {len(refs)} reference and {len(tests)} test predictions: give one of each per member."
        )
    if similarity not in ("jaccard", "overlap"):
        raise BadInput(f"There is no similarity named {similarity!r}. There are: jaccard, overlap.")


def align_members(members: Sequence[Predictions], role: str) -> list[Array]:
    """The embeddings of every member in the order of the first member's index."""
    if len(members) < 2:
        raise Undefined("The measure compares networks: give at least two members.")
    index = members[0].index
    order = np.argsort(index, kind="stable")
    aligned = []
    for number, member in enumerate(members):
        embeddings = embeddings_of(member, f"the {role} predictions of member {number}")
        if not np.array_equal(member.index, index):
            member_order = np.argsort(member.index, kind="stable")
            if len(member_order) != len(order) or not np.array_equal(member.index[member_order], index[order]):
                raise BadInput(
                    f"The {role} predictions of member {number} and of member 0 have different rows: index differs."
                )
            rows = np.empty_like(order)
            rows[order] = member_order
            embeddings = embeddings[rows]
        aligned.append(embeddings)
    return aligned
