"""Simulates single ranks of a large job, one after the other, each alone.

What others would send is a stand-in. So some ranks are simulated once more with other
stand-ins: calls that change with them hang on values that nobody here can know. Those
are the first and the last rank, and some of each side of all that was found.
"""

from __future__ import annotations

import shutil
import time
from collections.abc import Sequence
from dataclasses import replace
from itertools import takewhile
from operator import eq
from pathlib import Path

from distdoctor.analysis.divergence.cascade import divergences
from distdoctor.errors import JournalUnreadable
from distdoctor.journal.assembly import assemble
from distdoctor.journal.environment import SIMULATION_VARIABLE
from distdoctor.journal.folder import Manifest, Simulated, Sure
from distdoctor.journal.layout import BOARDS_FOLDER, VALUES_FOLDER
from distdoctor.journal.private_files import make_private_folder
from distdoctor.journal.record_files import seal
from distdoctor.launch.audience import Audience, JobProgress
from distdoctor.launch.supervisor import Plan, supervise
from distdoctor.model.events import Ended
from distdoctor.model.run import Run
from distdoctor.model.stop_reasons import Stop

RANKS_PER_MACHINE = 8
"""What simulated ranks are told of their machines; most have 8 GPUs."""

_LEAST_S = 10.0  # for one rank: it imports torch, on a busy machine perhaps
_MOST_CONFIRMED = 4  # ranks that are simulated again

_BY_VALUES = "depends on values from other ranks, which are stand-ins in a simulation"
_UNCONFIRMED = "could not be confirmed: with other stand-ins the script got no further"


