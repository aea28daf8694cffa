"""Running statistics of hand-written layers: what is seen, read, and made of it."""

from collections.abc import Iterator
from dataclasses import replace
from textwrap import indent

import pytest
import torch
from torch import nn

from distdoctor.analysis.replicas.buffer_divergence import unlike_evaluations
from distdoctor.analysis.source.buffer_reads import Buffers
from distdoctor.analysis.source.program import Program
from distdoctor.model.drawing import sketch
from distdoctor.probes.replicas import running_buffers
from distdoctor.probes.replicas.running_buffers import LAST_STEP, Running


class Layer(nn.Module):
    """Has statistics, a count, a scale that nobody changes, and what is not saved."""

    mean: torch.Tensor
    var: torch.Tensor
    by_hand: torch.Tensor
    count: torch.Tensor
    last: torch.Tensor

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("mean", torch.zeros(3))
        self.register_buffer("var", torch.ones(3))
        self.register_buffer("by_hand", torch.zeros(3))
        self.register_buffer("scale", torch.ones(3))
        self.register_buffer("count", torch.zeros((), dtype=torch.long))
        self.register_buffer("last", torch.zeros(3), persistent=False)

    def forward(self, batch: torch.Tensor) -> torch.Tensor:
        """As user code has it."""
        if self.training:
            self.mean.lerp_(batch.mean(0), 0.1)
            self.var = self.var + batch.var(0)
            self.count += 1
            self.last.copy_(batch[0])
        normalised: torch.Tensor = (batch - self.mean) / self.var
        return normalised


@pytest.fixture(autouse=True)
def _forgotten(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    # Another test of this process may have compiled something.
    monkeypatch.setattr(running_buffers, "compiles", lambda: False)
    yield
    running_buffers.reset()


@pytest.mark.parametrize("is_met_early", [True, False])
def test_it_is_told_whose_forward_pass_changes_a_buffer(is_met_early: bool) -> None:
    layer = Layer()
    model = nn.Sequential(nn.Linear(3, 3), layer)
    if not is_met_early:
        model(torch.randn(4, 3))
    seen = Running(model, ())
    for step in range(1, LAST_STEP + 2):
        model(torch.randn(4, 3))
        layer.by_hand.add_(1.0)
        seen.stepped(step)
    assert {name for name, _ in seen.changed()} == {"1.mean", "1.var", "1.by_hand"}
    assert seen.own == {"1.mean", "1.var"}
    assert not running_buffers._hooks


def test_what_ddp_was_told_to_leave_alone_is_left_alone() -> None:
    model = nn.Sequential(Layer())
    seen = Running(model, {"0.mean"})
    model(torch.randn(4, 3))
    assert {name for name, _ in seen.changed()} == {"0.var"}


def test_evaluations_change_nothing_of_their_own() -> None:
    model = nn.Sequential(Layer())
    seen = Running(model, ())
    model(torch.randn(4, 3))
    seen.stepped(1)
    model.eval()(torch.randn(4, 3))
    assert not seen.own


MADE = """
class Layer(nn.Module):
    def __init__(self):
        self.register_buffer("seen", torch.zeros(3))
        self.register_buffer("other", torch.zeros(3))
"""


def source(forward: str, rest: str = "") -> str:
    """A layer with a buffer `seen`."""
    body = "def forward(self, x):\n" + indent(forward, "    ") + rest
    return MADE + indent(body, "    ")


def program(forward: str, rest: str = "") -> Program:
    """That alone."""
    return Program({"t.py": source(forward, rest)})


@pytest.mark.parametrize(
    ("forward", "rest"),
    [
        ("return x - self.seen\n", ""),
        ("if self.training:\n    self.seen.lerp_(x, 0.1)\nreturn x - self.seen\n", ""),
        ("if not self.training:\n    return x - self.seen\nreturn x\n", ""),
        ("return x - (x.mean(0) if self.training else self.seen)\n", ""),
        ("return self.inner(x)\n", "def inner(self, x):\n    return x / self.seen\n"),
        (
            "return x / self.scale\n",
            "@property\ndef scale(self):\n    return self.seen.sqrt()\n",
        ),
        # What is made of it goes into the result, and into another buffer as well.
        ("d = x - self.seen\nself.other.add_(d)\nreturn d\n", ""),
        # Codes that are not used are put elsewhere; the others move as one.
        (
            "if self.training:\n    self.seen.copy_(x)\n    self.seen[dead] = x[0]\n"
            "return x - self.seen\n",
            "",
        ),
        ("self.seen[:] = x\nreturn x - self.seen\n", ""),
        ("with torch.no_grad():\n    y = F.norm(x, self.seen)\nreturn y\n", ""),
    ],
)
def test_a_buffer_is_computed_with(forward: str, rest: str) -> None:
    assert Buffers(program(forward, rest)).are_computed_with("seen") is True


@pytest.mark.parametrize(
    ("forward", "rest"),
    [
        ("self.seen.lerp_(x, 0.1)\nreturn x\n", ""),
        ("self.seen = 0.9 * self.seen + x\nreturn x\n", ""),
        ("d = x - self.seen\nself.seen += d / 9\nreturn x\n", ""),
        ("return x.seen(0)\n", ""),
        # In training alone, or for the log.
        ("return x + self.seen if self.training else x\n", ""),
        ("if not self.training:\n    return x\nreturn x + self.seen\n", ""),
        ("if self.training and x.any():\n    x = x + self.seen\nreturn x\n", ""),
        ("return x\n", "def logged(self):\n    return self.seen.tolist()\n"),
        # A queue.
        ("self.seen[p:p + 4] = x\nreturn x @ self.seen\n", ""),
        ("self.seen[:, p] = x\nreturn x @ self.seen\n", ""),
    ],
)
def test_a_buffer_is_not_computed_with(forward: str, rest: str) -> None:
    assert Buffers(program(forward, rest)).are_computed_with("seen") is False


def test_a_buffer_of_a_library_may_be_anything() -> None:
    assert Buffers(program("return x\n")).are_computed_with("codes") is None


@pytest.mark.parametrize(
    ("kind", "forward", "expected"),
    [
        ("running", "return x - self.seen\n", [True]),
        ("changed", "return x - self.seen\n", [False]),
        ("running", "return x\n", []),
        ("changed", "return x\n", []),
    ],
)
def test_replicas_are_to_evaluate_with_the_same_statistics(
    kind: str, forward: str, expected: list[bool]
) -> None:
    lines = [
        f"rank {rank} | wrap=ddp:w  "
        f"evaluated(steps=1,names=0.seen,{kind}=0.seen,prints={rank})@t.py:20  "
        "all_reduce(2)@t.py:24"
        for rank in range(2)
    ]
    run = replace(sketch("\n".join(lines)), sources={"t.py": source(forward)})
    assert [one.sure for one in unlike_evaluations(run)] == expected
