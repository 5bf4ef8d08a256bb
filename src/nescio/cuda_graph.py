"""Training steps on a GPU, recorded once and replayed as one CUDA graph. Without a graph, the many small kernels of a
small network leave a large GPU idle."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import torch
from torch import Tensor

from nescio.methods.base import Method

FIRST = 5  # steps before the recording, in which cuDNN selects kernels and libraries allocate buffers


class StepGraph:
    """`method.update` on batches of one size.

    backward  from a loss to gradients, which is recorded with the forward pass
    move      from gradients to weights, which is not
    """

    def __init__(self, method: Method, backward: Callable[[Tensor], None], move: Callable[[], None]) -> None:
        self.update = partial(method.update, step=backward)
        self.weights = [weight for weight in method.parameters() if weight.requires_grad]
        self.move = move
        self.seen = 0
        self.stream = torch.cuda.Stream()  # type: ignore[no-untyped-call]
        self.graph: torch.cuda.CUDAGraph | None = None

    def __call__(self, x: Tensor, y: Tensor) -> Tensor:
        self.seen += 1
        if self.seen <= FIRST:
            return self.launched(x, y)
        if self.graph is None:
            self.record(x, y)
        self.x.copy_(x)
        self.y.copy_(y)
        assert self.graph is not None
        self.graph.replay()
        self.move()
        return self.loss

    def launched(self, x: Tensor, y: Tensor) -> Tensor:
        """A step without recording, on the stream that the recording uses for gradients."""
        self.stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(self.stream):
            loss = self.update(x, y).detach()
        torch.cuda.current_stream().wait_stream(self.stream)
        self.move()
        self.forget_gradients()
        return loss

    def record(self, x: Tensor, y: Tensor) -> None:
        """Records a step without running it. The graph owns the gradients: every replay overwrites them."""
        self.x, self.y = x.clone(), y.clone()
        self.forget_gradients()
        self.graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(self.graph, stream=self.stream):
            self.loss = self.update(self.x, self.y).detach()

    def forget_gradients(self) -> None:
        for weight in self.weights:
            weight.grad = None
