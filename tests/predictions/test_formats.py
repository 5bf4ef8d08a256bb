"""Files made to break a reader: bombs, pipes, endless headers, random damage. A sentence, soon, in little memory."""

import json
import os
import re
import subprocess
import sys
import time
import warnings
import zipfile

import numpy as np
import pytest

from nescio import BadInput, Predictions
from nescio.predictions.model_predictions import predictions_from_file
from tests.support.fuzzing import READERS, TORCH
from tests.support.malformed import LOGITS, raw, safetensors, tensor, zipped
from tests.support.paths import ROOT

MB, SECONDS = 500, 2  # at the most, for any file


def npy(shape, descr="<f8", content=b"\0" * 64):
    """A .npy array with any header."""
    header = f"{{'descr': '{descr}', 'fortran_order': False, 'shape': {shape}, }}".encode()
    header += b" " * (-(len(header) + 11) % 64) + b"\n"
    return b"\x93NUMPY\x01\x00" + len(header).to_bytes(2, "little") + header + content


def member(content, method=zipfile.ZIP_STORED):
    """An .npz file whose logits are these bytes."""

    def build(folder):
        with zipfile.ZipFile(folder / "a.npz", "w", method) as archive:
            archive.writestr("logits.npy", content)
        return folder / "a.npz"

    return build


def deflated(folder):
    """320 MB of zeros in 320 kB."""
    packed = zipfile.ZipFile(folder / "a.npz", "w", zipfile.ZIP_DEFLATED, compresslevel=1)
    with packed as archive, archive.open("logits.npy", "w", force_zip64=True) as file:
        file.write(npy((40_000, 1000), content=b""))
        for _ in range(80):
            file.write(bytes(4_000_000))
    return folder / "a.npz"


def lying_zip(size):
    """An .npz whose directory announces another size than its member has."""

    def build(folder):
        np.savez_compressed(folder / "a.npz", logits=np.zeros((1000, 10)))
        blob = bytearray((folder / "a.npz").read_bytes())
        at = blob.rindex(b"PK\x01\x02")
        blob[at + 24 : at + 28] = size.to_bytes(4, "little")
        (folder / "a.npz").write_bytes(bytes(blob))
        return folder / "a.npz"

    return build


def damaged_lzma(folder):
    with zipfile.ZipFile(folder / "a.npz", "w", zipfile.ZIP_LZMA) as archive:
        archive.writestr("logits.npy", npy((1000, 10), content=np.random.default_rng(0).bytes(80_000)))
    blob = bytearray((folder / "a.npz").read_bytes())
    blob[2000:2100] = b"\xff" * 100
    (folder / "a.npz").write_bytes(bytes(blob))
    return folder / "a.npz"


def parquet(make, **options):
    def build(folder):
        import pyarrow.parquet as pq

        pq.write_table(make(), folder / "a.parquet", **options)
        return folder / "a.parquet"

    return build


