"""Trains one network and keeps it in the store, under a key that is a function of everything said here.

A finished one says so at once. A killed one goes on from its last checkpoint when the same command is given again.
Several processes: torchrun --nproc-per-node 2 -m nescio train …

examples:
  nescio train --method erm --data digits --backbone conv --epochs 20
  nescio train --method mc-dropout --data cifar10 --backbone resnet18 --recipe drop=0.2 passes=20
  nescio train --method due --data digits --classes 0-5 --spectral 5 --log tensorboard:logs
"""

from __future__ import annotations

import argparse
import ast
import sys
from dataclasses import fields, replace
from typing import Any

from nescio.commands._output import say
from nescio.commands._study import add_place, numbers
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
    budget = parser.add_argument_group("budget")
    budget.add_argument("--epochs", type=int, default=PLAN.epochs, help=f"(default: {PLAN.epochs})")
    budget.add_argument(
        "--batch", type=int, help=f"rows of a step (default: {PLAN.batch}; fewer than 4096 training rows: a sixteenth)"
    )
    budget.add_argument("--rate", type=float, default=PLAN.rate, help=f"learning rate (default: {PLAN.rate:g})")
    budget.add_argument("--momentum", type=float, default=PLAN.momentum, help=f"of SGD (default: {PLAN.momentum:g})")
    budget.add_argument("--decay", type=float, default=PLAN.decay, help=f"weight decay (default: {PLAN.decay:g})")
    budget.add_argument("--optimizer", choices=("sgd", "adamw", "lamb"), default=PLAN.optimizer, help="(default: sgd)")
    budget.add_argument(
        "--schedule", choices=("step", "cosine", "constant"), default=PLAN.schedule, help="of the rate (default: step)"
    )
    budget.add_argument(
        "--every",
        type=int,
        default=PLAN.every,
        metavar="E",
        help=f"step: rate ÷ 10 every E epochs (default: {PLAN.every})",
    )
    budget.add_argument(
        "--warmup", type=float, default=PLAN.warmup, metavar="E", help="epochs over which the rate rises (default: 0)"
    )
    budget.add_argument("--clip", type=float, help="largest norm of the gradient (default: none)")
    budget.add_argument(
        "--augment",
        choices=("none", "shift", "crop-flip", "full"),
        help="(default: crop-flip; images of one channel, such as digits, which have no mirror image: shift)",
    )
    speed = parser.add_argument_group("speed and memory")
    speed.add_argument(
        "--accumulate",
        type=int,
        default=PLAN.accumulate,
        metavar="A",
        help="parts of a batch, one after the other (default: 1)",
    )
    speed.add_argument(
        "--precision", choices=("auto", "float32", "bf16"), default="auto", help="auto: bf16 on a GPU (default: auto)"
    )
    speed.add_argument("--compile", action="store_true", help="compile the network with torch.compile")
    parser.add_argument("--log", metavar="KIND:PLACE", help="tensorboard:DIR or wandb:PROJECT")
    add_place(parser)


def run(args: argparse.Namespace) -> int:
    from nescio import datasets
    from nescio.commands._watch import watching
    from nescio.runtime import leave, runtime
    from nescio.store import Busy, Store, StoreError
    from nescio.training import Diverged, key_of, train

    trial = trial_of(args)
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


def trial_of(args: argparse.Namespace) -> Trial:
    """The trial that the options describe; a wrong one is a sentence."""
    from nescio import datasets
    from nescio.methods import registry

    method = registry[args.method]
    dataset = datasets.load(args.data, args.root)
    classes = numbers(args.classes) if args.classes else None
    rows = len(datasets.splits(dataset, classes, args.data_seed).train)
    if args.trial < 0:
        raise BadInput(f"--trial is a number from 0 on, not {args.trial}.")
    training = Training(
        optimizer=args.optimizer,
        rate=args.rate,
        momentum=args.momentum,
        decay=args.decay,
        epochs=args.epochs,
        batch=args.batch if args.batch is not None else usual_batch(rows, args.accumulate),
        schedule=args.schedule,
        every=args.every,
        warmup=args.warmup,
        accumulate=args.accumulate,
        clip=args.clip,
        augment=args.augment or ("shift" if dataset.channels == 1 else "crop-flip"),
        precision=args.precision,
        compile=args.compile,
    )
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
