"""Jobs of many ranks as far as a flight recorder sees them, and the dumps they leave.

A rank is a list of steps. It gives calls to its device without waiting, unless a step
says so; the device ends a collective when all members have made the same call, and
those before it on the group are over. What stands open when nobody moves any more, or
when the job is looked at, is in the dumps as torch's recorder would have it.
"""

from __future__ import annotations

import json
import pickle
import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

START_NS = 1_760_000_000_000_000_000


@dataclass(frozen=True, slots=True)
class Step:
    """What a rank does next.

    Attributes:
        op: Name in the recorder, without the backend; "send" and "recv"; "wait": for
            all calls so far; "stop": nothing more, alive; "die": nothing more, gone;
            "idle": time passes.
        group: Name of the group.
        sizes: Shapes in and out.
        dtype: Of all tensors, as the recorder calls it.
        line: Of the user's, in train.py; with the function's name.
        peer: Rank in the group.
        batch: Of messages given together: the same number; 0: alone.
        seconds: Of "idle".
    """

    op: str
    group: str = "0"
    sizes: tuple[tuple[tuple[int, ...], ...], tuple[tuple[int, ...], ...]] = ((), ())
    dtype: str = "Float"
    line: tuple[str, int] = ("train_step", 71)
    peer: int = -1
    batch: int = 0
    seconds: float = 0.0


@dataclass(slots=True)
class Job:
    """Ranks, their groups and what they do.

    Attributes:
        world: Number of ranks.
        groups: Members by name; "0" has all.
        steps: By rank.
        lists: By rank and name, another list of members that it believes in.
        in_order: A device begins a call when those that it was given before are over,
            on whatever group.
    """

    world: int
    groups: dict[str, tuple[int, ...]]
    steps: dict[int, list[Step]]
    lists: dict[tuple[int, str], tuple[int, ...]] = field(default_factory=dict)
    in_order: bool = False


@dataclass(frozen=True, slots=True)
class Style:
    """How the dumps are written.

    Attributes:
        version: Of the format.
        backend: Before the names of calls.
        ring: Entries that are kept.
        timing: Starts are known.
        frames: With stacks.
        as_json: As text, which has no stacks.
        prefix: Of the files' names; {host} is a host's.
        active_only: Complete calls are left out.
    """

    version: str = "2.10"
    backend: str = "nccl"
    ring: int = 2000
    timing: bool = False
    frames: bool = True
    as_json: bool = False
    prefix: str = "comm_lib_trace_rank_"
    active_only: bool = False


def all_reduce(numel: int, **more: Any) -> Step:
    """A call on one tensor."""
    return Step("all_reduce", sizes=(((numel,),), ((numel,),)), **more)


@dataclass(slots=True)
class _Call:
    rank: int
    step: Step
    ordinal: int
    message: int
    op_id: int
    created: int
    ended: int = 0


