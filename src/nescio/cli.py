"""The command `nescio`: every sub-command is one module of `nescio.commands`, imported only when it is asked for."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence
from importlib import import_module
from typing import NoReturn

from nescio import __version__
from nescio.errors import BadInput, Undefined

COMMANDS = {
    "evaluate": "everything that can be said about saved predictions",
    "compare": "several models on the same rows: intervals, ranks, and who cannot be told from the best",
    "zoo": "pretrained models asked about your images: what each knows, and which to take",
    "choose": "which model to deploy: most coverage at an accuracy, or least risk at a coverage, under limits",
    "rank": "which representation to trust for unlabelled images: candidates ranked by how far siblings agree",
    "reliability": "how far each row's representation can be trusted, from embeddings of two or more models",
    "threshold": "from which uncertainty on a model must abstain, so that its answers keep a promised risk",
    "export": "one file (ONNX or torch.export) that answers, says how sure it is, and abstains",
    "train": "one network: a method, a dataset, a backbone, a budget",
    "predict": "what a trained network says about a split, as a file to evaluate",
    "runs": "what is in the store, what failed and why",
    "verify": "whether a method is alive: the evidence, on trained weights",
    "methods": "the methods, and what each can be told",
    "metrics": "the metrics, and how to read each",
    "measures": "the uncertainty measures, and what each needs",
    "run": "a paper's whole protocol, from data to its tables: resumable, and shared by several processes",
    "report": "tables and page of a finished study again, without its networks",
    "imagenot": "which classes of a dataset are in-domain and which are out-domain, by how alike they look",
    "demo": "a first look, on data that comes along",
}
START = """\
start here:
  nescio demo                                 a first look, on data that comes along
  nescio evaluate preds.npz                   what your model knows about what it does not know
  nescio evaluate test.npz --val val.npz --ood svhn=svhn.npz --report out
  nescio compare a.npz b.npz                  which of two models knows better
"""


class Parser(argparse.ArgumentParser):
    """Says what is wrong in one sentence and exits with 2."""

    def error(self, message: str) -> NoReturn:
        print(f"{self.prog}: {_sentence(message)} See `{self.prog} --help`.", file=sys.stderr)
        raise SystemExit(2)


def main(argv: Sequence[str] | None = None) -> int:
    """Runs one command and returns its exit code: 0 fine, 1 when work failed, 2 for bad input."""
    words = list(sys.argv[1:] if argv is None else argv)
    command = next((word for word in words if not word.startswith("-")), None)
    parser = Parser(
        prog="nescio",
        description="nescio: does an image model know what it does not know?",
        epilog=START,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--version", action="version", version=f"nescio {__version__}")
    commands = parser.add_subparsers(metavar="COMMAND", dest="command", parser_class=Parser)
    for name, sentence in COMMANDS.items():
        sub = commands.add_parser(name, help=sentence, formatter_class=argparse.RawDescriptionHelpFormatter)
        if name == command:
            module = import_module(f"nescio.commands.{name}")
            sub.description = module.__doc__
            module.configure(sub)
            sub.set_defaults(run=module.run)
    try:
        args = parser.parse_args(words)
        if not args.command:
            parser.print_help()
            return 2
        return int(args.run(args) or 0)
    except (BadInput, Undefined) as error:
        print(f"nescio {command}: {error}", file=sys.stderr)
        return 2
    except BrokenPipeError:  # `nescio … | head` has read enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except OSError as error:
        print(f"nescio {command}: {error.strerror or error}: {error.filename}.", file=sys.stderr)
        return 2
    except RuntimeError as error:
        if type(error).__module__.partition(".")[0] != "nescio":
            raise
        print(f"nescio {command}: {error}", file=sys.stderr)  # the store or a training said what went wrong
        return 1
    except KeyboardInterrupt:
        print(f"nescio {command}: stopped.", file=sys.stderr)
        return 130


def _sentence(message: str) -> str:
    message = message[:1].upper() + message[1:]
    return message if message.endswith(".") else f"{message}."


if __name__ == "__main__":
    raise SystemExit(main())
