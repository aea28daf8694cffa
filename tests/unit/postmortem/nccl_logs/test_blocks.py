"""Lines are read many at a time: whatever the blocks, they tell the same."""

from __future__ import annotations

import io
from functools import cache
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from made_nccl_logs import Maker

from distdoctor.postmortem.nccl_logs import log_pieces
from distdoctor.postmortem.nccl_logs.piece_facts import Piece
from distdoctor.postmortem.nccl_logs.piece_scanner import Scanner
from distdoctor.postmortem.nccl_logs.word_sieve import WordSieve

_AMONG = (
    *(b"step 12 | loss 0.25", b"", b"waiting for 3 ranks", b"NCCL", b"[nranks=8]"),
    *(b"Out of memory: Killed process 1000", b"x" * 300, b" ".join([b"a"] * 40)),
    b"dgx01:1000:1150 [0] transport.cc:1 NCCL WARN Cuda failure 'out of memory'",
    b"dgx01:1000:1150 [0] NCCL INFO NET/IB : Got async event : port error",
)


@cache
def log_of_calls() -> list[bytes]:
    """The lines of a log of which most are of calls."""
    maker = Maker("2.21.5", "none", hosts=2, per_host=4)
    maker.start()
    maker.init()
    maker.steps(80)
    return maker.text().encode().splitlines()


def told(piece: Piece) -> dict[tuple[str, int], Any]:
    """What a log tells of each process, its calls in words."""
    words = {number: text for text, number in piece.words.items()}
    return {
        name: (
            {
                comm: [[words[number] for number in calls] for calls in lists]
                for comm, lists in log.calls.items()
            },
            [(one.what, one.line) for one in log.lives],
            [(one.text, one.line, one.calls) for one in log.complaints],
            (log.count, log.lines, log.torn, log.first, log.settings, log.version),
        )
        for name, log in piece.processes.items()
    }


def read(text: bytes) -> Piece:
    """A log as it is read from a stream."""
    return log_pieces.read_stream(io.BytesIO(text), "x")


@given(
    st.lists(st.tuples(st.integers(0, 4000), st.sampled_from(_AMONG)), max_size=80),
    st.sampled_from([97, 1000, 8192, 1 << 15, 1 << 20]),
    st.sampled_from([b"\n", b"\r\n"]),
)
@example([(n * 20, _AMONG[0]) for n in range(100)], 1 << 20, b"\n")
@example([(n * 9, _AMONG[-2]) for n in range(100)], 1 << 20, b"\n")
@example([(n * 9, _AMONG[-1]) for n in range(60)], 1 << 20, b"\n")
@settings(max_examples=30, deadline=None)
def test_blocks_of_any_size_tell_what_single_lines_tell(
    among: list[tuple[int, bytes]], block: int, line_end: bytes
) -> None:
    lines = list(log_of_calls())
    for at, line in among:
        lines.insert(at % (len(lines) + 1), line)
    text = line_end.join(lines) + line_end
    one_by_one = Scanner("x")
    for line in lines:
        one_by_one.feed(line + line_end)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(log_pieces, "BLOCK", block)
        together = read(text)
    alone = one_by_one.end()
    assert told(together) == told(alone)
    assert together.others == alone.others
    assert together.lines == alone.lines == len(lines)


def test_most_lines_of_calls_are_not_read_one_by_one() -> None:
    class Counting(Scanner):
        read_alone = 0

        def _read(self, line: bytes) -> None:
            self.read_alone += b"opCount" in line
            super()._read(line)

    scanner = Counting("x")
    scanner.feed(b"\n".join(log_of_calls()) + b"\n")
    calls = sum(log.count for log in scanner.end().processes.values())
    assert calls > 1000
    assert scanner.read_alone < 10


@given(st.binary(max_size=60), st.integers(0, 9), st.booleans())
def test_a_sieve_never_leaves_out_a_word_that_is_there(
    some: bytes, begin: int, has_word: bool
) -> None:
    sieve = WordSieve({b"NCCL": (b"NC", b"CC"), b"oom-kill:": (b"m-", b"-k")})
    text = some[:begin] + (b"oom-kill:" if has_word else b"") + some[begin:]
    found = sieve.words_in(text)
    for word in (b"NCCL", b"oom-kill:"):
        assert word in found or word not in text


def test_a_pair_that_is_not_in_its_word_is_refused() -> None:
    with pytest.raises(ValueError, match="no such pair"):
        WordSieve({b"NCCL": (b"CC", b"NC")})
