"""`nescio choose`: the best model under a constraint by brute force, and who cannot be told from it."""

from __future__ import annotations

import json
import shlex
import shutil

import numpy as np
import pytest

from nescio.analysis.comparison import compare
from nescio.analysis.model_choice import Requirement, choose_model, highest, pareto_front
from nescio.cli import main
from nescio.errors import BadInput
from nescio.metrics import Ranking
from nescio.networks.limits import Limits, parse_parameter_count
from nescio.networks.published import with_facts
from nescio.predictions import Predictions
from nescio.report.choices import choice_table
from nescio.report.verdicts import choice_sentences
from nescio.work.store import Store
from tests.support.fake_zoo import NAMES, answers, entry, keep, zoo

RESAMPLES = 400  # as many as Holm needs to tell one of ten models from the best


@pytest.fixture(scope="module")
def held(tmp_path_factory):
    return zoo(tmp_path_factory.mktemp("dumps"), NAMES[:9])


def softmax(dump):
    z = np.asarray(dump.logits[:, 0], np.float64)
    p = np.exp(z - z.max(1, keepdims=True))
    return p / p.sum(1, keepdims=True)


def coverage_of(dump, accuracy):
    """The largest share of rows, the surest first, of which this share is right; no two rows tie here."""
    p = softmax(dump)
    right = (p.argmax(1) == dump.labels)[np.argsort(-p.max(1))]
    kept = [i for i in range(1, len(right) + 1) if right[:i].sum() >= accuracy * i - 1e-9]
    return max(kept, default=0) / len(right)


def risk_of(dump, coverage):
    p = softmax(dump)
    right = (p.argmax(1) == dump.labels)[np.argsort(-p.max(1))]
    return 1 - right[: int(np.ceil(round(coverage * len(right), 6)))].mean()


def quick(models, requirement, limits=None, **options):
    models = with_facts(models)
    return choose_model(models, requirement, limits and limits.refused(models), resamples=RESAMPLES, **options)


# ---- the choice


def test_requirement__most_coverage_at_an_accuracy(held):
    found = quick(held, Requirement(accuracy=0.95))
    expected = {each.model: coverage_of(each.load(), 0.95) for each in held}
    assert {line["model"]: line["value"] for line in found.models} == pytest.approx(expected)
    order = [line["model"] for line in found.models]
    assert order == sorted(expected, key=lambda name: -expected[name])
    assert found.models[0]["rank"] == 1 and found.models[0]["difference"] is None and found.attained
    assert all(line["low"] <= line["value"] <= line["high"] for line in found.models)
    assert "coverage" in choice_sentences(found)[0] and order[0] in choice_sentences(found)[0]


def test_requirement__least_risk_at_a_coverage(held):
    found = quick(held, Requirement(coverage=0.8))
    expected = {each.model: risk_of(each.load(), 0.8) for each in held}
    assert {line["model"]: line["value"] for line in found.models} == pytest.approx(expected)
    assert [line["value"] for line in found.models] == pytest.approx(sorted(expected.values()))


def test_requirement__neither_asks_who_knows_best(held):
    found = quick(held, Requirement())
    values = [line["auroc"] for line in found.models]
    assert values == sorted(values, reverse=True) == [line["value"] for line in found.models]
    assert found.requirement.metric == "auroc" and "AUROC ↑" in choice_table(found).columns


def test_requirement__the_group_is_that_of_the_paired_bootstrap(held):
    found = quick(held, Requirement(accuracy=0.95), seed=3)
    dumps = {line["model"]: next(e for e in held if e.model == line["model"]).load() for line in found.models}
    same = compare(dumps, metrics=["sac@0.95"], resamples=RESAMPLES, seed=3)
    assert found.group == [row["method"] for row in same.rows if row["best"]]
    assert 1 < len(found.group) < len(held)
    lines = {line["model"]: line for line in found.models}
    for each in same.differences:
        line = lines[each["model"]]
        assert (line["difference"], line["difference_low"], line["p"]) == (
            each["difference"],
            each["low"],
            each["adjusted"],
        )
    bold = {name for (name,), cells in choice_table(found).rows if cells[0].best}
    assert bold == set(found.group)
    words = " ".join(choice_sentences(found))
    assert all(name in words for name in found.group) and f"n = {found.n}" in words