def many_rows(folder):
    """Forty million zeros in some kilobytes."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    rows = pa.table({"label": np.zeros(5_000_000, np.int8), "u_a": np.zeros(5_000_000)})
    with pq.ParquetWriter(folder / "a.parquet", rows.schema) as file:
        for _ in range(4):
            file.write_table(rows, row_group_size=5_000_000)
    return folder / "a.parquet"


def one_long_list():
    import pyarrow as pa

    return pa.table({"logits": pa.ListArray.from_arrays([0, 35_000_000], np.zeros(35_000_000))})


def repeated_text():
    import pyarrow as pa

    return pa.table({"group_g": pa.DictionaryArray.from_arrays(np.zeros(100_000, np.int32), ["x" * 100_000])})


def one_long_text():
    import pyarrow as pa

    return pa.table({"group_g": ["x" * 280_000_000]})


def many_columns():
    import pyarrow as pa

    return pa.table({f"logit_{number}": np.zeros(1) for number in range(60_000)})


def pipe(name):
    def build(folder):
        os.mkfifo(folder / name)
        return folder / name

    return build


def folder_with(manifest):
    def build(folder):
        path = Predictions(logits=LOGITS).save(folder / "dump")
        (path / "manifest.json").write_text(manifest)
        return path

    return build


def endless(folder):
    """A manifest that names a device."""
    path = Predictions(logits=LOGITS).save(folder / "dump")
    (path / "logits.npy").unlink()
    (path / "logits.npy").symlink_to("/dev/zero")
    return path


DEEP = "[" * 100_000
FAMILIES = {
    "a deflated bomb": deflated,
    "a bomb that announces little": lying_zip(10),
    "a member that announces much": lying_zip(0xFFFF_FFF0),
    "a damaged LZMA member": damaged_lzma,
    "a shape of 2 to the 70": member(npy((2**70, 1))),
    "a shape of no bytes": member(npy((10**12,), "<U0", b"")),
    "65 dimensions": member(npy((1,) * 65)),
    "a negative shape": member(npy((-8, -1))),
    "a shape of truth": member(npy((True, 8))),
    "a type of structures": member(npy((8,), "i4,f4")),
    "a type that is none": member(npy((8,), "zz9")),
    "an enormous type": member(npy((1,), "<U999999999999")),
    "a deep header": member(npy("(" * 3000)),
    "a long header": member(npy((8, 1), content=b"").replace(b"v\x00", b"\xff\xff")),
    "no member": raw("a.npz", zipped()),
    "a deep safetensors header": safetensors(DEEP.encode()),
    "a safetensors shape of 2 to the 70": safetensors({"logits": tensor(shape=(2**70, 0))}),
    "a safetensors shape of 65 dimensions": safetensors({"logits": tensor(shape=(1,) * 65, offsets=(0, 4))}),
    "safetensors offsets of text": safetensors({"logits": tensor(offsets=("a", "b"))}),
    "a safetensors number of 5000 digits": safetensors(b'{"logits": {"data_offsets": [0, ' + b"9" * 5000 + b"]}}"),
    "a safetensors header of 4 GB": raw("a.safetensors", (1 << 32).to_bytes(8, "little") + b"{}"),
    "a deep manifest": folder_with('{"arrays": ' + DEEP),
    "a manifest of a list": folder_with("[1]"),
    "a manifest with a null in a name": folder_with('{"arrays": {"a": {"file": "x\\u0000", "bytes": 1, "crc32": 1}}}'),
    "a name of two lines": raw("a.npz", zipped(**{"two\nlines__npy": b"x"})),
    "a manifest of other types": folder_with(
        json.dumps({"arrays": {"logits": {"file": 3, "bytes": "x", "crc32": []}}})
    ),
    "an array that is a device": endless,
    "a large Parquet table": many_rows,
    "one long list": parquet(one_long_list),
    "one text many times": parquet(repeated_text),
    "one long text": parquet(one_long_text, compression="zstd", use_dictionary=False, write_statistics=False),
    "60,000 columns": parquet(many_columns, use_dictionary=False, write_statistics=False),
    "100,000 columns of text": raw("a.csv", ",".join(f"logit_{number}" for number in range(100_000)) + "\n"),
    "a name over 131 kB": raw("a.csv", "x" * 140_000 + ",label\n1,2\n"),
    "a cell over 131 kB": raw("a.csv", "label,group_g\n1," + "x" * 140_000 + "\n"),
    "a cell over a megabyte": raw("a.csv", "label,group_g\n1," + "x" * 3_000_000 + "\n"),
    "an open quote in the names": raw("a.csv", '"label,u_a\n' + "1,2\n" * 100_000),
    "an open quote in a cell": raw("a.csv", 'label,group_g\n1,"x\n' + "1,2\n" * 100_000),
    "cells that are no UTF-8": raw("a.csv", b"label,group_g\n1,\xff\xfe\n"),
    "labels that are no UTF-8": raw("a.csv", b"label,u_a\n\xff\xfe,1\n"),
    "nulls in a table": raw("a.csv", b"label,u_a\n\0,1\n"),
    "carriage returns alone": raw("a.csv", b"label,u_a\r1,2\r2,3\r"),
    "a number of 10,000 digits": raw("a.csv", "label,u_a\n" + "9" * 10_000 + ",1\n"),
    "a column number of 5000 digits": raw("a.csv", "label,logit_" + "9" * 5000 + "\n1,1\n"),
    **{f"a pipe as {ending}": pipe(f"a.{ending}") for ending in ("npz", "csv", "parquet", "safetensors", "pt", "npy")},
}
MADE_TO_BE_READ = ("a cell over 131 kB", "carriage returns alone")  # unusual, but sound


@pytest.fixture(scope="module")
def outcomes(tmp_path_factory):
    """name -> (path, MB, seconds, what was said), of one process that reads them all."""
    paths = {name: build(tmp_path_factory.mktemp("fire")) for name, build in FAMILIES.items()}
    command = [sys.executable, "-m", "tests.support.fuzzing", "load", *paths.values()]
    run = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=300)
    lines = [json.loads(line) for line in run.stdout.splitlines()]
    assert run.returncode == 0 and not run.stderr, f"{list(paths)[len(lines)]}: {run.stderr}"
    return {name: (paths[name], *line) for name, line in zip(paths, lines, strict=True)}


@pytest.mark.parametrize("name", FAMILIES)
def test_formats__a_file_made_to_break_the_reader(outcomes, name):
    path, megabytes, seconds, outcome = outcomes[name]
    assert megabytes < MB and seconds < SECONDS
    if name in MADE_TO_BE_READ:
        assert outcome == "read"
    else:
        assert outcome.startswith(f"{path}") and outcome.endswith(".") and "\n" not in outcome, outcome
        assert len(outcome) < len(str(path)) + 500


def test_formats__a_pipe_as_one_array(tmp_path):
    os.mkfifo(tmp_path / "a.npy")
    with pytest.raises(BadInput, match=r"a\.npy:.*regular file"):
        Predictions.from_files(logits=tmp_path / "a.npy")


def test_formats__a_wide_table_is_read(tmp_path):
    """As many classes as ImageNet-21k has."""
    wide = Predictions(logits=np.random.default_rng(0).normal(size=(2, 21_843)).astype(np.float32), labels=[0, 21_842])
    for ending in (".parquet", ".csv"):
        np.testing.assert_array_equal(Predictions.load(wide.save(tmp_path / f"a{ending}")).logits, wide.logits)


def test_formats__a_well_compressed_file_is_read(tmp_path):
    """Fifty times smaller than its arrays, but nothing that fills a memory."""
    np.savez_compressed(tmp_path / "a.npz", logits=np.zeros((100_000, 100), np.float32), labels=np.zeros(100_000, int))
    assert len(Predictions.load(tmp_path / "a.npz")) == 100_000


@pytest.mark.parametrize("ending", ["", ".safetensors"])
def test_formats__a_dump_that_is_cut_while_it_is_read_is_a_sentence(tmp_path, ending):
    path = Predictions(logits=np.zeros((200_000, 10)), labels=np.zeros(200_000, int)).save(tmp_path / f"dump{ending}")
    code = (
        "import os, sys; from nescio import BadInput, Predictions; from nescio.measures import summary\n"
        "p = Predictions.load(sys.argv[1]); os.truncate(sys.argv[2], 5000)\n"
        "try: summary(p)\n"
        "except BadInput as no: print(no)\n"
        "try: p.replace(labels=None)\n"
        "except BadInput as no: print(no)\n"
    )
    file = path if ending else path / "logits.npy"
    run = subprocess.run([sys.executable, "-c", code, path, file], capture_output=True, text=True)
    assert run.returncode == 0, run.stderr
    assert re.fullmatch("(.*truncated.*\n){2}", run.stdout), run.stdout


def fuzz(seconds, seed, *readers):
    command = [sys.executable, "-m", "tests.support.fuzzing", "fuzz", str(seconds), str(seed), *readers]
    run = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert run.returncode == 0, f"seed {seed}: {run.stdout} {run.stderr}"
    for line in run.stdout.splitlines():
        _, tried, _, megabytes = line.split()
        assert int(tried) > 0 and int(megabytes) < MB, line


def test_formats__random_damage():
    """Seconds of flips, cuts and swaps, the same ones every time."""
    fuzz(0.5, 0, *(reader for reader in READERS if reader not in TORCH))


def test_formats__random_damage_of_images_and_tensors():
    pytest.importorskip("torch")
    fuzz(0.3, 0, *TORCH)


@pytest.mark.slow
@pytest.mark.parametrize("reader", READERS)
def test_formats__random_damage_for_long(reader):
    """Minutes of damage, other every time; a failure names its seed."""
    fuzz(30, int.from_bytes(os.urandom(3), "little"), reader)


@pytest.mark.parametrize("start", [b"", b"label,prob_0\n", b"label,prob_0\n0,0.5"])
def test_formats__a_csv_without_line_ends_is_refused_at_once(tmp_path, start):
    file = tmp_path / "sparse.csv"
    with file.open("wb") as handle:
        handle.write(start)
        handle.truncate(1 << 35)
    with pytest.raises(BadInput, match="UTF-8"):
        Predictions.load(file)
    with file.open("wb") as handle:
        handle.write(start + b"1" * (17 << 20))
    with pytest.raises(BadInput, match="16,777,216"):
        Predictions.load(file)


def test_formats__more_classes_than_can_be_judged_are_refused():
    with pytest.raises(BadInput, match="100,001"):
        Predictions(logits=np.zeros((1, 100_001), np.float16))


def test_formats__small_votes_of_float16_give_no_warning():
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        votes = np.array([[65504, 0]], np.float16)
        assert Predictions(logits=np.zeros((1, 2)), annotations=votes).annotations is not None


@pytest.mark.parametrize(
    ("ending", "old", "new"),
    [
        ("npz", b"PK\1\2", b"PK\1\2"),
        ("safetensors", b'"format"', b'"Format"'),
        ("safetensors", b"nescio predictions", b"nescio predictionS"),
        ("safetensors", b'"nescio.sha256"', b'"nescio.Sha256"'),
        ("parquet", b"nescio", b"nescin"),
    ],
)
def test_formats__no_changed_byte_loses_class_names_silently(tmp_path, ending, old, new):
    names = ["cat", "dog"]
    path = Predictions(labels=[0, 1], logits=np.eye(2), class_names=names).save(tmp_path / f"a.{ending}")
    blob = bytearray(path.read_bytes())
    at = blob.index(old)
    blob[at : at + len(old)] = new
    if ending == "npz":  # the comment of the first member swallows the others
        blob[at + 33] = 1
    path.write_bytes(blob)
    with pytest.raises(BadInput):
        Predictions.load(path)


# ---- files of 50 GB without content are refused before every byte of them is read

SIZE = 50_000_000_000


@pytest.mark.parametrize("ending", [".parquet", ".npz", ".safetensors", ".csv", ".pt", ".npy", ".bin"])
def test_predictions_from_file__a_sparse_file_is_refused_before_its_checksum_is_taken(tmp_path, ending):
    path = tmp_path / f"zeros{ending}"
    path.touch()
    os.truncate(path, SIZE)
    before = time.process_time()
    with pytest.raises(BadInput, match="zeros"):
        predictions_from_file(path)
    assert time.process_time() - before < 5  # the checksum takes more than 20


def test_predictions_from_file__a_pipe_is_refused(tmp_path):
    os.mkfifo(tmp_path / "preds.npz")
    with pytest.raises(BadInput, match=r"preds\.npz"):
        predictions_from_file(tmp_path / "preds.npz")


def test_formats__a_small_table_of_many_labels_is_refused(tmp_path):
    import pyarrow as pa
    import pyarrow.parquet as pq

    pq.write_table(pa.table({"label": np.zeros(20_000_000, np.int64)}), tmp_path / "labels.parquet")
    with pytest.raises(BadInput, match="100 times its file"):
        Predictions.load(tmp_path / "labels.parquet")
