"""The list of commands, which loads none of them, and how any of them is ended."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import click
import pytest

from distdoctor.cli import app

CONTEXT = click.Context(app)


@pytest.mark.parametrize("name", app.list_commands(CONTEXT))
def test_each_command_is_there_and_says_what_it_does(name: str) -> None:
    command = app.get_command(CONTEXT, name)
    assert command is not None
    assert command.name == name
    summary = command.get_short_help_str(70)
    assert summary.endswith(".")
    assert not summary.endswith("...")
    assert f"  {summary}\n" in app.get_help(CONTEXT)


@pytest.mark.parametrize(
    ("arguments", "hint"),
    [
        (["check", "train.py", "config.yaml"], "check train.py -- config.yaml`"),
        (["check", "train.py", "--lr", "1"], "check train.py -- --lr 0.1`"),
        (["record", "train.py"], "record -- torchrun train.py config.yaml`"),
        (["join", "head", "train.py"], "join HEAD -- torchrun train.py config.yaml`"),
        (["lint", "--lr", "1"], ""),
    ],
)
def test_what_may_be_the_scripts_is_told_its_place(
    arguments: list[str], hint: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as ended:
        app.main(arguments, prog_name="distdoctor")
    assert ended.value.code == 2
    err = capsys.readouterr().err
    assert ("stand" in err) is bool(hint)
    assert hint in err


def test_the_summary_of_columns_claims_no_judgement() -> None:
    command = app.get_command(CONTEXT, "columns")
    assert command is not None
    assert "judge nothing" in (command.help or "")
    assert command.get_short_help_str(90).endswith("judge nothing.")


def test_an_unknown_command_is_none() -> None:
    assert app.get_command(CONTEXT, "chekc") is None


def test_help_loads_no_command() -> None:
    names = ["errors", "launch", "launch.interruption"]
    names += ["report", "report.plain_text", "cli"]
    text = (
        "import sys; from distdoctor.cli import main\n"
        "sys.argv = ['distdoctor', '--help']\n"
        "try: main()\n"
        "finally: print([n for n in sys.modules if n.startswith('distdoctor.')])"
    )
    done = subprocess.run(
        [sys.executable, "-c", text], capture_output=True, text=True, check=True
    )
    loaded = str([f"distdoctor.{name}" for name in names])
    assert done.stdout.splitlines()[-1] == loaded


WAITING = """
import os, sys, tempfile, time
import click
from distdoctor import cli

@click.command()
def run():
    with tempfile.TemporaryDirectory(dir=sys.argv[1]):
        print("ready", flush=True)
        time.sleep(60)
        print("slept")

run.help = "Waits."
cli._Commands.get_command = lambda *_: run
cli._split = lambda _: (["wait"], [])
cli.main()
"""


def waiting(folder: Path, *, ignoring: int = 0) -> subprocess.Popen[str]:
    """A command that takes long and has a temporary folder; it has begun."""

    def prepare() -> None:
        for number in (signal.SIGTERM, signal.SIGHUP):  # nohup ignores one of them
            ignored = number == ignoring
            signal.signal(number, signal.SIG_IGN if ignored else signal.SIG_DFL)

    started = subprocess.Popen(
        [sys.executable, "-c", WAITING, str(folder)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        preexec_fn=prepare,
        env=os.environ,
    )
    assert started.stdout is not None
    assert started.stdout.readline() == "ready\n"
    return started


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
def test_a_signal_ends_any_command_and_leaves_nothing(
    number: signal.Signals, tmp_path: Path
) -> None:
    command = waiting(tmp_path)
    command.send_signal(number)
    said, complained = command.communicate(timeout=30)
    assert command.returncode == 128 + number
    assert (said, complained.strip()) == ("", "distdoctor: interrupted")
    assert not list(tmp_path.iterdir())


def test_a_signal_that_is_ignored_ends_none(tmp_path: Path) -> None:
    command = waiting(tmp_path, ignoring=signal.SIGHUP)
    command.send_signal(signal.SIGHUP)
    with pytest.raises(subprocess.TimeoutExpired):
        command.wait(1)
    command.send_signal(signal.SIGTERM)
    command.communicate(timeout=30)
    assert command.returncode == 128 + signal.SIGTERM


def test_a_command_that_is_done_is_not_interrupted() -> None:
    text = (
        "import os, signal; from distdoctor import cli\n"
        "cli.app = lambda **_: None\n"
        "cli.gc.freeze = lambda: os.kill(os.getpid(), signal.SIGTERM)\n"
        "cli.main()"
    )
    assert subprocess.run([sys.executable, "-c", text], check=False).returncode == 0
