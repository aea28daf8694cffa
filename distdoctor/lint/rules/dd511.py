"""Gradients are clipped while they are multiplied by the loss scale.

Found
-----

    from torch.amp import GradScaler
    from torch.nn.utils import clip_grad_norm_

    def train(model, loader, optimizer, criterion):
        scaler = GradScaler("cuda")
        for inputs, labels in loader:
            optimizer.zero_grad()
            scaler.scale(criterion(model(inputs), labels)).backward()
            clip_grad_norm_(model.parameters(), 1.0)
            scaler.step(optimizer)
            scaler.update()

Left alone
----------
They are unscaled before, or it is another branch that clips:

    from torch.amp import GradScaler
    from torch.nn.utils import clip_grad_norm_

    def train(model, loader, optimizer, criterion, mixed):
        scaler = GradScaler("cuda")
        for inputs, labels in loader:
            optimizer.zero_grad()
            loss = criterion(model(inputs), labels)
            if mixed:
                scaler.scale(loss).backward()
                scaler.unscale_(optimizer)
                clip_grad_norm_(model.parameters(), 1.0)
                scaler.step(optimizer)
                scaler.update()
            else:
                loss.backward()
                clip_grad_norm_(model.parameters(), 1.0)
                optimizer.step()
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator

from distdoctor.lint.reading import Reading
from distdoctor.lint.source_findings import SourceFinding, inserted, line_of
from distdoctor.lint.training_acts import TrainingAct

CODE = "DD511"

_OFF = re.compile(r"GradScaler\([^)]*enabled\s*=\s*(?:False|[a-z_]+)\s*[,)]")
"""A scaler that may do nothing: who calls the function says so."""


def find(reading: Reading) -> Iterator[SourceFinding]:
    """Clips between a scaled backward pass and the step."""
    for scope, acts in reading.training:
        for clip in acts:
            if clip.act is not TrainingAct.CLIP or "inf" in ast.unparse(clip.call):
                continue
            if _OFF.search(scope.source.text):
                continue
            before = [one for one in acts if one.line <= clip.line and one is not clip]
            scaled = [
                one
                for one in before
                if one.act is TrainingAct.BACKWARD
                and one.is_scaled
                and one.goes_with(clip)
            ]
            steps = [
                one
                for one in acts
                if one.act is TrainingAct.SCALED_STEP
                and one.line > clip.line
                and one.goes_with(clip)
            ]
            unscaled = any(
                one.act is TrainingAct.UNSCALE and one.goes_with(clip) for one in before
            ) or any("unscale" in word for word in _before(scope.calls, clip.line))
            if not scaled or not steps or unscaled:
                continue
            step, scaler = steps[0], steps[0].of
            of = ast.unparse(step.call.args[0]) if step.call.args else "optimizer"
            yield SourceFinding(
                code=CODE,
                message=f"gradients are clipped while `{scaler}` still multiplies "
                "them: the limit is one of the scaled gradients",
                at=line_of(scope, clip.call),
                related=(line_of(scope, step.call, "here they are unscaled"),),
                fix=inserted(scope.source, clip.statement, [f"{scaler}.unscale_({of})"])
                if not any(one.act is TrainingAct.UNSCALE for one in acts)
                else None,
            )


def _before(calls: list[ast.Call], line: int) -> Iterator[str]:
    for call in calls:
        if call.lineno <= line:
            func = call.func
            yield func.attr if isinstance(func, ast.Attribute) else ast.unparse(func)
