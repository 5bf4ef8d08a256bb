"""Commands of nescio in processes of their own that start at once: forked from one that has imported torch already."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.support.paths import ROOT

SECONDS = 240  # a command that hangs is ended

SERVER = """
import json, os, signal, sys, threading
import torch
torch.set_num_threads(1)
torch.optim.SGD(torch.nn.Linear(1, 1).parameters(), 0.1)  # the first optimiser imports half of torch
import pyarrow.parquet, rich.console, scipy.optimize
import nescio.cli, nescio.commands.run, nescio.methods, nescio.predict, nescio.benchmarks.uimnet, nescio.training
import nescio.report.pages, nescio.report.studies, nescio.benchmarks.uimnet.reports
from tests.support import killing
assert threading.active_count() == 1
print("warm", flush=True)
for line in sys.stdin:
    asked = json.loads(line)
    if "wait" in asked:
        print(os.waitstatus_to_exitcode(os.waitpid(asked["wait"], 0)[1]), flush=True)
        continue
    pid = os.fork()
    if pid:
        print(pid, flush=True)
        continue
    os.setsid()
    os.chdir(asked["cwd"])
    sys.path[:0] = asked["path"]
    os.environ |= asked["env"]
    signal.alarm(asked["seconds"])
    for name, handle in (("out", 1), ("err", 2)):
        os.dup2(os.open(asked[name], os.O_WRONLY | os.O_CREAT | os.O_TRUNC), handle)
    nescio.report.pages.can_draw = lambda: False  # charts take seconds, and others test them
    killing.install(asked["kill"], asked["log"])
    try:
        code = nescio.cli.main(asked["words"])
    except SystemExit as end:
        code = end.code
    except BaseException:
        import traceback
        traceback.print_exc()
        code = 99
    sys.stdout.flush(); sys.stderr.flush()
    os._exit(code)
"""


@dataclass
class Command:
    server: Warm
    pid: int
    folder: Path

    def wait(self) -> int:
        """The exit code; minus the signal if one ended it."""
        return int(self.server.ask({"wait": self.pid}))

    def kill(self) -> int:
        os.killpg(self.pid, signal.SIGKILL)
        return self.wait()

    @property
    def out(self) -> str:
        return (self.folder / "out").read_text()

    @property
    def err(self) -> str:
        return (self.folder / "err").read_text()


class Warm:
    def __init__(self, folder: Path, path: Sequence[Path] = (), **more: str) -> None:
        """more  variables of the environment"""
        self.folder, self.count = folder, 0
        path = [str(folder) for folder in (*path, ROOT, ROOT / "src")]
        env = os.environ | {"PYTHONPATH": os.pathsep.join(path), "NESCIO_THREADS": "1", "OMP_NUM_THREADS": "1"}
        env |= more
        command = [sys.executable, "-W", "ignore", "-c", SERVER]
        pipe = subprocess.PIPE
        self.process: Any = subprocess.Popen(command, stdin=pipe, stdout=pipe, text=True, env=env, cwd=folder)
        assert self.process.stdout.readline() == "warm\n"

    def ask(self, question: dict[str, Any]) -> str:
        self.process.stdin.write(json.dumps(question) + "\n")
        self.process.stdin.flush()
        return str(self.process.stdout.readline())

    def start(
        self,
        *words: str | Path,
        kill: str | None = None,
        log: Path | None = None,
        cwd: Path | None = None,
        path: Sequence[Path] = (),
        **env: str,
    ) -> Command:
        """A command in folder `cwd`, which also sees the packages in the folders of `path`."""
        self.count += 1
        folder = self.folder / f"command-{self.count}"
        folder.mkdir()
        asked = {"words": [str(each) for each in words], "kill": kill, "log": str(log) if log else None}
        asked |= {"out": str(folder / "out"), "err": str(folder / "err"), "seconds": SECONDS}
        asked |= {"cwd": str(cwd or self.folder), "path": [str(each) for each in path], "env": env}
        return Command(self, int(self.ask(asked)), folder)

    def run(self, *words: str | Path, **more: Any) -> tuple[int, Command]:
        command = self.start(*words, **more)
        return command.wait(), command

    def close(self) -> None:
        self.process.stdin.close()
        self.process.wait()
