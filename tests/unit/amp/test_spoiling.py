"""Which operation made a loss NaN or Inf: what a graph shows, and the lines."""

import gc
import weakref
from collections.abc import Callable
from dataclasses import replace

import pytest
import torch
from torch import Tensor
from torch.nn.functional import cross_entropy

from distdoctor.analysis.amp.spoiling_lines import computing
from distdoctor.model.drawing import sketch
from distdoctor.model.observations import gradients as words
from distdoctor.probes.amp import non_finite_weights, spoiling_operation
from distdoctor.probes.amp.spoiling_operation import operation_in


def given() -> Tensor:
    return torch.tensor([0.0, -1.0, 2.0], requires_grad=True)


@pytest.mark.parametrize(
    ("compute", "word"),
    [
        (lambda x: x.exp() / torch.zeros(3), words.DIVISION_BY_ZERO),
        (lambda x: x.sum() / 0, words.DIVISION_BY_ZERO),
        (lambda x: x.reciprocal(), words.DIVISION_BY_ZERO),
        (lambda x: x**-1, words.DIVISION_BY_ZERO),
        (lambda x: x.relu().log(), words.LOGARITHM_OF_ZERO),
        (lambda x: x.log(), words.LOGARITHM_OF_NEGATIVE),
        (lambda x: torch.log1p(x - 0.5), words.LOGARITHM_OF_NEGATIVE),
        (lambda x: (2 * x).sqrt(), words.ROOT_OF_NEGATIVE),
        (lambda x: x**0.5, words.ROOT_OF_NEGATIVE),
        (lambda x: (100 * x).exp(), words.EXPONENTIAL_TOO_LARGE),
        (lambda x: x[:0].mean(), words.MEAN_OF_NOTHING),
        (
            lambda x: cross_entropy(x[None], torch.tensor([-100])),
            words.ALL_IGNORED,
        ),
        # The first one counts:
        (lambda x: ((100 * x).exp() / torch.zeros(3)).log(), "exp"),
        (lambda x: (x * torch.tensor([1.0, 1.0, torch.nan])).log(), ""),
        (lambda x: x * torch.inf, ""),
        (lambda x: torch.where(x > 9, (x / 0), x * torch.inf), ""),
        (lambda x: x / x.norm(), ""),
    ],
)
def test_the_operation_that_makes_it_is_known(
    compute: Callable[[Tensor], Tensor], word: str
) -> None:
    assert operation_in(compute(given()).sum()) == word


def test_a_leaf_shows_nothing() -> None:
    assert operation_in(torch.tensor(torch.nan, requires_grad=True)) == ""


def test_hooks_that_pack_tensors_are_not_run() -> None:
    unpacked: list[Tensor] = []

    def unpack(packed: Tensor) -> Tensor:
        unpacked.append(packed)
        return packed

    with torch.autograd.graph.saved_tensors_hooks(lambda one: one, unpack):
        loss = given().log().sum()
    assert operation_in(loss) == ""
    assert unpacked == []


def test_no_graph_is_kept_and_it_is_looked_at_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    non_finite_weights.reset()
    looked: list[str] = []

    def look(loss: Tensor) -> str:
        looked.append(operation_in(loss))
        raise RuntimeError("a probe that fails")

    monkeypatch.setattr(spoiling_operation, "operation_in", look)
    for _ in range(2):
        loss = given().log().sum()
        alive = weakref.ref(loss)
        assert non_finite_weights.backward(loss)
        del loss
        gc.collect()
        assert alive() is None
        non_finite_weights._search.loss = None
    assert looked == [words.LOGARITHM_OF_NEGATIVE]
    non_finite_weights.reset()


SOURCE = """\
class Model:
    def forward(self, x, count):
        half = x / 2
        return half.sum() / count

def loss(x):
    return x.log() / x.max()
"""


def lines(operation: str, source: str = SOURCE) -> list[int]:
    run = replace(sketch("rank 0 | ."), sources={"t.py": source})
    return [place.line for place in computing(run, operation)]


def test_the_line_of_such_an_operation_is_found() -> None:
    assert lines(words.DIVISION_BY_ZERO) == [4]
    assert lines(words.LOGARITHM_OF_ZERO) == [7]
    assert lines(words.EXPONENTIAL_TOO_LARGE) == []
    assert lines("") == []
    assert lines(words.LOGARITHM_OF_ZERO, "def f(:") == []


def test_one_of_many_lines_is_none() -> None:
    many = SOURCE + "".join(f"\ndef f{n}(x):\n    return x.log()\n" for n in range(2))
    assert lines(words.LOGARITHM_OF_ZERO, many) == []


def test_a_line_is_told_once_though_functions_lie_in_each_other() -> None:
    nested = "def train():\n    def loss(x):\n        return x.log()\n    return loss\n"
    assert lines(words.LOGARITHM_OF_ZERO, nested) == [3]
