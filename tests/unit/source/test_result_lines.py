"""The lines by which functions give their results."""

from textwrap import dedent

from distdoctor.analysis.source.program import Program
from distdoctor.analysis.source.result_lines import returned_at, returns_of
from distdoctor.model.events import Place

SCHEDULE = """
def schedule(opt, warmup):
    @once
    def factor(step):
        if step < warmup:
            return step / warmup
        rest = lambda: 3
        return step ** -0.5
    return LambdaLR(opt, factor)
class Inverse(LRScheduler):
    def get_lr(self):
        return [
            rate for rate in self.base_lrs]
def many(step):
    if step == 1: return 1
    if step == 2: return 2
    if step == 3: return 3
    return 4
"""


def returns(line: int) -> list[tuple[int, str]]:
    program = Program({"t.py": dedent(SCHEDULE).strip() + "\n"})
    return [
        (place.line, place.function)
        for place in returns_of(program, Place("t.py", line))
    ]


def test_the_returns_of_a_nested_function_are_its_own() -> None:
    name = "schedule.<locals>.factor"
    assert returns(2) == returns(3) == [(5, name), (7, name)]
    assert returns(1) == [(8, "schedule")]


def test_a_method_has_them_as_well() -> None:
    assert returns(10) == [(11, "Inverse.get_lr")]


def test_many_returns_say_too_little() -> None:
    assert returns(13) == []


def test_a_line_within_a_function_is_not_its_begin() -> None:
    assert returns(5) == []


def test_the_returns_of_the_function_that_a_line_calls() -> None:
    text = dedent("""
        def rate(step):
            if step < 4:
                return 0.1 * step
            return 0.1
        def train():
            group["lr"] = rate(3)
            twice(rate(1), other(2))
        def other(n):
            return n
    """).strip()
    program = Program({"t.py": text})
    assert [one.line for one in returned_at(program, Place("t.py", 6))] == [3, 4]
    assert not returned_at(program, Place("t.py", 7))
