"""Whether torch's own tests tell a process with probes from one without.

Run it with

    python benchmarks/their_tests.py --distributed
    python benchmarks/their_tests.py TESTS optim/test_lrscheduler.py test_dataloader.py
    python benchmarks/their_tests.py TESTS distributed/fsdp distributed/test_store.py

The first runs the tests of torch.distributed that the installed package has
(`torch.testing._internal.distributed.distributed_test`), on gloo. The others run files,
and all `test_*.py` of folders, below TESTS, the folder `test` of a checkout of torch at
about the installed version, which the package lacks. To get one:

    git clone --depth 1 --branch v2.13.0 https://github.com/pytorch/pytorch

and what its tests import beside torch: `pip install expecttest parameterized`.

Each test runs once as it is and once with all probes in place as `distdoctor check`
puts them there: in a process that has joined a job of one rank, or, of the files below
`distributed`, in ranks that the tests start themselves. These are forks, if not
`--spawn`, because that is many times quicker. Tests whose outcome or words differ run
twice more each way. Where they differ steadily, a probe is felt: those are listed, and
the exit status is 1. The rest are flakes, and are listed, too. What the ranks recorded
is counted, to show that the probes were there, and errors of probes are listed.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

from their_test_process import Order
from timed_command import run_for

from distdoctor.errors import JournalUnreadable
from distdoctor.journal import environment as names
from distdoctor.journal.folder import read_losses
from distdoctor.journal.reader import JournalReader
from distdoctor.probes import NEEDLE

_AGAIN = 2  # times that what differs is run anew, each way
_MOST_RESTARTS = 20  # of a file whose tests kill their process
_JOURNAL_BYTES = 4 * 1024 * 1024  # of each rank that a test starts: there are many
_THEIR_PATIENCE = 0.7  # of a test's time, after which it gives its ranks up by itself

_FOR_THREADS = "ranks are threads of one process"
"""What the probes say of tests that play ranks so: it is no error."""

_PROCESS = Path(__file__).resolve().with_name("their_test_process.py")

FORKED = '''
"""As test_distributed_spawn.py of torch."""
from torch.testing._internal.distributed.distributed_test import (
    DistributedTest,
    TestDistBackend,
)


class TestDistBackendWithFork(TestDistBackend, DistributedTest._DistTestBase):
    def setUp(self):
        super().setUp()
        self._spawn_processes()
'''


class Told(NamedTuple):
    """What came of one test.

    Attributes:
        outcome: "passed", "failed", "skipped", "error", or "crashed" with its process.
        words: Of the error, without what differs from run to run.
    """

    outcome: str
    words: str


Outcomes = dict[str, Told]
"""By the name of the test."""


class Way(NamedTuple):
    """How to run tests.

    Attributes:
        work: Folder for what that leaves.
        joins: Whether the tests' process is a rank itself; else the tests start ranks.
        limit_s: After which a file is ended.
        left_out: A pattern of names of tests that are left out; "": none.
        each_s: After which a test is ended, with its process; it counts as crashed.
        ranks: That the tests are told to start; 0: they know it by themselves.
        forks: Whether ranks that tests start are forks.
        workers: How many runs there are at a time.
    """

    work: Path
    joins: bool
    limit_s: float = 1800.0
    left_out: str = ""
    each_s: float = 120.0
    ranks: int = 0
    forks: bool = True
    workers: int = 2


class Compared(NamedTuple):
    """What came of a file's tests both ways.

    Attributes:
        kinds: How many had which outcome, "differing" among them.
        steady: What to print of the tests that differ steadily.
        flakes: What to print of those that differ now and then.
        losses: Errors of probes.
    """

    kinds: Counter[str]
    steady: list[str]
    flakes: list[str]
    losses: list[str]


def _environment(way: Way, folder: Path, number: int) -> dict[str, str]:
    """Of a rank, as torchrun makes it; or of a process whose tests start ranks."""
    found = {k: v for k, v in os.environ.items() if not k.startswith("DISTDOCTOR_")}
    found |= {"PYTHONUNBUFFERED": "1", "PYTHONHASHSEED": "0", "TMPDIR": str(folder)}
    if way.joins:
        return found | {"RANK": "0", "LOCAL_RANK": "0", "WORLD_SIZE": "1"}
    patience = str(int(way.each_s * _THEIR_PATIENCE))
    found |= {"OMP_NUM_THREADS": "1", "DISTRIBUTED_TESTS_DEFAULT_TIMEOUT": patience}
    if way.ranks:
        place = folder / "ranks"
        for name in ("", "barrier", "test_dir", "init_dir"):
            (place / name).mkdir(parents=True, exist_ok=True)
        found |= {
            "BACKEND": "gloo",
            "WORLD_SIZE": str(way.ranks),
            "TEMP_DIR": str(place),
        }
        found |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(29500 + number % 500)}
    return found


def _probing(folder: Path, path: str) -> dict[str, str]:
    """As `distdoctor check` has it around a job."""
    folder.mkdir(mode=0o700)
    return {
        "PYTHONPATH": os.pathsep.join(filter(None, (str(NEEDLE), path))),
        names.FOLDER_VARIABLE: str(folder),
        names.SUPERVISOR_VARIABLE: str(os.getpid()),
        names.SIZE_VARIABLE: str(_JOURNAL_BYTES),
        names.DEVICE_VARIABLE: "",
        names.RANKS_VARIABLE: "1",
    }


_numbers = iter(range(10**6))


def outcomes_of(
    path: Path,
    way: Way,
    record: Path | None = None,
    only: Iterable[str] = (),
) -> Outcomes:
    """What comes of the tests of a file; one that kills its process is left behind.

    Args:
        path: The file.
        way: How to run it.
        record: The folder for what probes record; None: without probes.
        only: Only these tests; empty: all.
    """
    told = way.work / f"told.{next(_numbers)}"
    found: Outcomes = {}
    end = time.monotonic() + way.limit_s
    for _ in range(_MOST_RESTARTS):
        number = next(_numbers)
        with tempfile.TemporaryDirectory(
            prefix="theirs.", ignore_cleanup_errors=True
        ) as folder:
            environment = _environment(way, Path(folder), number)
            if record is not None:
                python_path = environment.get("PYTHONPATH", "")
                record.mkdir(exist_ok=True)
                environment |= _probing(record / str(number), python_path)
            forks = way.forks and not way.joins
            left_out, each_s = way.left_out, way.each_s
            order = Order([*only], [*found], left_out, each_s, way.joins, forks)
            file = way.work / f"order.{number}"
            file.write_text(json.dumps(order))
            words = [sys.executable, str(_PROCESS), *map(str, (path, file, told))]
            left_s = max(end - time.monotonic(), 1)
            output = way.work / f"output.{number}"
            code = run_for(left_s, words, path.parent, environment, output)
        if code is None:
            print(f"{path.name}: ended after {way.limit_s:.0f} s", flush=True)
            return {k: v for k, v in _read(told).items() if v.outcome != "crashed"}
        before, found = found.keys(), _read(told)
        new = [found[name].outcome for name in found.keys() - before]
        if "crashed" not in new and (code in {0, 1} or not new):
            break
    return found


def _read(told: Path) -> Outcomes:
    lines = told.read_text().splitlines() if told.exists() else ()
    return {name: Told(*rest) for name, *rest in map(json.loads, lines)}


def differing(one: Outcomes, other: Outcomes) -> Iterator[str]:
    """Names of the tests that ran in both, and of which not the same came."""
    for name, told in one.items():
        if name in other and other[name] != told:
            yield name


def recorded(folder: Path) -> tuple[int, int, list[str]]:
    """What probes left in a folder of record folders.

    Returns:
        How many processes became ranks, what they recorded, and errors of probes.
    """
    ranks = records = 0
    losses: set[str] = set()
    for record in folder.iterdir() if folder.exists() else ():
        losses.update(read_losses(record).values())
        for path in record.glob("*.journal"):
            with suppress(JournalUnreadable):
                journal = JournalReader(path)
                ranks += journal.header().rank >= 0
                records += journal.head()
    return ranks, records, sorted(why for why in losses if _FOR_THREADS not in why)


def compare(path: Path, way: Way) -> Compared:
    """Run a file's tests both ways, and what differs again."""
    begun = time.monotonic()
    record = way.work / f"record.{next(_numbers)}"
    with ThreadPoolExecutor(way.workers) as pool:
        bare, probed = pool.map(
            lambda where: outcomes_of(path, way, where), (None, record)
        )
    ranks, records, losses = recorded(record)
    suspects = list(differing(bare, probed))
    both = bare.keys() & probed.keys()
    kinds = Counter(bare[name].outcome for name in both if name not in suspects)
    counts = ", ".join(f"{count} {kind}" for kind, count in sorted(kinds.items()))
    took_s = time.monotonic() - begun
    print(
        f"{path.name}: {len(both)} tests both ways in {took_s:.0f} s; "
        f"alike: {counts or 'none'}; {len(suspects)} to run again; "
        f"only one way: {len(bare.keys() ^ probed.keys())}; "
        f"{ranks} ranks recorded {records} events",
        flush=True,
    )
    found = Compared(kinds, [], [], [f"{path.name}: {why}" for why in losses])
    if suspects:
        rounds = [None, record] * _AGAIN
        with ThreadPoolExecutor(way.workers) as pool:
            again = [*pool.map(lambda r: outcomes_of(path, way, r, suspects), rounds)]
        for name in suspects:
            ways: list[set[Told | None]] = [{bare[name]}, {probed[name]}]
            for where, outcomes in zip(rounds, again, strict=True):
                ways[where is not None].add(outcomes.get(name))
            text = f"{name}\n    bare:   {_told(ways[0])}\n    probed: {_told(ways[1])}"
            is_flake = bool(ways[0] & ways[1])
            (found.flakes if is_flake else found.steady).append(text)
            kinds["flake" if is_flake else "differing"] += 1
    return found


