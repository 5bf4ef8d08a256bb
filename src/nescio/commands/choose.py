"""The model to deploy: the one that answers most images while the accuracy you need is kept, under your limits.

The models are files of predictions on the same images (FILE, or NAME=FILE to name the model), or what `nescio zoo` kept
in a store. With --accuracy the best model is the one that may answer the largest share of the images, the surest first,
while that share of its answers is right; with --coverage the one with the fewest errors when that share of the images
must be answered; with neither, the one that knows best when it is wrong (AUROC). Rows are joined on `index`; a paired
bootstrap over them gives intervals, and tells which models cannot be told from the best one.

Exit code: 0 chosen; 1 no model attains the accuracy (--json then has "choice": null); 2 bad input.

examples:
  nescio choose --accuracy 0.99 --max-params 30M
  nescio choose --store store --data imagenet:PATH --coverage 0.8 --family vit --max-size 224
  nescio choose vit.npz resnet=r50.npz --accuracy 0.95 --measure entropy --json
  nescio choose *.npz --facts results-imagenet.csv --max-params 30M
"""

from __future__ import annotations

import argparse
import csv
import math
import sys
from collections import Counter
from collections.abc import Mapping, Sequence
from copy import copy
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from nescio.commands._output import add_format, json_of, say
from nescio.errors import BadInput, Undefined

if TYPE_CHECKING:
    from nescio.metrics import Ranking
    from nescio.predictions import Predictions
    from nescio.predictions.entries import Entry
    from nescio.report import Cell, Table

UNITS = {"": 1, "K": 10**3, "M": 10**6, "B": 10**9, "G": 10**9}
RESAMPLES = 1000
SIDES = {"accuracy": "right ↑", "auroc": "AUROC ↑"}  # told beside what was asked for


def configure(parser: argparse.ArgumentParser) -> None:
    add_models(parser)
    need = parser.add_argument_group("what is needed").add_mutually_exclusive_group()
    need.add_argument("--accuracy", type=float, metavar="A", help="share of the given answers that must be right")
    need.add_argument("--coverage", type=float, metavar="C", help="share of the images that must be answered")
    limits = parser.add_argument_group("limits (default: none)")
    limits.add_argument("--max-params", metavar="N", help="most parameters, such as 30M or 1.2B")
    limits.add_argument("--max-size", type=int, metavar="PIXELS", help="largest side of the images that it looks at")
    limits.add_argument("--family", metavar="NAMES", help="architecture families, comma-separated: vit,xcit distilled")
    parser.add_argument(
        "--measure",
        default="largest",
        help="which uncertainty withholds answers: largest (default), entropy, mc-dropout … (see `nescio measures`)",
    )
    parser.add_argument(
        "--among",
        type=int,
        default=20,
        metavar="M",
        help="how many models, the best first, the bootstrap compares (default: 20)",
    )
    parser.add_argument(
        "--resamples", type=int, help=f"of the bootstrap (default: {RESAMPLES}, or more where --among models need them)"
    )
    parser.add_argument("--level", type=float, default=0.95, help="of the intervals (default: 0.95)")
    parser.add_argument("--seed", type=int, default=0, help="of the bootstrap (default: 0)")
    add_format(parser)


def add_models(parser: argparse.ArgumentParser) -> None:
    """Files of predictions, or what a store holds of one set."""
    which = parser.add_argument_group("models")
    which.add_argument("files", nargs="*", metavar="FILE", help="predictions of each model (default: the store's)")
    which.add_argument("--store", default="store", help="folder where `nescio zoo` keeps its work (default: store)")
    which.add_argument("--data", metavar="SPEC", help="images that were asked about (default: the store's only set)")
    which.add_argument(
        "--facts",
        metavar="CSV",
        help="parameters and input sizes of models, for files: a table with the columns model, param_count (millions) "
        "and img_size as timm publishes it",
    )


def run(args: argparse.Namespace) -> int:
    question = Question(args.accuracy, args.coverage)
    limits = Limits(
        None if args.max_params is None else count_of(args.max_params),
        args.max_size,
        tuple(filter(None, (args.family or "").split(","))),
    )
    if args.among < 1:
        raise BadInput(f"--among is a number of models, at least 1, not {args.among}.")
    found = choose(
        models_of(args),
        question,
        limits,
        measure=args.measure,
        among=args.among,
        resamples=args.resamples,
        level=args.level,
        seed=args.seed,
    )
    _show(found, args.format)
    return 0 if found.attained else 1


