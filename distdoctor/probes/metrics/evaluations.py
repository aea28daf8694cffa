"""Records which metrics ranks exchange and print after an evaluation.

From the end of a pass in which backward never ran to the next time that it does, the
few numbers that a rank gives to communication are noted, and whether it writes numbers
to its output or to a log.
"""

from __future__ import annotations

import functools
import io
import logging
import re
import sys
from typing import Any

from distdoctor.model.observations.metrics import Contributed, Reported
from distdoctor.probes.call_sites import call_site
from distdoctor.probes.failures.handled_exceptions import notice
from distdoctor.probes.harmless import harmless
from distdoctor.probes.interruptions import is_interruption
from distdoctor.probes.metrics.printed_figures import FIGURES
from distdoctor.probes.metrics.small_values import few_values, total_of
from distdoctor.probes.probe import Probe
from distdoctor.probes.recorder import RECORDER

_MOST_TOLD = 500  # calls of a process

_MOST_PASSES = 8  # evaluations that something can be about

_MOST_TEXT = 4096  # characters that are looked at

_NUMBER = re.compile(r"\d")

_FRACTION = re.compile(r"\d\.\d|\d ?%")

_MARK = "distdoctor_reads"


class Metrics:
    """Follows evaluations, and the numbers that this rank exchanges and prints then.

    Attributes:
        passes: Evaluations since backward ran last, by the number of their pass.
        backwards: Number of backward passes.
    """

    def __init__(self) -> None:
        self.passes: tuple[int, ...] = ()
        self.backwards = 0
        self.reset()

    def reset(self) -> None:
        """Forget all state: the process starts to play in another run."""
        self.passes = ()
        self._contributions = 0
        self._reported = ""  # what of it is known already: "", "number", "fraction"

    def watch(self) -> None:
        """Start to watch the rank's output; called when it joins a job."""
        for stream in (sys.stdout, sys.stderr):
            _watch_stream(stream)
        _watch_logging()

    def evaluated(self, number: int) -> None:
        """Called at the end of a pass over a DataLoader without backward."""
        self.passes = (*self.passes, number)[-_MOST_PASSES:]
        self._reported = ""

    def train(self) -> None:
        """Called before each backward pass; on the hot path."""
        self.backwards += 1
        self.passes = ()

    @harmless
    def contribute(self, floating: int, argument: Any, site: str) -> None:
        """Called before a communication call, which is already recorded.

        Args:
            floating: How many floating-point numbers it gives.
            argument: The tensors that it reads.
            site: The user's line.
        """
        if self._contributions >= _MOST_TOLD:
            return
        self._contributions += 1
        observation = Contributed(
            passes=self.passes,
            values=few_values(floating, argument),
            total=total_of(argument),
        )
        RECORDER.observe(observation, site)

    @harmless
    def report(self, text: str) -> None:
        """Called when the rank prints or logs a text."""
        if self._reported == "fraction" or RECORDER.writer is None:
            return
        text = text[:_MOST_TEXT]
        if "\r" in text:  # a progress bar
            return
        fraction = _FRACTION.search(text) is not None
        if fraction or (not self._reported and _NUMBER.search(text)):
            self._reported = "fraction" if fraction else "number"
            observation = Reported(passes=self.passes, fraction=fraction)
            RECORDER.observe(observation, call_site(3))


METRICS = Metrics()


def _watch_stream(stream: Any) -> None:
    """See what is written to a stream of Python's own.

    `print` asks the stream for `write` each time; that it is one's own attribute is
    not seen by who asks for anything else. `print` itself has to stay what it is, for
    torch.compile knows it.
    """
    if type(stream) is not io.TextIOWrapper or _MARK in stream.__dict__:
        return
    made = stream.write

    @functools.wraps(made)
    def write(text: str, /) -> int:
        notice()
        if METRICS.passes:
            METRICS.report(text)
        if FIGURES.lines > 0:
            FIGURES.write(text)
        return made(text)

    stream.__dict__.update({"write": write, _MARK: True})


def _watch_logging() -> None:
    """See what goes to logs, which may be a file of each rank."""
    made = logging.Handler.handle
    if hasattr(made, _MARK):
        return

    @functools.wraps(made)
    def handle(self: Any, record: logging.LogRecord) -> Any:
        notice()
        if METRICS.passes or FIGURES.lines > 0:
            _logged(record)
        return made(self, record)

    setattr(handle, _MARK, True)
    logging.Handler.handle = handle  # type: ignore[method-assign]


def _logged(record: logging.LogRecord) -> None:
    try:
        text = record.getMessage()
    except Exception as error:  # a wrong message is for its handler to tell
        if is_interruption(error):
            raise
        return
    if METRICS.passes:
        METRICS.report(text)
    if FIGURES.lines > 0:
        FIGURES.log(text)


PROBE = Probe(reset=METRICS.reset)
