"""Files of options: what they set, what overrides them, and how errors name key and line."""

import dataclasses
from types import SimpleNamespace

import pytest
import yaml

from nescio.benchmarks.base import BUILT_IN
from nescio.benchmarks.base import registry as benchmarks
from nescio.cli import main
from nescio.commands.config import ConfigFile, config_text
from nescio.commands.option_table import option_classes
from nescio.commands.parsing import Parser, add_options
from nescio.commands.run import RunOptions
from nescio.options import REQUIRED, leaves, options_of
from nescio.predictions import Predictions
from tests.test_options import variants

COMMANDS = {name: cls for name, cls in option_classes() if isinstance(cls, type) and "--launcher" not in name}


def parsed(text, folder, command, *parts, words=()):
    """The instances that a file and words give; a part is a class, or a class with its presets."""
    file = folder / "options.yaml"
    file.write_text(text)
    config = ConfigFile(file)
    parser = Parser(prog=f"nescio {command}")
    typed = [*config.argv(), *words]
    for cls, presets in parts:
        add_options(parser, cls, presets, argv=typed)
    args = parser.parse_args(list(words))
    config.apply(args, command.split(), parser.leaves)
    return [options_of(args, cls, presets) for cls, presets in parts]


def filled(cls):
    """An instance with a value for every required field."""
    values = {}
    for leaf in leaves(cls):
        if leaf.default is REQUIRED:
            text = leaf.choices[0] if leaf.choices else "x"
            values[leaf.path[0]] = (text,) if "tuple" in str(leaf.hint) else text
    return cls(**values)


@pytest.mark.parametrize("name", [name for name in COMMANDS if not name.startswith("run")])
def test_config_text_of_every_command_gives_its_options_again(name, tmp_path):
    first = filled(COMMANDS[name])
    for options in (first, *variants(first)):
        if getattr(getattr(options, "worker_options", None), "launcher", "local") != "local":
            continue
        text = config_text(name.split(), options)
        (again,) = parsed(text, tmp_path, name, (COMMANDS[name], None))
        assert [leaf.value(again) for leaf in leaves(COMMANDS[name])] == [
            leaf.value(options) for leaf in leaves(COMMANDS[name])
        ]


@pytest.mark.parametrize("name", BUILT_IN)
def test_config_text_of_every_plan_gives_it_again(name, tmp_path):
    benchmark = benchmarks[name]
    plans = list(benchmark.presets.values()) or [benchmark.plan()]
    run = RunOptions()
    for plan in (*plans, *(other for preset in plans for other in variants(preset))):
        text = config_text(["run", name], plan, run, presets=benchmark.presets)
        parts = (benchmark.plan, benchmark.presets), (RunOptions, None)
        assert parsed(text, tmp_path, f"run {name}", *parts) == [plan, run]
    assert set(yaml.safe_load(text)) >= {entry.name for entry in dataclasses.fields(plan) if entry.name == "training"}


@dataclasses.dataclass(frozen=True)
class Inner:
    lr: float = 0.1


def test_config_file__command_line_overrides_the_file(tmp_path):
    shift = benchmarks["shift"]
    text = "preset: gpu\nmethods: [sngp, ddu]\ntraining:\n  lr: 0.5\n  epochs: 3\nbackbone: mlp\n"
    (plan,) = parsed(text, tmp_path, "run shift", (shift.plan, shift.presets))
    gpu = shift.presets["gpu"]
    assert (plan.methods, plan.training.lr, plan.training.epochs) == (("sngp", "ddu"), 0.5, 3)
    assert (plan.backbone, plan.data, plan.training.batch_size) == ("mlp", gpu.data, gpu.training.batch_size)
    words = ["--methods", "erm", "--lr", "0.2", "--preset", "small"]
    (plan,) = parsed(text, tmp_path, "run shift", (shift.plan, shift.presets), words=words)
    assert (plan.methods, plan.training.lr, plan.training.epochs) == (("erm",), 0.2, 3)
    assert plan.data == shift.presets["small"].data


@pytest.mark.parametrize(
    ("text", "field", "value"),
    [
        ("lr: 1e-3", "lr", 1e-3),  # at the top, without its section
        ("batch-size: 8", "batch_size", 8),
        ("epochs: '7'", "epochs", 7),
        ("nesterov: yes", "nesterov", True),
        ("clip: null", "clip", None),
    ],
)
def test_config_file_reads_scalars(tmp_path, text, field, value):
    shift = benchmarks["shift"]
    (plan,) = parsed(text, tmp_path, "run shift", (shift.plan, shift.presets))
    assert getattr(plan.training, field) == value


