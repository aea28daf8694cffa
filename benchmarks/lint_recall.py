"""What `distdoctor lint` finds of known faults, and says of healthy programs.

Run it with

    python benchmarks/lint_recall.py [--advice] [--list]
    python benchmarks/lint_recall.py --by-rule --traces FILE [--worlds 2] [--list]

The first reads the programs of `fixtures`, each as it runs in both its states: of the
sick one, by code, whether what is known of it is found, and whether at a line at fault
or within 3 of it; of the well one, and of the near misses and reference jobs, what is
found although there is nothing. Codes that are not looked for in texts do not count.

The second makes faults by rule in near misses and reference jobs (see `faults.py`), and
counts by operator those whose code, any of those that may tell it, is found in the
faulty text and not in the healthy one. What ranks ran of a healthy program is kept in
the file of traces. An operator none of whose codes is looked for in texts is left out.
"""

from __future__ import annotations

import argparse
import sys
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from by_rule import mutating
from by_rule.faulted import NEAR, made_in
from by_rule.kept import Results
from by_rule.programs import programs_in
from by_rule.running import Runner
from figures import print_table

from distdoctor.excerpts.patient_states import (
    StateUnreadable,
    in_state,
    marked_lines,
    without_marks,
)
from distdoctor.lint.linting import every_rule, lint_texts
from distdoctor.lint.source_files import SourceText
from distdoctor.lint.source_findings import SourceFinding

ROOT = Path(__file__).parent.parent
sys.path.insert(0, str(ROOT / "tests" / "shared"))

from programs import Program, programs  # noqa: E402

SICK = ("patients", "guises", "systems", "textbook", "standing", "horovod")
HEALTHY = (ROOT / "reference_jobs", ROOT / "fixtures" / "near_misses")
KNOWN = frozenset(rule.code for rule in every_rule())


@dataclass(frozen=True, slots=True)
class Case:
    """A program that has one disease, and what was found in it.

    Attributes:
        name: Of its folder and file.
        code: Of the disease.
        found: Whether it is found.
        at: Whether it is found at the line at fault.
    """

    name: str
    code: str
    found: bool
    at: bool


@dataclass(frozen=True, slots=True)
class Alarm:
    """A finding in a healthy program."""

    name: str
    finding: SourceFinding

    def __str__(self) -> str:
        one = self.finding
        return f"{self.name}:{one.at.line}: {one.code} {one.message}"


def main() -> None:
    """Measure what the command line asks for."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--advice", action="store_true", help="with advice, too")
    parser.add_argument("--list", action="store_true", help="misses and alarms")
    parser.add_argument("--by-rule", action="store_true", help="faults made by rule")
    parser.add_argument("--traces", type=Path, metavar="FILE", help="of bases, kept")
    parser.add_argument("--worlds", type=int, nargs="+", default=[2])
    parser.add_argument("--jobs", type=int, default=1, help="runs at one time")
    asked = parser.parse_args()
    if asked.by_rule:
        _by_rule(asked)
    else:
        _of_fixtures(advice=asked.advice, listed=asked.list)


def found_in(text: str, *, advice: bool) -> list[SourceFinding]:
    """What is found in a program."""
    sources = [SourceText("train.py", text)]
    return [*lint_texts(sources, advice=advice).findings]


def _of_fixtures(*, advice: bool, listed: bool) -> None:
    cases: list[Case] = []
    alarms: list[Alarm] = []
    healthy = 0
    for folder in SICK:
        for one in programs(folder):
            if not KNOWN & {*one.findings} and not one.has_twin:
                continue
            try:
                sick, well = _states(one)
            except StateUnreadable as why:
                print(f"left out: {folder}/{one.name}: {why}")
                continue
            name = f"{folder}/{one.name}"
            cases += _cases(name, one, sick, advice)
            if well:
                healthy += 1
                alarms += [Alarm(name, each) for each in found_in(well, advice=advice)]
    for program in programs_in(HEALTHY):
        healthy += 1
        name = f"{program.path.parent.name}/{program.name}"
        found = found_in(program.text, advice=advice)
        alarms += [Alarm(name, each) for each in found]
    _print(cases, alarms)
    print(f"\n{len(alarms)} alarms in {healthy} healthy programs")
    if listed:
        for case in cases:
            if not case.at:
                what = "found elsewhere" if case.found else "missed"
                print(f"{what}: {case.name} {case.code}")
        for alarm in alarms:
            print(f"alarm: {alarm}")


def _states(one: Program) -> tuple[str, str]:
    """A program's sick and well text; "" where it is never well."""
    text = one.path.read_text(encoding="utf-8")
    if not one.has_twin:
        return text, ""
    sick, well = in_state(text, "sick"), in_state(text, "well")
    return sick, "" if without_marks(sick) == without_marks(well) else well


