"""Runs a job several times and compares the runs, step by step.

Each run finds the files that the first found: what a run changes is put back before the
next, unless that is to go on from it, and in the end (see `file_restore`).
"""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from dataclasses import replace

from distdoctor.analysis.comparison.bounds import exchanged_rounding
from distdoctor.analysis.comparison.local_sgd import meet_again
from distdoctor.analysis.comparison.reference_runs import departures
from distdoctor.analysis.comparison.repeated_runs import repeated
from distdoctor.analysis.comparison.resumed_runs import cut, resumed
from distdoctor.analysis.comparison.traces import steps_of
from distdoctor.errors import JournalUnreadable, MissingEvidence
from distdoctor.journal import folder as record
from distdoctor.journal.assembly import assemble
from distdoctor.journal.compared import as_comparison
from distdoctor.journal.environment import (
    PAUSE_VARIABLE,
    TRACE_VARIABLE,
    VALUES_VARIABLE,
)
from distdoctor.journal.folder import Manifest
from distdoctor.journal.layout import COMPARISON_FILE, KEPT_FOLDER, REFERENCE_FOLDER
from distdoctor.journal.private_files import make_private_folder
from distdoctor.journal.record_files import seal
from distdoctor.journal.texts import Tables
from distdoctor.journal.values_reader import read_values
from distdoctor.launch.audience import Audience
from distdoctor.launch.file_restore import FileRestore
from distdoctor.launch.supervisor import Plan, supervise
from distdoctor.model.events import Observation
from distdoctor.model.observations.comparison import (
    REFERENCE,
    RESUME,
    TWICE,
    Compared,
)
from distdoctor.model.run import Run
from distdoctor.model.step_values import StepValues
from distdoctor.model.stop_reasons import BY_REQUEST, Stop

_Found = tuple[Compared, Sequence[Observation]]

_STEPS = 6
"""Of the reference: some more than are written down."""

_WHOLE = {"", *BY_REQUEST}
"""Ends of a run that can be compared with another."""


def run_twice(plan: Plan, audience: Audience) -> Manifest:
    """Run a job twice, and find where the second run differs.

    Args:
        plan: Plan of each run.
        audience: Hears both.

    Returns:
        How the first ended; also written into the record folder, beside what came of
        the comparison.
    """
    return _Series(plan, TWICE, audience).run(None)


def prove_resume(plan: Plan, again: Plan, audience: Audience) -> Manifest:
    """Run a job as a whole, and again interrupted and resumed, and compare.

    Args:
        plan: Plan of the job.
        again: Plan of the command that resumes the job.
        audience: Hears all three.

    Returns:
        As `run_twice`.
    """
    return _Series(plan, RESUME, audience).run(again)


def compare_with_reference(plan: Plan, reference: Plan, audience: Audience) -> Manifest:
    """Run a job, and its reference twice, and find where the job parts from it.

    Args:
        plan: Plan of the job.
        reference: Plan of the same job on fewer ranks.
        audience: Hears all three.

    Returns:
        As `run_twice`.
    """
    return _Series(plan, REFERENCE, audience).run(reference)