class Simulation:
    """Runs a job until nobody moves, or for some rounds.

    Attributes:
        calls: By rank, in order.
        dead: Ranks that leave no dump.
    """

    def __init__(self, job: Job, seed: int = 0, rounds: int = 0) -> None:
        self._job, self._random = job, random.Random(seed)
        self.calls: dict[int, list[_Call]] = {rank: [] for rank in range(job.world)}
        self.dead: set[int] = set()
        self._at = dict.fromkeys(range(job.world), 0)
        self._clock = {
            rank: START_NS + self._random.randrange(2_000_000)
            for rank in range(job.world)
        }
        self._counts: dict[tuple[int, str, str], int] = {}
        self._open: dict[str, list[_Call]] = {}
        self._over: dict[tuple[str, int], int] = {}
        self._met: dict[tuple[str, int], dict[int, _Call]] = {}
        left = rounds or 1 << 30
        while left and self._round():
            left -= 1

    def _round(self) -> bool:
        moved = False
        for rank in self._random.sample(range(self._job.world), self._job.world):
            for _ in range(self._random.randrange(1, 4)):
                moved |= self._step(rank)
        return moved

    def _step(self, rank: int) -> bool:
        steps = self._job.steps[rank]
        if self._at[rank] >= len(steps):
            return False
        step = steps[self._at[rank]]
        if step.op == "wait":
            if any(not call.ended for call in self.calls[rank]):
                return False
            ends = [call.ended for call in self.calls[rank]]
            self._clock[rank] = max([self._clock[rank], *ends])
        elif step.op in {"stop", "die"}:
            if step.op == "die":
                self.dead.add(rank)
            return False
        elif step.op == "idle":
            self._clock[rank] += int(step.seconds * 1e9)
        else:
            self._call(rank, step)
        self._at[rank] += 1
        return True

    def _count(self, rank: int, group: str, what: str) -> int:
        key = rank, group, what
        self._counts[key] = self._counts.get(key, 0) + 1
        return self._counts[key]

    def _call(self, rank: int, step: Step) -> None:
        self._clock[rank] += self._random.randrange(500_000, 4_000_000)
        message = step.op in {"send", "recv"}
        before = self.calls[rank][-1] if self.calls[rank] else None
        same = step.batch and before is not None and before.step.batch == step.batch
        if message:
            number = (
                before.message
                if same and before is not None
                else self._count(rank, step.group, "p2p")
            )
            ordinal = self._counts.get((rank, step.group, "collective"), 0)
        else:
            number = self._counts.get((rank, step.group, "p2p"), 0)
            ordinal = self._count(rank, step.group, "collective")
        op_id = self._count(rank, step.group, "op")
        call = _Call(rank, step, ordinal, number, op_id, self._clock[rank])
        self.calls[rank].append(call)
        if message:
            moved = self._message(call)
        else:
            self._met.setdefault((step.group, ordinal), {})[rank] = call
            moved = self._advance(step.group)
        while moved and self._job.in_order:  # what was behind may begin
            moved = any(self._advance(group) for group in self._job.groups)
            moved |= any(
                self._message(one)
                for calls in self.calls.values()
                for one in calls
                if one.step.op in {"send", "recv"} and not one.ended
            )

    def _message(self, call: _Call) -> bool:
        ranks = self._job.groups[call.step.group]
        peer = ranks[call.step.peer]
        wanted = "recv" if call.step.op == "send" else "send"
        for other in self.calls[peer]:
            if (
                not other.ended
                and other.step.op == wanted
                and other.step.group == call.step.group
                and ranks[other.step.peer] == call.rank
            ):
                if other.step.sizes != call.step.sizes:
                    return False
                if not (self.begun(call) and self.begun(other)):
                    return False
                call.ended = other.ended = max(call.created, other.created) + 10**6
                return True
        return False

    def begun(self, call: _Call) -> bool:
        """Whether a call's device is at it."""
        if self._job.in_order:
            for other in self.calls[call.rank]:
                if other is call:
                    break
                if not other.ended:
                    return False
        return True

    def _advance(self, group: str) -> bool:
        members = self._job.groups[group]
        moved = False
        while True:
            ordinal = self._over.get((group, 0), 0) + 1
            met = self._met.get((group, ordinal), {})
            kinds = {
                (call.step.op, call.step.dtype, _matched(call.step))
                for call in met.values()
            }
            if len(met) < len(members) or len(kinds) > 1:
                return moved
            if any(self._job.lists.get((rank, group)) for rank in members):
                return moved
            if not all(map(self.begun, met.values())):
                return moved
            end = max(call.created for call in met.values())
            for call in met.values():
                call.ended = end + self._random.randrange(1_000_000, 5_000_000)
            self._over[group, 0] = ordinal
            moved = True


def _matched(step: Step) -> object:
    if step.op in {"gather", "scatter", "all_to_all"}:
        return None
    return step.sizes


