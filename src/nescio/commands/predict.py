"""What a trained network says about a split of its data, as a file for `nescio evaluate`.

KEY is what `nescio train` printed, or its first letters; `nescio runs` lists all. Methods that learn without labels
give embeddings alone. --probes adds what only a classifier's network can tell: the norm of the Jacobian (score
`jacobian`) and test-time augmentation (variant `tta`).

examples:
  nescio predict 3f2a --split test --to test.npz
  nescio predict 3f2a --split out --to out.npz --probes
  nescio evaluate test.npz --ood out=out.npz
"""

from __future__ import annotations

import argparse
import sys

from nescio.commands._output import say
from nescio.commands._study import add_place
from nescio.errors import BadInput
from nescio.store import Store, StoreError


def configure(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("key", metavar="KEY", help="of a trained network, or its first letters")
    parser.add_argument(
        "--split",
        choices=("test", "val", "out", "train"),
        default="test",
        help="test (default), val, out: test images of classes that were not taught, or train",
    )
    parser.add_argument("--to", metavar="FILE", required=True, help=".npz or .safetensors file, or a folder")
    parser.add_argument("--probes", action="store_true", help="Jacobian and test-time augmentation as well")
    parser.add_argument("--compile", action="store_true", help="torch.compile the network: worth it on large sets")
    add_place(parser)


def run(args: argparse.Namespace) -> int:
    from nescio import datasets
    from nescio.config import from_plain
    from nescio.methods import registry
    from nescio.predict import load_dump, predict, probe, split_of
    from nescio.runtime import runtime

    try:
        store = Store(args.store)
        key = whole(args.key, store)
        trial = from_plain(store.recipe("train", key)["recipe"], lambda name: registry[name].recipe_class)
        split_of(datasets.load(trial.data, args.root), trial, args.split)  # an empty one is said before any work
        here = runtime(args.device)
        found = None
        if args.probes:
            found = load_dump(probe([(key, trial)], [1.0], args.split, store, here, root=args.root), store)
        dump = load_dump(predict(key, trial, args.split, store, here, root=args.root, compile=args.compile), store)
        if found is not None:
            dump = dump.replace(scores={**dump.scores, **found.scores}, variants={**dump.variants, **found.variants})
    except StoreError as error:
        print(f"nescio predict: {error}", file=sys.stderr)
        return 1
    dump.save(args.to)
    say(f"{args.to} holds what {key} says about {len(dump)} images ({args.split}).")
    return 0


def whole(start: str, store: Store) -> str:
    """The key of the one finished network that begins with these letters."""
    runs = [each for each in store.runs() if each.stage == "train" and each.key.startswith(start)]
    found = [each.key for each in runs if each.state == "finished"]
    if len(found) > 1:
        raise BadInput(f"Several trained networks begin with {start}: {', '.join(found)}.")
    if not found:
        state = f"it is {runs[0].state}" if runs else "`nescio runs` lists what there is"
        raise BadInput(f"There is no trained network {start} in {store.root}: {state}.")
    return found[0]
