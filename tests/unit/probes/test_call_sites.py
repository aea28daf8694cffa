"""Sites: the line of the user's source, and whose fault an exception is."""

import _thread
import subprocess
import sys
import sysconfig
import threading
from collections.abc import Callable
from pathlib import Path
from types import TracebackType
from typing import Any

import pytest
import torch

import distdoctor
from distdoctor.model.layers import LAYERS
from distdoctor.probes import call_sites
from distdoctor.probes.call_sites import (
    call_site,
    error_site,
    is_peers_fault,
    is_users,
    text_of,
)

DEADLINE_S = 60.0  # for a Python without torch on a busy machine

STDLIB = sysconfig.get_paths()["stdlib"]
INSTALLED = f"{sysconfig.get_paths()['purelib']}/package/module.py"
TORCH = f"{sysconfig.get_paths()['purelib']}/torch/distributed/distributed_c10d.py"
OURS = str(Path(call_sites.__file__).with_name("boot.py"))


def living_in(file: str) -> Callable[[Callable[..., Any]], Any]:
    """A function of that file; it calls what it is given, with a depth of 1."""
    names: dict[str, Any] = {}
    exec(compile("def call(function):\n    return function(1)\n", file, "exec"), names)
    call: Callable[[Callable[..., Any]], Any] = names["call"]
    return call


def line_of(function: str) -> int:
    """The line of this file on which a function's body begins."""
    lines = Path(__file__).read_text().splitlines()
    return lines.index(f"def {function}() -> None:") + 2


# --- whose files ----------------------------------------------------------------------


@pytest.mark.parametrize(
    "file",
    [
        "/home/user/job/train.py",
        "train.py",
        "/home/user/torchlib/x.py",
        "/opt/job/site-packages.py",
        f"{Path(distdoctor.__file__).parent}_of_mine/x.py",
        __file__,
    ],
)
def test_a_file_of_the_job_is_the_users(file: str) -> None:
    assert is_users(file)


@pytest.mark.parametrize(
    "file",
    [
        f"{STDLIB}/threading.py",
        INSTALLED,
        TORCH,
        "/other/env/lib/python3.12/site-packages/torch/nn/modules/module.py",
        "/usr/lib/python3/dist-packages/yaml/__init__.py",
        "<string>",
        "<frozen runpy>",
        "<eval_with_key>.3",
        OURS,
        call_sites.__file__,
    ],
)
def test_a_file_of_python_or_torch_or_ours_is_not_the_users(file: str) -> None:
    assert not is_users(file)


# --- calls ----------------------------------------------------------------------------


def test_a_call_has_the_line_it_came_from() -> None:
    here = line_of("test_a_call_has_the_line_it_came_from") + 1
    assert call_site(1) == text_of(
        __file__, here, "test_a_call_has_the_line_it_came_from"
    )


@pytest.mark.parametrize("file", [f"{STDLIB}/fake.py", INSTALLED, OURS, "<string>"])
def test_frames_that_are_not_the_users_are_passed_over(file: str) -> None:
    file_seen, _, function = living_in(file)(call_site).split("\n")
    assert file_seen == __file__
    assert function == "test_frames_that_are_not_the_users_are_passed_over"


def test_the_innermost_line_of_the_user_counts() -> None:
    call = living_in(INSTALLED)
    assert call(lambda _: call(call_site)).endswith(
        "test_the_innermost_line_of_the_user_counts.<locals>.<lambda>"
    )


OF_TORCH = f"{sysconfig.get_paths()['purelib']}/torch/distributed/nn/functional.py"


def test_a_function_that_autograd_knows_is_called_by_the_user_on_its_way_forward() -> (
    None
):
    layers: list[str] = []

    def look(_: int) -> None:
        layers.append(LAYERS[call_sites.layered_site(2)[1]])

    class Looked(torch.autograd.Function):
        @staticmethod
        def forward(_ctx: Any, given: torch.Tensor) -> torch.Tensor:
            living_in(OF_TORCH)(look)
            return given.clone()

        @staticmethod
        def backward(_ctx: Any, gradient: torch.Tensor) -> torch.Tensor:
            living_in(OF_TORCH)(look)
            return gradient

    for method in (Looked.forward, Looked.backward):
        code = method.__code__.replace(co_filename=OF_TORCH)
        method.__code__ = code
    applied: Callable[[torch.Tensor], torch.Tensor] = Looked.apply
    applied(torch.ones(1, requires_grad=True)).sum().backward()
    assert layers == ["", "backward"]


def test_methods_are_named_with_their_class() -> None:
    class Trainer:
        def step(self) -> str:
            return call_site(1)

    assert Trainer().step().endswith(".Trainer.step")


def test_two_calls_on_one_line_have_one_text() -> None:
    first, second = call_site(1), call_site(1)
    assert first == second


