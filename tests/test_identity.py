"""Keys that survive growth: tags instead of module paths, fields that came later, plain JSON and seeds."""

import dataclasses
import math
import subprocess
import sys
from dataclasses import dataclass
from typing import Literal

import numpy as np
import pytest

from nescio.errors import BadInput
from nescio.identity import added_field, canonical, seed_for, tag, to_json, values_of
from nescio.search import HParams, choice, hparam, integers, log_uniform, uniform
from nescio.trials import Training, Trial
from nescio.work.store import Store


@tag("recipe:toy-identity")
@dataclass(frozen=True)
class Toy(HParams):
    rate: float = hparam(0.1, log_uniform(1e-3, 1.0), help="learning rate of the head")
    share: float = hparam(0.5, uniform(0.0, 1.0))
    depth: int = hparam(2, integers(1, 4))
    widths: tuple[int, ...] = hparam((8,), choice((8,), (8, 8)))
    mode: Literal["a", "b"] = "a"
    limit: float | None = None


def test_identity__leaves_torch_out():
    code = "import sys, nescio.trials, nescio.search, nescio.work.store; sys.exit('torch' in sys.modules)"
    subprocess.run([sys.executable, "-c", code], check=True)


# ---- canonical JSON and seeds


def test_to_json__equal_values_have_equal_json():
    assert to_json({"b": (1, 2.5), "a": None}) == '{"a":null,"b":[1,2.5]}'
    assert to_json(np.float64(0.1)) == to_json(0.1) == "0.1"
    assert to_json(np.int64(3)) == "3"
    assert to_json(True) == "true"
    assert to_json(1) != to_json(1.0) != to_json("1.0")


def test_canonical__a_dataclass_is_its_tag_and_all_its_fields():
    plain = canonical(Toy())
    assert plain["kind"] == "recipe:toy-identity"
    assert plain.keys() - {"kind"} == {each.name for each in dataclasses.fields(Toy)}


@pytest.mark.parametrize("value", [{1, 2}, object(), b"x", np.zeros(3), math.nan, math.inf, {1: 2}, Toy, 1j])
def test_canonical__what_json_cannot_say_exactly_is_refused(value):
    with pytest.raises(BadInput, match="config"):
        canonical(value)


def test_seed_for__seeds_are_pinned_and_apart():
    assert seed_for("init", 0) == 5696364089584488662  # another number here means that every study starts anew
    many = {seed_for("data", "digits", i) for i in range(2000)}
    assert len(many) == 2000 and max(many) < 2**63
    assert seed_for("a", "bc") != seed_for("ab", "c") != seed_for(["a", "bc"])


def test_to_json__values_take_the_form_of_their_annotation():
    toy = Toy(rate=1, widths=[4, 4], limit=2)
    assert (repr(toy.rate), toy.widths, repr(toy.limit)) == ("1.0", (4, 4), "2.0")
    assert to_json(Toy(rate=1)) == to_json(Toy(rate=1.0))


@pytest.mark.parametrize(
    "wrong",
    [{"rate": "fast"}, {"rate": math.nan}, {"rate": True}, {"depth": 1.5}, {"widths": 3}, {"widths": (1, "x")},
     {"mode": "c"}, {"limit": "x"}],
)  # fmt: skip
def test_identity__a_value_that_does_not_fit_is_named(wrong):
    with pytest.raises(BadInput, match=rf"Toy\.{next(iter(wrong))} is .* must be"):
        Toy(**wrong)


def test_identity__a_hparams_without_its_decorator_is_refused():
    class Bare(HParams):  # without the decorator the field would silently not be in the key
        rate: float = 0.1

    with pytest.raises(BadInput, match="@dataclass"):
        Bare()


# ---- growth


def grown(*fields, name="Settings", module=__name__, known="settings-of-a-test"):
    """A class of settings as a later version of nescio might have it: more fields, another name, another module."""
    cls = dataclasses.make_dataclass(name, [("rate", float, 0.1), *fields], frozen=True)
    cls.__module__ = module
    cls.__tag__ = known  # what @tag does, for two versions of one class in one process
    return cls


def key(settings):
    return Store("anywhere").key("train", settings, ("data",), 4)


def test_added_field__a_new_field_and_a_moved_class_leave_keys_alone():
    first = grown()
    later = grown(
        ("flat", float, added_field(0.0)),
        ("border", str, added_field("black")),
        ("start", object, added_field(None)),
        name="Renamed",
        module="nescio.somewhere.else",
    )
    assert key(later(0.3)) == key(first(0.3)) != key(first(0.4))
    assert key(later(0.3, flat=1.0)) != key(first(0.3))
    assert key(later(0.3, start="store:ab")) != key(first(0.3))


def test_added_field__a_changed_default_changes_the_key_and_old_work_keeps_its_own():
    before, after = (
        grown(("border", str, added_field("black"))),
        grown(("border", str, added_field("reflect", introduced="black"))),
    )
    assert key(after()) != key(before())
    assert key(after(border="black")) == key(before()) == key(grown()())


def test_added_field__an_absent_field_loads_as_it_was_introduced_not_as_the_default():
    after = grown(("border", str, added_field("reflect", introduced="black")))
    old = canonical(grown()(0.3))
    assert values_of(after, old) == {"rate": 0.3, "border": "black"}
    assert canonical(after(**values_of(after, old))) == old


def test_values_of__unknown_and_missing_fields_are_refused_in_a_sentence():
    with pytest.raises(BadInput, match="shine"):
        values_of(grown(), {"kind": "settings-of-a-test", "rate": 0.1, "shine": 1})
    with pytest.raises(BadInput, match="lacks rate"):
        values_of(grown(), {"kind": "settings-of-a-test"})
    with pytest.raises(BadInput, match="'other' was found"):
        values_of(grown(), {"kind": "other", "rate": 0.1})


def test_canonical__a_class_without_a_tag_has_no_key_and_a_subclass_does_not_inherit_one():
    @dataclass(frozen=True)
    class Bare:
        x: int = 1

    @dataclass(frozen=True)
    class Special(Toy):
        y: int = 1

    for cls in (Bare, Special):
        with pytest.raises(BadInput, match="has no tag"):
            canonical(cls())


def test_tag__two_classes_cannot_have_one_tag():
    with pytest.raises(BadInput, match="have the tag 'training'"):
        tag("training")(Toy)


def test_identity__keys_are_pinned():
    """Another number here means that every trained network is orphaned: raise a VERSION on purpose instead."""
    trial = Trial(method="erm", hparams=HParams(), data="digits", backbone="mlp", training=Training(epochs=1))
    assert key(trial) == "d703df4d2ec4a908"
    assert key(dataclasses.replace(trial, start="store:0123456789abcdef")) != key(trial)
