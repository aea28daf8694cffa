"""Faults of a job whose every token is to weigh the same."""

from __future__ import annotations

from mutants import (
    TOKENS,
    Edit,
    Mutant,
    add,
    drop,
    move,
    swap,
)
from window_faults import (
    BY_HAND,
    CLEAR,
    CLIP,
    SCHEDULE,
    STEP,
    SYNC,
    accumulating,
    as_before,
    in_step,
    scheduled,
)

_SHARE = "share = loss * dist.get_world_size() / tokens"
_SHARES = "share.backward()"
_TOTAL = "total += loss.detach()"


def mutants() -> list[Mutant]:
    """All of this job's."""

    def fault(name: str, codes: str, *edits: Edit, advice: bool = False) -> Mutant:
        return in_step(TOKENS, name, codes, *edits, advice=advice)

    def counted(name: str, codes: str, edit: Edit) -> Mutant:
        return Mutant(TOKENS, name, [("tokens_of", edit)], codes)

    own = "(targets != PADDING).sum()"
    return [
        *accumulating(TOKENS, _SHARES),
        # Divisors
        fault(
            "mean_of_means",
            "DD504",
            swap('reduction="sum",', 'reduction="mean",'),
            swap(_SHARE, "share = loss / len(window)"),
        ),
        fault(
            "tokens_of_the_batch",
            "DD504",
            swap(_SHARE, f"share = loss / {own} / len(window)"),
        ),
        fault(
            "tokens_of_the_batch_alone", "DD501", swap(_SHARE, f"share = loss / {own}")
        ),
        fault("ranks_forgotten", "DD405", swap(_SHARE, "share = loss / tokens")),
        fault(
            "divided_by_batches_too",
            "DD501",
            swap(_SHARE, f"{_SHARE} / len(window)"),
        ),
        fault("not_divided", "DD501", swap(_SHARE, "share = loss")),
        fault("padding_learnt", "DD551", swap("ignore_index=PADDING,", "")),
        counted("tokens_of_one_rank", "DD504", drop("dist.all_reduce(tokens)")),
        counted(
            "most_tokens",
            "DD504",
            swap("all_reduce(tokens)", "all_reduce(tokens, dist.ReduceOp.MAX)"),
        ),
        counted(
            "padding_counted",
            "DD504",
            swap("int((following != PADDING).sum())", "following.numel()"),
        ),
        counted("last_batch_counted", "DD504", swap("in window)", "in window[-1:])")),
        # Order around the step
        fault("zero_grad_before_step", "DD417", move(CLEAR, before=STEP)),
        fault("clip_in_window", "DD521", move(CLIP, after=_SHARES)),
        fault("clip_behind_step", "DD551", move(CLIP, after=STEP)),
        fault("clip_dropped", "DD551", drop(CLIP)),
        fault(
            "clipped_before_averaged",
            "DD521",
            swap(SYNC, "with model.no_sync():"),
            add(BY_HAND, before=STEP),
        ),
        *scheduled(TOKENS),
        fault("schedule_by_batch", "DD532", move(SCHEDULE, after=_SHARES)),
        fault("step_by_batch", "DD503", move(STEP, after=_SHARES)),
        # Ranks
        fault(
            "replica_bypassed", "DD404", swap("= model(words", "= model.module(words")
        ),
        fault("loss_of_one_rank", "DD311", drop("dist.all_reduce(total)")),
        fault(
            "forward_out_of_no_sync",
            "DD505 DD506",
            move("logits = model(words.to(device)).flatten(0, 1)", before=SYNC),
            advice=True,
        ),
        Mutant(
            TOKENS,
            "guesses_the_same_word",
            [("collate", swap("words[:, 1:]", "words[:, :-1]"))],
            "DD551",
        ),
        # What is none
        as_before(TOKENS, "zero_grad_last", move(CLEAR, after=SCHEDULE)),
        as_before(
            TOKENS,
            "zero_grad_earlier",
            move(CLEAR, before="tokens = tokens_of(window, device)"),
        ),
        as_before(
            TOKENS,
            "divided_first",
            swap(_SHARE, "share = loss / tokens * dist.get_world_size()"),
        ),
        as_before(
            TOKENS,
            "loss_counted_first",
            move(_TOTAL, before="share = loss * dist.get_world_size() / tokens"),
        ),
        as_before(
            TOKENS, "loss_reduced_earlier", move("dist.all_reduce(total)", before=CLIP)
        ),
        as_before(
            TOKENS,
            "mean_times_its_tokens",
            swap('reduction="sum",', 'reduction="mean",'),
            swap(_SHARE, f"share = loss * {own} * dist.get_world_size() / tokens"),
            swap(_TOTAL, f"{_TOTAL} * {own}"),
        ),
        as_before(
            TOKENS,
            "averaged_by_hand",
            swap(SYNC, "with model.no_sync():"),
            add(BY_HAND, before=CLIP),
        ),
    ]
