"""Empirical risk minimisation: cross-entropy alone."""

from __future__ import annotations

from nescio.methods.base import Batches, Evidence, Method, method
from nescio.methods.evidence import accuracy_of


@method("erm")
class ERM(Method):
    """Empirical risk minimisation (Vapnik 1992; UIMNET §3): minimise −log f(x)_y."""

    paper = "Vapnik, Principles of risk minimization for learning theory, 1992"
    cuda_graph_safe = True

    def evidence(self, batches: Batches, start: Method) -> dict[str, Evidence]:
        before, after = accuracy_of(start, batches), accuracy_of(self, batches)
        chance = max(before, 1 / self.spec.classes)
        return {"learnt": Evidence(f"training accuracy {before:.2f} before, {after:.2f} after", after > 2 * chance)}
