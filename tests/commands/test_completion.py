"""What a shell offers when TAB is pressed."""

import shutil
import subprocess

import pytest

from nescio.cli import COMMANDS, main, parser_for

bash = shutil.which("bash")


@pytest.fixture(scope="module")
def script(tmp_path_factory):
    file = tmp_path_factory.mktemp("completion") / "nescio.bash"
    with pytest.MonkeyPatch.context() as patch:
        lines = []
        patch.setattr("nescio.commands.completion.say", lines.append)
        assert main(["completion", "bash"]) == 0
    file.write_text("\n".join(lines) + "\n")
    return file


@pytest.fixture
def offered(script):
    """The words that a real bash offers after `nescio …`; the last word is the one that is being typed."""

    def ask(*words):
        code = (
            f'source "{script}"; complete -p nescio >&2; COMP_WORDS=("$@"); COMP_CWORD=$(($# - 1)); _nescio; '
            'printf "%s\\n" "${COMPREPLY[@]}"'
        )
        done = subprocess.run([bash, "-c", code, "bash", "nescio", *words], capture_output=True, text=True, check=True)
        assert "-F _nescio nescio" in done.stderr
        return done.stdout.split()

    return ask


@pytest.mark.skipif(bash is None, reason="there is no bash")
@pytest.mark.parametrize(
    ("words", "some"),
    [
        (["ev"], ["evaluate"]),
        (["evaluate", "--ca"], ["--calibration"]),
        (["evaluate", "a.npz", "--calibration", ""], ["temperature", "vector"]),
        (["evaluate", "a.npz", "--calibration", "=", "v"], ["vector"]),
        (["threshold", "a.npz", "--method", ""], ["ltt", "sgr", "both"]),
        (["threshold", "a.npz", "--measure", "mutual"], ["mutual_information"]),
        (["compare", "a.npz", "b.npz", "--metrics", "auroc,augr"], ["auroc,augrc"]),
        (["run", "uim"], ["uimnet"]),
        (["run", "uimnet", "--preset", ""], ["small", "demo", "paper"]),
        (["store", "p"], ["prune"]),
        (["measures", "larg"], ["largest", "largest_tuned"]),
        (["completion", ""], ["bash", "zsh"]),
    ],
)
def test_commands_options_choices_and_names(offered, words, some):
    assert offered(*words) == some


@pytest.mark.skipif(bash is None, reason="there is no bash")
def test_methods_are_named_where_there_is_torch(offered):
    pytest.importorskip("torch")
    assert offered("train", "--method", "mc-drop") == ["mc-dropout"]


@pytest.mark.skipif(bash is None, reason="there is no bash")
def test_every_command_is_offered_with_every_option_that_help_lists(offered):
    assert offered("") == list(COMMANDS)
    for command in ("evaluate", "zoo", "report"):
        text = parser_for(command)._subparsers._group_actions[0].choices[command].format_help()
        found = offered(command, "--")
        assert len(found) > 5 and all(option in text for option in found)
        assert "--report" not in found, "a name of before is not offered"


def test_zsh_gets_the_same_offers(script, capsys):
    assert main(["completion", "zsh"]) == 0
    made = capsys.readouterr().out
    assert (
        "compdef _nescio nescio" in made and made.split("_nescio() {")[0] == script.read_text().split("_nescio() {")[0]
    )
    assert main(["completion", "fish"]) == 2
    assert "SHELL is bash or zsh, not 'fish'" in capsys.readouterr().err
