"""The command `record` leaves the command that it runs alone; no ranks are started."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from distdoctor.journal.folder import read_manifest

PATIENCE_S = 60.0


def record(folder: Path, *command: str) -> list[str]:
    to = str(folder / "record")
    return [sys.executable, "-m", "distdoctor", "record", "--to", to, "--", *command]


def test_input_output_and_status_are_the_commands_own(tmp_path: Path) -> None:
    command = ["sh", "-c", "cat; echo wrong >&2; exit 7"]
    done = subprocess.run(
        record(tmp_path, *command), input=b"a\nb", capture_output=True, check=False
    )
    assert (done.returncode, done.stdout) == (7, b"a\nb")
    first, last = done.stderr.splitlines()
    assert first == b"wrong"
    assert last.startswith(b"distdoctor: recorded; to judge it: distdoctor autopsy ")
    manifest = read_manifest(tmp_path / "record")
    assert (manifest.exit_code, manifest.stopped, manifest.recorded) == (7, "", True)


def test_a_command_that_a_signal_ended_is_told_as_a_shell_does(tmp_path: Path) -> None:
    done = subprocess.run(
        record(tmp_path, "sh", "-c", "kill -9 $$"), capture_output=True, check=False
    )
    assert done.returncode == 128 + signal.SIGKILL


@pytest.mark.parametrize(
    ("number", "stopped"),
    [(signal.SIGTERM, "interrupted"), (signal.SIGUSR1, "")],
)
def test_signals_are_handed_on(tmp_path: Path, number: int, stopped: str) -> None:
    script = (
        f"trap 'echo got; exit 5' {number}; echo ready; while :; do sleep 0.1; done"
    )
    with subprocess.Popen(
        record(tmp_path, "sh", "-c", script), stdout=subprocess.PIPE
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"ready\n"
        process.send_signal(number)
        assert process.stdout.readline() == b"got\n"
        assert process.wait(PATIENCE_S) == 5
    assert read_manifest(tmp_path / "record").stopped == stopped


def test_the_command_lives_on_when_it_is_killed(tmp_path: Path) -> None:
    mark = tmp_path / "mark"
    script = f"echo $$; sleep 1; touch {mark}"
    with subprocess.Popen(
        record(tmp_path, "sh", "-c", script), stdout=subprocess.PIPE
    ) as process:
        assert process.stdout is not None
        pid = int(process.stdout.readline())
        process.kill()
        process.wait(PATIENCE_S)
        os.kill(pid, 0)
    end = time.monotonic() + PATIENCE_S
    while not mark.exists() and time.monotonic() < end:
        time.sleep(0.05)
    assert mark.exists()
    assert read_manifest(tmp_path / "record").exit_code is None


def test_children_get_signals_as_without_it(tmp_path: Path) -> None:
    program = "import signal; print(sorted(signal.pthread_sigmask(0, [])))"
    alone = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, check=True
    )
    done = subprocess.run(
        record(tmp_path, sys.executable, "-c", program), capture_output=True, check=True
    )
    assert done.stdout == alone.stdout


def test_only_the_cheap_probes_are_put_in_place(tmp_path: Path) -> None:
    program = "import sys, json; print(json.dumps(sorted(sys.modules)))"
    done = subprocess.run(
        record(tmp_path, sys.executable, "-c", program), capture_output=True, check=True
    )
    loaded = json.loads(done.stdout)
    assert "distdoctor.probes.processes.child_exits" in loaded
    assert "distdoctor.probes.rng.seeds" not in loaded


@pytest.mark.parametrize(
    ("arguments", "why"),
    [
        ([], "give a command"),
        (["--", "no-such-program"], "there is no program"),
        (["--to", ".", "--", "true"], "not empty"),
    ],
)
def test_wrong_usage_is_refused(tmp_path: Path, arguments: list[str], why: str) -> None:
    (tmp_path / "full").touch()
    done = subprocess.run(
        [sys.executable, "-m", "distdoctor", "record", *arguments],
        cwd=tmp_path,
        env={**os.environ, "XDG_CACHE_HOME": str(tmp_path / "cache")},
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.returncode, why in done.stderr) == (2, True), done.stderr
