"""The command `nescio`: every sub-command is one module of `nescio.commands`, imported only when it is needed."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence
from importlib import import_module
from typing import Any, NoReturn

from nescio import __version__
from nescio.errors import BadInput, Undefined
from nescio.options import add_options, near, options_of
from nescio.registry import add_plugin

GROUPS = {
    "I have a model's outputs": {
        "evaluate": "all that saved predictions tell about a model's uncertainty",
        "compare": "models on the same rows: intervals, ranks, equals of the best",
        "threshold": "when to abstain, so that answers keep a promised risk",
        "reliability": "how far each row's representation can be trusted",
    },
    "I choose a pretrained model": {
        "zoo": "pretrained models on your images: what each knows, which to take",
        "choose": "the model to deploy: coverage, accuracy and limits",
        "rank": "representations to trust for unlabelled images",
        "export": "one file (ONNX or torch.export) that predicts and abstains",
    },
    "I have a method": {
        "train": "one network: a method, a dataset, a backbone, a budget",
        "predict": "predictions of a trained network, as a file to evaluate",
        "verify": "whether a method is alive: the evidence, on trained weights",
        "run": "a paper's whole protocol, from data to its tables; resumable",
        "report": "tables and page of a finished study, without its networks",
        "imagenot": "divides classes into in- and out-of-distribution ones",
    },
    "looking around": {
        "demo": "a first look, on data that comes along",
        "sample": "small files of predictions to try nescio on",
        "runs": "what is in the store, what failed and why",
        "store": "looks after a store: removes work of older versions",
        "methods": "the methods and their hyper-parameters",
        "metrics": "the metrics, and how to read each",
        "measures": "the uncertainty measures, and what each needs",
    },
}
COMMANDS = {name: sentence for group in GROUPS.values() for name, sentence in group.items()}
START = """\
start here:
  nescio demo                      a first look, on data that comes along
  nescio evaluate preds.npz        does your model know what it does not know?
  nescio evaluate test.npz --val val.npz --ood svhn=svhn.npz --report out
  nescio compare a.npz b.npz       which of two models knows better
"""
EXTRAS = {  # of pyproject.toml: what is imported → what to install
    **dict.fromkeys(("torch", "torchvision", "timm", "gpytorch", "PIL", "huggingface_hub"), "train"),
    **dict.fromkeys(("onnx", "onnxscript", "onnxruntime"), "export"),
    **dict.fromkeys(("ray", "submitit"), "cluster"),
    "optuna": "search",
    "numba": "fast",
}


class Parser(argparse.ArgumentParser):
    """Words that it cannot read are bad input, in one sentence."""

    def error(self, message: str) -> NoReturn:
        sentence = message[:1].upper() + message[1:].rstrip(".")
        raise BadInput(f"{sentence}. See `{self.prog} --help`.")


def parser_for(command: str | None) -> Parser:
    """The parser of `nescio`, with the options of one command: the modules of the others are not imported."""
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
            _configure(sub, import_module(f"nescio.commands.{name}"))
    return parser


def _configure(parser: Parser, module: Any) -> None:
    parser.description = module.__doc__
    parser.set_defaults(_parser=parser)
    if hasattr(module, "configure"):  # it has commands of its own
        module.configure(parser)
        parser.set_defaults(_run=module.run)
    else:
        add_options(parser, module.Options)
        parser.set_defaults(_run=lambda args: module.run(options_of(args, module.Options)))


def _overview() -> str:
    lines = ["nescio: does an image model know what it does not know?"]
    for title, commands in GROUPS.items():
        lines += ["", f"{title}:", *(f"  {name:<12} {sentence}" for name, sentence in commands.items())]
    return "\n".join(lines)


def main(argv: Sequence[str] | None = None) -> int:
    """Runs one command and returns its exit code: 0 fine, 1 when work failed, 2 for bad input."""
    words = list(sys.argv[1:] if argv is None else argv)
    plugins = _plugins(words)
    command = next((word for word in words if not word.startswith("-")), None)
    name = f"nescio {command}" if command in COMMANDS else "nescio"
    try:
        for plugin in plugins:
            add_plugin(plugin)
        code = _run(command, words)
        sys.stdout.flush()  # here, where a pipe that nobody reads any more is no failure
        return code
    except (BadInput, Undefined) as error:
        print(f"{name}: {error}", file=sys.stderr)
        return 2
    except ImportError as error:
        package = (error.name or "").partition(".")[0]
        if package in ("", "nescio"):
            raise
        needed = f"'nescio[{EXTRAS[package]}]'" if package in EXTRAS else package
        print(f"{name} needs {package}: pip install {needed}", file=sys.stderr)
        return 2
    except BrokenPipeError:  # `nescio … | head` has read enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except OSError as error:
        where = "" if error.filename is None else f": {error.filename}"
        print(f"{name}: {error.strerror or error}{where}.", file=sys.stderr)
        return 2
    except RuntimeError as error:
        if type(error).__module__.partition(".")[0] != "nescio":
            raise
        print(f"{name}: {error}", file=sys.stderr)  # of the store or of a training: a sentence for people
        return 1
    except KeyboardInterrupt:
        print(f"{name}: stopped.", file=sys.stderr)
        return 130


def _plugins(words: list[str]) -> list[str]:
    """Takes --plugin FILE out of the words, wherever it stands: it is the same for every command."""
    files = []
    while "--plugin" in words[:-1]:
        at = words.index("--plugin")
        files.append(words[at + 1])
        del words[at : at + 2]
    return files


def _run(command: str | None, words: Sequence[str]) -> int:
    if command is not None and command not in COMMANDS:
        raise BadInput(f"There is no command {command!r}.{near(command, COMMANDS)} See `nescio --help`.")
    parser = parser_for(command)
    args, unknown = parser.parse_known_args(words)
    if unknown:
        _refuse(getattr(args, "_parser", parser), unknown[0])
    if not args._command:
        parser.print_help()
        return 2
    return int(args._run(args) or 0)


def _refuse(parser: argparse.ArgumentParser, word: str) -> NoReturn:
    """Says which word means nothing, and what may have been meant."""
    if not word.startswith("-"):
        raise BadInput(f"{word!r} is one word too many. See `{parser.prog} --help`.")
    option = word.partition("=")[0]
    hint = near(option, [text for action in parser._actions for text in action.option_strings])
    raise BadInput(f"There is no option {option}.{hint} See `{parser.prog} --help`.")


if __name__ == "__main__":
    raise SystemExit(main())
