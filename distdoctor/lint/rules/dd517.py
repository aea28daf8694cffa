"""A checkpoint has the optimizer's state and not that of the GradScaler.

Found
-----

    import torch
    from torch.amp import GradScaler

    def train(model, optimizer, loader, criterion, path):
        scaler = GradScaler("cuda")
        kept = torch.load(path)
        model.load_state_dict(kept["model"])
        optimizer.load_state_dict(kept["optimizer"])
        for inputs, labels in loader:
            optimizer.zero_grad()
            scaler.scale(criterion(model(inputs), labels)).backward()
            scaler.step(optimizer)
            scaler.update()
        state = {"model": model.state_dict(), "optimizer": optimizer.state_dict()}
        torch.save(state, path)

Left alone
----------

    import torch
    from torch.amp import GradScaler

    def train(model, optimizer, loader, criterion, path):
        scaler = GradScaler("cuda")
        kept = torch.load(path)
        model.load_state_dict(kept["model"])
        optimizer.load_state_dict(kept["optimizer"])
        scaler.load_state_dict(kept["scaler"])
        for inputs, labels in loader:
            optimizer.zero_grad()
            scaler.scale(criterion(model(inputs), labels)).backward()
            scaler.step(optimizer)
            scaler.update()
        state = {"model": model.state_dict(), "optimizer": optimizer.state_dict()}
        torch.save(state | {"scaler": scaler.state_dict()}, path)
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from distdoctor.lint.kept_states import kept_states
from distdoctor.lint.reading import Reading
from distdoctor.lint.source_findings import SourceFinding, line_of

CODE = "DD517"

_KEPT = re.compile(r"scaler\w*(?:\[[^\]]*\])?\.(?:module\.)?state_dict", re.IGNORECASE)
_MADE = re.compile(r"GradScaler\(")
_RESUMED = re.compile(r"opt\w*(?:\[[^\]]*\])?\.load_state_dict", re.IGNORECASE)


def find(reading: Reading) -> Iterator[SourceFinding]:
    """Checkpoints from which a job resumes with another loss scale."""
    for file in reading.code.files:
        if not _MADE.search(file.text) or _KEPT.search(reading.text_around(file)):
            continue
        if not _RESUMED.search(reading.text_around(file)):
            continue
        for kept in kept_states(file):
            if "optimizer" in kept.parts.values():
                yield SourceFinding(
                    code=CODE,
                    message="the checkpoint has the optimizer's state, and nothing "
                    "saves that of the GradScaler: a job that resumes begins with the "
                    "first loss scale again",
                    at=line_of(kept.scope, kept.node),
                )
                break
