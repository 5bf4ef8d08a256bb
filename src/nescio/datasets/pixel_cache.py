"""A cache of decoded pixels, shared by all models with equal preprocessing: a memory-mapped uint8 array in the store.

store/pixels/<key>/pixels.npy   (n, height, width, channels), one row per image
"""

from __future__ import annotations

import errno
import json
import multiprocessing
import os
import shutil
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Executor, Future, ProcessPoolExecutor, ThreadPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from pathlib import Path
from typing import TYPE_CHECKING, TypeAlias

import numpy as np
from numpy.typing import NDArray

from nescio.arrays.parallel import blocks, thread_count
from nescio.arrays.types import Array
from nescio.datasets import decode
from nescio.datasets.decode import Source
from nescio.datasets.image_set import LoadedImages
from nescio.datasets.view import View
from nescio.errors import BadInput
from nescio.files import read_list
from nescio.progress import track
from nescio.work.locks import WORK
from nescio.work.step_folder import StepFolder
from nescio.work.store import Store
from nescio.work.store_errors import StoreError
from nescio.work.versions import PIXELS as VERSION

if TYPE_CHECKING:
    from PIL.Image import Image

STAGE, FILE = "pixels", "pixels.npy"
DAMAGED = "damaged"  # stage of the list of unreadable images of a set, and its file
BLOCK = 64  # images that one worker decodes at a time
PROCESSES = 1024  # number of images above which processes are faster than threads
SAVE_SECONDS = 10.0  # between two updates of the list of decoded images
NAMED = 5  # maximum number of unreadable images named in a message
SMALLEST = View(1, 1, "trained")  # view of the check for damage, whose pixels are not stored
Unreadable: TypeAlias = list[tuple[int, str]]  # rows with the reasons


class UnreadableImages(BadInput):
    """Some images of a set cannot be read."""


def decode_pixels(source: Source, view: View) -> NDArray[np.uint8]:
    """One image as (height, width, channels)."""
    from PIL.Image import fromarray

    if view.mode == "trained":
        image = fromarray(decode.decode(source, view.size, view.crop, height=view.height))
    else:
        image = _middle(_resized(decode.rgb(source), view), view)
    if view.channels == 1:
        return np.asarray(image.convert("L"))[..., None]
    return np.asarray(image)


def _resized(image: Image, view: View) -> Image:
    """Rounded as by torchvision (shorter side) and timm (longer side), with which the weights were evaluated."""
    from PIL.Image import Resampling

    w, h = image.size
    if view.mode == "squash":
        goal = view.resize, view.resize
    elif view.mode == "border":
        goal = round(w / (max(w, h) / view.resize)), round(h / (max(w, h) / view.resize))
    else:
        longer = int(view.resize * max(w, h) / min(w, h))
        goal = (view.resize, longer) if w <= h else (longer, view.resize)
    return image if goal == (w, h) else image.resize(goal, Resampling[view.interpolation.upper()])