def _cases(name: str, one: Program, sick: str, advice: bool) -> Iterator[Case]:
    lines = marked_lines(sick)
    found = found_in(without_marks(sick), advice=advice)
    for code in one.findings:
        if code in KNOWN:
            those = [finding for finding in found if finding.code == code]
            near = any(
                abs(place.line - line) <= NEAR
                for finding in those
                for place in (finding.at, *finding.related)
                for line in lines
            )
            yield Case(name, code, bool(those), near)


def _print(cases: list[Case], alarms: list[Alarm]) -> None:
    of = Counter(case.code for case in cases)
    found = Counter(case.code for case in cases if case.found)
    at = Counter(case.code for case in cases if case.at)
    wrong = Counter(alarm.finding.code for alarm in alarms)
    rows = [
        [code, str(of[code]), str(found[code]), str(at[code]), str(wrong[code])]
        for code in sorted(KNOWN)
    ]
    total = [of.total(), found.total(), at.total(), wrong.total()]
    rows.append(["all", *map(str, total)])
    print_table(["code", "sick", "found", "at the line", "alarms"], rows)


def _by_rule(asked: argparse.Namespace) -> None:
    if asked.traces is None:
        sys.exit("give a file of traces: --traces FILE; it is made if it is not there")
    runner = Runner(Path(sys.executable).with_name("distdoctor"), warm=True)
    try:
        bases = list(
            mutating.bases_of(
                list(programs_in(HEALTHY)),
                asked.worlds,
                runner,
                Results(asked.traces),
                asked.jobs,
            )
        )
    finally:
        runner.close()
    made: Counter[str] = Counter()
    found: Counter[str] = Counter()
    at: Counter[str] = Counter()
    codes: dict[str, set[str]] = {}
    missed: list[str] = []
    for base in bases:
        before = Counter(one.code for one in found_in(base.text, advice=asked.advice))
        for fault in made_in(base):
            if not fault.codes & KNOWN:
                continue
            made[fault.operator] += 1
            codes.setdefault(fault.operator, set()).update(fault.codes & KNOWN)
            now = found_in(fault.text, advice=asked.advice)
            counts = Counter(one.code for one in now)
            fresh = {code for code in fault.codes if counts[code] > before[code]}
            found[fault.operator] += bool(fresh)
            at[fault.operator] += any(
                abs(place.line - line) <= NEAR
                for one in now
                if one.code in fresh
                for place in (one.at, *one.related)
                for line in fault.lines
            )
            if not fresh:
                missed.append(f"{fault.operator} {fault.base} {sorted({*fault.lines})}")
    print(f"{len(bases)} healthy programs")
    rows = [
        [name, str(made[name]), str(found[name]), str(at[name]), " ".join(sorted(them))]
        for name, them in sorted(codes.items())
    ]
    rows.append(["all", *(str(one.total()) for one in (made, found, at)), ""])
    print_table(["operator", "made", "found", "at the line", "codes"], rows)
    if asked.list:
        print("\n".join(f"missed: {one}" for one in missed))


if __name__ == "__main__":
    main()
