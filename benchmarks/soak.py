"""Many short runs with faults injected at random: what goes wrong in distdoctor itself?

    python benchmarks/soak.py [--runs 1000] [--jobs 1] [--seed 0] [--keep DIR]

Each run is a patient, sick or well, under `distdoctor check`. In half of them a rank,
the job's launcher, its guard or distdoctor itself gets a signal at a random moment; in
some the disk of the record fills up, the reader of the output goes, or nobody may
trace. Counted are:

wrong     a finding that neither the patient nor the injected fault explains, a sick
          patient called well, or a well one that nobody touched called anything else
crashed   an exit status that is not documented, or a traceback of distdoctor's own
orphans   processes of the job that live 5 s after distdoctor ended
left      files in the folder for temporary files, or records of well runs, that stay

All must be 0. A killed distdoctor (SIGKILL) leaves its record, which is not counted.
A straggler that is missed while the machine is so busy that all ranks stray counts as
"too busy to tell" and not as wrong.
"""

from __future__ import annotations

import argparse
import ast
import json
import os
import random
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import uuid
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psutil
from figures import print_table

PATIENTS = Path(__file__).parent.parent / "fixtures" / "patients"
FORKED = Path(__file__).with_name("forked.py")

SLOW = {"DD204", "DD206", "DD207", "DD213"}  # they are watched for long, on purpose
NOT_FORKED = {"DD214", "DD612", "DD613", "DD614"}
"""How a process starts or ends is what they are about, and forks do it otherwise."""

DOCUMENTED = {
    *(0, 1, 2, 4, 128 + signal.SIGINT, 128 + signal.SIGTERM, 128 + signal.SIGPIPE),
    -signal.SIGKILL,
}
UNPREPARED = {-signal.SIGINT, -signal.SIGTERM}  # before it started anything
TIMED = {"DD209"}  # seen by when ranks arrive
BUSY_S = 12.0  # such a run takes 5 where nobody else works
FORKED_SHARE = 0.8  # of the runs
MISUSED = 2
DISK_MIB = 320  # room for the journals of three ranks, and for little beside them
RUN_S = 180.0  # more than the default budget
ORPHANS_S = 5.0
MARK = "DISTDOCTOR_SOAK"

JOBS_OWN = ("torchinductor", "ompi.", "patient-")
"""How names begin of what torch, MPI and the patients make, also without us."""

AFTER_A_KILL = {"DD202", "DD201", "DD206"}
"""What the end of a rank by a signal may rightly be called, by its moment."""


@dataclass(slots=True)
class Outcome:
    """What one run came to."""

    what: str
    faults: list[str] = field(default_factory=list)
    detail: str = ""


@dataclass(frozen=True, slots=True)
class Case:
    """What one run does."""

    patient: Path
    state: str
    forked: bool
    victim: str  # "", "rank", "launcher", "guard" or "distdoctor"
    signal: signal.Signals
    moment_s: float
    hardship: str  # "", "full disk", "closed pipe" or "no ptrace"

    @property
    def code(self) -> str:
        """The patient's disease."""
        return self.patient.stem[:5].upper()


def constant(patient: Path, name: str, otherwise: str = "None") -> Any:
    """A constant of a patient's."""
    match = re.search(rf"^{name}(?:: .+)? = (.+)$", patient.read_text(), re.MULTILINE)
    return ast.literal_eval(match[1] if match else otherwise)


def processes(mark: str) -> list[psutil.Process]:
    """The processes of one run."""
    found = []
    for process in psutil.process_iter():
        with suppress(psutil.Error, OSError):
            if process.environ().get(MARK) == mark:
                found.append(process)
    return found


def command_of(case: Case, ranks: str) -> list[str]:
    """The job: by torchrun, or as forks of one process, which is quicker."""
    if case.forked:
        launcher = [sys.executable, str(FORKED), ranks]
        return ["--", *launcher, str(case.patient), case.state]
    return [str(case.patient), "--", case.state]


def is_guard(process: psutil.Process) -> bool:
    """Whether it is the guard, and no program that distdoctor asks something."""
    return any("orphan_guard" in word for word in process.cmdline())


