"""Healthy programs as they are: whatever is found in them is listed."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from by_rule.kept import Result, Results
from by_rule.programs import Program, digest
from by_rule.running import Order, Runner


def key_of(program: Program, ranks: int) -> str:
    """Of a program's run."""
    return f"{program.name} {ranks} {digest(program.text)}"


def measure(
    programs: Sequence[Program],
    runner: Runner,
    results: Results,
    *,
    jobs: int,
    budget_s: float,
) -> None:
    """Run what has not been run, and print each as it comes."""

    def run(case: tuple[Program, int]) -> None:
        program, ranks = case
        order = Order(program.path, ranks, program.arguments, budget_s)
        result = runner.run(order)
        results.add(key_of(program, ranks), {"path": str(program.path), **result})
        print("\n".join(lines_of(program, ranks, result)), flush=True)

    cases = [(program, ranks) for program in programs for ranks in program.ranks]
    todo = [case for case in cases if results.get(key_of(*case)) is None]
    with ThreadPoolExecutor(jobs) as pool:
        list(pool.map(run, todo))


def lines_of(program: Program, ranks: int, result: Result) -> Iterator[str]:
    """A run's verdict, and a line for each finding."""
    report = result["report"]
    verdict = report.get("verdict", f"no report, status {result['status']}")
    yield f"{program.name} n={ranks}: {verdict} ({result['seconds']:.1f} s)"
    if not report:
        yield f"    {result.get('said', '')[-400:]}"
        return
    run = report["run"]
    if run["stopped"] or run["exit_code"]:
        yield f"    exit code {run['exit_code']}, stopped: {run['stopped'] or '-'}"
    for finding in report["findings"]:
        places = finding["locations"]
        line = places[0]["line"] if places else "-"
        yield (
            f"    {finding['severity']} {finding['code']} {finding['certainty']} "
            f"ranks {finding['ranks']} line {line}: {finding['summary']}"
        )
    if verdict == "unknown":
        for one in report["not_examined"]:
            yield f"    not examined: {one['what']}: {one['why']}"
        for remark in report["remarks"]:
            yield f"    remark: {remark}"


def summary(programs: Sequence[Program], results: Results) -> Iterator[str]:
    """Counts of verdicts and findings; which programs are accused of an error."""
    verdicts: Counter[str] = Counter()
    codes: Counter[str] = Counter()
    accused: list[str] = []
    for program in programs:
        for ranks in program.ranks:
            result = results.get(key_of(program, ranks))
            if result is None:
                continue
            report: dict[str, Any] = result["report"]
            verdicts[report.get("verdict", "none")] += 1
            found = report.get("findings", [])
            codes.update(f"{one['severity']} {one['code']}" for one in found)
            if errors := [one["code"] for one in found if one["severity"] == "error"]:
                accused.append(f"{program.name} n={ranks}: {', '.join(errors)}")
    yield f"{sum(verdicts.values())} runs: " + _counts(verdicts)
    yield f"findings: {_counts(codes) or 'none'}"
    yield f"accused of an error: {len(accused)}"
    yield from (f"  {one}" for one in accused)


def _counts(counter: Counter[str]) -> str:
    return ", ".join(f"{count} {what}" for what, count in counter.most_common())
