"""Faults made by rule in healthy programs: which there are, and how they are told."""

from __future__ import annotations

import random
import re
import textwrap
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import by_rule.operators  # noqa: F401 - declares them
from by_rule.bases import Base, trace_of
from by_rule.faulted import NEAR, Fault
from by_rule.healthy import key_of
from by_rule.kept import Result, Results
from by_rule.programs import Program, digest
from by_rule.running import Order, Runner

TRACE_S = 30.0

_SPAWNS = re.compile(r"\bmp\.spawn|start_processes|\.Process\(")


def bases_of(
    programs: Sequence[Program],
    worlds: Sequence[int],
    runner: Runner,
    known: Results,
    jobs: int,
) -> Iterator[Base]:
    """Programs that end well on these numbers of ranks, each with what its ranks ran.

    One that starts its ranks itself is none: where they part cannot be traced.

    Args:
        programs: Which.
        worlds: Numbers of ranks.
        runner: What runs them.
        known: Traces of earlier runs, and for these.
        jobs: How many at one time.
    """

    def base(case: tuple[Program, int]) -> Base | None:
        program, ranks = case
        key = key_of(program, ranks)
        if (kept := known.get(key)) is None:
            order = Order(program.path, ranks, program.arguments, TRACE_S)
            known.add(key, {"ranks": runner.trace(order)})
            kept = known.get(key)
        assert kept is not None
        if kept["ranks"] is None:
            return None
        traces = [trace_of(one) for one in kept["ranks"]]
        return Base(program.name, program.text, ranks, traces)

    cases = [
        (program, ranks)
        for program in programs
        if not _SPAWNS.search(program.text)
        for ranks in worlds
    ]
    with ThreadPoolExecutor(jobs) as pool:
        yield from filter(None, pool.map(base, cases))


def sample(faults: Iterable[Fault], size: int, seed: int) -> list[Fault]:
    """Some of the faults, evenly by operator, and at random among an operator's.

    Args:
        faults: All of them.
        size: How many; 0: all.
        seed: For another choice.
    """
    by_operator: dict[str, list[Fault]] = defaultdict(list)
    for one in faults:
        by_operator[one.operator].append(one)
    for name, those in by_operator.items():
        random.Random(f"{seed} {name}").shuffle(those)
    chosen: list[Fault] = []
    while any(by_operator.values()) and (not size or len(chosen) < size):
        for those in by_operator.values():
            if those and (not size or len(chosen) < size):
                chosen.append(those.pop())
    return chosen


def judged(fault: Fault, report: dict[str, Any]) -> dict[str, bool]:
    """Which of a fault's code, ranks and line one finding tells, the best one's.

    Args:
        fault: What is wrong.
        report: Of `distdoctor check`.
    """
    best = {"code": False, "ranks": False, "line": False}
    for finding in report.get("findings", []):
        code = finding["code"] in fault.codes
        if not code or finding["severity"] not in fault.severities:
            continue
        named = frozenset(finding["ranks"])
        everybody = frozenset(range(fault.ranks))
        right = fault.culprits or (everybody, frozenset())
        judgement = {
            "code": True,
            "ranks": named in right,
            "line": any(
                abs(place["line"] - line) <= NEAR
                for place in finding["locations"]
                for line in fault.lines
            ),
        }
        if sum(judgement.values()) > sum(best.values()):
            best = judgement
    return best


def is_strict(judgement: dict[str, bool]) -> bool:
    """Whether one finding tells all of it."""
    return all(judgement.values())


def is_hang_called_well(report: dict[str, Any]) -> bool:
    """Whether the job stood still or failed, and the verdict is well."""
    run = report.get("run", {})
    ended_badly = bool(run.get("stopped")) or bool(run.get("exit_code"))
    failed = any(run.get("exit_codes", {}).values())
    return report.get("verdict") == "well" and (ended_badly or failed)


