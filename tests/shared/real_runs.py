"""Scripts of ours run by the real command, and what they say of themselves."""

import ast
import json
import os
import re
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from by_rule.running import Order, Runner

ROOT = Path(__file__).parent.parent.parent

DEADLINE_S = 600.0  # importing torch on a busy machine took over 30

BUDGET_S = 240.0  # likewise: what a test tells is not what came in time

NEAR = 3  # lines between a culprit line and the one that is named


def constant(script: Path, name: str) -> Any:
    """A constant of a script's, read and not imported."""
    match = re.search(rf"^{name}(?:: .+)? = (.+)$", script.read_text(), re.MULTILINE)
    assert match
    return ast.literal_eval(match[1])


def culprit_lines(script: Path, code: str = "") -> list[int]:
    """Lines at fault; those of one code where a script has several faults."""
    mark = f"# culprit {code}".rstrip()
    lines = script.read_text().splitlines()
    return [n for n, line in enumerate(lines, start=1) if mark in line]


def check(
    folder: Path, *arguments: str, through: Sequence[str] = ()
) -> tuple[int, dict[str, Any], str]:
    """Run `distdoctor check`; its exit status, its report, and what the job printed.

    `through` is a command that becomes another. Once more if torch aborted while Python
    ended, which befalls any run now and then: the launcher then ends ranks that were
    not done.
    """
    status, told, said = _check_once(folder, *arguments, through=through)
    if "DD214" in {one["code"] for one in told["findings"]}:
        status, told, said = _check_once(folder, *arguments, through=through)
    return status, told, said


def check_forked(
    runner: Runner, script: Path, ranks: int, *arguments: str, options: Sequence[str]
) -> tuple[int, dict[str, Any], str]:
    """The same from a warm process; see the fixture `forked`."""
    order = Order(script, ranks, arguments, BUDGET_S, tuple(options))
    answer = runner.run(order)
    if "DD214" in {one["code"] for one in answer["report"].get("findings", [])}:
        answer = runner.run(order)
    return answer["status"], answer["report"], answer.get("said", "")


def findings_of(report: dict[str, Any], *, asked: str = "") -> list[dict[str, Any]]:
    """Without torch's own abort at exit, which may befall any run."""
    found: list[dict[str, Any]] = report["findings"]
    return [one for one in found if one["code"] == asked or one["code"] != "DD214"]


def named_lines(finding: dict[str, Any]) -> list[int]:
    """Lines that a finding points to."""
    return [location["line"] for location in finding["locations"]]


def is_near(named: list[int], lines: list[int]) -> bool:
    """Whether one of the lines at fault, or one beside it, is named."""
    return any(abs(a - b) <= NEAR for a in named for b in lines)


def _check_once(
    folder: Path, *arguments: str, through: Sequence[str]
) -> tuple[int, dict[str, Any], str]:
    report = folder / "report.json"
    program = [*through, sys.executable, "-m", "distdoctor"]
    command = [*program, "check", "--format", "json", "--budget", str(BUDGET_S)]
    done = subprocess.run(
        [*command, "--output", str(report), *arguments],
        cwd=folder,
        env=os.environ | {"XDG_CACHE_HOME": str(folder / "cache")},
        timeout=DEADLINE_S,
        capture_output=True,
        text=True,
        check=False,
    )
    told = json.loads(report.read_text())
    said = f"{told['not_examined']}\n{done.stdout}{done.stderr}"
    return done.returncode, told, said
