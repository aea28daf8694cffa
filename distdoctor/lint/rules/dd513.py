"""A GradScaler is asked for half of its work.

Scaled backward and a plain step, a step by it of gradients that nobody scaled, or
gradients that are unscaled twice.

Found
-----

    from torch.amp import GradScaler

    def train(model, loader, optimizer, criterion):
        scaler = GradScaler("cuda")
        for inputs, labels in loader:
            optimizer.zero_grad()
            scaler.scale(criterion(model(inputs), labels)).backward()
            optimizer.step()
            scaler.update()

    from torch.amp import GradScaler

    def train(model, loader, optimizer, criterion):
        scaler = GradScaler("cuda")
        for inputs, labels in loader:
            optimizer.zero_grad()
            criterion(model(inputs), labels).backward()
            scaler.step(optimizer)
            scaler.update()

Left alone
----------
Both ways stand in the program, and one is taken:

    from torch.amp import GradScaler

    def train(model, loader, optimizer, criterion, mixed):
        scaler = GradScaler("cuda")
        for inputs, labels in loader:
            optimizer.zero_grad()
            loss = criterion(model(inputs), labels)
            if mixed:
                scaler.scale(loss).backward()
                scaler.step(optimizer)
                scaler.update()
            else:
                loss.backward()
                optimizer.step()
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator, Sequence

from distdoctor.lint.reading import Reading
from distdoctor.lint.source_findings import SourceFinding, line_of
from distdoctor.lint.training_acts import Done, TrainingAct

CODE = "DD513"

_SCALES = re.compile(r"scaler\w*(?:\[[^\]]*\])?\.scale\(", re.IGNORECASE)
_STEPS = re.compile(r"scaler\w*(?:\[[^\]]*\])?\.step\(", re.IGNORECASE)
_UNSCALES = re.compile(r"unscale_|get_scale\(|\.inv_scale|/\s*\w*scale\b")


def find(reading: Reading) -> Iterator[SourceFinding]:
    """Steps and backward passes that do not go together."""
    for scope, acts in reading.training:
        text = reading.text_around(scope.source)
        if "GradScaler" not in text:
            continue
        scaled = [
            one for one in acts if one.act is TrainingAct.BACKWARD and one.is_scaled
        ]
        plain = [
            one for one in acts if one.act is TrainingAct.BACKWARD and not one.is_scaled
        ]
        steps = [one for one in acts if one.act is TrainingAct.STEP]
        if scaled and steps and not _STEPS.search(text) and not _UNSCALES.search(text):
            step = next((one for one in steps if one.goes_with(scaled[0])), None)
            if step is not None:
                yield SourceFinding(
                    code=CODE,
                    message="the loss is scaled (line "
                    f"{scaled[0].line}), and the optimizer makes its step without the "
                    "scaler: gradients are as many times too large",
                    at=line_of(scope, step.call),
                    related=(line_of(scope, scaled[0].call, "scaled here"),),
                )
        by_scaler = [one for one in acts if one.act is TrainingAct.SCALED_STEP]
        if by_scaler and plain and not scaled and not _SCALES.search(text):
            yield SourceFinding(
                code=CODE,
                message=f"`{by_scaler[0].of}` makes the step (line "
                f"{by_scaler[0].line}) and divides gradients by a scale that the loss "
                "was never multiplied by",
                at=line_of(scope, plain[0].call),
                related=(line_of(scope, by_scaler[0].call, "the step"),),
            )
        yield from (
            SourceFinding(
                code=CODE,
                message="the gradients of one optimizer are unscaled twice before its "
                "step",
                at=line_of(scope, second.call),
                related=(line_of(scope, first.call, "the first time"),),
            )
            for first, second in _twice(acts)
        )


def _twice(acts: Sequence[Done]) -> Iterator[tuple[Done, Done]]:
    unscaled: dict[str, Done] = {}
    for one in acts:
        given = one.call.args[0] if one.call.args else None
        of = f"{one.of} {ast.unparse(given) if given is not None else ''}"
        if one.act is TrainingAct.UNSCALE:
            before = unscaled.get(of)
            if before is not None and before.path == one.path:
                yield before, one
            unscaled[of] = one
        elif one.act in {TrainingAct.SCALED_STEP, TrainingAct.UPDATE}:
            unscaled.clear()
