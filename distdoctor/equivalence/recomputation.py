"""Property: activation checkpointing gives the same gradients as without."""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import replace

import torch
from torch import nn

from distdoctor.equivalence.batches import Batches, Example
from distdoctor.equivalence.capturing import Tensors
from distdoctor.equivalence.comparing import Difference
from distdoctor.equivalence.gradient_factors import common_factor, factor_in_words
from distdoctor.equivalence.model_pairs import Pair, of_models
from distdoctor.equivalence.property_reports import PropertyReport, broken
from distdoctor.equivalence.searching import search, undisturbed
from distdoctor.equivalence.step import Step, first_model, without_dropout
from distdoctor.equivalence.step_runner import Runner
from distdoctor.model.observations.equivalence import CHECKPOINTING

_NAMES = 3  # parameters that are named


def assert_checkpointed(
    step: Step,
    plain: Callable[[], nn.Module],
    batches: Batches,
    *,
    most: int = 2,
    examples: int = 8,
    device: str = "cpu",
) -> PropertyReport:
    """Fail unless activation checkpointing leaves gradients unchanged.

    Both start from the same weights and random state, so dropout must draw the same
    masks when activations are computed again. They are compared in float64.

    Args:
        step: The user's step, with the model that uses `torch.utils.checkpoint`.
        plain: Makes the model without it, with the same parameters.
        batches: What micro-batches look like.
        most: Micro-batches of a step, at most.
        examples: How many are tried.
        device: Where it runs.

    Returns:
        How far the worst example was from failing.

    Raises:
        EquivalenceBroken: It does not; with the smallest example.
        StepUnusable: The models have other parameters.
    """
    __tracebackhide__ = True
    with undisturbed():
        runner = Runner(step, first_model(step), device)
        pair, report = (
            Pair(runner, of_models(runner, plain)),
            PropertyReport(CHECKPOINTING),
        )

        def attempt(example: Example) -> Difference | None:
            found = pair.difference(example, torch.float64)
            if found.excess <= 1:
                report.add(found)
                return None
            return found

        worst = search(batches.examples(1, most), attempt, examples)
        if worst is not None:
            example, found = worst
            trial = pair.trial(example, torch.float64)
            expected = pair.reference(example, torch.float64).trial
            here, there = trial.gradients[0], expected.gradients[0]
            factor = common_factor(here, there)
            broken(
                CHECKPOINTING,
                "the model with activation checkpoints is not equivalent to it without",
                found,
                example=str(example),
                why=found.words or _why(pair, example, here, there, factor),
                factor=factor,
                site=trial.site,
                where=step.where,
            )
    return report.held()


def _why(
    pair: Pair, example: Example, here: Tensors, there: Tensors, factor: float
) -> str:
    missing = [
        name
        for name, gradient in there.items()
        if gradient is not None and here.get(name) is None
    ]
    if missing:
        more = f" and {len(missing) - _NAMES} more" if len(missing) > _NAMES else ""
        return (
            f"{', '.join(missing[:_NAMES])}{more} get no gradient: a reentrant "
            "checkpoint passes none on if none of its inputs needs one"
        )
    if _calm(pair).difference(example, torch.float64).excess <= 1:
        return (
            "they are equal without dropout, so other masks are drawn when activations "
            "are computed again (preserve_rng_state=False, or random numbers drawn "
            "elsewhere)"
        )
    if factor:
        return f"gradients are {factor_in_words(factor)}"
    return "other activations come of the second computation than of the first"


def _calm(pair: Pair) -> Pair:
    """Both models without dropout."""
    runner, other = (
        replace(one, start=without_dropout(copy.deepcopy(one.start)))
        for one in (pair.runner, pair.other)
    )
    return Pair(runner, other)
