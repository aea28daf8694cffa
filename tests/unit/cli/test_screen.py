"""What the screen writes of a job's output, and what it adds."""

import io
import os
import sys
from pathlib import Path

import pytest

from distdoctor.cli.screen import Screen, status_line


@pytest.mark.parametrize(
    ("written", "shown"), [([b"a\n"], b"a\n"), ([b"a\n", b"b"], b"a\nb\n"), ([], b"")]
)
def test_the_report_begins_on_a_line_of_its_own(
    written: list[bytes], shown: bytes, capfdbinary: pytest.CaptureFixture[bytes]
) -> None:
    with Screen(divert=False, live=False) as screen:
        for text in written:
            screen.output("stdout", text)
    assert capfdbinary.readouterr() == (shown, b"")


def test_output_makes_way_for_a_report_to_machines(
    capfdbinary: pytest.CaptureFixture[bytes],
) -> None:
    with Screen(divert=True, live=False) as screen:
        assert screen.surface.joined
        screen.output("stdout", b"a\n")
        screen.output("stderr", b"b\n")
    assert capfdbinary.readouterr() == (b"", b"a\nb\n")


def test_streams_that_are_no_files_are_no_terminals(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for name in ("stdout", "stderr"):
        monkeypatch.setattr(sys, name, io.TextIOWrapper(io.BytesIO()))
    surface = Screen(divert=False, live=False).surface
    assert (dict(surface.terminals), surface.joined) == ({}, False)


def test_a_terminal_is_told_what_a_command_does_meanwhile(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("TERM", "xterm")
    here, there = os.openpty()
    with os.fdopen(there, "w") as terminal:
        monkeypatch.setattr(sys, "stderr", terminal)
        with status_line("looking at [rank 0]") as say:
            say("looking at [rank 0] · 3 s")
        terminal.flush()
        shown = b""
        while b"[rank 0]" not in shown:  # a terminal gives a part at a time
            shown += os.read(here, 65536)
    os.close(here)
    assert b"looking at [rank 0]" in shown


def test_a_file_has_no_line_of_what_a_command_does(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    with (tmp_path / "stderr").open("w") as file:
        monkeypatch.setattr(sys, "stderr", file)
        with status_line("looking") as say:
            say("looking still")
    assert (tmp_path / "stderr").read_text() == ""
