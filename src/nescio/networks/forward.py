"""Forward passes of pretrained networks: logits, embeddings, and the mean over passes with dropout on."""

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
    """A pretrained network, images to Output: logits, inputs of the last layer, and MC-dropout."""

    normalized = False

    def __init__(self, network: nn.Module, classes: int, runtime: Runtime) -> None:
        super().__init__()
        self.network, self.classes = network, classes
        self.heads = heads(network, classes)
        keep_heads_float32(self.heads, runtime)
        self.first_input: Tensor | None = None  # of the last layer, in this batch
        if self.heads:
            self.heads[0].register_forward_pre_hook(self._keep)
        self.repeat(0)

    def repeat(self, passes: int) -> bool:
        """Set the number of passes with dropout; return whether the network has dropout."""
        layers = dropouts(self.network) if passes else []
        self.answer = DropoutPasses(self.network, layers, passes)
        return bool(layers)

    @property
    def width(self) -> int | None:
        """Numbers of an embedding."""
        last = self.heads[0] if self.heads else None
        width = getattr(last, "in_features", None) or getattr(last, "in_channels", None)
        return None if width is None else int(width)

    def _keep(self, _: nn.Module, inputs: tuple[Tensor, ...]) -> None:
        if self.first_input is None:  # later ones have dropout on
            self.first_input = inputs[0]

    def forward(self, x: Tensor) -> Output:
        self.first_input = None
        logits, variants = self.answer(x)
        if logits.shape[-1] != self.classes:
            raise BadInput(f"The network gives {logits.shape[-1]} numbers for {self.classes} classes.")
        seen = self.first_input
        return Output(logits, None if seen is None else _flat(seen), variants=variants)


class Segmenter(nn.Module):
    """A trained dense method, images to maps at the resolution of its features.

    Logits are (b, s, c, h′, w′), scores (b, h′, w′).
    """

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
    """The last layers, with one output per class: timm's classifiers (two if distilled), else the last such layer."""

    def is_head(module: object) -> bool:
        out = getattr(module, "out_features", None) or getattr(module, "out_channels", None)
        return isinstance(module, (nn.Linear, nn.Conv2d)) and out == classes

    classifiers: Any = network.get_classifier() if hasattr(network, "get_classifier") else ()
    classifiers = [
        layer for layer in (classifiers if isinstance(classifiers, tuple) else (classifiers,)) if is_head(layer)
    ]
    return classifiers or [module for module in network.modules() if is_head(module)][-1:]


def keep_heads_float32(layers: Sequence[nn.Module], runtime: Runtime) -> None:
    """Compute the last layers in float32: bf16 has three digits, and confidences would be tied."""
    for layer in layers if runtime.precision == "bf16" else ():
        layer.forward = partial(_forward_float32, layer.forward)  # type: ignore[method-assign]


def _forward_float32(plain: Callable[[Tensor], Tensor], x: Tensor) -> Tensor:
    with torch.autocast(x.device.type, enabled=False):
        return plain(x.float())


def _flat(x: Tensor) -> Tensor:
    return x.mean((2, 3)) if x.dim() == 4 else x


def dropouts(network: nn.Module) -> list[nn.Module]:
    """The modules whose `training` flag turns dropout on.

    These are dropout layers, and modules that call dropout as a function (timm's `drop_rate`, fused attention).
    """
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
    """Turn dropout on in these layers; batch-norm stays in evaluation mode."""
    for layer in layers:
        layer.training = True
    try:
        yield
    finally:
        for layer in layers:
            layer.training = False


Part = Callable[[Any], Any]


class DropoutPasses:
    """Logits (b, s, c) of images, and the log mean softmax (b, c) of passes with dropout on.

    If all dropout follows the features, the features are computed once for all passes.
    """

    def __init__(self, network: nn.Module, layers: Sequence[nn.Module], passes: int) -> None:
        self.network, self.layers, self.passes = network, layers, passes
        self.parts: tuple[Part, Part] | None = None if layers and passes else (_identity, network)

    def __call__(self, x: Tensor) -> tuple[Tensor, dict[str, Tensor]]:
        if self.parts is None:
            self.parts = _split_at_dropout(self.network, self.layers, x)
        body, head = self.parts
        features = body(x)
        logits = _logits(head(features))
        if not self.layers or not self.passes or logits.shape[1] > 1:  # several draws: the network has its own dropout
            return logits, {}
        with dropout_enabled(self.layers):
            total = _logits(head(features))[:, 0].log_softmax(-1)
            for _ in range(self.passes - 1):
                total = torch.logaddexp(total, _logits(head(features))[:, 0].log_softmax(-1))
        return logits, {MC_DROPOUT: total - math.log(self.passes)}


def _identity(x: Tensor) -> Tensor:
    return x


def _logits(output: object) -> Tensor:
    if not isinstance(output, Tensor) or output.dim() not in (2, 3):
        raise BadInput(f"The network gives {type(output).__name__} instead of one row of logits per image.")
    return (output[:, None] if output.dim() == 2 else output).float()


def _split_at_dropout(network: nn.Module, layers: Sequence[nn.Module], x: Tensor) -> tuple[Part, Part]:
    """The modules before and after the first dropout, tested on these images; (identity, network) if there is none."""
    plain = network(x)
    for body, head in _candidate_splits(network):
        with dropout_enabled(layers):
            once, again = body(x), body(x)
        if isinstance(once, Tensor) and torch.equal(once, again) and torch.equal(head(once), plain):
            return body, head
    return _identity, network


def _candidate_splits(network: Any) -> Iterator[tuple[Part, Part]]:
    """Features and head of timm's networks; of others, all children but the last, and the last."""
    if hasattr(network, "forward_features") and hasattr(network, "forward_head"):
        yield network.forward_features, network.forward_head
        return
    children = list(network.children())
    if children:
        last = children[-1]

        def body(x: Tensor) -> Tensor | None:
            inputs: list[Tensor] = []
            hook = last.register_forward_pre_hook(lambda _, args: inputs.append(args[0]))
            network(x)
            hook.remove()
            return inputs[0] if len(inputs) == 1 else None

        yield body, last
