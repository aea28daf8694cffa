"""Faults of a job that steps by trust ratios."""

from __future__ import annotations

from mutants import (
    TRUST,
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
    SCHEDULE,
    STEP,
    SYNC,
    accumulating,
    as_before,
    in_step,
    scheduled,
)

_BACKWARD = "loss.backward()"
_LARS_STATE = "state = self.state[weights]"
_VELOCITY = 'state["velocity"].mul_(group["momentum"]).add_(rate * update)'
_AVERAGED = "dist.all_reduce(update.div_(dist.get_world_size()))"


def mutants() -> list[Mutant]:
    """All of this job's."""
    lamb = "--optimizer lamb"

    def fault(name: str, codes: str, *edits: Edit) -> Mutant:
        return in_step(TRUST, name, codes, *edits)

    def lars(name: str, codes: str, *edits: Edit) -> Mutant:
        return Mutant(TRUST, name, [("Lars.step", edit) for edit in edits], codes)

    def lambs(name: str, codes: str, *edits: Edit) -> Mutant:
        inside = [("Lamb.step", edit) for edit in edits]
        return Mutant(TRUST, name, inside, codes, options=lamb)

    alone = ("step", swap(SYNC, "with model.no_sync():"))
    summed = "rate * trust_ratio(weights, update.norm())"
    return [
        *accumulating(TRUST, _BACKWARD),
        fault("not_divided", "DD501", swap(" / len(window)", "")),
        fault("divided_twice", "DD501", swap("/ len(window)", "/ len(window)**2")),
        fault("divided_by_constant", "DD502", swap("/ len(window)", "/ 2")),
        fault("zero_grad_before_step", "DD417", move(CLEAR, before=STEP)),
        *scheduled(TRUST),
        fault("schedule_twice", "DD532", twice(SCHEDULE)),
        fault("schedule_by_batch", "DD532", move(SCHEDULE, after=_BACKWARD)),
        fault("step_by_batch", "DD503", move(STEP, after=_BACKWARD)),
        fault(
            "replica_bypassed", "DD404", swap("= model(points", "= model.module(points")
        ),
        # Norms of what is not yet averaged
        Mutant(
            TRUST,
            "lars_ratio_of_one_rank",
            [alone, ("Lars.step", add(_AVERAGED, before=_LARS_STATE))],
            "DD522",
        ),
        Mutant(
            TRUST,
            "lars_step_averaged",
            [
                alone,
                ("Lars.step", add("update = rate * update", before=_LARS_STATE)),
                ("Lars.step", add(_AVERAGED, before=_LARS_STATE)),
                ("Lars.step", swap(".add_(rate * update)", ".add_(update)")),
            ],
            "DD522",
        ),
        Mutant(
            TRUST,
            "lamb_ratio_of_one_rank",
            [
                alone,
                ("Lamb.step", add(_AVERAGED, before="weights.sub_(rate * update)")),
            ],
            "DD522",
            options=lamb,
        ),
        # The papers' formulas
        lars(
            "lars_decay_not_in_norm",
            "DD551",
            swap("update.norm() + decay * norm", "update.norm()"),
        ),
        lars("lars_not_decayed", "DD551", drop("update = update + decay * weights")),
        lars("lars_trust_forgotten", "DD551", swap(', group["trust"])', ")")),
        lars(
            "lars_of_biases_too",
            "DD551",
            swap("weights.dim() > 1", "weights.dim() > 0"),
        ),
        lars(
            "lars_rate_forgotten", "DD551", swap("add_(rate * update)", "add_(update)")
        ),
        lars("lars_ratio_forgotten", "DD551", drop("rate = rate * ratio")),
        lars("lars_velocity_lost", "DD551", swap("if not state:", "if True:")),
        lars(
            "lars_velocity_damped",
            "DD551",
            swap(
                _VELOCITY,
                'state["velocity"].lerp_(rate * update, 1 - group["momentum"])',
            ),
        ),
        lambs("lamb_ratio_forgotten", "DD551", swap(summed, "rate")),
        lambs(
            "lamb_ratio_inverted",
            "DD551",
            swap(summed, "rate / trust_ratio(weights, update.norm())"),
        ),
        lambs(
            "lamb_steps_not_counted",
            "DD551",
            swap('state["steps"] += 1', 'state["steps"] = 1'),
        ),
        lambs(
            "lamb_ratio_before_decay",
            "DD551",
            move(
                'update = update + group["decay"] * weights',
                after="rate = rate * trust_ratio(weights, update.norm())",
            ),
        ),
        lambs(
            "lamb_not_decayed",
            "DD551",
            drop('update = update + group["decay"] * weights'),
        ),
        lambs(
            "lamb_second_of_mean",
            "DD551",
            swap("gradient.square()", 'state["first"].square()'),
        ),
        lambs(
            "lamb_first_not_corrected",
            "DD551",
            swap("/ (1 - first_beta **", "/ (1 - 0 * first_beta **"),
        ),
        Mutant(
            TRUST,
            "ratio_of_nothing_is_nothing",
            [("trust_ratio", swap("torch.ones_like(norm)", "torch.zeros_like(norm)"))],
            "DD551",
        ),
        # What is none
        as_before(TRUST, "zero_grad_last", move(CLEAR, after=SCHEDULE)),
        as_before(TRUST, "zero_grad_to_none", swap(CLEAR, "model.zero_grad()")),
        as_before(
            TRUST,
            "rate_last",
            swap("(rate * update)", "(update * rate)"),
            within="Lars.step",
        ),
        as_before(
            TRUST,
            "mean_without_lerp",
            swap(
                'state["first"].lerp_(gradient, 1 - first_beta)',
                'state["first"].mul_(first_beta).add_(gradient, alpha=1 - first_beta)',
            ),
            within="Lamb.step",
            options=lamb,
        ),
        as_before(
            TRUST,
            "averaged_by_hand",
            swap(SYNC, "with model.no_sync():"),
            add(BY_HAND, before=STEP),
        ),
        as_before(
            TRUST,
            "averaged_by_hand_lamb",
            swap(SYNC, "with model.no_sync():"),
            add(BY_HAND, before=STEP),
            options=lamb,
        ),
    ]
