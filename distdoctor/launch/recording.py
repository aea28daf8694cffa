"""Runs a command with the cheap probes alone: judges nothing, ends nothing.

The command has the terminal, and everything else, as if it had been started without us:
input and output are its own, signals are handed on, its exit status is ours. What the
ranks do is written into rings of a fixed size, so that it may take days. Of a job over
several nodes, the others forward theirs; the job goes on whatever becomes of us.
"""

from __future__ import annotations

import os
import time
from collections.abc import Sequence
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING

import distdoctor
from distdoctor.errors import JournalUnreadable
from distdoctor.journal import folder as record
from distdoctor.journal.assembly import assemble
from distdoctor.journal.environment import (
    FOLDER_VARIABLE,
    HEAD_VARIABLE,
    MASK_KEY_VARIABLE,
    NODE_VARIABLE,
    OWNER_VARIABLE,
    RECORD_VARIABLE,
    SIZE_VARIABLE,
    SUPERVISOR_VARIABLE,
)
from distdoctor.journal.folder import Manifest
from distdoctor.journal.format import DEFAULT_BYTES
from distdoctor.journal.reader import JournalReader
from distdoctor.journal.record_files import seal
from distdoctor.journal.secret_masking import MASK_KEY, masked_arguments, share_key
from distdoctor.journal.trimming import trim_record
from distdoctor.launch.bare_command import (
    LOOK_S,
    as_status,
    is_asked_within,
    kept_back,
    started,
    until_ended,
)
from distdoctor.launch.oom_kills import OutOfMemoryKills
from distdoctor.launch.passed_variables import passing_on
from distdoctor.launch.process_tree import lives
from distdoctor.launch.watchdog import sources_of
from distdoctor.model.stop_reasons import Stop
from distdoctor.probes import NEEDLE

if TYPE_CHECKING:
    from distdoctor.launch.node_head import NodeHead
    from distdoctor.launch.node_plan import NodePlan

OTHERS_S = 30.0
"""For other nodes, behind the end of the command on this one."""

_NODES_LOOK_S = 0.2
_NOTES_S = 2.0  # from one note of how far nodes have told to the next
_NOT_OURS = (OWNER_VARIABLE, SUPERVISOR_VARIABLE, HEAD_VARIABLE, NODE_VARIABLE)
_KILLED = "distdoctor was killed on the first node before this one had told all"
_AT_WORK = (
    "it had not told all when the record was closed, {:.0f} s after the command had "
    "ended on the first node"
)
_SILENT = "nothing was heard of it any more"


def record_job(
    command: Sequence[str], name: str, folder: Path, nodes: NodePlan | None = None
) -> int:
    """Run a command, and write down what its ranks do.

    Args:
        command: Program and arguments.
        name: The job's name in reports.
        folder: Record folder, empty.
        nodes: How other nodes find us; None: there are none.

    Returns:
        Its exit status, as a shell counts it.

    Raises:
        LaunchRefused: It cannot be started.
    """
    return _Recording(command, name, folder, nodes).run()


