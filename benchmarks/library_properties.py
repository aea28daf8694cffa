"""The properties of `distdoctor.equivalence`, asked of the steps of the reference jobs.

As a user's tests would ask them: on one rank, in this process.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import torch
from simulated import Ranks
from textbook import CPU, RATE, Case, classifier, rate_factor
from torch import nn
from torch.optim.lr_scheduler import LambdaLR

from distdoctor.equivalence import Step, assert_accumulates, batches

EXAMPLES = 3

_POINTS = batches.labelled(inputs=(12,), classes=4, rows=3)


def amp_accumulates(job: Any) -> None:
    """Micro-batches are as one batch; in float32."""

    def step(model: Any, optimizer: Any, window: Sequence[Any], scaler: Any) -> None:
        schedule = LambdaLR(optimizer, rate_factor)
        training = job.Training(model, optimizer, schedule, scaler, torch.float32, CPU)
        job.step(training, window)

    made = Step(_network, _sgd, step)
    assert_accumulates(made, _POINTS, examples=EXAMPLES)


def tokens_accumulate(job: Any) -> None:
    """Micro-batches are as one batch, whatever the numbers of their tokens."""

    def step(model: Any, optimizer: Any, window: Sequence[Any]) -> None:
        schedule = LambdaLR(optimizer, rate_factor)
        padded = [(words, following.clamp(min=0)) for words, following in window]
        job.step(model, optimizer, schedule, padded, CPU)

    made = Step(job.LanguageModel, _sgd, step)
    sentences = batches.tokens(vocabulary=job.WORDS, rows=2)
    assert_accumulates(made, sentences, examples=EXAMPLES)


def trust_accumulates(job: Any) -> None:
    """Micro-batches are as one batch, under either optimizer."""

    def step(model: Any, optimizer: Any, window: Sequence[Any]) -> None:
        schedule = LambdaLR(optimizer, rate_factor)
        job.step(model, optimizer, schedule, window, CPU)

    for optimizer in (job.Lars, job.Lamb):
        made = Step(_network, partial(optimizer, lr=RATE), step)
        assert_accumulates(made, _POINTS, examples=EXAMPLES)


LIBRARY: dict[str, tuple[Callable[[Any], None], ...]] = {
    "amp_accumulation": (amp_accumulates,),
    "token_accumulation": (tokens_accumulate,),
    "trust_ratio": (trust_accumulates,),
    "checkpointed": (),
}
"""By job."""


def ask(job: Any, holds: Callable[[Any], None]) -> None:
    """Try a property with a job whose collectives are those of a single rank."""
    job.dist = Ranks(1)
    holds(job)


def _network() -> nn.Module:
    return classifier(Case())


def _sgd(parameters: list[nn.Parameter]) -> torch.optim.Optimizer:
    return torch.optim.SGD(parameters, RATE)
