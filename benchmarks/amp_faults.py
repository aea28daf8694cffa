"""Faults of a job with mixed precision, a schedule and checkpoints."""

from __future__ import annotations

from mutants import (
    AMP,
    Edit,
    Mutant,
    add,
    drop,
    move,
    swap,
    twice,
)
from window_faults import (
    BY_HAND,
    CLEAR,
    CLIP,
    STEP,
    SYNC,
    accumulating,
    as_before,
    in_step,
)

_DIVIDE = "loss = loss / len(window)"
_BACKWARD = "scaler.scale(loss).backward()"
_ADD_LOSS = "mean_loss += loss.detach()"
_UNSCALE, _UPDATE = "scaler.unscale_(optimizer)", "scaler.update()"
_SCALED_STEP = "scaler.step(optimizer)"
_TRAINING_SCHEDULE = "training.scheduler.step()"
_IF_STEPPED = "if scaler.get_scale() >= scale:"


def mutants() -> list[Mutant]:
    """All of this job's."""

    def fault(name: str, codes: str, *edits: Edit, advice: bool = False) -> Mutant:
        return in_step(AMP, name, codes, *edits, advice=advice)

    def elsewhere(
        name: str, codes: str, *edits: tuple[str, Edit], resumed: bool = False
    ) -> Mutant:
        return Mutant(AMP, name, edits, codes, resumed=resumed)

    def unsaved(what: str, codes: str) -> list[Mutant]:
        load = f'training.{what}.load_state_dict(state["{what}"])'
        saved = f'"{what}": training.{what}.state_dict(),'
        return [
            elsewhere(f"{what}_not_loaded", codes, ("load", drop(load)), resumed=True),
            elsewhere(
                f"{what}_not_saved",
                codes,
                ("save", swap(saved, "")),
                ("load", drop(load)),
                resumed=True,
            ),
        ]

    return [
        *accumulating(AMP, _BACKWARD),
        # Divisors
        fault("not_divided", "DD501", drop(_DIVIDE)),
        fault("divided_twice", "DD501", twice(_DIVIDE)),
        fault("divided_by_constant", "DD502", swap("/ len(window)", "/ 4")),
        fault(
            "divided_by_one_more", "DD501", swap("/ len(window)", "/ (len(window)+1)")
        ),
        fault(
            "divided_by_ranks_too",
            "DD405",
            swap("/ len(window)", "/ len(window) / dist.get_world_size()"),
        ),
        fault("divided_too_late", "DD501", move(_DIVIDE, after=_BACKWARD)),
        fault(
            "sum_of_samples",
            "DD501",
            swap("classes.to(device))", "classes.to(device), reduction='sum')"),
        ),
        # Order around the step
        fault("zero_grad_before_step", "DD417", move(CLEAR, before=_SCALED_STEP)),
        fault("zero_grad_before_clip", "DD417", move(CLEAR, before=CLIP)),
        fault("clip_before_unscale", "DD511", move(CLIP, before=_UNSCALE)),
        fault("unscale_dropped", "DD511", drop(_UNSCALE)),
        fault("unscale_behind_clip", "DD511", move(_UNSCALE, after=CLIP)),
        fault("clip_in_window", "DD511", move(CLIP, after=_BACKWARD)),
        fault("clip_behind_step", "DD511", move(CLIP, after=_SCALED_STEP)),
        fault("clip_dropped", "DD551", drop(CLIP)),
        fault(
            "clips_a_part",
            "DD551",
            swap("(model.parameters(), MAX", "(list(model.parameters())[:1], MAX"),
        ),
        # The scaler
        fault("update_dropped", "DD512", drop(_UPDATE)),
        fault("update_before_step", "DD513", move(_UPDATE, before=_SCALED_STEP)),
        fault("update_before_clip", "DD513", move(_UPDATE, before=CLIP)),
        fault("scaler_bypassed", "DD513", swap(_SCALED_STEP, STEP)),
        fault("loss_not_scaled", "DD513", swap(_BACKWARD, "loss.backward()")),
        fault(
            "last_loss_not_scaled",
            "DD513",
            swap(_BACKWARD, "(loss if is_last else scaler.scale(loss)).backward()"),
        ),
        fault(
            "scaled_gradients_stepped",
            "DD513",
            drop(_UNSCALE),
            swap(_SCALED_STEP, STEP),
            drop(_UPDATE),
        ),
        fault(
            "backward_in_autocast", "DD515", move(_BACKWARD, after=_DIVIDE), advice=True
        ),
        # The schedule
        fault("schedule_dropped", "DD532", drop(_TRAINING_SCHEDULE)),
        fault("schedule_twice", "DD532", twice(_TRAINING_SCHEDULE)),
        fault("schedule_by_batch", "DD532", move(_TRAINING_SCHEDULE, after=_ADD_LOSS)),
        fault(
            "schedule_before_step",
            "DD532",
            move(_TRAINING_SCHEDULE, before=_SCALED_STEP),
        ),
        fault(
            "schedule_on_one_rank",
            "DD412 DD532",
            swap(">= scale:", ">= scale and dist.get_rank() == 0:"),
        ),
        fault("schedule_when_skipped", "DD532", swap(_IF_STEPPED, "if True:")),
        fault("schedule_if_scale_grew", "DD532", swap(">= scale", "> scale")),
        # Ranks
        fault(
            "replica_bypassed", "DD404", swap("= model(points", "= model.module(points")
        ),
        fault(
            "step_on_one_rank",
            "DD402",
            swap(_SCALED_STEP, "dist.get_rank() or scaler.step(optimizer)"),
        ),
        fault(
            "only_rank_0_clips",
            "DD402",
            swap("nn.utils.clip", "dist.get_rank() or nn.utils.clip"),
        ),
        fault(
            "zero_grad_unless_skipped",
            "DD507",
            move(CLEAR, after=_IF_STEPPED),
        ),
        elsewhere(
            "loss_of_one_rank",
            "DD311",
            ("train_epoch", drop("dist.all_reduce(loss_and_windows)")),
        ),
        elsewhere(
            "warm_up_jumps",
            "DD533",
            (
                "rate_factor",
                swap("/ (WARM_UP_STEPS + 1)", "/ (4 * WARM_UP_STEPS)"),
            ),
        ),
        elsewhere("same_order", "DD302", ("train", drop("sampler.set_epoch(epoch)"))),
        elsewhere("same_samples", "DD301", ("train", swap("sampler=sampler,", ""))),
        # Checkpoints
        *unsaved("scaler", "DD517 DD411"),
        *unsaved("scheduler", "DD411"),
        *unsaved("optimizer", "DD411"),
        elsewhere(
            "model_not_loaded",
            "DD410",
            ("load", drop('training.model.module.load_state_dict(state["model"])')),
            resumed=True,
        ),
        elsewhere(
            "epoch_repeated",
            "DD411",
            ("load", swap('int(state["epoch"]) + 1', 'int(state["epoch"])')),
            resumed=True,
        ),
        # What is none
        as_before(
            AMP, "zero_grad_first", move(CLEAR, before="device = training.device")
        ),
        as_before(AMP, "zero_grad_twice", twice(CLEAR)),
        as_before(AMP, "zero_grad_of_model", swap(CLEAR, "model.zero_grad()")),
        as_before(
            AMP,
            "zero_grad_to_zero",
            swap(CLEAR, "optimizer.zero_grad(set_to_none=False)"),
        ),
        as_before(
            AMP, "multiplied", swap("loss / len(window)", "loss * (1 / len(window))")
        ),
        as_before(AMP, "loss_counted_first", move(_ADD_LOSS, before=_BACKWARD)),
        as_before(
            AMP,
            "divided_when_scaled",
            drop(_DIVIDE),
            swap(_BACKWARD, "scaler.scale(loss / len(window)).backward()"),
            swap(_ADD_LOSS, "mean_loss += loss.detach() / len(window)"),
        ),
        as_before(
            AMP,
            "clips_the_module",
            swap("(model.parameters(), MAX", "(model.module.parameters(), MAX"),
        ),
        as_before(
            AMP,
            "averaged_by_hand",
            swap(SYNC, "with model.no_sync():"),
            add(BY_HAND, before=_UNSCALE),
        ),
        as_before(
            AMP,
            "backward_behind_no_sync",
            swap(_BACKWARD, "pass"),
            swap(_ADD_LOSS, f"{_BACKWARD}; {_ADD_LOSS}"),
        ),
        as_before(
            AMP,
            "asked_the_other_way",
            swap(_IF_STEPPED, "if not scale > scaler.get_scale():"),
        ),
        as_before(
            AMP,
            "windows_of_a_list",
            swap("in windows(batches, size):", "in list(windows(batches, size)):"),
            within="train_epoch",
        ),
    ]