@contextmanager
def enduring(
    case: Case, folder: Path, environment: dict[str, str]
) -> Iterator[tuple[Callable[[], None], int]]:
    """Make a run hard.

    Yields:
        What to do at the moment, and where the job's output is to go.
    """
    if case.hardship == "no ptrace":
        tracer = folder / "bin" / "py-spy"
        tracer.parent.mkdir()
        refusal = (
            "Error: Permission Denied: Try running again with elevated permissions"
        )
        tracer.write_text(f"#!/bin/sh\necho '{refusal}' >&2\nexit 1\n")
        tracer.chmod(0o755)
        environment["PATH"] = f"{tracer.parent}:{environment['PATH']}"
    said = os.open(folder / "said.txt", os.O_WRONLY | os.O_CREAT)
    act, output = (lambda: None), said
    cache = folder / "cache"
    cache.mkdir()
    if case.hardship == "full disk":
        size = ["-o", f"size={DISK_MIB}m"]
        subprocess.run(["mount", "-t", "tmpfs", *size, "soak", cache], check=True)

        def act() -> None:
            with suppress(OSError), (cache / "full").open("wb") as full:
                while True:
                    full.write(bytes(1 << 20))

    elif case.hardship == "closed pipe":
        reader, output = os.pipe()

        def act() -> None:
            os.close(reader)

    try:
        yield act, output
    finally:
        for descriptor in {said, output}:
            os.close(descriptor)
        if case.hardship == "full disk":
            subprocess.run(["umount", "-l", cache], check=True)


def strike(case: Case, doctor: subprocess.Popen[bytes]) -> bool:
    """Send the signal to whom it is for, if they are there."""
    if case.victim == "distdoctor":
        doctor.send_signal(case.signal)
        return True
    with suppress(psutil.Error, OSError):
        guards = [one for one in psutil.Process(doctor.pid).children() if is_guard(one)]
        launchers = [each for one in guards for each in one.children()]
        ranks = [rank for each in launchers for rank in each.children()]
        by_name = {"guard": guards, "launcher": launchers, "rank": ranks}
        for process in by_name[case.victim]:
            process.send_signal(case.signal)
            return True
    return False


def run(case: Case, keep: Path | None) -> Outcome:
    """Make one run and look at what it left; at a fault, all of it is kept."""
    folder = Path(tempfile.mkdtemp(prefix="soak-"))
    mark, temporary, cache = uuid.uuid4().hex, folder / "tmp", folder / "cache"
    temporary.mkdir()
    report = folder / "report.json"
    environment = os.environ | {"TMPDIR": str(temporary), MARK: mark}
    environment["XDG_CACHE_HOME"] = str(cache)
    n = str(constant(case.patient, "RANKS"))
    how = "forked" if case.forked else "torchrun"
    outcome = Outcome(f"{case.code} {case.state} {how} {case.victim}".strip())
    struck = idle = False
    recorded: list[Path] = []
    with enduring(case, folder, environment) as (act, output):
        doctor = subprocess.Popen(
            [
                *(sys.executable, "-m", "distdoctor", "check", "--format", "json"),
                *("--output", str(report), "-n", n, *command_of(case, n)),
            ],
            cwd=folder,
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
        )
        if case.victim or case.hardship:
            time.sleep(case.moment_s)
            act()
        if case.victim:
            with suppress(psutil.Error):
                idle = not psutil.Process(doctor.pid).children()
            struck = doctor.poll() is None and strike(case, doctor)
        try:
            status = doctor.wait(RUN_S)
        except subprocess.TimeoutExpired:
            doctor.kill()
            status = 999
        if status == 0:
            recorded = list(cache.glob("distdoctor/runs/*"))
        # A job without its guard goes on as with one.
        judge(case, struck and case.victim != "guard", status, report, outcome)
    outcome.detail = (folder / "said.txt").read_text(errors="replace")[-1500:]
    if '"internal": true' in outcome.detail or "internal error" in outcome.detail:
        outcome.faults.append("crashed")
    if status not in DOCUMENTED and not (idle and status in UNPREPARED):
        outcome.faults.append("crashed")
        outcome.detail += f"\nstatus {status}"
    end = time.monotonic() + ORPHANS_S
    while (orphans := processes(mark)) and time.monotonic() < end:
        time.sleep(0.2)
    if orphans:
        outcome.faults.append("orphans")
        for orphan in orphans:
            with suppress(psutil.Error):
                outcome.detail += f"\norphan {orphan.cmdline()}"
                orphan.kill()
    left = [path for path in temporary.iterdir() if not path.name.startswith(JOBS_OWN)]
    if status == 0:
        left += recorded
    if left and status != -signal.SIGKILL:
        outcome.faults.append("left")
        outcome.detail += f"\nleft {left}"
    if outcome.faults and keep is not None:
        shutil.move(folder, keep / mark)
        outcome.detail += f"\nkept {keep / mark}"
    shutil.rmtree(folder, ignore_errors=True)
    return outcome


