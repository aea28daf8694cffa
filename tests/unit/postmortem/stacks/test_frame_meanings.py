"""What the functions of a stack tell."""

import pytest

from distdoctor.postmortem.stacks.frame_meanings import (
    call_of,
    doing,
    in_backward,
    takes_lock,
)
from distdoctor.postmortem.stacks.thread_stacks import StackLine, ThreadStack

C10D = "torch/distributed/distributed_c10d.py"


def stack(*lines: str, **variables: str) -> ThreadStack:
    """A stack of "function file:line", innermost first; variables of the first."""
    parts = [line.rpartition(" ") for line in lines]
    return ThreadStack(
        tuple(
            StackLine(at.partition(":")[0], int(at.partition(":")[2] or 0), function)
            for function, _, at in parts
        ),
        variables=(variables, *({} for _ in lines[1:])),
    )


@pytest.mark.parametrize(
    ("lines", "op"),
    [
        (
            (f"all_reduce {C10D}:9", "wrapper torch/c10d_logger.py:3", "f t.py:4"),
            "all_reduce",
        ),
        ((f"barrier {C10D}:9", "f t.py:4"), "barrier"),
        (
            (f"all_gather {C10D}:9", f"all_gather_object {C10D}:5", "f t.py:4"),
            "all_gather",
        ),
        (
            (
                f"_store_based_barrier {C10D}:1",
                f"init_process_group {C10D}:9",
                "f t.py:4",
            ),
            "init_process_group",
        ),
        (
            (
                f"barrier {C10D}:1",
                f"_new_group_with_tag {C10D}:9",
                f"new_group {C10D}:2",
            ),
            "new_group",
        ),
        (
            (
                "synchronize horovod/torch/mpi_ops.py:8",
                "allreduce horovod/torch/mpi_ops.py:3",
            ),
            "all_reduce",
        ),
        (
            (
                "synchronize horovod/torch/mpi_ops.py:8",
                "step horovod/torch/optimizer.py:3",
            ),
            "all_reduce",
        ),
        (("c10d::Reducer::finalize_backward libtorch.so:0", "f t.py:3"), "all_reduce"),
        (("c10d::Work::wait libtorch.so:0", "f t.py:3"), ""),
        (("cudaStreamSynchronize libcudart.so:0", "f t.py:3"), ""),
    ],
)
def test_a_call_is_known_by_its_functions(lines: tuple[str, ...], op: str) -> None:
    found = call_of(stack(*lines))
    assert found is not None
    assert found.op == op


@pytest.mark.parametrize(
    "lines",
    [
        ("load data.py:3", "f t.py:4"),
        ("all_reduce mine.py:3", "f t.py:4"),
        # A line of the user's is further in: it is called back.
        ("hook t.py:3", f"all_reduce {C10D}:9", "f t.py:4"),
        ("forward torch/nn/modules/linear.py:3", "f t.py:4"),
        (),
    ],
)
def test_other_functions_are_no_call(lines: tuple[str, ...]) -> None:
    assert call_of(stack(*lines)) is None


def test_a_message_has_its_other_side_where_the_stack_tells_it() -> None:
    found = call_of(stack(f"recv {C10D}:9", "f t.py:4", src="3", tag="7"))
    assert found is not None
    assert (found.op, found.peer, found.tag) == ("recv", 3, 7)
    found = call_of(stack(f"recv {C10D}:9", "f t.py:4", src="None"))
    assert found is not None
    assert found.op == "recv_any"
    found = call_of(stack(f"recv {C10D}:9", "f t.py:4", src="None", group_src="2"))
    assert found is not None
    assert (found.op, found.peer) == ("recv", None)


def test_horovods_handle_tells_one_call_from_the_next() -> None:
    found = call_of(stack("synchronize horovod/torch/mpi_ops.py:8", handle="17"))
    assert found is not None
    assert found.number == "17"


@pytest.mark.parametrize(
    ("lines", "words"),
    [
        (("interaction pdb.py:3", "f t.py:4"), "in a debugger"),
        (("wait threading.py:3", "get queue.py:9", "f t.py:4"), "waiting for a thread"),
        (("get queue.py:3", "f t.py:4"), "waiting for a queue"),
        (
            ("acquire filelock/_api.py:221", "f t.py:4"),
            "waiting for the lock of a file",
        ),
        (("f t.py:4", "get queue.py:3"), ""),
    ],
)
def test_what_a_thread_does_in_pythons_functions(
    lines: tuple[str, ...], words: str
) -> None:
    assert doing(stack(*lines).lines) == words


def test_locks_and_backward() -> None:
    assert takes_lock(stack("__enter__ threading.py:3", "f t.py:4").lines)
    assert in_backward(stack("_engine_run_backward torch/autograd/graph.py:9"))
    assert not in_backward(
        stack("hook t.py:1", "_engine_run_backward torch/autograd/graph.py:9")
    )
