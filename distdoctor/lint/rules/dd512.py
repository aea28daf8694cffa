"""A GradScaler makes steps and is never told that one is over.

Found
-----

    from torch.amp import GradScaler

    def train(model, loader, optimizer, criterion):
        scaler = GradScaler("cuda")
        for inputs, labels in loader:
            optimizer.zero_grad()
            scaler.scale(criterion(model(inputs), labels)).backward()
            scaler.step(optimizer)

Left alone
----------
It is updated, once for all its optimizers:

    from torch.amp import GradScaler

    def train(model, loader, first, second, criterion):
        scaler = GradScaler("cuda")
        for inputs, labels in loader:
            first.zero_grad()
            second.zero_grad()
            scaler.scale(criterion(model(inputs), labels)).backward()
            scaler.step(first)
            scaler.step(second)
            scaler.update()
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from distdoctor.lint.reading import Reading
from distdoctor.lint.source_findings import SourceFinding, inserted, line_of
from distdoctor.lint.training_acts import TrainingAct

CODE = "DD512"

_UPDATED = re.compile(r"scaler\w*(?:\[[^\]]*\])?\.update\(", re.IGNORECASE)


def find(reading: Reading) -> Iterator[SourceFinding]:
    """Steps by a scaler, in programs that update none."""
    for scope, acts in reading.training:
        steps = [one for one in acts if one.act is TrainingAct.SCALED_STEP]
        text = reading.text_around(scope.source)
        if not steps or "GradScaler(" not in text or _UPDATED.search(text):
            continue
        last = steps[-1]
        yield SourceFinding(
            code=CODE,
            message=f"`{last.of}.step` is called, and nothing in the program calls "
            f"`{last.of}.update`: the scale stays, and a second `unscale_` fails",
            at=line_of(scope, last.call),
            fix=inserted(
                scope.source, last.statement, [f"{last.of}.update()"], behind=True
            ),
        )
