"""What a store holds, as a list."""

import json

from nescio.cli import main
from nescio.work.store import Store


def test_every_line_says_what_it_is(tmp_path, capsys):
    store = Store(tmp_path)
    with store.work("evaluate", {"parents": 3}, title="erm, trial 0, seed 1"):
        pass
    store.fail("evaluate", {"parents": 4}, "killed", title="mixup, trial 2, seed 1")
    assert main(["runs", "--store", str(tmp_path)]) == 0
    out = capsys.readouterr().out
    assert "erm, trial 0, seed 1" in out and "mixup, trial 2, seed 1" in out
    assert main(["runs", "--store", str(tmp_path), "--json"]) == 0
    assert {run["title"] for run in json.loads(capsys.readouterr().out)} == {
        "erm, trial 0, seed 1",
        "mixup, trial 2, seed 1",
    }
