"""The guard that ends a job whose supervisor was killed."""

import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest

from distdoctor.launch.guarded_process import UNKNOWN_STATUS, GuardedProcess
from distdoctor.launch.process_tree import ProcessTree

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="Linux has subreapers")

STARTER = """
import os, signal, subprocess, sys, time
from pathlib import Path
from distdoctor.launch import process_tree
process_tree.subprocess.PIPE = None  # the job writes where we do
tree = process_tree.ProcessTree(sys.argv[2:], dict(os.environ), Path.cwd(), sys.argv[1])
while not Path(sys.argv[1]).exists():
    time.sleep(0.01)
os.kill(os.getpid(), signal.SIGKILL)
"""
"""Is killed as soon as its job says that it is up, by a file."""

UP = "import os, signal, sys, time; up = lambda: open(sys.argv[1], 'w').close()\n"
SLEEPS = "up(); time.sleep(600)\n"
FORKS = "if os.fork(): os._exit(0)\n"
DEAF = "signal.signal(signal.SIGTERM, signal.SIG_IGN)\n"
LEAVES = f"os.setsid()\n{FORKS}"
RESPAWNS = """
end = time.monotonic() + 120  # should this test fail
while time.monotonic() < end:
    if not os.fork():
        parent = os.getppid()
        up()
        while os.getppid() == parent:
            time.sleep(0.001)
        continue
    try:
        os.wait()
    except ChildProcessError:
        pass
"""
"""Parent and child start another when they are left alone."""

AWAY = {
    "stays": SLEEPS,
    "in a session of its own": f"{FORKS}os.setsid()\n{SLEEPS}",
    "forked twice": f"{FORKS}{LEAVES}{SLEEPS}",
    "replaced by another program": (
        f"{FORKS}up(); os.execve('/bin/sleep', ['daemon', '600'], {{}})"
    ),
    "deaf": f"{DEAF}{SLEEPS}",
    "a deaf daemon": f"{FORKS}{LEAVES}{DEAF}{SLEEPS}",
    "respawning": RESPAWNS,
    "respawning and deaf": f"{FORKS}{LEAVES}{DEAF}{RESPAWNS}",
    "stopped": f"{FORKS}up(); os.kill(os.getpid(), signal.SIGSTOP)",
    "stopped and deaf": f"{FORKS}{DEAF}up(); os.kill(os.getpid(), signal.SIGSTOP)",
}


@pytest.mark.parametrize("cleared", [False, True], ids=["marked", "no environment"])
@pytest.mark.parametrize("job", AWAY.values(), ids=AWAY)
def test_nobody_outlives_a_supervisor_that_was_killed(
    job: str, cleared: bool, tmp_path: Path
) -> None:
    up = tmp_path / "up"
    command = [sys.executable, "-S", "-c", UP + job, str(up)]
    if cleared:
        command = ["env", "-i", *command]
    starter = [sys.executable, "-c", STARTER, str(up), *command]
    # All of the job write to this pipe: it ends with the last of them.
    done = subprocess.run(starter, stdout=subprocess.PIPE, timeout=60, check=False)
    assert done.returncode == -signal.SIGKILL
    assert up.exists()


def test_a_guard_left_alone_ends_nobody_else(tmp_path: Path) -> None:
    neighbour = subprocess.Popen(["sleep", "60"])
    up = tmp_path / "up"
    command = [sys.executable, "-S", "-c", UP + SLEEPS, str(up)]
    starter = [sys.executable, "-c", STARTER, str(up), *command]
    subprocess.run(starter, stdout=subprocess.PIPE, timeout=60, check=False)
    assert neighbour.poll() is None
    neighbour.kill()
    neighbour.wait()


def python(text: str, *words: str, **options: object) -> GuardedProcess:
    command = [sys.executable, "-S", "-c", text, *words]
    mine = dict(os.environ) | {"GUARDED": str(time.monotonic_ns())}
    return GuardedProcess(command, mark="GUARDED", environment=mine, **options)  # type: ignore[arg-type]


@pytest.mark.parametrize("status", [0, 3, -signal.SIGTERM, -signal.SIGKILL])
def test_the_command_ends_as_it_would_alone(status: int) -> None:
    ends = f"os.kill(os.getpid(), {-status})" if status < 0 else f"os._exit({status})"
    process = python(f"import os; {ends}")
    assert process.wait(30) == process.poll() == process.returncode == status
    assert process.processes() == []
    process.release()


def test_the_command_finds_what_it_would_find_alone() -> None:
    look = (
        "import os, signal; print(sorted(map(int, os.listdir('/proc/self/fd')))[:-1],"
        "[n for n in range(1, 32) if signal.getsignal(n) == signal.SIG_IGN],"
        "os.getsid(0) == os.getpid(), 'PATH' in os.environ, flush=True)"
    )
    alone = subprocess.run(
        [sys.executable, "-S", "-c", look],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        start_new_session=True,
        check=True,
    )
    streams = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    process = python(look, **streams)
    assert process.stdout is not None
    assert process.stdout.read() == alone.stdout
    process.wait(30)
    process.release()
    process.close_pipes()


def test_what_the_user_ignores_is_ignored_in_the_job() -> None:
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)  # as by nohup
    try:
        process = python(
            "import signal; print(signal.getsignal(1) == signal.SIG_IGN)",
            stdout=subprocess.PIPE,
        )
    finally:
        signal.signal(signal.SIGHUP, before)
    assert process.stdout is not None
    assert process.stdout.read() == b"True\n"
    process.wait(30)
    process.release()
    process.close_pipes()


