"""Ranks wait for each other's messages in a circle.

What it is
----------
Every rank sends first and receives afterwards (or the other way round): each waits
until its neighbour takes the message, and the neighbour waits for its own. Nothing is
missing, only the order is wrong.

Why it matters
--------------
Whether a send waits for its receive depends on backend, size and release, so that it
may have worked for years, with small messages or with two ranks.

Sick
----
A ring in which everybody sends first:

    rank 0 | send(4,peer=1)@t.py:7...
    rank 1 | send(4,peer=2)@t.py:7...
    rank 2 | send(4,peer=0)@t.py:7...

Both receive first:

    rank 0 | recv(4,peer=1)@t.py:7...
    rank 1 | recv(4,peer=0)@t.py:7...

Well
----
Even ranks send first, odd ones receive first:

    rank 0 | send(4,peer=1)  recv(4,peer=1)  exit=0
    rank 1 | recv(4,peer=0)  send(4,peer=0)  exit=0

A chain has an end: rank 2 is on its way, and then all can go on:

    rank 0 | send(4,peer=1)...
    rank 1 | send(4,peer=2)...
    rank 2 | .

Unknown
-------
A rank without a journal may be the one that strayed:

    rank 0 | start=2  send(4,peer=1)  exit=0
    rank 1 | ?

Remedy
------
Hand all sends and receives of an exchange to `batch_isend_irecv` at once and wait
afterwards, or let every other rank receive before it sends.
"""

from __future__ import annotations

from collections.abc import Iterator

from distdoctor.analysis.divergence import findings
from distdoctor.analysis.evidence import require_whole
from distdoctor.analysis.reasons import Why
from distdoctor.model.events import Call
from distdoctor.model.findings import Finding, Severity
from distdoctor.model.run import Run

CODE = "DD205"
SEVERITY = Severity.ERROR
NEEDS = (Call,)


def examine(run: Run) -> Iterator[Finding]:
    """Circles of ranks that wait for each other's messages."""
    yield from findings(run, Why.MESSAGES)
    require_whole(run)