def count_of(text: str) -> int:
    """30M → 30,000,000."""
    word = text.strip().upper().replace(",", "").replace("_", "")
    unit = word[-1:] if word[-1:] in UNITS and not word[-1:].isdigit() else ""
    try:
        number = float(word.removesuffix(unit)) * UNITS[unit]
    except ValueError:
        number = 0.0
    if not 0 < number < float("inf"):
        raise BadInput(f"--max-params is a number such as 30M or 1.2B, not {text!r}.")
    return round(number)


def models_of(args: argparse.Namespace) -> list[Entry]:
    """The models that `add_models` asks for, with what --facts knows of them."""
    known = _facts(args.facts) if args.facts else {}
    return [replace(each, facts={**known.get(each.model, {}), **each.facts}) for each in _entries(args)]


def _entries(args: argparse.Namespace) -> list[Entry]:
    from nescio.predictions.entries import entries, entry_of_file
    from nescio.work.store import Store

    if args.files and args.data:
        raise BadInput("--data asks for a set of a store, and files are given: leave one of them away.")
    if not args.files:
        if not Path(args.store).is_dir():
            raise BadInput(f"There is no store at {args.store}: name files of predictions, or run `nescio zoo` first.")
        found = entries(Store(args.store), args.data, outside=False)
        if not found:
            of = f" about {args.data}" if args.data else ""
            raise BadInput(f"No model of the store {args.store} was asked{of}: `nescio zoo` asks them.")
        return found
    found = []
    for word in args.files:
        name, equals, path = word.partition("=")
        named = bool(equals) and not Path(word).exists()
        found.append(entry_of_file(path, name) if named else entry_of_file(word))
    return found


def _facts(path: str) -> dict[str, dict[str, float]]:
    """Parameters and input sizes by model, from a table in the form of timm's results."""
    try:
        with open(path, newline="", encoding="utf-8-sig") as file:
            rows = list(csv.DictReader(file))
    except (UnicodeDecodeError, csv.Error):
        raise BadInput(f"{path} is no CSV table.") from None
    if not rows or "model" not in rows[0]:
        raise BadInput(f"{path} has no column named model; it needs model, param_count (millions) and img_size.")
    found: dict[str, dict[str, float]] = {}
    for line, row in enumerate(rows, start=2):
        for fact, column, unit in (("params", "param_count", 10**6), ("input_size", "img_size", 1)):
            text = (row.get(column) or "").replace(",", "")
            if text:
                try:
                    found.setdefault(row["model"], {})[fact] = unit * float(text)
                except ValueError:
                    raise BadInput(f"{path}, line {line}: {column} is {text!r}, which is no number.") from None
    return found


# ---- the question


@dataclass(frozen=True)
class Question:
    """What a model is wanted for: an accuracy to keep, a coverage to give, or neither."""

    accuracy: float | None = None
    coverage: float | None = None

    def __post_init__(self) -> None:
        for name, share in (("accuracy", self.accuracy), ("coverage", self.coverage)):
            if share is not None and not 0 < share <= 1:
                raise BadInput(f"--{name} is a share above 0 and up to 1, such as 0.9, not {share:g}.")

    @property
    def metric(self) -> str:
        if self.accuracy is not None:
            return f"sac@{self.accuracy!r}"
        return "auroc" if self.coverage is None else f"selective_risk@{self.coverage!r}"

    @property
    def sign(self) -> float:
        return 1.0 if self.coverage is None else -1.0

    @property
    def head(self) -> str:
        if self.accuracy is not None:
            return f"answers at {100 * self.accuracy:g} % right ↑"
        return "AUROC ↑" if self.coverage is None else f"wrong of {100 * self.coverage:g} % answered ↓"

    def words(self, value: float) -> str:
        """What the chosen model gives."""
        if self.accuracy is not None:
            return f"it answers {_percent(value)} of the images with {100 * self.accuracy:g} % of those answers right"
        if self.coverage is not None:
            return f"of the {100 * self.coverage:g} % of the images that it answers, {_percent(value)} are wrong"
        return f"it is less sure of the wrong one in {_percent(value)} of the pairs of a wrong and a right answer"


