"""A paper's whole protocol: train or read, predict, evaluate, tables and page.

Everything finished lies in the store: run the same command again and only what is missing is done. Kill it at any time.
Several runs may share one store, at once; nothing is done twice. A network that fails costs its line, never the others.

examples:
  nescio run uimnet --data digits --methods all --trials 3 --seeds 2 --workers 2
  nescio run selective vit.npz resnet=r50.npz
  nescio run cood --pair resnet=cifar10.npz,cifar100.npz --estimation 40 --test 20
  nescio run reliability --data digits --methods simclr,moco --members 3
  nescio run uimnet --help                         what a protocol can be told
"""

from __future__ import annotations

import argparse
from importlib import import_module

PROTOCOLS = {
    "uimnet": "what classifiers know what they don't know: methods, measures, ensembles, on classes in and out",
    "selective": "which models know when they are wrong: many models' answers to the same images, compared",
    "cood": "which models notice classes that they were never taught, from easy to hard for each of them",
    "reliability": "which representations can be trusted: scores without labels against heads that had them",
}


def configure(parser: argparse.ArgumentParser) -> None:
    protocols = parser.add_subparsers(metavar="PROTOCOL", dest="protocol", required=True, parser_class=type(parser))
    for name, sentence in PROTOCOLS.items():
        module = import_module(f"nescio.commands._run_{name}")
        sub = protocols.add_parser(
            name,
            help=sentence,
            description=module.__doc__,
            formatter_class=argparse.RawDescriptionHelpFormatter,
        )
        module.configure(sub)
        sub.set_defaults(follow=module.run)


def run(args: argparse.Namespace) -> int:
    return int(args.follow(args))