class _Recording:
    def __init__(
        self, command: Sequence[str], name: str, folder: Path, nodes: NodePlan | None
    ) -> None:
        self._command, self._folder, self._nodes = list(command), folder, nodes
        self._head: NodeHead | None = None
        self._begun = self._noted = time.monotonic()
        self._kills = OutOfMemoryKills()
        self._manifest = Manifest(
            distdoctor=distdoctor.__version__,
            launch=masked_arguments(self._command, MASK_KEY.encode()),
            script=name,
            directory=str(Path.cwd()),
            started=datetime.now(UTC).isoformat(timespec="seconds"),
            recorded=True,
        )

    def run(self) -> int:
        record.write(self._folder, record.MANIFEST, self._manifest)
        share_key(self._folder)
        with kept_back() as before:
            command, environment = self._command, self._environment()
            if self._nodes is not None:
                command, environment = self._listen(self._nodes, environment)
            try:
                process = started(command, environment, before)
                look_s = LOOK_S if self._head is None else _NODES_LOOK_S
                status = until_ended(process, self._asked_to_end, self._look, look_s)
                if self._head is not None:
                    self._wait_for_others(self._head)
            finally:
                if self._head is not None:
                    self._head.close()
        # What goes wrong from here on must not change the status of the job.
        with suppress(OSError, JournalUnreadable):
            self._conclude(process.returncode)
        return status

    def _environment(self) -> dict[str, str]:
        inherited = dict(os.environ)
        for variable in _NOT_OURS:
            inherited.pop(variable, None)  # nobody is there to end what is refused
        path = os.environ.get("PYTHONPATH")
        return {
            **inherited,
            "PYTHONPATH": os.pathsep.join(filter(None, [str(NEEDLE), path])),
            FOLDER_VARIABLE: str(self._folder),
            RECORD_VARIABLE: "1",
            MASK_KEY_VARIABLE: MASK_KEY,
            SIZE_VARIABLE: str(DEFAULT_BYTES),
        }

    def _listen(
        self, nodes: NodePlan, environment: dict[str, str]
    ) -> tuple[list[str], dict[str, str]]:
        """Let other nodes come; the command and the environment that bring them."""
        from distdoctor.launch.node_plan import head_for

        self._head, variables = head_for(
            nodes, self._folder, environment, only_listens=True
        )
        environment = {**environment, **variables}
        ours = {*environment} - {*os.environ} | {"PYTHONPATH"}
        return passing_on(self._command, sorted(ours)), environment

    def _asked_to_end(self) -> None:
        """Note when: what ranks do from there on, they do because they are ended."""
        self._note_end(time.monotonic_ns(), self._alive())

    def _note_end(self, at_ns: int, alive: list[int]) -> None:
        manifest = self._manifest
        if not manifest.stopped:
            manifest.stopped = Stop.INTERRUPTED
            manifest.stopped_ns, manifest.alive = at_ns, alive
            with suppress(OSError):
                record.write(self._folder, record.MANIFEST, manifest)

    def _look(self) -> None:
        """Note how far other nodes have told: should we be killed, that must be known.

        And whether one of them was asked to end.
        """
        head = self._head
        if head is None:
            return
        at_ns, alive = head.asked()
        if at_ns:
            self._note_end(at_ns, sorted({*alive, *self._alive()}))
        if time.monotonic() > self._noted + _NOTES_S:
            self._noted = time.monotonic()
            self._manifest.lost_nodes = head.untold(_KILLED)
            with suppress(OSError):
                record.write(self._folder, record.MANIFEST, self._manifest)

    def _wait_for_others(self, head: NodeHead) -> None:
        """Wait until other nodes have told all; whoever asks us to end ends this."""
        end = time.monotonic() + OTHERS_S
        while not head.is_silent() and time.monotonic() < end:
            if is_asked_within(_NODES_LOOK_S):
                break
            self._look()
        why = _SILENT if head.is_silent() else _AT_WORK.format(OTHERS_S)
        self._manifest.lost_nodes = head.untold(why)
        wanted = self._nodes.nodes if self._nodes is not None else 0
        if (came := 1 + len(head.hosts())) < wanted:
            self._manifest.remarks.append(f"{came} of {wanted} nodes came")

    def _here(self) -> list[int]:
        """Processes of ranks of this machine that have not ended."""
        found = []
        for path in self._folder.glob("*.journal"):
            with suppress(OSError, JournalUnreadable):
                pid = JournalReader(path).header().pid
                if lives(pid):
                    found.append(pid)
        return found

    def _alive(self) -> list[int]:
        """Processes of ranks that have not ended, as far as is known."""
        there = self._head.living() if self._head is not None else []
        return self._here() + there

    def _conclude(self, code: int) -> None:
        """Write the manifest and the sources, after the command has ended."""
        manifest, folder = self._manifest, self._folder
        if manifest.stopped and not code:
            # It was asked to end, and came to a good end of its own.
            manifest.stopped, manifest.stopped_ns, manifest.alive = "", 0, []
        if not manifest.stopped:
            manifest.exit_code = as_status(code)
            manifest.alive = self._alive()
        manifest.closed = not self._alive()
        manifest.seconds = round(time.monotonic() - self._begun, 2)
        manifest.oom_kills = self._kills.count()
        manifest.oom_of_group = self._kills.is_of_group
        record.clear(folder)
        if not self._here():
            trim_record(folder)
        record.write(folder, record.MANIFEST, manifest)
        run = assemble(folder, manifest, stacks=False)
        sources = dict(sources_of(run, [], Path(manifest.directory)))
        record.write(folder, record.SOURCES, sources)
        seal(folder, manifest)
