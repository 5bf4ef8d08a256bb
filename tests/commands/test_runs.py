"""What a store holds, as a list."""

import json
import shlex

import numpy as np

from nescio.cli import main
from nescio.work.store import Store


def test_runs__every_line_says_what_it_is(tmp_path, capsys):
    store = Store(tmp_path)
    with store.work("evaluate", {"parents": 3}, title="erm, trial 0, seed 1"):
        pass
    store.fail("evaluate", {"parents": 4}, "killed", title="mixup, trial 2, seed 1")
    assert main(["runs", "--store", str(tmp_path)]) == 0
    out = capsys.readouterr().out
    assert "erm, trial 0, seed 1" in out and "mixup, trial 2, seed 1" in out
    assert main(["runs", "--store", str(tmp_path), "--format", "json"]) == 0
    assert {run["title"] for run in json.loads(capsys.readouterr().out)} == {
        "erm, trial 0, seed 1",
        "mixup, trial 2, seed 1",
    }


def test_runs__damaged_work_is_said_to_be(tmp_path, capsys):
    """A file that is cut, lost or added to shows at once; a changed byte of the same size with --verify."""
    store = Store(tmp_path)
    paths = {}
    for name in ("whole", "cut", "lost", "flipped", "config", "listless"):
        with store.work("train", {"name": name}, title=name) as step_folder:
            step_folder.write("net.bin", bytes(100))
        paths[name] = store.path("train", store.key("train", {"name": name}))
    (paths["cut"] / "net.bin").write_bytes(bytes(99))
    (paths["lost"] / "net.bin").unlink()
    (paths["flipped"] / "net.bin").write_bytes(b"\1" + bytes(99))
    (paths["config"] / "config.json").write_text("{")
    (paths["listless"] / "config.json").write_text('{"files": [1], "title": "listless"}')

    def states(*words):
        assert main(["runs", "--store", str(tmp_path), "--format", "json", *words]) == 0
        return {run["key"]: (run["state"], run["reason"]) for run in json.loads(capsys.readouterr().out)}

    damaged = {key for key, (state, reason) in states().items() if state == "damaged" and reason}
    assert damaged == {paths[name].name for name in ("cut", "lost", "config", "listless")}
    assert states("--failed").keys() == damaged
    assert states("--verify", "--failed").keys() == damaged | {paths["flipped"].name}
    assert main(["runs", "--store", str(tmp_path)]) == 0
    said = " ".join(capsys.readouterr().out.split())
    assert "net.bin" in said and "2 finished, 4 damaged." in said


def test_runs__evaluations_of_pretrained_models_show_the_model(tmp_path, capsys):
    store = Store(tmp_path)
    for model in ("vit", "vgg"):
        with store.work("evaluate", {"model": model, "data": "digits"}, title=model):
            pass
    assert main(["runs", "--store", str(tmp_path)]) == 0
    out = capsys.readouterr().out
    assert "vit · digits" in out and "vgg · digits" in out


def test_runs__a_study_has_its_date_data_methods_and_command(tmp_path, capsys):
    words = ["run", "selective", "--store", str(tmp_path / "store"), str(tmp_path / "a.npz")]
    labels = np.arange(40) % 4
    np.savez(tmp_path / "a.npz", logits=np.eye(4)[labels] + np.eye(4)[labels[::-1]], labels=labels)
    assert main(words) == 0
    capsys.readouterr()
    assert main(["runs", "--store", str(tmp_path / "store"), "--format", "json"]) == 0
    (study,) = [run for run in json.loads(capsys.readouterr().out) if run["stage"] == "study"]
    assert study["command"] == shlex.join(["nescio", *words])
    assert study["date"] and study["benchmark"] == "selective"
    page = tmp_path / "store" / "report" / f"selective-{study['key'][:8]}" / "index.html"
    assert study["date"] in page.read_text() and "SHA-256" in page.read_text()
    assert main(["runs", "--store", str(tmp_path / "store")]) == 0
    assert study["date"].split()[0] in capsys.readouterr().out


def test_runs__a_study_of_given_networks_names_these_and_not_the_methods_of_its_preset(tmp_path, capsys):
    plan = {"data": "digits", "methods": ["erm", "sngp"], "networks": ["store:3f2a"]}
    for networks in (["store:3f2a"], []):
        with Store(tmp_path).work(
            "study", {"benchmark": "shift", "plan": plan | {"networks": networks}}, title="shift"
        ):
            pass
    assert main(["runs", "--store", str(tmp_path), "--format", "json"]) == 0
    studies = [run["methods"] for run in json.loads(capsys.readouterr().out) if run["stage"] == "study"]
    assert sorted(studies) == ["erm, sngp", "store:3f2a"]
