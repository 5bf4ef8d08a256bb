"""Dumps that were damaged on their way, given by hand to every command that reads dumps: one sentence, exit code 2."""

import shutil

import numpy as np
import pyarrow.parquet as pq
import pytest

from nescio.cli import main
from nescio.errors import BadInput
from nescio.predictions import Predictions

COMMANDS = {
    "evaluate": "evaluate {file}",
    "evaluate --val": "evaluate {whole} --val {file}",
    "evaluate --ood": "evaluate {whole} --ood far={file}",
    "compare": "compare {whole} {file} --bootstrap 20",
    "threshold": "threshold {file} --risk 0.3",
    "threshold --test": "threshold {whole} --risk 0.3 --test {file}",
    "evaluate --choose": "evaluate {whole} --val {file} --choose mistakes",
    "evaluate --views": "evaluate {whole} --views {file}",
    "calibrate": "calibrate {file} --val {whole} --output {store}.npz",
    "calibrate --val": "calibrate {whole} --val {file} --output {store}.npz",
    "transfer": "transfer {file} --bootstrap 20",
    "transfer --views": "transfer {whole} --views {file} --bootstrap 20",
    "transfer --reference": "transfer {whole} --reference {file} --bootstrap 20",
    "choose": "choose {whole} {file}",
    "rank": "rank mine={whole},{file}",
    "imagenot": "imagenot --data digits --features {file}",
    "run selective": "run selective {file} --store {store}",
    "run cood": "run cood --pair mine={file},{whole} --store {store}",
}


@pytest.fixture(scope="module")
def dumps(tmp_path_factory):
    folder = tmp_path_factory.mktemp("dumps")
    labels = np.random.default_rng(0).integers(0, 4, 300)
    for seed, names in enumerate((["whole.npz"], ["a.npz", "a.safetensors", "a.parquet", "a.csv", "a"])):
        rng = np.random.default_rng(seed)
        logits = (3 * np.eye(4)[labels] + rng.normal(size=(300, 4))).astype(np.float32)
        dump = Predictions(labels=labels, logits=logits, embeddings=rng.normal(size=(300, 6)).astype(np.float32))
        for name in names:
            dump.save(folder / name)
    return folder


def damaged(source, goal, how):
    """A copy with one bit flipped in the middle of its largest file, or with that file cut."""
    if source.is_dir():
        shutil.copytree(source, goal)
        file = max((path for path in goal.rglob("*") if path.is_file()), key=lambda path: path.stat().st_size)
    else:
        file = shutil.copy(source, goal)
    content = bytearray(file.read_bytes())
    if how == "flipped":
        content[len(content) // 2] ^= 0x40
    file.write_bytes(content if how == "flipped" else content[: 2 * len(content) // 3])
    return goal


@pytest.mark.parametrize(
    ("name", "how"),
    [(name, how) for name in ("a.npz", "a.safetensors", "a.parquet", "a") for how in ("flipped", "cut")]
    + [("a.csv", "cut")],  # one digit for another cannot be seen in a plain text
)
@pytest.mark.parametrize("command", COMMANDS)
def test_damaged_dumps__a_damaged_dump_is_a_sentence(dumps, tmp_path, capsys, command, name, how):
    file = damaged(dumps / name, tmp_path / f"bad{(dumps / name).suffix}", how)
    places = {"file": file, "whole": dumps / "whole.npz", "store": tmp_path / "store"}
    assert main([word.format(**places) for word in COMMANDS[command].split()]) == 2
    said = capsys.readouterr()
    complaint = [line for line in said.err.splitlines() if str(file) in line]
    assert len(complaint) == 1 and complaint[0].endswith((".", "again.")), said.err
    assert said.out == "" and "Traceback" not in said.err


def test_damaged_dumps__a_whole_safetensors_file_of_others_needs_no_checksum(dumps, tmp_path):
    from safetensors.numpy import load_file, save_file

    save_file(load_file(dumps / "a.safetensors"), tmp_path / "b.safetensors")
    ours, theirs = Predictions.load(dumps / "a.safetensors"), Predictions.load(tmp_path / "b.safetensors")
    np.testing.assert_array_equal(ours.logits, theirs.logits)


def test_damaged_dumps__a_checksum_of_other_programs_is_no_checksum_of_ours(dumps, tmp_path):
    from safetensors.numpy import load_file, save_file

    arrays = load_file(dumps / "a.safetensors")
    save_file(arrays, tmp_path / "b.safetensors", {"format": "pt", "sha256": "of something else"})
    np.testing.assert_array_equal(Predictions.load(tmp_path / "b.safetensors").logits, arrays["logits"])


@pytest.mark.parametrize("key", ["arrays", "sha256", "normalized", "name of an array"])
def test_damaged_dumps__a_changed_name_in_the_manifest_of_a_folder_is_noticed(tmp_path, key):
    given = Predictions(labels=[0, 1, 1], logits=np.eye(3)[[0, 1, 2]], scores={"entropy": np.arange(3.0)})
    manifest = given.save(tmp_path / "dump") / "manifest.json"
    text = manifest.read_text("utf-8")
    change = {
        "arrays": ("crc32", "crd32"),
        "sha256": ('"sha256"', '"shb256"'),
        "normalized": ("false", "true"),
        "name of an array": ('"scores/entropy"', '"scores/entropx"'),
    }[key]
    assert text.count(change[0])
    manifest.write_text(text.replace(*change), "utf-8")
    with pytest.raises(BadInput):
        Predictions.load(tmp_path / "dump")


def test_damaged_dumps__a_score_of_a_parquet_file_is_not_renamed_by_its_metadata(tmp_path):
    given = Predictions(labels=[0, 1, 1], logits=np.eye(3)[[0, 1, 2]], scores={"entropy": np.arange(3.0)})
    file = given.save(tmp_path / "dump.parquet")
    assert [*Predictions.load(file).scores] == ["entropy"]
    table = pq.read_table(file)
    renamed = table.rename_columns([name.replace("entropy", "entropx") for name in table.column_names])
    pq.write_table(renamed.replace_schema_metadata(table.schema.metadata), file)
    with pytest.raises(BadInput, match="checksum"):
        Predictions.load(file)
    pq.write_table(renamed.replace_schema_metadata(None), file)  # of another program
    assert [*Predictions.load(file).scores] == ["entropx"]
