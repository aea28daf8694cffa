"""Are programs told rightly that nobody wrote for distdoctor?

    python benchmarks/faults.py --healthy DIR [DIR ...] [--jobs 2] [--results FILE]

runs the healthy programs of folders as they are and lists all that is found in them,
with severity and verdict. A program names its ranks in a comment near the top,
`# ranks: 2` (or `# ranks: 2, 4`), or by a constant `RANKS = 2`; else it gets two.

    python benchmarks/faults.py --bases DIR [DIR ...] [--sample 400] [--seed 0]

makes faults in such programs, and in the reference jobs and near misses, and counts
which are told. An operator of `by_rule.operators` says by its rule where it applies,
and what is to be told of the faulty program: codes, ranks, lines of its text. A place
counts only if the ranks were seen to run it in the program as it is. Told strictly is
a fault of which one finding has the code, the ranks and a line within 3.

What is in the file of results is not run again, and is judged anew and counted, also
where it is of another sample: give each version
of distdoctor its own. `--distdoctor PATH` measures another version, installed
elsewhere. `--real` starts all as a user does; otherwise jobs are forks of a process in
which torch is loaded, see `by_rule.warm`, which takes a tenth of the processor time.
What depends on how processes start (hashes of strings that differ between ranks) or on
how an interpreter ends is not seen so, and programs that spawn their ranks are slow.
"""

from __future__ import annotations

import argparse
import shutil
import sys
import tempfile
from dataclasses import replace
from pathlib import Path

from by_rule import healthy, mutating
from by_rule.faulted import made_in
from by_rule.kept import Results
from by_rule.programs import Program, programs_in
from by_rule.running import Runner

ROOT = Path(__file__).parent.parent
OURS = (ROOT / "reference_jobs", ROOT / "fixtures" / "near_misses")


def main() -> None:
    """Measure what the command line asks for."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--healthy", type=Path, nargs="+", metavar="DIR")
    parser.add_argument("--bases", type=Path, nargs="*", metavar="DIR", default=[])
    parser.add_argument("--no-own", action="store_true", help="only those of --bases")
    parser.add_argument("--distdoctor", type=Path, default=_installed())
    parser.add_argument("--real", action="store_true", help="as a user starts it")
    parser.add_argument("--jobs", type=int, default=1, help="runs at one time")
    parser.add_argument("--budget", type=float, default=90.0, help="seconds per run")
    parser.add_argument("--worlds", type=int, nargs="+", default=[2, 3, 4])
    parser.add_argument("--sample", type=int, default=0, metavar="N", help="0: all")
    parser.add_argument("--seed", type=int, default=0, help="of the sample")
    parser.add_argument("--only", action="append", metavar="TEXT", help="in the name")
    parser.add_argument("--operator", action="append", metavar="NAME")
    parser.add_argument("--results", type=Path, metavar="FILE", help="to go on with")
    parser.add_argument("--traces", type=Path, metavar="FILE", help="of bases, kept")
    parser.add_argument("--keep", type=Path, help="folder for the faulty programs")
    parser.add_argument("--list", action="store_true", help="make faults, run none")
    args = parser.parse_args()
    runner = Runner(args.distdoctor, warm=not args.real or not args.healthy)
    results = Results(args.results)
    try:
        if args.healthy:
            programs = _named(args, args.healthy)
            healthy.measure(
                programs, runner, results, jobs=args.jobs, budget_s=args.budget
            )
            print("\n".join(healthy.summary(programs, results)))
        else:
            _mutate(args, runner, results)
    finally:
        runner.close()


def _mutate(args: argparse.Namespace, runner: Runner, results: Results) -> None:
    places = [*args.bases, *([] if args.no_own else OURS)]
    programs = _named(args, places)
    known = Results(args.traces)
    bases = list(mutating.bases_of(programs, args.worlds, runner, known, args.jobs))
    names = {base.name for base in bases}
    print(f"{len(bases)} bases, of {len(names)} programs", flush=True)
    for program in programs:
        if program.name not in names:
            print(f"no base: {program.name} does not end well under torchrun")
    made = [
        fault
        for base in bases
        for fault in made_in(base)
        if not args.operator or fault.operator in args.operator
    ]
    faults = mutating.sample(made, args.sample, args.seed)
    print(f"{len(faults)} of {len(made)} faults", flush=True)
    keep = args.keep or Path(tempfile.mkdtemp(prefix="faults-"))
    if args.list:
        for fault in faults:
            print(f"{fault.operator} {fault.base} n={fault.ranks} {fault.lines}")
        return
    # As they are, too: a finding that the fault has not made would count for it.
    used = {(fault.base, fault.ranks) for fault in faults}
    plain = [
        replace(program, ranks=ranks)
        for program in programs
        if (ranks := tuple(n for n in args.worlds if (program.name, n) in used))
    ]
    healthy.measure(plain, runner, results, jobs=args.jobs, budget_s=args.budget)
    mutating.measure(
        faults,
        {program.name: program.arguments for program in programs},
        runner,
        results,
        jobs=args.jobs,
        budget_s=args.budget,
        keep=keep,
    )
    print("\n".join(mutating.summary(made, results)))
    print("\nunmutated: " + "\n".join(healthy.summary(plain, results)))


def _named(args: argparse.Namespace, places: list[Path]) -> list[Program]:
    return [
        program
        for program in programs_in(places)
        if not args.only or any(text in program.name for text in args.only)
    ]


def _installed() -> Path:
    """The program that belongs to this interpreter."""
    beside = Path(sys.executable).with_name("distdoctor")
    found = beside if beside.exists() else shutil.which("distdoctor")
    return Path(found or beside)


if __name__ == "__main__":
    main()
