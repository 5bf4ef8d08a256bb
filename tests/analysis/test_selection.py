"""The best trials by their mean validation score over data seeds."""

import math
import subprocess
import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nescio.analysis.selection import best_trials
from nescio.errors import BadInput

ERM = ("erm", "conv", None)


def row(trial, seed, value, metric="nll", split="val", method="erm", spectral=None, **more):
    told = {"method": method, "backbone": "conv", "spectral": spectral, "trial": trial, "data_seed": seed}
    rest = {"init_seed": 0, "members": 1, "calibrated": False, "group": None, "measure": None}
    return {**told, **rest, "split": split, "metric": metric, "value": value, **more}


def table(scores, **more):
    """{trial: [value of data seed 0, 1, …]} as rows; None leaves a row out."""
    pairs = [(trial, seed, value) for trial, values in scores.items() for seed, value in enumerate(values)]
    return [row(trial, seed, value, **more) for trial, seed, value in pairs if value is not None]


def test_selection__leaves_torch_out():
    code = "import sys, nescio.analysis.selection; sys.exit('torch' in sys.modules)"
    subprocess.run([sys.executable, "-c", code], check=True)


def test_best_trials__the_mean_over_data_seeds_decides():
    # Trial 0 has the best single number, trial 1 the best mean, 0.45 against 0.5 and 0.6.
    rows = table({0: [0.1, 0.9], 1: [0.5, 0.4], 2: [0.6, 0.6]})
    assert best_trials(rows, 1) == {ERM: [1]}
    assert best_trials(rows, 2) == {ERM: [1, 0]}
    assert best_trials(rows, 3).notes == []


def test_best_trials__every_group_chooses_for_itself():
    rows = table({0: [1.0], 1: [2.0]}) + table({0: [2.0], 1: [1.0]}, spectral=5.0)
    rows += table({0: [0.0], 1: [9.0]}, method="mimo")
    assert best_trials(rows, 1) == {ERM: [0], ("erm", "conv", 5.0): [1], ("mimo", "conv", None): [0]}
    assert best_trials(rows[:4], 1, by=("spectral",)) == {(None,): [0], (5.0,): [1]}


def test_best_trials__the_registry_says_which_direction_is_good():
    scores = {0: [0.2, 0.3], 1: [0.8, 0.7]}
    assert best_trials(table(scores), 1) == {ERM: [0]}
    assert best_trials(table(scores, metric="accuracy"), 1, metric="accuracy") == {ERM: [1]}
    assert best_trials(table(scores, metric="sac@0.95"), 1, metric="sac@0.95") == {ERM: [1]}
    with pytest.raises(BadInput, match="no metric named 'nil'"):
        best_trials(table(scores), 1, metric="nil")


def test_best_trials__a_metric_without_direction_selects_nothing():
    with pytest.raises(BadInput, match="threshold"):
        best_trials(table({0: [0.0]}, metric="threshold"), 1, metric="threshold")


def test_best_trials__ties_go_to_the_lower_trial_number():
    assert best_trials(table({11: [0.5], 3: [0.5], 2: [0.6]}), 2) == {ERM: [3, 11]}
    # 0.1 + 0.2 + 0.3 in two orders: rounding differs, the exact sum does not.
    assert best_trials(table({5: [0.1, 0.2, 0.3], 4: [0.3, 0.2, 0.1]}), 1) == {ERM: [4]}


@pytest.mark.parametrize("failed", [None, math.nan, math.inf])
def test_best_trials__a_trial_that_lacks_a_seed_is_left_out_and_named(failed):
    rows = table({0: [0.01, failed], 1: [0.5, 0.5]})
    chosen = best_trials(rows, 1)
    assert chosen == {ERM: [1]}
    (note,) = chosen.notes
    assert note.startswith("method erm, backbone conv, no spectral: trial 0 ") and note.endswith("data seed 1.")


def test_best_trials__a_row_without_a_number_counts_as_failed():
    chosen = best_trials([row(0, 0, None), row(1, 0, 0.7)], 1)
    assert chosen == {ERM: [1]} and "trial 0" in chosen.notes[0]