@dataclass(frozen=True)
class Limits:
    """What a model may cost, and of which families it may be."""

    params: int | None = None
    size: int | None = None
    families: tuple[str, ...] = ()

    def refuses(self, entry: Entry) -> str | None:
        """Why a model is no candidate; None if it is one."""
        from nescio.networks.families import belongs

        for most, fact, what, unit in (
            (self.params, _number(entry, "params"), "parameters", _millions),
            (self.size, _number(entry, "input_size"), "input size", lambda n: f"{n:g} pixels"),
        ):
            if most is not None and fact is None:
                return f"{what} not known (--facts names a table that says it)"
            if most is not None and fact is not None and fact > most:
                return f"{what} above {unit(most)}"
        if self.families and not any(belongs(entry.model, each) for each in self.families):
            return f"not of the family {' or '.join(each.strip() for each in self.families)}"
        return None


def _number(entry: Entry, fact: str) -> float | None:
    value = entry.facts.get(fact)
    return None if value is None else float(max(value)) if isinstance(value, (list, tuple)) else float(value)


def _millions(params: float) -> str:
    from nescio.report.clouds import millions

    return millions(params)


def _percent(share: float) -> str:
    from nescio.report.cells import percent

    return percent(share)


# ---- the choice


@dataclass
class Chosen:
    """The models that were compared, the best first, and what was left out and why."""

    question: Question
    measure: str
    n: int  # images
    level: float
    candidates: int
    models: list[dict[str, Any]] = field(default_factory=list)
    left_out: list[tuple[str, str]] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    closest: dict[str, Any] | None = None  # where no model attains the accuracy

    @property
    def attained(self) -> bool:
        return self.closest is None

    @property
    def group(self) -> list[str]:
        """The choice and those that cannot be told from it."""
        return [each["model"] for each in self.models if each["best"]] if self.attained else []


def choose(
    entries: Sequence[Entry],
    question: Question,
    limits: Limits | None = None,
    *,
    measure: str = "largest",
    among: int = 20,
    resamples: int | None = None,
    level: float = 0.95,
    seed: int = 0,
) -> Chosen:
    """The best of the models that the limits allow, and the group that cannot be told from it.

    Every model is judged on the rows that all candidates share; the `among` best go into `compare`'s paired bootstrap.
    Of equal models the one with fewer parameters comes first. `resamples`: None takes enough of them for Holm's first
    step among so many models, and at least a thousand.
    """
    from nescio.analysis.bootstrap import asked
    from nescio.analysis.comparison import _joined, compare
    from nescio.protocols.selective import one_set
    from nescio.work.progress import track

    one_set(entries)
    left = [(each.model, why) for each in entries if (why := (limits or Limits()).refuses(each))]
    allowed = [each for each in entries if each.model not in dict(left)]
    dumps: dict[str, Predictions] = {}
    own = measure
    for each in allowed:
        try:
            dumps[each.model], own = _dump(each, measure)
        except Undefined as why:
            left.append((each.model, _sentence(why)))
    if not dumps:
        raise BadInput(f"No model is left to choose from: {_summed(left)}.")
    rows = _joined(dumps)
    values: dict[str, float] = {}
    beside: dict[str, dict[str, Any]] = {}
    for name in track(list(dumps), "models"):
        try:
            ranked = _ranking(dumps[name], rows[name], own)
            values[name], beside[name] = asked(question.metric)(ranked), _beside(ranked)
        except Undefined as why:
            left.append((name, _sentence(why)))
    if not values:
        raise BadInput(f"No model is left to choose from: {_summed(left)}.")
    facts = {each.model: each for each in allowed}
    order = sorted(values, key=lambda name: (-question.sign * values[name], *_cost(facts[name])))
    best = order[:among]
    found = Chosen(question, measure, len(rows[order[0]]), level, len(values), left_out=left)
    if question.accuracy is not None and values[order[0]] == 0:
        near = max(order, key=lambda name: beside[name]["reached"])
        found.closest = {"model": near, **dict(zip(("accuracy", "coverage"), beside[near]["reached"], strict=True))}
    if resamples is None:
        resamples = max(RESAMPLES, math.ceil(2 * len(best) / (1 - level)) if 0 < level < 1 else 0)
    models = {name: dumps[name] for name in best}
    compared = compare(models, measure=own, metrics=[question.metric], resamples=resamples, level=level, seed=seed)
    found.notes += [str(each["reason"]) for each in compared.reasons]
    found.models = [_line(compared, facts[name]) | {side: beside[name][side] for side in SIDES} for name in best]
    return found


