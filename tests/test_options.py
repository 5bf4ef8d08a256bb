"""Options from dataclasses: one declaration gives the option, its help, its check and the command that repeats it."""

import json
import shlex
from contextlib import suppress
from dataclasses import asdict, dataclass, field, fields, is_dataclass, replace
from typing import Literal, get_args, get_origin, get_type_hints

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nescio.api.inputs import InputOptions
from nescio.benchmarks.base import BUILT_IN
from nescio.benchmarks.base import registry as benchmarks
from nescio.commands.parsing import Parser, add_options
from nescio.errors import BadInput, Undefined
from nescio.identity import Validated, canonical, tag
from nescio.option_help import HELP
from nescio.options import (
    REQUIRED,
    argument,
    command_of,
    instance_of,
    leaves,
    named_by_option,
    nested,
    option,
    options_from,
    options_of,
)
from nescio.specs import SpecError, assignment, items, numbers, split
from nescio.trials import Training

WORDS = ("nescio", "run", "mine")


@dataclass(frozen=True)
class Budget(Validated):
    epochs: int = option(10, "passes over the rows", group="budget")
    rate: float = option(0.1, "learning rate", group="budget")
    kind: Literal["sgd", "lamb"] = option("sgd", "what moves the weights", group="budget")
    speed: int = option(1, "not offered")


@dataclass(frozen=True)
class Plan(Validated):
    data: str = option("digits", "dataset")
    methods: tuple[str, ...] = option((), "comma-separated", unset="all")
    spectral: tuple[float | None, ...] = option((None, 5.0), "targets")
    inside: tuple[int, ...] | None = option(None, "classes, as 0-5,7", name="in", metavar="CLASSES")
    oracle: bool = option(True, "the oracle row")
    whole_rows: bool = option(False, "keep 100 % of the rows")
    clip: float | None = option(None, "largest norm")
    names: tuple[str, ...] = option((), "of models", style="whole")
    pair: tuple[str, ...] = option((), "NAME=FILE", style="repeats")
    format: Literal["table", "json", "csv"] = option("table")
    hidden: int = 3  # not an option
    budget: Budget = nested(Budget(epochs=20), omit=("speed",))


PRESETS = {
    "small": Plan(),
    "paper": Plan(data="imagenet", budget=Budget(epochs=100), oracle=False, hidden=4),
}


def parsed(words, cls=Plan, presets=None):
    parser = Parser(prog="nescio")
    add_options(parser, cls, presets)
    return options_of(parser.parse_args(words), cls, presets)


def helped(cls=Plan, presets=None):
    parser = Parser(prog="nescio")
    add_options(parser, cls, presets)
    return {action.option_strings[-1]: action.help % {} for action in parser._actions if action.option_strings}


def test_options_of__nothing_given_is_the_default_or_the_first_preset():
    assert parsed([]) == Plan()
    assert parsed([], presets=PRESETS) == PRESETS["small"]
    assert parsed(["--preset", "paper", "--rate", "1"], presets=PRESETS) == replace(
        PRESETS["paper"], budget=Budget(epochs=100, rate=1.0)
    )


def test_options_of__every_kind_of_value():
    words = (
        "--data cifar10 --methods erm,due --spectral none,3 --in 0-2,7 --no-oracle --whole-rows --clip 2 "
        "--names a --names b --pair x=1 --pair y=2 --format csv --epochs 3 --kind lamb"
    )
    plan = parsed(words.split())
    assert plan == Plan(
        data="cifar10",
        methods=("erm", "due"),
        spectral=(None, 3.0),
        inside=(0, 1, 2, 7),
        oracle=False,
        whole_rows=True,
        clip=2.0,
        names=("a", "b"),
        pair=("x=1", "y=2"),
        format="csv",
        budget=Budget(epochs=3, kind="lamb"),
    )
    assert parsed(["--clip", "none", "--in", "none"]) == Plan()