def dumps(
    job: Job, simulation: Simulation, style: Style, *, at_once: bool = False
) -> dict[int, dict[str, Any]]:
    """What the recorders of the ranks write.

    Args:
        job: The job.
        simulation: How far it came.
        style: How.
        at_once: Some calls that are complete are not known to be so yet.

    Returns:
        The data of each rank that is not dead.
    """
    rng = random.Random(job.world)
    frames: dict[tuple[str, int], list[dict[str, Any]]] = {}
    found = {}
    for rank, calls in simulation.calls.items():
        if rank in simulation.dead:
            continue
        entries: list[dict[str, Any]] = []
        own = _own_groups(job, rank)
        for position, call in enumerate(calls):
            _append(entries, call, rank, own, style, frames)
            if style.timing and not call.ended and simulation.begun(call):
                entries[-1]["state"] = "started"
            if at_once and call.ended and position > len(calls) - 4:
                late = rng.random() < 0.4
                if late and style.backend != "gloo":
                    entries[-1] |= {
                        "state": "started" if style.timing else "scheduled",
                        "time_discovered_completed_ns": None,
                        "retired": False,
                    }
            after = calls[position + 1 :][:1]
            if call.step.batch and (
                not after or after[0].step.batch != call.step.batch
            ):
                _close(entries, call, calls, style)
        for number, entry in enumerate(entries):
            entry["record_id"] = number
        kept = entries[-style.ring :]
        if style.active_only:
            kept = [entry for entry in kept if not entry["retired"]]
        found[rank] = _top(calls, own, kept, style)
    return found


def _own_groups(job: Job, rank: int) -> dict[str, tuple[int, ...]]:
    return {
        name: job.lists.get((rank, name), ranks)
        for name, ranks in job.groups.items()
        if rank in ranks
    }


def _append(
    entries: list[dict[str, Any]],
    call: _Call,
    rank: int,
    own: Mapping[str, tuple[int, ...]],
    style: Style,
    frames: dict[tuple[str, int], list[dict[str, Any]]],
) -> None:
    step = call.step
    message = step.op in {"send", "recv"}
    name = f"{style.backend}:{step.op}"
    if message:
        me = own[step.group].index(rank)
        arrow = "->" if step.op == "send" else "<-"
        name = f"{style.backend}:{step.op} {me}{arrow}{step.peer}"
    ended = call.ended and not (step.batch and style.backend != "gloo")
    gloo = style.backend == "gloo"
    entry: dict[str, Any] = {}
    if style.frames and not style.as_json:
        entry["frames"] = frames.setdefault(step.line, _stack(step.line))
    entry |= {
        "record_id": 0,
        "pg_id": list(own).index(step.group),
        "process_group": (step.group, _description(step.group)),
    }
    if _newer(style.version, 9):
        entry |= {"thread_name": "python3", "thread_id": str(139_000_000 + rank)}
    entry |= {
        "collective_seq_id": call.ordinal,
        "p2p_seq_id": call.message,
        "op_id": call.op_id,
        "profiling_name": name,
        "time_created_ns": call.created,
    }
    if style.timing and ended:
        entry["duration_ms"] = (call.ended - call.created) / 1e6
    entry |= {
        "input_sizes": [list(shape) for shape in step.sizes[0]],
        "input_dtypes": [step.dtype] * len(step.sizes[0]),
        "output_sizes": [list(shape) for shape in step.sizes[1]],
        "output_dtypes": [step.dtype] * len(step.sizes[1]),
        "state": "completed" if ended and not gloo else "scheduled",
        "time_discovered_started_ns": (
            call.created + 1000 if style.timing and ended else None
        ),
        "time_discovered_completed_ns": call.ended if ended and not gloo else None,
        "retired": bool(ended),
    }
    if _newer(style.version, 4):
        entry["timeout_ms"] = 600_000
    entry["is_p2p"] = message
    entries.append(entry)


def _close(
    entries: list[dict[str, Any]], call: _Call, calls: Sequence[_Call], style: Style
) -> None:
    """The entry behind messages that were given to the device together."""
    ends = [one.ended for one in calls if one.step.batch == call.step.batch]
    over = all(ends)
    closing = dict(entries[-1])
    closing |= {
        "profiling_name": f"{style.backend}:coalesced",
        "input_sizes": [],
        "output_sizes": [],
        "input_dtypes": [],
        "output_dtypes": [],
        "state": "completed" if over else "scheduled",
        "time_discovered_completed_ns": max(ends) if over else None,
        "retired": over,
    }
    entries.append(closing)


