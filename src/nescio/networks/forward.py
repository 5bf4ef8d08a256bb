"""What a pretrained network says: its logits, its embeddings, and the mean of passes with dropout on."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from nescio.errors import BadInput
from nescio.methods.base import Method, Output
from nescio.runtime import Runtime

MC_SAMPLES = 30  # with dropout on (selective.txt, appendix K)
MC_DROPOUT = "mc-dropout"


class Classifier(nn.Module):
    """A pretrained network, images to Output: logits, what the last layer is given, and passes with dropout on."""

    normalized = False

    def __init__(self, network: nn.Module, classes: int, here: Runtime) -> None:
        super().__init__()
        self.network, self.classes = network, classes
        self.heads = heads(network, classes)
        keep_heads_float32(self.heads, here)
        self.first_input: Tensor | None = None  # of the last layer, in this batch
        if self.heads:
            self.heads[0].register_forward_pre_hook(self._keep)
        self.repeat(0)

    def repeat(self, passes: int) -> bool:
        """Asks for so many passes with dropout on; whether the network has any dropout."""
        layers = dropouts(self.network) if passes else []
        self.answer = DropoutPasses(self.network, layers, passes)
        return bool(layers)

    @property
    def width(self) -> int | None:
        """Numbers of an embedding."""
        last = self.heads[0] if self.heads else None
        width = getattr(last, "in_features", None) or getattr(last, "in_channels", None)
        return None if width is None else int(width)

    def _keep(self, _: nn.Module, given: tuple[Tensor, ...]) -> None:
        if self.first_input is None:  # later ones have dropout on
            self.first_input = given[0]

    def forward(self, x: Tensor) -> Output:
        self.first_input = None
        logits, variants = self.answer(x)
        if logits.shape[-1] != self.classes:
            raise BadInput(f"The network gives {logits.shape[-1]} numbers for {self.classes} classes.")
        seen = self.first_input
        return Output(logits, None if seen is None else _flat(seen), variants=variants)


class Segmenter(nn.Module):
    """A trained dense method, images to an Output of maps: logits (b, s, c, h′, w′) and scores (b, h′, w′) at the
    resolution of its features."""

    def __init__(self, method: Method) -> None:
        super().__init__()
        self.method, self.normalized = method, method.normalized

    def forward(self, x: Tensor) -> Output:
        grid = self.method.features.grid(x.shape[2:])
        output = self.method(x)

        def maps(rows: Tensor) -> Tensor:
            return rows.unflatten(0, (len(x), *grid))

        logits = maps(output.logits).permute(0, 3, 4, 1, 2)
        return Output(logits, scores={name: maps(score) for name, score in output.scores.items()})


def heads(network: nn.Module, classes: int) -> list[nn.Module]:
    """The last layers, which give as many numbers as there are classes: what timm calls the classifier (two of them in
    distilled models), else the last layer that does."""

    def gives(module: Any) -> bool:
        out = getattr(module, "out_features", None) or getattr(module, "out_channels", None)
        return isinstance(module, (nn.Linear, nn.Conv2d)) and out == classes

    known: Any = network.get_classifier() if hasattr(network, "get_classifier") else ()
    known = [layer for layer in (known if isinstance(known, tuple) else (known,)) if gives(layer)]
    return known or [module for module in network.modules() if gives(module)][-1:]


def keep_heads_float32(layers: Sequence[nn.Module], here: Runtime) -> None:
    """The last layers in float32: bf16 keeps three digits, and confidences would be tied."""
    for layer in layers if here.precision == "bf16" else ():
        layer.forward = partial(_exact, layer.forward)  # type: ignore[method-assign]


def _exact(plain: Callable[[Tensor], Tensor], x: Tensor) -> Tensor:
    with torch.autocast(x.device.type, enabled=False):
        return plain(x.float())


def _flat(x: Tensor) -> Tensor:
    return x.mean((2, 3)) if x.dim() == 4 else x


def dropouts(network: nn.Module) -> list[nn.Module]:
    """The modules whose own `training` flag turns dropout on: dropout layers, and modules that ask their flag when they
    call dropout as a function (timm's `drop_rate`, fused attention)."""
    layers = []
    for module in network.modules():
        rates = [getattr(module, "drop_rate", 0), getattr(getattr(module, "attn_drop", None), "p", 0)]
        if isinstance(module, nn.modules.dropout._DropoutNd):
            rates.append(module.p)
        if isinstance(module, nn.MultiheadAttention):
            rates.append(module.dropout)
        if any(isinstance(rate, (int, float)) and rate > 0 for rate in rates):
            layers.append(module)
    return layers


@contextmanager
def dropout_enabled(layers: Sequence[nn.Module]) -> Iterator[None]:
    """Dropout on, and nothing else: batch-norm stays in evaluation mode."""
    for layer in layers:
        layer.training = True
    try:
        yield
    finally:
        for layer in layers:
            layer.training = False


Part = Callable[[Any], Any]


class DropoutPasses:
    """Logits (b, s, c) of images, and the log of the mean softmax of passes with dropout on (b, c), if there is any.

    Where all dropout comes after the features, only what follows them is done again in every pass.
    """

    def __init__(self, network: nn.Module, layers: Sequence[nn.Module], passes: int) -> None:
        self.network, self.layers, self.passes = network, layers, passes
        self.parts: tuple[Part, Part] | None = None if layers and passes else (_same, network)

    def __call__(self, x: Tensor) -> tuple[Tensor, dict[str, Tensor]]:
        if self.parts is None:
            self.parts = _divided(self.network, self.layers, x)
        body, head = self.parts
        features = body(x)
        logits = _logits(head(features))
        if not self.layers or not self.passes or logits.shape[1] > 1:  # several draws: its method drops by itself
            return logits, {}
        with dropout_enabled(self.layers):
            total = _logits(head(features))[:, 0].log_softmax(-1)
            for _ in range(self.passes - 1):
                total = torch.logaddexp(total, _logits(head(features))[:, 0].log_softmax(-1))
        return logits, {MC_DROPOUT: total - math.log(self.passes)}


def _same(x: Any) -> Any:
    return x


def _logits(made: Any) -> Tensor:
    if not isinstance(made, Tensor) or made.dim() not in (2, 3):
        raise BadInput(f"The network gives {type(made).__name__} instead of one row of logits for each image.")
    return (made[:, None] if made.dim() == 2 else made).float()


def _divided(network: nn.Module, layers: Sequence[nn.Module], x: Tensor) -> tuple[Part, Part]:
    """The part before any dropout and the part after, each tried on these images; else nothing and the whole."""
    plain = network(x)
    for body, head in _halves(network):
        with dropout_enabled(layers):
            once, again = body(x), body(x)
        if isinstance(once, Tensor) and torch.equal(once, again) and torch.equal(head(once), plain):
            return body, head
    return _same, network


def _halves(network: Any) -> Iterator[tuple[Part, Part]]:
    """Features and head of timm's models; all but the last child, and the last child, of others."""
    if hasattr(network, "forward_features") and hasattr(network, "forward_head"):
        yield network.forward_features, network.forward_head
        return
    children = list(network.children())
    if children:
        last = children[-1]

        def body(x: Tensor) -> Any:
            given: list[Any] = []
            hook = last.register_forward_pre_hook(lambda _, args: given.append(args[0]))
            network(x)
            hook.remove()
            return given[0] if len(given) == 1 else None

        yield body, last
