"""Run every benchmark of this folder (`make bench`), or those named by `python -m benchmarks NAME…`.

Figures replace those of the same benchmark and machine in results.json, the source of docs/performance.md.
"""

from __future__ import annotations

import importlib
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))
from _results import record
from _table import show

names = sys.argv[1:] or sorted(p.stem.removeprefix("bench_") for p in Path(__file__).parent.glob("bench_*.py"))
rows = []
for name in names:
    print(f"… {name}", file=sys.stderr)
    measured = importlib.import_module(f"bench_{name}").run()
    record(name, measured)
    rows += measured
show(rows)