def _newer(version: str, minor: int) -> bool:
    major, _, rest = version.partition(".")
    return (int(major), int(rest)) >= (2, minor)


def _description(group: str) -> str:
    return "default_pg" if group == "0" else f"mesh_{group}"


def _stack(line: tuple[str, int]) -> list[dict[str, Any]]:
    torch = "/opt/lib/python3.11/site-packages/torch/distributed/distributed_c10d.py"
    return [
        {"name": "all_reduce", "filename": torch, "line": 2810},
        {"name": line[0], "filename": "/job/train.py", "line": line[1]},
        {"name": "main", "filename": "/job/train.py", "line": 201},
    ]


def _top(
    calls: Sequence[_Call],
    own: Mapping[str, tuple[int, ...]],
    entries: list[dict[str, Any]],
    style: Style,
) -> dict[str, Any]:
    used = dict.fromkeys(["0", *(call.step.group for call in calls)])
    config = {
        name: {"name": name, "desc": _description(name), "ranks": str([*own[name]])}
        for name in used
        if name in own
    }
    if style.backend == "gloo":
        config = {"": {"name": "", "desc": "", "ranks": "[]"}}
    top: dict[str, Any] = {"version": style.version, "pg_config": config}
    if _newer(style.version, 9):
        top["comm_lib_version"] = "" if style.backend == "gloo" else "2.27.3"
    if _newer(style.version, 4):
        top["pg_status"] = {}
        for name in used:
            mine = [call for call in calls if call.step.group == name]
            if mine:
                done = [call.ordinal for call in mine if call.ended]
                top["pg_status"][str(list(own).index(name))] = {
                    "last_enqueued_collective": mine[-1].ordinal,
                    "last_started_collective": -1,
                    "last_completed_collective": max(done, default=-1),
                }
    top["entries"] = entries
    return top


def write(folder: Path, found: Mapping[int, Mapping[str, Any]], style: Style) -> None:
    """Write dumps as torch does, one file for each rank.

    Args:
        folder: Where; it is made.
        found: By rank.
        style: How.
    """
    folder.mkdir(parents=True, exist_ok=True)
    for rank, top in found.items():
        host = f"node{rank // 4:02d}"
        path = folder / f"{style.prefix.format(host=host)}{rank}"
        if style.as_json:
            path.write_text(json.dumps(_as_json(top)))
        else:
            path.write_bytes(pickle.dumps(top, protocol=2))


def _as_json(top: Mapping[str, Any]) -> dict[str, Any]:
    """The same as torch writes it as JSON: keys in order, 0 for None."""
    plain = dict(top)
    plain["entries"] = [
        {
            key: 0 if value is None else value
            for key, value in sorted(entry.items())
            if key != "frames"
        }
        for entry in top["entries"]
    ]
    if not plain["entries"]:
        del plain["entries"]
    plain["pg_status"] = {
        key: {name: str(number) for name, number in value.items()}
        for key, value in top.get("pg_status", {}).items()
    }
    return plain


# --- jobs ---

_BUCKETS = (1_050_624, 7_087_872, 2_362_368, 7_087_872)


def ddp(world: int, steps: int, *, logs: int = 2) -> Job:
    """Data parallel: buckets in each step, and a loss every so often."""
    mine: list[Step] = []
    for number in range(steps):
        mine += [all_reduce(numel) for numel in _BUCKETS]
        if number % logs == logs - 1:
            mine += [all_reduce(1, line=("log_loss", 96)), Step("wait")]
    everyone = tuple(range(world))
    return Job(world, {"0": everyone}, {rank: list(mine) for rank in everyone})


def fsdp(world: int, steps: int) -> Job:
    """Fully sharded: weights are gathered, gradients scattered."""
    mine: list[Step] = []
    for _ in range(steps):
        for part in (400_000, 408_192, 416_384):
            sizes = (((part,),), ((part * world,),))
            mine.append(
                Step(
                    "_all_gather_base",
                    sizes=sizes,
                    dtype="BFloat16",
                    line=("forward", 58),
                )
            )
        for part in (416_384, 408_192, 400_000):
            sizes = (((part * world,),), ((part,),))
            mine.append(Step("_reduce_scatter_base", sizes=sizes))
        mine += [all_reduce(1, line=("clip", 88)), Step("wait")]
    everyone = tuple(range(world))
    return Job(world, {"0": everyone}, {rank: list(mine) for rank in everyone})


