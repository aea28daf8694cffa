"""Whom DD415 blames: those who misuse Horovod's optimizer, unless all do."""

from __future__ import annotations

import pytest

from distdoctor.catalogue import every_check
from distdoctor.model.drawing import sketch

DROPPED = "optimizer_wrapped(optimizer=1)@t.py:9  state_dropped(optimizer=1,entries=6,step=12,loaded)@t.py:9"  # noqa: E501
KEPT = "optimizer_wrapped(optimizer=1)@t.py:9  all_reduce(4)"


@pytest.mark.parametrize(
    ("lives", "culprits"), [((DROPPED, DROPPED), ()), ((KEPT, DROPPED), (1,))]
)
def test_nobody_is_blamed_for_what_all_do(
    lives: tuple[str, ...], culprits: tuple[int, ...]
) -> None:
    drawing = "\n".join(f"rank {rank} | {life}" for rank, life in enumerate(lives))
    (doctor,) = [one for one in every_check() if one.code == "DD415"]
    (finding,) = doctor.examine(sketch(drawing))
    assert finding.culprits == culprits
