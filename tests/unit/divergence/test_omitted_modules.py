"""The branch by which a module was left out, from drawings with their source."""

from dataclasses import replace
from inspect import cleandoc

import pytest

from distdoctor.analysis.causes import Cause
from distdoctor.analysis.divergence.cascade import divergences
from distdoctor.analysis.sentences import sentence
from distdoctor.model.drawing import sketch

DETECTOR = """
class Detector(Module):
    def __init__(self):
        self.body = Linear(4, 4)
        self.box = Linear(4, 4)
    def boxes(self, x, mask):
        if not mask.any():
            return zeros(1)
        return self.box(x[mask])
    def forward(self, x, mask):
        x = self.body(x)
        return self.boxes(x, mask)
for x, mask in loader:
    loss = model(x, mask)
    loss.backward()
"""

IN_FORWARD = """
class Detector(Module):
    def __init__(self):
        self.box = Sequential(Linear(4, 4), ReLU())
    def forward(self, x, mask):
        if mask.any():
            x = self.box(x)
        return x
"""

TWO_CLASSES = (
    DETECTOR
    + """
class Other(Module):
    def __init__(self):
        self.box = Linear(4, 4)
    def forward(self, x):
        if x.any():
            return self.box(x)
"""
)

HELD = (
    TWO_CLASSES
    + """
class Whole(Module):
    def __init__(self):
        self.second = Other()
    def forward(self, x):
        return self.second(x)
"""
)

CALLED_TWICE = DETECTOR.replace("self.body(x)", "self.box(self.body(x))")
HANDED_ON = DETECTOR.replace("self.body(x)", "checkpoint(self.box, self.body(x))")
SETTING = IN_FORWARD.replace("mask.any()", "self.with_boxes")
AN_ERROR = DETECTOR.replace("return zeros(1)", "raise ValueError")
ALWAYS = DETECTOR.replace("if not mask.any()", "if 3 > 4")


def lines(source: str, names: str = "box.weight+box.bias") -> list[int]:
    """Lines told before those of the backward pass, which is at 99."""
    run = sketch(
        f"""
        rank 0 | wrap=ddp:a+b  all_reduce(9,by=backward)@t.py:99...
        rank 1 | wrap=ddp:a+b  unreduced={names}@t.py:99  exit=0
        """
    )
    (found,) = divergences(replace(run, sources={"t.py": cleandoc(source)}))
    assert (found.why, found.culprits) == (Cause.UNUSED, (1,))
    named = [location.place.line for location in found.elsewhere]
    assert named[-1] == 99
    assert ("Most likely" in sentence(found)) is (len(named) > 1)
    return named[:-1]


@pytest.mark.parametrize(
    ("source", "names", "expected"),
    [
        (DETECTOR, "box.weight+box.bias", [6, 7, 8]),
        (DETECTOR, "box.weight", [6, 7, 8]),
        (IN_FORWARD, "box.0.weight+box.0.bias", [5, 6]),
        (HELD, "second.box.weight", [20, 21]),
    ],
)
def test_the_branch_around_the_only_call_is_told(
    source: str, names: str, expected: list[int]
) -> None:
    assert lines(source, names) == expected


@pytest.mark.parametrize(
    "source",
    [TWO_CLASSES, CALLED_TWICE, HANDED_ON, ALWAYS, SETTING, AN_ERROR],
)
def test_where_it_is_not_clear_no_branch_is_told(source: str) -> None:
    assert lines(source) == []


@pytest.mark.parametrize("names", ["body.weight+box.weight", "scale", "body.weight"])
def test_parameters_of_no_such_module_have_no_branch(names: str) -> None:
    assert lines(DETECTOR, names) == []
