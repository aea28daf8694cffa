"""`distdoctor autopsy --ras`: a running job is asked, and judged."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from ras_reports import DEAD, communicator, report, server

from distdoctor.checking import judged_leavings
from distdoctor.cli import autopsy
from distdoctor.errors import StatusUnavailable


def autopsied(*arguments: str) -> tuple[int, dict[str, Any]]:
    result = CliRunner().invoke(
        autopsy.run, [*arguments, "--format", "json"], catch_exceptions=False
    )
    return result.exit_code, json.loads(result.stdout)


@pytest.fixture(autouse=True)
def _at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(judged_leavings, "_PAUSE_S", 0.0)
    monkeypatch.setattr(judged_leavings.ask_ras, "__defaults__", (0.0,))


def test_a_dead_rank_is_told() -> None:
    with server([report(communicator(8, missing={5: DEAD}))]) as (port, _):
        status, reported = autopsied("--ras", f"127.0.0.1:{port}")
    assert status == 1
    (finding,) = reported["findings"]
    assert (finding["code"], finding["ranks"]) == ("DD202", [5])


def test_a_job_that_answers_is_not_called_well(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with server([report(communicator(8))]) as (port, _):
        monkeypatch.setenv("NCCL_RAS_ADDR", f"127.0.0.1:{port}")
        status, reported = autopsied("--ras")
    assert (status, reported["verdict"], reported["findings"]) == (4, "unknown", [])


def test_saved_reports_and_a_running_job_together(tmp_path: Path) -> None:
    saved = tmp_path / "status.json"
    saved.write_bytes(report(communicator(8, missing={5: DEAD})))
    with server([report(communicator(8, digest="0x2"))]) as (port, _):
        status, _ = autopsied(str(tmp_path), "--ras", f"127.0.0.1:{port}")
    assert status == 1


def test_nothing_to_look_at_is_an_error_of_use() -> None:
    assert CliRunner().invoke(autopsy.run, []).exit_code == 2


def test_a_path_is_no_address() -> None:
    result = CliRunner().invoke(autopsy.run, ["--ras", "logs"])
    assert isinstance(result.exception, StatusUnavailable)