def test_config_file_reads_names_lists_and_mappings_without_separators(tmp_path):
    evaluate = COMMANDS["evaluate"]
    text = "files: [a.npz, 'b,c.npz']\nood:\n  svhn: s.npz\n  'near:x': x=1.npz\n"
    text += "views: [1.npz, 2.npz]\ninputs:\n  map: {logits: out}\n"
    (options,) = parsed(text, tmp_path, "evaluate", (evaluate, None))
    assert options.files == ("a.npz", "b,c.npz") and options.views == ("1.npz", "2.npz")
    assert options.ood[0] == "svhn=s.npz" and options.inputs.map == ("logits=out",) and "near:x" in options.ood[1]
    shift = benchmarks["shift"]
    text = "hparams: {sngp: {bound: 100}, erm.spectral: 5}\nseverities: [1, 5]\n"
    text += "ensemble_sizes: 2,3\ncorruptions: [fog, contrast]\n"
    (plan,) = parsed(text, tmp_path, "run shift", (shift.plan, shift.presets))
    assert plan.hparams == ("sngp.bound=100", "erm.spectral=5") and plan.severities == (1, 5)
    assert plan.ensemble_sizes == (2, 3) and plan.corruptions == ("fog", "contrast")


@pytest.mark.parametrize(
    ("text", "parts"),
    [
        ("data: digits\nepoch: 3\n", ("line 2", "'epoch'", "'epochs'")),
        ("training:\n  lr: 1\n  optimiser: sgd\n", ("line 3", "'optimiser'", "'optimizer'")),
        ("data: digits\n\nepochs: many\n", ("line 3", "epochs", "'many'")),
        ("training:\n  nesterov: perhaps\n", ("line 2", "nesterov")),
        ("epochs: [1, 2]\n", ("line 1", "epochs")),
        ("epochs: 1\nepochs: 2\n", ("line 2", "epochs")),
        ("command: evaluate\n", ("line 1", "nescio evaluate")),
        ("a: [1\n", ("line 2", "YAML")),
        ("- a\n", ("OPTION: VALUE",)),
        ("schedule: cosin\n", ("line 1", "'cosine'")),
    ],
)
def test_run__bad_files_name_key_and_line(tmp_path, capsys, text, parts):
    file = tmp_path / "study.yaml"
    file.write_text(text)
    assert main(["run", "shift", "--config", str(file)]) == 2
    said = capsys.readouterr().err
    assert str(file) in said and all(part in said for part in parts), said
    assert said.count("\n") == 1


def test_evaluate__config_file_that_is_missing(capsys):
    assert main(["evaluate", "--config", "missing.yaml"]) == 2
    assert "missing.yaml" in capsys.readouterr().err


def test_runs__config_file_without_end_is_refused(capsys):
    assert main(["runs", "--config", "/dev/zero"]) == 2
    assert "/dev/zero" in capsys.readouterr().err


def test_evaluate__every_page_has_the_file_that_repeats_its_command(tmp_path, capsys):
    file = tmp_path / "a.npz"
    Predictions(logits=[[2.0, 0, 0], [0, 1, 0], [0, 0, 3], [1, 0, 0]], labels=[0, 1, 2, 1]).save(file)
    page = tmp_path / "page"
    assert main(["evaluate", str(file), "--output", str(page), "--seed", "3"]) == 0
    first = capsys.readouterr().out
    config = yaml.safe_load((page / "config.yaml").read_text())
    assert config == {"command": "evaluate", "files": [str(file)], "seed": 3, "output": str(page)}
    rows = (page / "rows.csv").read_bytes()
    (page / "rows.csv").unlink()
    assert main(["evaluate", "--config", str(page / "config.yaml")]) == 0
    assert capsys.readouterr().out == first and (page / "rows.csv").read_bytes() == rows


def test_run__store_keeps_the_file_that_repeats_a_study(tmp_path, capsys):
    file = tmp_path / "a.npz"
    Predictions(logits=[[i % 3 * 1.0, i % 5, 2] for i in range(60)], labels=[i % 3 for i in range(60)]).save(file)
    words = ["run", "selective", f"a={file}", "--measures", "msp", "--store", str(tmp_path / "store")]
    assert main([*words, "--format", "json"]) == 0
    rows = capsys.readouterr().out
    (config,) = (tmp_path / "store" / "study").glob("*/config.yaml")
    assert main(["run", "selective", "--config", str(config)]) == 0
    assert capsys.readouterr().out == rows


def test_config_file__apply_leaves_typed_options(tmp_path):
    file = tmp_path / "x.yaml"
    file.write_text("seed: 5\nlimit: 9\n")
    options = list(leaves(COMMANDS["compare"]))
    args = SimpleNamespace(**{"seed": "1"})
    ConfigFile(file).apply(args, ["compare"], options)
    assert args.seed == "1" and getattr(args, "inputs.limit").value == 9
