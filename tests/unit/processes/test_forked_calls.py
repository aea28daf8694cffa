"""Communication in processes that a rank has forked."""

import json
from pathlib import Path

from distdoctor.analysis.causes import Cause
from distdoctor.analysis.divergence.cascade import divergences
from distdoctor.analysis.sentences import sentence
from distdoctor.journal.folder import InChild, read_children
from distdoctor.journal.layout import CHILDREN_FILE
from distdoctor.model.drawing import sketch


def test_calls_in_children_are_read_and_damaged_lines_left_out(tmp_path: Path) -> None:
    call = {"by": 7, "pid": 9, "op": "all_reduce", "site": "/t.py\n3\nf", "worker": 1}
    (tmp_path / CHILDREN_FILE).write_text(json.dumps(call) + '\n{"by": 7, "op"')
    assert read_children(tmp_path) == [InChild(7, "all_reduce", "/t.py\n3\nf", 1)]


def test_a_call_in_a_child_is_the_cause_of_what_its_ranks_wait_for() -> None:
    (found,) = divergences(
        sketch("""
        rank 0 | all_reduce(4)@t:3  all_reduce(4)@t:3...
        rank 1 | all_reduce(4)@t:3  called_in_child(op=all_reduce)@data:9  busy=40@t:2
        """)
    )
    assert (found.why, found.culprits, found.victims) == (Cause.CHILD, (1,), (0,))
    assert "a process it forked" in sentence(found)