def test_options_of__every_list_is_separated_by_commas_and_may_be_repeated():
    words = "--methods erm,due --methods oc --names a,b --names d --pair x=1,2,y=3 --pair z=logits:a,labels:b"
    plan = parsed(shlex.split(words))
    assert plan.methods == ("erm", "due", "oc") and plan.names == ("a,b", "d")
    assert plan.pair == ("x=1,2", "y=3", "z=logits:a,labels:b")


def test_options__add_options_shows_every_default_once():
    texts = helped()
    assert texts["--epochs"].endswith("(default: 20)")  # of the plan that contains the budget
    assert texts["--methods"].endswith("(default: all)") and texts["--spectral"].endswith("(default: none,5)")
    assert texts["--in"].endswith("(default: none)") and texts["--rate"].endswith("(default: 0.1)")
    assert "100 %" in texts["--whole-rows"] and "default" not in texts["--whole-rows"]
    assert texts["--no-oracle"].startswith("do not ") and "--oracle" not in texts
    assert "--speed" not in texts and "--hidden" not in texts


@pytest.mark.parametrize(("words", "epochs"), [([], 20), (["--preset", "paper"], 100), (["--preset=small"], 20)])
def test_options__add_options_shows_the_values_of_the_preset(words, epochs):
    parser = Parser(prog="nescio")
    add_options(parser, Plan, PRESETS, argv=words)
    texts = {action.option_strings[-1]: action.help % {} for action in parser._actions if action.option_strings}
    assert texts["--epochs"].endswith(f"(default: {epochs})") and texts["--rate"].endswith("(default: 0.1)")
    assert {"--oracle", "--no-oracle"} <= texts.keys()  # a preset has each
    assert "small, paper" in texts["--preset"]


def test_option_without_help_has_the_shared_one():
    @dataclass(frozen=True)
    class Shared:
        limit: int | None = option(None)

    (leaf,) = leaves(Shared)
    assert (leaf.metavar, leaf.help) == HELP["limit"]


def test_options_stand_in_their_groups():
    parser = Parser()
    add_options(parser, Plan)
    groups = {group.title: [action.dest for action in group._group_actions] for group in parser._action_groups}
    assert groups["budget"] == ["budget.epochs", "budget.rate", "budget.kind"]


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        ("--epochs many", "--epochs is a whole number, not 'many'."),
        ("--rate fast", "--rate is a number, not 'fast'."),
        ("--clip much", "--clip is a number, or none, not 'much'."),
        ("--spectral 1,x", "--spectral is a list of numbers such as 0.5,1, not '1,x'."),
        (
            "--in 0-x",
            "--in: '0-x': this is not a list of whole numbers; write numbers and rising ranges, such as 0-5,7.",
        ),
        ("--kind lam", "--kind is sgd or lamb, not 'lam'. Did you mean 'lamb'?"),
    ],
)
def test_options_of__what_does_not_fit_is_one_sentence(words, sentence):
    with pytest.raises(BadInput) as error:
        parsed(words.split())
    assert str(error.value) == sentence


@dataclass(frozen=True)
class Tasked(Validated):
    task: Literal["images", "pixels"] = option("images", "what is named", selects=True)
    data: str = option("digits", "dataset")


TASKED = {"small": Tasked(), "large": Tasked(data="cifar10"), "streets": Tasked("pixels", "scenes")}


def test_options_of__an_option_may_select_the_preset_that_the_others_start_from():
    assert parsed(["--task", "pixels"], Tasked, TASKED) == TASKED["streets"]
    assert parsed(["--task", "pixels", "--data", "x"], Tasked, TASKED) == Tasked("pixels", "x")
    assert parsed(["--task", "images"], Tasked, TASKED) == parsed([], Tasked, TASKED) == TASKED["small"]
    assert parsed(["--preset", "large", "--task", "pixels"], Tasked, TASKED) == Tasked("pixels", "cifar10")


@pytest.mark.parametrize("plan", [*TASKED.values(), Tasked("pixels", "digits"), Tasked("pixels", "cifar10")])
def test_command_of__a_command_names_the_preset_where_another_would_be_selected(plan):
    assert parsed(shlex.split(command_of(plan, (), TASKED)), Tasked, TASKED) == plan


