"""Looks at jobs that never ran, made for tests."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from distdoctor.postmortem.job_evidence import Evidence
from distdoctor.postmortem.living.dump_taking import Dumps
from distdoctor.postmortem.living.job_finding import LivingJob
from distdoctor.postmortem.living.listed_processes import LivingProcess
from distdoctor.postmortem.living.living_evidence import evidence_of
from distdoctor.postmortem.living.looks import JobLook
from distdoctor.postmortem.living.process_facts import ProcessFacts, ThreadFacts
from distdoctor.postmortem.living.rank_conditions import condition_of
from distdoctor.postmortem.living.seen_job import JobPart, SeenJob, part_of
from distdoctor.postmortem.living.watched_process import WatchedProcess
from distdoctor.postmortem.rank_environment import RankIdentity
from distdoctor.postmortem.stacks.thread_stacks import (
    ProcessStacks,
    StackLine,
    ThreadStack,
)

C10D = "/opt/lib/python3.11/site-packages/torch/distributed/distributed_c10d.py"
LOGGER = C10D.replace("distributed_c10d", "c10d_logger")
FIRST_PID = 4_000


def lines(*words: str, root: str = "/job") -> tuple[StackLine, ...]:
    """Lines as "function file:line"; "op!" is one of torch, "op?" takes a lock.

    "op~" is one of torch in the decorator that it has there.
    """
    found = []
    for word in words:
        if word.endswith("~"):
            found.append(StackLine(C10D, 100, word[:-1]))
            found.append(StackLine(LOGGER, 83, "_exception_logger.<locals>.wrapper"))
            continue
        if word.endswith("!"):
            found.append(StackLine(C10D, 100, word[:-1]))
            continue
        if word.endswith("?"):
            found.append(StackLine("/usr/lib/python3.11/threading.py", 9, word[:-1]))
            continue
        function, _, at = word.rpartition(" ")
        file, _, number = at.partition(":")
        found.append(StackLine(f"{root}/{file}", int(number), function))
    return tuple(found)


@dataclass(frozen=True)
class Acts:
    """What a rank of a made-up job does at every look.

    Attributes:
        stack: Of its main thread, as `lines` reads it, or one for each look.
        variables: Of its innermost line, at each look.
        given: Of the line around it, at all looks.
        runs: Its thread runs between looks.
        cpu: Seconds of processor time between two looks.
        state: The kernel's letter.
        traffic: Bytes read between two looks.
        call: The system call that it is in.
        others: Stacks of other threads, which sleep.
        refused: Why its stacks cannot be taken by py-spy.
        serves: Its worker server tells them.
        wakes: How often it goes to sleep between two looks.
        root: The folder of its source.
    """

    stack: Sequence[str] | Sequence[Sequence[str]] = ()
    variables: Sequence[Mapping[str, str]] = ()
    given: Mapping[str, str] = field(default_factory=dict)
    runs: bool = False
    cpu: float = 0.0
    state: str = "S"
    traffic: int = 0
    call: str = ""
    others: Sequence[Sequence[str]] = ()
    refused: str = ""
    serves: bool = False
    wakes: int = 0
    root: str = "/job"


def waits(op: str = "all_reduce", at: str = "step t.py:7") -> Acts:
    """A rank that sleeps in a collective."""
    return Acts(stack=(f"{op}!", at))


def called(op: str, at: str, args: str = "()", kwargs: str = "{}", **more: Any) -> Acts:
    """A rank that sleeps in a collective, with what its call was given."""
    given = {"args": args, "kwargs": kwargs}
    return Acts(stack=(f"{op}~", at), given=given, **more)


def watched(
    ranks: Mapping[int, Acts], looks: int = 8, every_s: float = 3.0
) -> list[JobLook]:
    """Looks at ranks."""
    return [_look(ranks, n, n * every_s) for n in range(looks)]


def _look(ranks: Mapping[int, Acts], n: int, at_s: float) -> JobLook:
    before: dict[int, ProcessFacts] = {}
    after: dict[int, ProcessFacts] = {}
    dumps = Dumps()
    for rank, acts in ranks.items():
        pid = FIRST_PID + rank
        for which, moment in ((before, 2 * n), (after, 2 * n + 1)):
            which[pid] = _facts(pid, acts, n, moment)
        if acts.refused and not acts.serves:
            dumps.refusals[pid] = acts.refused
        elif acts.state != "Z":
            dumps.stacks[pid] = _stacks(pid, acts, n)
    return JobLook(at_s, before, dumps, after, at_s + 0.2)


def _facts(pid: int, acts: Acts, n: int, moment: int) -> ProcessFacts:
    # A dump itself wakes a thread: only between looks the counters tell.
    switches = 10 * moment if acts.runs else 10 * n + 5 * (moment % 2)
    if not acts.runs:
        switches = 10 * ((moment + 1) // 2)
    thread = ThreadFacts(acts.state, acts.cpu * n, switches, acts.wakes * n)
    others = {
        pid + 1_000 + k: ThreadFacts("S", 0.0, 3) for k in range(len(acts.others))
    }
    return ProcessFacts(
        pid, {pid: thread, **others}, call=acts.call, traffic_bytes=acts.traffic * n
    )


def _stacks(pid: int, acts: Acts, n: int) -> ProcessStacks:
    stack = acts.stack
    words = stack if not stack or isinstance(stack[0], str) else stack[n % len(stack)]
    main = lines(*words, root=acts.root)  # type: ignore[arg-type]
    variables: Sequence[Mapping[str, str]] = ()
    if acts.variables or acts.given:
        here = acts.variables[n % len(acts.variables)] if acts.variables else {}
        variables = (here, acts.given, *({} for _ in main[2:]))
    threads = [ThreadStack(main, "MainThread", pid, is_main=True, variables=variables)]
    threads += [
        ThreadStack(lines(*words), f"Thread-{k}", pid + 1_000 + k)
        for k, words in enumerate(acts.others)
    ]
    return ProcessStacks(
        tuple(threads), pid, taken_by="worker server" if acts.serves else "py-spy"
    )


def evidence(
    ranks: Mapping[int, Acts],
    world_size: int = 0,
    directory: str = "/job",
    looks: int = 8,
    recorded: Mapping[int, bytes] | None = None,
    *,
    spawned: bool = False,
) -> Evidence:
    """What looks at such a job tell."""
    part = seen_part(ranks, world_size, directory, looks, recorded, spawned=spawned)
    return evidence_of(SeenJob((part,)))


def seen_part(
    ranks: Mapping[int, Acts],
    world_size: int = 0,
    directory: str = "/job",
    looks: int = 8,
    recorded: Mapping[int, bytes] | None = None,
    *,
    spawned: bool = False,
    size_here: int = 8,
) -> JobPart:
    """What is seen of such a job on one machine, of so many ranks."""
    size = world_size or len(ranks)
    processes = {
        rank: LivingProcess(FIRST_PID + rank, 1, directory=directory) for rank in ranks
    }
    identities = {
        rank: RankIdentity("job", rank, size, rank % size_here, min(size, size_here))
        for rank in ranks
    }
    if spawned:  # by their parent, and their environment tells nothing
        identities = {}
    job = LivingJob(processes, size, identities=identities)
    seen = watched(ranks, looks)
    each = {rank: WatchedProcess(FIRST_PID + rank, seen) for rank in ranks}
    conditions = {rank: condition_of(one, directory) for rank, one in each.items()}
    return part_of(job, each, conditions, recorded or {})