def test_requirement__rows_are_joined_on_index(tmp_path):
    """Shuffled rows change nothing; rows that one model lacks are left out for all."""
    a, b = answers(1), answers(2)
    rng = np.random.default_rng(0)
    mixed = [entry("a", a, tmp_path / "a.npz"), entry("b", b.take(rng.permutation(len(b))), tmp_path / "b.npz")]
    plain = [entry("a", a, tmp_path / "a2.npz"), entry("b", b, tmp_path / "b2.npz")]
    for question in (Requirement(accuracy=0.9), Requirement(coverage=0.5), Requirement()):
        one, other = (
            [(line["model"], line["value"], line["accuracy"], line["auroc"]) for line in quick(each, question).models]
            for each in (mixed, plain)
        )
        assert one == other
    fewer = [plain[0], entry("b", b.take(np.arange(300)), tmp_path / "b3.npz")]
    found = quick(fewer, Requirement(accuracy=0.9))
    assert found.n == 300
    value = next(line["value"] for line in found.models if line["model"] == "a")
    assert value == pytest.approx(coverage_of(a.take(np.arange(300)), 0.9))


def test_choose_model__of_equal_models_the_smaller_one_is_chosen(tmp_path):
    dump = answers(1)
    held = [
        entry("large", dump, tmp_path / "1.npz", params=9_000_000),
        entry("unknown", dump, tmp_path / "2.npz"),
        entry("small", dump, tmp_path / "3.npz", params=1_000_000),
    ]
    found = quick(held, Requirement(accuracy=0.9))
    assert [line["model"] for line in found.models] == ["small", "large", "unknown"]
    assert [line["rank"] for line in found.models] == [1, 1, 1] and found.group == ["small", "large", "unknown"]


def test_requirement__the_smallest_that_is_as_good_is_named(tmp_path):
    good = answers(1)
    near = Predictions(labels=good.labels, index=good.index, logits=good.logits[:, 0] + np.float16(0.01) * np.arange(8))
    held = [
        entry("large", good, tmp_path / "1.npz", params=9_000_000),
        entry("small", near, tmp_path / "2.npz", params=1_000_000),
    ]
    found = quick(held, Requirement())
    words = " ".join(choice_sentences(found))
    if found.models[0]["model"] == "large":
        assert "small (1.0 M parameters)" in words
    else:
        assert "Smallest" not in words
    assert set(found.group) == {"large", "small"}


def test_requirement__a_clear_winner_has_no_group(tmp_path):
    held = [entry("good", answers(0, scale=1.0), tmp_path / "1.npz")]
    labels = held[0].load().labels
    noise = Predictions(
        labels=labels, index=held[0].load().index, logits=np.random.default_rng(9).normal(size=(400, 8))
    )
    held.append(entry("noise", noise, tmp_path / "2.npz"))
    found = quick(held, Requirement(coverage=0.5))
    assert found.group == ["good"] and len(choice_sentences(found)) == 2


def test_requirement__the_bootstrap_is_of_the_best_only(held):
    found = quick(held, Requirement(accuracy=0.95), compare_top=3)
    every = quick(held, Requirement(accuracy=0.95))
    assert [line["model"] for line in found.models] == [line["model"] for line in every.models[:3]]
    assert found.candidates == len(held) and "3 best of 9" in " ".join(choice_sentences(found))


def test_requirement__few_resamples_say_so(held):
    found = choose_model(held, Requirement(), resamples=20)
    assert any("20 resamples" in note for note in found.notes)
    assert (
        choose_model(held, Requirement(), level=0.99).notes == []
    )  # a thousand would be too few: more are drawn unasked


# ---- when nothing attains it


@pytest.fixture(scope="module")
def hopeless(tmp_path_factory):
    """Models that are surest where they are wrong: no threshold keeps 99 %."""
    folder, found = tmp_path_factory.mktemp("hopeless"), []
    for number, share in enumerate((0.3, 0.1)):
        right = np.arange(200) >= 200 * share
        sure = np.where(right, 2.0, 6.0) + np.linspace(0, 1, 200)
        logits = np.zeros((200, 3))
        logits[np.arange(200), np.where(right, 0, 1)] = sure
        dump = Predictions(logits=logits, labels=np.zeros(200, int))
        found.append(entry(f"m{number}", dump, folder / f"{number}.npz"))
    return found


