"""Lines where a loss of backward, or the dictionary of a checkpoint, was made."""

from dataclasses import replace
from textwrap import dedent

import pytest

from distdoctor.analysis.optimizer_step.making_lines import (
    losses_made,
    mean_loss_lines,
    saved_without,
    zeroed_at,
)
from distdoctor.model.drawing import sketch
from distdoctor.model.events import Place
from distdoctor.model.findings import Location, Role
from distdoctor.model.run import Run

TRAINER = """
class Trainer:
    def compute_loss(self, batch):
        out = self.model(batch[0])
        loss = self.criterion(out, batch[1])
        return loss

    def training_step(self, batch):
        loss = self.compute_loss(batch)
        self.scaler.scale(loss).backward()
"""

HELPER = """
def run_backward(loss):
    loss.backward()

for x, y in loader:
    total = cross_entropy(model(x), y)
    run_backward(total)
"""

SECOND = """
def losses(out):
    count = len(out)
    loss = out.mean()
    return count, loss
count, loss = losses(model(x))
loss.backward()
"""

KEPT = """
class Trainer:
    def forward(self, x):
        self.count, self.loss = len(x), self.criterion(self.model(x))
    def step(self, x):
        self.forward(x)
        self.loss.backward()
"""

TWO_WAYS = """
def loss_of(out, y, state):
    if state == "mean":
        return cross_entropy(out, y)
    total = cross_entropy(
        out, y, reduction="sum"
    )
    return total / count
loss_of(model(x), y, "mean").backward()
"""

OTHER_FILE = """
def loss_of(out):
    total = out.square().mean()
    return total
"""


def run_of(source: str) -> Run:
    return replace(sketch("rank 0 | exit=0"), sources={"t.py": source})


@pytest.mark.parametrize(
    ("source", "backward", "lines"),
    [
        (TRAINER, 10, [5]),
        (HELPER, 3, [6]),
        ("loss = f(x)\n(loss / 4).backward()", 2, [1]),
        ("loss, out = f(x)\naccelerator.backward(loss)", 2, [1]),
        ("f(model(x), y).backward()", 1, []),
        ("broken(", 1, []),
        (SECOND, 7, [4]),
        (KEPT, 7, [4]),
        ("a, b = f(x), g(x)\n\nb.backward()", 3, [1]),
        ("self.loss.backward()", 1, []),
    ],
)
def test_the_line_that_makes_a_loss_is_found(
    source: str, backward: int, lines: list[int]
) -> None:
    found = losses_made(run_of(source), [Place("t.py", backward)])
    assert [one.line for one in found] == lines


@pytest.mark.parametrize(
    ("source", "lines"),
    [
        (TWO_WAYS, [4]),
        (TWO_WAYS.replace('"sum"', '"mean"'), [4, 5]),
        (TWO_WAYS.replace("y)\n", 'y, reduction="sum")\n'), [4, 5]),  # nothing else
    ],
)
def test_a_sum_makes_no_mean(source: str, lines: list[int]) -> None:
    backward = [Location(Place("t.py", 9), (0,), Role.CULPRIT, "")]
    found = mean_loss_lines(run_of(source), backward, (0,))
    assert [one.place.line for one in found] == lines


def test_a_loss_may_be_made_in_another_file() -> None:
    main = "from losses import loss_of\nloss = loss_of(model(x))\nloss.backward()\n"
    run = replace(run_of(main), sources={"t.py": main, "losses.py": OTHER_FILE})
    found = losses_made(run, [Place("t.py", 3)])
    assert [(one.file, one.line) for one in found] == [("losses.py", 3)]


@pytest.mark.parametrize(
    ("source", "lines"),
    [
        ("state = {\n'm': m.state_dict(),\n'opt': o.state_dict()}\nsave(state)", [1]),
        ("save(dict(model=m.state_dict(), optimizer=o.state_dict()), p)", [1]),
        ("{'opt': o.state_dict(), 'scaler': s.state_dict()}", []),
        ("{'opt': o, 'lr': 1}", []),
    ],
)
def test_a_dictionary_that_lacks_a_part_is_found(source: str, lines: list[int]) -> None:
    assert [one.line for one in saved_without(run_of(source), "scal")] == lines


def test_lines_that_set_parameters_to_zero() -> None:
    source = """
    nn.init.zeros_(low)
    nn.init.constant_(bias, 0.1)
    weight.grad.zero_()
    self.up = nn.Parameter(torch.zeros(4))
    weight.fill_(0)
    """
    run = replace(sketch("rank 0 | ."), sources={"t.py": dedent(source).lstrip()})
    assert [place.line for place in zeroed_at(run)] == [1, 4, 5]
