"""Sick and healthy jobs by rule, as flight recorders see them, and how autopsy does.

    python benchmarks/recorder_faults.py [seeds]

Makes jobs of several kinds with one fault, or none, in all ways of writing dumps; asks
`distdoctor autopsy` for each; counts what was right and shows each miss.
"""

from __future__ import annotations

import random
import shutil
import sys
import tempfile
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import msgspec
from recorder_dumps import (
    JOBS,
    Job,
    Simulation,
    Step,
    Style,
    all_reduce,
    changed,
    collectives,
    dumps,
    write,
)

from distdoctor.judging import judge_run
from distdoctor.postmortem.evidence_run import manifest_of, run_of
from distdoctor.postmortem.recognising import gather


@dataclass(frozen=True, slots=True)
class Case:
    """A folder of dumps and what is true of it.

    Attributes:
        name: What it is.
        verdicts: That are right.
        codes: Of the error, if one is due.
        ranks: Sets of culprits that are right.
        named: Ranks that the report must name where it does not decide.
    """

    name: str
    verdicts: tuple[str, ...]
    codes: tuple[str, ...] = ()
    ranks: tuple[tuple[int, ...], ...] = ()
    named: tuple[int, ...] = ()


Fault = Callable[[Job, random.Random], Case | None]


def _spot(job: Job, rng: random.Random) -> tuple[int, int]:
    rank = rng.randrange(job.world)
    spots = collectives(job, rank)
    return rank, rng.choice(spots[len(spots) // 3 : -6] or spots)


def _enough(job: Job, rank: int, at: int, most: int = 1) -> bool:
    return len(job.groups[job.steps[rank][at].group]) > 2 * most


def other_op(job: Job, rng: random.Random) -> Case | None:
    """One rank calls another operation."""
    rank, at = _spot(job, rng)
    changed(job, rank, at, op="broadcast", line=("save", 120))
    tie = not _enough(job, rank, at)
    return Case("other op", ("sick",), ("DD101",), ((),) if tie else ((rank,),))


def other_dtype(job: Job, rng: random.Random) -> Case | None:
    """One rank passes another dtype."""
    rank, at = _spot(job, rng)
    changed(job, rank, at, dtype="Half")
    tie = not _enough(job, rank, at)
    return Case("other dtype", ("sick",), ("DD103",), ((),) if tie else ((rank,),))


def other_size(job: Job, rng: random.Random) -> Case | None:
    """One rank passes a tensor of another size."""
    rank, at = _spot(job, rng)
    changed(job, rank, at, sizes=(((999,),), ((999,),)))
    tie = not _enough(job, rank, at)
    return Case("other size", ("sick",), ("DD102",), ((),) if tie else ((rank,),))


def three_other_sizes(job: Job, rng: random.Random) -> Case | None:
    """Three ranks pass tensors of another size."""
    if len(job.groups) > 1 or job.world < 7:
        return None
    at = _spot(job, rng)[1]
    ranks = tuple(sorted(rng.sample(range(job.world), 3)))
    for rank in ranks:
        if at not in collectives(job, rank):
            return None
        changed(job, rank, at, sizes=(((999,),), ((999,),)))
    return Case("three other sizes", ("sick",), ("DD102",), (ranks,))


def halves(job: Job, rng: random.Random) -> Case | None:
    """Half of the ranks pass another dtype."""
    if len(job.groups) > 1 or job.world % 2:
        return None
    at = _spot(job, rng)[1]
    for rank in range(0, job.world, 2):
        if at not in collectives(job, rank):
            return None
        changed(job, rank, at, dtype="Half")
    return Case("halves", ("sick",), ("DD103",), ((), tuple(range(job.world))))


def skipped(job: Job, rng: random.Random) -> Case | None:
    """One rank leaves a call out."""
    rank, at = _spot(job, rng)
    if not _enough(job, rank, at):
        return None
    del job.steps[rank][at]
    return Case(
        "skipped", ("sick", "unknown"), ("DD108", "DD101", "DD102", "DD112"), ((rank,),)
    )


def added(job: Job, rng: random.Random) -> Case | None:
    """One rank makes a call more."""
    rank, at = _spot(job, rng)
    if not _enough(job, rank, at):
        return None
    more = all_reduce(77, group=job.steps[rank][at].group, line=("debug", 140))
    job.steps[rank].insert(at, more)
    return Case("added", ("sick",), ("DD108", "DD101", "DD102"), ((rank,),))


def swapped(job: Job, rng: random.Random) -> Case | None:
    """One rank makes two calls the other way round."""
    rank, at = _spot(job, rng)
    steps = job.steps[rank]
    a, b = steps[at], steps[at + 1]
    same = (a.op, a.sizes, a.group) == (b.op, b.sizes, b.group)
    if same or b.sizes == ((), ()) or a.group != b.group or not _enough(job, rank, at):
        return None
    steps[at], steps[at + 1] = b, a
    return Case("swapped", ("sick",), ("DD107", "DD101", "DD102", "DD108"), ((rank,),))


def stopped(job: Job, rng: random.Random) -> Case | None:
    """One rank stops, and nothing tells for how long."""
    rank, at = _spot(job, rng)
    job.steps[rank].insert(at, Step("stop"))
    return Case("stopped, no times", ("unknown",), named=(rank,))


def stopped_long(job: Job, rng: random.Random) -> Case | None:
    """One rank stops, and the others call in a group without it for long."""
    if job.world < 4:
        return None
    rank, at = _spot(job, rng)
    job.steps[rank].insert(at, Step("stop"))
    others = tuple(r for r in range(job.world) if r != rank)
    job.groups["hb"] = others
    for other in others:
        beats: list[Step] = []
        for _ in range(25):
            beats += [
                Step("idle", seconds=30.0),
                all_reduce(1, group="hb", line=("heartbeat", 177)),
            ]
        waits = [n for n, s in enumerate(job.steps[other]) if s.op == "wait"]
        later = [n for n in waits if n >= at]
        if not later:
            return None
        job.steps[other][later[0] : later[0]] = beats
    return Case("stopped, heartbeats", ("sick",), ("DD204", "DD202"), ((rank,),))


def died(job: Job, rng: random.Random) -> Case | None:
    """One rank is gone, and leaves no dump."""
    rank, at = _spot(job, rng)
    job.steps[rank].insert(at, Step("die"))
    return Case("died", ("sick",), ("DD202", "DD201"), ((rank,),), named=(rank,))


def file_lost(job: Job, rng: random.Random) -> Case | None:
    """All is complete, and one dump is missing."""
    rank = rng.randrange(job.world)
    job.steps[rank].append(Step("die"))
    for steps in job.steps.values():
        steps.append(Step("wait"))
    return Case("file lost, all complete", ("unknown",), named=(rank,))


def no_receive(job: Job, rng: random.Random) -> Case | None:
    """One rank leaves a receive out."""
    spots = [
        (rank, n)
        for rank, steps in job.steps.items()
        for n, step in enumerate(steps[: -len(steps) // 3])
        if step.op == "recv" and not step.batch
    ]
    if not spots:
        return None
    rank, at = rng.choice(spots)
    peer = job.steps[rank][at].peer
    del job.steps[rank][at]
    codes = ("DD112", "DD111", "DD205", "DD203", "DD102")
    ranks = ((rank,), (peer,), tuple(sorted((rank, peer))))
    return Case("receive left out", ("sick", "unknown"), codes, ranks)


def odd_message(job: Job, rng: random.Random) -> Case | None:
    """One rank sends a message of another size."""
    spots = [
        (rank, n)
        for rank, steps in job.steps.items()
        for n, step in enumerate(steps[: -len(steps) // 3])
        if step.op == "send" and not step.batch
    ]
    if not spots:
        return None
    rank, at = rng.choice(spots)
    peer = job.steps[rank][at].peer
    changed(job, rank, at, sizes=(((3, 512),), ((3, 512),)))
    ranks = ((rank,), (peer,), tuple(sorted((rank, peer))), ())
    return Case("message of another size", ("sick",), ("DD111",), ranks)


def crossed(job: Job, rng: random.Random) -> Case | None:
    """Two ranks use two groups in opposite order."""
    if job.world < 4:
        return None
    a, b = rng.sample(range(job.world), 2)
    job.groups["x"], job.groups["y"] = (tuple(sorted((a, b))),) * 2
    one, two = (all_reduce(10, group=name, line=("aux", 150)) for name in "xy")
    for rank, order in ((a, (one, two)), (b, (two, one))):
        at = len(job.steps[rank]) // 2
        job.steps[rank][at:at] = [order[0], Step("wait"), order[1], Step("wait")]
    if any(at not in range(len(job.steps[a])) for at in (0,)):
        return None
    return Case("circle of two", ("sick",), ("DD203",), (tuple(sorted((a, b))),))


def circle(job: Job, rng: random.Random) -> Case | None:
    """Three ranks use three groups in a circle."""
    if job.world < 4:
        return None
    three = rng.sample(range(job.world), 3)
    pairs = [(three[n], three[(n + 1) % 3]) for n in range(3)]
    for name, pair in zip("xyz", pairs, strict=True):
        job.groups[name] = tuple(sorted(pair))
    for n, rank in enumerate(three):
        first, second = "xyz"[n], "xyz"[n - 1]
        at = len(job.steps[rank]) // 2
        job.steps[rank][at:at] = [
            all_reduce(10, group=first, line=("aux", 150)),
            Step("wait"),
            all_reduce(10, group=second, line=("aux", 151)),
            Step("wait"),
        ]
    return Case("circle of three", ("sick",), ("DD203",), (tuple(sorted(three)),))


def other_members(job: Job, rng: random.Random) -> Case | None:
    """One rank makes a group of other members."""
    if job.world < 5:
        return None
    members = tuple(range(job.world - 1))
    job.groups["m"] = members
    rank = rng.choice(members)
    gone = rng.choice([one for one in members if one != rank])
    job.lists[rank, "m"] = tuple(one for one in members if one != gone)
    for one in members:
        job.steps[one].append(all_reduce(4, group="m", line=("groups", 30)))
    ranks = ((rank,), tuple(sorted((rank, gone))))
    return Case("other members", ("sick",), ("DD109",), ranks)


def well(_job: Job, _rng: random.Random) -> Case | None:
    """Nothing is wrong, and the job runs."""
    return Case("healthy, looked at while running", ("well", "unknown"))


def over(job: Job, _rng: random.Random) -> Case | None:
    """Nothing is wrong, and all is complete."""
    for steps in job.steps.values():
        steps.append(Step("wait"))
    return Case("healthy, all complete", ("well", "unknown"))


FAULTS: tuple[Fault, ...] = (
    *(other_op, other_dtype, other_size, three_other_sizes, halves, skipped, added),
    *(swapped, stopped, stopped_long, died, file_lost, no_receive, odd_message),
    *(crossed, circle, other_members, well, over),
)

STYLES = (
    Style(),
    Style(version="2.1", prefix="nccl_trace_rank_", frames=False),
    Style(version="2.4", prefix="nccl_trace_rank_{host}_"),
    Style(version="2.9", timing=True),
    Style(as_json=True),
    Style(ring=40),
    Style(backend="gloo", prefix="fr_rank_"),
    Style(active_only=True),
    Style(backend="ncclx", frames=False),
)


def cases(seed: int, folder: Path) -> Iterator[tuple[Case, Path, str]]:
    """Folders of dumps, each with what is true of it."""
    rng = random.Random(seed)
    for kind, make in JOBS.items():
        for fault in FAULTS:
            style = rng.choice(STYLES)
            if style.backend == "gloo" and kind in {"pipeline", "ring"}:
                continue
            job = make(rng.choice((4, 6, 8, 12)), rng.randrange(6, 14))
            case = fault(job, rng)
            if case is None:
                continue
            if style.active_only and case.name == "skipped":
                continue
            if style.backend == "gloo" and fault in {crossed, circle, other_members}:
                continue  # nothing tells who is in a group that one rank calls in
            if style.backend == "gloo" and fault is died and kind == "mesh":
                continue  # the same: its peer is the only one that is left
            if style.backend == "gloo" and job.world - 1 in case.named:
                continue  # without a list the highest rank is not missed
            if style.ring < 100 and fault is odd_message:
                case = replace(case, verdicts=("sick", "unknown"))
            if style.active_only and fault in {stopped_long, odd_message}:
                case = replace(case, verdicts=("sick", "unknown"))
            if kind == "pipeline" and fault in {crossed, circle}:
                continue  # stages have lists of other lengths: it is in no one place
            running = fault is well
            rounds = rng.randrange(6, 25) if running else 0
            done = Simulation(job, rng.randrange(1 << 30), rounds)
            name = f"{kind}-{fault.__name__}-{seed}"
            path = folder / name
            write(path, dumps(job, done, style, at_once=running), style)
            case = replace(case, name=f"{case.name} ({kind}, {style})")
            yield case, path, name


def report_of(path: Path) -> dict[str, Any]:
    """What autopsy says of a folder."""
    evidence = gather([str(path)])
    manifest = manifest_of(evidence, [str(path)], str(path))
    judged = judge_run(run_of(evidence), manifest)
    plain: dict[str, Any] = msgspec.to_builtins(judged.report)
    return plain


def miss(case: Case, report: dict[str, Any]) -> str:
    """What is wrong with a report; empty: nothing."""
    errors = [one for one in report["findings"] if one["severity"] == "error"]
    reported = [(one["code"], tuple(sorted(one["ranks"]))) for one in errors]
    if report["checks"]["crashed"]:
        return f"crashed: {report['checks']['crashed']}"
    if errors and "sick" not in case.verdicts:
        return f"false alarm: {reported}"
    if report["verdict"] not in case.verdicts:
        return f"verdict {report['verdict']} {reported}"
    if errors and not any(
        code in case.codes and ranks in case.ranks for code, ranks in reported
    ):
        accused = any(ranks for _, ranks in reported)
        return f"{'accuses others' if accused else 'not found'}: {reported}"
    if not errors and case.named:
        stated = str(report["not_examined"])
        if not all(str(rank) in stated for rank in case.named):
            return f"ranks {case.named} are not named"
    return ""


def main() -> None:
    """Ask autopsy for all cases of some seeds, and print what it missed."""
    seeds = int(sys.argv[1]) if len(sys.argv) > 1 else 3
    counts: Counter[str] = Counter()
    right: Counter[str] = Counter()
    with tempfile.TemporaryDirectory() as temporary:
        for seed in range(seeds):
            for case, path, name in cases(seed, Path(temporary)):
                report = report_of(path)
                kind = "healthy" if "healthy" in case.name else "sick or unknown"
                counts[kind] += 1
                why = miss(case, report)
                right[kind] += not why
                if why:
                    print(f"MISS {name}: {why}\n     {case}")
                shutil.rmtree(path)
    for kind, count in counts.items():
        print(f"{kind}: {right[kind]} of {count}")


if __name__ == "__main__":
    main()