def test_best_trials__seeds_are_those_of_the_whole_study():
    # mimo failed for data seed 1 in every trial: its mean over one seed is not comparable, so the group is absent.
    rows = table({0: [0.5, 0.5]}) + table({0: [0.1]}, method="mimo")
    chosen = best_trials(rows, 1)
    assert chosen == {ERM: [0]}
    assert any("mimo" in note and note.startswith("method mimo") for note in chosen.notes)
    assert best_trials(rows, 1, seeds=[0]) == {ERM: [0], ("mimo", "conv", None): [0]}
    assert best_trials(table({0: [0.5]}), 1, seeds=[0, 1]) == {}


def test_best_trials__more_than_there_are_gives_all_and_says_so():
    chosen = best_trials(table({0: [0.5], 1: [0.4]}), 5)
    assert chosen == {ERM: [1, 0]}
    assert "best 5 only 2" in chosen.notes[0]


def test_best_trials__trials_that_never_came_are_named_when_the_plan_is_known():
    chosen = best_trials(table({0: [0.5, 0.5]}), 1, trials=range(3))
    assert chosen == {ERM: [0]}
    assert [note.split(": ")[1].split(" is")[0] for note in chosen.notes] == ["trial 1", "trial 2"]
    assert chosen.notes[0].endswith("for data seeds 0, 1.")


def test_best_trials__only_plain_validation_rows_of_single_models_count():
    rows = table({0: [0.5], 1: [0.6]})
    best = {"value": 0.0}
    rows += [{**row(1, 0, 0.0), **best, **other} for other in ({"split": "test"}, {"metric": "ece"}, {"members": 5})]
    rows += [row(1, 0, 0.0, calibrated=True), row(0, 0, 1.0, calibrated=True)]
    assert best_trials(rows, 1) == {ERM: [0]}
    assert best_trials(rows, 1, calibrated=True) == {ERM: [1]}
    with pytest.raises(BadInput, match="two rows"):  # a part of the validation rows beside all of them
        best_trials([*rows, row(1, 0, 0.0, severity=3.0)], 1)


def test_best_trials__initialisations_are_candidates_too_when_named():
    rows = [row(0, 0, 0.5, init_seed=0), row(0, 0, 0.3, init_seed=1), row(1, 0, 0.4, init_seed=0)]
    with pytest.raises(BadInput, match="trial 0, data seed 0 has two rows"):
        best_trials(rows, 1)
    assert best_trials(rows, 2, member=("trial", "init_seed")) == {ERM: [(0, 1), (1, 0)]}


def test_best_trials__rows_from_a_table_file_mean_the_same():
    # A column with empty cells comes back from Parquet as floats, with NaN where nothing stood.
    rows = [
        {**each, "spectral": math.nan, "group": math.nan, "trial": float(each["trial"])}
        for each in table({0: [0.5, 0.6], 3: [0.4, 0.3]})
    ]
    chosen = best_trials(rows, 1)
    assert chosen == {ERM: [3]} and isinstance(chosen[ERM][0], int)


@pytest.mark.parametrize("k", [0, -1])
def test_best_trials__at_least_one_must_be_asked_for(k):
    with pytest.raises(BadInput, match="at least one"):
        best_trials(table({0: [0.5]}), k)


def test_best_trials__nothing_to_select_from_is_a_sentence():
    with pytest.raises(BadInput, match=r"nll .* val"):
        best_trials(table({0: [0.5]}, split="test"), 1)


VALUES = st.one_of(st.none(), st.just(math.nan), st.sampled_from([0.1, 0.2, 0.3, 0.7, 1e-9, 1e9]), st.floats(0, 10))


@given(st.data())
def test_best_trials__order_of_rows_never_matters_and_the_definition_holds(data):
    cells = [(trial, seed) for trial in range(6) for seed in range(3)]
    rows = [row(trial, seed, data.draw(VALUES)) for trial, seed in cells]
    rows.append(row(6, 0, 0.5))
    k = data.draw(st.integers(1, 8))
    chosen = best_trials(rows, k, seeds=range(3))
    again = best_trials(data.draw(st.permutations(rows)), k, seeds=range(3))
    assert again == chosen and again.notes == chosen.notes
    held = {(each["trial"], each["data_seed"]): each["value"] for each in rows}
    means = {}
    for trial in range(6):
        values = [held[trial, seed] for seed in range(3)]
        if all(value is not None and value == value for value in values):
            means[trial] = math.fsum(values) / 3
    assert chosen.get(ERM, []) == sorted(means, key=lambda trial: (means[trial], trial))[:k]
    assert all(math.isfinite(means[trial]) for trial in chosen.get(ERM, []))
    assert sum("omitted, because" in note for note in chosen.notes) == 7 - len(means)
