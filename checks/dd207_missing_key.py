"""A rank waits for a key of the store that nobody sets.

What it is
----------
Ranks tell each other things by keys of a store (`TCPStore`, `FileStore`): one sets a
key, others wait for it or get it. Here no rank ever sets the key: it is spelled
otherwise, it is set in a branch that was not taken, or it is set after a call in which
its setter waits for the one who waits for the key.

Why it matters
--------------
The rank sleeps until the store's timeout (minutes), and everybody who needs the rank
sleeps as well.

Sick
----
The others have ended, and none has set the key:

    rank 0 | store_set(names=ready%2F1)@t.py:5  leave  exit=0
    rank 1 | store_wait(names=ready_1)@t.py:7...inside
    nobody else

Its setter waits in a barrier for the one who waits for the key:

    rank 0 | barrier@t.py:5...
    rank 1 | store_wait(names=ready)@t.py:7...inside
    nobody else

The wait was given up:

    rank 0 | store_wait(names=ready)@t.py:7^  fail=DistStoreError^  exit=1
    rank 1 | barrier@t.py:9  leave  exit=0

One rank set the key of each round so far, and left out that of the third:

    rank 0 | store_set(names=round%2F1)@t.py:5   barrier@t.py:9  store_set(names=round%2F2)@t.py:5   barrier@t.py:9  barrier@t.py:9...
    rank 1 | store_wait(names=round%2F1)@t.py:7  barrier@t.py:9  store_wait(names=round%2F2)@t.py:7  barrier@t.py:9  store_wait(names=round%2F3)@t.py:7...inside
    nobody else

Well
----
One sets, the other waits:

    rank 0 | store_set(names=ready)   barrier  exit=0
    rank 1 | store_wait(names=ready)  barrier  exit=0

Unknown
-------
A rank without a journal may be the one that sets it:

    rank 0 | store_wait(names=ready)...inside
    rank 1 | ?

Remedy
------
Build the key in one function that setter and waiter both use, set it before any
collective in which the setter waits for the waiter, and pass a short
`timedelta(seconds=…)` to `wait`, so that a missing key tells its name.

Known problems
--------------
Keys are seen that pass the store's Python methods; those of torch's own C++ and of
another program that uses the same store are not, and a key that such a one would set is
told as missing. Who forgot it is a guess from who set the keys before.

References
----------
- torch.distributed: distributed key-value store –
  https://docs.pytorch.org/docs/stable/distributed.html
- `torch/csrc/distributed/c10d/TCPStore.cpp` (pytorch/pytorch), `TCPStore::wait`
"""  # noqa: E501 - a drawing is as wide as what a rank did

from __future__ import annotations

from collections.abc import Iterator

from distdoctor.analysis.causes import Cause, capital, waits
from distdoctor.analysis.divergence.cascade import findings
from distdoctor.analysis.evidence import require_whole
from distdoctor.analysis.rendezvous.setup_faults import MissingKey
from distdoctor.analysis.sentences import sentence_of
from distdoctor.model.events import Call
from distdoctor.model.findings import Finding, Severity
from distdoctor.model.run import Run, named

CODE = "DD207"
SEVERITY = Severity.ERROR
NEEDS = (Call,)


def examine(run: Run) -> Iterator[Finding]:
    """Keys that were waited for in vain."""
    yield from findings(run, Cause.KEY)
    require_whole(run)


@sentence_of(Cause.KEY)
def _sentence(wanted: MissingKey) -> str:
    meanwhile = "".join(
        f", while rank {call.rank} waits in {call.op}" for call in wanted.others
    )
    known = ", ".join(map(repr, wanted.known)) or "none"
    before = f" Rank {wanted.setter} set all keys of this kind before."
    return (
        f"{capital(named(wanted.here))} {waits(wanted.here)} for the key "
        f"{', '.join(map(repr, wanted.keys))} of the store, which no rank has set"
        f"{meanwhile}; keys that ranks have set: {known}."
        + ("" if wanted.setter is None else before)
    )