def test_options_of__an_unknown_preset_names_those_there_are():
    with pytest.raises(BadInput, match=r"'papr'.*'paper'.*small, paper"):
        parsed(["--preset", "papr"], presets=PRESETS)


def test_argument__options_of_requires_arguments_and_options():
    @dataclass(frozen=True, kw_only=True)
    class Needs:
        files: tuple[str, ...] = argument("predictions", metavar="FILE")
        output: str = option(REQUIRED, "where to write")

    assert parsed(["a", "b", "--output", "c"], Needs) == Needs(files=("a", "b"), output="c")
    for words, name in ((["--output", "c"], "FILE"), (["a"], "--output")):
        with pytest.raises(BadInput, match=f"^{name} "):
            parsed(words, Needs)
    needs = Needs(files=("a b", "c"), output="-")
    assert command_of(needs, ("nescio",)) == "nescio 'a b' c --output=-"
    assert parsed(shlex.split(command_of(needs, ("nescio",)))[1:], Needs) == needs


def test_argument__an_argument_that_may_be_missing():
    @dataclass(frozen=True)
    class May:
        name: str | None = argument("one of them", default=None)
        more: tuple[str, ...] = argument("others", default=())

    assert parsed([], May) == May()
    assert parsed(["a", "b", "c"], May) == May("a", ("b", "c"))


def test_option__an_option_changes_no_key():
    @tag("options-test")
    @dataclass(frozen=True)
    class Bare:
        epochs: int = 3

    @dataclass(frozen=True)
    class Declared:
        epochs: int = option(3, "passes")
        later: int = option(5, "came later", introduced=4)

    Declared.__tag__ = "options-test"
    assert canonical(Declared(later=4)) == canonical(Bare())
    assert canonical(Declared()) == {**canonical(Bare()), "later": 5}


def test_command_of__a_command_names_what_differs_only():
    assert command_of(Plan(), WORDS) == "nescio run mine"
    plan = replace(Plan(), data="my set", budget=Budget(epochs=20, rate=-1.0), oracle=False)
    assert command_of(plan, WORDS) == "nescio run mine --data 'my set' --no-oracle --rate=-1.0"
    assert command_of(PRESETS["paper"], WORDS, PRESETS) == "nescio run mine --preset paper"


names = st.text(st.characters(blacklist_characters=",", blacklist_categories=("Cs",)), min_size=1).filter(
    lambda text: text not in ("none", "off")
)
plain_names = names.filter(lambda text: not text.startswith("-"))
realistic = st.floats(allow_nan=False, allow_infinity=False)
budgets = st.builds(Budget, epochs=st.integers(), rate=realistic, kind=st.sampled_from(["sgd", "lamb"]))
plans = st.builds(
    Plan,
    data=names,
    methods=st.lists(names | st.just('a,b"')).map(tuple),  # lists put quotes around commas
    spectral=st.lists(st.none() | realistic, min_size=1).map(tuple),
    inside=st.none() | st.lists(st.integers(0, 99), min_size=1).map(tuple),
    oracle=st.booleans(),
    whole_rows=st.booleans(),
    clip=st.none() | realistic,
    names=st.lists(plain_names).map(tuple),
    pair=st.lists(names.filter(lambda text: '"' not in text)).map(tuple),  # quotes belong to the grammar there
    format=st.sampled_from(["table", "json", "csv"]),
    budget=budgets,
)


@given(plans)
def test_command_of__the_command_of_any_plan_gives_it_again(plan):
    assert parsed(shlex.split(command_of(plan, ()))) == plan
    again = parsed(shlex.split(command_of(plan, (), PRESETS)), presets=PRESETS)
    assert replace(again, hidden=3) == plan  # what is not an option comes with the preset


@given(st.builds(Training, lr=st.floats(1e-9, 10), epochs=st.integers(1, 999), clip=st.none() | st.floats(0.1, 9)))
def test_command_of__a_training_is_the_command_that_it_writes(training):
    assert parsed(shlex.split(command_of(training, ())), Training) == training


