"""The functions of the package in a notebook's kernel, as people use them there."""

import shutil
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import nbformat
import pytest
from command_box import DEADLINE_S, Box
from jupyter_client.blocking.client import BlockingKernelClient
from jupyter_client.manager import KernelManager
from nbclient import NotebookClient
from nbformat.v4 import new_code_cell, new_notebook
from programs import FIXTURES

PATIENT = FIXTURES / "patients" / "dd104_mismatched_reduce_op.py"

SICK = """\
import distdoctor
sick = distdoctor.check("train.py", "sick", nproc=3)
sick
"""

IN_A_THREAD = """\
import threading
done = []
thread = threading.Thread(
    target=lambda: done.append(distdoctor.check("train.py", "well", nproc=3))
)
thread.start()
thread.join()
done[0]
"""

AGAIN = """\
same = distdoctor.examine(sick.record)
assert same.codes == sick.codes
print(sick.verdict, *sick.codes, *sick.findings[0].ranks, sick.exit_status)
print(done[0].verdict, done[0].exit_status, done[0].record)
same
"""

ENDLESS = """\
from pathlib import Path
import torch
import torch.distributed as dist

dist.init_process_group("gloo")
Path(f"ready-{dist.get_rank()}").touch()
while True:
    dist.all_reduce(torch.ones(1))
"""


@pytest.fixture
def box_of_notebooks(box: Box, monkeypatch: pytest.MonkeyPatch) -> Box:
    """A box whose environment kernels have, too."""
    for name in ("HOME", "IPYTHONDIR", "JUPYTER_RUNTIME_DIR"):
        (box.folder / name).mkdir()
        monkeypatch.setenv(name, str(box.folder / name))
    for name, value in box.environment.items():
        if name != "HOME":
            monkeypatch.setenv(name, value)
    return box


@contextmanager
def kernel(folder: Path) -> Iterator[tuple[KernelManager, BlockingKernelClient]]:
    """A kernel, and a client of it."""
    manager = KernelManager(kernel_name="python3")
    manager.start_kernel(cwd=str(folder))
    client: BlockingKernelClient = manager.client()
    client.start_channels()
    try:
        client.wait_for_ready(timeout=DEADLINE_S)
        yield manager, client
    finally:
        client.stop_channels()
        manager.shutdown_kernel(now=True)


def executed(client: BlockingKernelClient, code: str) -> dict[str, str]:
    """The reply to a cell, and what it has printed."""
    printed: list[str] = []
    reply = client.execute_interactive(
        code,
        timeout=DEADLINE_S,
        output_hook=lambda message: printed.append(message["content"].get("text", "")),
    )
    return {**reply["content"], "printed": "".join(printed)}


def endless_job(box: Box, client: BlockingKernelClient) -> str:
    """Check a job that never ends, until it trains; the cell's identifier."""
    box.write(ENDLESS)
    assert executed(client, "import distdoctor")["status"] == "ok"
    cell: str = client.execute('distdoctor.check("train.py", budget=200)')
    wait_until(lambda: (box.folder / "ready-1").exists())
    assert len(box.marked()) > 2
    return cell


def wait_until(is_so: Callable[[], bool]) -> None:
    until = time.monotonic() + DEADLINE_S
    while not is_so():
        assert time.monotonic() < until
        time.sleep(0.2)


def test_a_notebook_shows_what_ails_a_job_and_that_its_twin_is_well(
    box_of_notebooks: Box,
) -> None:
    folder = box_of_notebooks.folder
    shutil.copy(PATIENT, folder / "train.py")
    cells = [new_code_cell(source) for source in (SICK, IN_A_THREAD, AGAIN)]
    notebook = new_notebook(cells=cells)
    client = NotebookClient(
        notebook,
        timeout=int(DEADLINE_S),
        kernel_name="python3",
        resources={"metadata": {"path": str(folder)}},
    )
    client.execute()
    nbformat.validate(notebook)
    shown = []
    for cell in cells:
        (result,) = [one for one in cell.outputs if one.output_type == "execute_result"]
        shown.append(result.data)
    first, twin, again = shown
    assert "DD104 mismatched reduce op" in first["text/html"]
    assert "<b>" in first["text/html"]
    assert "train.py:" in first["text/html"]
    assert "<script" not in first["text/html"]
    assert first["text/plain"].startswith("<Examination train.py on 3 ranks: sick; ")
    assert "WELL" in twin["text/html"]
    assert "DD104 mismatched reduce op" in again["text/html"]
    (printed,) = [one for one in cells[2].outputs if one.output_type == "stream"]
    assert printed.text == "sick DD104 2 1\nwell 0 None\n"


def test_an_interrupted_kernel_ends_the_job_and_can_be_used_again(
    box_of_notebooks: Box,
) -> None:
    box = box_of_notebooks
    with kernel(box.folder) as (manager, client):
        waiting = endless_job(box, client)
        manager.interrupt_kernel()
        reply = client.get_shell_msg(timeout=DEADLINE_S)
        while reply["parent_header"].get("msg_id") != waiting:
            reply = client.get_shell_msg(timeout=DEADLINE_S)
        assert reply["content"]["ename"] == "KeyboardInterrupt"
        pid = executed(client, "import os; print(os.getpid())")["printed"]
        assert [str(one.pid) for one in box.marked()] == [pid.strip()]
        reply_again = executed(
            client, 'assert distdoctor.check("train.py", steps=0, budget=8).verdict'
        )
        assert reply_again["status"] == "ok", reply_again


def test_a_kernel_that_is_killed_takes_the_job_with_it(box_of_notebooks: Box) -> None:
    box = box_of_notebooks
    with kernel(box.folder) as (manager, client):
        endless_job(box, client)
        manager.shutdown_kernel(now=True)
        wait_until(lambda: not box.marked())
