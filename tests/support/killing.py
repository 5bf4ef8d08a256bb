"""Makes a process kill its whole group at a chosen place: NESCIO_TEST_KILL is "PLACE N", the N-th time it is there.

    step       after an optimiser step, before its checkpoint is written
    half       inside a checkpoint: half of it is on the disk
    replace    a file is written and does not have its name yet
    replaced   just after it got it
    rename     a folder is whole and does not have its final name yet
    renamed    just after it got it

NESCIO_TEST_LOG names a file that gets a line for every training, prediction and probing that begins.
A `sitecustomize.py` that imports this module puts it into every Python process of a command.
"""

from __future__ import annotations

import os
import signal
from pathlib import Path
from typing import Any


def install(place: str | None, log: str | None) -> None:
    if place:
        _arm(*place.split())
    if log:
        _write_down(Path(log))


def _arm(place: str, number: str) -> None:
    left = [int(number)]

    def here() -> bool:
        left[0] -= 1
        return left[0] == 0

    def kill() -> None:
        os.killpg(0, signal.SIGKILL)

    if place == "step":
        from nescio.work.step_folder import StepFolder

        save: Any = StepFolder.save_checkpoint

        def after_a_step(self: StepFolder, *args: Any) -> None:
            if here():
                kill()
            save(self, *args)

        StepFolder.save_checkpoint = after_a_step  # type: ignore[method-assign]
    elif place == "half":
        fsync = os.fsync

        def cut(handle: int) -> None:
            name = os.readlink(f"/proc/self/fd/{handle}")
            if name.endswith("checkpoint.safetensors.new") and here():
                os.ftruncate(handle, os.fstat(handle).st_size // 2)
                kill()
            fsync(handle)

        os.fsync = cut
    else:
        name = place.removesuffix("d")
        move: Any = getattr(os, name)

        def late(*args: Any, **more: Any) -> None:
            now = here()
            if now and place == name:
                kill()
            move(*args, **more)
            if now:
                kill()

        setattr(os, name, late)


def _write_down(path: Path) -> None:
    """Wraps what trains and predicts; torch must be there."""
    from nescio.predict import probes, steps
    from nescio.training import steps as training

    def wrap(module: Any, name: str) -> None:
        function = getattr(module, name)

        def noted(what: Any, *args: Any, **more: Any) -> Any:
            about = repr(what) if name == "fit" else ""
            with path.open("a") as file:
                file.write(f"{name} {os.getpid()} {about}\n")
            return function(what, *args, **more)

        setattr(module, name, noted)

    wrap(training, "fit")
    wrap(steps, "predict_images")
    wrap(probes, "probe_images")


install(os.environ.get("NESCIO_TEST_KILL"), None)