def mesh(world: int, steps: int) -> Job:
    """Tensor parallel in pairs, data parallel across them."""
    groups = {"0": tuple(range(world))}
    for pair in range(world // 2):
        groups[str(1 + pair)] = (2 * pair, 2 * pair + 1)
    for half in range(2):
        groups[str(1 + world // 2 + half)] = tuple(range(half, world, 2))
    by_rank: dict[int, list[Step]] = {}
    for rank in range(world):
        tp, dp = str(1 + rank // 2), str(1 + world // 2 + rank % 2)
        mine: list[Step] = [all_reduce(1, line=("setup", 20))]
        for _ in range(steps):
            mine += [
                all_reduce(4096 + layer, group=tp, line=("layer", 40 + layer))
                for layer in range(4)
            ]
            mine += [all_reduce(numel, group=dp) for numel in _BUCKETS[:2]]
            mine += [Step("wait")]
        by_rank[rank] = mine
    return Job(world, groups, by_rank)


def pipeline(world: int, steps: int, *, batched: bool = False) -> Job:
    """Stages that pass activations on and gradients back, and a loss for all."""
    by_rank: dict[int, list[Step]] = {}
    sizes = (((8, 512),), ((8, 512),))
    for rank in range(world):
        mine: list[Step] = []
        for number in range(steps):
            for micro in range(3):
                batch = 1 + number * 100 + micro * 10 if batched else 0
                if rank:
                    mine.append(_message("recv", rank - 1, sizes, 31, batch))
                    mine.append(Step("wait"))
                if rank < world - 1:
                    mine.append(
                        _message("send", rank + 1, sizes, 35, batch and batch + 1)
                    )
            for micro in range(3):
                batch = 51 + number * 100 + micro * 10 if batched else 0
                if rank < world - 1:
                    mine.append(_message("recv", rank + 1, sizes, 51, batch))
                    mine.append(Step("wait"))
                if rank:
                    mine.append(
                        _message("send", rank - 1, sizes, 55, batch and batch + 1)
                    )
            mine += [all_reduce(1, line=("log_loss", 96)), Step("wait")]
        by_rank[rank] = mine
    return Job(world, {"0": tuple(range(world))}, by_rank)


def ring(world: int, steps: int) -> Job:
    """Each sends to its right and receives from its left, both given together."""
    by_rank: dict[int, list[Step]] = {}
    sizes = (((64, 128),), ((64, 128),))
    for rank in range(world):
        mine: list[Step] = []
        for number in range(steps):
            mine.append(_message("send", (rank + 1) % world, sizes, 61, number + 1))
            mine.append(_message("recv", (rank - 1) % world, sizes, 61, number + 1))
            if number % 4 == 3:
                mine += [all_reduce(1, line=("log_loss", 96)), Step("wait")]
        by_rank[rank] = mine
    return Job(world, {"0": tuple(range(world))}, by_rank)


def _message(op: str, peer: int, sizes: Any, line: int, batch: int) -> Step:
    return Step(op, sizes=sizes, peer=peer, line=("exchange", line), batch=batch)


JOBS: dict[str, Callable[[int, int], Job]] = {
    "ddp": ddp,
    "fsdp": fsdp,
    "mesh": mesh,
    "pipeline": pipeline,
    "ring": ring,
}


# --- faults ---


def collectives(job: Job, rank: int, group: str | None = None) -> list[int]:
    """Positions of a rank's collectives, of one group or all."""
    return [
        n
        for n, step in enumerate(job.steps[rank])
        if step.sizes != ((), ())
        and step.op not in {"send", "recv"}
        and (group is None or step.group == group)
    ]


def changed(job: Job, rank: int, at: int, **values: Any) -> None:
    """Change one step of a rank."""
    job.steps[rank][at] = replace(job.steps[rank][at], **values)
