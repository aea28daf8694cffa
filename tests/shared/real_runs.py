"""Scripts run by the real command, and what the report says of them."""

import json
import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from by_rule.running import Order, Runner
from launchers import command_of, with_what_it_needs
from programs import Program

Checked = tuple[int, dict[str, Any], str]
"""Exit status of distdoctor, its report, and what was printed."""

DEADLINE_S = 600.0  # importing torch on a busy machine took over 30

BUDGET_S = 240.0  # likewise: what a test tells is not what came in time

NEAR = 3  # lines between a culprit line and the one that is named


def check(
    folder: Path, *arguments: str, through: Sequence[str] = (), aborts: bool = False
) -> Checked:
    """Run `distdoctor check` as a user does.

    Once more if torch aborted while Python ended, which befalls any run now and then:
    the launcher then ends ranks that were not done.

    Args:
        folder: Where it runs.
        arguments: Of the command.
        through: A command that becomes another.
        aborts: An abort is what is looked for.
    """
    checked = _check_once(folder, *arguments, through=through)
    if _has_aborted(checked) and not aborts:
        checked = _check_once(folder, *arguments, through=through)
    return checked


def check_forked(
    runner: Runner,
    folder: Path,
    script: Path,
    *arguments: str,
    ranks: int | None = None,
    options: Sequence[str] = (),
) -> Checked:
    """The same from a process in which torch is loaded; see the fixture `forked`.

    Args:
        runner: That process.
        folder: Where it runs.
        script: What is checked.
        arguments: The script's.
        ranks: How many; None: as many as the command starts.
        options: Of the command.
    """
    order = Order(script, ranks, arguments, BUDGET_S, tuple(options), folder, True)
    checked = _check_forked_once(runner, order)
    if _has_aborted(checked):
        checked = _check_forked_once(runner, order)
    return checked


def check_program(
    runner: Runner,
    folder: Path,
    program: Program,
    *arguments: str,
    options: Sequence[str] = (),
    started: bool = False,
) -> Checked:
    """Run a program of `fixtures` on its ranks.

    Args:
        runner: See `check_forked`. What depends on an interpreter that starts, or on a
            launcher that starts ranks again, is started as a user does.
        folder: Where it runs.
        program: Which.
        arguments: Its state, if it has some.
        options: Of the command; the program's own come after them.
        started: Start it as a user does all the same.
    """
    if program.leaves:
        return _examine_leavings(folder, program, *arguments)
    options = [*options, *program.options]
    if program.restarts:
        torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone"]
        torchrun += [f"--nproc-per-node={program.ranks}"]
        torchrun += [f"--max-restarts={program.restarts}"]
        return check(folder, *options, "--", *torchrun, str(program.path), *arguments)
    if program.launcher == "python":
        options = ["--launcher", "python", *options]
    elif program.launcher != "torchrun":
        command = [*command_of(program.launcher, program.ranks), str(program.path)]
        with with_what_it_needs(program.launcher):
            return check(folder, *options, "--", *command, *arguments)
    if not (started or program.of_a_start):
        path, ranks = program.path, program.ranks
        return check_forked(
            runner, folder, path, *arguments, ranks=ranks, options=options
        )
    command = ["-n", str(program.ranks), *options, str(program.path)]
    command += ["--", *arguments] if arguments else []
    return check(folder, *command, aborts="DD214" in program.findings)


def _examine_leavings(folder: Path, program: Program, *arguments: str) -> Checked:
    """Run a program without distdoctor, and judge what it has left."""
    job = [*command_of(program.launcher, program.ranks), str(program.path), *arguments]
    report = folder / "report.json"
    examine = [sys.executable, "-m", "distdoctor", "examine", "--format", "json"]
    said = []
    for command in (job, [*examine, "--output", str(report), program.leaves]):
        done = subprocess.run(
            command,
            cwd=folder,
            timeout=DEADLINE_S,
            capture_output=True,
            text=True,
            check=False,
        )
        said.append(f"{done.stdout}{done.stderr}")
        assert done.returncode == 0 or command is not job, said
    content = json.loads(report.read_text())
    return done.returncode, content, "\n".join([str(content["not_examined"]), *said])


_BY_CHANCE = {"DD209", "DD214"}
"""A rank that a busy machine lets run less than others, and torch's abort at exit."""


def findings_of(report: dict[str, Any], *, asked: str = "") -> list[dict[str, Any]]:
    """Without what may befall any run; see `_BY_CHANCE`."""
    found: list[dict[str, Any]] = report["findings"]
    return [
        one for one in found if one["code"] == asked or one["code"] not in _BY_CHANCE
    ]


def named_lines(finding: dict[str, Any]) -> list[int]:
    """Lines that a finding points to."""
    return [location["line"] for location in finding["locations"]]


def is_near(named: Sequence[int], lines: Sequence[int]) -> bool:
    """Whether one of the lines at fault, or one beside it, is named."""
    return any(abs(a - b) <= NEAR for a in named for b in lines)


def _has_aborted(checked: Checked) -> bool:
    return "DD214" in {one["code"] for one in checked[1].get("findings", [])}


def _check_forked_once(runner: Runner, order: Order) -> Checked:
    answer = runner.run(order)
    report: dict[str, Any] = answer["report"]
    assert report, answer["said"]
    return answer["status"], report, f"{report['not_examined']}\n{answer['said']}"


def _check_once(folder: Path, *arguments: str, through: Sequence[str]) -> Checked:
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
    content = json.loads(report.read_text())
    output = f"{content['not_examined']}\n{done.stdout}{done.stderr}"
    return done.returncode, content, output
