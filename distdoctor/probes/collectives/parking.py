"""Holds a rank whose call was refused, until the supervisor ends the job."""

from __future__ import annotations

import os
import time

from distdoctor.journal.environment import SUPERVISOR_VARIABLE

_LONGEST_PARK_S = 600.0


def park() -> None:
    """Block before a refused call until the supervisor ends the job.

    Nothing of the job runs on, so that it cannot save, send or print nonsense. When
    nobody supervises any more, the call is made as if there were no probe.
    """
    supervisor = int(os.environ.get(SUPERVISOR_VARIABLE, "0"))
    end = time.monotonic() + _LONGEST_PARK_S
    while supervisor and time.monotonic() < end:
        try:
            os.kill(supervisor, 0)
        except ProcessLookupError:
            return
        except PermissionError:
            pass
        time.sleep(0.02)
