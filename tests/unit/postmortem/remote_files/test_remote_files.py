"""Files far away: what fsspec's file systems hold gets the verdict of local files."""

import bz2
import gzip
import io
import os
import signal
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import fsspec
import pytest
from autopsies import findings_in
from click.testing import CliRunner
from fsspec.implementations.memory import MemoryFileSystem
from recorder_dumps import Simulation, Style, changed, ddp, dumps, write

from distdoctor.cli import app
from distdoctor.errors import LeavingsMissing
from distdoctor.judging import judge_run
from distdoctor.postmortem.evidence_run import manifest_of, run_of
from distdoctor.postmortem.recognising import gather
from distdoctor.postmortem.remote_files import FetchedFiles, listed, without_secrets
from distdoctor.report.schema import Report

STACK = """Process 4711: python train.py
Thread 4711 (idle): "MainThread"
    read_shard (/job/shards.py:40)
    main (/job/train.py:58)
    <module> (/job/train.py:70)
"""


@pytest.fixture(autouse=True)
def scratch(tmp_path_factory: Any, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A folder for temporary files, in which nothing may be left."""
    folder: Path = tmp_path_factory.mktemp("scratch")
    monkeypatch.setattr(tempfile, "tempdir", str(folder))
    MemoryFileSystem.store.clear()
    MemoryFileSystem.pseudo_dirs[:] = [""]
    yield folder
    assert list(folder.iterdir()) == []


def report_on(*addresses: str) -> Report:
    evidence = gather(addresses)
    return judge_run(run_of(evidence), manifest_of(evidence, [*addresses], "/")).report


@pytest.fixture
def job(tmp_path: Path) -> Path:
    """A folder with the dumps of a job in which rank 3 passes another dtype."""
    made = ddp(6, 8)
    changed(made, 3, 20, dtype="Half")
    write(tmp_path / "job", dumps(made, Simulation(made, 1), Style()), Style())
    return tmp_path / "job"


def put(address: str, folder: Path) -> None:
    """Copy a folder to a file system."""
    for file in folder.iterdir():
        with fsspec.open(f"{address}/{file.name}", "wb") as target:
            target.write(file.read_bytes())


def test_dumps_far_away_get_the_verdict_of_dumps_here(job: Path) -> None:
    put("memory://night/node0/dumps", job)
    here = report_on(str(job))
    assert findings_in(here) == [("DD103", (3,))]
    for address in ("memory://night", "memory://night/", f"file://{job}"):
        assert findings_in(report_on(address)) == findings_in(here)


def test_the_report_names_files_by_their_addresses(job: Path) -> None:
    put("memory://night", job)
    paths = {file.path for file in report_on("memory://night").files}
    assert paths == {f"memory:///night/{file.name}" for file in job.iterdir()}


def test_large_and_packed_files_are_fetched_whole(job: Path) -> None:
    lines = b"".join(b"step %d loss 0.5\n" % n for n in range(60_000))
    text = lines + b"[rank3]: Traceback (most recent call last):\n" * 2
    files = {
        "job.log": text,
        "job.log.gz": gzip.compress(text + os.urandom(300_000)),
        "rank3.txt.bz2": bz2.compress(STACK.encode()),
    }
    for name, data in files.items():
        with fsspec.open(f"memory://night/{name}", "wb") as target:
            target.write(data)
    with FetchedFiles() as fetched:
        found = listed("memory://night", 10)
        copies = [copy for copy, why in fetched.beginnings(found) if not why]
        assert Path(copies[0]).stat().st_size < len(text)
        assert fetched.whole(copies) == {}
        kept = [Path(copy).read_bytes() for copy in copies]
        assert dict(zip(sorted(files), kept, strict=True)) == files
    put("memory://night", job)
    kinds = {one.kind for one in gather(["memory://night"]).sources}
    assert {"flight recorder dump", "stack dump of py-spy"} <= kinds


def test_a_file_that_cannot_be_read_is_listed_and_the_others_are_read(
    job: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    put("memory://night", job)
    whole = MemoryFileSystem.cat_file

    def cat_file(self: Any, path: str, *rest: Any, **more: Any) -> Any:
        if path.endswith("_5"):
            raise PermissionError("AccessDenied for token=hush at https://a:b@h/x?s=1")
        return whole(self, path, *rest, **more)

    monkeypatch.setattr(MemoryFileSystem, "cat_file", cat_file)
    evidence = gather(["memory://night"])
    assert len(evidence.sources) == 5
    ((path, why),) = evidence.unreadable
    assert path.endswith("_5")
    assert why == "AccessDenied for token=… at https://h/x"


def test_a_file_that_breaks_off_is_listed(
    job: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    put("memory://night", job)
    with fsspec.open("memory://night/large.log", "wb") as target:
        target.write(b"[rank0]: ProcessGroupNCCL watchdog timeout\n" * 9_000)
    opened = MemoryFileSystem.open

    def broken(self: Any, path: str, *rest: Any, **more: Any) -> Any:
        if path.endswith("large.log") and "block_size" in more:
            raise ConnectionError("connection reset")
        return opened(self, path, *rest, **more)

    monkeypatch.setattr(MemoryFileSystem, "open", broken)
    evidence = gather(["memory://night"])
    assert ("memory:///night/large.log", "connection reset") in evidence.unreadable
    assert len(evidence.sources) == 6


def test_several_files_are_fetched_at_once(
    job: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    put("memory://night", job)
    both = threading.Barrier(6, timeout=30)
    whole = MemoryFileSystem.cat_file

    def cat_file(self: Any, *rest: Any, **more: Any) -> Any:
        both.wait()
        return whole(self, *rest, **more)

    monkeypatch.setattr(MemoryFileSystem, "cat_file", cat_file)
    assert len(gather(["memory://night"]).sources) == 6


def test_nothing_is_left_when_somebody_presses_ctrl_c(
    job: Path, scratch: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    put("memory://night", job)

    def pressed(*_: Any) -> Any:
        assert list(scratch.rglob("*")) != []
        raise KeyboardInterrupt

    monkeypatch.setattr("distdoctor.postmortem.recognising.whole", pressed)
    with pytest.raises(KeyboardInterrupt):
        gather(["memory://night"])


def test_nothing_is_left_when_a_scheduler_ends_it(job: Path, scratch: Path) -> None:
    program = (
        "import os, signal, sys\n"
        "import distdoctor.postmortem.recognising as it\n"
        "it.whole = lambda *_: os.kill(os.getpid(), signal.SIGTERM)\n"
        "it.gather(sys.argv[1:])\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", program, f"file://{job}"],
        env={**os.environ, "TMPDIR": str(scratch)},
        check=False,
    )
    assert done.returncode == 128 + signal.SIGTERM


def test_a_record_of_our_own_is_to_be_copied_here() -> None:
    with fsspec.open("memory://night/run.json", "wb") as target:
        target.write(b'{"schema": "distdoctor.record/2"}')
    ((_, why),) = gather(["memory://night"]).left_out
    assert why == "copy records of distdoctor to this machine to have them judged"


@pytest.mark.parametrize(
    ("address", "words"),
    [
        ("memory://nowhere/at/all", "there is no such file or folder"),
        ("nosuch://bucket/job", "fsspec knows no file system nosuch://"),
    ],
)
def test_what_is_not_there_is_wrong_usage(address: str, words: str) -> None:
    with pytest.raises(LeavingsMissing, match=words):
        gather([address])


def test_the_exit_status_and_the_report_of_the_command(job: Path) -> None:
    put("memory://night", job)
    done = CliRunner().invoke(app, ["autopsy", "memory://night"])
    assert done.exit_code == 1
    assert "DD103" in done.output
    assert "memory://" in done.output


def test_logs_of_nccl_are_read_far_away() -> None:
    line = "h0:10:10 [0] NCCL INFO NCCL version 2.21.5+cuda12.4\n"
    with fsspec.open("memory://night/nccl.log", "wb") as target:
        target.write(line.encode() * 100)
    done = CliRunner().invoke(app, ["nccl", "memory://night"])
    assert done.exit_code == 4, done.output


def test_a_missing_driver_is_named_in_one_sentence() -> None:
    program = (
        "import sys\n"
        "sys.modules[sys.argv.pop(1)] = None\n"
        "from distdoctor.cli import main\n"
        "main()\n"
    )
    for missing, words in (
        ("fsspec.core", "pip install 'distdoctor[remote]'"),
        ("s3fs", "the driver of fsspec for s3:// is not installed"),
    ):
        command = [sys.executable, "-c", program, missing, "autopsy", "s3://b/job"]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        assert done.returncode == 2
        assert words in done.stderr
        assert len(done.stderr.splitlines()) == 1


@pytest.mark.parametrize(
    ("told", "shown"),
    [
        ("s3://key:secret@bucket/a/b", "s3://bucket/a/b"),
        ("https://h/f?X-Amz-Signature=abc&x=1 gone", "https://h/f gone"),
        ("s3://bucket/what?/rank0", "s3://bucket/what?/rank0"),
        ("'aws_secret_access_key': 'abc/def'", "'aws_secret_access_key': '…'"),
        ("/plain/path?a=b@c", "/plain/path?a=b@c"),
    ],
)
def test_no_credentials_are_shown(told: str, shown: str) -> None:
    assert without_secrets(told) == shown


def test_no_credentials_of_an_address_are_in_the_report(
    job: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    put("memory://night", job)
    address = "memory://me:hush@night"
    monkeypatch.setattr(
        MemoryFileSystem,
        "_strip_protocol",
        classmethod(lambda _, path: "/night" + path.partition("night")[2]),
    )
    form = ["--format", "json"]
    done = CliRunner().invoke(app, ["autopsy", address, *form])
    assert done.exit_code == 1, done.output
    assert "hush" not in done.output


def test_an_unknown_size_is_no_hindrance(monkeypatch: pytest.MonkeyPatch) -> None:
    with fsspec.open("memory://night/rank3.txt", "wb") as target:
        target.write(STACK.encode())
    found = MemoryFileSystem.info

    def info(self: Any, path: str, **more: Any) -> Any:
        return {**found(self, path, **more), "size": None}

    monkeypatch.setattr(MemoryFileSystem, "info", info)
    monkeypatch.setattr(
        MemoryFileSystem, "_open", lambda *_, **__: io.BytesIO(STACK.encode())
    )
    (source,) = gather(["memory://night/rank3.txt"]).sources
    assert source.ranks == (3,)
