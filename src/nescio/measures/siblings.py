"""Label-free reliability scores of a representation, from M sibling networks.

Siblings are networks of one algorithm with different seeds. Each embeds the same r reference rows and n test
rows. `member_spaces` computes each member's neighbour lists, distances, lengths and densities once. Any k and
ensemble size then need no further search. Source: Park, Wang, Ardeshir and Azizan 2024, §3.3, §4.1 and §4.4.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from numpy.typing import ArrayLike

from nescio import measures
from nescio.arrays.nearest import distances, nearest_rows, prepare_points
from nescio.arrays.types import Array
from nescio.errors import BadInput, Undefined
from nescio.measures._neighbours import align_members, check_members, consistency, neighbour_counts
from nescio.measures.row_tools import embeddings_of
from nescio.predictions import Predictions
from nescio.progress import track

Similarity = Literal["jaccard", "overlap"]
ALONE = "Neighbourhood consistency needs at least two siblings."
NO_VARIANCE = "The variance between siblings needs at least two siblings."
COLLAPSED = 0.01  # maximum share of distinct references of a collapsed member
MIXTURE = {"cosine": measures.vmf_mixture, "euclidean": measures.gaussian_mixture}


@dataclass(frozen=True)
class Quantity:
    """Name, direction and meaning of a score in reports."""

    word: str
    better: Literal["higher", "lower"]
    meaning: str


SCORES = {  # in the paper's order
    "nc": Quantity("NC", "higher", "agreement of siblings on the nearest references of a row, from 0 to 1"),
    "dist": Quantity("Dist", "lower", "distance to the nearest references"),
    "norm": Quantity("Norm", "higher", "length of the embedding"),
    "ll": Quantity("LL", "higher", "log-likelihood under a mixture fitted to the references"),
    "fv": Quantity("FV", "lower", "variance of the embedding between siblings"),
}


@dataclass(frozen=True, eq=False)
class SiblingScores:
    """u (n,) by score name, always higher = less reliable, and the reasons for missing scores.

    nc@K is 1 − NC_K, dist@K the mean distance to the K nearest references, norm −‖e‖, ll minus the log-density of a
    mixture, fv the variance between members; dist, norm and ll are means over members.
    """

    index: Array  # (n,) keys of the test rows
    u: Mapping[str, Array]
    reasons: Mapping[str, str]
    members: int

    def __getitem__(self, name: str) -> Array:
        """u by a score's name; Undefined, with the reason, if it is missing."""
        if name in self.reasons:
            raise Undefined(self.reasons[name])
        return self.u[name]

    def reliability(self, name: str) -> Array:
        """The score as in the paper, higher = more reliable: NC_K from 0 to 1, and −u of the others."""
        return 1 - self[name] if kind(name) == "nc" else -self[name]


def kind(name: str) -> str:
    """nc@100 → nc."""
    return name.partition("@")[0]


def sibling_scores(refs: Sequence[Predictions], tests: Sequence[Predictions], **options: Any) -> SiblingScores:
    """The scores of a candidate from the embeddings of its members, in the order of tests[0]; see `member_spaces`."""
    return member_spaces(refs, tests, **options).scores()


@dataclass(frozen=True, eq=False)
class Spaces:
    """Quantities of every member before averaging: m members, n test rows, r references."""

    metric: str
    similarity: str
    references: int
    tests: Sequence[Predictions]  # in the row order of the first member
    k_nc: tuple[int, ...]  # ascending
    k_dist: tuple[int, ...]  # ascending
    neighbours: Array  # (m, n, k) references; for every k the first k of a row are its k nearest, as a set
    dist: Array  # (m, len(k_dist), n)
    norm: Array  # (m, n)
    ll: Array | None  # (m, n)
    reasons: Mapping[str, str]
    collapsed: str | None = None  # reason why all scores are undefined

    def scores(self, members: Sequence[int] | None = None, k_nc: Sequence[int] | None = None) -> SiblingScores:
        """The scores of the given members, by default of all. NC and FV need at least two members.

        k_nc  subset of the k of NC
        """
        chosen_members = list(range(len(self.tests)) if members is None else members)
        ks = [k for k in self.k_nc if k_nc is None or k in k_nc]
        if self.collapsed is not None:
            names = (*(f"nc@{k}" for k in ks), *(f"dist@{k}" for k in self.k_dist), "norm", "ll", "fv")
            return SiblingScores(self.tests[0].index, {}, dict.fromkeys(names, self.collapsed), len(chosen_members))
        u: dict[str, Array] = {}
        reasons = dict(self.reasons)
        if len(chosen_members) < 2:
            reasons |= dict.fromkeys((f"nc@{k}" for k in ks), ALONE) | {"fv": NO_VARIANCE}
        else:
            mean_similarity = consistency(self.neighbours[chosen_members], ks, self.references, self.similarity)
            u |= {f"nc@{k}": 1 - row for k, row in zip(ks, mean_similarity, strict=True)}
        u |= {f"dist@{k}": row for k, row in zip(self.k_dist, self.dist[chosen_members].mean(0), strict=True)}
        u["norm"] = self.norm[chosen_members].mean(0)
        if self.ll is not None:
            u["ll"] = self.ll[chosen_members].mean(0)
        if len(chosen_members) > 1:
            try:
                u["fv"] = measures.feature_variance([self.tests[member] for member in chosen_members], self.metric)
            except BadInput as reason:  # members of different widths
                reasons["fv"] = str(reason)
        return SiblingScores(self.tests[0].index, u, reasons, len(chosen_members))


