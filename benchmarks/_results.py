"""The figures of the benchmarks in results.json: one record per row of a benchmark, with machine and date.

Records that `record` writes are `recorded`; the others were entered by hand.
"""

from __future__ import annotations

import json
import os
from datetime import date
from pathlib import Path
from typing import Any

RESULTS = Path(__file__).parent / "results.json"
FIELDS = {
    "work": "work",
    "peer": "peer",
    "peer_s": "peer_value",
    "ours_s": "value",
    "ratio": "ratio",
    "target": "target",
}


def machine() -> str:
    """The GPU, or the number of cores that this process may use."""
    try:
        import torch
    except ImportError:
        pass
    else:
        if torch.cuda.is_available():
            return torch.cuda.get_device_name().removeprefix("NVIDIA ")
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return f"{cores} core{'s' if cores > 1 else ''}"


def plain(value: Any) -> Any:
    """A number for JSON, with three digits if it was measured."""
    return float(f"{value:.3g}") if isinstance(value, float) or hasattr(value, "dtype") else value


def record(benchmark: str, rows: list[dict[str, Any]], path: Path = RESULTS) -> None:
    """Replace the records of this benchmark and machine by `rows`."""
    machine_name, date_text = machine(), date.today().isoformat()
    records = [
        record
        for record in json.loads(path.read_text("utf-8"))
        if (record["benchmark"], record["machine"]) != (benchmark, machine_name)
    ]
    for row in rows:
        values = {field: plain(row[record]) for record, field in FIELDS.items() if row.get(record) not in (None, "")}
        note_field = {"note": row["note"]} if row.get("note") else {}
        records.append(
            {
                "benchmark": benchmark,
                "machine": machine_name,
                **values,
                "unit": row.get("unit", "s"),
                "date": date_text,
                "recorded": True,
                **note_field,
            }
        )
    lines = ",\n".join(f"  {json.dumps(entry, ensure_ascii=False)}" for entry in records)
    path.write_text(f"[\n{lines}\n]\n", "utf-8")
