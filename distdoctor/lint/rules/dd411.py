"""A checkpoint is resumed from, and something that is in it, or should be, is left out.

Found
-----
The state is saved, and nothing reads it:

    import torch

    def run(model, optimizer, scheduler, path, epochs, learn):
        kept = torch.load(path)
        model.load_state_dict(kept["model"])
        optimizer.load_state_dict(kept["optimizer"])
        for epoch in range(kept["epoch"] + 1, epochs):
            learn(model, optimizer)
            scheduler.step()
            state = {"model": model.state_dict(), "epoch": epoch}
            state |= {"optimizer": optimizer.state_dict()}
            state |= {"scheduler": scheduler.state_dict()}
            torch.save(state, path)

The optimizer's is not saved, though the job goes on from its epoch:

    import torch

    def run(model, path, epochs, learn):
        optimizer = torch.optim.AdamW(model.parameters())
        kept = torch.load(path)
        model.load_state_dict(kept["model"])
        for epoch in range(kept["epoch"] + 1, epochs):
            learn(model, optimizer)
            torch.save({"model": model.state_dict(), "epoch": epoch}, path)

Left alone
----------

    import torch

    def run(model, optimizer, path, epochs, learn):
        kept = torch.load(path)
        model.load_state_dict(kept["model"])
        optimizer.load_state_dict(kept["optimizer"])
        for epoch in range(kept["epoch"] + 1, epochs):
            learn(model, optimizer)
            state = {"model": model.state_dict(), "epoch": epoch}
            torch.save(state | {"optimizer": optimizer.state_dict()}, path)
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator

from distdoctor.lint.code_base import ProgramFile
from distdoctor.lint.kept_states import KeptState, kept_states
from distdoctor.lint.reading import Reading
from distdoctor.lint.source_findings import SourceFinding, line_of

CODE = "DD411"

_EPOCHS = frozenset(
    {"epoch", "epochs", "start_epoch", "step", "iteration", "global_step"}
)
_WRITTEN = re.compile(r"torch\.save\(|xm\.save\(|save_on_master\(|save_checkpoint\(")
_READ = re.compile(r"torch\.load\(|load_checkpoint\(")
_OPTIMIZER = re.compile(r"optim\.(?:Adam\w*|RMSprop|Adagrad|LAMB|NAdam|RAdam)\(")
_LOADED = re.compile(
    r"opt\w*(?:\[[^\]]*\])?\.load_state_dict|load_optimizer", re.IGNORECASE
)


def find(reading: Reading) -> Iterator[SourceFinding]:
    """States that no line reads back, and optimizers that begin anew."""
    for file in reading.code.files:
        text = reading.text_around(file)
        if not (_WRITTEN.search(file.text) and _READ.search(text)):
            continue
        states = [*kept_states(file)]
        if not states:
            continue
        texts = _texts(reading, file)
        if not any(_goes_on(text, epoch) for epoch in _EPOCHS):
            continue  # it is not resumed from, as far as is seen
        yield from _unread(states, texts, text)
        yield from _unsaved(states, text)


def _texts(reading: Reading, file: ProgramFile) -> Counter[str]:
    """How often each text, or keyword, stands in a file and those it goes with."""
    found: Counter[str] = Counter()
    for one in reading.code.around(file):
        found.update(one.texts)
    return found


def _is_read(text: str, key: str) -> bool:
    """Whether an entry of that name is read anywhere."""
    quoted = rf"""["']{re.escape(key)}["']"""
    return bool(re.search(rf"\[{quoted}\](?!\s*=[^=])|\.(?:get|pop)\({quoted}", text))


def _goes_on(text: str, key: str) -> bool:
    """Whether a job begins with an epoch, or a step, that it reads by that key."""
    entry = rf"""(?:\[|get\(|pop\()["']{key}["']"""
    start = rf"(?:start|begin|first|resume|epochs_run|last)\w*\s*=[^=\n]*{entry}"
    return bool(re.search(start, text) or re.search(rf"range\([^\n]*{entry}", text))


def _unread(
    states: list[KeptState], texts: Counter[str], text: str
) -> Iterator[SourceFinding]:
    of_all = {key for state in states for key in state.parts}
    read = {key for key in of_all if _is_read(text, key)}
    if not any(
        state.parts[key] == "model" for state in states for key in read & {*state.parts}
    ):
        return
    for state in states:
        for key, of in state.parts.items():
            if of in {"optimizer", "scheduler", "scaler"} and texts[key] == 1:
                yield SourceFinding(
                    code=CODE,
                    message=f"the {of}'s state is saved as {key!r}, and nothing reads "
                    "it: a job that resumes begins with a new one",
                    at=line_of(state.scope, state.node),
                )
                return


def _unsaved(states: list[KeptState], text: str) -> Iterator[SourceFinding]:
    """Checkpoints with an epoch to go on from, and no state of an optimizer's."""
    if _LOADED.search(text) or not _OPTIMIZER.search(text):
        return
    if re.search(r"opt\w*(?:\[[^\]]*\])?\.state_dict", text, re.IGNORECASE):
        return  # it is saved by some other line
    for state in states:
        kinds = {*state.parts.values()}
        epochs = _EPOCHS & {*state.parts}
        if "model" in kinds and any(_goes_on(text, key) for key in epochs):
            yield SourceFinding(
                code=CODE,
                message="a job goes on from this checkpoint's epoch, and the state of "
                "its optimizer is not in it",
                at=line_of(state.scope, state.node),
            )
            return