def test_choose_model__an_accuracy_that_no_model_attains_is_said(hopeless):
    found = quick(hopeless, Requirement(accuracy=0.99))
    assert not found.attained and found.group == []
    assert found.closest == {"model": "m1", "accuracy": pytest.approx(0.9), "coverage": 1.0}
    words = " ".join(choice_sentences(found))
    assert words.index("99 %") < words.index("m1") < words.index("90.0 %")
    assert not any(cells[0].best for _, cells in choice_table(found).rows)
    assert quick(hopeless, Requirement(accuracy=0.9)).models[0]["value"] == 1.0


def test_choose__it_ends_with_one_and_json_has_no_choice(hopeless, capsys):
    files = [str(each.path) for each in hopeless]
    assert main(["choose", *files, "--accuracy", "0.99", "--bootstrap", "50", "--format", "json"]) == 1
    told = json.loads(capsys.readouterr().out)
    assert told["choice"] is None and told["group"] == [] and told["closest"]["accuracy"] == pytest.approx(0.9)
    assert main(["choose", *files, "--accuracy", "0.99", "--bootstrap", "50"]) == 1
    assert "99 %" in capsys.readouterr().out


def test_highest__the_highest_accuracy_is_at_a_threshold():
    assert highest(Ranking([1, 1, 2, 3], [True, False, False, True])) == (pytest.approx(2 / 3), 0.75)
    assert highest(Ranking([1, 2, 3], [False, False, True])) == (1.0, pytest.approx(2 / 3))


# ---- limits


def test_choose_model__limits_leave_models_out_and_say_why(held):
    most = sorted(each.facts["params"] for each in held)[4]
    found = quick(held, Requirement(), Limits(params=most))
    assert {line["model"] for line in found.models} == {e.model for e in held if e.facts["params"] <= most}
    assert f"4 × parameters above {most / 1e6:.1f} M" in " ".join(choice_sentences(found))
    found = quick(held, Requirement(), Limits(size=224))
    assert {model for model, _ in found.omitted} == {e.model for e in held if e.facts["input_size"] > 224} != set()
    found = quick(held, Requirement(), Limits(families=("DeiT", "xcit")))
    assert {line["family"] for line in found.models} == {"deit", "deit distilled"}
    assert quick(held, Requirement(), Limits(families=("deit-distilled",))).candidates == 1


def test_choose_model__a_limit_on_what_is_not_known_leaves_the_model_out(tmp_path, held):
    unknown = entry("unknown", answers(30), tmp_path / "u.npz")
    found = quick([*held, unknown], Requirement(), Limits(params=10**12))
    assert any(model == "unknown" and "--facts" in reason for model, reason in found.omitted)
    with pytest.raises(BadInput, match=r"9 × parameters above 0\.00 M"):
        quick(held, Requirement(), Limits(params=1))


@pytest.mark.parametrize(
    ("text", "count"), [("30M", 30_000_000), ("1.2B", 1_200_000_000), ("5g", 5 * 10**9), ("7k", 7000), ("1,000", 1000)]
)
def test_model_choice__counts_of_parameters(text, count):
    assert parse_parameter_count(text) == count


@pytest.mark.parametrize("text", ["", "M", "many", "-3M", "0", "nan", "infM"])
def test_model_choice__no_counts(text):
    with pytest.raises(BadInput, match="such as 30M"):
        parse_parameter_count(text)


# ---- other uncertainties


def test_requirement__entropy_withholds_by_entropy(held):
    found = quick(held, Requirement(), measure="entropy")
    best = compare({each.model: each.load() for each in held}, measure="entropy", metrics=["auroc"], resamples=50)
    assert {line["model"]: line["value"] for line in found.models} == {row["method"]: row["value"] for row in best.rows}


def test_requirement__mc_dropout_answers_with_its_own_mean(tmp_path):
    held = [entry(f"m{k}", answers(k, dropout=True), tmp_path / f"{k}.npz") for k in range(3)]
    held.append(entry("plain", answers(7), tmp_path / "p.npz"))
    found = quick(held, Requirement(coverage=0.8), measure="mc-dropout")
    for each in held[:3]:
        dump = each.load()
        p = np.exp(dump.variants["mc-dropout"])
        wrong = (p.argmax(1) != dump.labels)[np.argsort((-p * np.log(p)).sum(1))]
        line = next(line for line in found.models if line["model"] == each.model)
        assert line["value"] == pytest.approx(wrong[:320].mean())
        assert line["accuracy"] == pytest.approx(1 - wrong.mean())
    ((model, why),) = found.omitted
    assert model == "plain" and "dropout" in why


