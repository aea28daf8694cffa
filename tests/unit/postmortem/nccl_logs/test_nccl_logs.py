"""Logs of NCCL made by rule, torn, packed, piped, in pieces; and any bytes."""

import gzip
import io
import json
import random
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from hypothesis import given, settings
from hypothesis import strategies as st
from made_nccl_logs import FAULTS, LAUNCHERS, VERSIONS, Made, Maker, is_right

from distdoctor.cli import app
from distdoctor.judging import judge_run
from distdoctor.postmortem.evidence_run import manifest_of, run_of
from distdoctor.postmortem.job_evidence import Evidence
from distdoctor.postmortem.leavings import Leaving
from distdoctor.postmortem.nccl_logs import log_pieces
from distdoctor.postmortem.nccl_logs.line_grammar import CALL, INIT, PREFIX
from distdoctor.postmortem.nccl_logs.nccl_reader import read_input, recognises
from distdoctor.postmortem.nccl_logs.piece_scanner import Scanner
from distdoctor.postmortem.recognising import gather
from distdoctor.report import json as json_report

Report = dict[str, Any]


def report_of(evidence: Evidence) -> Report:
    judged = judge_run(run_of(evidence), manifest_of(evidence, ["-"], ".", "nccl"))
    report: Report = json.loads(json_report.render(judged.report, judged.run))
    return report


def judged(text: str | bytes) -> Report:
    evidence = Evidence()
    some = text.encode() if isinstance(text, str) else text
    read_input(io.BytesIO(some), evidence)
    return report_of(evidence)


def made(name: str, version: str, launcher: str = "none", **rest: int) -> Made:
    return FAULTS[name](Maker(version, launcher, **rest))


@pytest.mark.parametrize("name", FAULTS)
def test_each_fault_is_told_and_its_healthy_twins_are_not(name: str) -> None:
    for n, version in enumerate(VERSIONS[len(name) % 5 :: 5]):
        launcher = LAUNCHERS[(n * 4 + len(name)) % len(LAUNCHERS)]
        hosts, per_host = ((2, 2), (3, 2), (2, 4))[n % 3]
        log = FAULTS[name](Maker(version, launcher, hosts, per_host, n))
        wrong = is_right(log, judged(log.text))
        assert not wrong, f"{version} {launcher}: {wrong}"


@pytest.mark.parametrize("launcher", LAUNCHERS)
def test_each_launcher_prefix_is_read(launcher: str) -> None:
    log = made("other_count", "2.20.5", launcher)
    assert not is_right(log, judged(log.text))


@pytest.mark.parametrize("version", VERSIONS)
def test_a_communicator_is_read_in_the_words_of_each_version(version: str) -> None:
    m = Maker(version)
    m.init()
    for _, line in m.out:
        prefix = PREFIX.search(line.encode())
        assert prefix is not None
        body = line.encode()[prefix.end() :]
        assert b"via" in body or INIT.match(body), line


def torn(text: str, size: int = 256) -> bytes:
    """What processes that share a pipe write: blocks of each, in any order."""
    blocks: dict[str, bytes] = {}
    for line in text.splitlines(keepends=True):
        process = line.rpartition(" NCCL ")[0][:20]
        blocks[process] = blocks.get(process, b"") + line.encode()
    rest = [one for one in blocks.values() if one]
    draw, whole = random.Random(1), []
    while rest:
        n = draw.randrange(len(rest))
        whole.append(rest[n][:size])
        rest[n] = rest[n][size:]
        rest = [one for one in rest if one]
    return b"".join(whole)


@pytest.mark.parametrize("size", [64, 100, 256, 1000, 4096])
@pytest.mark.parametrize("name", ["healthy", "healthy_subgroups", "healthy_midrun"])
def test_torn_lines_of_a_healthy_job_accuse_nobody(name: str, size: int) -> None:
    for version in ("2.8.4", "2.19.3", "2.26.2"):
        report = judged(torn(made(name, version, hosts=1, per_host=4).text, size))
        assert not [one for one in report["findings"] if one["severity"] == "error"]


def test_a_file_in_pieces_tells_the_same_as_a_whole_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("healthy", "missing_call", "gpu_memory", "lag"):
        path = tmp_path / f"{name}.log"
        path.write_text(made(name, "2.21.5").text)
        leaving = Leaving(str(path), path.stat().st_size)
        whole = log_pieces.read_all([leaving]).piece
        monkeypatch.setattr(log_pieces, "_PIECE", 997)
        monkeypatch.setattr(log_pieces, "BLOCK", 300)
        parts = log_pieces.read_all([leaving]).piece
        monkeypatch.undo()
        assert parts.lines == whole.lines
        assert parts.nccl_lines == whole.nccl_lines
        assert report_of(gather([str(path)]))["findings"] or name == "healthy"
        for key, process in whole.processes.items():
            same = parts.processes[key]
            assert same.count == process.count
            assert [one.line for one in same.lives] == [
                one.line for one in process.lives
            ]
            assert [one.line for one in same.complaints] == [
                one.line for one in process.complaints
            ]


def test_files_of_several_ranks_packed_or_not_are_one_job(tmp_path: Path) -> None:
    log = made("other_root", "2.27.5", hosts=2, per_host=2)
    by_process: dict[str, list[str]] = {}
    for line in log.text.splitlines(keepends=True):
        if " NCCL " in line:
            by_process.setdefault(line.split(" [")[0].rpartition(":")[0], []).append(
                line
            )
    for n, (name, lines) in enumerate(by_process.items()):
        text = "".join(lines)
        path = tmp_path / f"nccl.{name.replace(':', '.')}"
        if n % 2:
            with gzip.open(f"{path}.gz", "wb") as file:
                file.write(text.encode())
        else:
            path.write_text(text)
    runner = CliRunner().invoke(app, ["nccl", "--format", "json", str(tmp_path)])
    assert runner.exit_code == 1, runner.output
    assert not is_right(log, json.loads(runner.output))
    assert not is_right(log, report_of(gather([str(tmp_path)])))


