"""Python, torch, other packages or the user's sources are not the same on all ranks.

What it is
----------
When a rank joins, it tells the versions of Python, torch, Horovod and other packages
that it has imported, a fingerprint of each of the user's own files that it imported,
and the variables that configure its libraries. Files are compared by the name of their
module, wherever it lies. Comments and blanks at the ends of lines do not count.

Why it matters
--------------
The ranks of a job are meant to be one program. With another torch, collectives and
their defaults may be others; with another file, so is the model, the order of calls, or
the loss. The job hangs, or trains on and nobody sees why it trains worse.

Sick
----
A rank has another torch:

    rank 0 | software(python=3.11.7,packages=torch,versions=2.13.0)
    rank 1 | software(python=3.11.7,packages=torch,versions=2.12.1)
    rank 2 | software(python=3.11.7,packages=torch,versions=2.13.0)

Another copy of the project comes first on the path of a rank:

    rank 0 | software(python=3.11.7)
           | sources(modules=__main__,files=/job/train.py,texts=a,lines=00000001)
           | sources(modules=loss,files=/job/loss.py,texts=b,lines=0000000200000003)
    rank 1 | software(python=3.11.7)
           | sources(modules=__main__,files=/job/train.py,texts=a,lines=00000001)
           | sources(modules=loss,files=/old/loss.py,texts=c,lines=0000000200000004)

A rank runs the program as it was before:

    rank 0 | software(python=3.11.7)
           | sources(modules=__main__,files=a.py,texts=a,lines=000000010000000200000003)
    rank 1 | software(python=3.11.7)
           | sources(modules=__main__,files=a.py,texts=b,lines=000000010000000200000004)

A package of which ranks have other releases, which is a warning:

    rank 0 | software(python=3.11.7,packages=numpy,versions=2.1.0)
    rank 1 | software(python=3.11.7,packages=numpy,versions=2.1.3)

Likewise a variable that Horovod's ranks have to share:

    rank 0 | software(python=3.11.7)  variables(settings=HOROVOD_CACHE_CAPACITY%3D0)
    rank 1 | software(python=3.11.7)  variables()

Well
----
A package that one rank alone imports, such as to write what it logs:

    rank 0 | software(python=3.11.7,packages=torch+tensorboard,versions=2.13.0+2.20.0)
    rank 1 | software(python=3.11.7,packages=torch,versions=2.13.0)

Ranks of several programs, each with a module of the same name:

    rank 0 | software(python=3.11.7)
           | sources(modules=__main__,files=/a/main.py,texts=a,lines=00000001)
           | sources(modules=net,files=/a/net.py,texts=b,lines=00000002)
    rank 1 | software(python=3.11.7)
           | sources(modules=__main__,files=/b/main.py,texts=c,lines=00000003)
           | sources(modules=net,files=/b/net.py,texts=d,lines=00000004)

Each rank has folders, an interpreter and a GPU of its own:

    rank 0 | software(python=3.11.7,executable=/a/python)
           | variables(settings=CUDA_VISIBLE_DEVICES%3D0)
           | sources(modules=__main__,files=/a/train.py,texts=a,lines=00000001)
    rank 1 | software(python=3.11.7,executable=/b/python)
           | variables(settings=CUDA_VISIBLE_DEVICES%3D1)
           | sources(modules=__main__,files=/b/train.py,texts=a,lines=00000001)

Unknown
-------
A rank of which nothing is known may have anything:

    rank 0 | software(python=3.11.7,packages=torch,versions=2.13.0)
    rank 1 | ?

Likewise one that ended before it told:

    rank 0 | software(python=3.11.7,packages=torch,versions=2.13.0)
    rank 1 | exit=1

Remedy
------
Start all ranks from one image, one environment and one copy of the sources, and look at
`PYTHONPATH` and at what is installed in each home folder.

Known problems
--------------
Installed packages are compared by the version that they state, not file by file. A file
of the user's that may have changed since the program began is not compared, nor are the
modules of a program that is no file (a notebook, `python -c`), compiled modules, what
lies in an archive, and what goes beyond 150 files or 2 MiB. Two programs count as
versions of one if they share the name and half of the lines; modules of one program, a
quarter. What differs more, or holds nothing but values, may be meant so, and is a
warning.

References
----------
- PyTorch: reproducibility – https://docs.pytorch.org/docs/stable/notes/randomness.html
- Horovod: concepts – https://horovod.readthedocs.io/en/stable/concepts_include.html
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

from distdoctor.analysis.environment.partitions import Partition, spoken_values
from distdoctor.analysis.environment.software_differences import (
    PYTHON,
    VersionDifference,
    version_differences_of,
)
from distdoctor.analysis.environment.source_differences import (
    PROGRAM,
    SourceDifference,
    source_differences,
)
from distdoctor.analysis.environment.variable_differences import (
    other_variable_differences,
)
from distdoctor.analysis.evidence import require_whole
from distdoctor.errors import MissingEvidence
from distdoctor.model.events import Event, Place
from distdoctor.model.findings import Certainty, Finding, Location, Role, Severity
from distdoctor.model.observations.environment import Software, Sources, Variables
from distdoctor.model.run import Run, named

CODE = "DD610"
SEVERITY = Severity.ERROR
NEEDS = (Software,)

_MOST_NAMES = 5
_MOST_LOCATIONS = 6


def examine(run: Run) -> Iterator[Finding]:
    """Versions, sources and variables that differ."""
    told = set()
    for sources in source_differences(run):
        told |= {module.partition(".")[0] for module in sources.modules}
        yield _of_sources(run, sources)
    for versions in version_differences_of(run, frozenset(told)):
        yield _of_versions(run, versions)
    for one in other_variable_differences(run):
        yield Finding(
            message=f"{one.name} differs between ranks: "
            f"{spoken_values(one.partition)}.",
            exhibits=tuple(_first(run, Variables, one.partition.values())),
            culprits=one.odd,
            details={"name": one.name, "values": _values(one.partition)},
            severity=Severity.WARNING,
        )
    require_whole(run)
    if run.has(Software):
        mute = [rank for rank in run.seen if not run.of(Software, rank)]
        if mute:
            raise MissingEvidence(f"{named(mute)} did not tell what it runs")


def _of_sources(run: Run, one: SourceDifference) -> Finding:
    listed = _listed(
        one.modules, lambda name: f"{_spoken(one, name)} ({_spoken_files(one, name)})"
    )
    message = f"Ranks run different sources: {listed}."
    if not one.is_grave:
        message = (
            f"Ranks have different files for {listed}; values alone, or another thing "
            "of the same name, may be meant so."
        )
    elif not one.is_certain:
        message = (
            f"Ranks run different versions of the program: {listed}; if they are two "
            "programs on purpose, their names alone are alike."
        )
    parts = one.partitions[one.modules[0]]
    return Finding(
        message=message,
        exhibits=tuple(_exhibits(run, one)),
        culprits=one.odd,
        victims=_others(parts, one.odd),
        locations=tuple(_locations(one)),
        certainty=Certainty.PROVED if one.is_certain else Certainty.LIKELY,
        details={"modules": list(one.modules), "ranks": _values(parts)},
        severity=None if one.is_grave else Severity.WARNING,
    )


def _spoken(one: SourceDifference, module: str) -> str:
    if module != PROGRAM:
        return module
    path = next(iter(one.files[module].values())).path
    return path.replace("\\", "/").rpartition("/")[2]


def _spoken_files(one: SourceDifference, module: str) -> str:
    """Paths if they differ; else, which ranks have one text."""
    files = one.files[module]
    paths = {files[ranks[0]].path: ranks for ranks in one.partitions[module].values()}
    if len(paths) > 1:
        return spoken_values(paths)
    texts = one.partitions[module].values()
    return " against ".join(named(ranks) for ranks in texts)


def _exhibits(run: Run, one: SourceDifference) -> Iterator[Event]:
    for ranks in one.partitions[one.modules[0]].values():
        for event in run.of(Sources, ranks[0]):
            if {*event.modules} & {*one.modules}:
                yield event


def _locations(one: SourceDifference) -> Iterator[Location]:
    """First lines of the files, those of the odd ranks first."""
    found: dict[str, list[int]] = {}
    for module in one.modules[:_MOST_LOCATIONS]:
        for ranks in one.partitions[module].values():
            for rank in ranks:
                found.setdefault(one.files[module][rank].path, []).append(rank)
    odd = {*one.odd}
    for path in sorted(found, key=lambda path: not odd.issuperset(found[path])):
        ranks = tuple(sorted(set(found[path])))
        role = Role.CULPRIT if odd.issuperset(ranks) and odd else Role.PARTY
        yield Location(Place(path, 1), ranks, role, "imported this file")


def _of_versions(run: Run, one: VersionDifference) -> Finding:
    listed = _listed(
        one.names, lambda name: f"{name} ({spoken_values(one.partitions[name])})"
    )
    interpreters = ""
    if PYTHON in one.names and len(one.executables) > 1:
        interpreters = f"; the interpreter is {spoken_values(one.executables)}"
    parts = one.partitions[one.names[0]]
    return Finding(
        message=f"Versions differ between ranks: {listed}{interpreters}.",
        exhibits=tuple(_first(run, Software, parts.values())),
        culprits=one.odd,
        victims=_others(parts, one.odd),
        details={
            "versions": {name: _values(one.partitions[name]) for name in one.names}
        },
        severity=None if one.is_grave else Severity.WARNING,
    )


def _first(
    run: Run, kind: type[Event], parts: Iterable[tuple[int, ...]]
) -> Iterator[Event]:
    for ranks in parts:
        yield run.of(kind, ranks[0])[0]


def _values(partition: Partition) -> Mapping[str, list[int]]:
    return {value: list(ranks) for value, ranks in partition.items()}


def _others(partition: Partition, odd: tuple[int, ...]) -> tuple[int, ...]:
    """The ranks beside the odd ones; none if nobody is odd."""
    everyone = {rank for ranks in partition.values() for rank in ranks}
    return tuple(sorted(everyone - {*odd})) if odd else ()


def _listed(names: Sequence[str], spoken: Callable[[str], str]) -> str:
    """What is said of each name, as a sentence lists it; of many, the first ones."""
    words = [spoken(name) for name in names[:_MOST_NAMES]]
    if more := len(names) - len(words):
        words.append(f"{more} more")
    *first, last = words
    return f"{', '.join(first)} and {last}" if first else last
