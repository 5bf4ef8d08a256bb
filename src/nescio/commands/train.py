"""Trains one network and keeps it in the store, under a key that is a function of everything said here.

A finished one says so at once. A killed one goes on from its last checkpoint when the same command is given again.
Several processes: torchrun --nproc-per-node 2 -m nescio train …
--members M trains M networks that differ in their seed alone, on --workers processes; one that fails costs itself only.

examples:
  nescio train --method erm --data digits --backbone conv --epochs 20
  nescio train --method mc-dropout --data cifar10 --backbone resnet18 --recipe drop=0.2 passes=20
  nescio train --method due --data digits --classes 0-5 --spectral 5 --log tensorboard:logs
  nescio train --method simclr --data cifar10 --backbone resnet18 --batch 512 --schedule cosine --members 10
"""

from __future__ import annotations

import argparse
import ast
import json
import os
import sys
from contextlib import closing
from dataclasses import fields, replace
from functools import partial
from typing import Any

from nescio.commands._output import say
from nescio.commands._study import Lines, add_budget, add_log, add_place, budget_of, numbers
from nescio.config import Training, Trial, draw
from nescio.errors import BadInput

PLAN = Training()


def configure(parser: argparse.ArgumentParser) -> None:
    what = parser.add_argument_group("what")
    what.add_argument("--method", default="erm", help="see `nescio methods` (default: erm)")
    what.add_argument(
        "--recipe",
        nargs="+",
        default=[],
        metavar="FIELD=VALUE",
        help="settings of the method; see `nescio methods NAME`",
    )
    what.add_argument(
        "--trial",
        type=int,
        default=0,
        metavar="T",
        help="0: the method's defaults; others: drawn from its search ranges",
    )
    what.add_argument("--data", default="digits", help="digits, cifar10, folder:PATH, npz:PATH … (default: digits)")
    what.add_argument("--classes", metavar="LIST", help="in-domain classes, as 0-5,7 (default: all)")
    what.add_argument("--backbone", default="conv", help="mlp, conv, resnet18 or any timm name (default: conv)")
    what.add_argument(
        "--spectral", metavar="TARGET", help="bounds how far a layer can stretch; none: off (default: none; due: 3)"
    )
    what.add_argument(
        "--data-seed", type=int, default=0, metavar="S", help="of the train/validation split (default: 0)"
    )
    what.add_argument("--init-seed", type=int, default=0, metavar="S", help="of the initial weights (default: 0)")
    what.add_argument(
        "--members", type=int, default=1, metavar="M", help="networks, of init seeds S to S + M − 1 (default: 1)"
    )
    add_budget(
        parser,
        {"default": PLAN},
        batch=f"default: {PLAN.batch}; fewer than 4096 training rows: a sixteenth",
        augment="default: crop-flip; images of one channel, such as digits, which have no mirror image: shift; "
        "methods that compare views: full",
    )
    add_log(parser, "loss, rate and pace of this training")
    parser.add_argument(
        "--workers",
        type=int,
        help="processes that train members (default: one a core, one on a GPU); 0: this process",
    )
    add_place(parser)


def run(args: argparse.Namespace) -> int:
    from nescio import datasets
    from nescio.commands._watch import watching
    from nescio.runtime import leave, runtime
    from nescio.store import Busy, Store, StoreError
    from nescio.training import Diverged, key_of, train

    trial = trial_of(args)
    if args.members != 1:
        return _ensemble(trial, args)
    here = runtime(args.device)
    store = Store(args.store)
    key = key_of(trial, datasets.load(args.data, args.root), store)
    place = store.path("train", key)
    known = store.finished("train", key)
    try:
        about = {**trial.describe(), "key": key}
        with watching(f"{args.method} on {args.data}", args.log, about, silent=known or here.rank > 0) as watch:
            train(trial, store, here, root=args.root, checkpoint_seconds=args.checkpoint_seconds, watch=watch)
    except (Diverged, StoreError, Busy) as error:
        print(f"nescio train: {error} The trial is {key}.", file=sys.stderr)
        return 1
    finally:
        leave()
    if here.rank == 0:
        say(f"{key} was finished before, in {place}" if known else f"{key} is finished, in {place}")
    return 0


