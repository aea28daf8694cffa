"""What the processes of a job leave behind, and its removal."""

import os
import sys
from pathlib import Path

import pytest

from distdoctor.launch.process_tree import ProcessTree

HOLDS = """\
import multiprocessing, signal, time
lock = multiprocessing.get_context("spawn").Lock()
print(lock._semlock.name, flush=True)
time.sleep(600)
"""


@pytest.mark.skipif(not Path("/dev/shm").is_dir(), reason="no /dev/shm")
def test_semaphores_that_nobody_can_remove_go_with_the_job(tmp_path: Path) -> None:
    environment = os.environ | {"DISTDOCTOR_RUN": str(tmp_path)}
    command = [sys.executable, "-S", "-c", HOLDS]
    tree = ProcessTree(command, environment, tmp_path, str(tmp_path))
    try:
        assert tree.root.stdout is not None
        name = tree.root.stdout.readline().decode().strip().lstrip("/")
        semaphore = Path("/dev/shm") / f"sem.{name}"
        assert semaphore.exists()
        for helper in tree.processes():
            if helper.pid != tree.root.pid:
                helper.kill()  # the process that would remove it
    finally:
        tree.end(launcher_first=True)
        for pipe in (tree.root.stdout, tree.root.stderr):
            assert pipe is not None
            pipe.close()
    assert not semaphore.exists()