def test_choose_model__a_model_that_is_always_right_has_no_auroc(tmp_path, held):
    labels = held[0].load().labels
    perfect = Predictions(labels=labels, index=held[0].load().index, logits=9.0 * np.eye(8)[labels])
    more = [*held, entry("perfect", perfect, tmp_path / "p.npz")]
    found = quick(more, Requirement())
    assert ("perfect" in dict(found.omitted)) and "rows are negative" in dict(found.omitted)["perfect"]
    found = quick(more, Requirement(accuracy=0.99))
    assert found.models[0]["model"] == "perfect" and found.models[0]["value"] == 1 and found.models[0]["auroc"] is None
    assert found.group == ["perfect"]
    choice_table(found)


# ---- the command


@pytest.fixture(scope="module")
def store(tmp_path_factory, held):
    """A store as `nescio zoo` leaves it."""
    found = Store(tmp_path_factory.mktemp("choose") / "store")
    for each in held[:5]:
        for outside in (False, True):
            facts = {
                "model": each.model,
                "data": "npz:images",
                "outside": outside,
                "compared": True,
                "rows": 400,
                **each.facts,
            }
            with found.work("predict", {"model": each.model, "outside": outside}) as step_folder:
                dump = each.load().replace(in_distribution=not outside)
                dump.save(step_folder.path / "predictions")
                step_folder.write("facts.json", json.dumps(facts).encode())
    return found


def test_model_choice__a_store_of_models(store, held, capsys):
    args = ["choose", "--store", str(store.root), "--accuracy", "0.95", "--bootstrap", "100", "--format", "json"]
    assert main(args) == 0
    told = json.loads(capsys.readouterr().out)
    expected = {each.model: coverage_of(each.load(), 0.95) for each in held[:5]}
    assert told["choice"] == max(expected, key=expected.get) and told["value"] == max(expected.values())
    assert told["candidates"] == 5 and told["metric"] == "sac@0.95" and told["measure"] == "msp"
    assert told["low"] <= told["value"] <= told["high"] and told["choice"] in told["group"]
    assert main([*args, "--data", "npz:images", "--max-params", "20M"]) == 0
    small = json.loads(capsys.readouterr().out)
    assert all(line["params"] <= 20e6 for line in small["models"]) and small["omitted"]
    assert main([*args, "--data", "npz:others"]) == 2
    assert "npz:others" in capsys.readouterr().err


def test_choose__the_table_for_people(held, capsys):
    files = [f"{each.model}={each.path}" for each in held[:4]]
    assert main(["choose", *files, "--accuracy", "0.95", "--bootstrap", "60"]) == 0
    out = capsys.readouterr().out
    assert out.startswith("Choose ") and "95 %" in out
    for form in ("csv", "markdown", "latex"):
        assert main(["choose", *files, "--coverage", "0.8", "--bootstrap", "20", "--format", form]) == 0
        assert held[0].model.replace("_", "") in capsys.readouterr().out.replace("\\_", "").replace("_", "")


def test_model_choice__facts_from_a_table_as_timm_publishes_it(held, tmp_path, capsys):
    facts = tmp_path / "results.csv"
    facts.write_text('model,top1,param_count,img_size\nlight,80.1,5.29,224\nheavy,85.0,"1,304.33",560\n')
    files = [f"light={held[0].path}", f"heavy={held[1].path}"]
    args = ["choose", *files, "--facts", str(facts), "--bootstrap", "50", "--format", "json"]
    assert main([*args, "--max-params", "30M"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert told["choice"] == "light" and told["models"][0]["params"] == pytest.approx(5.29e6)
    assert told["models"][0]["input_size"] == 224 and told["omitted"][0]["model"] == "heavy"
    for text, said in (("a,b\n1,2\n", "no column named model"), ("model,param_count\nx,many\n", "is not a number")):
        facts.write_text(text)
        assert main(args) == 2
        assert said in capsys.readouterr().err


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--accuracy", "99"], "accuracy must be above 0"),
        (["--coverage", "0"], "--coverage"),
        (["--accuracy", "0.9", "--coverage", "0.8"], "not both"),
        (["--max-params", "lots"], "such as 30M"),
        (["--measure", "knn_distance"], "must be fitted first"),
        (["--measure", "nothing"], "no measure named 'nothing'"),
        (["--compare-top", "0"], "at least 1"),
        (["--families", "vit"], "not of the family vit"),
        (["--data", "npz:x"], "omit one of them"),
        (["--bootstrap", "0"], "resamples is 0"),
    ],
)
def test_choose__bad_words(held, tmp_path, capsys, words, said):
    files = [str(held[5].path), f"b={held[6].path}"]
    try:
        code = main(["choose", *files, *words])
    except SystemExit as stop:
        code = stop.code
    assert code == 2 and said in capsys.readouterr().err


