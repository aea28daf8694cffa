"""Every error distdoctor raises on purpose.

`DistdoctorError` is the root: the command line prints its text and exits with 2;
any other exception is a bug of ours, keeps its traceback and exits with 3. A message
says what was expected, what was found, and what the reader can do next.
"""

from __future__ import annotations


class DistdoctorError(Exception):
    """Something is wrong with what distdoctor was given, not with distdoctor."""


class SketchError(DistdoctorError):
    """A drawing of a run cannot be read."""

    def __init__(self, line: int, word: str, problem: str) -> None:
        self.line = line  # 1-based
        self.word = word
        super().__init__(f"sketch, line {line}: {word!r} {problem}")


class CheckMalformed(DistdoctorError):
    """A file in `checks/` does not have the shape of a check."""


class CheckUnknown(DistdoctorError):
    """There is no check of that code."""


class JournalUnreadable(DistdoctorError):
    """A file is not a journal of ours, or of a version this release cannot read."""


class RecordUnreadable(DistdoctorError):
    """A record folder holds no run that can be judged."""


class LeavingsMissing(DistdoctorError):
    """Nothing that a job left behind is where it was looked for."""


class NothingToWatch(DistdoctorError):
    """There is no running job to look at, or no way to show it here."""


class StatusUnavailable(DistdoctorError):
    """A running job does not tell its status where it was asked."""


class PackageMissing(DistdoctorError):
    """What was asked for needs a package that is not installed."""


class WorkingDirectoryGone(DistdoctorError):
    """The folder that the command was called in has been removed."""


class LaunchRefused(DistdoctorError):
    """The job cannot be started as asked: no script, no ranks, no room, no program."""


class SlotsTaken(DistdoctorError):
    """Slots for ranks, or GPUs, that others hold and do not give back."""


class NoStandIn(DistdoctorError, RuntimeError):
    """A job on the CPU asks for something of CUDA's that nothing can take the place of.

    Raised in the job, where torch would raise a RuntimeError.
    """


class MissingEvidence(DistdoctorError):
    """A check cannot decide, because the run does not hold what it needs.

    Raised by a check; the examination turns it into the verdict *unknown* and shows
    the text as its reason, so the text names what is missing and from which ranks.
    """


class CauseUnknown(MissingEvidence):
    """A check sees what its disease does, and not why: another check may know that."""


class EquivalenceBroken(DistdoctorError, AssertionError):
    """Two ways to make a step, which must come to the same, do not.

    Raised in a test; the text names the property, the smallest example and the factor.

    Attributes:
        excess: The error, in units of what rounding can explain.
        factor: By which all gradients are wrong; 0.0: by none, or not known.
    """

    def __init__(self, text: str, *, excess: float = 0.0, factor: float = 0.0) -> None:
        self.excess, self.factor = excess, factor
        super().__init__(text)


class NotEquivalentByNature(DistdoctorError):
    """What was to be shown equal is not meant to be: the model couples its samples."""


class StepUnusable(DistdoctorError):
    """A step to be tried makes no step of its optimizer, or gets what it cannot use."""


class HypothesisMissing(DistdoctorError, ImportError):
    """The library hypothesis, which draws the examples, is not installed."""


class HorovodUnavailable(DistdoctorError):
    """Horovod cannot be built, installed or used where it was asked for."""


class SourceMissing(DistdoctorError):
    """A file or folder is not there whose text is to be read."""


class NotWell(DistdoctorError, AssertionError):
    """A run that was to be well is not; the text is its report."""


class FormatUnknown(DistdoctorError, ValueError):
    """Reports are written in no format of that name."""
