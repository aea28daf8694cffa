"""Checkpoints of a job with a GradScaler lack the GradScaler's state.

What it is
----------
A GradScaler finds its scale by trial: it halves it when gradients overflow, and doubles
it after many steps without. The job saves its optimizer, so that it can go on from
there, and not the scale, which sooner or later is another one than a new GradScaler
begins with.

Why it matters
--------------
A job that goes on from the checkpoint begins its search anew. If the scale had come
down, the first steps are left out, one for each time that it has to be halved again. If
it had grown, small gradients are lost in float16, as at the beginning of training,
until it has grown again: 2000 steps for each factor of 2, by default. That is so
each time the job is restarted, and nothing tells of it.

Sick
----
The scale came down from 65536 to 1024, and is not in the file:

    rank 0 | stored(file=c,parts=model+optimizer,running_scale=1024.0,first_scale=65536.0)@t.py:22
           | exit=0
    rank 1 | exit=0

The job itself goes on from there, and begins at 65536 again:

    rank 0 | continued(scale=65536.0)
           | stored(file=c,parts=model+optimizer,filled=1,running_scale=32768.0,first_scale=65536.0)@t.py:22
           | opened(file=c,parts=model+optimizer,filled=1)@t.py:33
           | given(what=model,matched=4)  given(what=optimizer)@t.py:35
           | continued(filled,scale=65536.0)@t.py:50  exit=0

It is not in the file; in this run it has not moved yet, in a longer one it will:

    rank 0 | stored(file=c,parts=model+optimizer,running_scale=65536.0,first_scale=65536.0)@t.py:22
           | exit=0
    rank 1 | exit=0

Well
----
The GradScaler's state is in the file, or in another one:

    rank 0 | kept@t.py:21  stored(file=c,parts=model+optimizer+scaler,scale=1024.0)@t.py:22
           | exit=0
    rank 1 | exit=0

    rank 0 | stored(file=c,parts=model+optimizer,running_scale=1024.0,first_scale=65536.0)@t.py:22
           | kept@t.py:23  stored(file=d,parts=scaler,scale=1024.0)@t.py:23  exit=0

The scale is a constant, so that there is nothing to be saved:

    rank 0 | stored(file=c,parts=model+optimizer)@t.py:22  exit=0
    rank 1 | exit=0

Weights alone are saved, to be used and not to be trained:

    rank 0 | stored(file=c,parts=model,running_scale=1024.0,first_scale=65536.0)@t.py:22
           | exit=0

Unknown
-------
A rank without a journal may be the one that saves:

    rank 0 | stored(file=c,parts=model+optimizer)@t.py:22  exit=0
    rank 1 | ?

Remedy
------
Put `scaler.state_dict()` into the checkpoint, after `scaler.update()`, and give it to
`scaler.load_state_dict()` when the job goes on.

Known problems
--------------
A state is known by its form, so a scale that is saved as a number under a name of the
job's own is taken for none. Checkpoints of the weights alone are left alone, and so is
a job that never writes one in the time it was given.

References
----------
- transformers: the scaler's state is saved, too –
  https://github.com/huggingface/transformers/pull/11663
- ultralytics: GradScaler is restored on resume –
  https://github.com/ultralytics/ultralytics/pull/22189
- `torch/amp/grad_scaler.py` (pytorch/pytorch), `GradScaler.state_dict`
"""  # noqa: E501 - what is in a checkpoint is one word of a drawing

from __future__ import annotations

import ast
from collections.abc import Iterator
from math import log2

from distdoctor.analysis.checkpoints.checkpoint_files import short
from distdoctor.analysis.checkpoints.restarts import Resume, resumes
from distdoctor.analysis.divergence.parting_branches import program_of
from distdoctor.analysis.evidence import require_whole
from distdoctor.analysis.gradients.used_gradients import places
from distdoctor.analysis.optimizer_step.making_lines import saved_without
from distdoctor.analysis.source.value_flow import ValueFlow
from distdoctor.model.events import Event, Place
from distdoctor.model.findings import Certainty, Finding, Location, Role, Severity
from distdoctor.model.observations.amp import Kept
from distdoctor.model.observations.checkpoints import Continued, Stored
from distdoctor.model.observations.comparison import Unrestored
from distdoctor.model.run import Run

