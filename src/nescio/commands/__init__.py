"""Sub-commands of `nescio`: they parse, call one function of `nescio.api`, and print its result.

A command is a module with a docstring, which is the description of --help, and

    @dataclass(frozen=True, kw_only=True)
    class Options(PageOptions, CompareOptions):      # fields of nescio.options: option(), argument(), nested()
        all: bool = option(False, group="output")

    def run(options: Options) -> ApiResult | int     # an int is the exit code: 0 done, 1 work failed, 2 bad input

A command with sub-commands (`run`, `store`) has `configure(parser, words)` and `run(args)` instead. Bad input, missing
packages and failures of the store are raised, and `nescio.cli` prints them.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from functools import partial
from importlib import import_module

from nescio import __version__
from nescio.commands._output import PageOptions, emit, name_options
from nescio.commands.config import config_text
from nescio.commands.parsing import Parser, add_options
from nescio.options import options_of
from nescio.provenance import keep_config

GROUPS = {
    "Evaluate a model's outputs": {
        "evaluate": "evaluate saved predictions: accuracy, calibration, OOD detection",
        "compare": "compare models on the same rows, with intervals and tests",
        "calibrate": "calibrate predictions and write them to a file",
        "threshold": "find the abstention threshold that guarantees a maximum risk",
    },
    "Choose a pretrained model": {
        "zoo": "predict with many pretrained models and compare them",
        "choose": "choose the model to deploy by accuracy, coverage and limits",
        "rank": "score and rank representations without labels",
        "transfer": "evaluate embeddings and uncertainty on new classes",
        "export": "export a network that abstains, to ONNX or torch.export",
    },
    "Train and benchmark methods": {
        "train": "train one network and save it in the store",
        "predict": "predict with a trained network and write a file",
        "verify": "check that a method's distinctive part has an effect",
        "run": "run a benchmark of a paper, from data to tables; resumable",
        "report": "write tables and the page of a finished study",
        "imagenot": "split classes into in- and out-of-distribution ones",
    },
    "Start and look up": {
        "demo": "run a small benchmark in a few minutes",
        "sample": "write small predictions files to try nescio on",
        "runs": "list the work in the store, with reasons of failures",
        "store": "remove old work, or copy finished work",
        "methods": "list methods and their hyper-parameters",
        "metrics": "list metrics and their definitions",
        "measures": "list uncertainty measures and their inputs",
        "completion": "print a completion script for bash, zsh or tcsh",
    },
}
COMMANDS = {name: sentence for group in GROUPS.values() for name, sentence in group.items()}
START = """\
nescio demo and nescio evaluate preds.npz are good first commands.
nescio COMMAND --help lists options; --version; --plugin FILE adds your parts."""


class Overview(Parser):
    """The parser of `nescio`; its help fits one screen."""

    def format_help(self) -> str:
        lines = ["usage: nescio COMMAND …      evaluate the predictive uncertainty of image models"]
        for title, commands in GROUPS.items():
            lines += ["", f"{title}:", *(f"  {name:<11} {sentence}" for name, sentence in commands.items())]
        return "\n".join([*lines, "", START, ""])


def parser_for(command: str | None, argv: Sequence[str] = ()) -> Parser:
    """The parser of `nescio`, with the options of one command: the modules of the others are not imported.

    words  of the command line: the launcher or preset that they choose changes options and --help
    """
    parser = Overview(prog="nescio", usage="nescio COMMAND …")
    parser.add_argument("--version", action="version", version=f"nescio {__version__}")
    parser.add_argument("--plugin", metavar="FILE")
    commands = parser.add_subparsers(prog="nescio", dest="_command", parser_class=Parser)
    for name in COMMANDS:
        if name == command:
            add_command(commands, name, argv)
        else:
            commands.add_parser(name)
    return parser


def add_command(
    commands: argparse._SubParsersAction[Parser], name: str, argv: Sequence[str] = (), help: str | None = None
) -> None:
    """Add the parser of a command with its options."""
    parser = commands.add_parser(name, formatter_class=argparse.RawDescriptionHelpFormatter, help=help)
    module = import_module(f"nescio.commands.{name}")
    parser.description = module.__doc__
    parser.set_defaults(_parser=parser)
    if hasattr(module, "configure"):  # it has sub-commands
        module.configure(parser, argv)
        parser.set_defaults(_run=module.run)
        return
    add_options(parser, module.Options, argv=argv)

    def run(args: argparse.Namespace) -> int:
        options = options_of(args, module.Options)
        keep_config(partial(config_text, parser.prog.split()[1:], options))
        result = module.run(options)
        if isinstance(result, int):
            return result
        name_options(result, parser.leaves)
        output = options.output if isinstance(options, PageOptions) else None
        return emit(result, options.format, output=output, brief=not getattr(options, "all", False))

    parser.set_defaults(_run=run)
