"""Asks for the proof that ranks can never go on, where it is worth it, and not often.

The proof is the one by which `distdoctor check` ends a job (`analysis.deadlock`). It
needs all records, and not the newest alone: it is asked for once for each state in
which all ranks stand still, and not at all where the journals are very large.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from pathlib import Path

import msgspec

from distdoctor.analysis.deadlock.wait_for_graph import standstill
from distdoctor.errors import DistdoctorError
from distdoctor.journal.assembly import assemble
from distdoctor.journal.folder import Manifest
from distdoctor.journal.format import RECORD_BYTES
from distdoctor.watching.followed_rank import FollowedRank
from distdoctor.watching.snapshot import WatchProof

_QUIET_S = 2.0  # without a record of any rank
_RESTART_S = 35.0  # as `launch.watchdog`: for a launcher to start all anew
_MOST_BYTES = 256 << 20  # of records that are read for it
_SHARE = 0.05  # of the time that may go into proofs

TOO_LARGE = (
    "all ranks stand still; whether for ever was not proved: their journals are too "
    "large to be read beside the job. `distdoctor examine` judges the record when the "
    "job is over"
)


class StandingProof:
    """Proves for one record.

    Attributes:
        proof: What is proved of the ranks as they stand; None: nothing.
        remark: Why nothing could be; empty: nothing kept it from being tried.

    Args:
        folder: The record folder.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self.proof: WatchProof | None = None
        self.remark = ""
        self._tried: tuple[object, ...] = ()
        self._not_before_s = 0.0

    def look(
        self,
        ranks: Sequence[FollowedRank],
        manifest: Manifest,
        journals: Sequence[Path],
        now_ns: int,
    ) -> None:
        """Prove again, if the ranks stand elsewhere than when it was tried last.

        Args:
            ranks: Those of the newest generation.
            manifest: Of the record.
            journals: All that are in it.
            now_ns: On the monotonic clock.
        """
        living = [one for one in ranks if not one.over]
        quiet_s = (now_ns - max((one.tail.last_ns for one in ranks), default=0)) / 1e9
        heads = (
            tuple((one.pid, one.tail.header.head, one.over) for one in ranks),
            len(journals),
        )
        if self.proof is not None and heads != self._tried[:2]:
            self.proof = None
        if not living or not all(one.is_blocked() for one in living):
            self.proof, self.remark = None, ""
            return
        late = quiet_s >= _RESTART_S
        if quiet_s < _QUIET_S or self._tried == (*heads, late):
            return
        if self.proof is not None or time.monotonic() < self._not_before_s:
            return
        self._tried = (*heads, late)
        size = sum(
            min(one.tail.header.head, one.tail.header.capacity) * RECORD_BYTES
            for one in ranks
        )
        if size > _MOST_BYTES:
            self.remark = TOO_LARGE
            return
        begun = time.monotonic()
        self.proof = self._proved(manifest, living, late)
        took = time.monotonic() - begun
        self._not_before_s = begun + took / _SHARE

    def _proved(
        self, manifest: Manifest, living: Sequence[FollowedRank], late: bool
    ) -> WatchProof | None:
        known = msgspec.structs.replace(manifest, alive=[one.pid for one in living])
        try:
            still = standstill(assemble(self._folder, known, stacks=False))
        except (DistdoctorError, OSError, ValueError):
            return None
        stuck = sorted({*still.waits} & {one.rank for one in living})
        if not stuck or (still.gone and not late):
            return None  # a launcher may yet start all anew
        if any(_has_moved(one) for one in living):
            return None
        return WatchProof(ranks=stuck, gone=sorted(still.gone))


def _has_moved(one: FollowedRank) -> bool:
    before = one.tail.header.head
    one.look(local=True, ended=False)
    return one.over or one.tail.header.head != before