@given(plans)
def test_instance_of__a_plan_comes_back_from_a_file(plan):
    assert instance_of(Plan, json.loads(json.dumps(asdict(plan)))) == plan


def changed(value, hint):
    """Another value of an option's type; the same where there is none."""
    others = {bool: lambda: not value, int: lambda: value + 1, float: lambda: 2 * value + 0.1, str: lambda: value + "x"}
    if get_origin(hint) is Literal:
        return next((choice for choice in get_args(hint) if choice != value), value)
    if isinstance(value, tuple):
        return value[:-1] or (*value, *value)
    return others[type(value)]() if type(value) in others else value


def variants(plan):
    """The plan with one option changed, where that makes a plan."""
    hints = get_type_hints(type(plan))
    for entry in fields(plan):
        value = getattr(plan, entry.name)
        if is_dataclass(value):
            others = variants(value)
        else:
            others = [changed(value, hints[entry.name])] if "option" in entry.metadata else []
        for other in others:
            with suppress(BadInput):
                yield replace(plan, **{entry.name: other})


@pytest.mark.parametrize("name", BUILT_IN)
def test_command_of__every_benchmark_is_run_again_by_the_command_of_its_plan(name):
    benchmark = benchmarks[name]
    plans = list(benchmark.presets.values()) or [benchmark.plan()]
    plans += [variant for plan in plans for variant in variants(plan)]
    assert len(plans) > 5
    for plan in plans:
        words = shlex.split(command_of(plan, (), benchmark.presets))
        assert parsed(words, benchmark.plan, benchmark.presets) == plan
        assert instance_of(benchmark.plan, json.loads(json.dumps(asdict(plan)))) == plan


def test_instance_of__a_plan_of_an_older_file_has_the_values_of_its_time():
    @dataclass(frozen=True)
    class Grown:
        first: int = option(1, "")
        later: str = option("new", "", introduced="old")
        inner: Budget = field(default_factory=Budget)

    budget = asdict(Budget())
    assert instance_of(Grown, {"first": 2, "inner": budget}) == Grown(2, "old")
    with pytest.raises(BadInput, match="This Grown lacks first, inner"):
        instance_of(Grown, {"later": "new"})
    with pytest.raises(BadInput, match="A Grown has no gone"):
        instance_of(Grown, {"gone": 2})


@dataclass(frozen=True)
class Boat:
    sails: int = option(1, "of the boat")


@dataclass(frozen=True)
class Train:
    wagons: float = option(2.5, "of the train")


@dataclass(frozen=True)
class Crew:
    way: str = option("boat", "how to travel")
    vehicle: dict[str, object] = options_from("way", {"boat": Boat, "train": Train}.__getitem__)


@dataclass(frozen=True)
class Journey:
    days: int = option(3, "of travel")
    crew: Crew = nested(Crew())


def journey(*words):
    parser = Parser()
    add_options(parser, Journey, argv=words)
    return options_of(parser.parse_args(words), Journey), parser


@pytest.mark.parametrize("way", [["--way", "train"], ["--way=train"], ["--way", "boat", "--way", "train"]])
def test_options_of__a_value_brings_options_of_its_own(way, capsys):
    given, parser = journey(*way, "--wagons", "4", "--days", "1")
    assert given == Journey(1, Crew("train", {"wagons": 4.0}))
    assert "--wagons WAGONS" in parser.format_help() and "--sails" not in parser.format_help()
    with pytest.raises(BadInput, match="--sails"):
        journey(*way, "--sails", "2")
    assert journey("--sails", "2")[0] == Journey(3, Crew("boat", {"sails": 2}))
    assert journey(*way)[0].crew.vehicle == {}  # the class has its defaults
    with pytest.raises(BadInput, match=r"--wagons is .*, not 'many'"):
        journey(*way, "--wagons", "many")


@dataclass(frozen=True)
class Sizes(Validated):
    k_dist: int = option(1, "neighbours")
    window: int | None = option(None, "classes", name="group-classes")

    def check(self):
        self.require_min(1, "k_dist", "window")


