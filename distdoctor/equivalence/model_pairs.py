"""Compares two models, or two forms of one model, under the same step."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace

import torch
from torch import nn

from distdoctor.equivalence.batches import Example
from distdoctor.equivalence.capturing import Tensors, Trial
from distdoctor.equivalence.comparing import (
    Difference,
    Reference,
    gradient_difference,
    reference,
)
from distdoctor.equivalence.step import clean
from distdoctor.equivalence.step_runner import Runner
from distdoctor.errors import StepUnusable

_SLACK = 16.0
"""Of the unit round-off in float64: operations may be put together otherwise."""


@dataclass(frozen=True, slots=True)
class Pair:
    """Two models under the same step, starting from the same weights.

    Args:
        runner: Runs the step with the model under test.
        other: Runs the step with the model that it is compared with.
        wrap: Is applied to the model under test.
    """

    runner: Runner
    other: Runner
    wrap: Callable[[nn.Module], nn.Module] | None = None

    def difference(self, example: Example, dtype: torch.dtype) -> Difference:
        """The largest difference of gradients in a precision."""
        return gradient_difference(
            self.trial(example, dtype), self.reference(example, dtype)
        )

    def trial(self, example: Example, dtype: torch.dtype) -> Trial:
        """The result of the step with the model under test."""
        return self.runner.run(
            [example.micro_batches()],
            dtype,
            seed=example.seed,
            frozen=True,
            wrap=self.wrap,
        )

    def reference(self, example: Example, dtype: torch.dtype) -> Reference:
        """The result of the step with the other model, in float64.

        Raises:
            StepUnusable: The step makes no step of its optimizer.
        """

        def run(around: AbstractContextManager[object]) -> Trial:
            trial = self.other.run(
                [example.micro_batches()],
                torch.float64,
                seed=example.seed,
                frozen=True,
                around=around,
            )
            names = [clean(name) for name, _ in self.runner.start.named_parameters()]
            trial.gradients = [_renamed(one, names) for one in trial.gradients]
            return trial

        slack = _SLACK if dtype is torch.float64 else 1.0
        expected = reference(run, dtype, more=len(example.rows), slack=slack)
        if not expected.trial.gradients:
            raise StepUnusable("the step made no optimizer step: it is to make one")
        return expected


def of_models(runner: Runner, other: Callable[[], nn.Module]) -> Runner:
    """A runner of another model, which starts from the weights of the first one.

    Parameters and buffers belong together by their names, or by their order if those
    differ.

    Raises:
        StepUnusable: The two have other numbers of parameters, or of other shapes.
    """
    model = other()
    mine = {clean(name): one for name, one in runner.start.state_dict().items()}
    theirs = model.state_dict()
    names = [clean(name) for name in theirs]
    values = (
        [mine[name] for name in names] if set(names) == set(mine) else mine.values()
    )
    if [one.shape for one in values] != [one.shape for one in theirs.values()]:
        raise StepUnusable(
            "the two models have other parameters: they are to differ in how they "
            "compute, and not in what"
        )
    model.load_state_dict(dict(zip(theirs, values, strict=True)))
    return replace(runner, step=replace(runner.step, model=other), start=model)


def _renamed(gradients: Tensors, names: list[str]) -> Tensors:
    if set(gradients) == set(names) or len(gradients) != len(names):
        return gradients
    return dict(zip(names, gradients.values(), strict=True))
