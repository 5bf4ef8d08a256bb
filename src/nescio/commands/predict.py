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

import sys
from dataclasses import dataclass
from typing import Literal

from nescio.commands._output import say
from nescio.commands._work import PlaceOptions
from nescio.errors import BadInput
from nescio.options import REQUIRED, argument, nested, option
from nescio.work.store import Store, StoreError


@dataclass(frozen=True, kw_only=True)
class Options:
    key: str = argument("of a trained network, or its first letters", metavar="KEY")
    split: Literal["test", "val", "out", "train"] = option(
        "test", "out: test images of classes that were not in training"
    )
    to: str = option(REQUIRED, ".npz or .safetensors file, or a folder", metavar="FILE")
    probes: bool = option(False, "Jacobian and test-time augmentation as well")
    compile: bool = option(False, "torch.compile the network: worth it on large sets")
    place: PlaceOptions = nested(PlaceOptions())


def run(options: Options) -> int:
    from nescio import datasets
    from nescio.methods import registry
    from nescio.predict import load_dump, predict, probe, split_of
    from nescio.runtime import runtime
    from nescio.trials import from_plain

    try:
        store = Store(options.store)
        key = whole(options.key, store)
        trial = from_plain(store.recipe("train", key)["recipe"], lambda name: registry[name].recipe_class)
        split_of(datasets.load(trial.data, options.root), trial, options.split)  # an empty one is said before any work
        here = runtime(options.device)
        found = None
        if options.probes:
            found = load_dump(probe([(key, trial)], [1.0], options.split, store, here, root=options.root), store)
        dump = load_dump(
            predict(key, trial, options.split, store, here, root=options.root, compile=options.compile), store
        )
        if found is not None:
            dump = dump.replace(scores={**dump.scores, **found.scores}, variants={**dump.variants, **found.variants})
    except StoreError as error:
        print(f"nescio predict: {error}", file=sys.stderr)
        return 1
    dump.save(options.to)
    say(f"{options.to} holds what {key} says about {len(dump)} images ({options.split}).")
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
