"""Tells whether the loop over a DataLoader may safely get fewer batches.

A `for` can: its loader ends, and it goes on behind the loop. Who calls `next` may have
counted the batches before, and would meet the end unprepared.
"""

from __future__ import annotations

import inspect
from opcode import opmap
from types import FrameType

from distdoctor.probes.call_sites import OWN, is_users

_ITERATES = {opmap["FOR_ITER"], opmap["SEND"]}


def may_end_early(frame: FrameType | None) -> bool:
    """Whether only iteration lies between the DataLoader and the user's loop.

    A generator in between (tqdm's, one of the user's own) hands the end on to whoever
    asks it: so he has to iterate, too. A library's generator may call `next`: the end
    may not leave it otherwise than in good order (PEP 479). What another function of a
    library does with the batches is not known.

    Args:
        frame: Where the next batch was asked for; frames of ours are passed over.
    """
    while frame is not None and frame.f_code.co_filename.startswith(OWN):
        frame = frame.f_back
    while frame is not None:
        code = frame.f_code
        users = is_users(code.co_filename)
        if users and code.co_code[frame.f_lasti] not in _ITERATES:
            return False
        if not code.co_flags & inspect.CO_GENERATOR:
            return users
        frame = frame.f_back
    return False
