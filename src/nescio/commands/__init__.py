"""Sub-commands of `nescio`: they parse and print; what they compute lives in the library.

A command is a module with a docstring, which is the description of --help, and

    @dataclass(frozen=True, kw_only=True)
    class Options:                                   # fields of nescio.options: option(), argument(), nested()
        files: tuple[str, ...] = argument("predictions", metavar="FILE")

    def run(options: Options) -> int:                # the exit code: 0 fine, 1 when work failed, 2 for bad input

A command with commands of its own (`run`, `store`) has `configure(parser, words)` and `run(args)` instead. Bad input,
missing packages and failures of the store are raised; `nescio.cli` turns them into a sentence.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from importlib import import_module
from typing import Any

from nescio import __version__
from nescio.commands.parsing import Parser, add_options
from nescio.options import options_of

GROUPS = {
    "I have a model's outputs": {
        "evaluate": "all that saved predictions tell about a model's uncertainty",
        "compare": "models on the same rows: intervals, ranks, equals of the best",
        "calibrate": "calibrated predictions, as a file to go on with",
        "threshold": "when to abstain, so that answers keep a promised risk",
        "reliability": "how far each row's representation can be trusted",
    },
    "I choose a pretrained model": {
        "zoo": "pretrained models on your images: what each knows, which to take",
        "choose": "the model to deploy: coverage, accuracy and limits",
        "rank": "representations to trust for unlabelled images",
        "transfer": "a network on images it never learnt: R@1, which score to use",
        "export": "one file (ONNX or torch.export) that predicts and abstains",
    },
    "I have a method": {
        "train": "one network: a method, a dataset, a backbone, a budget",
        "predict": "predictions of a trained network, as a file to evaluate",
        "verify": "whether a method is alive: the evidence, on trained weights",
        "run": "a paper's whole benchmark, from data to its tables; resumable",
        "report": "tables and page of a finished study, without its networks",
        "imagenot": "divides classes into in- and out-of-distribution ones",
    },
    "looking around": {
        "demo": "a first look, on data that comes along",
        "sample": "small files of predictions to try nescio on",
        "runs": "what is in the store, what failed and why",
        "store": "looks after a store: removes old work, copies finished work",
        "methods": "the methods and their hyper-parameters",
        "metrics": "the metrics, and how to read each",
        "measures": "the uncertainty measures, and what each needs",
        "completion": "a script for bash or zsh that completes what you type",
    },
}
COMMANDS = {name: sentence for group in GROUPS.values() for name, sentence in group.items()}
START = """\
start here:
  nescio demo                      a first look, on data that comes along
  nescio evaluate preds.npz        does your model know what it does not know?
  nescio evaluate test.npz --val val.npz --ood svhn=svhn.npz --output out
  nescio compare a.npz b.npz       which of two models knows better
"""


def parser_for(command: str | None, words: Sequence[str] = ()) -> Parser:
    """The parser of `nescio`, with the options of one command: the modules of the others are not imported.

    words  of the command line: what they choose, such as a launcher, may bring options of its own
    """
    parser = Parser(
        prog="nescio",
        usage="nescio [-h] [--version] [--plugin FILE.py] COMMAND …",
        description=_overview(),
        epilog=START,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--version", action="version", version=f"nescio {__version__}")
    parser.add_argument("--plugin", metavar="FILE", help="a Python file with parts of your own; before any command")
    commands = parser.add_subparsers(prog="nescio", dest="_command", parser_class=Parser, help=argparse.SUPPRESS)
    for name in COMMANDS:
        sub = commands.add_parser(name, formatter_class=argparse.RawDescriptionHelpFormatter)
        if name == command:
            _configure(sub, import_module(f"nescio.commands.{name}"), words)
    return parser


def _configure(parser: Parser, module: Any, words: Sequence[str]) -> None:
    parser.description = module.__doc__
    parser.set_defaults(_parser=parser)
    if hasattr(module, "configure"):  # it has commands of its own
        module.configure(parser, words)
        parser.set_defaults(_run=module.run)
    else:
        add_options(parser, module.Options, words=words)
        parser.set_defaults(_run=lambda args: module.run(options_of(args, module.Options)))


def _overview() -> str:
    lines = ["nescio: does an image model know what it does not know?"]
    for title, commands in GROUPS.items():
        lines += ["", f"{title}:", *(f"  {name:<12} {sentence}" for name, sentence in commands.items())]
    return "\n".join(lines)