def usual_ranks(world_size: int) -> tuple[int, ...]:
    """Ranks that differ in the ways by which scripts distinguish ranks.

    >>> usual_ranks(1024)
    (0, 1, 8, 512, 1023)
    """
    chosen = {0, 1, RANKS_PER_MACHINE, world_size // 2, world_size - 1}
    return tuple(sorted(rank for rank in chosen if rank < world_size))


def simulate(
    plan: Plan, world_size: int, ranks: Sequence[int], audience: Audience
) -> Manifest:
    """Simulate these ranks of a job, and find which of their calls are certain.

    Args:
        plan: What to run; its budget is for all ranks together.
        world_size: World size of the job.
        ranks: Those to play, ascending.
        audience: Hears them all.

    Returns:
        How it ended; also written into the record folder.
    """
    begun = time.monotonic()
    end = begun + plan.budget_s
    again = min(len(ranks), 2)
    manifest = _pass(plan, world_size, ranks, "common", (end, again), audience)
    values = plan.folder / VALUES_FOLDER
    try:
        if len(ranks) > 1 and manifest.stopped != Stop.INTERRUPTED:
            run = assemble(plan.folder, manifest, stacks=False)
            suspects = _suspects(run)
            chosen = sorted({*suspects, *run.seen[:1], *run.seen[-1:]})
            again_folder = make_private_folder(plan.folder / "again")
            once_more = replace(plan, folder=again_folder)
            if values.exists():
                values.rename(once_more.folder / VALUES_FOLDER)
            second = _pass(
                once_more, world_size, chosen, "varied", (end, 0), _Silent(audience)
            )
            if not all(each.begun for each in second.simulated):
                manifest.remarks.append(
                    "there was no time to look whether calls depend on received values"
                )
            manifest.sure = _sure(run, once_more.folder, second, suspects)
            if second.stopped == Stop.INTERRUPTED:
                manifest.stopped = second.stopped
    except JournalUnreadable:
        manifest.sure = Sure(calls=0, why=_UNCONFIRMED)
    finally:
        shutil.rmtree(plan.folder / "again", ignore_errors=True)
        shutil.rmtree(values, ignore_errors=True)
    manifest.seconds = round(time.monotonic() - begun, 2)
    seal(plan.folder, manifest)
    return manifest


def _pass(
    plan: Plan,
    world_size: int,
    ranks: Sequence[int],
    values: str,
    time_left: tuple[float, int],
    audience: Audience,
) -> Manifest:
    """Simulate each rank once.

    Args:
        plan: As for one rank.
        world_size: World size of the job.
        ranks: Those to play, at least one.
        values: Which stand-ins; see `SIMULATION_VARIABLE`.
        time_left: When it must be over, and how many more ranks are to be played then.
        audience: Hears them.
    """
    end, more = time_left
    done: list[Simulated] = []
    stopped = ""
    alive: list[int] = []
    manifest: Manifest | None = None
    for number, rank in enumerate(ranks):
        left = end - time.monotonic()
        reserved = more if len(done) > 1 else 0
        if manifest is not None and left < _LEAST_S * (1 + reserved):
            stopped = Stop.BUDGET
            break
        # No rank may use up the time of the others.
        share = max(_LEAST_S, left / (len(ranks) - number + more))
        alone = replace(
            plan,
            ranks=1,
            alone=True,
            mark=f"[rank{rank}]:",
            budget_s=share,
            environment=plan.environment | _environment(rank, world_size, values),
        )
        manifest = supervise(alone, audience)
        alive += manifest.alive
        done.append(
            Simulated(rank=rank, stopped=manifest.stopped, exit_code=manifest.exit_code)
        )
        shutil.rmtree(
            plan.folder / BOARDS_FOLDER, ignore_errors=True
        )  # nobody to compare
        stopped = manifest.stopped or stopped
        if stopped == Stop.INTERRUPTED:
            break
    assert manifest is not None
    done += [Simulated(rank=rank, begun=False) for rank in ranks[len(done) :]]
    manifest.simulated, manifest.stopped, manifest.alive = done, stopped, alive
    manifest.ranks, manifest.closed = world_size, False
    manifest.exit_code = None
    if not stopped:
        codes = [each.exit_code for each in done if each.exit_code]
        manifest.exit_code = codes[0] if codes else 0
    return manifest


def _environment(rank: int, world_size: int, values: str) -> dict[str, str]:
    """What torchrun would tell this rank."""
    local_size = min(RANKS_PER_MACHINE, world_size)
    machine, local_rank = divmod(rank, local_size)
    return {
        SIMULATION_VARIABLE: values,
        "RANK": str(rank),
        "WORLD_SIZE": str(world_size),
        "LOCAL_RANK": str(local_rank),
        "LOCAL_WORLD_SIZE": str(local_size),
        "GROUP_RANK": str(machine),
        "GROUP_WORLD_SIZE": str(-(-world_size // local_size)),
        "ROLE_RANK": str(rank),
        "ROLE_WORLD_SIZE": str(world_size),
        "ROLE_NAME": "default",
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": "29500",
        "TORCHELASTIC_RUN_ID": "simulation",
        "TORCHELASTIC_RESTART_COUNT": "0",
        "TORCHELASTIC_MAX_RESTARTS": "0",
        "OMP_NUM_THREADS": "1",
    }


def _suspects(run: Run) -> list[int]:
    """Ranks of the divergences found, some of each side."""
    found: list[int] = []
    for divergence in divergences(run):
        culprits = sorted(divergence.culprits)
        others = sorted({*divergence.calls, *divergence.victims} - set(culprits))
        found += [*culprits[:1], *others[: 1 if culprits else 2]]
    return sorted(set(found[:_MOST_CONFIRMED]))


def _sure(
    run: Run, folder: Path, manifest: Manifest, suspects: Sequence[int]
) -> Sure | None:
    """How many calls of each rank stay with other stand-ins; None: all."""
    again = assemble(folder, manifest, stacks=False)
    found: list[Sure] = []
    for rank in sorted({*again.seen, *suspects}):
        first, second = _calls(run, rank), _calls(again, rank)
        same = sum(takewhile(bool, map(eq, first, second)))
        differ = same < min(len(first), len(second))
        shorter = same < len(first) and not _is_cut(again, rank)
        longer = same < len(second) and not _is_cut(run, rank)
        if differ or shorter or longer:
            found.append(Sure(calls=same, why=_BY_VALUES))
        elif same < len(first) and rank in suspects:
            found.append(Sure(calls=same, why=_UNCONFIRMED))
    return min(found, key=lambda sure: sure.calls, default=None)


def _is_cut(run: Run, rank: int) -> bool:
    """Whether a rank was ended, by us or by an exception, before it was done."""
    return rank in run.partial or not any(
        event.orderly for event in run.of(Ended, rank)
    )


def _calls(run: Run, rank: int) -> list[tuple[str, int, int]]:
    """Group, signature and peer of each call of a rank."""
    rows = run.rows_of(rank)
    part = run.calls[rows.start : rows.stop]
    names = [run.groups[number].name for number in part["group"].tolist()]
    columns = (part[column].tolist() for column in ("signature", "peer"))
    return list(zip(names, *columns, strict=True))


class _Silent:
    """An audience that passes on progress, but no output."""

    def __init__(self, audience: Audience) -> None:
        self._audience, self.surface = audience, audience.surface

    def output(self, stream: str, text: bytes) -> None:
        pass

    def unfinished(self, lines: list[bytes]) -> None:
        pass

    def progress(self, progress: JobProgress) -> None:
        self._audience.progress(progress)