def _ensemble(trial: Trial, args: argparse.Namespace) -> int:
    """Trains networks that differ in their init seed; 1 when one of them failed."""
    from nescio import datasets
    from nescio.commands._study import workers_of
    from nescio.store import Store
    from nescio.sweep import Task, sweep
    from nescio.training import key_of

    if args.members < 1:
        raise BadInput(f"--members is a number from 1 on, not {args.members}.")
    if args.log:
        raise BadInput("--log watches one network: leave it away with --members.")
    if int(os.environ.get("WORLD_SIZE", 1)) > 1:
        raise BadInput("--members trains every network in a process of its own: start it without torchrun.")
    store, dataset = Store(args.store), datasets.load(args.data, args.root)
    members = [replace(trial, init_seed=trial.init_seed + number) for number in range(args.members)]
    keys = {each.init_seed: key_of(each, dataset, store) for each in members}
    known = {seed for seed, key in keys.items() if store.finished("train", key)}
    place = (args.store, args.root, args.device, args.checkpoint_seconds)
    tasks = [
        Task(f"init seed {each.init_seed}", _member, (each, *place), _member_died)
        for each in members
        if each.init_seed not in known
    ]
    workers = workers_of(args)
    with closing(Lines(workers)) as lines:
        failures = sweep(tasks, workers, partial(lines, "train"))
    for seed, key in keys.items():
        if store.finished("train", key):
            say(f"{key} {'was finished before' if seed in known else 'is finished'}, in {store.path('train', key)}")
    for failure in failures:
        print(f"nescio train: {failure.task.name}: {failure.reason}", file=sys.stderr)
    return 1 if failures else 0


def _member(trial: Trial, store: str, root: str | None, device: str, checkpoint_seconds: float) -> dict[str, Any]:
    """What one worker does; returns what it cost."""
    from nescio.runtime import runtime
    from nescio.store import Store
    from nescio.training import train

    here = Store(store)
    key = train(trial, here, runtime(device), root=root, checkpoint_seconds=checkpoint_seconds, wait=False)
    return dict(json.loads((here.path("train", key) / "facts.json").read_text()))


def _member_died(reason: str, trial: Trial, store: str, root: str | None, *_: Any) -> None:
    from nescio import datasets
    from nescio.store import Store
    from nescio.training import VERSION

    revision = datasets.load(trial.data, root).revision
    Store(store).fail("train", trial, reason, parents=(revision,), version=VERSION)


def trial_of(args: argparse.Namespace) -> Trial:
    """The trial that the options describe; a wrong one is a sentence."""
    from nescio import datasets
    from nescio.methods import registry
    from nescio.training import check_batch, check_views

    method = registry[args.method]
    dataset = datasets.load(args.data, args.root)
    classes = numbers(args.classes) if args.classes else None
    rows = len(datasets.splits(dataset, classes, args.data_seed).train)
    if args.trial < 0:
        raise BadInput(f"--trial is a number from 0 on, not {args.trial}.")
    said = budget_of(args)
    usual: dict[str, Any] = {
        "batch": usual_batch(rows, said.get("accumulate", PLAN.accumulate)),
        "augment": method.augment or ("shift" if dataset.channels == 1 else "crop-flip"),
    }
    training = Training(**usual | said)
    check_batch(training, rows)
    check_views(training, method.views)
    return Trial(
        method=args.method,
        recipe=recipe_of(draw(method.recipe_class, args.trial), args.recipe, args.method),
        data=args.data,
        classes=classes,
        backbone=args.backbone,
        spectral=target(args.spectral, method.spectral_default),
        training=training,
        trial=args.trial,
        data_seed=args.data_seed,
        init_seed=args.init_seed,
    )


def usual_batch(rows: int, parts: int = 1) -> int:
    """256, or for fewer than 4096 rows the largest power of two that is at most a sixteenth of them."""
    batch = PLAN.batch
    while batch > rows / 16 and batch > max(8, parts):
        batch //= 2
    return batch


def target(word: str | None, default: float | None) -> float | None:
    """`none` → None, `5` → 5.0."""
    if word is None or word in ("none", "off"):
        return default if word is None else None
    try:
        return float(word)
    except ValueError:
        raise BadInput(f"--spectral is a number above 0, or none, not {word!r}.") from None


def recipe_of(recipe: Any, words: list[str], method: str) -> Any:
    """The recipe with FIELD=VALUE words put in."""
    names = [each.name for each in fields(recipe)]
    given: dict[str, Any] = {}
    for word in words:
        name, equals, text = word.partition("=")
        if not (name and equals and text):
            raise BadInput(f"--recipe takes FIELD=VALUE, not {word!r}.")
        if name not in names:
            raise BadInput(f"The method {method} has no setting {name!r}. It has: {', '.join(names)}.")
        if name in given:
            raise BadInput(f"--recipe names {name} twice.")
        try:
            given[name] = ast.literal_eval(text)
        except (ValueError, SyntaxError):
            given[name] = text
    return replace(recipe, **given)
