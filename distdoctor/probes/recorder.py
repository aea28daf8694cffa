"""The recorder: writes the events of this process into its journal, once it has one."""

from __future__ import annotations

import faulthandler
import json
import os
import signal
import sys
import threading
import time
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING

from distdoctor.journal.environment import (
    FOLDER_VARIABLE,
    OWNER_VARIABLE,
    STACK_SIGNAL_FROM_LAST,
)
from distdoctor.journal.format import RecordKind
from distdoctor.journal.layout import EXITS_FILE, LOSSES_FILE, SUBSTITUTES_FILE
from distdoctor.journal.own_file import OwnFile
from distdoctor.journal.private_files import append_line, make_private_folder
from distdoctor.journal.writer import JournalWriter
from distdoctor.probes import call_sites, harmless, registry

if TYPE_CHECKING:
    from distdoctor.journal.notes import NotesWriter
    from distdoctor.model.events import Life, Observation

_SMALL_BYTES = 256 * 1024  # a process without a rank only tells how it failed

_FREED_S = 0.05  # freeing takes microseconds, and a busy machine may put it off

_sleep = time.sleep  # a job may put another in its place


class _Goodbye:
    """A thread-local object that records the end of its thread when deleted."""

    def __init__(self, thread: int) -> None:
        self._thread = thread

    def __del__(self) -> None:
        with suppress(Exception):
            if RECORDER.writer is not None:
                RECORDER.writer.put(RecordKind.THREAD_END, self._thread)


_LONGEST_MESSAGE = 500
_MOST_READ = 65_536


def _words_of(error: BaseException) -> str:
    """What an exception says; if it is long, without frames that it repeats."""
    text = str(error)
    if len(text) > _LONGEST_MESSAGE:
        lines = text[:_MOST_READ].splitlines()
        kept = [one for one in lines if one.strip() and not _is_frame(one)]
        text = "\n".join(kept)
    return _without_secrets(text)[:_LONGEST_MESSAGE]


def _without_secrets(text: str) -> str:
    from distdoctor.journal.secret_masking import masked_text  # its patterns take 5 ms

    return masked_text(text)


def _is_frame(line: str) -> bool:
    return line.lstrip().startswith('File "')


