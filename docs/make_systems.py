"""Writes `docs/systems.md`: what becomes of jobs of each system of parallelism.

    python docs/make_systems.py             runs all of them, some minutes
    python docs/make_systems.py FSDP2 HSDP  only these; the other rows stay as they are

The systems are those of `fixtures/systems/systems.toml`. For each, its job is run
without distdoctor and with it, and its patients sick and well. What is not as it should
be is told on stderr.
"""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

# Where the tests find what they share.
sys.path.append(str(Path(__file__).parent.parent / "tests" / "shared"))
sys.path.append(str(Path(__file__).parent.parent / "benchmarks"))

from by_rule.running import Runner
from launchers import with_what_it_needs
from real_runs import check_program
from systems import System, accused, check_job, compare_job, missed, systems

from distdoctor.journal.assembly import read_run
from distdoctor.model.layers import layer_of
from distdoctor.model.operations import OPERATIONS

TARGET = Path(__file__).parent / "systems.md"

LONGEST_JOB_S = 300.0

_BEGIN = """\
# Systems of parallelism

<!-- Made by `python docs/make_systems.py`: edit fixtures/systems/systems.toml -->

How training is cut over ranks, and what `distdoctor check` makes of it, on CPUs. Each
system has a healthy job, which must run alone and be found well, and patients, which
are programs with a fault that people make there, each with a healthy twin. *As on one
rank* is the answer of `--reference`. *Probes see* counts the optimizer steps of each
rank, and the calls of communication of all ranks; in brackets stands the part of torch
that makes them.

"""

_COLUMNS = (
    *("system", "job", "runs alone", "check", "as on one rank", "probes see"),
    *("patients found", "twins clean", "remarks"),
)

_ROW = re.compile(r"^\| (?!system \|)([^|]+) \|.*\|$", re.MULTILINE)


def rows(text: str) -> dict[str, str]:
    r"""Rows of the page by their system.

    >>> rows("| system | job |\n|---|---|\n| FSDP2 | a.py |\n")
    {'FSDP2': '| FSDP2 | a.py |'}
    """
    return {row[1]: row[0] for row in _ROW.finditer(text)}


def document(made: dict[str, str]) -> str:
    """The page, with the rows of all systems that have one."""
    head = [_line(_COLUMNS), "|" + "---|" * len(_COLUMNS)]
    ours = [made[one.name] for one in systems() if one.name in made]
    return _BEGIN + "\n".join([*head, *ours]) + "\n"


def row_of(system: System, runner: Runner) -> str:
    """Run all there is of a system, and tell of it."""
    if lacking := system.lacking():
        missing = f"not run: {', '.join(lacking)} not installed"
        remark = " ".join(filter(None, (missing, system.remark)))
        return _line([system.name, _link(system.job), *["–"] * 6, remark])
    with tempfile.TemporaryDirectory() as name:
        folder, record = Path(name), Path(name) / "record"
        alone = _runs_alone(system, folder)
        checked = check_job(runner, folder, system, "--record", str(record))
        _complain(system.name, accused(checked))
        seen = _seen(record)
        same = "–"
        if system.reference is not None:
            compared = compare_job(runner, folder, system)
            _complain(f"{system.name} --reference", accused(compared))
            same = "yes" if compared[1]["compared"]["same"] else "no"
        count = len(system.patients)
        found, clean = _patients(system, runner, folder)
    return _line(
        (
            *(system.name, _link(system.job), "yes" if alone else "no"),
            *(checked[1]["verdict"], same, seen),
            *(f"{found}/{count}", f"{clean}/{count}", system.remark),
        )
    )


def _line(cells: Sequence[str]) -> str:
    return "| " + " | ".join(cells) + " |"


def _link(job: str) -> str:
    return f"[{job}](../reference_jobs/{job})"


def _runs_alone(system: System, folder: Path) -> bool:
    with with_what_it_needs(system.launcher):
        done = subprocess.run(
            system.command(system.ranks),
            cwd=folder,
            timeout=LONGEST_JOB_S,
            capture_output=True,
            text=True,
            check=False,
        )
    _complain(f"{system.name} alone", done.stderr if done.returncode else "")
    return done.returncode == 0


def _patients(system: System, runner: Runner, folder: Path) -> tuple[int, int]:
    """How many are found sick as they should, and how many twins well."""
    found = clean = 0
    for patient in system.patients:
        sick = missed(patient, check_program(runner, folder, patient, "sick"))
        if patient.leaves:  # so that the twin's are not added to them
            shutil.rmtree(folder / patient.leaves)
        checked = check_program(runner, folder, patient, "well")
        well = accused(checked, patient.healthy_verdict)
        found += not _complain(f"{patient.name} sick", sick)
        clean += not _complain(f"{patient.name} well", well)
    return found, clean


def _complain(what: str, problem: str) -> bool:
    """Say on the terminal what is not as it should be; whether anything is."""
    if problem:
        sys.stderr.write(f"{what}: {problem}\n")
    return bool(problem)


def _seen(record: Path) -> str:
    """Calls by operation, and steps."""
    run = read_run(record)
    calls = Counter(
        (OPERATIONS[op].name, layer_of(int(flags)))
        for op, flags in zip(run.column("op"), run.column("flags"), strict=True)
        if not OPERATIONS[op].sets_up
    )
    by_kind = (
        f"{count} {name}" + (f" ({layer})" if layer else "")
        for (name, layer), count in calls.most_common()
    )
    steps = sorted(set(run.steps.values()))
    told = f"{'–'.join(map(str, dict.fromkeys((steps[0], steps[-1]))))} steps"
    return ", ".join([told, *by_kind])


def main(wanted: Sequence[str]) -> None:
    """Make the rows that are wanted; all, if none is named."""
    known = {one.name: one for one in systems()}
    if unknown := set(wanted) - set(known):
        sys.exit(f"no such system: {', '.join(sorted(unknown))}")
    made = rows(TARGET.read_text(encoding="utf-8")) if TARGET.exists() else {}
    runner = Runner(Path(sys.executable).with_name("distdoctor"))
    try:
        for name in wanted or known:
            made[name] = row_of(known[name], runner)
            TARGET.write_text(document(made), encoding="utf-8")
    finally:
        runner.close()


if __name__ == "__main__":
    main(sys.argv[1:])
