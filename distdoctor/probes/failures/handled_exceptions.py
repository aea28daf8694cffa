"""Records exceptions that the job's own code handles and survives.

Python has no hook for that before `sys.monitoring` of 3.12, and a trace function would
cost far too much. It is seen where the handler has a look at it, see `handler_marks`,
and where it does something that a probe sees: it writes a line, or logs.
"""

from __future__ import annotations

import sys

from distdoctor.probes.call_sites import is_users, text_of
from distdoctor.probes.harmless import harmless

_MOST_TOLD = 50  # of a process

_PART_OF_ITERATING = (StopIteration, StopAsyncIteration)

_reported: set[tuple[type, str]] = set()
"""Kinds and lines; not the exceptions, which hold all that their frames hold."""


def notice() -> None:
    """Record the exception being handled, if there is one; on the hot path."""
    error = sys.exc_info()[1]
    if error is not None and len(_reported) < _MOST_TOLD:
        _notice(error)


@harmless
def _notice(error: BaseException) -> None:
    from distdoctor.probes.recorder import RECORDER

    kind, caught = type(error), error.__traceback__
    if RECORDER.writer is None or caught is None:
        return
    if not issubclass(kind, Exception) or issubclass(kind, _PART_OF_ITERATING):
        return
    code = caught.tb_frame.f_code
    if not is_users(code.co_filename):
        return  # who handles it is a library
    line = text_of(code.co_filename, caught.tb_lineno, code.co_qualname)
    if (kind, line) not in _reported:
        _reported.add((kind, line))
        RECORDER.failure(error, caught, fatal=False, caught=line)
