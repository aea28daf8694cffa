"""Property: a compiled model gives the same gradients as an eager one."""

from __future__ import annotations

import os
import shutil
import unittest
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import nn

from distdoctor.equivalence.batches import Batches, Example
from distdoctor.equivalence.comparing import Difference
from distdoctor.equivalence.gradient_factors import common_factor, factor_in_words
from distdoctor.equivalence.model_pairs import Pair
from distdoctor.equivalence.property_reports import PropertyReport, broken
from distdoctor.equivalence.searching import search, undisturbed
from distdoctor.equivalence.step import Step, first_model
from distdoctor.equivalence.step_runner import Runner
from distdoctor.model.observations.equivalence import COMPILING

_SHARE = 1e-3  # of a bound: less than this in float64 came of rounding alone
_COMPILERS = ("c++", "g++", "clang++")


def assert_compiles(
    step: Step,
    batches: Batches,
    *,
    backend: str = "inductor",
    examples: int = 3,
    dtype: torch.dtype = torch.float32,
    device: str = "cpu",
    **options: Any,
) -> PropertyReport:
    """Fail unless `torch.compile` of the model leaves its gradients unchanged.

    Args:
        step: The user's step. Its model is compiled; nothing else is.
        batches: What micro-batches look like. Each new shape is compiled anew.
        backend: As for `torch.compile`; "aot_eager" and "eager" need no compiler.
        examples: How many are tried.
        dtype: Dtype of the weights.
        device: Where it runs.
        options: More arguments for `torch.compile`.

    Returns:
        How far the worst example was from failing.

    Raises:
        EquivalenceBroken: It does not.
        SkipTest: This machine has no compiler for that backend; pytest skips the test.
    """
    __tracebackhide__ = True
    _require_compiler(backend)

    def compiled(model: nn.Module) -> nn.Module:
        made: Any = torch.compile(model, backend=backend, **options)
        assert isinstance(made, nn.Module)
        return made

    with undisturbed(), _own_cache(backend):
        runner = Runner(step, first_model(step), device)
        pair, report = Pair(runner, runner, compiled), PropertyReport(COMPILING)

        def attempt(example: Example) -> Difference | None:
            found = pair.difference(example, dtype)
            if found.excess > 1:
                exact = pair.difference(example, torch.float64)
                if not exact.words and exact.error <= _SHARE * found.bound:
                    return None  # rounding took another branch
                return found
            report.add(found)
            return None

        worst = search(batches.examples(1, 1), attempt, examples)
        if worst is not None:
            example, found = worst
            trial = pair.trial(example, dtype)
            expected = pair.reference(example, dtype).trial
            close = 1e3 * torch.finfo(dtype).eps
            factor = 0.0
            if not found.words:
                here, there = trial.gradients[0], expected.gradients[0]
                factor = common_factor(here, there, close)
            broken(
                COMPILING,
                f"the model compiled by {backend!r} is not equivalent to itself in "
                "eager mode",
                found,
                example=str(example),
                why=found.words
                or (
                    f"gradients are {factor_in_words(factor)}"
                    if factor
                    else "gradients are no multiple of the right ones"
                ),
                factor=factor,
                site=trial.site,
                where=step.where,
            )
    return report.held()


def _require_compiler(backend: str) -> None:
    if backend != "inductor" or torch.cuda.is_available():
        return
    named = os.environ.get("CXX")
    if not any(map(shutil.which, [named] if named else _COMPILERS)):
        raise unittest.SkipTest(
            "torch.compile with 'inductor' needs a C++ compiler, and none of "
            f"{', '.join(_COMPILERS)} is on the PATH; backend='aot_eager' needs none"
        )


@contextmanager
def _own_cache(backend: str) -> Iterator[None]:
    """Compile nothing for later, and tell a missing toolchain from a broken model."""
    import torch._dynamo
    from torch._dynamo.exc import BackendCompilerFailed

    torch._dynamo.reset()
    try:
        yield
    except BackendCompilerFailed as error:
        error_name = type(getattr(error, "inner_exception", error)).__name__
        if backend == "inductor" and error_name in _NO_TOOLCHAIN:
            raise unittest.SkipTest(
                f"torch.compile with 'inductor' cannot compile here: {error_name}; "
                "backend='aot_eager' needs no compiler"
            ) from error
        raise
    finally:
        torch._dynamo.reset()


_NO_TOOLCHAIN = {"CppCompileError", "InvalidCxxCompiler", "TritonMissing"}