def test_the_command_reads_a_pipe_and_says_what_is_well() -> None:
    log = made("healthy", "2.24.3", "srun")
    runner = CliRunner().invoke(app, ["nccl", "-"], input=log.text)
    assert runner.exit_code == 4, runner.output
    assert "1 of 4 ranks" in runner.output
    assert "NCCL 2.24.3" in runner.output


def test_a_file_without_a_line_of_nccl_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "x.log"
    path.write_text("step 1\n")
    runner = CliRunner().invoke(app, ["nccl", str(path)])
    assert runner.exit_code != 0
    assert "no line of NCCL" in str(runner.exception)
    assert not recognises("x.log", b"step 1\n")
    assert not recognises("x.py", b"h:1:1 [0] NCCL INFO x")
    assert recognises("x.log", b"h:1:1 [0] NCCL INFO x")


def test_ranks_of_unknown_number_are_named_by_host() -> None:
    log = made("warnings_only", "2.20.5")
    findings: list[Any] = judged(log.text)["findings"]
    finding = findings[0]
    assert finding["ranks"] == []
    assert log.hosts[0] in finding["summary"]
    assert finding["details"]["line"].startswith("Cuda failure")


_LINES = [
    line.encode()
    for name in FAULTS
    for line in made(name, "2.23.4").text.splitlines()[-12:]
]


@given(st.binary(max_size=400))
@settings(max_examples=200, deadline=None)
def test_any_bytes_can_be_read(some: bytes) -> None:
    scanner = Scanner("x")
    scanner.feed(some)
    scanner.end()
    judged(some)


@given(st.data())
@settings(max_examples=150, deadline=None)
def test_lines_that_were_changed_anyhow_can_be_judged(data: st.DataObject) -> None:
    lines = data.draw(st.lists(st.sampled_from(_LINES), max_size=12))
    text = bytearray(b"\n".join(lines))
    for _ in range(data.draw(st.integers(0, 8))):
        if text:
            at = data.draw(st.integers(0, len(text) - 1))
            new = data.draw(
                st.sampled_from([b"", b"\n", b"\r", b"9" * 20, b"\xff", b"0x"])
            )
            text[at : at + 1] = new
    judged(bytes(text))


def test_memory_is_bounded_by_what_is_kept() -> None:
    scanner = Scanner("x")
    line = b"h:1:1 [0] a.cc:1 NCCL WARN Cuda failure 'x'\n"
    scanner.feed(line * 50_000)
    scanner.feed(
        b"".join(b"h:1:1 [0] NCCL INFO NCCL_A%d set to 1\n" % n for n in range(999))
    )
    scanner.feed(b"[rank1]: DistBackendError\n" * 50_000)
    piece = scanner.end()
    (process,) = piece.processes.values()
    assert len(process.complaints) <= 64
    assert len(process.settings) <= 256
    assert len(piece.others) <= 20_000


def test_a_call_is_read_as_versions_and_rccl_print_it() -> None:
    for tail in ("[nranks=8] stream 0xa", "[nranks=8] stream 0xa task 0 globalrank 2"):
        text = (
            "AllReduce: opCount 1e7 sendbuff (nil) recvbuff 0x1 count 18816 datatype 7 "
            f"op 0 root 0 comm 0x55 {tail}"
        )
        assert CALL.match(text.encode())


def two_hosts_and(line: str) -> Any:
    """Findings of a job whose GPUs have the same addresses on both hosts."""
    begun = [
        f"{host}:{pid}:{pid} [0] NCCL INFO ncclCommInitRank comm 0x{pid} rank {rank} "
        f"nranks 2 cudaDev 0 nvmlDev 0 busId c3000 commId 0x5 - Init COMPLETE"
        for rank, (host, pid) in enumerate([("a", 11), ("b", 22)])
    ]
    return judged("\n".join([*begun, line, ""]))["findings"]


def test_a_gpu_that_failed_is_that_of_the_process_that_is_named() -> None:
    xid = "NVRM: Xid (PCI:0000:c3:00): 48{}, Double Bit ECC Error"
    (finding,) = two_hosts_and(xid.format(", pid=22, name=python"))
    assert (finding["code"], finding["ranks"]) == ("DD606", [1])
    (finding,) = two_hosts_and(xid.format(""))
    assert (finding["code"], finding["ranks"]) == ("DD606", [])


def test_sockets_have_no_gpu_direct_and_nobody_is_told_so() -> None:
    line = "a:11:11 [0] NCCL INFO {} : GPU Direct RDMA Disabled for HCA 0 '{}'"
    told = [one["code"] for one in two_hosts_and(line.format("NET/Socket", "lo"))]
    assert "DD602" not in told
    told = [one["code"] for one in two_hosts_and(line.format("NET/IB", "mlx5_0"))]
    assert "DD602" in told


def test_what_torch_sets_for_repeatable_results_is_no_switch_left_on() -> None:
    line = "{}:{}:{} [0] NCCL INFO NCCL_ALGO set by environment to {}"
    for value, codes in (("^NVLS", []), ("Ring", ["DD611"])):
        lines = [line.format(h, p, p, value) for h, p in (("a", 11), ("b", 22))]
        told = [one["code"] for one in two_hosts_and("\n".join(lines))]
        assert [code for code in told if code == "DD611"] == codes
