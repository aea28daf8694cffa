"""Plants faults in the reference jobs, and counts which are told.

Each mutant is a reference job with a line moved, dropped, doubled or changed. What may
tell it: `distdoctor check` on the whole job; the properties of its step in
`step_properties`; and those of the library, `distdoctor.equivalence`, on one rank. Some
mutants are equivalent: nothing may tell those, nor the jobs as they are.

    python benchmarks/mutation.py --properties
    python benchmarks/mutation.py --checks --jobs 2 --results results.jsonl

Without any of `--checks`, `--properties` and `--library` the first two are tried.

What is in the file of results is not run again, so a benchmark that was stopped goes
on; another version of distdoctor needs another file.
"""

from __future__ import annotations

import argparse
import concurrent.futures
import hashlib
import json
import os
import sys
import tempfile
import time
import warnings
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import torch
from library_properties import LIBRARY, ask
from mutants import AMP, RECOMPUTED, TOKENS, TRUST, Mutant, mutated
from planted import MUTANTS
from step_properties import JOBS, PROPERTIES, load_job
from textbook import CASES, Case
from timed_command import run_for

RANKS = 2
DEADLINE_S = 300.0

_AS_THEY_ARE = (
    (AMP, "", False),
    (AMP, "", True),
    (TOKENS, "", False),
    (TRUST, "", False),
    (TRUST, "--optimizer lamb", False),
    (RECOMPUTED, "", False),
    (RECOMPUTED, "--reentrant", False),
)

UNMUTATED = tuple(
    Mutant(
        job,
        f"as it is{' resumed' * resumed} {options}".strip(),
        (),
        equivalent=True,
        options=options,
        resumed=resumed,
    )
    for job, options, resumed in _AS_THEY_ARE
)

_ADVICE = {"warning", "note"}
_ABORT_AT_EXIT = "DD214"  # torch's own, which befalls any run now and then

Result = dict[str, Any]


def caught_by_properties(mutant: Mutant, cases: Sequence[Case] = CASES) -> Result:
    """The first property that does not hold of a mutant's step, and how it failed."""
    job = load_job(mutant.job, source_of(mutant))
    return _first_caught(
        (holds.__name__, partial(holds, job, case))
        for case in cases
        for holds in PROPERTIES[mutant.job]
    )


def caught_by_library(mutant: Mutant) -> Result:
    """Whether an assertion of `distdoctor.equivalence` fails, and how."""
    job = load_job(mutant.job, source_of(mutant))
    return _first_caught(
        (holds.__name__, partial(ask, job, holds)) for holds in LIBRARY[mutant.job]
    )


def _first_caught(trials: Iterable[tuple[str, Callable[[], object]]]) -> Result:
    """The first trial that raises, with what it said."""
    for name, holds in trials:
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                holds()
        except Exception as error:  # noqa: BLE001 - whatever a fault raises
            message = f"{type(error).__name__}: {error}"[:200]
            return {"told": True, "by": name, "said": message}
    return {"told": False}


def caught_by_checks(mutant: Mutant) -> Result:
    """What `distdoctor check` finds in a mutant's job."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        script = folder / f"{mutant.job}.py"
        script.write_text(source_of(mutant))
        options = mutant.options.split()
        if mutant.resumed:
            options += ["--checkpoint", str(folder / "checkpoint.pt")]
            torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone"]
            ranks = f"--nproc-per-node={RANKS}"
            first = [*torchrun, ranks, str(script), *options, "--stop-after", "1"]
            _run(first, folder)
        report = folder / "report.json"
        command = [sys.executable, "-m", "distdoctor", "check", "--format", "json"]
        to = ["--output", str(report), str(script), "-n", str(RANKS), "--", *options]
        status = _run([*command, *to], folder)
        if not report.exists():
            return {"told": False, "status": status, "findings": []}
        content = json.loads(report.read_text())
    findings = [
        f"{one['code']} {one['severity']}"
        for one in content["findings"]
        if one["code"] != _ABORT_AT_EXIT
    ]
    enough = {"error"} | (_ADVICE if mutant.advice else set())
    return {
        "told": any(one.split()[1] in enough for one in findings),
        "verdict": content["verdict"],
        "status": status,
        "findings": findings,
    }


def source_of(mutant: Mutant) -> str:
    """The mutant's script."""
    return mutated((JOBS / f"{mutant.job}.py").read_text(), mutant)