def _dump(entry: Entry, measure: str) -> tuple[Predictions, str]:
    """What a model said, and the measure of it that withholds answers; files are told from each other by name."""
    from nescio.protocols.selective import answerable, judged

    try:
        return judged(answerable(entry.dump()), measure)
    except BadInput as error:
        raise BadInput(f"{entry.model}: {error}") from None


def _ranking(dump: Predictions, rows: Any, measure: str) -> Ranking:
    from nescio.analysis.comparison import _uncertainty
    from nescio.measures._softmax import summary
    from nescio.metrics import Ranking

    light = copy(dump)  # its summary goes with it: hundreds of them would fill the memory
    wrong = summary(light).answers(rows).wrong
    return Ranking(_uncertainty(measure, light)[rows], wrong)


def highest(ranked: Ranking) -> tuple[float, float]:
    """The highest accuracy that a threshold reaches, and the largest coverage at which it does."""
    shares = (ranked.ends - ranked.hits) / ranked.ends
    top = float(shares.max())
    return top, float(ranked.ends[shares == top].max()) / ranked.n


def _cost(entry: Entry) -> tuple[float, str]:
    params = _number(entry, "params")
    return (float("inf") if params is None else params, entry.model)


def _beside(ranked: Ranking) -> dict[str, Any]:
    """What else a reader wants to know of a model."""
    from nescio.metrics import auroc

    try:
        notices = auroc(ranked)
    except Undefined:
        notices = None
    return {"accuracy": ranked.negatives / ranked.n, "auroc": notices, "reached": highest(ranked)}


def _line(compared: Any, entry: Entry) -> dict[str, Any]:
    from nescio.networks.families import family

    own = next(each for each in compared.rows if each["method"] == entry.model)
    none = dict.fromkeys(("difference", "low", "high", "adjusted"))
    away = next((each for each in compared.differences if each["model"] == entry.model), none)
    return {
        "model": entry.model,
        "family": family(entry.model),
        **{name: _number(entry, name) for name in ("params", "input_size")},
        **{name: own[name] for name in ("value", "low", "high", "rank", "best")},
        "difference": away["difference"],
        "difference_low": away["low"],
        "difference_high": away["high"],
        "p": away["adjusted"],
    }


def _sentence(why: object) -> str:
    text = str(why).removesuffix(".")
    return text[:1].lower() + text[1:]


def _summed(left: Sequence[tuple[str, str]]) -> str:
    """How many were left out for each reason."""
    counts = Counter(why for _, why in left)
    return "; ".join(f"{times} × {why}" for why, times in counts.items())


# ---- what is printed


def _show(found: Chosen, form: str) -> None:
    from nescio import report

    if form == "json":
        say(json_of(_plain(found)))
        return
    shown = table(found)
    if form != "table":
        say(
            report.csv_text(found.models)
            if form == "csv"
            else {"markdown": report.markdown, "latex": report.latex}[form](shown)
        )
        return
    from rich.console import Console
    from rich.text import Text

    console = Console()
    console.print(Text(" ".join(sentences(found))), end="\n\n")
    report.terminal(shown, console)
    for note in found.notes:
        print(note, file=sys.stderr)


