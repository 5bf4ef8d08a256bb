"""A paper's whole protocol: train or read, predict, evaluate, tables and page.

Finished work lies in the store: run the same command again and only what is missing is done. Kill it at any time.
Several runs may share one store at once; nothing is done twice. A network that fails does not stop the others.

examples:
  nescio run uimnet --data digits --methods all --trials 3 --seeds 2 --workers 2
  nescio run selective vit.npz resnet=r50.npz
  nescio run cood --pair resnet=cifar10.npz,cifar100.npz --estimation 40 --test 20
  nescio run reliability --data digits --methods simclr,moco --members 3
  nescio run uimnet --help                         the options of a protocol
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from nescio.commands._output import page_option
from nescio.commands._work import CrewOptions, PlaceOptions, end, working
from nescio.identity import canonical
from nescio.options import add_options, nested, option, options_of
from nescio.protocols import base


@dataclass(frozen=True)
class RunOptions:
    """What every protocol takes."""

    place: PlaceOptions = nested(PlaceOptions())
    crew: CrewOptions = nested(CrewOptions())
    log: str | None = option(
        None,
        "tensorboard:DIR or wandb:PROJECT: validation NLL, seconds and pace of every finished trial",
        metavar="KIND:PLACE",
        group="output",
    )
    to: str | None = page_option("page, tables and rows there", unset="STORE/report/PROTOCOL")
    json: bool = option(False, "print the rows as JSON, alone on stdout; write no page", group="output")


def configure(parser: argparse.ArgumentParser, words: Sequence[str]) -> None:
    protocols = parser.add_subparsers(metavar="PROTOCOL", dest="_protocol", required=True, parser_class=type(parser))
    for name, protocol in base.registry.items():
        sub = protocols.add_parser(
            name,
            help=protocol.sentence.replace("%", "%%"),
            description=protocol.doc,
            formatter_class=argparse.RawDescriptionHelpFormatter,
        )
        add_options(sub, protocol.plan, protocol.presets)
        add_options(sub, RunOptions, start=_start(protocol), words=words)
        sub.set_defaults(_parser=sub)


def _start(protocol: base.Protocol) -> RunOptions:
    return RunOptions(crew=CrewOptions(workers=protocol.workers))


def run(args: argparse.Namespace) -> int:
    protocol = base.registry[args._protocol]
    plan = options_of(args, protocol.plan, protocol.presets)
    options = options_of(args, RunOptions, start=_start(protocol))
    with working(options.place, options.crew, options.log, canonical(plan)) as work:
        study = base.run(protocol, plan, work)
    folder = Path(options.to or Path(options.place.store) / "report" / protocol.name)
    return end(study, None if options.json else folder)
