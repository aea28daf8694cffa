"""Stack dumps as tools write them, made for tests."""

import json
from pathlib import Path

_WAITING = (
    ("all_reduce", "torch/distributed/distributed_c10d.py", 3252),
    ("wrapper", "torch/distributed/c10d_logger.py", 83),
    ("train_step", "train.py", 31),
    ("main", "train.py", 58),
    ("<module>", "train.py", 70),
)
_STUCK = (
    ("read_shard", "data/shards.py", 12),
    ("__getitem__", "data/shards.py", 40),
    ("train_step", "train.py", 27),
    ("main", "train.py", 58),
    ("<module>", "train.py", 70),
)
_HELPER = (
    ("wait", "threading.py", 324),
    ("run", "tqdm/_monitor.py", 60),
    ("_bootstrap_inner", "threading.py", 1045),
    ("_bootstrap", "threading.py", 1002),
)


def _whole(file: str) -> str:
    package = file.startswith(("torch/", "tqdm/"))
    if package:
        return f"/opt/env/lib/python3.11/site-packages/{file}"
    if file == "threading.py":
        return f"/usr/lib/python3.11/{file}"
    return f"/home/me/job/{file}"


def py_spy_text(rank: int, *, stuck: bool = False, threads: int = 3) -> str:
    """What `py-spy dump` prints of a rank."""
    pid = 4_000 + rank
    lines = [
        f"Process {pid}: python -u train.py --epochs 3",
        "Python v3.11.7 (/usr/bin/python3.11)",
        "",
        f'Thread {pid} (idle): "MainThread"',
    ]
    for name, file, line in _STUCK if stuck else _WAITING:
        lines.append(f"    {name} ({file}:{line})")
    for number in range(1, threads):
        lines.append(f'Thread {pid * 10 + number} (idle): "Thread-{number}"')
        lines += [f"    {name} ({file}:{line})" for name, file, line in _HELPER]
    return "\n".join(lines) + "\n"


def py_spy_json(rank: int, *, stuck: bool = False) -> str:
    """What `py-spy dump --json --locals` prints of a rank."""
    pid = 4_000 + rank
    frames = [
        {
            "name": name,
            "filename": _whole(file),
            "short_filename": file,
            "module": None,
            "line": line,
            "locals": [{"name": "step", "addr": 1, "arg": False, "repr": "17"}]
            if name == "train_step"
            else [],
            "is_entry": False,
        }
        for name, file, line in (_STUCK if stuck else _WAITING)
    ]
    return json.dumps(
        [
            {
                "pid": pid,
                "thread_id": 140_000 + rank,
                "thread_name": "MainThread",
                "os_thread_id": pid,
                "active": False,
                "owns_gil": False,
                "frames": frames,
                "process_info": None,
            }
        ],
        indent=2,
    )


def faulthandler_text(*, stuck: bool = False) -> str:
    """What `faulthandler.dump_traceback(all_threads=True)` writes."""
    lines = ["Thread 0x00007f22ba0006c0 (most recent call first):"]
    for name, file, line in _HELPER:
        lines.append(f'  File "{_whole(file)}", line {line} in {name}')
    lines += ["", "Current thread 0x00007f23c4b8f740 (most recent call first):"]
    for name, file, line in _STUCK if stuck else _WAITING:
        lines.append(f'  File "{_whole(file)}", line {line} in {name}')
    return "\n".join(lines) + "\n"


def write_job(
    folder: Path, ranks: int, stuck: int, name: str = "rank{rank}.txt"
) -> None:
    """A folder with a dump of each rank, of which one is stuck in user code."""
    folder.mkdir(parents=True, exist_ok=True)
    for rank in range(ranks):
        text = py_spy_text(rank, stuck=rank == stuck)
        (folder / name.format(rank=rank, host=rank // 8, local=rank % 8)).write_text(
            text
        )