def sentences(found: Chosen) -> list[str]:
    """The choice, those that cannot be told from it, and what was left out, in plain words."""
    question, said = found.question, []
    if found.closest is not None and question.accuracy is not None:
        near = found.closest
        said.append(
            f"No model keeps an accuracy of {100 * question.accuracy:g} % at any coverage. {near['model']} is closest: "
            f"{_percent(near['accuracy'])} of the surest {_percent(near['coverage'])} of its answers are right."
        )
    else:
        first, *others = found.models
        size = f" ({_millions(first['params'])} parameters)" if first["params"] else ""
        range_ = "" if first["low"] is None else f" ({_interval(first)})"
        said.append(f"Choose {first['model']}{size}: {question.words(first['value'])}{range_}.")
        said += _standing(first, [each for each in others if each["best"]], others, found)
    if found.left_out:
        said.append(f"Left out: {_summed(found.left_out)}.")
    return said


def _standing(
    first: Mapping[str, Any], tied: Sequence[Mapping[str, Any]], others: Sequence[Any], found: Chosen
) -> list[str]:
    if not others:
        return []
    said = []
    if tied:
        names = ", ".join(each["model"] for each in tied)
        said.append(f"On these {found.n:,} images it cannot be told from {names}.")
        small = min((each for each in (first, *tied) if each["params"]), key=lambda each: each["params"], default=first)
        if small is not first:
            said.append(f"The smallest of them is {small['model']} ({_millions(small['params'])} parameters).")
    else:
        said.append(f"On these {found.n:,} images the others are behind it beyond chance.")
    if found.candidates > len(found.models):
        said.append(f"Compared are the {len(found.models)} best of {found.candidates} models (--among).")
    return said


def _interval(line: Mapping[str, Any]) -> str:
    return f"{100 * line['low']:.1f} to {100 * line['high']:.1f} %"


def table(found: Chosen) -> Table:
    """One line a model, the best first."""
    from nescio.report import Cell, Table
    from nescio.report.cells import legend

    def cell(line: Mapping[str, Any], name: str) -> Cell | None:
        value = line[name]
        return None if value is None else Cell(f"{100 * value:.1f} %", value)

    asked = found.question.metric
    sides = {name: head for name, head in SIDES.items() if name != asked}
    costs = {"params": "params", "input_size": "input"}
    costs = {name: head for name, head in costs.items() if any(line[name] is not None for line in found.models)}
    lines = []
    for line in found.models:
        best = found.attained and bool(line["best"])
        value = Cell(f"{100 * line['value']:.1f} %", line["value"], best)
        if line["low"] is not None:
            value = replace(value, text=f"{value.text} [{100 * line['low']:.1f}, {100 * line['high']:.1f}]")
        beside = [cell(line, name) for name in sides]
        lines.append((line["model"], (value, _behind(line, best), *beside, *(_cost_cell(line, n) for n in costs))))
    heads = (found.question.head, "against the best", *sides.values(), *costs.values())
    note = (
        f"{found.n:,} images; answers withheld by {found.measure}; {100 * found.level:g} % intervals of a paired "
        "bootstrap; bold cannot be told from the best"
    )
    return Table("The models, best first", "model", heads, tuple(lines), note, legend((asked, "auroc")))


def _cost_cell(line: Mapping[str, Any], name: str) -> Cell | None:
    from nescio.report import Cell

    value = line[name]
    return None if value is None else Cell(_millions(value) if name == "params" else f"{value:g}", value)


def _behind(line: Mapping[str, Any], best: bool) -> Cell | None:
    """How far from the best, on the same resamples."""
    from nescio.report import Cell

    if line["difference"] is None:
        return Cell("the best", 0.0, best)
    text = f"{100 * line['difference']:+.1f}"
    if line["difference_low"] is not None:
        text += f" [{100 * line['difference_low']:+.1f}, {100 * line['difference_high']:+.1f}]"
    return Cell(text, line["difference"], best)


def _plain(found: Chosen) -> dict[str, Any]:
    first = found.models[0]
    return {
        "choice": first["model"] if found.attained else None,
        "value": first["value"] if found.attained else None,
        "low": first["low"] if found.attained else None,
        "high": first["high"] if found.attained else None,
        "group": found.group,
        "metric": found.question.metric,
        "measure": found.measure,
        "n": found.n,
        "level": found.level,
        "candidates": found.candidates,
        "closest": found.closest,
        "models": found.models,
        "left_out": [{"model": model, "reason": why} for model, why in found.left_out],
        "notes": found.notes,
    }
