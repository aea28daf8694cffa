"""Values that ranks had before their steps: what is written is what is read."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from distdoctor.errors import JournalUnreadable
from distdoctor.journal.layout import REFERENCE_FOLDER
from distdoctor.journal.packed_texts import joined
from distdoctor.journal.private_files import make_private_folder
from distdoctor.journal.texts import Tables
from distdoctor.journal.value_files import write_values
from distdoctor.journal.values_reader import read_values
from distdoctor.model.events import Place


def a_record(folder: Path) -> Path:
    record = make_private_folder(folder / "record", below=0)
    for rank, step in ((0, 1), (0, 2), (0, 4), (1, 1)):
        arrays: dict[str, Any] = {
            "weight/w": np.full((2, 3), step, np.float32),
            "gradient/w": np.zeros(2),
            "given/0": np.arange(rank + 1),
        }
        told = {"lines": {"w": joined("/job/train.py", "3", "build")}, "random": ["A"]}
        assert write_values(record, rank, step, arrays, told) > 100
    return record


def test_steps_are_read_as_they_were_written(tmp_path: Path) -> None:
    found = read_values(a_record(tmp_path), Tables("/job").place)
    assert {rank: [one.step for one in steps] for rank, steps in found.items()} == {
        0: [1, 2],
        1: [1],
    }
    second = found[0][1]
    assert second.weights["w"].tolist() == [[2, 2, 2], [2, 2, 2]]
    assert second.gradients["w"].tolist() == [0, 0]
    assert [given.tolist() for given in found[1][0].given] == [[0, 1]]
    assert second.lines == {"w": Place("train.py", 3, "build")}
    assert (second.line, second.random, second.too_large) == (None, ("A",), False)


def test_nothing_was_written(tmp_path: Path) -> None:
    assert read_values(tmp_path, Tables("/").place) == {}


@pytest.mark.parametrize(
    "data", [b"", b"PK\x03\x04nonsense", b"\x80\x04.", b"\x00" * 99]
)
def test_a_damaged_file_is_refused(tmp_path: Path, data: bytes) -> None:
    record = a_record(tmp_path)
    (record / REFERENCE_FOLDER / "values-1-1.npz").write_bytes(data)
    with pytest.raises(JournalUnreadable, match="no file of values"):
        read_values(record, Tables("/").place)