def summary(
    mutants: Sequence[Mutant], results: dict[tuple[str, str], Result]
) -> Iterator[str]:
    """Shares that are told, what is not told, and alarms at what is no fault."""
    ways = [way for way in _WAYS if any(way == each for each, _ in results)]
    either = [ways] if len(ways) > 1 else []
    faults = [one for one in mutants if not one.equivalent]

    def is_caught(mutant: Mutant, way: str) -> bool:
        return bool(results.get((way, mutant.label), {}).get("told"))

    def tried(mutant: Mutant, among: Sequence[str]) -> bool:
        return all((way, mutant.label) in results for way in among)

    for names in [*([way] for way in ways), *either]:
        those = [one for one in faults if tried(one, names)]
        missed = [one for one in those if not any(is_caught(one, way) for way in names)]
        share = 1 - len(missed) / max(1, len(those))
        what = " or ".join(names)
        yield f"{what}: {len(those) - len(missed)} of {len(those)} told, {share:.1%}"
        for one in missed:
            found = results.get(("checks", one.label), {}).get("findings", [])
            weak = f"; only {', '.join(sorted(set(found)))}" if found else ""
            yield f"  missed: {one.label} ({one.codes}){weak}"
    meant = [one for one in faults if ("checks", one.label) in results]
    if meant:
        hits = sum(
            any(
                finding.split()[0] in one.codes.split()
                for finding in results["checks", one.label]["findings"]
            )
            for one in meant
        )
        yield f"checks, by the code that was meant: {hits} of {len(meant)}"
    for way in ways:
        same = [one for one in mutants if one.equivalent and tried(one, [way])]
        alarms = [one for one in same if is_caught(one, way)]
        yield f"{way}: {len(alarms)} alarms at {len(same)} that are no fault"
        for one in same:
            result = results[way, one.label]
            if result["told"] or result.get("findings"):
                reason = result.get("findings") or f"{result['by']}: {result['said']}"
                kind = "alarm" if result["told"] else "advice"
                yield f"  {kind}: {one.label}: {reason}"


_WAYS = ("checks", "properties", "library")


def main() -> None:
    """Try mutants and print the shares."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", action="append", metavar="TEXT", help="in the name")
    parser.add_argument("--checks", action="store_true", help="slow")
    parser.add_argument("--properties", action="store_true", help="of the steps")
    parser.add_argument("--library", action="store_true", help="slow; on one rank")
    parser.add_argument("--jobs", type=int, default=1, help="checks at one time")
    parser.add_argument("--budget-s", type=float, help="begin no mutant after that")
    parser.add_argument("--results", type=Path, metavar="FILE", help="to go on with")
    parser.add_argument("--list", action="store_true", help="print the mutants' names")
    args = parser.parse_args()
    torch.set_num_threads(1)
    mutants = [
        one
        for one in (*UNMUTATED, *MUTANTS)
        if not args.only or any(text in one.label for text in args.only)
    ]
    if args.list:
        print("\n".join(one.label for one in mutants))
        return
    ways = [way for way in _WAYS if getattr(args, way)] or _WAYS[:2]
    results: dict[tuple[str, str], Result] = {}
    kept = _kept(args.results) if args.results else {}
    todo = []
    for way in ways:
        for mutant in mutants:
            key = (way, mutant.label)
            if kept.get(key, {}).get("source") == _digest(mutant):
                results[key] = kept[key]
            else:
                todo.append((way, mutant))
    until = time.monotonic() + (args.budget_s or float("inf"))
    for key, result in _tried(todo, args.jobs, until):
        results[key] = result
        way, label = key
        reason = result.get("by") or ", ".join(result.get("findings", []))
        print(
            f"{way} {'told' if result['told'] else '-':4} {label} {reason}",
            flush=True,
        )
        if args.results:
            with args.results.open("a") as file:
                row = {"way": way, "label": label, **result}
                file.write(json.dumps(row) + "\n")
    print("\n".join(summary(mutants, results)))


def _tried(
    todo: Sequence[tuple[str, Mutant]], jobs: int, until: float
) -> Iterator[tuple[tuple[str, str], Result]]:
    """Results as they come, of what begins in time; checks run beside the others."""

    def checked(mutant: Mutant) -> Result | None:
        return caught_by_checks(mutant) if time.monotonic() < until else None

    here = {"properties": caught_by_properties, "library": caught_by_library}
    with concurrent.futures.ThreadPoolExecutor(jobs) as pool:
        checks = [mutant for way, mutant in todo if way == "checks"]
        runs = {pool.submit(checked, mutant): mutant for mutant in checks}
        try:
            for way, mutant in todo:
                if way != "checks" and time.monotonic() < until:
                    yield _kept_as(way, mutant, here[way](mutant))
            for run in concurrent.futures.as_completed(runs):
                if (result := run.result()) is not None:
                    yield _kept_as("checks", runs[run], result)
        finally:
            pool.shutdown(cancel_futures=True)


def _kept_as(
    way: str, mutant: Mutant, result: Result
) -> tuple[tuple[str, str], Result]:
    return (way, mutant.label), {"source": _digest(mutant), **result}


def _digest(mutant: Mutant) -> str:
    """Of all that decides what is run; a result of another source is not kept."""
    text = f"{source_of(mutant)}{mutant.options}{mutant.resumed}{mutant.advice}"
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def _kept(path: Path) -> dict[tuple[str, str], Result]:
    if not path.exists():
        return {}
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    return {(one["way"], one["label"]): one for one in lines}


def _run(command: Sequence[str], folder: Path) -> int | None:
    """The exit status of a command; none if it ran past the deadline."""
    environment = os.environ | {"OMP_NUM_THREADS": "1", "XDG_CACHE_HOME": str(folder)}
    return run_for(DEADLINE_S, command, folder, environment, Path(os.devnull))


if __name__ == "__main__":
    main()