@pytest.mark.parametrize("command", [["/nowhere/python"], ["/dev/null"], [""]])
def test_a_command_that_cannot_be_started_is_refused(command: list[str]) -> None:
    with pytest.raises(OSError, match=r"No such file|Permission denied"):
        GuardedProcess(command, mark="GUARDED", environment={"GUARDED": "x"})
    assert psutil.Process().children() == []


def test_a_released_guard_harms_nobody() -> None:
    process = python("import time; time.sleep(60)")
    process.release()
    assert psutil.pid_exists(process.pid)
    os.kill(process.pid, signal.SIGKILL)


@pytest.mark.parametrize("adopts", [True, False])
def test_a_guard_that_is_killed_takes_nobody_along(adopts: bool) -> None:
    process = python("import time; time.sleep(60)", adopts=adopts)
    os.kill(process.guard_pid, signal.SIGKILL)
    time.sleep(0.1)
    assert process.poll() is None
    assert [each.pid for each in process.processes()] == [process.pid]
    process.end()
    assert process.wait(30) == (-signal.SIGTERM if adopts else UNKNOWN_STATUS)
    process.release()


def test_a_guard_that_was_stopped_goes_on() -> None:
    process = python("import time; time.sleep(0.2)")
    os.kill(process.guard_pid, signal.SIGSTOP)
    assert process.wait(30) == 0
    process.release()


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGHUP])
def test_a_signal_does_not_move_the_guard(number: int) -> None:
    process = python("import time; time.sleep(0.3)")
    os.kill(process.guard_pid, number)
    assert process.wait(30) == 0
    process.release()


def test_closed_streams_of_ours_do_no_harm(tmp_path: Path) -> None:
    text = (
        "import os, sys; os.close(0); os.close(1); os.close(2);"
        "from distdoctor.launch.guarded_process import GuardedProcess;"
        "mine = {**os.environ, 'GUARDED': 'x'};"
        f"p = GuardedProcess(['touch', {str(tmp_path / 'done')!r}],"
        "mark='GUARDED', environment=mine); p.wait(30); p.release()"
    )
    subprocess.run([sys.executable, "-c", text], check=True, timeout=60)
    assert (tmp_path / "done").exists()


def test_the_guard_and_older_children_are_no_part_of_the_job(tmp_path: Path) -> None:
    older = subprocess.Popen(
        [sys.executable, "-S", "-c", "import os; os.fork(); os.execvp('sleep', 's60')"]
    )
    older.kill()
    older.wait()
    older = subprocess.Popen(["sh", "-c", "sleep 60; true"])
    while older.poll() is None and not psutil.Process(older.pid).children():
        time.sleep(0.01)
    command = [sys.executable, "-c", "import time; time.sleep(60)"]
    tree = ProcessTree(command, dict(os.environ), tmp_path, str(tmp_path))
    try:
        alive = {process.pid for process in tree.processes()}
    finally:
        tree.end()
        tree.root.close_pipes()
    assert alive == {tree.root.pid}
    [grandchild] = psutil.Process(older.pid).children()
    assert older.poll() is None
    grandchild.kill()
    older.kill()
    older.wait()


LISTENS = """
import multiprocessing as mp, sys, time
from multiprocessing import resource_sharer, util
def child(queue):
    handle = resource_sharer.DupFd(1)
    queue.put(util.get_temp_dir())
    time.sleep(600)
queue = mp.get_context("fork").Queue()
mp.get_context("fork").Process(target=child, args=(queue,)).start()
folder = queue.get()
print(folder, flush=True)
open(sys.argv[1], "w").write(folder)
time.sleep(600)
"""


def test_no_socket_of_a_worker_is_left(tmp_path: Path) -> None:
    command = [sys.executable, "-c", LISTENS, str(tmp_path / "up")]
    tree = ProcessTree(command, dict(os.environ), tmp_path, str(tmp_path))
    assert tree.root.stdout is not None
    folder = Path(tree.root.stdout.readline().decode().strip())
    assert list(folder.glob("listener-*"))
    tree.end()
    tree.root.close_pipes()
    assert not folder.exists()


def test_the_guard_removes_the_sockets_of_workers(tmp_path: Path) -> None:
    up = tmp_path / "up"
    command = [sys.executable, "-c", LISTENS, str(up)]
    starter = [sys.executable, "-c", STARTER, str(up), *command]
    subprocess.run(starter, stdout=subprocess.PIPE, timeout=60, check=False)
    folder = Path(up.read_text())
    end = time.monotonic() + 10
    while folder.exists() and time.monotonic() < end:
        time.sleep(0.05)
    left = folder.exists()
    shutil.rmtree(folder, ignore_errors=True)
    assert not left


def sleeping(seconds: float, folder: Path) -> ProcessTree:
    """A job that sleeps."""
    streams = (subprocess.DEVNULL,) * 3
    command = ["sleep", str(seconds)]
    return ProcessTree(command, dict(os.environ), folder, str(folder), streams)


def test_a_pause_is_over_when_the_command_is(tmp_path: Path) -> None:
    tree = sleeping(0.2, tmp_path)
    try:
        begun = time.monotonic()
        assert not tree.root.pause(0.001)
        assert tree.root.pause(30.0)
        assert tree.root.poll() == 0
        assert not tree.root.pause(0.001)
        assert time.monotonic() < begun + 20.0
    finally:
        tree.end()


def test_a_pause_is_no_busy_wait_when_the_guard_is_gone(tmp_path: Path) -> None:
    tree = sleeping(600, tmp_path)
    try:
        os.kill(tree.root.guard_pid, signal.SIGKILL)
        end = time.monotonic() + 20.0
        while tree.root.pause(0.05):  # until it is really gone
            assert time.monotonic() < end
        begun = time.monotonic()
        assert not tree.root.pause(0.05)
        assert time.monotonic() >= begun + 0.05
        assert tree.root.poll() is None
    finally:
        tree.end()