@pytest.mark.parametrize(
    ("words", "name"), [(["--k-dist", "0"], "--k-dist"), (["--group-classes=0"], "--group-classes")]
)
def test_options_of_names_the_option_of_a_field(words, name):
    with pytest.raises(BadInput, match=f"^{name} "):
        parsed(words, Sizes)


@pytest.mark.parametrize("sentence", ["Sizes.window must be at least 1.", "window must be at least 1."])
def test_named_by_option_finds_class_and_field(sentence):
    assert str(named_by_option(BadInput(sentence), list(leaves(Sizes)))).startswith("--group-classes ")


def test_named_by_option_leaves_fields_of_a_map_alone():
    every = list(leaves(InputOptions))
    for sentence in ("give the map logits=x,labels=y.", "set --map logits=x,labels=y."):
        assert "--map logits=x,labels=y." in str(named_by_option(BadInput(sentence), every))
    assert isinstance(named_by_option(Undefined("Give labels."), every), Undefined)


def test_named_by_option_keeps_other_sentences():
    for sentence in ("There is no window.", "file.npz has no window.", "Other.name is 1."):
        assert str(named_by_option(BadInput(sentence), list(leaves(Sizes)))) == sentence


def test_numbers__a_list_of_numbers_does_not_fill_the_memory():
    assert numbers("0-2,7") == (0, 1, 2, 7)
    for text in ("5-3", "0-999999999", "0-999999,7", "1-2,-9-99999999999999999999"):
        with pytest.raises(SpecError):
            numbers(text)


@dataclass(frozen=True)
class Loop:
    epochs: int = option(1, "passes")
    rate: float = option(0.1, "learning rate")


@dataclass(frozen=True)
class Study:
    networks: tuple[str, ...] = option((), "of one's own", instead_of="runs training")
    runs: int = option(2, "repetitions")
    limit: int = option(3, "images")
    training: Loop = nested(Loop())


@dataclass(frozen=True)
class Lists:
    all: tuple[int, ...] = option((), "all without it", unset="all")
    some: tuple[int, ...] = option((1,), "a default that nothing replaces")
    none: tuple[str, ...] = option(("a=1",), "none of them", unset="none")
    inside: tuple[int, ...] | None = option(None, "classes")
    name: str | None = option(None, "a text")
    later: tuple[int, ...] = option((5,), "of the other preset none")


@pytest.mark.parametrize("name", ["all", "some", "inside", "name"])
def test_options_of__an_empty_value_that_means_nothing_of_its_own_is_refused(name):
    parser = Parser()
    add_options(parser, Lists)
    with pytest.raises(BadInput, match=f"^--{name} is empty"):
        options_of(parser.parse_args([f"--{name}="]), Lists)


def test_options_of__an_empty_list_in_place_of_a_default_is_none():
    parser = Parser()
    add_options(parser, Lists)
    assert options_of(parser.parse_args(["--none="]), Lists).none == ()
    with pytest.raises(BadInput, match="--later is empty"):
        options_of(parser.parse_args(["--later="]), Lists)
    presets = {"small": Lists(), "large": Lists(later=())}
    parser = Parser()
    add_options(parser, Lists, presets)
    assert options_of(parser.parse_args(["--later="]), Lists, presets).later == ()


def test_options_of__an_option_that_another_makes_idle_is_refused():
    parser = Parser()
    add_options(parser, Study)

    def read(*words: str) -> Study:
        return options_of(parser.parse_args(words), Study)

    assert read("--networks", "a", "--limit", "5") == Study(("a",), limit=5)
    with pytest.raises(BadInput, match="--networks is empty"):
        read("--networks", "")  # it would train
    assert read("--runs", "3", "--rate", "0.2") == Study(runs=3, training=Loop(rate=0.2))
    for words, flag in ((["--runs", "3"], "--runs"), (["--rate", "0.1"], "--rate")):
        with pytest.raises(BadInput, match=f"^{flag} .* --networks"):
            read("--networks", "a", *words)


# ---- lists that name files


