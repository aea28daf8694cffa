"""Records how long a rank was ready to run but had to wait for a processor.

Ranks share the machine on which they are tried with one another and with all else; how
late that makes them says nothing about the job.
"""

from __future__ import annotations

from pathlib import Path

from distdoctor.model.observations.environment import Delayed
from distdoctor.probes import shared_clock
from distdoctor.probes.harmless import harmless
from distdoctor.probes.probe import Probe
from distdoctor.probes.recorder import RECORDER

_FILE = Path("/proc/self/schedstat")

_MOST = 512  # samples; when there are more, every second one is left out

_SPACING_NS = 100_000_000  # between two samples, at first


class Delays:
    """Samples of the scheduling delay since the rank joined."""

    def __init__(self) -> None:
        self.reset()

    def reset(self) -> None:
        """Forget all state: the process starts to play in another run."""
        self._samples: list[tuple[int, int]] = []
        self._spacing_ns = _SPACING_NS
        self._next_ns = 0

    @property
    def is_looking(self) -> bool:
        """Whether the rank has joined, and the system reports delays."""
        return bool(self._samples)

    def stepped(self) -> None:
        """Called after an optimizer step."""
        if self._samples and shared_clock.now_ns() >= self._next_ns:
            self.look()

    @harmless
    def look(self) -> None:
        """Take a sample of the scheduling delay."""
        now_ns = shared_clock.now_ns()
        self._samples.append((now_ns // 1_000_000, _delay_ns() // 1_000_000))
        if len(self._samples) > _MOST:
            del self._samples[1::2]
            span_ms = self._samples[-1][0] - self._samples[0][0]
            self._spacing_ns = span_ms * 1_000_000 // len(self._samples)
        self._next_ns = now_ns + self._spacing_ns

    def tell(self) -> None:
        """Record the samples; called at the end, and before that now and then."""
        self.look()
        at_ms, delay_ms = zip(*self._samples, strict=True)
        RECORDER.observe(Delayed(at_ms=at_ms, delay_ms=delay_ms))


DELAYS = Delays()


def _joined() -> None:
    if _FILE.exists():  # Linux
        DELAYS.look()


def _flush() -> None:
    if DELAYS.is_looking:
        DELAYS.tell()


def _delay_ns() -> int:
    """How long the main thread has waited for a processor.

    Source: the kernel's Documentation/scheduler/sched-stats.rst, /proc/<pid>/schedstat.
    """
    with _FILE.open() as file:
        return int(file.read().split()[1])


PROBE = Probe(
    joined=_joined, stepped=lambda _: DELAYS.stepped(), flush=_flush, reset=DELAYS.reset
)
