"""Why distdoctor ended a job, as the record and the report name it."""

from __future__ import annotations

from enum import StrEnum


class Stop(StrEnum):
    """A reason to end a job; a job that ended by itself has none: an empty text.

    The values stand in the manifest of a record (run.json) and in the report. Readers
    of a record have them as plain texts, which are equal to these.
    """

    DEADLOCK = "deadlock"
    REFUSED = "refused"
    STUCK = "stuck"
    BUDGET = "budget"
    STEPS = "steps"
    INTERRUPTED = "interrupted"
    TIMEOUT = "timeout"
    FAILED = "failed"
    NODE_LOST = "node lost"


STANDSTILLS = frozenset({Stop.DEADLOCK, Stop.REFUSED, Stop.STUCK})
"""Reasons of jobs whose ranks could never go on."""

BY_REQUEST = frozenset({Stop.BUDGET, Stop.STEPS})
"""Reasons that the user set, as options of these names: the job went well so far."""
