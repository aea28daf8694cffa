"""Records of NCCL's Inspector: stragglers and slow links, from durations alone."""

from __future__ import annotations

import gzip
from collections.abc import Callable
from pathlib import Path
from tempfile import TemporaryDirectory

from hypothesis import given
from hypothesis import strategies as st
from inspector_records import record

from distdoctor.analysis.communicators.late_members import late_members, slow_links
from distdoctor.model.findings import Severity
from distdoctor.model.run import Run
from distdoctor.postmortem.evidence_run import run_of
from distdoctor.postmortem.job_evidence import Evidence
from distdoctor.postmortem.leavings import find
from distdoctor.postmortem.nccl_inspector.duration_table import DurationTable
from distdoctor.postmortem.nccl_inspector.inspector_reader import READER
from distdoctor.postmortem.recognising import gather

MS = 1000


def job(folder: Path, us: Callable[[int, int], int], ranks: int = 4) -> Run:
    """A job of which each rank records 40 collectives, with these durations."""
    for rank in range(ranks):
        text = b"".join(record(rank, n, us(rank, n), size=ranks) for n in range(40))
        (folder / f"node{rank}-pid{100 + rank}.log").write_bytes(text)
    return run_of(gather([str(folder)]))


def test_who_comes_last_has_the_shortest_durations(tmp_path: Path) -> None:
    run = job(tmp_path, lambda rank, _: 2 * MS if rank == 2 else 42 * MS)
    (found,) = late_members(run)
    assert found.culprits == (2,)
    assert found.severity is Severity.WARNING
    assert "(host node2) came last to 40 of 40" in found.message
    assert "by 40 ms in the median" in found.message
    assert not list(late_members(run, {2}))


def test_who_is_late_in_turns_is_no_straggler(tmp_path: Path) -> None:
    run = job(tmp_path, lambda rank, n: 2 * MS if rank == n % 4 else 42 * MS)
    assert not list(late_members(run))


def test_short_waits_are_the_pace_of_things(tmp_path: Path) -> None:
    run = job(tmp_path, lambda rank, _: 2 * MS if rank == 2 else 9 * MS)
    assert not list(late_members(run))


def test_waits_that_cost_little_time_are_not_told(tmp_path: Path) -> None:
    def us(rank: int, n: int) -> int:
        return 2 * MS if rank == 2 or n % 2 else 22 * MS

    assert not list(late_members(job(tmp_path, us)))


def test_a_rank_without_a_record_hides_who_is_late(tmp_path: Path) -> None:
    job(tmp_path, lambda rank, _: 2 * MS if rank == 2 else 42 * MS)
    (tmp_path / "node3-pid103.log").unlink()
    assert not list(late_members(run_of(gather([str(tmp_path)]))))


def test_times_of_the_host_and_rooted_operations_tell_nothing(tmp_path: Path) -> None:
    lines = [
        record(rank, n, 2 * MS if rank == 2 else 42 * MS, op=op, source=source)
        for rank in range(4)
        for n in range(40)
        for op, source in (("AllReduce", "collective_cpu"), ("Broadcast", "kernel_gpu"))
    ]
    (tmp_path / "a.log").write_bytes(b"".join(lines))
    evidence = gather([str(tmp_path)])
    assert len(evidence.sources) == 1
    assert not list(late_members(run_of(evidence)))


def pairs(folder: Path, slow: dict[int, int]) -> Run:
    """Eight communicators of two hosts each; some take so many times as long."""
    for pair in range(8):
        text = b"".join(
            record(
                rank,
                n,
                (5 * MS + 10 * rank) * slow.get(pair, 1),
                size=2,
                comm=f"0x{pair:x}",
                host=f"node{pair + 8 * rank}",
                pid=1000 + pair + 8 * rank,
            )
            for n in range(30)
            for rank in (0, 1)
        )
        (folder / f"pair{pair}.jsonl.gz").write_bytes(gzip.compress(text))
    return run_of(gather([str(folder)]))


def test_a_slow_link_is_told_as_advice(tmp_path: Path) -> None:
    (found,) = slow_links(pairs(tmp_path, {5: 6}))
    assert found.severity is Severity.WARNING
    assert found.details["hosts"] == ["node13", "node5"]
    assert not found.culprits
    assert "30,000 µs in the median on communicator 0x5" in found.message


def test_links_alike_are_not_told(tmp_path: Path) -> None:
    assert not list(slow_links(pairs(tmp_path, {5: 2})))


def test_what_most_links_show_is_no_slow_link(tmp_path: Path) -> None:
    assert not list(slow_links(pairs(tmp_path, dict.fromkeys(range(4), 6))))


def test_of_very_many_records_the_same_collectives_are_kept() -> None:
    orders = (range(4), range(3, -1, -1))
    for ranks in orders:
        table = DurationTable(most=100)
        for rank in ranks:
            for n in range(200):
                table.add("c", 4, ("h", rank), (rank, 0, n, 8, 10 + rank, n))
        ((_, _, found),) = table.joint()
        assert found.us.shape == (25, 4)
        assert found.every == 193


def test_damaged_lines_are_counted(tmp_path: Path) -> None:
    good = record(0, 1, 5)
    (tmp_path / "a.log").write_bytes(good + good[:50] + b"\n" + good)
    (tmp_path / "b.log").write_bytes(good.replace(b'"rank": 0', b'"rank": -1'))
    evidence = gather([str(tmp_path)])
    assert [source.remark for source in evidence.sources] == [
        "1 lines could not be read"
    ]
    assert [Path(path).name for path, _ in evidence.unreadable] == ["b.log"]


@given(
    st.lists(
        st.binary(max_size=80)
        | st.tuples(st.integers(0, 400), st.binary(max_size=4)).map(
            lambda change: (
                (line := record(0, 1, 5, size=2))[: change[0]]
                + change[1]
                + line[change[0] :]
            )
        ),
        max_size=6,
    )
)
def test_any_bytes_are_taken(lines: list[bytes]) -> None:
    with TemporaryDirectory() as folder:
        (Path(folder) / "a.log").write_bytes(b"\n".join(lines))
        evidence = Evidence()
        READER.read(list(find([folder])), evidence)
        assert len(evidence.sources) + len(evidence.unreadable) >= 1
