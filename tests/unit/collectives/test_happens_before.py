"""What one rank did before another, by their communication."""

import pytest

from distdoctor.analysis.collectives.happens_before import is_ordered
from distdoctor.model.drawing import sketch


@pytest.mark.parametrize(
    ("drawing", "first", "second", "ordered"),
    [
        ("rank 0 | barrier\nrank 1 | barrier", (0, 0), (1, 1), True),
        ("rank 0 | barrier\nrank 1 | barrier", (0, 1), (1, 1), False),
        ("rank 0 | barrier\nrank 1 | barrier", (0, 0), (1, 0), False),
        ("rank 0 | broadcast(1)\nrank 1 | broadcast(1)", (0, 0), (1, 1), True),
        ("rank 0 | broadcast(1)\nrank 1 | broadcast(1)", (1, 0), (0, 1), False),
        ("rank 0 | send(1,peer=1)\nrank 1 | recv(1,peer=0)", (0, 0), (1, 1), True),
        ("rank 0 | send(1,peer=1)\nrank 1 | recv(1,peer=0)", (1, 0), (0, 1), False),
        (
            "rank 0 | store_set(names=k)\nrank 1 | store_wait(names=k)",
            (0, 0),
            (1, 1),
            True,
        ),
        (
            "group a | 0 1\ngroup b | 1 2\n"
            "rank 0 | barrier/a\nrank 1 | barrier/a  barrier/b\nrank 2 | barrier/b",
            (0, 0),
            (2, 1),
            True,
        ),
        (
            "group a | 0 1\ngroup b | 1 2\n"
            "rank 0 | barrier/a\nrank 1 | barrier/b  barrier/a\nrank 2 | barrier/b",
            (0, 0),
            (2, 1),
            False,
        ),
    ],
)
def test_only_calls_order_moments(
    drawing: str, first: tuple[int, int], second: tuple[int, int], ordered: bool
) -> None:
    assert is_ordered(sketch(drawing), first, second) is ordered
