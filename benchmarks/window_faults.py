"""Faults of windows, and the lines that steps with windows share."""

from __future__ import annotations

from mutants import (
    AMP,
    TOKENS,
    TRUST,
    Edit,
    Mutant,
    add,
    drop,
    move,
    swap,
)

CLEAR = "optimizer.zero_grad()"
SYNC = "with contextlib.nullcontext() if is_last else model.no_sync():"
LAST = "is_last = number == len(window)"
CLIP = "nn.utils.clip_grad_norm_(model.parameters(), MAX_GRADIENT_NORM)"
STEP = "optimizer.step()"
SCHEDULE = "scheduler.step()"
BY_HAND = (
    "for one in model.parameters(): "
    "dist.all_reduce(one.grad.div_(dist.get_world_size()))"
)
SUMMED = "for one in model.parameters(): dist.all_reduce(one.grad)"


def accumulating(job: str, backward: str) -> list[Mutant]:
    """Faults of windows: which batches wait, and which one synchronises."""
    inverted = "with model.no_sync() if is_last else contextlib.nullcontext():"
    late = "is_last = number == len(window) - 1"
    full = 2 if job == TRUST else 4

    def fault(name: str, codes: str, *edits: Edit, advice: bool = False) -> Mutant:
        return in_step(job, name, codes, *edits, advice=advice)

    return [
        fault("no_sync_inverted", "DD505", swap(SYNC, inverted)),
        fault("no_sync_always", "DD505", swap(SYNC, "with model.no_sync():")),
        fault("no_sync_ends_late", "DD505", swap(LAST, late)),
        fault("first_synchronises", "DD505", swap(LAST, "is_last = number == 1")),
        fault(
            "no_sync_by_constant", "DD505", swap(LAST, f"is_last = number == {full}")
        ),
        fault(
            "no_sync_never",
            "DD506",
            swap(SYNC, "with contextlib.nullcontext():"),
            advice=True,
        ),
        fault("zero_grad_dropped", "DD507", drop(CLEAR)),
        fault("zero_grad_in_window", "DD503", move(CLEAR, after=LAST)),
        fault("zero_grad_behind_backward", "DD503", move(CLEAR, after=backward)),
        fault("summed_once_more", "DD405", add(SUMMED, before=_end(job))),
        fault(
            "same_batch_again",
            "DD551",
            swap("e(window, ", "e(window[:1] * len(window), "),
        ),
        Mutant(
            job,
            "rest_left_out",
            [("windows", swap("if window:", "if not window:"))],
            "DD502",
        ),
        Mutant(job, "window_grows", [("windows", drop("window = []"))], "DD551"),
    ]


def scheduled(job: str) -> list[Mutant]:
    """Faults of a schedule that is asked behind each step."""
    alone = swap(SCHEDULE, "dist.get_rank() or scheduler.step()")
    return [
        in_step(job, "schedule_dropped", "DD532", drop(SCHEDULE)),
        in_step(job, "schedule_before_step", "DD532", move(SCHEDULE, before=STEP)),
        in_step(job, "schedule_on_one_rank", "DD412 DD532", alone),
    ]


def _end(job: str) -> str:
    """The first line that comes behind the window."""
    return {AMP: "scaler.unscale_(optimizer)", TOKENS: CLIP}.get(job, STEP)


def in_step(
    job: str,
    name: str,
    codes: str,
    *edits: Edit,
    advice: bool = False,
    options: str = "",
) -> Mutant:
    """A fault in the step."""
    inside = tuple(("step", edit) for edit in edits)
    return Mutant(job, name, inside, codes, advice=advice, options=options)


def as_before(
    job: str, name: str, *edits: Edit, within: str = "step", options: str = ""
) -> Mutant:
    """No fault: the job does what it did."""
    inside = tuple((within, edit) for edit in edits)
    return Mutant(job, name, inside, equivalent=True, options=options)
