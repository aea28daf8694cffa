"""Timelines as Horovod 0.28.1 writes them, and those that it wrote."""

import json
from collections.abc import Sequence
from pathlib import Path

RECORDED = Path(__file__).parent.parent / "unit/postmortem/horovod/recorded"
"""What small programs left: timelines (.json) and output (.out), made shorter."""

START = 1_795_676_657_487_912


def timeline(*events: str, start: int = START) -> str:
    """A timeline, with the events of small programs in short.

    Args:
        events: `B tensor ms`, `X tensor ms rank`, `E tensor ms`, `O tensor ms` (the
            whole operation) or `i ms` (a mark of a cycle).
        start: When Horovod started, in microseconds since 1970.
    """
    known: dict[str, int] = {}
    lines = [_meta(0, "process_name", {"start_time_since_epoch_in_micros": start})]
    for event in events:
        kind, *words = event.split()
        if kind == "i":
            mark = {"ph": "i", "name": "CYCLE_START", "ts": _us(words[0]), "s": "g"}
            lines.append(json.dumps(mark))
            continue
        tensor, at = words[0], _us(words[1])
        if tensor not in known:
            known[tensor] = len(known) + 1
            lines.append(_meta(known[tensor], "process_name", {"name": tensor}))
        lines += _events(kind, tensor.partition(".")[0], at, known[tensor], words[2:])
    return "[\n" + ",".join(lines) + "]"


def whole(tensor: str, ms: int, ranks: Sequence[int]) -> tuple[str, ...]:
    """The events of an operation to which these ranks came.

    Args:
        tensor: Its name.
        ms: When the first came.
        ranks: In the order in which they came.
    """
    came = (f"X {tensor} {ms} {rank}" for rank in ranks)
    return (f"B {tensor} {ms}", *came, f"E {tensor} {ms}", f"O {tensor} {ms}")


def _events(
    kind: str, family: str, at: int, pid: int, words: Sequence[str]
) -> list[str]:
    end = json.dumps({"ph": "E", "ts": at, "pid": pid})
    begin = {"ph": "B", "name": family.upper(), "ts": at, "pid": pid}
    match kind:
        case "B":
            begin["name"] = f"NEGOTIATE_{family.upper()}"
            return [json.dumps(begin)]
        case "X":
            tick = {"ph": "X", "name": words[0], "ts": at, "pid": pid, "dur": 0}
            return [json.dumps(tick)]
        case "E":
            return [end]
    return [json.dumps(begin), end]


def _us(ms: str) -> int:
    return int(float(ms) * 1000)


def _meta(pid: int, name: str, args: dict[str, object]) -> str:
    return json.dumps({"name": name, "ph": "M", "pid": pid, "args": args})
