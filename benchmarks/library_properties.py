"""The properties of `distdoctor.equivalence`, asked of the steps of the reference jobs.

As a user's tests would ask them: on one rank, in this process.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import torch
from simulated import Ranks
from textbook import CPU, RATE, Case, classifier, rate_factor
from torch import nn
from torch.optim.lr_scheduler import LambdaLR

from distdoctor.equivalence import (
    Step,
    Trainee,
    assert_accumulates,
    assert_amp,
    assert_checkpointed,
    assert_resumes,
    batches,
)

EXAMPLES = 3

_POINTS = batches.labelled(inputs=(12,), classes=4, rows=3)


def amp_accumulates(job: Any) -> None:
    """Micro-batches are as one batch; in float32."""
    step = _scaled(job, torch.float32)
    assert_accumulates(step, _POINTS, examples=EXAMPLES)


def amp_is_nearly_full(job: Any) -> None:
    """A step in float16 is one in float32; what overflows is left out."""
    assert_amp(_scaled(job, torch.float16), _POINTS, examples=EXAMPLES)


def amp_resumes(job: Any) -> None:
    """A job goes on from its checkpoint."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "checkpoint.pt"

        def save(trained: Trainee) -> Any:
            job.save(_training(job, trained), path, 0)
            return torch.load(path, weights_only=True)

        def load(trained: Trainee, state: Any) -> None:
            torch.save(state, path)
            job.load(_training(job, trained), path)

        assert_resumes(
            _scaled(job, torch.float32),
            _POINTS,
            save=save,
            load=load,
            random=False,
            examples=1,
        )


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


def checkpointed_is_plain(job: Any) -> None:
    """Blocks that are recomputed are as blocks that are kept, dropout included."""

    def step(model: Any, optimizer: Any, window: Sequence[Any]) -> None:
        schedule = LambdaLR(optimizer, rate_factor)
        for batch in window:
            job.step(model, optimizer, schedule, batch, CPU)

    plain = partial(job.Network, dropout=0.4, checkpointing=False)
    for reentrant in (False, True):
        model = partial(job.Network, dropout=0.4, reentrant=reentrant)
        assert_checkpointed(Step(model, _sgd, step), plain, _POINTS, examples=EXAMPLES)


LIBRARY: dict[str, tuple[Callable[[Any], None], ...]] = {
    "amp_accumulation": (amp_accumulates, amp_is_nearly_full, amp_resumes),
    "token_accumulation": (tokens_accumulate,),
    "trust_ratio": (trust_accumulates,),
    "checkpointed": (checkpointed_is_plain,),
}
"""By job."""


def ask(job: Any, holds: Callable[[Any], None]) -> None:
    """Try a property with a job whose collectives are those of a single rank."""
    job.dist = Ranks(1)
    holds(job)


def _scaled(job: Any, precision: torch.dtype) -> Step:
    def step(
        model: Any, optimizer: Any, window: Sequence[Any], scaler: Any, scheduler: Any
    ) -> None:
        parts = (model, optimizer, scheduler, scaler, precision, CPU)
        job.step(job.Training(*parts), window)

    return Step(
        _network,
        _sgd,
        step,
        scaler=partial(torch.amp.GradScaler, "cpu", growth_interval=2),
        scheduler=lambda optimizer: LambdaLR(optimizer, rate_factor),
    )


def _training(job: Any, one: Trainee) -> Any:
    parts = (one.model, one.optimizer, one.scheduler, one.scaler)
    return job.Training(*parts, torch.float32, CPU)


def _network() -> nn.Module:
    return classifier(Case())


def _sgd(parameters: list[nn.Parameter]) -> torch.optim.Optimizer:
    return torch.optim.SGD(parameters, RATE)
