"""What the screen writes of a job's output, and what it adds."""

import io
import sys

import pytest

from distdoctor.cli.screen import Screen


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
