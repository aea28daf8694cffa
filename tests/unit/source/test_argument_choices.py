"""Where the source chooses which of many a call is given."""

from textwrap import dedent

import pytest

from distdoctor.analysis.source.argument_choices import choosing
from distdoctor.analysis.source.program import Program
from distdoctor.model.events import Place


def line(source: str) -> int:
    """The line that chooses what is summed; 0: none."""
    text = dedent(source).strip() + "\n"
    (at,) = [n for n, one in enumerate(text.splitlines(), 1) if "all_reduce" in one]
    place = choosing(Program({"t.py": text}), Place("t.py", at))
    return 0 if place is None else place.line


@pytest.mark.parametrize(
    ("source", "expected"),
    [
        (
            """
            class Exchange:
                def __init__(self, model):
                    self.shared = [
                        p for n, p in model.named_parameters() if n in NAMES
                    ]
                def __call__(self):
                    some = [p.grad for p in self.shared if p.grad is not None]
                    flat = torch.cat(some)
                    dist.all_reduce(flat)
                    flat /= 2
            """,
            3,
        ),
        (
            """
            def average(parameters):
                for p in parameters:
                    dist.all_reduce(p.grad)
            def main():
                body = [p for n, p in model.named_parameters() if "head" not in n]
                average(body)
            """,
            5,
        ),
        (
            """
            class Exchange:
                def __init__(self, parameters):
                    self.parameters = parameters
                def run(self):
                    for p in self.parameters:
                        dist.all_reduce(p.grad)
            body = [p for n, p in model.named_parameters() if "head" not in n]
            Exchange(body).run()
            """,
            7,
        ),
        (
            """
            def average(model):
                every = model.parameters()
                for p in [p for p in every if p.requires_grad and p is not q]:
                    dist.all_reduce(p.grad)
            average(model)
            """,
            0,
        ),
        (
            """
            one = [p for p in model.parameters() if p.dim() > 1]
            two = [p for p in model.parameters() if p.dim() < 2]
            dist.all_reduce(torch.cat(one + two))
            """,
            0,
        ),
    ],
    ids=["an attribute", "a parameter", "kept", "presence", "several"],
)
def test_the_line_that_chooses(source: str, expected: int) -> None:
    assert line(source) == expected


def test_a_file_that_nobody_knows_chooses_nothing() -> None:
    assert choosing(Program({}), Place("t.py", 3)) is None
