"""A rank that ends its own process: which line asked for it, and what is told."""

import subprocess
import sys
from dataclasses import replace
from inspect import cleandoc
from pathlib import Path

import pytest

from distdoctor.analysis.causes import Cause
from distdoctor.analysis.divergence.cascade import divergences
from distdoctor.analysis.failures.deaths import quitting, raised_exits
from distdoctor.journal.assembly import assemble
from distdoctor.journal.folder import Manifest
from distdoctor.model.drawing import sketch
from distdoctor.model.events import Quit

BOOT = """
import os, signal, sys, threading
from pathlib import Path
from distdoctor.probes import boot
from distdoctor.probes.recorder import RECORDER
boot.start()
RECORDER.folder = Path({folder!r})
RECORDER.open(0, 1)
exec(compile(Path({script!r}).read_text(), {script!r}, "exec"))
"""


def asked(folder: Path, text: str) -> list[Quit]:
    """What is noted of a script that ends itself."""
    script = folder / "train.py"
    script.write_text(cleandoc(text))
    program = BOOT.format(folder=str(folder), script=str(script))
    subprocess.run([sys.executable, "-c", program], check=False, timeout=60)
    manifest = Manifest(distdoctor="", launch=[], directory=str(folder))
    return assemble(folder, manifest).of(Quit, 0)


@pytest.mark.parametrize(
    ("text", "how", "status"),
    [
        ("import sys\ndef f():\n    sys.exit()\nf()", "sys.exit", 0),
        ("import sys\ndef f():\n    sys.exit(3)\nf()", "sys.exit", 3),
        ("import sys\ndef f():\n    sys.exit('bad')\nf()", "sys.exit", 1),
        ("from sys import exit\ndef f():\n    exit(2)\nf()", "sys.exit", 2),
        ("import os\ndef f():\n    quit(4)\nf()", "quit", 4),
        ("import os\ndef f():\n    os._exit(5)\nf()", "os._exit", 5),
    ],
)
def test_the_line_that_ends_the_process_is_noted(
    tmp_path: Path, text: str, how: str, status: int
) -> None:
    (exit_,) = asked(tmp_path, text)
    assert (exit_.how, exit_.status) == (how, status)
    assert exit_.place is not None
    assert (exit_.place.line, exit_.place.function) == (3, "f")


def test_who_is_asked_to_end_does_not_quit(tmp_path: Path) -> None:
    text = """
        import os, signal, sys
        def bye(number, frame):
            sys.exit(1)
        signal.signal(signal.SIGTERM, bye)
        os.kill(os.getpid(), signal.SIGTERM)
    """
    assert not asked(tmp_path, text)


def test_a_child_that_leaves_by_the_lines_of_its_parent_does_not_quit(
    tmp_path: Path,
) -> None:
    text = """
        import multiprocessing
        child = multiprocessing.get_context("fork").Process(target=print)
        child.start()
        child.join()
    """
    assert not asked(tmp_path, text)


GOES = """
rank 0 | all_reduce(4)@t.py:7  all_reduce(4)@t.py:7...
rank 1 | all_reduce(4)@t.py:7  quit={0}@t.py:12 {1} exit={2}
"""


@pytest.mark.parametrize(
    ("quit_", "then", "exit_", "why"),
    [
        ("os._exit:1", "", 1, Cause.DIED),
        ("sys.exit:0", "", 0, Cause.FINISHED),
        ("sys.exit:3", "leave", 3, Cause.FINISHED),  # it had taken its leave
    ],
)
def test_a_failing_exit_is_a_death(
    quit_: str, then: str, exit_: int, why: Cause
) -> None:
    (divergence,) = divergences(sketch(GOES.format(quit_, then, exit_)))
    assert (divergence.why, divergence.culprits) == (why, (1,))


def test_an_exit_that_was_caught_ended_nothing() -> None:
    run = sketch(
        "rank 0 | all_reduce(4)  all_reduce(4)  exit=0\n"
        "rank 1 | all_reduce(4)  quit=sys.exit:1@t.py:9  all_reduce(4)  exit=0"
    )
    assert quitting(run, 1) is None


def test_who_gives_up_after_its_peer_has_failed_it_did_not_die_of_itself() -> None:
    (divergence,) = divergences(
        sketch(
            "rank 0 | all_reduce(4)  all_reduce(4)^  quit=sys.exit:1@t.py:9  exit=1\n"
            "rank 1 | all_reduce(4)  fail=KeyError@t.py:5  exit=1"
        )
    )
    assert divergence.culprits == (1,)


def test_lines_that_raise_an_exit_are_told_where_they_are_few() -> None:
    line = "if late(): raise SystemExit(3)\n"
    run = sketch("rank 0 | all_reduce(4)  exit=3")
    found = raised_exits(replace(run, sources={"t.py": line}), 0)
    assert [one.place.line for one in found] == [1]
    assert not raised_exits(replace(run, sources={"t.py": line * 9}), 0)