def test_options__a_comma_inside_of_a_path_that_exists_separates_nothing(tmp_path, monkeypatch):
    folder = tmp_path / "a,b=c@d#e,f"
    folder.mkdir()
    (folder / "x,y.npz").touch()
    (tmp_path / "a").mkdir()
    one, two, missing = folder / "x,y.npz", folder / "z", folder / "new.csv"
    for texts in (
        ["erm", "mc-dropout"],
        [f"{one}", f"{missing}"],
        [f"{missing}", f"{one}", "digits"],
        [f"far={one}", f"near={two}"],
        [f"folder:{two}@32#0-9", f"npz:{one}@64", "mnist"],
        [f"resnet18@{one}", f"digits=npz:{one}", f"erm={one}:{one}"],
    ):
        assert items(",".join(texts)) == texts
    monkeypatch.chdir(folder)
    assert items("x,y.npz,x,z.npz,y") == ["x,y.npz", "x", "z.npz", "y"]
    monkeypatch.chdir(tmp_path)
    assert items("a/x,a/y,out,scores.csv") == ["a/x", "a/y", "out", "scores.csv"]
    assert items("") == [""] and items("a,,b") == ["a", "", "b"]
    assert items(",".join(["a"] * 3000)) == ["a"] * 3000


def test_options__an_equals_sign_inside_of_a_path_that_exists_ends_no_name(tmp_path):
    folder = tmp_path / "lr=0.1"
    folder.mkdir()
    file = folder / "seed=1.npz"
    file.touch()
    assert assignment(f"{file}") == ("", f"{file}")
    assert assignment(f"{folder}/new.npz") == ("", f"{folder}/new.npz")
    assert assignment(f"{file}:{file}") == ("", f"{file}:{file}")
    assert assignment(f"folder:{folder}/new") == ("", f"folder:{folder}/new")
    assert assignment(f"erm={file}") == ("erm", f"{file}")
    assert assignment("near:cifar100=a.npz") == ("near:cifar100", "a.npz")
    assert assignment("timm/resnet50=a/b.npz") == ("timm/resnet50", "a/b.npz")
    assert assignment(f"npz:{file}=npz:{file}") == (f"npz:{file}", f"npz:{file}")
    assert assignment(f"erm={file}:{file}") == ("erm", f"{file}:{file}")
    assert assignment("=a.npz") == ("", "=a.npz") and assignment("a=") == ("", "a=")


def test_options__separators_inside_of_a_path_that_exists_are_part_of_it(tmp_path, monkeypatch):
    folder = tmp_path / "x#=,@y:z"
    folder.mkdir()
    file = folder / "a.npz"
    file.touch()
    assert split(f"npz:{file}#0-4#5-9", "#") == [f"npz:{file}", "0-4", "5-9"]
    assert split(f"{file}:{file}", ":") == [f"{file}", f"{file}"]
    assert split(f"net@{file}", "@") == ["net", f"{file}"]
    assert split(f"a={file},b={folder}@2", "=", ",", "@") == ["a", f"{file}", "b", f"{folder}", "2"]
    assert split("digits#0-4", "#") == ["digits", "0-4"] and split("", "#") == [""]
    monkeypatch.setenv("HOME", str(folder))
    assert split("npz:~/a.npz#1", "#") == ["npz:~/a.npz", "1"]
    monkeypatch.chdir(tmp_path)
    assert split("x#=,@y:z/a.npz:x#=,@y:z", ":") == ["x#=,@y:z/a.npz", "x#=,@y:z"]


def test_options_of__pairs_are_split_before_names_and_not_in_their_paths(tmp_path):
    folder = tmp_path / "a,b=c,d"
    folder.mkdir()
    words = [f"far={folder}/x.npz,near={folder}/y.npz", "--named", "a=1,2,b=3"]
    parser = Parser()
    add_options(parser, Holder)
    given = options_of(parser.parse_args(["--named", words[0], *words[1:]]), Holder).named
    assert given == (f"far={folder}/x.npz", f"near={folder}/y.npz", "a=1,2", "b=3")


@dataclass(frozen=True)
class Holder:
    named: tuple[str, ...] = option((), "files by name", style="repeats")
