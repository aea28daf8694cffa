"""Python tracebacks in lines that somebody else's lines stand between."""

from __future__ import annotations

import re
from dataclasses import dataclass, field, replace
from pathlib import Path

from distdoctor.journal.texts import relative
from distdoctor.model.events import Place
from distdoctor.model.peer_faults import COMMUNICATING, PEER_IS_GONE

BEGINS = "Traceback (most recent call last):"

_FRAME = re.compile(
    r'\s*File "(?P<file>[^"]{1,4000})", line (?P<line>\d{1,9})'
    r"(?:, in (?P<function>.{1,400}))?"
)
_ERROR = re.compile(r"(?P<error>[A-Za-z_][\w.]{0,300})(?::(?: (?P<message>.*))?)?$")
_FOLLOWS = (
    "During handling of the above exception, another exception occurred:",
    "The above exception was the direct cause of the following exception:",
)
_LIBRARY = re.compile(
    r"/(?:site|dist)-packages/|/lib/python\d|^<|/torch/(?:distributed|nn|utils|_)|\\lib\\"
)
_MISMATCH = "Detected mismatch between"
_OF_PROCESS = "multiprocessing/process.py"
_MOST_FRAMES = 2_000
_MOST_FUNCTIONS = 40
_LONGEST_MESSAGE = 4_000
_MOST_LINES = 8  # of a message
_PATIENCE = 400  # lines of the stream that may be no traceback's, while one is open


@dataclass(frozen=True, slots=True)
class PrintedException:
    """An exception with its traceback.

    Attributes:
        error: Its class, without the module.
        message: Its text.
        place: The innermost line of the user's source; None: there is none.
        innermost: The file of the innermost frame, whose ever it is; empty: nothing
            tells.
        at: Number of the line of the file where the traceback begins.
        functions: Those of torch that it came through, outermost first.
        of_process: It came out of a process of Python's multiprocessing, and ended it.
    """

    error: str
    message: str
    place: Place | None
    innermost: str
    at: int = 0
    functions: tuple[str, ...] = ()
    of_process: bool = False

    @property
    def is_peers_fault(self) -> bool:
        """Whether it only tells that a peer, or the connection to it, is gone."""
        file = self.innermost.replace("\\", "/")
        by_torch = not file or any(f"{part}/" in file for part in COMMUNICATING)
        if self.error.startswith("Dist"):  # DistNetworkError, DistStoreError, …
            return PEER_IS_GONE.search(self.message) is not None
        return by_torch and PEER_IS_GONE.search(self.message) is not None


def place_of(frames: list[Place]) -> Place | None:
    """The innermost of these lines that is the user's own, named as the user knows it.

    Args:
        frames: Outermost first.
    """
    own = [one for one in frames if not _LIBRARY.search(one.file)]
    if not own:
        return None
    return replace(own[-1], file=relative(own[-1].file, str(Path.cwd())))


@dataclass(slots=True)
class TracebackParser:
    """Reads the tracebacks of one stream of lines.

    Attributes:
        open: A traceback has begun, and its exception has not come.
        last: The last exception whose message may still go on.
    """

    open: bool = False
    last: PrintedException | None = None
    _at: int = 0
    _frames: list[Place] = field(default_factory=list)
    _innermost: str = ""
    _code: bool = False
    _strange: int = 0
    _more: int = 0

    def feed(
        self, text: str, number: int, *, is_torn: bool = False
    ) -> PrintedException | None:
        """Read a line.

        Args:
            text: The line, without marks.
            number: Its number in the file.
            is_torn: The line is part of a traceback for certain, where it looks like
                one, though the first lines of that may be missing.

        Returns:
            The exception that this line is the last of, or the first of its message.
        """
        if BEGINS in text[:200]:
            self._begin(number)
            return None
        if not self.open:
            if not is_torn or self.last is not None:
                return None
            if not _FRAME.match(text):
                return self._alone(text, number)
            self._begin(number)
        if found := _FRAME.match(text):
            self._frame(found)
            return None
        if not text.strip() or text[0] in " \t|+":
            return None  # code, carets, an empty line of somebody
        found = _ERROR.match(text)
        if found is None or not self._innermost or not _is_error(found["error"]):
            self._strange += 1
            if self._strange > _PATIENCE:
                self.open = False
            return None
        self.open, self._more = False, 0
        self.last = PrintedException(
            error=found["error"].rpartition(".")[2],
            message=(found["message"] or "")[:_LONGEST_MESSAGE],
            place=place_of(self._frames),
            innermost=self._innermost,
            at=self._at,
            functions=tuple(
                one.function for one in self._frames if _LIBRARY.search(one.file)
            )[-_MOST_FUNCTIONS:],
            of_process=self._frames[0].function == "_bootstrap"
            and self._frames[0].file.endswith(_OF_PROCESS),
        )
        return self.last

    def _alone(self, text: str, number: int) -> PrintedException | None:
        """The exception of a traceback of which only the last line was kept."""
        found = _ERROR.match(text)
        if found is None or not _is_error(found["error"]) or not found["message"]:
            return None
        error, message = found["error"].rpartition(".")[2], found["message"]
        by_torch = found["error"].startswith("torch.")
        if not (by_torch and error.endswith("Error")) and _MISMATCH not in message:
            return None  # a program may log such a line, and go on
        self._more = 0
        self.last = PrintedException(
            error, message[:_LONGEST_MESSAGE], None, "", number
        )
        return self.last

    def go_on(self, text: str) -> PrintedException | None:
        """Read a line that may belong to the message of the exception before it.

        Args:
            text: The line, of the same process for certain.

        Returns:
            The exception with the longer message; None: the line is no part of it.
        """
        last = self.last
        if last is None or self.open or self._more >= _MOST_LINES or not text.strip():
            self.last = None
            return None
        if text.startswith(_FOLLOWS) or text.startswith("["):
            self.last = None if text.startswith(_FOLLOWS) else last
            if self.last is None or "Error" in text[:3]:
                return None
        self._more += 1
        message = f"{last.message}\n{text}"[:_LONGEST_MESSAGE]
        self.last = replace(last, message=message)
        return self.last

    def _begin(self, number: int) -> None:
        self.open, self.last = True, None
        self._at, self._frames, self._innermost = number, [], ""
        self._strange = 0

    def _frame(self, found: re.Match[str]) -> None:
        self._innermost = found["file"]
        if len(self._frames) < _MOST_FRAMES:
            self._frames.append(
                Place(found["file"], int(found["line"]), found["function"] or "")
            )


def is_chained(text: str) -> bool:
    """Whether a line says that the exception before it led to the next.

    Args:
        text: The line, without marks.
    """
    return text.startswith(_FOLLOWS)


def _is_error(name: str) -> bool:
    """Whether this may be the class of an exception.

    Lines of others stand between those of a traceback; most of them are told by this.
    """
    last = name.rpartition(".")[2]
    return (
        last.endswith(("Error", "Exception", "Exit", "Interrupt", "Warning"))
        or (last[:1].isupper() and "." in name)
        or last in {"StopIteration", "StopAsyncIteration", "Refused", "Empty", "Full"}
    )
