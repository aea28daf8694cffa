"""Faults of a job that recomputes its blocks in backward."""

from __future__ import annotations

from mutants import (
    RECOMPUTED,
    Edit,
    Mutant,
    add,
    drop,
    move,
    swap,
    twice,
)
from window_faults import (
    CLEAR,
    CLIP,
    SCHEDULE,
    STEP,
    SUMMED,
    as_before,
    in_step,
    scheduled,
)

_BACKWARD = "loss.backward()"
_TRAIN, _LOGITS = "model.train()", "logits = model(points.to(device))"


def mutants() -> list[Mutant]:
    """All of this job's."""
    reentrant = "--reentrant"

    def fault(name: str, codes: str, *edits: Edit, options: str = "") -> Mutant:
        return in_step(RECOMPUTED, name, codes, *edits, options=options)

    def forward(name: str, *edits: Edit, options: str = "") -> Mutant:
        inside = [("Network.forward", edit) for edit in edits]
        return Mutant(RECOMPUTED, name, inside, "DD551", options=options)

    forgets = swap("preserve_rng_state=True,", "preserve_rng_state=False,")
    return [
        forward("random_state_forgotten", forgets),
        forward("random_state_forgotten_reentrant", forgets, options=reentrant),
        forward(
            "detached",
            swap("hidden,", "hidden.detach(),"),
        ),
        # In backward, `block` is the last one.
        forward("bound_late", swap("block,", "lambda given: block(given),")),
        fault(
            "evaluates_in_backward",
            "DD551",
            add("model.eval()", before=_BACKWARD),
            options=reentrant,
        ),
        fault("train_dropped", "DD551", drop(_TRAIN)),
        Mutant(
            RECOMPUTED,
            "dropout_in_evaluation",
            [("accuracy", drop("model.eval()"))],
            "DD551",
        ),
        fault("zero_grad_dropped", "DD507", drop(CLEAR)),
        fault("zero_grad_behind_backward", "DD417", move(CLEAR, after=_BACKWARD)),
        fault("clip_dropped", "DD551", drop(CLIP)),
        fault("clip_behind_step", "DD551", move(CLIP, after=STEP)),
        fault("clip_before_backward", "DD551", move(CLIP, before=_BACKWARD)),
        fault(
            "replica_bypassed",
            "DD404",
            swap(_LOGITS, _LOGITS.replace("model(", "model.module(")),
        ),
        *scheduled(RECOMPUTED),
        fault("schedule_twice", "DD532", twice(SCHEDULE)),
        fault("summed_once_more", "DD405", add(SUMMED, before=CLIP)),
        fault(
            "sum_of_samples",
            "DD551",
            swap("classes.to(device))", "classes.to(device), reduction='sum')"),
        ),
        fault(
            "step_on_one_rank",
            "DD402",
            swap(STEP, "dist.get_rank() or optimizer.step()"),
        ),
        Mutant(
            RECOMPUTED,
            "same_dropout_on_ranks",
            [("train", drop("torch.manual_seed(args.seed + dist.get_rank())"))],
            "DD309",
            advice=True,
        ),
        Mutant(
            RECOMPUTED,
            "means_of_one_rank",
            [("train", drop("dist.all_reduce(means)"))],
            "DD311",
        ),
        # What is none
        as_before(
            RECOMPUTED,
            "block_in_a_function",
            swap("block,", "lambda given, block=block: block(given),"),
            within="Network.forward",
        ),
        as_before(
            RECOMPUTED,
            "two_copies_of_the_input",
            swap("hidden,", "hidden.clone(),"),
            within="Network.forward",
            options=reentrant,
        ),
        as_before(
            RECOMPUTED, "zero_grad_behind_forward", move(CLEAR, before=_BACKWARD)
        ),
        as_before(RECOMPUTED, "zero_grad_last", move(CLEAR, after=SCHEDULE)),
        as_before(
            RECOMPUTED,
            "clips_the_module",
            swap("(model.parameters(), MAX", "(model.module.parameters(), MAX"),
        ),
        as_before(
            RECOMPUTED,
            "divided_behind_the_sum",
            move(
                "means /= len(batches) * dist.get_world_size()",
                after="dist.all_reduce(means)",
            ),
            within="train",
        ),
    ]
