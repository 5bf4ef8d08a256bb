"""Optimizers, learning-rate schedules and weight averages."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor, nn

from nescio.errors import BadInput
from nescio.methods import registry as methods
from nescio.methods.base import Method, check_loss
from nescio.runtime import Runtime
from nescio.trials import Training


def optimizer_of(plan: Training, method: Method, runtime: Runtime) -> torch.optim.Optimizer:
    """SGD with momentum, AdamW or LAMB; `rate` and `decay` of a parameter group multiply the plan's. `adaptive`
    multiplies the learning rate of AdamW, whose step size does not depend on the size of gradients."""
    groups: list[dict[str, Any]] = []
    for group in method.parameter_groups():
        rate, decay = plan.lr * group.get("rate", 1.0), plan.weight_decay * group.get("decay", 1.0)
        rate *= group.get("adaptive", 1.0) if plan.optimizer == "adamw" else 1.0
        groups.append({"params": group["params"], "lr": rate, "weight_decay": decay})
    if plan.optimizer == "sgd":
        fused = runtime.device.type == "cuda"
        return torch.optim.SGD(groups, plan.lr, plan.momentum, nesterov=plan.nesterov, fused=fused)
    if plan.optimizer == "adamw":
        return torch.optim.AdamW(groups, plan.lr, fused=runtime.device.type == "cuda")
    from timm.optim.lamb import Lamb

    # layer-wise trust ratio for any weight decay; without timm's clipping of gradients
    return Lamb(groups, plan.lr, always_adapt=True)


def rate_at(plan: Training, epochs: float) -> float:
    """The learning rate after a number of epochs, as a share of the maximum."""
    warmup_end = plan.warmup_flat + plan.warmup
    if epochs < warmup_end:
        done = max(0.0, epochs - plan.warmup_flat + 1e-8) / plan.warmup if plan.warmup else 0.0
        return plan.warmup_from + (1 - plan.warmup_from) * done
    if plan.schedule == "step":
        return plan.step_factor ** int(epochs / plan.step_epochs + 1e-9)
    if plan.schedule == "cosine":
        done = (epochs - warmup_end) / max(plan.epochs - warmup_end, 1e-8)
        return 0.5 * (1 + math.cos(math.pi * min(done, 1.0)))
    return 1.0


def check_compiled(plan: Training, method: str) -> None:
    """Raise BadInput if a method that cannot be compiled should be compiled."""
    if plan.compile and (reason := methods[method].no_compile_reason):
        raise BadInput(f"The method {method} cannot be compiled: {reason}. Omit compile.")


class OptimizerStep:
    """Run backward, and for a complete batch average over processes, clip, set the learning rate and update the
    weights."""

    def __init__(
        self,
        plan: Training,
        method: Method,
        optimizer: torch.optim.Optimizer,
        runtime: Runtime,
        average: WeightAverage | None,
        batches: int,
    ) -> None:
        self.plan, self.optimizer, self.runtime, self.average = plan, optimizer, runtime, average
        self.parameters = [p for group in optimizer.param_groups for p in group["params"]]
        self.base = [group["lr"] for group in optimizer.param_groups]
        self.method = method
        self.per_epoch = max(1, batches // plan.accumulate)
        self.steps = self.pending = 0

    @property
    def complete(self) -> bool:
        return self.pending == 0

    @property
    def can_be_recorded(self) -> bool:
        """Whether every batch runs the same kernels on this one GPU, so that a CUDA graph can replay them."""
        own = vars(type(self.method)).get("cuda_graph_safe", False)  # not inherited from a parent class
        alone = self.runtime.world == self.plan.accumulate == 1 and self.runtime.device.type == "cuda"
        return own and alone and not (self.plan.compile or self.method.spec.dense or self.method.frozen_epochs)

    def __call__(self, loss: Tensor) -> None:
        check_loss(self.method, loss)
        self.backward(loss)
        self.pending = (self.pending + 1) % self.plan.accumulate
        if self.complete:
            self.update_weights()
            self.optimizer.zero_grad(set_to_none=True)

    def backward(self, loss: Tensor) -> None:
        loss.backward()  # type: ignore[no-untyped-call]

    def update_weights(self) -> None:
        gradients = [parameter.grad for parameter in self.parameters if parameter.grad is not None]
        if self.plan.accumulate > 1:  # after backward: methods that clip per row need unscaled gradients
            torch._foreach_div_(gradients, self.plan.accumulate)
        self.runtime.mean(gradients)
        if self.plan.clip is not None:
            nn.utils.clip_grad_norm_(self.parameters, self.plan.clip)
        share = rate_at(self.plan, self.steps / self.per_epoch)
        for group, base in zip(self.optimizer.param_groups, self.base, strict=True):
            group["lr"] = base * share
        self.optimizer.step()
        self.steps += 1
        self.method.after_step(min(1.0, self.steps / (self.per_epoch * self.plan.epochs)))
        if self.average is not None:
            self.average.follow(self.method)


class WeightAverage:
    """A moving average of the weights, for methods whose predictions use it."""

    def __init__(self, method: Method, decay: float) -> None:
        self.decay = decay
        self.state = {name: tensor.detach().clone() for name, tensor in method.state_dict().items()}

    @torch.no_grad()
    def follow(self, method: Method) -> None:
        for name, tensor in method.state_dict().items():
            if tensor.is_floating_point():
                self.state[name].lerp_(tensor, 1 - self.decay)
            else:
                self.state[name].copy_(tensor)

    def copy_to(self, method: Method) -> None:
        method.load_state_dict(self.state)


def average_of(method: Method) -> WeightAverage | None:
    return None if method.ema is None else WeightAverage(method, method.ema)