CODE = "DD517"
SEVERITY = Severity.ERROR
NEEDS = (Stored,)

_FEW = 2.0
"""Factor of the scale up to which a resume costs one step, or one growth interval."""


def examine(run: Run) -> Iterator[Finding]:
    """The checkpoint that lacks most of what the GradScaler has found."""
    lacking = [
        stored
        for rank in run.seen
        for stored in run.of(Stored, rank)
        if _lacks_scale(stored)
    ]
    if lacking and not _is_kept(run):
        yield _finding(run, max(lacking, key=_factor))
    require_whole(run)


def _lacks_scale(stored: Stored) -> bool:
    return (
        "optimizer" in stored.parts
        and "scaler" not in stored.parts
        and stored.running_scale > 0 < stored.first_scale
    )


def _is_kept(run: Run) -> bool:
    """Whether its state goes into some file, or a comparison has told of it."""
    return any(
        run.of(Kept, rank)
        or any("scaler" in stored.parts for stored in run.of(Stored, rank))
        or any(one.what == "scale" for one in run.of(Unrestored, rank))
        for rank in run.seen
    )


def _factor(stored: Stored) -> float:
    """By how much the scale has changed, up or down."""
    return max(
        stored.running_scale / stored.first_scale,
        stored.first_scale / stored.running_scale,
    )


def _finding(run: Run, stored: Stored) -> Finding:
    resume = _resumed(run, stored)
    began = None if resume is None else _begun(resume)
    scale, first = stored.running_scale, stored.first_scale
    times = round(abs(log2(scale / first)))
    if scale == first:
        cost = "it has not moved in this run; in a longer one it does, and that is lost"
    elif scale < first:
        cost = f"a job that goes on from it leaves out {_steps(times)} to find it again"
    else:
        cost = "a job that goes on from it begins with the smaller one"
    went = ""
    if began is not None:
        went = f"; this job went on from it, with a scale of {began.scale:g}"
    mine = () if stored.rank < 0 else (stored.rank,)
    exhibits: list[Event] = [stored, *([] if began is None else [began])]
    lines = [
        *[
            Location(one, mine, Role.CULPRIT, "makes what is saved")
            for one in _made(run, stored)
        ],
        *places([stored], mine, "saves the optimizer, and no GradScaler"),
    ]
    if resume is not None and began is not None:
        beside = resume.given("optimizer", "model")
        given: list[Event] = [] if beside is None else [beside]
        lines += places(given, (resume.rank,), "restores the rest")
        lines += places([began], (began.rank,), "goes on with a new GradScaler")
    return Finding(
        message=f"{short(stored.file)} holds the optimizer and not the GradScaler, "
        f"whose scale was {scale:g} when that was written and begins at {first:g}: "
        f"{cost}{went}",
        exhibits=tuple(exhibits),
        locations=tuple(lines),
        certainty=Certainty.PROVED,
        severity=Severity.WARNING
        if began is None and _factor(stored) <= _FEW
        else None,
        details={"file": stored.file, "scale": scale, "first": first},
    )


def _made(run: Run, stored: Stored) -> list[Place]:
    """The line of the dictionary that was saved; those that it may be, if it forks."""
    place = stored.place
    if place is None:
        return []
    ways = ValueFlow(program_of(run), max(stored.rank, 0), run.world_size)
    way = ways.argument(place, "obj", 0, "save")
    if way is None or not _is_dictionary(way.end.node):
        return saved_without(run, "scal")
    made = way.end.place
    return [] if (made.file, made.line) == (place.file, place.line) else [made]


def _is_dictionary(node: ast.expr) -> bool:
    match node:
        case ast.Dict() | ast.Call(func=ast.Name(id="dict")):
            return True
    return False


def _steps(count: int) -> str:
    return "a step" if count <= 1 else f"{count} steps"


def _resumed(run: Run, stored: Stored) -> Resume | None:
    """A leg that went on from a file with another scale than it had then."""
    for resume in resumes(run):
        same = resume.origin is not None and resume.origin.file == stored.file
        if same and _begun(resume) is not None:
            return resume
    return None


def _begun(resume: Resume) -> Continued | None:
    """The first step behind it, if its scale is another one."""
    assert resume.origin is not None
    was = resume.origin.stored.running_scale
    for now in resume.leg.continued:
        if now.scale and was and now.scale != was:
            return now
    return None
