"""What the Tab key offers, in real shells, and that it loads nothing heavy."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

BIN = Path(sys.executable).parent


def offered(words: list[str], **variables: str) -> list[str]:
    """What distdoctor says to the last of these words, as bash asks for it."""
    environment = {
        **os.environ,
        **variables,
        "_DISTDOCTOR_COMPLETE": "bash_complete",
        "COMP_WORDS": " ".join(["distdoctor", *words]),
        "COMP_CWORD": str(len(words)),
    }
    done = subprocess.run(
        [sys.executable, "-c", "from distdoctor.cli import main; main()"],
        env=environment,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.stderr == ""
    return [line.partition(",")[2] for line in done.stdout.splitlines()]


def in_shell(shell: str, program: str, folder: Path) -> str:
    """What a shell prints that has read the completion."""
    path = shutil.which(shell)
    if path is None:
        pytest.skip(f"no {shell} here")
    quiet = {"bash": ["--norc", "--noprofile"], "zsh": ["-f"], "fish": ["-N"]}[shell]
    done = subprocess.run(
        [path, *quiet, "-c", program],
        env={
            "HOME": str(folder),
            "PATH": f"{BIN}:{os.environ['PATH']}",
            "TERM": "dumb",
        },
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert not done.stderr, done.stderr
    return done.stdout


def test_codes_are_offered_for_explain() -> None:
    codes = offered(["explain", "dd20"])
    assert codes == [f"DD20{n}" for n in range(1, 10)]


def test_records_are_offered_for_examine(tmp_path: Path) -> None:
    for name in ("2026-01-02T0", "2026-01-01T0"):
        (tmp_path / "distdoctor" / "runs" / name).mkdir(parents=True)
    runs = f"{tmp_path}/distdoctor/runs"
    found = offered(["examine", runs], XDG_CACHE_HOME=str(tmp_path))
    assert found == [runs, f"{runs}/2026-01-02T0", f"{runs}/2026-01-01T0"]


def test_a_rank_that_runs_is_offered_for_autopsy() -> None:
    rank = subprocess.Popen(
        [sys.executable, "-c", "input()"],
        stdin=subprocess.PIPE,
        env=os.environ | {"RANK": "0"},
    )
    try:
        assert str(rank.pid) in offered(["autopsy", str(rank.pid)[:1]])
    finally:
        rank.communicate(b"\n")


def test_nothing_heavy_is_loaded_to_complete() -> None:
    program = (
        "import sys, contextlib\n"
        "from distdoctor import cli\n"
        "with contextlib.suppress(SystemExit): cli.main()\n"
        "slow = {'torch', 'numpy', 'zmq', 'duckdb'} & set(sys.modules)\n"
        "assert not slow, slow\n"
    )
    for words, number in (("distdoctor explain D", 2), ("distdoctor check --", 2)):
        subprocess.run(
            [sys.executable, "-c", program],
            env=os.environ
            | {
                "_DISTDOCTOR_COMPLETE": "bash_complete",
                "COMP_WORDS": words,
                "COMP_CWORD": str(number),
            },
            check=True,
            timeout=60,
            capture_output=True,
        )


def test_bash_completes(tmp_path: Path) -> None:
    program = """
        source <(distdoctor completion bash)
        COMP_WORDS=(distdoctor explain DD108); COMP_CWORD=2
        _distdoctor_completion distdoctor DD108 explain
        printf '%s\\n' "${COMPREPLY[@]}"
    """
    assert in_shell("bash", program, tmp_path) == "DD108\n"


def test_zsh_completes(tmp_path: Path) -> None:
    # The line editor needs a terminal: what would be offered is taken from the
    # function that hands it over.
    program = """
        autoload -Uz compinit && compinit -D
        eval "$(distdoctor completion zsh)"
        _describe() { print -rl -- ${(P)${@[-1]}} ${(P)${@[-2]}} }
        compadd() { print -rl -- ${${(P)${@[-1]}}} }
        words=(distdoctor explain DD108); CURRENT=3
        _distdoctor_completion
    """
    assert "DD108:skipped collective" in in_shell("zsh", program, tmp_path)


def test_fish_completes(tmp_path: Path) -> None:
    program = """
        distdoctor completion fish | source
        complete --do-complete 'distdoctor explain DD108'
    """
    assert in_shell("fish", program, tmp_path) == "DD108\tskipped collective\n"


def test_a_shell_that_is_not_known_is_refused() -> None:
    done = subprocess.run(
        [BIN / "distdoctor", "completion", "tcsh"],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 2
    assert "'tcsh' is not one of" in done.stderr
