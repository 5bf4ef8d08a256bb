"""A recorded training step does what the step does when it is launched kernel by kernel."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch.nn.functional import one_hot
from torch.utils._python_dispatch import TorchDispatchMode

from nescio import cuda_graph, datasets, training
from nescio.methods import registry as methods
from nescio.runtime import Runtime, runtime_for
from nescio.training import fit
from nescio.trials import Training, Trial

RECORDED = [name for name, method in methods.items() if vars(method).get("cuda_graph_safe")]
FEW = Training(lr=0.01, epochs=1, batch_size=64, precision="float32")


@pytest.fixture
def exact(monkeypatch: pytest.MonkeyPatch) -> None:
    """Kernels that do not depend on what was tried before, in full float32."""
    runtime_for("cuda")
    monkeypatch.setattr(torch.backends.cudnn, "benchmark", False)
    monkeypatch.setattr(torch.backends.cudnn, "deterministic", True)
    monkeypatch.setattr(torch.backends.cudnn, "allow_tf32", False)
    torch.backends.cuda.matmul.allow_tf32 = False  # `runtime` sets it anew; monkeypatch cannot restore this attribute


def weights(name: str, *, steps: int, monkeypatch: pytest.MonkeyPatch) -> dict[str, torch.Tensor]:
    """Of a method after so many steps at a rate at which rounding stays small."""
    method = methods[name]
    augment: Any = method.augment or "none"
    plan = replace(FEW, augment=augment)
    trial = Trial(method=name, hparams=method.hparams_class(), data="digits", backbone="conv", training=plan)
    monkeypatch.setattr(training.streams.TrainingStream, "__len__", lambda self: steps)
    here = Runtime(torch.device("cuda:0"), "float32")
    trained, _ = fit(trial, datasets.load("digits"), here, None, 1e9, None)
    return {key: value.clone() for key, value in trained.named_parameters()}


class Operations(TorchDispatchMode):
    """Counts the operations that torch runs, by name."""

    def __init__(self) -> None:
        super().__init__()
        self.counts: Counter[str] = Counter()

    def __torch_dispatch__(self, operation: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.counts[operation.overloadpacket.__name__] += 1
        return operation(*args, **(kwargs or {}))


@pytest.mark.parametrize("name", RECORDED)
def test_cuda_graph__a_step_that_is_recorded_neither_asks_the_gpu_nor_brings_numbers_to_it(name: str) -> None:
    """CUDA refuses to record such a step. Seen on a CPU, so that it fails where there is no GPU too."""
    few = {"penalized": 0.25} if name == "duq" else {}  # a second forward pass, in the preset for GPUs
    trial = Trial(method=name, hparams=methods[name].hparams_class(**few), data="digits", backbone="conv")
    method = training.initial_method(trial, datasets.load("digits"), runtime_for("cpu")).train()
    views = (2,) if methods[name].views > 1 else ()
    x, y = torch.randn(*views, 64, 1, 8, 8), torch.randint(10, (64,))
    with Operations() as seen:
        method.update(x, y, torch.Tensor.backward)
    assert seen.counts["convolution"]
    with Operations() as of_labels:
        one_hot(y, 10)  # looks at its labels, on a CPU alone, and in every torch by other operations
    seen.counts["_local_scalar_dense"] -= of_labels.counts["_local_scalar_dense"] * seen.counts["scatter_"]
    assert not [name for name in ("lift_fresh", "_local_scalar_dense", "nonzero", "masked_select") if seen.counts[name]]


@pytest.mark.gpu
@pytest.mark.usefixtures("exact")
@pytest.mark.parametrize("name", RECORDED)
def test_cuda_graph__replayed_steps_move_the_weights_as_launched_ones(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    replays, replay = [], torch.cuda.CUDAGraph.replay

    def counted(graph: torch.cuda.CUDAGraph) -> None:
        replays.append(graph)
        replay(graph)

    monkeypatch.setattr(torch.cuda.CUDAGraph, "replay", counted)
    recorded = weights(name, steps=12, monkeypatch=monkeypatch)
    assert len(replays) == 12 - cuda_graph.FIRST
    short = weights(name, steps=cuda_graph.FIRST + 1, monkeypatch=monkeypatch)
    monkeypatch.setattr(cuda_graph, "FIRST", 10**9)
    launched = weights(name, steps=12, monkeypatch=monkeypatch)
    off = torch.stack([(recorded[key] - launched[key]).norm() for key in launched]).norm()
    way = torch.stack([(short[key] - launched[key]).norm() for key in launched]).norm()
    # the masks of dropout are other ones when they are drawn inside a recording
    assert off < (0.3 if name == "mc-dropout" else 0.02) * way, (off, way)


@pytest.mark.gpu
@pytest.mark.usefixtures("exact")
def test_step_graph__every_replay_draws_anew() -> None:
    trial = Trial(method="mc-dropout", hparams=methods["mc-dropout"].hparams_class(), data="digits", backbone="conv")
    method = training.initial_method(trial, datasets.load("digits"), runtime_for("cuda")).train()
    x, y = torch.randn(64, 1, 8, 8, device="cuda"), torch.randint(10, (64,), device="cuda")
    step = cuda_graph.StepGraph(method, torch.Tensor.backward, lambda: None)
    losses = [float(step(x, y)) for _ in range(cuda_graph.FIRST + 4)]
    assert len(set(losses[cuda_graph.FIRST :])) == 4
