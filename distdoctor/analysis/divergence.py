"""Where the ranks of a run part ways, and what explains it.

A divergence is the first meeting of a group that not all members made, or not alike.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from distdoctor.analysis.absence import absence
from distdoctor.analysis.alignment import alignments
from distdoctor.analysis.camps import (
    camps,
)
from distdoctor.analysis.deaths import (
    deaths,
)
from distdoctor.analysis.membership import strangers
from distdoctor.analysis.misfits import misfits
from distdoctor.analysis.mismatch import mismatch, unfit_splits, unseen_swaps
from distdoctor.analysis.reasons import (
    Divergence,
    Why,
    finding,
)
from distdoctor.analysis.rendezvous import rendezvous
from distdoctor.analysis.setting_up import (
    groups_left_out,
    joining,
    missing_key,
    of_setting_up,
)
from distdoctor.analysis.unanswered import left_over, unanswered
from distdoctor.analysis.waiting import busy, circle
from distdoctor.model.findings import Finding
from distdoctor.model.run import Run


def divergences(run: Run) -> list[Divergence]:
    """All independent divergences of a run, worked out once."""
    if "divergences" not in run.memory:
        run.memory["divergences"] = _explained(run)
    result: list[Divergence] = run.memory["divergences"]
    return result


def findings(run: Run, *reasons: Why) -> Iterator[Finding]:
    """The divergences with one of these explanations, as findings."""
    for divergence in divergences(run):
        if divergence.why in reasons:
            yield finding(divergence)


def _once(found: list[Divergence]) -> list[Divergence]:
    """A rank that is gone is missed on every group: that is one fault."""
    faults: dict[object, Divergence] = {}
    left = {
        rank
        for divergence in found
        if divergence.why in {Why.DIED, Why.FINISHED}
        for rank in divergence.culprits
    }
    for divergence in found:
        absent = divergence.why in {Why.DIED, Why.FINISHED}
        if divergence.why is Why.SKIPPED and set(divergence.victims) <= left:
            continue  # whom it waits for is at fault already
        key = (divergence.why, divergence.culprits) if absent else id(divergence)
        first = faults.setdefault(key, divergence)
        victims = {*first.victims, *divergence.victims}
        if absent and len(victims) > len(first.victims):
            faults[key] = replace(first, victims=tuple(sorted(victims)))
    return list(faults.values())


def _explained(run: Run) -> list[Divergence]:
    found = list(strangers(run))
    if found:
        return (
            found  # a call that cannot be made: what others do for want of it follows
        )
    for alignment in alignments(run):
        fault = alignment.first_fault(run)
        unfit = unfit_splits(run, alignment, fault)
        if unfit is not None:
            found.append(unfit)
        elif fault is not None and len(camps(run, fault)) > 1:
            found.append(mismatch(run, fault))
        elif fault is not None:
            found += absence(run, fault)
        else:
            found += unseen_swaps(run, alignment)
    found = _once([of_setting_up(divergence) for divergence in found])
    if wrong := misfits(run):  # of which the backend may have died
        ends = {Why.DIED, Why.FINISHED, Why.UNEVEN}
        found = [*wrong, *(each for each in found if each.why not in ends)]
    # What is left explains nothing more where a cause is known already.
    explanations = (
        deaths,
        joining,
        missing_key,
        groups_left_out,
        unanswered,
        circle,
        busy,
        left_over,
        rendezvous,
    )
    for explain in explanations:
        if not found:
            found += explain(run)
    return found
