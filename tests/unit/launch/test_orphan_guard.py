"""The guard that ends a job whose supervisor was killed."""

import os
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest

from distdoctor.launch.orphan_guard import OrphanGuard
from distdoctor.launch.process_tree import ProcessTree

STUBBORN = (
    "import signal, time; signal.signal(15, signal.SIG_IGN); print('up', flush=1)"
)


def sleeper(text: str, **environment: str) -> subprocess.Popen[bytes]:
    return subprocess.Popen(
        [sys.executable, "-S", "-c", f"{text}; import time; time.sleep(60)"],
        env=os.environ | environment,
        stdout=subprocess.PIPE,
    )


def test_a_released_guard_harms_nobody(tmp_path: Path) -> None:
    job = sleeper("pass", GUARDED=str(tmp_path))
    guard = OrphanGuard(f"GUARDED={tmp_path}".encode())
    guard.release()
    assert job.poll() is None
    job.kill()
    job.communicate()


def test_a_guard_left_alone_ends_the_job_and_nothing_else(tmp_path: Path) -> None:
    jobs = [sleeper("pass", GUARDED=str(tmp_path)) for _ in range(2)]
    jobs.append(sleeper(STUBBORN, GUARDED=str(tmp_path)))
    assert jobs[-1].stdout is not None
    jobs[-1].stdout.readline()
    neighbour = sleeper("pass", GUARDED=f"{tmp_path}2")
    starter = (
        "from distdoctor.launch.orphan_guard import OrphanGuard; import os, signal;"
        f"OrphanGuard(b'GUARDED={tmp_path}'); os.kill(os.getpid(), signal.SIGKILL)"
    )
    begun = time.monotonic()
    subprocess.run([sys.executable, "-c", starter], check=False)
    assert [job.wait(30) for job in jobs] == [-15, -15, -9]
    assert time.monotonic() - begun < 30
    assert neighbour.poll() is None
    neighbour.kill()
    for job in [*jobs, neighbour]:
        job.communicate()


def test_the_guard_and_older_children_are_no_part_of_the_job(tmp_path: Path) -> None:
    older = sleeper("import subprocess; subprocess.run(['sleep', '60'])")
    while older.poll() is None and not psutil.Process(older.pid).children():
        time.sleep(0.01)
    command = [sys.executable, "-c", "import time; time.sleep(60)"]
    tree = ProcessTree(command, dict(os.environ), tmp_path, str(tmp_path))
    try:
        alive = {process.pid for process in tree.processes()}
    finally:
        tree.end()
        tree.root.communicate()
    assert alive == {tree.root.pid}
    [grandchild] = psutil.Process(older.pid).children()
    assert older.poll() is None
    grandchild.kill()
    older.kill()
    older.communicate()


LISTENS = """
import multiprocessing as mp, time
from multiprocessing import resource_sharer, util
def child(queue):
    handle = resource_sharer.DupFd(1)
    queue.put(util.get_temp_dir())
    time.sleep(60)
queue = mp.get_context("fork").Queue()
mp.get_context("fork").Process(target=child, args=(queue,)).start()
print(queue.get(), flush=True)
time.sleep(60)
"""


@pytest.mark.skipif(sys.platform != "linux", reason="forks a process that has threads")
def test_no_socket_of_a_worker_is_left(tmp_path: Path) -> None:
    command = [sys.executable, "-c", LISTENS]
    tree = ProcessTree(command, dict(os.environ), tmp_path, str(tmp_path))
    assert tree.root.stdout is not None
    folder = Path(tree.root.stdout.readline().decode().strip())
    assert list(folder.glob("listener-*"))
    tree.end()
    tree.root.communicate()
    assert not folder.exists()
