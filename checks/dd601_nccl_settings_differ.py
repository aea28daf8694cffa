"""Versions or settings of NCCL are not the same on all ranks.

What it is
----------
A rank that runs under distdoctor tells, when it joins, the version of NCCL that torch
has and each variable `NCCL_…` and `TORCH_NCCL_…` of its environment; NCCL's log tells
those that it took notice of. Ranks
of one job have to agree: in the version, and in what shapes their messages
(`NCCL_ALGO`, `NCCL_PROTO`, `NCCL_BUFFSIZE`, numbers of threads and channels, which
transports are allowed). Names of interfaces and devices may differ from host to host.

Why it matters
--------------
Ranks that chose another algorithm or protocol send messages of other sizes: the job
ends with "message truncated", hangs, or mixes numbers. Where nothing has failed so far,
it is a warning.

Sick
----
Two versions, and the job ended with an error:

    rank 0 | nccl_process(host=a,version=2.27.3)
           | nccl_complaint(kind=versions,host=a,status=5)
    rank 1 | nccl_process(host=b,version=2.26.2)

A setting that one host alone has, and messages that do not fit:

    rank 0 | nccl_process(host=a)
           | communicator(comm=world,size=3,member=0,host=a,complete)
           | nccl_complaint(kind=sizes,host=a,status=5)
    rank 1 | nccl_process(host=a)
           | communicator(comm=world,size=3,member=1,host=a,complete)
    rank 2 | nccl_process(host=b,settings=NCCL_ALGO%3DTree)
           | communicator(comm=world,size=3,member=2,host=b,complete)

Nothing has failed so far, which is a warning:

    rank 0 | nccl_process(host=a)
           | communicator(comm=world,size=2,member=0,host=a,complete)
    rank 1 | nccl_process(host=b,settings=NCCL_NTHREADS%3D256)
           | communicator(comm=world,size=2,member=1,host=b,complete)

A rank has another environment when it joins:

    rank 0 | variables(host=a,settings=NCCL_ALGO%3DRing)
    rank 1 | variables(host=a,settings=NCCL_ALGO%3DRing)
    rank 2 | variables(host=a)

Torch has another NCCL on one host:

    rank 0 | variables(host=a)  software(packages=torch.nccl,versions=2.27.3)
    rank 1 | variables(host=b)  software(packages=torch.nccl,versions=2.26.2)

Well
----
Each host has an interface of its own, and names it:

    rank 0 | nccl_process(host=a,settings=NCCL_SOCKET_IFNAME%3Deth0)
           | communicator(comm=world,size=2,member=0,host=a,complete)
    rank 1 | nccl_process(host=b,settings=NCCL_SOCKET_IFNAME%3Dens5)
           | communicator(comm=world,size=2,member=1,host=b,complete)

Likewise, by their environments; another one differs for a look at one rank:

    rank 0 | variables(host=a,settings=NCCL_IB_HCA%3Dmlx5_0+NCCL_DEBUG%3DINFO)
    rank 1 | variables(host=b,settings=NCCL_IB_HCA%3Dmlx5_2+NCCL_IB_TIMEOUT%3D22)

Unknown
-------
A rank that is not in the log may have the reason:

    rank 0 | nccl_process(host=a)
    rank 1 | ?

Remedy
------
Give all hosts one image and one libnccl, and set `NCCL_…` in one place for all ranks:
in the launcher, not in a shell's start-up file of one host.

Known problems
--------------
Before NCCL 2.22 only the first rank prints its version; another one then shows by the
form of its lines, and only where the job failed. A variable is printed when it is used
first: a rank that came less far than the others may have it, too. An environment says
nothing of what NCCL reads from a file of settings, nor of a variable that the program
sets behind `init_process_group`.

References
----------
- NCCL: environment variables –
  https://docs.nvidia.com/deeplearning/nccl/user-guide/docs/env.html
"""

from __future__ import annotations

from collections.abc import Iterator

from distdoctor.analysis.environment.partitions import odd_ranks, spoken_values
from distdoctor.analysis.environment.software_differences import nccl_versions
from distdoctor.analysis.environment.variable_differences import (
    nccl_variable_differences,
)
from distdoctor.analysis.evidence import require_whole
from distdoctor.analysis.nccl.local_errors import LocalError, worded
from distdoctor.analysis.nccl.log_diagnosis import findings_of
from distdoctor.model.events import Started
from distdoctor.model.findings import Finding, Severity
from distdoctor.model.observations.environment import Configured, Software, Variables
from distdoctor.model.observations.nccl import ComplaintKind
from distdoctor.model.run import Run

CODE = "DD601"
SEVERITY = Severity.ERROR
NEEDS = (Configured,)


_NO_TOPOLOGY = {
    ComplaintKind.TOPOLOGY: (
        "could not read the description of the topology",
        "Mend or unset NCCL_TOPO_FILE.",
    ),
}
"""By kind of error, what is said of who met it, and the cure."""


def examine(run: Run) -> Iterator[Finding]:
    """Versions and settings that differ."""
    told: set[object] = set()
    for finding in findings_of(run, CODE, {LocalError: worded(_NO_TOPOLOGY)}):
        told.add(finding.details.get("name", "version"))
        yield finding
    if "version" not in told:
        yield from _versions(run)
    for one in nccl_variable_differences(run):
        if one.name not in told:
            yield Finding(
                message=f"{one.name} differs between ranks: "
                f"{spoken_values(one.partition)}{_unread(run)}.",
                exhibits=tuple(
                    run.of(Variables, ranks[0])[0] for ranks in one.partition.values()
                ),
                culprits=one.odd,
                details={
                    "name": one.name,
                    "values": {v: list(ranks) for v, ranks in one.partition.items()},
                    "cure": f"Set {one.name} alike on all ranks, or nowhere.",
                },
                severity=Severity.WARNING,
            )
    require_whole(run)


def _versions(run: Run) -> Iterator[Finding]:
    """By what torch says of the library that it has loaded."""
    versions = nccl_versions(run)
    if len(versions) > 1:
        yield Finding(
            message="Versions of NCCL differ: "
            f"{spoken_values(versions)}{_unread(run)}.",
            exhibits=tuple(
                run.of(Software, ranks[0])[0] for ranks in versions.values()
            ),
            culprits=odd_ranks(versions),
            details={
                "versions": {v: list(ranks) for v, ranks in versions.items()},
                "cure": "One image for all hosts; one libnccl on the path.",
            },
            severity=Severity.WARNING,
        )


def _unread(run: Run) -> str:
    """That NCCL did not read it, where ranks communicated by something else."""
    used = {one.backend for rank in run.seen for one in run.of(Started, rank)} - {""}
    if not used or any("nccl" in backend for backend in used):
        return ""
    return f" (in this run, ranks communicated by {', '.join(sorted(used))})"
