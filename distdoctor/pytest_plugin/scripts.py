"""The fixture `check_script`, which runs a script as `distdoctor check` does.

This module is a plugin of pytest's as well: it hands the reports of such runs on.
"""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Generator, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from distdoctor.pytest_plugin.session_report import give
from distdoctor.pytest_plugin.slots import Gpus, slots_of

if TYPE_CHECKING:
    from distdoctor.launch.job import Job
    from distdoctor.report.schema import FindingData, Report

_BUDGET_S = 120.0  # as `BUDGET_S` of `asked_jobs`, which is not imported here
_FAILED = pytest.StashKey[bool]()
_JUDGED = pytest.StashKey["list[Report]"]()


@dataclass(frozen=True, slots=True)
class ScriptRun:
    """The result of running a script under `check_script`.

    Attributes:
        report: All that was found, as in `distdoctor.report.schema`.
        text: The report for people.
        stdout: What the job printed.
        stderr: Likewise.
    """

    report: Report
    text: str
    stdout: str
    stderr: str

    @property
    def verdict(self) -> str:
        """The verdict: sick, well or unknown."""
        return self.report.verdict

    @property
    def has_failed(self) -> bool:
        """Whether the job failed by itself."""
        return self.report.has_failed

    @property
    def findings(self) -> list[FindingData]:
        """The findings; each has its consequences below it."""
        return self.report.findings

    @property
    def codes(self) -> list[str]:
        """The codes of these findings, warnings and notes included, each once."""
        return list(dict.fromkeys(finding.code for finding in self.findings))


class ScriptChecker:
    """Runs and judges scripts; the value of the fixture `check_script`."""

    def __init__(self, item: pytest.Item, folders: pytest.TempPathFactory) -> None:
        self._item, self._folders = item, folders
        self._made: list[Path] = []

    def __call__(
        self,
        script: str | Path | None = None,
        *arguments: str,
        nproc: int | None = None,
        command: Sequence[str] | None = None,
        launcher: str = "auto",
        device: str = "auto",
        budget: float = _BUDGET_S,
        steps: int = 0,
        full: bool = False,
    ) -> ScriptRun:
        """Run a script on a few ranks under watch, and judge it.

        When this returns or raises, nothing of the job is left.

        Args:
            script: The program, from the working directory or else from the folder of
                the test's file.
            arguments: What it gets.
            nproc: How many ranks; by default what the script says, or 2.
            command: Instead of a script: a whole command, such as `["torchrun", …]`.
            launcher: As for `distdoctor check`: auto, torchrun, python, commands or
                horovod.
            device: auto, cpu (in place of GPUs) or cuda.
            budget: Seconds after which the job is ended; what it did not reach is told.
            steps: Optimizer steps after which it is ended; 0: no limit.
            full: Do not shorten epochs that would not end within the budget.

        Raises:
            LaunchRefused: It cannot be started as asked.
        """
        __tracebackhide__ = True
        # Only where a script is run: this module is imported by every pytest.
        from distdoctor.checking.asked_jobs import asked_job
        from distdoctor.checking.judged_run import Judged
        from distdoctor.launch.subprocess_runner import supervise_in_subprocess
        from distdoctor.report import text

        asked = asked_job(
            "check_script",
            None if script is None else self._found(Path(script)),
            arguments,
            command,
            launcher=launcher,
            device=device,
            budget=budget,
            steps=steps,
            full=full,
        )
        folder = self._folders.mktemp("distdoctor-record")
        self._made.append(folder)
        job, plan = asked.plan(nproc, folder, budget, folder)
        with self._room(job, device) as environment:
            output = supervise_in_subprocess(plan, own=job.own, environment=environment)
        sys.stdout.write(output.stdout)
        sys.stderr.write(output.stderr)
        judged = Judged.of_record(folder, kept="")
        report = judged.report
        if report.verdict != "well":
            report.run.record = str(folder)
        self._item.stash.setdefault(_JUDGED, []).append(report)
        report_text = text.render(report, judged.run)
        run = ScriptRun(report, report_text, output.stdout, output.stderr)
        if run.codes:  # for JUnit
            self._item.user_properties.append(("distdoctor", " ".join(run.codes)))
        return run

    def tidy(self) -> None:
        """Remove the records, unless the test has failed."""
        if self._item.stash.get(_FAILED, False):
            return
        for folder in self._made:
            shutil.rmtree(folder, ignore_errors=True)

    def _found(self, script: Path) -> Path:
        beside = self._item.path.parent / script
        return beside if beside.exists() and not script.exists() else script

    @contextmanager
    def _room(self, job: Job, device: str) -> Iterator[dict[str, str]]:
        """Slots and GPUs for all ranks; the environment that names the GPUs."""
        ranks = job.expected or job.ranks
        gpus = Gpus([] if device == "cpu" else None)
        environment = dict(os.environ)
        with slots_of(self._item.config, ranks).hold(ranks):
            try:
                if gpus.names:
                    leased = gpus.lease(min(ranks, len(gpus.names)))
                    names = ",".join(gpus.names[index] for index in leased)
                    environment["CUDA_VISIBLE_DEVICES"] = names
                yield environment
            finally:
                gpus.release()


@pytest.fixture
def check_script(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[ScriptChecker]:
    """Run a script on a few ranks under watch, and return what was found.

    After `run = check_script("train.py", nproc=2)`,
    `run.verdict`, `run.codes`, `run.findings`, `run.report` and `run.text` tell what
    was found; `distdoctor.testing.assert_well(run)` fails with the report.
    """
    item = request.node
    if item.get_closest_marker("ranks") is not None:
        pytest.fail(
            "check_script starts ranks of its own: use it in a test without the marker "
            "`ranks`",
            pytrace=False,
        )
    checker = ScriptChecker(item, tmp_path_factory)
    yield checker
    checker.tidy()


@pytest.hookimpl(hookwrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Generator[None, None, None]:
    """Attach the judgements to the report, and note how the test ended."""
    outcome = yield
    report: pytest.TestReport = outcome.get_result()  # type: ignore[attr-defined]
    if judged := item.stash.get(_JUDGED, []):
        give(report, judged)
        if report.failed:
            _shorten_summary(report, judged)
        item.stash[_JUDGED] = []
    if report.failed:
        item.stash[_FAILED] = True


def _shorten_summary(report: pytest.TestReport, judged: list[Report]) -> None:
    """Have pytest's short summary name what was found, and not repeat the report.

    Under CI pytest prints the whole message of an exception there.
    """
    # Not by every pytest: it brings numpy.
    from distdoctor.pytest_plugin.headline import finding_line

    crash = getattr(report.longrepr, "reprcrash", None)
    if crash is not None:
        lines = [
            finding_line(finding)
            for one in judged
            for finding in one.findings
            if finding.severity == "error"
        ]
        first = crash.message.partition("\n")[0]
        crash.message = ": ".join([first, "; ".join(lines)] if lines else [first])