def judge(
    case: Case, struck: bool, status: int, report: Path, outcome: Outcome
) -> None:
    """Compare the verdict with what the run was."""
    if struck and case.victim == "distdoctor":
        return
    if case.hardship == "closed pipe" and status == 128 + signal.SIGPIPE:
        return  # nobody listens, and the job was ended
    if case.hardship == "full disk" and status == MISUSED:
        return  # there was no room for a run
    if not report.exists():
        outcome.faults.append("crashed")
        return
    content = json.loads(report.read_text())
    codes = {finding["code"] for finding in content["findings"]}
    allowed = {case.code} if case.state == "sick" else set()
    if struck:
        allowed |= AFTER_A_KILL
    # An abort of torch's own at exit is named, and is no error.
    strange = codes - allowed - {"DD214"}
    missed = case.state == "sick" and case.code not in codes
    accused = case.state == "well" and content["verdict"] != "well"
    if case.hardship:  # less may be seen, which is to be said
        missed = missed and content["verdict"] == "well"
        accused = case.state == "well" and content["verdict"] == "sick"
    busy = case.code in TIMED and content["run"]["seconds"] > BUSY_S
    if missed and busy and not strange:
        outcome.faults.append("too busy to tell")
    elif strange or (not struck and (missed or accused)):
        outcome.faults.append("wrong")
    if outcome.faults:
        outcome.what += f" -> {status} {content['verdict']} {sorted(codes)}"
        outcome.what += "".join(f"\n{each['summary']}" for each in content["findings"])


def cases(runs: int, seed: int) -> list[Case]:
    """What to run, the same for the same seed."""
    dice = random.Random(seed)
    patients = [
        patient
        for patient in sorted(PATIENTS.glob("dd*.py"))
        if patient.stem[:5].upper() not in SLOW and constant(patient, "RANKS") <= 3
    ]
    made = []
    for _ in range(runs):
        patient = dice.choice(patients)
        forkable = patient.stem[:5].upper() not in NOT_FORKED
        forkable &= "horovod" not in patient.read_text()  # that asks for horovodrun
        victim = dice.choice(
            ["", "", "", "", "rank", "launcher", "guard", "distdoctor"]
        )
        hardship = dice.choice(["", "", "", "full disk", "closed pipe", "no ptrace"])
        signals = [signal.SIGKILL]
        if victim == "distdoctor":
            signals = [signal.SIGKILL, signal.SIGTERM, signal.SIGINT]
        made.append(
            Case(
                patient=patient,
                state=dice.choice(["sick", "well"]),
                forked=dice.random() < FORKED_SHARE and forkable,
                victim=victim,
                signal=dice.choice(signals),
                moment_s=dice.uniform(0.2, 8.0),
                hardship="" if victim else hardship,
            )
        )
    return made


def main() -> None:
    """Run them all, and count."""
    parser = argparse.ArgumentParser(description="Many short runs.")
    parser.add_argument("--runs", type=int, default=1000)
    parser.add_argument("--jobs", type=int, default=1)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--seconds", type=float, default=1e9, help="start no more then")
    parser.add_argument("--keep", type=Path, help="folder for what faults left")
    options = parser.parse_args()
    if options.keep is not None:
        options.keep.mkdir(parents=True, exist_ok=True)
    begun = time.monotonic()

    def one(case: Case) -> Outcome | None:
        if time.monotonic() > begun + options.seconds:
            return None
        return run(case, options.keep)

    counts: Counter[str] = Counter()
    made: Counter[str] = Counter()
    with ThreadPoolExecutor(options.jobs) as pool:
        planned = cases(options.runs, options.seed)
        for case, outcome in zip(planned, pool.map(one, planned), strict=True):
            if outcome is None:
                continue
            how = "forked" if case.forked else "torchrun"
            fault = case.hardship or f"{case.victim or 'nothing'} struck"
            made[f"{case.state}, {how}, {fault}"] += 1
            counts.update(set(outcome.faults))
            if sum(made.values()) % 50 == 0:
                print(f"{sum(made.values())} runs: {dict(counts)}", flush=True)
            if outcome.faults:
                lines = [outcome.what, outcome.faults, outcome.detail]
                print(*lines, sep="\n", flush=True)
    print_table(
        ["runs", "number"], [[name, str(n)] for name, n in sorted(made.items())]
    )
    kinds = ["wrong", "crashed", "orphans", "left", "too busy to tell"]
    print_table(
        ["of", *kinds], [[str(sum(made.values())), *(str(counts[k]) for k in kinds)]]
    )


if __name__ == "__main__":
    main()
