"""What a shell offers when TAB is pressed."""

import os
import pty
import select
import shlex
import shutil
import signal
import subprocess
import time

import pytest

from nescio.cli import main
from nescio.commands import COMMANDS, parser_for

bash = shutil.which("bash")


@pytest.fixture(scope="module")
def scripts(tmp_path_factory):
    """The script of every shell."""
    folder, files = tmp_path_factory.mktemp("completion"), {}
    for shell in ("bash", "zsh", "tcsh"):
        with pytest.MonkeyPatch.context() as patch:
            lines = []
            patch.setattr("nescio.commands.completion.say", lines.append)
            assert main(["completion", shell]) == 0
        files[shell] = folder / f"nescio.{shell}"
        files[shell].write_text("\n".join(lines) + "\n")
    return files


@pytest.fixture(scope="module")
def script(scripts):
    return scripts["bash"]


@pytest.fixture
def offered(script):
    """The words that a real bash offers after `nescio …`; the last word is the one that is being typed."""

    def ask(*words):
        code = (
            f"source {shlex.quote(str(script))}; complete -p nescio >&2; "
            'COMP_WORDS=("$@"); COMP_CWORD=$(($# - 1)); _shtab_nescio; '
            'printf "%s\\n" "${COMPREPLY[@]}"'
        )
        done = subprocess.run([bash, "-c", code, "bash", "nescio", *words], capture_output=True, text=True, check=True)
        assert "-F _shtab_nescio nescio" in done.stderr
        return done.stdout.split()

    return ask


@pytest.mark.skipif(bash is None, reason="there is no bash")
@pytest.mark.parametrize(
    ("words", "some"),
    [
        (["ev"], ["evaluate"]),
        (["evaluate", "--ca"], ["--calibration"]),
        (["evaluate", "a.npz", "--calibration", ""], ["temperature", "vector"]),
        (["threshold", "a.npz", "--guarantee", ""], ["ltt", "sgr", "both"]),
        (["threshold", "a.npz", "--measure", "mutual"], ["mutual_information"]),
        (["compare", "a.npz", "b.npz", "--metrics", "augr"], ["augrc"]),
        (["run", "uim"], ["uimnet"]),
        (["run", "uimnet", "--preset", ""], ["small", "demo", "paper"]),
        (["store", "p"], ["prune"]),
        (["measures", "msp"], ["msp", "msp_tuned"]),
        (["completion", ""], ["bash", "zsh", "tcsh"]),
    ],
)
def test_completion__commands_options_choices_and_names(offered, words, some):
    assert offered(*words) == some


@pytest.mark.skipif(bash is None, reason="there is no bash")
def test_completion__methods_are_named_where_there_is_torch(offered):
    pytest.importorskip("torch")
    assert offered("train", "--method", "mc-drop") == ["mc-dropout"]


@pytest.mark.skipif(bash is None, reason="there is no bash")
def test_parser_for__every_command_is_offered_with_every_option_that_help_lists(offered):
    assert offered("") == list(COMMANDS)
    for command in ("evaluate", "zoo", "report"):
        text = parser_for(command)._subparsers._group_actions[0].choices[command].format_help()
        found = offered(command, "--")
        assert len(found) > 5 and all(option in text for option in found)
        assert "--report" not in found, "a name of before is not offered"


SETUP = {
    "bash": (["bash", "--norc", "--noprofile", "-i"], "bind 'set enable-bracketed-paste off'"),
    "zsh": (["zsh", "-f", "-i"], "autoload -U compinit; compinit -u -D; unset zle_bracketed_paste"),
}


class Terminal:
    """A shell in a terminal of its own, with nescio's completion; what is typed goes to its line editor."""

    def __init__(self, shell, script, folder):
        words, setup = SETUP[shell]
        (folder / "tests.npz").write_bytes(b"")
        self.pid, self.screen = pty.fork()
        if self.pid == 0:
            os.chdir(folder)
            os.execvpe(words[0], words, os.environ | {"TERM": "dumb", "COLUMNS": "200", "PS1": "> "})
        self.see(f"{setup}; source {shlex.quote(str(script))}; echo REA''DY\r", "READY")

    def see(self, typed, wanted):
        """Types; what the screen shows until that is there, or until two minutes have passed."""
        os.write(self.screen, typed.encode())
        shown, end = "", time.monotonic() + 120
        while wanted not in shown and time.monotonic() < end:
            if select.select([self.screen], [], [], 0.1)[0]:
                shown += os.read(self.screen, 65536).decode("utf-8", "replace")
        return shown

    def close(self):
        os.close(self.screen)
        os.kill(self.pid, signal.SIGKILL)
        os.waitpid(self.pid, 0)


@pytest.mark.parametrize("shell", SETUP)
def test_completion__tab_in_a_real_terminal(shell, scripts, tmp_path):
    if shutil.which(shell) is None:
        pytest.skip(f"there is no {shell}")
    terminal = Terminal(shell, scripts[shell], tmp_path)
    try:
        for typed, wanted in [
            ("nescio ev\t", "nescio evaluate "),
            ("nescio evaluate a.npz --calibration \t\t", "temperature  vector"),
            ("nescio evaluate a.npz --calibration v\t", "--calibration vector"),
            ("nescio run uimnet --preset sm\t", "--preset small"),
            ("nescio evaluate te\t", "evaluate tests.npz"),
            ("nescio store s\t", "store sync"),
        ]:
            assert wanted in terminal.see(typed, wanted), typed
            terminal.see("\x15\r", "> ")
    finally:
        terminal.close()


@pytest.mark.skipif(bash is None, reason="there is no bash")
def test_completion__the_script_is_valid_bash(script):
    subprocess.run([bash, "-n", str(script)], check=True)


@pytest.mark.parametrize("shell", ["bash", "zsh", "tcsh"])
def test_completion__every_script_has_commands_options_and_measures(shell, scripts):
    text = scripts[shell].read_text()
    names = ("evaluate", "calibration", "mutual_information", "uimnet") if shell != "tcsh" else ("evaluate", "uimnet")
    assert all(name in text for name in names)


def test_completion__another_shell_is_refused(capsys):
    assert main(["completion", "fish"]) == 2
    assert "fish" in capsys.readouterr().err
