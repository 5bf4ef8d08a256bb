"""One option name has one meaning in all commands and benchmarks."""

import pytest

from nescio.commands.option_table import main, used_options
from nescio.option_help import HELP

USES = used_options()


@pytest.mark.parametrize("name", USES)
def test_option_table__used_options_have_one_type_and_one_help(name):
    meanings = {use.meaning: use.command for use in USES[name]}
    assert len(meanings) == 1, meanings
    assert all(text for _, text in meanings)


@pytest.mark.parametrize("name", USES)
def test_option_table__used_options_have_help_that_stands_alone(name):
    """A noun phrase or imperative, not the end of a heading."""
    text = USES[name][0].leaf.help
    assert not text.startswith(("of ", "for ", "to ", "which ", "what ", "by ", "where ", "as ", "in ", "the ", "a "))
    assert not text.endswith(".") and len(text.split()) <= 25


def test_option_table__help_names_only_options_that_exist():
    assert {f"--{name}" for name in HELP} <= USES.keys()


def test_option_table__main_prints_every_option(capsys):
    main()
    printed = capsys.readouterr().out
    assert all(f"{name} " in printed for name in USES)