class Recorder:
    """Writes all records of this process; it has a journal once it is a rank.

    Attributes:
        writer: The journal; None until the process has a rank, and again in a forked
            child, for whom its parent's journal is not to be touched.
        folder: The record folder.
        spawned: Number of this process among those of `torch.multiprocessing.spawn`,
            mostly its rank; -1: it was not spawned so.
        calls: How many calls were written; to be changed under `lock`.
        blind: Whether a call went by uncounted; no further ones are written then.
        apart: Whether this process trains beside the job that is watched, and is left
            alone.
        child_of: The process of a rank that forked this one; 0: this is no such child.
        batching: Threads that are inside `batch_isend_irecv`.
        passes: Threads that wait for a backward pass of theirs, where autograd has
            threads of its own.
    """

    def __init__(self) -> None:
        self.writer: JournalWriter | None = None
        self.batching: set[int] = set()
        self.folder = Path(os.environ.get(FOLDER_VARIABLE, "."))
        self.spawned = -1
        self.calls = 0
        self._calls_freed = 0
        self.child_of = 0
        self.blind = self.apart = False
        self.lock = threading.Lock()
        self.passes: list[int] = []
        self._local = threading.local()
        self._notes: NotesWriter | None = None
        self._stack_file: OwnFile | None = None
        self._failed: BaseException | None = None
        self._loss_reported = False
        self._substituted: set[str] = set()

    def open(self, rank: int, world_size: int, part: int = 1) -> JournalWriter | None:
        """Open the journal of this process, if it has none yet.

        Args:
            rank: The rank it plays.
            world_size: Number of ranks; 0 if not known.
            part: The journal has this part of the usual size.
        """
        if self.writer is None and not self.apart:
            self.writer = JournalWriter.of_environment(
                self.folder, rank, world_size, part
            )
            os.environ[OWNER_VARIABLE] = str(os.getpid())
            if self.blind:
                self.writer.go_blind()
            self._offer_stacks()
        return self.writer

    def begin_run(
        self, folder: Path, rank: int, world_size: int, *, again: bool = False
    ) -> None:
        """Start to play a rank in another run, with another journal.

        What the probes remember of the last run is forgotten.

        Args:
            folder: The record folder.
            rank: The rank it plays.
            world_size: Number of ranks; 0 if not known.
            again: It has a journal in this folder, and there may be many more: they
                are kept small.

        Raises:
            OSError: The journal cannot be made; nothing is written then.
        """
        self.close()
        self.folder = folder
        self.calls, self._calls_freed, self.spawned, self.blind = 0, 0, -1, False
        self._failed, self._loss_reported = None, False
        self._substituted.clear()
        registry.reset()
        self.open(rank, world_size, part=8 if again else 1)

    def finish(self) -> None:
        """Write what the probes keep back; more records may follow.

        Waits a moment for the backend's threads, without the interpreter's lock. A
        call is done before its thread lets go of it, and with it of Python objects:
        those of the caller's thread-local state (seen with torch 2.13), and tensors
        that a kernel of ours saw. Freeing them takes that lock: a thread that has not
        done so when the group is freed, or when Python ends, would wait forever.
        """
        if self.writer is not None:
            registry.flush()
            if self.calls != self._calls_freed:
                self._calls_freed = self.calls
                _sleep(_FREED_S)

    def close(self) -> None:
        """Close the journal: this process is no rank any more."""
        self.finish()
        if self._notes is not None:
            self._notes.close()
            self._notes = None
        if self.writer is not None:
            self.writer.end()
            self.writer = None

    def forked(self) -> None:
        """Called in a forked child, which must not write the parent's journal."""
        self.child_of = os.getppid() if self.writer is not None else 0
        self.writer = self._notes = None
        self.lock = threading.Lock()
        self._local = threading.local()

    def thread(self) -> int:
        """The native id of this thread, whose end will be recorded.

        For a thread of autograd's, it is that of the one whose backward pass it is.
        """
        try:
            return self._local.number  # type: ignore[no-any-return]
        except AttributeError:
            if len(self.passes) == 1 and not _is_of_python():
                return self.passes[0]
            self._local.number = number = threading.get_native_id()
            if number != os.getpid():
                self._local.goodbye = _Goodbye(number)
            return number

    def intern(self, text: str) -> int:
        """The journal's number for a string."""
        assert self.writer is not None
        number = self.writer._ids.get(text)
        if number is None:
            with self.lock:
                number = self.writer.intern(text)
        return number

    def number_of_group(self, text: str) -> int:
        """The journal's number for a process group, given as text.

        Raises:
            MemoryError: There is no room for it, and calls on it could not be told.
        """
        number = self.intern(text)
        if not number:
            raise MemoryError("the journal has no room to name another group")
        return number

    def tell(self, event: Life, site: str = "") -> None:
        """Write an event of the process's lifecycle into the journal itself.

        This needs no space that is not reserved already.

        Args:
            event: Its rank and place are filled in where it is read.
            site: The line of the user's source; see `call_sites`.
        """
        if self.writer is None:
            return
        from distdoctor.journal.event_text import event_text

        number = self.intern(event_text(event))
        self.writer.put(
            RecordKind.LIFE, self.thread(), spec=number, site=self.intern(site)
        )

    def observe(self, observation: Observation, site: str = "") -> None:
        """Write an observation: a typed event that a probe saw.

        Args:
            observation: Its rank and place are filled in where it is read.
            site: The line of the user's source; see `call_sites`.

        Raises:
            OSError: It could not be written, for want of space for instance.
        """
        if self.writer is None:
            return
        number = self.intern(site)
        with self.lock:
            if self._notes is None:
                from distdoctor.journal.notes import NotesWriter

                self._notes = NotesWriter(self.writer.path)
            begin, size = self._notes.add(observation)
        self.writer.note(self.thread(), begin, size, number)

    def failure(
        self,
        error: BaseException,
        traceback: TracebackType | None,
        fatal: bool,
        caught: str = "",
    ) -> None:
        """Record an exception that left the user's code; as fatal only once.

        Args:
            error: The exception.
            traceback: The lines that it came through.
            fatal: Nobody handles it.
            caught: The line of the function that handles it, if that is known.
        """
        if self.apart or (fatal and error is self._failed):
            return
        if self.writer is None:
            if not fatal:
                return
            self.writer = JournalWriter(
                self.folder, _rank_of_environment(), 0, _SMALL_BYTES
            )
        if fatal:
            self._failed = error
        from distdoctor.journal.event_text import place_in
        from distdoctor.model.events import Failure

        event = Failure(
            error=type(error).__name__,
            message=_words_of(error),
            fatal=fatal,
            caught=place_in(caught),
            spawned=self.spawned,
            secondary=call_sites.is_peers_fault(error, traceback),
        )
        self.tell(event, call_sites.error_site(traceback))

    def exit_of(self, pid: int, status: int) -> None:
        """Record how a child process ended; negative: minus the signal."""
        note = {"pid": pid, "status": status, "by": os.getpid()}
        self.append(EXITS_FILE, {**note, "site": call_sites.asking_site()})

    def substituted(self, kind: str) -> None:
        """Record, once, that something was emulated in place of CUDA.

        Args:
            kind: Its name in `distdoctor.model.substitutes`.
        """
        if kind not in self._substituted:
            self._substituted.add(kind)
            with suppress(OSError):
                self.append(SUBSTITUTES_FILE, {"pid": os.getpid(), "kind": kind})

    def append(self, name: str, note: dict[str, object]) -> None:
        """Add a line to a file that processes share, also those without a journal.

        Args:
            name: Name of the file in the record folder.
            note: What the line tells, as JSON.

        Raises:
            OSError: It could not be written.
        """
        append_line(self.folder / name, json.dumps(note))

    def lose(self, probe: str, error: BaseException) -> None:
        """Count an event that a probe failed to write.

        What a probe could not ask of a GPU that has failed counts for nothing: nothing
        of the job can be asked of it any more, and its rank tells of that itself.
        """
        if any(words in str(error) for words in _GPU_IS_LOST):
            return
        if self.writer is not None:
            self.writer.lose(fault=not isinstance(error, OSError | MemoryError))
        recorded = self.writer is not None or FOLDER_VARIABLE in os.environ
        if recorded and not self._loss_reported:
            self._loss_reported = True
            rank = -1 if self.writer is None else self.writer.rank
            rank = _rank_of_environment() if rank < 0 else rank
            why = _without_secrets(f"{probe}: {error!r}")[:500]
            self.append(LOSSES_FILE, {"pid": os.getpid(), "rank": rank, "why": why})

    def _offer_stacks(self) -> None:
        """Let the supervisor ask for stacks by a signal, where it may not trace us.

        The handler is C, takes no interpreter lock and restarts system calls.
        """
        number = signal.SIGRTMAX - STACK_SIGNAL_FROM_LAST
        if signal.getsignal(number) is not signal.SIG_DFL:
            return
        folder = make_private_folder(self.folder / "stacks")
        former = self._stack_file
        file = folder / f"{os.getpid()}.txt"
        # Whoever sends the signal sees first that the descriptor is still that file's.
        flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND
        self._stack_file = OwnFile(file, flags, below=2)
        faulthandler.register(number, self._stack_file.number(), all_threads=True)
        if former is not None:  # of the run before, which this process played in
            former.close()