def _middle(image: Image, view: View) -> Image:
    """The central square; pixels outside the image are filled."""
    from PIL.Image import new

    w, h = image.size
    if w < view.size or h < view.size:
        filled = new("RGB", (max(w, view.size), max(h, view.size)), view.fill)
        filled.paste(image, (max(0, view.size - w) // 2, max(0, view.size - h) // 2))
        image, (w, h) = filled, filled.size
    left, top = round((w - view.size) / 2), round((h - view.size) / 2)
    return image.crop((left, top, left + view.size, top + view.size))


# ---- the cache


def cache_key(images: LoadedImages, view: View, store: Store) -> str:
    return store.key(STAGE, _config(images, view), parents=(images.revision,), version=VERSION)


def _config(images: LoadedImages, view: View) -> dict[str, View | str]:
    return {"view": view, "rows": images.rows}


def cache_pixels(images: LoadedImages, view: View, store: Store) -> Path:
    """Decode the pixels of images under a view once; return the path of the array."""
    title = f"{images.name} at {view}"
    with store.work(STAGE, _config(images, view), (images.revision,), VERSION, title=title) as step_folder:
        if step_folder is not None:
            if unreadable := _decode_remaining(step_folder, images, view, "decoding images"):
                raise UnreadableImages(_unreadable_message(images, unreadable))
            os.replace(step_folder.path / WORK / FILE, step_folder.path / FILE)
    key = cache_key(images, view, store)
    store.verify(STAGE, key)
    return store.path(STAGE, key) / FILE


def readable_images(images: LoadedImages, store: Store) -> tuple[LoadedImages, str]:
    """The readable images, and a message about the others ("" if there are none).

    Decodes every image once before prediction, so that all networks get the same rows. The store keeps the list of
    damaged rows until the revision of the set changes.
    """
    with store.work(DAMAGED, {"rows": images.rows}, (images.revision,), VERSION, title=images.name) as step_folder:
        if step_folder is not None:
            unreadable = _decode_remaining(step_folder, images, SMALLEST, "checking images for damage")
            step_folder.write(DAMAGED, json.dumps(sorted(row for row, _ in unreadable)).encode())
    key = store.key(DAMAGED, {"rows": images.rows}, parents=(images.revision,), version=VERSION)
    rows = read_list(store.path(DAMAGED, key) / DAMAGED)
    if not rows:
        return images, ""
    if len(rows) == len(images):
        raise BadInput(f"No image of {images.name} can be read.")
    kept = images.take(np.setdiff1d(np.arange(len(images)), rows))
    omitted = f"{len(rows):,} of {len(images):,} images of {images.name} cannot be read and are left out"
    return kept, f"{omitted}: {_names(images, rows)}."


def remove_cached_pixels(images: LoadedImages, view: View, store: Store) -> None:
    """Remove the cached pixels."""
    shutil.rmtree(store.path(STAGE, cache_key(images, view, store)), ignore_errors=True)


def _decode_remaining(step_folder: StepFolder, images: LoadedImages, view: View, title: str) -> Unreadable:
    """Decode the images that a killed process left, with a title for their progress. Return the unreadable rows."""
    n, draft = len(images), step_folder.path / WORK / FILE
    checkpoint, done = step_folder.load_checkpoint(), np.zeros(n, bool)
    if checkpoint is not None and draft.is_file() and draft.stat().st_size >= n * view.bytes:
        done = np.array(checkpoint.tensors["done"], bool)
    left = decoding_blocks(np.flatnonzero(~done))
    if not done.any():
        _make_room(draft, (n, *view.shape, view.channels), step_folder.goal.parent.parent)
    saved = time.monotonic()
    unreadable: Unreadable = []
    many = sum(map(len, left)) >= PROCESSES and not multiprocessing.current_process().daemon
    for rows, bad in track(decode_blocks(draft, images.source, left, view, processes=many), title, len(left)):
        done[rows] = True
        done[[row for row, _ in bad]] = False
        unreadable += bad
        if step_folder.due(saved, SAVE_SECONDS):
            _save(step_folder, draft, done)
            saved = time.monotonic()
    if unreadable:
        _save(step_folder, draft, done)
    return unreadable


def _save(step_folder: StepFolder, draft: Path, done: NDArray[np.bool_]) -> None:
    """Flush the pixels to the disk, then mark their rows as decoded."""
    with draft.open("rb") as file:
        os.fsync(file.fileno())
    step_folder.save_checkpoint({"done": done}, {})


def _make_room(draft: Path, shape: tuple[int, ...], root: Path) -> None:
    """Create an empty array of this shape with allocated disk space: writing to a sparse file on a full disk kills the
    process."""
    need, free = int(np.prod(shape)), shutil.disk_usage(root).free
    if need > free:
        raise StoreError(
            f"The pixels of {shape[0]:,} images need {_format_bytes(need)}, and {root} has {_format_bytes(free)} left: "
            "make room, name another store, or take fewer images."
        )
    np.lib.format.open_memmap(draft, mode="w+", dtype=np.uint8, shape=shape).flush()
    with draft.open("r+b") as file:
        try:
            os.posix_fallocate(file.fileno(), 0, os.fstat(file.fileno()).st_size)
        except OSError as error:
            if error.errno not in (errno.EOPNOTSUPP, errno.ENOSYS, errno.EINVAL):  # allocation is unsupported
                raise


def decoding_blocks(rows: Array) -> list[Array]:
    return [rows[block] for block in blocks(len(rows), BLOCK)]


def decode_blocks(
    file: Path,
    source: Callable[[int], Source],
    left: Sequence[Array],
    view: View,
    processes: bool = False,
    workers: int | None = None,
) -> Iterator[tuple[Array, Unreadable]]:
    """Decode blocks of rows into the file; yield (rows, unreadable rows) as blocks complete."""
    workers = workers or thread_count()
    pool: Executor = ThreadPoolExecutor(workers)
    if processes:  # forked where available: workers need no thread or GPU of the parent, and start at once
        kind = "fork" if sys.platform == "linux" else "spawn"
        pool = ProcessPoolExecutor(workers, mp_context=multiprocessing.get_context(kind))
    with pool:
        waiting, running = iter(left), dict[Future[Unreadable], Array]()
        try:
            while True:
                while len(running) < 4 * workers and (rows := next(waiting, None)) is not None:
                    sources = [source(row) for row in rows.tolist()]
                    running[pool.submit(_decode_block, str(file), rows, sources, view)] = rows
                if not running:
                    return
                for future in wait(running, return_when=FIRST_COMPLETED).done:
                    yield running.pop(future), future.result()
        except BrokenProcessPool:
            raise StoreError("A process that decodes images was killed; most often no memory was left.") from None
        finally:
            pool.shutdown(wait=True, cancel_futures=True)


def _decode_block(file: str, rows: Array, sources: Sequence[Source], view: View) -> Unreadable:
    """Write the pixels of these images to their rows; return the unreadable ones."""
    pixels, bad = np.load(file, mmap_mode="r+"), []
    for row, source in zip(rows.tolist(), sources, strict=True):
        try:
            pixels[row] = decode_pixels(source, view)
        except BadInput as error:
            bad.append((row, str(error)))
    return bad


def _unreadable_message(images: LoadedImages, unreadable: Unreadable) -> str:
    (row, reason), *others = sorted(unreadable)
    if not isinstance(images.source(row), str):
        reason = reason.replace("An encoded image", f"Image {images.index[row]} of {images.name}", 1)
    if not others:
        return reason
    return f"{reason.rstrip('.')}; nor can {_names(images, [row for row, _ in others])}."


def _names(images: LoadedImages, rows: Sequence[int]) -> str:
    sources = {row: images.source(row) for row in rows[:NAMED]}
    names = [name if isinstance(name, str) else f"image {images.index[row]}" for row, name in sources.items()]
    more = f" and {len(rows) - NAMED:,} more" if len(rows) > NAMED else ""
    return f"{', '.join(names)}{more}"


def _format_bytes(count: float) -> str:
    for unit in ("bytes", "kB", "MB", "GB"):
        if count < 1000:
            return f"{count:.3g} {unit}"
        count /= 1000
    return f"{count:.3g} TB"