def test_each_line_has_its_own_text() -> None:
    first = call_site(1)
    second = call_site(1)
    assert int(second.split("\n")[1]) == int(first.split("\n")[1]) + 1


def test_a_call_without_any_user_code_has_no_site() -> None:
    job = (
        "from distdoctor.probes.call_sites import call_site\n"
        "import distdoctor\n"
        "print(repr(call_site(1)))\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", job],
        capture_output=True,
        text=True,
        timeout=DEADLINE_S,
        check=True,
    )
    assert done.stdout == "''\n"


def test_a_relative_name_is_made_whole() -> None:
    assert text_of("t.py", 3, "main") == f"{Path.cwd() / 't.py'}\n3\nmain"


def test_a_program_inside_an_installed_tree_is_the_users(tmp_path: Path) -> None:
    """Examples are often run from where they were installed."""
    program = tmp_path / "site-packages" / "examples" / "train.py"
    program.parent.mkdir(parents=True)
    program.write_text(
        "from distdoctor.probes.call_sites import call_site\nprint(call_site(1))\n"
    )
    done = subprocess.run(
        [sys.executable, str(program)],
        capture_output=True,
        text=True,
        timeout=DEADLINE_S,
        check=True,
    )
    assert done.stdout == f"{program}\n2\n<module>\n"


# --- exceptions -----------------------------------------------------------------------


STEP = """
def call(rest, error):
    if not rest:
        raise error
    rest[0](rest[1:], error)
"""


def raised(error: Exception, *files: str) -> tuple[BaseException, TracebackType | None]:
    """An exception that came up through functions of these files, outermost first."""
    functions: list[Any] = []
    for file in files:
        names: dict[str, Any] = {}
        exec(compile(STEP, file, "exec"), names)
        functions.append(names["call"])
    try:
        functions[0](functions[1:], error)
    except type(error) as caught:
        return caught, caught.__traceback__
    raise AssertionError


def test_an_error_is_where_the_user_raised_it() -> None:
    _, traceback = raised(KeyError("lr"), TORCH, "/job/t.py", "/job/model.py")
    assert error_site(traceback) == "/job/model.py\n4\ncall"


def test_an_error_inside_a_library_is_where_the_user_called_it() -> None:
    _, traceback = raised(KeyError("lr"), "/job/t.py", INSTALLED, f"{STDLIB}/json.py")
    assert error_site(traceback) == "/job/t.py\n5\ncall"


def test_an_error_without_user_code_has_no_site() -> None:
    assert error_site(None) == ""


GONE = [
    "Connection closed by peer [127.0.0.1]:41234",
    "[../third_party/gloo/gloo/transport/tcp/pair.cc:534] Connection reset by peer",
    "Timed out waiting 1800000ms for recv operation to complete",
    "NCCL error: remote process exited or there was a network error",
    "Broken pipe",
]


@pytest.mark.parametrize("text", GONE)
def test_a_broken_connection_is_a_peers_fault(text: str) -> None:
    assert is_peers_fault(*raised(RuntimeError(text), TORCH))


@pytest.mark.parametrize("text", GONE)
def test_a_users_own_error_is_nobody_elses_fault(text: str) -> None:
    assert not is_peers_fault(*raised(RuntimeError(text), TORCH, "/job/t.py"))


@pytest.mark.parametrize(
    "error",
    [
        ValueError("Tensor list length does not match the group size"),
        RuntimeError("Split sizes doesn't match total dim 0 size"),
        KeyError("timed out"),
    ],
)
def test_another_error_of_torch_is_the_ranks_own_fault(error: Exception) -> None:
    assert not is_peers_fault(*raised(error, TORCH))


@pytest.mark.parametrize("outer", [TORCH, OURS, INSTALLED])
def test_a_users_error_stays_so_under_functions_of_torch_and_ours(outer: str) -> None:
    """As under torchrun's `record`, in `spawn`, in FSDP's forward."""
    error = RuntimeError("connection reset")
    assert not is_peers_fault(*raised(error, outer, "/job/t.py"))


@pytest.mark.parametrize(
    ("module", "text"),
    [
        ("utils/data/dataloader.py", "DataLoader timed out after 5 seconds"),
        ("utils/data/dataloader.py", "worker is killed by signal: Aborted."),
        ("_utils.py", "Caught RuntimeError in worker: Connection reset"),
    ],
)
def test_a_loader_that_fails_is_the_ranks_own_fault(module: str, text: str) -> None:
    file = f"{sysconfig.get_paths()['purelib']}/torch/{module}"
    assert not is_peers_fault(*raised(RuntimeError(text), file))


def test_a_thread_of_torchs_own_has_no_line() -> None:
    sites: list[str] = []
    done = threading.Event()

    def ask(depth: int) -> None:
        sites.append(call_site(depth))
        done.set()

    _thread.start_new_thread(ask, (50,))
    assert done.wait(10)
    assert sites == [""]
