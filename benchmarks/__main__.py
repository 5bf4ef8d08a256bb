"""`make bench`: every benchmark of this folder, one table. `python -m benchmarks NAME…` runs some."""

import importlib
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))
from _table import show

names = sys.argv[1:] or sorted(p.stem.removeprefix("bench_") for p in Path(__file__).parent.glob("bench_*.py"))
rows = []
for name in names:
    print(f"… {name}", file=sys.stderr)
    rows += importlib.import_module(f"bench_{name}").run()
show(rows)