class _Series:
    """Several runs of a job, of which the first is judged."""

    def __init__(self, plan: Plan, how: str, audience: Audience) -> None:
        self._kept = FileRestore(plan.folder / KEPT_FOLDER)
        self._audience = audience
        self._how = how
        self._plan = self._watched(plan)

    def run(self, again: Plan | None) -> Manifest:
        with self._kept:
            manifest = supervise(self._plan, self._audience)
            if manifest.stopped != Stop.INTERRUPTED:
                try:
                    self._compare(manifest, again)
                except KeyboardInterrupt:
                    manifest.stopped = Stop.INTERRUPTED
        if failed := self._kept.failed:
            manifest.remarks.append(
                f"not put back as it was: {', '.join(failed)}; what was there lies in "
                f"{self._kept.folder}"
            )
        seal(self._plan.folder, manifest)
        return manifest

    def _watched(self, plan: Plan) -> Plan:
        """With all that is computed written down, and no file lost."""
        if self._how == REFERENCE:
            more = {VALUES_VARIABLE: "as they are", **self._kept.environment}
            return replace(plan, environment=plan.environment | more)
        more = {TRACE_VARIABLE: "1", **self._kept.environment}
        return replace(plan, shorten=False, environment=plan.environment | more)

    def _compare(self, manifest: Manifest, again: Plan | None) -> None:
        try:
            found = self._found(manifest, again)
        except (MissingEvidence, JournalUnreadable) as error:
            found = Compared(rank=0, how=self._how, why=str(error)), ()
        record.write(self._plan.folder, COMPARISON_FILE, as_comparison(*found))

    def _found(self, manifest: Manifest, again: Plan | None) -> _Found:
        whole = assemble(self._plan.folder, manifest)
        if self._how == REFERENCE and again is not None:
            return self._refer(whole, self._watched(again))
        if manifest.stopped not in _WHOLE or manifest.exit_code:
            raise MissingEvidence("the first run of the job failed by itself")
        self._kept.put_back()
        if again is None:
            return repeated(whole, self._other(self._plan, "second"))
        return self._resume(whole, self._watched(again))

    def _resume(self, whole: Run, again: Plan) -> _Found:
        pause = cut(whole)
        # A rank that stands still counts one step more than it made.
        stopped = replace(
            self._plan,
            steps=pause + 1,
            environment=self._plan.environment | {PAUSE_VARIABLE: str(pause)},
        )
        interrupted = self._other(stopped, "interrupted")
        left = min(steps_of(whole, rank) for rank in whole.seen)
        further = self._other(replace(again, steps=left), "resumed")
        return resumed(whole, interrupted, further)

    def _refer(self, whole: Run, reference: Plan) -> _Found:
        """Compare with a reference, as far as the job came."""
        ranks = self._values(self._plan)
        if not ranks:
            raise MissingEvidence("the job made no step of an optimizer")
        found = []
        for name, how in (("reference", "as they are"), ("moved", "moved")):
            self._kept.put_back()
            folder = make_private_folder(self._plan.folder / name)
            environment = reference.environment | {VALUES_VARIABLE: how}
            plan = replace(
                reference, folder=folder, environment=environment, steps=_STEPS
            )
            try:
                manifest = supervise(plan, self._audience)
                if manifest.stopped == Stop.INTERRUPTED:
                    raise KeyboardInterrupt
                values = self._values(plan)
            finally:
                shutil.rmtree(folder, ignore_errors=True)
            if not values:
                raise MissingEvidence(
                    f"the reference {_ended_early(manifest)}; give another command for "
                    "it (--reference 'COMMAND')"
                )
            found.append(values)
        if any(len(values) > 1 for values in found):
            raise MissingEvidence(
                "the reference has several ranks, and is to have one: give its command "
                "(--reference 'COMMAND')"
            )
        (one,), (other,) = (values.values() for values in found)
        groups = [group.ranks for group in whole.groups]
        return departures(
            ranks,
            one,
            other,
            groups,
            exchanged=exchanged_rounding(whole),
            told=self._plan.places,
            meet_again=meet_again(whole),
        )

    def _values(self, plan: Plan) -> dict[int, list[StepValues]]:
        """What the ranks of a run have written down, which is not kept."""
        try:
            place = Tables(str(plan.directory)).place
            return read_values(plan.folder, place)
        finally:
            shutil.rmtree(plan.folder / REFERENCE_FOLDER, ignore_errors=True)

    def _other(self, plan: Plan, name: str) -> Run:
        """Make another run.

        Raises:
            MissingEvidence: It failed, and made no step.
            KeyboardInterrupt: It was interrupted from outside.
        """
        folder = make_private_folder(self._plan.folder / name)
        try:
            manifest = supervise(replace(plan, folder=folder), self._audience)
            if manifest.stopped == Stop.INTERRUPTED:
                raise KeyboardInterrupt
            run = assemble(folder, manifest)
            _require_steps(run, manifest, name)
            return run
        finally:
            shutil.rmtree(folder, ignore_errors=True)


def _require_steps(run: Run, manifest: Manifest, name: str) -> None:
    if manifest.stopped in _WHOLE and not manifest.exit_code:
        return
    if any(steps_of(run, rank) for rank in run.seen):
        return
    raise MissingEvidence(f"the {name} job {_ended_early(manifest)}")


def _ended_early(manifest: Manifest) -> str:
    """What is said of a run that made no step."""
    how = f"left with exit code {manifest.exit_code}"
    if manifest.exit_code is None:
        how = f"was ended ({manifest.stopped})"
    last_words = f"; it last said: {manifest.last_words}" if manifest.last_words else ""
    return f"{how} before its first step{last_words}"
