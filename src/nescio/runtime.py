"""Device, precision, processes and seeds of torch, chosen in this module only."""

from __future__ import annotations

import ctypes
import os
import random
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, replace
from datetime import timedelta
from typing import Any, TypeVar

import numpy as np
import torch
import torch.distributed as dist
from torch import Tensor, nn

from nescio.arrays.types import Array, ArrayOrTensor
from nescio.errors import BadInput

MMAP_MAX, TRIM_THRESHOLD = -4, -1  # of mallopt(3)
T = TypeVar("T")
WAIT_LIMIT = timedelta(days=1)  # maximum time to wait for another process; launchers detect dead ones


@dataclass(frozen=True)
class Runtime:
    """The device, precision, rank and number of processes of one process."""

    device: torch.device
    precision: str  # "float32" or "bf16"
    rank: int = 0
    world: int = 1

    @property
    def channels_last(self) -> bool:
        return self.device.type == "cuda"

    def autocast(self) -> AbstractContextManager[object]:
        if self.precision == "bf16":
            return torch.autocast(self.device.type, dtype=torch.bfloat16)
        return nullcontext()

    def put(self, array: Array) -> ArrayOrTensor:
        """The array on the device; on a CPU it stays NumPy's."""
        return array if self.device.type == "cpu" else torch.tensor(array, device=self.device)

    def with_precision(self, precision: str) -> Runtime:
        """The same runtime with another precision."""
        if precision == "bf16" and self.device.type == "cpu":
            # some machines report matrix units that they lack, and crash at the first instruction
            os.environ.setdefault("ONEDNN_MAX_CPU_ISA", "AVX512_CORE_BF16")
        return self if precision == "auto" else replace(self, precision=precision)

    @contextmanager
    def threads(self, count: int | None) -> Iterator[None]:
        """Limit torch to `count` CPU threads within the context; None: no limit.

        The number of threads changes the last bits of sums. Results of a trial must not depend on a machine's cores or
        workers.
        """
        before = torch.get_num_threads()
        if count is not None and self.device.type == "cpu":
            torch.set_num_threads(count)
        try:
            yield
        finally:
            torch.set_num_threads(before)

    def to_device(self, module: nn.Module) -> nn.Module:
        module = module.to(self.device)
        return module.to(memory_format=torch.channels_last) if self.channels_last else module

    def share(self, value: T) -> T:
        """The first process's value, in all processes."""
        if self.world == 1:
            return value
        message = [value]
        dist.broadcast_object_list(message, src=0)
        return message[0]

    def largest(self, value: int) -> int:
        """The largest of the processes' values."""
        if self.world == 1:
            return value
        maximum = torch.tensor(value)  # on the CPU, so that no process waits for a device
        dist.all_reduce(maximum, dist.ReduceOp.MAX)
        return int(maximum)

    def mean(self, tensors: list[Tensor]) -> None:
        """Average tensors over all processes, in place."""
        if self.world == 1 or not tensors:
            return
        wide = torch.float64 if any(tensor.dtype == torch.float64 for tensor in tensors) else torch.float32
        flat = torch.cat([tensor.reshape(-1).to(wide) for tensor in tensors])
        dist.all_reduce(flat)
        flat /= self.world
        for tensor, block in zip(tensors, flat.split([tensor.numel() for tensor in tensors]), strict=True):
            tensor.copy_(block.view_as(tensor))


def runtime_for(device: str = "auto", precision: str = "auto") -> Runtime:
    """Choose the device once: the GPU if there is one. bf16 on a GPU, float32 on a CPU, by default.

    Under `torchrun` it joins the other processes: gradients are averaged, and each takes its share of every batch.
    """
    if precision not in ("auto", "float32", "bf16"):
        raise BadInput(f"There is no precision named {precision!r}. There are: auto, float32, bf16.")
    world, rank = int(os.environ.get("WORLD_SIZE", 1)), int(os.environ.get("RANK", 0))
    if device == "auto":
        device = "cuda" if torch.cuda.is_available() else "cpu"
    if device == "cuda":
        need_gpu()
        number, gpus = int(os.environ.get("LOCAL_RANK", 0)), torch.cuda.device_count()
        if number >= gpus:
            raise BadInput(f"Each process needs a GPU, and there are {gpus} here: start fewer processes.")
        device = f"cuda:{number}"
        torch.cuda.set_device(device)
        torch.backends.cudnn.benchmark = True
        torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = True
    if world > 1 and not dist.is_initialized():
        dist.init_process_group("cpu:gloo,cuda:nccl" if device.startswith("cuda") else "gloo", timeout=WAIT_LIMIT)
    if precision == "auto":
        precision = "bf16" if device.startswith("cuda") else "float32"
    if device == "cpu":
        _keep_memory()
    try:
        return Runtime(torch.device(device), precision, rank, world)
    except RuntimeError:
        raise BadInput(f"torch has no device {device!r}: name cpu or cuda.") from None


def need_gpu() -> None:
    if not torch.cuda.is_available():
        raise BadInput("There is no GPU that torch can use here; set device=cpu.")


def _keep_memory() -> None:
    """Make the process keep freed memory. Otherwise glibc returns large blocks and requests them again, zeroed,
    for every batch: half of the training time on a CPU."""
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (OSError, AttributeError, TypeError):  # a C library without mallopt
        return
    mallopt(MMAP_MAX, 0)
    mallopt(TRIM_THRESHOLD, 2**31 - 1)


def leave() -> None:
    """Leave the process group, if there is one."""
    if dist.is_initialized():
        dist.destroy_process_group()


def seed_everything(seed: int) -> None:
    """Seed Python, NumPy and torch; called by training and before every predicted batch only."""
    random.seed(seed)
    np.random.seed(seed % 2**32)
    torch.manual_seed(seed)


def random_state() -> dict[str, Any]:
    """Every global random state, as values that load without pickle."""
    name, keys, position, has_gauss, gauss = np.random.get_state()
    return {
        "torch": torch.get_rng_state(),
        "cuda": torch.cuda.get_rng_state_all() if torch.cuda.is_available() else [],
        "numpy": [
            str(name),
            torch.from_numpy(np.asarray(keys).astype(np.int64)),
            int(position),
            int(has_gauss),
            float(gauss),
        ],
        "python": [random.getstate()[0], list(random.getstate()[1]), random.getstate()[2]],
    }


def restore_random_state(state: dict[str, Any]) -> None:
    torch.set_rng_state(state["torch"].cpu())
    if torch.cuda.is_available() and state["cuda"]:
        torch.cuda.set_rng_state_all([one.cpu() for one in state["cuda"]])
    name, keys, position, has_gauss, gauss = state["numpy"]
    np.random.set_state((name, keys.cpu().numpy().astype(np.uint32), position, has_gauss, gauss))
    version, inner, gauss_next = state["python"]
    random.setstate((version, tuple(inner), gauss_next))


@contextmanager
def evaluating(module: nn.Module) -> Iterator[nn.Module]:
    """Use evaluation mode in the context, then restore the mode of every module: some may be frozen."""
    former = [(submodule, submodule.training) for submodule in module.modules()]
    module.eval()
    try:
        yield module
    finally:
        for submodule, mode in former:
            submodule.training = mode
