"""Systems of parallelism: the job of each, its patients, and what becomes of them.

`fixtures/systems/systems.toml` names them. The tests ask here, and so does
`docs/make_systems.py`, which writes the answers down.
"""

import shlex
import shutil
import tomllib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from by_rule.running import Runner
from launchers import can_import, command_of, with_what_it_needs
from programs import EXIT_STATUS, FIXTURES, ROOT, Program, programs
from real_runs import (
    Checked,
    check,
    check_forked,
    findings_of,
    is_near,
    named_lines,
)

TABLE = FIXTURES / "systems" / "systems.toml"


@dataclass(frozen=True, slots=True, kw_only=True)
class System:
    """A way to cut a training over ranks, or a library that does it.

    Attributes:
        name: As `SYSTEM` of its patients, and as in its row of `docs/systems.md`.
        job: A healthy one: a file of `reference_jobs`.
        ranks: On how many ranks the job runs.
        options: Of the job.
        launcher: What starts the job's ranks; see `launchers`.
        needs: Modules without which neither the job nor a patient can run.
        programs: Programs likewise.
        reference: What the job is told beside `options` on one rank, so that it trains
            on the same samples, and `--reference` can tell whether it computes the
            same; None: no such job can be had.
        remark: What of the system cannot be run, and why.
    """

    name: str
    job: str
    ranks: int = 2
    options: Sequence[str] = ()
    launcher: str = "torchrun"
    needs: Sequence[str] = ()
    programs: Sequence[str] = ()
    reference: Sequence[str] | None = None
    remark: str = ""

    @property
    def script(self) -> Path:
        """The job's."""
        return ROOT / "reference_jobs" / self.job

    def lacking(self) -> list[str]:
        """Of what it needs, what is not here."""
        modules = [one for one in self.needs if not can_import(one)]
        return modules + [one for one in self.programs if not shutil.which(one)]

    def command(self, ranks: int) -> list[str]:
        """The job as a user starts it on some ranks, without distdoctor."""
        return [*command_of(self.launcher, ranks), str(self.script), *self.options]

    @property
    def patients(self) -> list[Program]:
        """Programs that use it and have a fault, each with a healthy twin."""
        return [one for one in programs("systems") if one.system == self.name]


def systems() -> list[System]:
    """All of them, in the order of the table."""
    return [System(**row) for row in tomllib.loads(TABLE.read_text())["system"]]


def check_job(runner: Runner, folder: Path, system: System, *options: str) -> Checked:
    """Run the healthy job of a system under watch.

    Args:
        runner: See `check_forked`; jobs of other launchers are started as a user does.
        folder: Where it runs.
        system: Which.
        options: Of `distdoctor check`.
    """
    if system.launcher == "python":
        options = ("--launcher", "python", *options)
    elif system.launcher != "torchrun":
        with with_what_it_needs(system.launcher):
            return check(folder, *options, "--", *system.command(system.ranks))
    return check_forked(
        runner,
        folder,
        system.script,
        *system.options,
        ranks=system.ranks,
        options=options,
    )


def compare_job(runner: Runner, folder: Path, system: System) -> Checked:
    """Compare the healthy job of a system with the same job on one rank."""
    reference = [*system.command(1), *(system.reference or ())]
    return check_job(runner, folder, system, "--reference", shlex.join(reference))


def accused(checked: Checked, verdict: str = "well") -> str:
    """What is said against a healthy run; "" if nothing is.

    Args:
        checked: The run.
        verdict: That a healthy one has.

    >>> accused((0, {"verdict": "well", "findings": []}, ""))
    ''
    """
    status, report, output = checked
    found = [f"{one['code']}: {one['summary']}" for one in findings_of(report)]
    right = status == EXIT_STATUS[verdict] and report["verdict"] == verdict
    if right and not found:
        return ""
    return "\n".join([f"{report['verdict']}, exit status {status}", *found, output])


def missed(patient: Program, checked: Checked) -> str:
    """In what the answer for a sick patient is not the one known; "" in nothing."""
    status, report, output = checked
    found = findings_of(report, asked=patient.findings[0])
    wanted = [(code, patient.severity) for code in patient.findings]
    told = [(one["code"], one["severity"]) for one in found]
    problems = []
    if (status, report["verdict"]) != (patient.status, patient.verdict):
        problems.append(f"{report['verdict']}, exit status {status}")
    if told != wanted:
        problems.append(f"found {told}, not {wanted}")
    for one in found:
        named, lines = named_lines(one), patient.lines_of(one["code"])
        if one["ranks"] != list(patient.culprits):
            problems.append(f"ranks {one['ranks']}: {one['summary']}")
        if (named or lines) and not is_near(named, lines):
            problems.append(f"lines {named}, not {list(lines)}: {one['summary']}")
    return "\n".join([*problems, output]) if problems else ""
