"""Lines that lead to a fault's place: ways of values, callers, and what gives items."""

from textwrap import dedent

import pytest

from distdoctor.analysis.source.call_chains import led_by
from distdoctor.analysis.source.loop_iterables import givers
from distdoctor.analysis.source.program import Program
from distdoctor.analysis.source.value_trails import divisors, multipliers
from distdoctor.model.events import Place


def program(source: str) -> tuple[Program, Place]:
    """A program, and its line that is marked by HERE."""
    text = dedent(source).strip() + "\n"
    (line,) = [n for n, one in enumerate(text.splitlines(), start=1) if "HERE" in one]
    return Program({"t.py": text}), Place("t.py", line)


def divided(source: str) -> list[tuple[int, list[int]]]:
    found = divisors(*program(source), 0, 2)
    return [(place.line, [one.line for one in comes]) for place, comes in found]


def test_what_a_loss_is_divided_by_is_followed_to_its_end() -> None:
    assert divided("""
        class Window:
            def __init__(self, accumulate):
                self.accumulate = accumulate
            def size(self, i):
                return self.accumulate
        def micro(window, i):
            (loss / window.size(i)).backward()  # HERE
        def epoch():
            window = Window(
                4)
            micro(window, 0)
    """) == [(7, [5, 3, 10])]


def test_by_names_where_the_way_is_not_plain() -> None:
    """Torch calls the hook: with which state is not in the source."""
    assert divided("""
        class Info:
            tasks: int = field(default_factory=lambda: int(os.environ.get("N", 1)))
        class State:
            def __init__(self, tasks):
                self.tasks = tasks
        def hook(state, bucket):
            buffer = bucket.buffer().div_(state.tasks)
            return dist.all_reduce(buffer)  # HERE
        def build(info):
            model.register_comm_hook(State(info.tasks), hook)
    """) == [(7, [5, 2, 10])]


def test_a_function_that_divides_nothing_has_no_divisor() -> None:
    assert (
        divided("""
        def hook(state, bucket):
            return dist.all_reduce(bucket.buffer())  # HERE
    """)
        == []
    )


def led(source: str) -> list[int]:
    return [place.line for place in led_by(*program(source))]


def test_callers_are_told_as_far_as_there_is_one() -> None:
    source = """
        class Session:
            def __init__(self):
                self.opt = build()
        def build():
            return SGD(parameters)  # HERE
        def main():
            {}
        main()
    """
    assert led(source.format("Session()")) == [3, 7]
    assert led(source.format("Session(), Session()")) == [3, 7]
    assert led(source.format("Session()\n            build()")) == []


def test_what_is_in_no_function_is_no_caller() -> None:
    assert (
        led("""
        def build():
            return SGD(parameters)  # HERE
        build()
    """)
        == []
    )


@pytest.mark.parametrize(
    ("head", "lines"),
    [
        ("for x in self.inputs(batch):  # HERE", [9, 4, 7]),
        ("for i, x in enumerate(self.loader):  # HERE", [12]),
        ("for x in range(4):  # HERE", []),
        ("for x in unknown(4):  # HERE", []),
    ],
)
def test_what_gives_a_loop_its_items(head: str, lines: list[int]) -> None:
    found = givers(
        *program(f"""
        class Stage:
            def inputs(self, x):
                if first:
                    yield from self.split(x)
                else:
                    for _ in range(4):
                        yield pull()
            def split(self, x):
                return x.chunk(4)
        class Loader:
            def __iter__(self):
                return islice(blocks, len(self))
        class Trainer(Stage):
            def __init__(self):
                self.loader = Loader()
            def step(self, batch):
                {head}
                    learn(x)
        """),
        0,
        2,
    )
    assert [place.line for place in found] == lines


def test_what_a_loss_is_multiplied_by_is_followed_into_the_function_that_weighs() -> (
    None
):
    found = multipliers(
        *program("""
        class Window:
            def __init__(self, cfg):
                self.weight = 1.0 / cfg.accumulate
            def share(self, loss):
                return loss * self.weight
        window = Window(Config())
        window.share(loss).backward()  # HERE
        """),
        0,
        2,
    )
    assert 3 in [place.line for place in found]