def _told(ways: set[Told | None]) -> str:
    return " | ".join(sorted("lost" if w is None else ": ".join(w) for w in ways))


def _files(tests: Path, given: Iterable[str]) -> Iterator[Path]:
    for name in given:
        path = (tests / name).resolve()
        yield from sorted(path.rglob("test_*.py")) if path.is_dir() else [path]


def main() -> None:
    """Read the command line, and run."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("tests", nargs="?", type=Path, help="folder `test` of torch")
    parser.add_argument("files", nargs="*", help="files and folders in there")
    parser.add_argument("--distributed", action="store_true")
    parser.add_argument("--spawn", action="store_true", help="ranks are no forks")
    parser.add_argument("--limit", type=float, default=1800.0, help="seconds of a file")
    parser.add_argument("--each", type=float, default=120.0, help="seconds of a test")
    parser.add_argument("--without", default="", help="a pattern of tests' names")
    parser.add_argument("--ranks", type=int, default=2, help="of --distributed")
    parser.add_argument("--workers", type=int, default=2, help="runs at a time")
    parser.add_argument("--keep", type=Path, help="folder that keeps all outputs")
    given = parser.parse_args()
    found: list[Compared] = []
    with tempfile.TemporaryDirectory() as folder:
        work = (given.keep or Path(folder)).resolve()
        work.mkdir(parents=True, exist_ok=True)
        shared = Way(work, True, given.limit, given.without, given.each)
        shared = shared._replace(forks=not given.spawn, workers=given.workers)
        for path in _files(given.tests, given.files):
            joins = "distributed" not in path.relative_to(given.tests.resolve()).parts
            found.append(compare(path, shared._replace(joins=joins)))
        if given.distributed:
            forked = work / "test_distributed_fork.py"
            forked.write_text(FORKED)
            way = shared._replace(joins=False, ranks=given.ranks)
            found.append(compare(forked, way))
    total = sum((one.kinds for one in found), Counter[str]())
    print(
        f"\n{total.total()} tests both ways:", *(f"{n} {k}" for k, n in total.items())
    )
    for title, part in (("a probe is felt", 1), ("flakes", 2), ("errors of probes", 3)):
        texts = [text for one in found for text in one[part]]
        print(f"\n{title}: {len(texts)}", *texts, sep="\n", flush=True)
    sys.exit(any(one.steady or one.losses for one in found))


if __name__ == "__main__":
    main()
