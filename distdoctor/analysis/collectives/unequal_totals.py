"""All-to-alls that move other amounts than fit, in what recorders kept of a job."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from distdoctor.analysis.causes import Cause, Divergence, where_of
from distdoctor.analysis.collectives.alignment import Alignment, Meeting
from distdoctor.analysis.collectives.call_groups import calls_at
from distdoctor.analysis.divergence.recorded_slips import UnequalTotals
from distdoctor.model.events import State
from distdoctor.model.findings import Certainty
from distdoctor.model.operations import CODE_OF, OPERATIONS
from distdoctor.model.run import Run

_HABIT = 2  # all-to-alls before whose totals fit
_LOOKED_AT = 100  # of them

_SINGLE = CODE_OF["all_to_all_single"]
_IS_ALL_TO_ALL = np.array(["all_to_all" in operation.name for operation in OPERATIONS])


def unequal_totals(run: Run, alignment: Alignment) -> Divergence | None:
    """An all-to-all that stands still, in which more is sent than taken, or less.

    A recorder writes no splits, so who is wrong is not known. Lists of tensors are
    recorded by their first one: there totals prove nothing. Which of the two it is, the
    stack tells, or the same group's calls before: totals that always fitted are no
    accident. Where neither does, all must have given the call up.

    Args:
        run: The run that is judged.
        alignment: The calls of one group.

    Returns:
        The divergence, or None.
    """
    whole = alignment.counts == len(alignment.group.ranks)
    used = _IS_ALL_TO_ALL[run.calls["op"][alignment.first]] & whole & alignment.equal
    if not used.any():
        return None
    ended = run.values("state", alignment.rows) == State.DONE
    is_over = np.bincount(alignment.at[ended], minlength=len(used)) > 0
    still = np.flatnonzero(used & ~is_over)
    if not len(still):
        return None
    (first,) = alignment.meetings(run, still[:1])
    totals = _totals(run, first)
    if totals is None or totals[0] == totals[1]:
        return None
    rows = np.array([*first.rows.values()])
    given_up = (run.calls["state"][rows] == State.RAISED).all()
    if not given_up and not (run.calls["op"][rows] == _SINGLE).any():
        over = np.flatnonzero(used & is_over)[-_LOOKED_AT:]
        before = [_totals(run, meeting) for meeting in alignment.meetings(run, over)]
        if len(before) < _HABIT or not all(one and one[0] == one[1] for one in before):
            return None
    return _unfit(run, first, *totals)


def _totals(run: Run, meeting: Meeting) -> tuple[int, int] | None:
    """Elements that all members send and take; None: they are not known of all."""
    specs = run.calls["spec"][np.array([*meeting.rows.values()])]
    splits = [run.specs[spec].splits for spec in specs]
    known = [one for one in splits if one is not None]
    if len(known) < len(splits):
        return None
    return sum(one[0][0] for one in known), sum(one[1][0] for one in known)


def _unfit(run: Run, meeting: Meeting, sent: int, taken: int) -> Divergence:
    calls = calls_at(run, meeting)
    op = next(iter(calls.values())).op
    base = Divergence(
        why=Cause.SPLITS,
        group=meeting.group,
        ordinal=meeting.ordinal,
        calls=calls,
        culprits=(),
        victims=tuple(sorted(calls)),
        certainty=Certainty.LIKELY,
    )
    return replace(base, facts=UnequalTotals(op, where_of(base), sent, taken))