def measure(
    faults: Sequence[Fault],
    arguments: dict[str, tuple[str, ...]],
    runner: Runner,
    results: Results,
    *,
    jobs: int,
    budget_s: float,
    keep: Path,
) -> None:
    """Run the faults that have not been run, and print each as it comes.

    Args:
        faults: Which.
        arguments: Of the programs, by name.
        runner: Of the version that is measured.
        results: Of earlier runs, and for these.
        jobs: How many at one time.
        budget_s: Of each run.
        keep: Folder for the faulty programs.
    """
    keep.mkdir(parents=True, exist_ok=True)

    def run(fault: Fault) -> None:
        name = f"{fault.operator}-{fault.base}-{fault.ranks}-{digest(fault.text)}.py"
        path = (keep / name).absolute()
        path.write_text(fault.text)
        order = Order(path, fault.ranks, arguments.get(fault.base, ()), budget_s)
        result = runner.run(order)
        results.add(fault.key, {"path": str(path), **result})
        print(line_of(fault, result), flush=True)

    with ThreadPoolExecutor(jobs) as pool:
        list(pool.map(run, (one for one in faults if results.get(one.key) is None)))


def line_of(fault: Fault, result: Result) -> str:
    """What a fault was told as."""
    report = result["report"]
    judgement = judged(fault, report)
    mark = "ok  " if is_strict(judgement) else "MISS"
    ranks = [sorted(one) for one in fault.culprits] or "all"
    lacking = ",".join(what for what, right in judgement.items() if not right)
    head = (
        f"{mark} {fault.operator} {fault.base} n={fault.ranks} wants "
        f"{'/'.join(sorted(fault.codes))} {ranks} {sorted(set(fault.lines))}"
    )
    if is_strict(judgement):
        return f"{head} ({result['seconds']} s)"
    found = [
        f"{one['severity']} {one['code']} {one['ranks']} "
        f"{[place['line'] for place in one['locations']][:4]}"
        for one in report.get("findings", [])
    ]
    verdict = report.get("verdict", f"no report, status {result['status']}")
    run = report.get("run", {})
    how = f"stopped {run.get('stopped') or '-'}, exit {run.get('exit_code')}"
    return (
        f"{head} lacks {lacking}: {verdict}, {how}, "
        f"{'; '.join(found) or 'nothing found'} ({result['seconds']} s)"
    )


def summary(
    faults: Sequence[Fault], results: Results, *, missed: bool = True
) -> Iterator[str]:
    """Shares by operator and by world size, totals, and all that is missed.

    Args:
        faults: Which count.
        results: What is known.
        missed: List the misses too.
    """
    rows: dict[str, list[tuple[Fault, Result]]] = defaultdict(list)
    worlds: dict[str, list[tuple[Fault, Result]]] = defaultdict(list)
    everything: list[tuple[Fault, Result]] = []
    for fault in faults:
        result = results.get(fault.key)
        if result is not None:
            rows[fault.operator].append((fault, result))
            worlds[f"{fault.ranks} ranks"].append((fault, result))
            everything.append((fault, result))
    yield f"{'':28} mutants strict  share   code  ranks   line"
    for name, those in sorted(rows.items()) + sorted(worlds.items()):
        yield _row(name, those)
    yield _row("all", everything)
    wells = [one for one, known in everything if is_hang_called_well(known["report"])]
    yield f"stood still or failed, and called well: {len(wells)}"
    silent = Counter(
        known["report"].get("verdict", "no report")
        for one, known in everything
        if not is_strict(judged(one, known["report"]))
    )
    yield "verdicts of what is missed: " + ", ".join(
        f"{count} {verdict}" for verdict, count in silent.most_common()
    )
    seconds = [known["seconds"] for _, known in everything]
    if seconds:
        yield f"seconds per mutant: {sum(seconds) / len(seconds):.1f} in the mean"
    if missed:
        for fault, result in everything:
            if not is_strict(judged(fault, result["report"])):
                yield textwrap.indent(line_of(fault, result), "  ")
                yield f"      {result['path']}"


def _row(name: str, those: Sequence[tuple[Fault, Result]]) -> str:
    judgements = [judged(fault, result["report"]) for fault, result in those]
    strict = sum(map(is_strict, judgements))
    parts = [sum(one[what] for one in judgements) for what in ("code", "ranks", "line")]
    share = strict / max(1, len(judgements))
    counts = "  ".join(f"{part:5}" for part in parts)
    return f"{name:28} {len(judgements):7} {strict:6} {share:6.1%}  {counts}"
