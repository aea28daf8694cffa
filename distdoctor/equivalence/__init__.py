"""Equivalence properties that every training step should have, for users' tests.

    from distdoctor.equivalence import Step, assert_accumulates, batches

    def test_accumulation():
        step = Step(make_model, lambda params: SGD(params, lr=0.1), train_step)
        assert_accumulates(step, batches.tokens(vocabulary=17))

Each assertion draws examples with hypothesis, runs the user's own step both ways, and
fails with the smallest example for which the two differ by more than rounding can
explain. Nothing outside changes: not the random state, not the number of threads.

Importing this imports torch and hypothesis.
"""

from __future__ import annotations

import importlib.util

from distdoctor.errors import (
    EquivalenceBroken,
    HypothesisMissing,
    NotEquivalentByNature,
    StepUnusable,
)

if importlib.util.find_spec("hypothesis") is None:
    raise HypothesisMissing(
        "distdoctor.equivalence draws its examples with hypothesis, which is not "
        "installed: pip install 'distdoctor[equivalence]'"
    )

from distdoctor.equivalence import batches
from distdoctor.equivalence.accumulation import assert_accumulates
from distdoctor.equivalence.batches import Batches
from distdoctor.equivalence.compilation import assert_compiles
from distdoctor.equivalence.precision import assert_amp
from distdoctor.equivalence.property_reports import PropertyReport
from distdoctor.equivalence.ranks import assert_ranks
from distdoctor.equivalence.recomputation import assert_checkpointed
from distdoctor.equivalence.resumption import assert_resumes
from distdoctor.equivalence.step import Step, Trainee, without_dropout

__all__ = [
    "Batches",
    "EquivalenceBroken",
    "NotEquivalentByNature",
    "PropertyReport",
    "Step",
    "StepUnusable",
    "Trainee",
    "assert_accumulates",
    "assert_amp",
    "assert_checkpointed",
    "assert_compiles",
    "assert_ranks",
    "assert_resumes",
    "batches",
    "without_dropout",
]
