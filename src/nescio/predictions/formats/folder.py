"""Predictions as a folder of .npy arrays, with a manifest of their sizes and checksums."""

from __future__ import annotations

import hashlib
import json
import os
import zlib
from collections.abc import Mapping
from pathlib import Path
from urllib.parse import quote

from nescio.errors import BadInput
from nescio.files import atomic_write, flush, flush_folder, read_json
from nescio.predictions.formats.npy import map_npy, write_npy
from nescio.predictions.names import FieldNames, FlatFields, printable
from nescio.predictions.outputs import Predictions
from nescio.predictions.readers import FORMAT

MANIFEST, VERSION, CHECKSUM = "manifest.json", 1, "sha256"


def read_folder(folder: Path, names: FieldNames) -> FlatFields:
    """Memory-mapped arrays, checked against the sizes and checksums of the manifest."""
    manifest_file = folder / MANIFEST
    try:
        manifest = read_json(manifest_file)
        arrays = {
            key: (str(entry["file"]), entry["bytes"], entry["crc32"]) for key, entry in manifest["arrays"].items()
        }
    except (ValueError, KeyError, TypeError, AttributeError):
        raise BadInput(f"{MANIFEST} does not list the arrays: save the folder again.") from None
    if manifest.get("version", VERSION) != VERSION:
        raise BadInput(
            f"{MANIFEST} has version {printable(str(manifest['version']))}, this nescio reads {VERSION}: update nescio."
        )
    unknown = set(manifest) - {"format", "version", "normalized", "arrays", CHECKSUM}
    if unknown or manifest.get(CHECKSUM, checksum := _manifest_checksum(manifest)) != checksum:
        raise BadInput(f"the content of {MANIFEST} does not match its checksum: it was changed or damaged.")
    flat: FlatFields = {"normalized": manifest.get("normalized", False)}
    for key, (name, size, checksum) in arrays.items():
        field = names.field(key)
        if field is None:
            continue
        file = folder / name
        if Path(os.path.realpath(folder)) not in Path(os.path.realpath(file)).parents:
            raise BadInput(f"{MANIFEST} names {printable(name)}, which is outside the folder.")
        if not file.is_file():
            raise BadInput(f"{printable(name)} is missing, though {MANIFEST} lists it: the folder is incomplete.")
        if file.stat().st_size != size:
            raise BadInput(f"{name} has {file.stat().st_size} bytes, {size} in {MANIFEST}: the folder is incomplete.")
        if _checksum(file) != checksum:
            raise BadInput(f"{name} does not match its checksum in {MANIFEST}: it was changed or damaged.")
        flat[field] = map_npy(file)
    names.check(arrays)
    return flat


def _manifest_checksum(manifest: Mapping[str, object]) -> str:
    """The checksum of the names, files and checksums of all arrays."""
    content = {key: value for key, value in manifest.items() if key != CHECKSUM}
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()


def _checksum(file: Path) -> int:
    value = 0
    with file.open("rb") as handle:
        while chunk := handle.read(1 << 20):
            value = zlib.crc32(chunk, value)
    return value


def write_folder(predictions: Predictions, target: Path, durable: bool) -> None:
    if target.exists() and not target.is_dir():
        raise BadInput("there is a file of that name: give another name to the folder.")
    if target.is_dir() and any(target.iterdir()) and not (target / MANIFEST).is_file():
        raise BadInput("the folder contains other files than predictions: give another name.")
    with atomic_write(target, durable) as temporary:
        temporary.mkdir()
        arrays = {}
        for key, array in predictions.flat().items():
            field, _, name = key.partition("/")
            file = temporary / (f"{field}/{quote(name, safe=' ')}.npy" if name else f"{field}.npy")
            file.parent.mkdir(exist_ok=True)
            with file.open("xb") as handle:
                write_npy(handle, array)
                if durable:
                    flush(handle)
            arrays[key] = {
                "file": file.relative_to(temporary).as_posix(),
                "bytes": file.stat().st_size,
                "crc32": _checksum(file),
            }
        manifest: dict[str, object] = {
            "format": FORMAT,
            "version": VERSION,
            "normalized": predictions.normalized,
            "arrays": arrays,
        }
        manifest[CHECKSUM] = _manifest_checksum(manifest)
        with (temporary / MANIFEST).open("xb") as handle:
            handle.write(json.dumps(manifest, indent=1, ensure_ascii=False).encode())
            if durable:
                flush(handle)
        for folder in {file.parent for file in temporary.rglob("*")} if durable else ():
            flush_folder(folder)
