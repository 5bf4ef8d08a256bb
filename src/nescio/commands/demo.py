"""A first look in under a minute: small classifiers on scikit-learn's handwritten digits.

They learn the digits 0 to 5 and are then shown 6 to 9 as well. The demo saves their predictions, prints the scorecard
of one of them, compares all, and writes a page to look at. Nothing is downloaded.
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

import numpy as np

from nescio.commands._output import say
from nescio.predictions import Predictions, stack

TAUGHT = 6  # digits 0 to 5 are in-domain, 6 to 9 are not


def configure(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--to", metavar="DIR", default="demo", help="where to write (default: demo)")
    parser.add_argument("--seed", type=int, default=0, help="of the split and the classifiers (default: 0)")


def run(args: argparse.Namespace) -> int:
    from nescio import report
    from nescio.compare import compare
    from nescio.progress import track
    from nescio.scorecard import scorecard

    splits = digits(args.seed)
    folder = Path(args.to)
    say(
        "Three classifiers learn the handwritten digits 0 to 5. Then they also meet 6 to 9, which they cannot know.\n"
        "A model that knows what it does not know is less sure where it is wrong, and where it was never taught.\n"
    )
    cards, tests = [], {}
    for name, predict in track(classifiers(splits["train"], args.seed), "training", total=3):
        dumps = {split: predict(*data) for split, data in splits.items()}
        for split, dump in dumps.items():
            dump.save(folder / "predictions" / f"{name}-{split}.npz")
        ood = {"digits 6-9": dumps["out"]}
        cards.append(scorecard(dumps["test"], dumps["train"], dumps["val"], ood, name=name))
        tests[name] = dumps["test"]
    comparison = compare(tests, seed=args.seed)
    report.terminal(cards, comparison=comparison)
    page = report.write(folder, cards, comparison=comparison)
    say(f"\nThe page is {page}. The predictions lie in {folder / 'predictions'}; one of them again:")
    say(
        f"  nescio evaluate {folder / 'predictions' / 'network-test.npz'} --val {folder / 'predictions' / 'network-val.npz'}"
    )
    return 0


def digits(seed: int) -> dict[str, tuple[Any, Any]]:
    """(images, labels) of train, val, test (digits 0 to 5) and out (6 to 9)."""
    from sklearn.datasets import load_digits

    x, y = load_digits(return_X_y=True)
    x = x / 16.0
    rows = np.random.default_rng(seed).permutation(np.flatnonzero(y < TAUGHT))
    cuts = np.split(rows, [len(rows) // 2, 2 * len(rows) // 3])
    out = np.flatnonzero(y >= TAUGHT)
    return {
        split: (x[part], y[part]) for split, part in zip(("train", "val", "test", "out"), (*cuts, out), strict=True)
    }


def classifiers(train: tuple[Any, Any], seed: int) -> Any:
    """(name, (x, y) -> Predictions) of a linear model, a network and an ensemble of five networks."""
    import warnings

    from sklearn.exceptions import ConvergenceWarning
    from sklearn.linear_model import LogisticRegression
    from sklearn.neural_network import MLPClassifier

    linear = LogisticRegression(C=1.0).fit(*train)
    yield "linear", lambda x, y: _dump(y, linear.decision_function(x), x)

    def network(number: int) -> Any:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", ConvergenceWarning)  # 60 epochs are enough for a first look
            return MLPClassifier((64,), max_iter=60, random_state=seed * 100 + number).fit(*train)

    def answer(net: Any, x: Any, y: Any) -> Predictions:
        hidden = np.maximum(x @ net.coefs_[0] + net.intercepts_[0], 0)
        return _dump(y, hidden @ net.coefs_[1] + net.intercepts_[1], hidden)

    networks = [network(number) for number in range(5)]
    yield "network", lambda x, y: answer(networks[0], x, y)
    yield "ensemble", lambda x, y: stack([answer(net, x, y) for net in networks])


def _dump(labels: Any, logits: Any, embeddings: Any) -> Predictions:
    return Predictions(labels=labels, taught=labels < TAUGHT, logits=logits, embeddings=embeddings + 0.0)
