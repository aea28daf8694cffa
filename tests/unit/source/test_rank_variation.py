"""What a loop's variable is to the ranks of a job."""

import ast
from inspect import cleandoc

import pytest

from distdoctor.analysis.source.program import Program
from distdoctor.analysis.source.rank_variation import Nature, nature


@pytest.mark.parametrize(
    ("head", "name", "expected"),
    [
        ("i in range(9)", "i", Nature.COMMON),
        ("i, x in enumerate(drawn)", "i", Nature.COMMON),
        ("i, x in enumerate(drawn)", "x", Nature.LOCAL),
        ("i, (x, y) in enumerate(drawn)", "y", Nature.LOCAL),
        ("i, x in zip(range(9), drawn)", "i", Nature.COMMON),
        ("i, x in zip(range(9), drawn)", "x", Nature.LOCAL),
        ("i, x in zip(*pairs, drawn)", "i", Nature.LOCAL),
        ("i in zip(range(9), drawn)", "i", Nature.LOCAL),
    ],
)
def test_a_variable_is_as_what_it_goes_through(
    head: str, name: str, expected: Nature
) -> None:
    text = f"drawn = rand(4)\npairs = rand(4)\nfor {head}:\n    use({name})\n"
    program = Program({"t.py": text})
    function = program.at("t.py", 4)
    assert function is not None
    node = ast.parse(name, mode="eval").body
    assert nature(program, node, function) is expected


OBJECTS = """
class Config:
    steps: int = 9
    def __init__(self, seed):
        pass
same = Config(3)
own = Config(get_rank())
use(same)
"""


def test_an_object_of_the_users_is_as_what_it_is_made_of() -> None:
    program = Program({"t.py": cleandoc(OBJECTS)})
    function = program.at("t.py", 7)
    assert function is not None
    found = [
        nature(program, ast.parse(one, mode="eval").body, function)
        for one in ("same.steps", "own.steps")
    ]
    assert found == [Nature.COMMON, Nature.LOCAL]
