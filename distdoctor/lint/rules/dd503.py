"""Gradients are cleared for each batch, and a step is made after several.

Found
-----

    def train(model, loader, optimizer, criterion, accumulation=4):
        for step, (inputs, labels) in enumerate(loader):
            optimizer.zero_grad()
            loss = criterion(model(inputs), labels) / accumulation
            loss.backward()
            if (step + 1) % accumulation == 0:
                optimizer.step()

Left alone
----------
They are cleared where the step is made, or behind the same test:

    def train(model, loader, optimizer, criterion, accumulation=4):
        optimizer.zero_grad()
        for step, (inputs, labels) in enumerate(loader):
            loss = criterion(model(inputs), labels) / accumulation
            loss.backward()
            if (step + 1) % accumulation == 0:
                optimizer.step()
                optimizer.zero_grad()

Or before each epoch, whose last window may have fewer batches:

    def in_epochs(model, loader, optimizer, criterion, accumulation=4):
        for epoch in range(3):
            optimizer.zero_grad()
            for step, (inputs, labels) in enumerate(loader):
                loss = criterion(model(inputs), labels) / accumulation
                loss.backward()
                if (step + 1) % accumulation == 0:
                    optimizer.step()
                    optimizer.zero_grad()
            if (step + 1) % accumulation != 0:
                optimizer.step()
"""

from __future__ import annotations

from collections.abc import Iterator

from distdoctor.lint.reading import Reading
from distdoctor.lint.source_findings import SourceFinding, line_of, short
from distdoctor.lint.training_acts import TrainingAct
from distdoctor.lint.window_tests import windows

CODE = "DD503"


def find(reading: Reading) -> Iterator[SourceFinding]:
    """Calls of `zero_grad` in each round of a loop that steps in some."""
    for scope, acts in reading.training:
        told: set[int] = set()
        for loop, step, size, test in windows(scope, acts):
            for clear in acts:
                if (
                    clear.act is TrainingAct.CLEAR
                    and clear.goes_with(step)
                    and next(clear.loops(), None) is loop
                    and not clear.tests_within(loop)
                    and clear.line not in told
                    and _is_of(clear.of, step.of)
                ):
                    told.add(clear.line)
                    yield SourceFinding(
                        code=CODE,
                        message=f"the gradients are cleared for each batch, and a step "
                        f"is made after {short(size, 40)} (line {step.line}): the last "
                        "batch alone counts",
                        at=line_of(scope, clear.call),
                        related=(line_of(scope, test, "steps are made behind this"),),
                    )


def _is_of(cleared: str, stepped: str) -> bool:
    """Whether they are of one optimizer, as far as names tell: models have none."""
    return "opt" not in cleared or "scaler" in stepped or cleared == stepped
