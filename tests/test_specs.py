"""The grammar of names: every form of docs/names.md, what is written is read again, and one kind of error."""

from __future__ import annotations

import pickle
import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nescio import specs
from nescio.errors import BadInput
from nescio.specs import (
    DatasetName,
    HyperParameter,
    NetworkName,
    SpecError,
    assignment,
    assignments,
    counts,
    items,
    location_of,
    mapping,
    method_on,
    numbers,
    parameter,
    product,
    select,
    selections,
    source,
    sources,
    split,
    unquote,
    variant,
    write_assignment,
    write_items,
    write_numbers,
)
from tests.support.paths import ROOT

TEXTS = st.text(alphabet=st.sampled_from('ab1-/=:,@#" ×'), min_size=1, max_size=12)
PAGE = (ROOT / "docs" / "names.md").read_text()


def rows():
    table = PAGE.partition("## Every form")[2].partition("## Kinds")[0]
    for line in table.splitlines():
        cells = re.findall(r"`([^`]*)`", line)
        if len(cells) == 4:
            yield cells[1:]


@pytest.mark.parametrize(("example", "function", "value"), rows())
def test_specs__names_page_examples_have_the_value_beside_them(example, function, value, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    read = specs
    for name in function.split("."):
        read = getattr(read, name)
    assert repr(tuple(found) if isinstance(found := read(example), tuple) else found) == value


def test_specs__names_page_shows_every_function_that_reads_a_form():
    others = {"split", "unquote", "quote", "mapping", "location_of", "selections", "select", "literal"}
    public = {
        name
        for name, value in vars(specs).items()
        if callable(value) and getattr(value, "__module__", "") == specs.__name__ and name[0].islower()
    }
    shown = {function.split(".")[0] for _, function, _ in rows()}
    assert {name for name in public - others if name[0] != "_" and not name.startswith("write_")} == {
        name for name in shown if name[0].islower()
    }
    assert {"DatasetName", "NetworkName", "HyperParameter"} <= shown and len(PAGE.split()) <= 700


# ---- what is written is read again


@given(st.lists(TEXTS, min_size=1, max_size=4))
def test_write_items_is_read_by_items(values):
    assert items(write_items(values)) == values


@given(TEXTS, TEXTS)
def test_write_assignment_is_read_by_assignment(name, value):
    assert assignment(write_assignment(name, value)) == (name, value)


@given(st.lists(st.tuples(TEXTS, TEXTS), min_size=1, max_size=3, unique_by=lambda pair: pair[0]))
def test_mapping_reads_written_assignments(pairs):
    assert mapping(write_assignment(*pair) for pair in pairs) == dict(pairs)


@given(st.lists(st.integers(0, 300), max_size=30))
def test_write_numbers_is_read_by_numbers(values):
    assert list(numbers(write_numbers(values))) == values


@given(TEXTS, st.lists(st.text("0123456789-,", max_size=5), min_size=1, max_size=3))
def test_select__selections_inverts_select(data, selected):
    whole = select("part", data, *selected).removeprefix("part:")
    assert selections(whole, len(selected)) == [data, *selected]


@given(st.text("abc_-./", min_size=1), st.text("abc:@ /", min_size=1), st.none() | st.integers(1, 999).map(str))
def test_dataset_name_inverts_at(kind, path, size):
    name = DatasetName(kind, path, size)
    assert DatasetName.parse(name.with_path(path)) == name


@given(st.text(max_size=30))
def test_specs__every_text_is_read_or_refused_by_a_spec_error(text):
    for read in (items, assignment, assignments, numbers, source, sources, counts, product, parameter, method_on):
        try:
            read(text)
        except SpecError as error:
            assert error.text in text and 0 <= error.position <= len(text) and error.form
        except ValueError as error:
            assert "null" in str(error) and "\0" in text  # no path has a null character


# ---- quotes


def test_unquote__quotes_protect_separators():
    assert items('"a,b=c",d') == ["a,b=c", "d"] and items('a="b,c",d') == ['a="b,c"', "d"]
    assert assignment('"a=b"="c,d"') == ("a=b", "c,d")
    assert assignment(items('"a=b",c')[0]) == ("", "a=b")  # what was quoted is not split again
    assert unquote('"say ""a"""') == 'say "a"' and unquote('"a","b"') == '"a","b"'
    assert split('a"b,c"', ",") == ['a"b', 'c"']  # a quote begins a value
    assert NetworkName.parse('resnet18@"a@b.pth"').file == "a@b.pth" and source('folder:"a,b"') == ("folder", "a,b")


def test_location_of__a_path_that_exists_keeps_its_quotes(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / '"a,b".npz').touch()
    (tmp_path / "zoo:erm").touch()
    assert items('"a,b".npz,c') == ['"a,b".npz', "c"]
    assert location_of("zoo", "zoo:erm") is None and location_of("zoo", "zoo:vit") == "vit"


# ---- errors


@pytest.mark.parametrize(
    ("read", "text", "position"),
    [
        (items, 'a,"b', 2),
        (numbers, "0-5,x", 4),
        (numbers, "1,5-3", 2),
        (numbers, "-1", 0),
        (numbers, "٣", 0),
        (numbers, "0-999999999", 0),
        (numbers, "0-999999,7", 9),
        (counts, "moco=3,byol=x", 12),
        (product, "21x", 0),
        (parameter, "sac@x", 4),
        (method_on, "erm", 0),
        (variant, "resnet50:", 8),
        (HyperParameter.parse, "bound=100", 0),
        (lambda text: selections(text, 2), "digits#0", 8),
        (lambda text: mapping([text]), "a.npz", 0),
        (lambda text: mapping(["a=1", text]), "a=2", 0),
    ],
)
def test_selections__spec_error_names_text_position_and_a_form(read, text, position):
    with pytest.raises(SpecError) as caught:
        read(text)
    error = caught.value
    assert isinstance(error, BadInput) and (error.text, error.position) == (text, position)
    assert text in str(error) and error.form in str(error) and str(error).count("\n") == 0
    again = pickle.loads(pickle.dumps(error.with_option("--data")))
    assert again.option == "--data" and str(again).startswith("--data: ") and again.position == position


def test_numbers__spec_error_cuts_long_texts():
    with pytest.raises(SpecError) as caught:
        numbers("x" * 10_000)
    assert len(str(caught.value)) < 400
