"""Whether training under `distdoctor check` is the same, bit by bit, as without.

    python benchmarks/bit_identity.py [JOB ...] [--near-misses] [--started]

Each job runs on two ranks: twice bare, and once under `check` with all its probes. Most
are started as forks of a process that has torch; with --started, by torchrun. What a
job leaves on each rank is compared bit by bit: weights, gradients, buffers, the
optimizer's state, the states of the random generators of torch, NumPy and Python, and
the losses (`bit_jobs/leaving.py`). Jobs that do not write that themselves are run by
`bit_jobs/wrapped.py`, which notes weights, gradients, state and random states at each
optimizer step, and what is printed. Jobs that are not the same twice bare tell nothing,
and are said to be so.

Two jobs are controls that the comparison sees something: in one, a run under `check`
gets another seed; the other is seeded by the clock. The exit status is 1 if a job
differs under `check`, a control does not, or a verdict is not "well".
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import os
import re
import shutil
import signal
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import forked
import torch
from bit_jobs.leaving import FOLDER_VARIABLE
from figures import print_table
from timed_command import run_for

ROOT = Path(__file__).resolve().parent.parent
JOBS = ROOT / "benchmarks" / "bit_jobs"
LIMIT_S = 120.0
RANKS = 2

FORKED = (sys.executable, str(ROOT / "benchmarks" / "forked.py"), str(RANKS))
"""Imports torch once for all ranks, which is quicker than torchrun."""

TORCHRUN = (
    *(sys.executable, "-m", "torch.distributed.run", "--standalone"),
    *("--nproc-per-node", str(RANKS)),
)
HOROVODRUN = (
    *(str(Path(sys.executable).with_name("horovodrun")), "--gloo", "-np", str(RANKS)),
    *("--network-interface", "lo", sys.executable),
)
MPIRUN = (
    *("mpirun", "--allow-run-as-root", "--oversubscribe", "--bind-to", "none"),
    *("-np", str(RANKS), sys.executable),
)

OWN = {
    "data_parallel": "plain views unused accumulation join zero fp16_hook powersgd "
    "post_local resumed",
    "compiled": "model_inside ddp_inside whole_step collective_inside",
    "sharded": "fsdp1 fsdp2 fsdp2_recomputed tensor_parallel pipelining "
    "pipelining_gpipe",
    "by_hand": "tensor_parallel pipeline experts local_sgd ring buckets reduce_scatter",
    "single_features": "autocast scaler recomputation workers averages lbfgs sparse "
    "per_sample",
}
"""Programs of `bit_jobs`, and the ways they know."""

REFERENCE = (
    "ddp_training --epochs 1 --workers 1",
    "amp_accumulation --epochs 1",
    "amp_accumulation --epochs 1 --precision bf16 --workers 1",
    "checkpointed --epochs 1 --reentrant",
    "device_mesh --epochs 1",
    "device_mesh --epochs 1 --tp 1 --fsdp",
    "fsdp_training --epochs 1",
    "pipeline --epochs 1",
    "token_accumulation --epochs 1",
    "trust_ratio --epochs 1 --optimizer lamb",
)
"""Reference jobs that run without a GPU, and what they are given."""


@dataclass(frozen=True, slots=True)
class Job:
    """What is run.

    Attributes:
        name: In the table.
        command: That starts its ranks.
        otherwise: Further arguments that it gets under check, which make it another.
        differs: It is a control, and must not be the same.
    """

    name: str
    command: tuple[str, ...]
    otherwise: tuple[str, ...] = ()
    differs: bool = False


@dataclass(frozen=True, slots=True)
class Left:
    """What a run left.

    Attributes:
        code: Its exit status; None if it was ended for its time.
        told: Digests by rank and name.
        verdict: Of `check`, with the codes of its findings; "" bare.
        output: What it printed last.
    """

    code: int | None
    told: dict[str, str]
    verdict: str
    output: str


def jobs(near_misses: bool, start: tuple[str, ...]) -> Iterator[Job]:
    """All of them, those that cannot run here left out; what starts most is given."""
    plain = str(JOBS / "data_parallel.py"), "plain"
    yield Job("data_parallel plain, by torchrun", (*TORCHRUN, *plain))
    for script, ways in OWN.items():
        for way in ways.split():
            words = (*start, str(JOBS / f"{script}.py"), way)
            yield Job(f"{script} {way}", words)
    spawned = (sys.executable, str(JOBS / "by_hand.py"), "spawned")
    yield Job("by_hand spawned", spawned)
    if shutil.which("mpirun"):
        yield Job("data_parallel plain, by mpirun", (*MPIRUN, *plain))
    if importlib.util.find_spec("horovod"):
        own = str(JOBS / "with_horovod.py")
        yield Job("with_horovod", (*HOROVODRUN, own))
        yield Job("with_horovod fp16", (*HOROVODRUN, own, "fp16"))
        script = str(ROOT / "reference_jobs" / "horovod_training.py")
        words = (*HOROVODRUN, str(JOBS / "wrapped.py"), script, "--epochs", "1")
        yield Job("reference horovod_training --epochs 1", words)
    for line in REFERENCE:
        name, *options = line.split()
        script = str(ROOT / "reference_jobs" / f"{name}.py")
        words = (*start, str(JOBS / "wrapped.py"), script, *options)
        yield Job(f"reference {line}", words)
    if near_misses:
        for path in sorted((ROOT / "fixtures" / "near_misses").glob("*.py")):
            text = path.read_text()
            special = re.search(r"^(LAUNCHER|OPTIONS|RESTARTS)\b", text, re.MULTILINE)
            if not special and re.search(rf"^RANKS = {RANKS}$", text, re.MULTILINE):
                words = (*start, str(JOBS / "wrapped.py"), str(path))
                yield Job(f"near miss {path.stem}", words)
    words = (*start, *plain)
    yield Job("control: another seed", words, otherwise=("1",), differs=True)
    words = (*start, str(JOBS / "single_features.py"), "by_the_clock")
    yield Job("control: seeded by the clock", words, differs=True)


def run(job: Job, checked: bool, kernels: Path) -> Left:
    """Run a job in a folder of its own, and read what it left.

    Args:
        job: Which.
        checked: Under `distdoctor check`.
        kernels: Folder of what torch.compile has compiled.
    """
    with tempfile.TemporaryDirectory(prefix="bits-") as name:
        folder = Path(name)
        left, report = folder / "left", folder / "report.json"
        left.mkdir()
        environment = os.environ | {
            FOLDER_VARIABLE: str(left),
            "XDG_CACHE_HOME": str(folder / "cache"),
            "TORCHINDUCTOR_CACHE_DIR": str(kernels),
            "TORCHINDUCTOR_FX_GRAPH_CACHE": "0",  # code is generated in each run, and
            "TORCHINDUCTOR_AUTOGRAD_CACHE": "0",  # compiled once where it is the same
            "PYTHONPATH": str(ROOT / "benchmarks"),
            "OMP_NUM_THREADS": "1",  # as torchrun sets it
            "CUDA_VISIBLE_DEVICES": "",  # else a job that asks for GPUs is given some
        }
        words = list(job.command)
        if checked:
            options = ["--full", "--format", "json", "--output", str(report)]
            check = [sys.executable, "-m", "distdoctor", "check", *options, "--"]
            words = [*check, *words, *job.otherwise]
        output = folder / "said.txt"
        if not checked and job.command[: len(FORKED)] == FORKED:
            code = _by_fork(words[1:], folder, environment, output)
        else:
            code = run_for(LIMIT_S, words, folder, environment, output)
        told: dict[str, str] = {}
        for path in sorted(left.glob("rank*.json")):
            for key, value in json.loads(path.read_text()).items():
                told[f"{path.stem} {key}"] = value
        words_said = output.read_text(errors="replace")
        return Left(code, told, _verdict(report), words_said[-3000:])


def _by_fork(
    words: Sequence[str], folder: Path, environment: dict[str, str], output: Path
) -> int | None:
    """The same of `forked.py`, by a fork of this process, which has torch."""
    pid = os.fork()
    if not pid:
        code = 1
        try:
            os.setsid()
            os.chdir(folder)
            os.environ.clear()
            os.environ.update(environment)
            torch.set_num_threads(1)
            with output.open("ab") as said:
                for stream in (1, 2):
                    os.dup2(said.fileno(), stream)
            sys.argv = list(words)
            code = forked.main()
        finally:
            os._exit(code)
    end = time.monotonic() + LIMIT_S
    while time.monotonic() < end:
        ended, status = os.waitpid(pid, os.WNOHANG)
        if ended:
            return os.waitstatus_to_exitcode(status)
        time.sleep(0.05)
    os.killpg(pid, signal.SIGKILL)
    os.waitpid(pid, 0)
    return None


def _verdict(report: Path) -> str:
    if not report.exists():
        return ""
    content = json.loads(report.read_text())
    codes = sorted({finding["code"] for finding in content["findings"]})
    return " ".join([content["verdict"], *codes])


def is_complete(left: Left) -> bool:
    """Whether all ranks wrote what they had; torch aborts some of them afterwards."""
    return len({name.split()[0] for name in left.told}) == RANKS


def differing(one: Left, other: Left) -> list[str]:
    """Names of what is not the same, or that only one of them has."""
    names = one.told.keys() | other.told.keys()
    return sorted(n for n in names if one.told.get(n) != other.told.get(n))


@dataclass(frozen=True, slots=True)
class Compared:
    """What came of a job.

    Attributes:
        row: Of the table.
        faults: What is wrong with it, if anything.
    """

    row: list[str]
    faults: list[str]


def compare(job: Job) -> Compared:
    """Run it three times, and compare."""
    begun = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="bits-kernels-") as folder:
        kernels = Path(folder)
        bare, checked, again = (run(job, way, kernels) for way in (False, True, False))
    took = f"{time.monotonic() - begun:.0f}"
    values = str(len(bare.told))
    faults = []
    for way, left in (("bare", bare), ("bare again", again), ("check", checked)):
        if not is_complete(left):
            faults.append(f"{way}: exit status {left.code}\n{left.output}")
    if checked.verdict != "well":
        faults.append(f"verdict {checked.verdict}\n{checked.output}")
    own, ours = differing(bare, again), differing(bare, checked)
    same_alone, same = ("no" if names else "yes" for names in (own, ours))
    if job.differs and not ours:
        faults.append("a control is the same")
    if not job.differs and own:
        faults.append(f"not the same twice bare: {own[:5]}")
    elif not job.differs and ours:
        faults.append(f"differs under check: {len(ours)} of {values}: {ours[:5]}")
    row = [job.name, values, same_alone, same, checked.verdict or "none", took]
    return Compared(row, faults)


def main() -> None:
    """Run the jobs that are asked for."""
    parser = argparse.ArgumentParser(description="Bit by bit, with and without probes.")
    parser.add_argument("jobs", nargs="*", help="parts of their names; default: all")
    parser.add_argument("--near-misses", action="store_true", help="and those fixtures")
    parser.add_argument("--started", action="store_true", help="by torchrun, not forks")
    parser.add_argument("--seconds", type=float, default=1e9, help="start no more then")
    given = parser.parse_args()
    begun = time.monotonic()
    found: list[Compared] = []
    skipped = 0
    for job in jobs(given.near_misses, TORCHRUN if given.started else FORKED):
        if given.jobs and not any(part in job.name for part in given.jobs):
            continue
        if time.monotonic() > begun + given.seconds:
            skipped += 1
            continue
        found.append(compare(job))
        print("  ".join(found[-1].row), *found[-1].faults, sep="\n", flush=True)
    print()
    heads = ["job", "values", "same twice bare", "same under check", "verdict", "s"]
    print_table(heads, [one.row for one in found])
    faulty = sum(bool(one.faults) for one in found)
    print(f"\n{len(found)} jobs, {faulty} with faults, {skipped} not started")
    sys.exit(_status(found))


def _status(found: Sequence[Compared]) -> int:
    return int(any(one.faults for one in found))


if __name__ == "__main__":
    main()
