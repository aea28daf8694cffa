"""Whether only another thread can let a thread go on, by its stack."""

import pytest

from distdoctor.launch.thread_waits import waits_for_a_thread

THREADING = "/usr/lib/python3.11/threading.py"
QUEUE = "/usr/lib/python3.11/queue.py"
WORKERS = "/usr/lib/python3.11/concurrent/futures/thread.py"


def frame(file: str, name: str, **variables: str) -> dict[str, object]:
    named = [{"name": name, "repr": text} for name, text in variables.items()]
    return {"filename": file, "name": name, "line": 7, "locals": named}


JOB = frame("/job/train.py", "keep")
WAIT = frame(THREADING, "wait", timeout="None", gotit="False")
GET = frame(QUEUE, "get", block="True", timeout="None")
JOIN = frame(THREADING, "_wait_for_tstate_lock", block="True", timeout="-1")


@pytest.mark.parametrize(
    "frames",
    [
        [WAIT, GET, JOB],
        [JOIN, frame(THREADING, "Thread.join", timeout="None"), JOB],
        [frame(THREADING, "_shutdown", lock="<lock>")],
        [frame(THREADING, "Semaphore.acquire"), JOB],
        [frame(WORKERS, "_worker"), frame(THREADING, "run")],
    ],
)
def test_a_wait_for_a_thread_has_no_other_end(
    frames: list[dict[str, object]],
) -> None:
    assert waits_for_a_thread(frames)


@pytest.mark.parametrize(
    "frames",
    [
        [],
        [JOB, frame(THREADING, "run")],  # at work
        [frame("/usr/lib/python3.11/socket.py", "readinto"), JOB],
        [frame(THREADING, "wait", timeout="10.0"), JOB],
        [WAIT, frame(QUEUE, "get", timeout="0.5"), JOB],
        [frame(THREADING, "wait"), JOB],  # its variables could not be read
        [frame(WORKERS, "submit"), JOB],
    ],
)
def test_a_thread_that_works_or_asks_again_is_none(
    frames: list[dict[str, object]],
) -> None:
    assert not waits_for_a_thread(frames)