def test_choose__bad_files(held, tmp_path, capsys):
    file = str(held[0].path)
    for files, said in (
        ([file, file], "given twice"),
        ([str(tmp_path / "none.npz")], "no file or folder"),
        ([f"x={tmp_path / 'none.npz'}"], "no file or folder"),
        (["--store", str(tmp_path / "none")], "There is no store at"),
    ):
        assert main(["choose", *files]) == 2
        assert said in capsys.readouterr().err
    nameless = entry("n", Predictions(logits=np.ones((4, 3))), tmp_path / "n.npz")
    assert main(["choose", file, str(nameless.path)]) == 2
    assert "n: There are no labels" in capsys.readouterr().err


def test_model_choice__the_next_command_runs(store, held, tmp_path, capsys):
    """From the choice to a threshold without a hole: of models of a store, and of files."""
    words = ["choose", "--accuracy", "0.9", "--bootstrap", "100"]
    for more in (["--store", str(store.root)], [str(model.path) for model in held[:2]]):
        assert main([*words, *more]) == 0
        line = next(line for line in capsys.readouterr().out.splitlines() if line.startswith("Next"))
        program, *command = shlex.split(line.partition(": ")[2])
        assert program == "nescio" and command[0] == "threshold" and "--risk 0.1" in line
        assert main([*command, "--format", "json"]) in (0, 1)
        promise = json.loads(capsys.readouterr().out)
        assert promise["model"] and promise["predictions"] and promise["risk"] == pytest.approx(0.1)


def test_choose__a_damaged_dump_of_a_store_is_a_sentence(store, tmp_path, capsys):
    copy = shutil.copytree(store.root, tmp_path / "store")
    for file in copy.glob("predict/*/predictions/logits.npy"):
        content = bytearray(file.read_bytes())
        content[-1] ^= 0x40
        file.write_bytes(content)
    assert main(["choose", "--store", str(copy), "--accuracy", "0.9"]) != 0
    assert "predictions/logits.npy changed" in capsys.readouterr().err


@pytest.mark.parametrize("lower_x_is_better", [True, False])
def test_pareto_front__the_front_is_what_nothing_beats(lower_x_is_better):
    rng = np.random.default_rng(2)
    for _ in range(40):
        points = [(float(x), float(y)) for x, y in rng.integers(6, size=(rng.integers(1, 14), 2))]
        sign = -1 if lower_x_is_better else 1

        def beaten(p, points=points, sign=sign):
            return any(sign * q[0] >= sign * p[0] and q[1] >= p[1] and q != p for q in points)

        assert pareto_front(points, lower_x_is_better) == sorted({p for p in points if not beaten(p)})


def test_choose__two_sets_of_a_store_are_named_with_the_option_that_chooses_one(tmp_path, capsys):
    store = Store(tmp_path / "store")
    for seed, name in enumerate(NAMES[:2]):
        for data in ("digits", "some letters"):
            keep(store, name, data, answers(seed, 200), False)
    root = str(store.root)
    assert main(["choose", "--store", root]) == 2
    said = capsys.readouterr().err
    assert "--data digits" in said and "--data 'some letters'" in said
    assert main(["choose", "--store", root, "--data", "mnist"]) == 2
    said = capsys.readouterr().err
    assert "--data digits" in said and "--data 'some letters'" in said
    models = [f"zoo:{name}" for name in NAMES[:2]]
    assert main(["choose", *models, "--store", root]) == 2
    said = capsys.readouterr().err
    assert "--data digits" in said and "--data 'some letters'" in said
    for words in ([], models):
        assert main(["choose", *words, "--store", root, "--data", "some letters", "--format", "json"]) == 0
        assert json.loads(capsys.readouterr().out)["n"] == 200