def member_spaces(
    refs: Sequence[Predictions],
    tests: Sequence[Predictions],
    *,
    metric: str = "cosine",
    k_nc: Sequence[int] = (100,),
    k_dist: Sequence[int] = (1,),
    components: int = 20,
    similarity: Similarity = "jaccard",
    seed: int = 0,
) -> Spaces:
    """One neighbour search and one mixture for every member.

    refs and tests contain one set of predictions per member, of the same rows. Cosine uses unit vectors and a von
    Mises–Fisher mixture, Euclidean raw vectors and a Gaussian mixture. The norm is always that of the raw vectors.
    `components` = 0 omits the mixture, the slowest step. `seed` initialises the mixture.
    """
    check_members(refs, tests, similarity)
    reference_rows, test_rows = aligned_embeddings(refs, "reference"), aligned_embeddings(tests, "test")
    m, n, r = len(refs), len(tests[0]), len(refs[0])
    ks_nc, ks_dist = (tuple(sorted(set(neighbour_counts(list(k), r)))) for k in (k_nc, k_dist))
    cuts = sorted({*ks_nc, *ks_dist})
    neighbours = np.empty((m, n, ks_nc[-1]), np.min_scalar_type(r - 1))
    dist, norm = np.empty((m, len(ks_dist), n)), np.empty((m, n))
    reasons, collapsed = _no_mixture(components, r), None
    for member in track(range(m), "members"):
        references = prepare_points(reference_rows[member], metric, f"the reference embeddings of member {member}")
        queries = prepare_points(test_rows[member], metric, f"the test embeddings of member {member}", references)
        n_different = np.count_nonzero(references.first_equal == np.arange(r))
        if r > 1 and n_different <= max(1, COLLAPSED * r):
            collapsed = (
                f"Member {member} gives {r:,} references {n_different} different "
                f"embedding{'s' if n_different > 1 else ''}: it has collapsed, so its distances are meaningless."
            )
            break
        nearest = nearest_rows(references, queries, cuts)
        neighbours[member] = nearest[:, : ks_nc[-1]]
        reference_distances = distances(references, queries, nearest[:, : ks_dist[-1]])
        dist[member] = [reference_distances[:, :k].mean(1) for k in ks_dist]
        norm[member] = measures.norm(Predictions(embeddings=test_rows[member]))
    in_order = [Predictions(index=tests[0].index, embeddings=rows) for rows in test_rows]
    ll = None if reasons or collapsed else member_densities(refs, in_order, metric, components, seed)
    return Spaces(metric, similarity, r, in_order, ks_nc, ks_dist, neighbours, dist, norm, ll, reasons, collapsed)


def member_densities(
    refs: Sequence[Predictions], tests: Sequence[Predictions], metric: str, components: int, seed: int = 0
) -> Array:
    """(m, n) minus the log-density of test rows, in the order of tests[0], under mixtures of the references."""
    references, rows = aligned_embeddings(refs, "reference"), aligned_embeddings(tests, "test")
    fitted = [
        MIXTURE[metric](Predictions(embeddings=embeddings), components, seed)
        for embeddings in track(references, "mixtures")
    ]
    return np.stack([fit(Predictions(embeddings=embeddings)) for fit, embeddings in zip(fitted, rows, strict=True)])


def aligned_embeddings(members: Sequence[Predictions], role: str) -> list[Array]:
    """The embeddings of every member in the row order of the first; all must contain the same rows."""
    return align_members(members, role) if len(members) != 1 else [embeddings_of(members[0], f"the {role} predictions")]


def _no_mixture(components: int, r: int) -> dict[str, str]:
    """The reason for a missing density, if it is missing."""
    if components == 0:
        return {"ll": "The mixture was omitted."}
    if components > r:
        return {"ll": f"A mixture of {components} components needs as many references, and there are {r}."}
    return {}


# ---- comparison of candidates


def rankings_agree(u: ArrayLike, loss: ArrayLike) -> Array:
    """For every test row Kendall's τ-b over candidates between a score and a downstream loss, both (c, n).

    1 where the score ranks the candidates as their downstream performance does. Rows in which all candidates have
    equal scores or equal losses are omitted. Source: Park et al. 2024, §4.3 (Table 3).
    """
    a, b = np.asarray(u, np.float64), np.asarray(loss, np.float64)
    if a.ndim != 2 or a.shape != b.shape:
        raise BadInput(f"u has shape {a.shape}, loss {b.shape}: both must be (candidates, rows).")
    if len(a) < 2:
        raise Undefined("A ranking needs at least two candidates.")
    first, second = np.triu_indices(len(a), 1)
    x, y = np.sign(a[first] - a[second]), np.sign(b[first] - b[second])
    pairs = np.abs(x).sum(0) * np.abs(y).sum(0)
    comparable = pairs > 0
    if not comparable.any():
        raise Undefined("In every row all candidates have the same value: they cannot be ranked.")
    return np.asarray((x * y).sum(0)[comparable] / np.sqrt(pairs[comparable]))
