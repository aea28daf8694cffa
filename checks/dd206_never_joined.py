"""Ranks wait for others to join the job, and these never come.

What it is
----------
`init_process_group`, or Horovod's `hvd.init`, returns when as many ranks have joined as
the world size says. Here fewer processes were started, or they look for each other at
different addresses, or they do not agree on the world size.

Why it matters
--------------
The ranks that came wait without a word until a timeout of minutes ends them, with an
error that speaks of the store and not of the rank that is missing.

Sick
----
Two of three ranks were started, and no process is left that could become the third
(the last line of a drawing says so):

    rank 0 | start=3@t.py:7...  init_process_group@t.py:7...inside
    rank 1 | start=3@t.py:7...  init_process_group@t.py:7...inside
    rank 2 | ?
    nobody else

They look for each other at two addresses:

    rank 0 | start=2@t.py:7...  init_process_group(names=a%3A1)@t.py:7...inside
    rank 1 | start=2@t.py:7...  init_process_group(names=a%3A2)@t.py:7...inside
    nobody else

They gave it up:

    rank 0 | start=2@t.py:7...  init_process_group@t.py:7^  fail=DistStoreError^  exit=1
    rank 1 | ?

Well
----
All came:

    rank 0 | start=2  init_process_group  all_reduce(4)  leave  exit=0
    rank 1 | start=2  init_process_group  all_reduce(4)  leave  exit=0

Unknown
-------
The other may still be on its way:

    rank 0 | start=2...  init_process_group...inside
    rank 1 | ?

Remedy
------
Start as many processes as the world size says: let the launcher count them (`torchrun
--nproc-per-node`, `nprocs=` of `mp.spawn`) and read `WORLD_SIZE` instead of computing
it. Give all the same `MASTER_ADDR`, `MASTER_PORT` and `init_method`, and each a rank of
its own.

Known problems
--------------
That a rank is missing is proved only where all processes that could become one are
known to have ended, as on one machine; ranks on other machines may still be on their
way, and then the run is unknown. A firewall or a wrong interface between machines is
not seen. PyTorch's store looks up the name of each process that connects, and serves
nobody until a name server has answered: while one is asked, nothing is said here, and a
remark of the report tells for how long.

References
----------
- pytorch: one node joins and waits, whatever the timeout –
  https://github.com/pytorch/pytorch/issues/41665
- pytorch: the store waits for a name server –
  https://github.com/pytorch/pytorch/issues/159007
- torch.distributed: initialization –
  https://docs.pytorch.org/docs/stable/distributed.html
"""

from __future__ import annotations

from collections.abc import Iterator

from distdoctor.analysis.causes import Cause, capital, waits
from distdoctor.analysis.divergence.cascade import findings
from distdoctor.analysis.evidence import require_whole
from distdoctor.analysis.rendezvous.setup_faults import JoiningFault
from distdoctor.analysis.sentences import sentence_of
from distdoctor.model.events import Started
from distdoctor.model.findings import Finding, Severity
from distdoctor.model.run import Run, named

CODE = "DD206"
SEVERITY = Severity.ERROR
NEEDS = (Started,)


def examine(run: Run) -> Iterator[Finding]:
    """Ranks that waited in vain for others to join."""
    yield from findings(run, Cause.JOINING)
    require_whole(run)


@sentence_of(Cause.JOINING)
def _sentence(fault: JoiningFault) -> str:
    if fault.sizes:
        return f"The ranks announce different world sizes: {fault.sizes}."
    if fault.addresses:
        return (
            f"The ranks look for each other at different addresses: {fault.addresses}."
        )
    wait = f"{capital(named(fault.here))} {waits(fault.here)} in {fault.call}"
    if not fault.missing:
        at = fault.address or "an address that is not known"
        return f"{wait} at {at}, and do not find each other."
    why = (
        f"only {len(fault.here)} of {fault.size} processes were started, or the others "
        "look for the job at another address"
    )
    if fault.elsewhere:
        does = "they do" if len(fault.elsewhere) > 1 else "it does"
        why = f"{does} something else"
    return (
        f"{wait} for a world of {fault.size}, and {named(fault.missing)} never joined: "
        f"{why}."
    )