def _is_of_python() -> bool:
    """Whether this is the first thread, or one that Python has started."""
    started = threading._active.get(threading.get_ident())  # type: ignore[attr-defined]
    return started is not None and not isinstance(started, threading._DummyThread)


_GPU_IS_LOST = (
    *("device-side assert triggered", "an illegal memory access was encountered"),
    *("unspecified launch failure", "uncorrectable ECC error encountered"),
    *("misaligned address", "an illegal instruction was encountered"),
    *("hardware stack error", "uncorrectable NVLink error"),
)
"""Words of errors behind which a process can use CUDA no more, whatever it calls.

Source: NVIDIA, CUDA Runtime API, `cudaError` ("the process must be terminated").
"""


def _rank_of_environment() -> int:
    rank = os.environ.get("RANK") or os.environ.get("HOROVOD_RANK", "")
    owner = os.environ.get(OWNER_VARIABLE)
    mine = owner in {None, str(os.getpid())}
    return int(rank) if rank.isdigit() and mine else -1


RECORDER = Recorder()
harmless.on_loss(RECORDER.lose)
os.register_at_fork(after_in_child=RECORDER.forked)


def blinded(probe: str, error: BaseException) -> None:
    """Mark this rank as blind: a call was not counted, so later ones do not line up.

    This rank's calls are written no further, and the run is read as if nobody had seen
    any of them. To be told where a probe is not `harmless` by itself.
    """
    RECORDER.blind = True
    if RECORDER.writer is not None:
        RECORDER.writer.go_blind()
    harmless.lost(probe, error)


def interpreter_ends() -> None:
    """Note that the interpreter's exit handlers run."""
    if RECORDER.writer is not None and sys is not None:
        RECORDER.finish()
        RECORDER.writer.end()
