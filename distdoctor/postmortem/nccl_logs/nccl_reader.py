"""Logs of NCCL → evidence: observations of each rank, and what is to be said of all."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import IO

from distdoctor.postmortem.job_evidence import LOG, Evidence, SourceRead
from distdoctor.postmortem.leavings import Leaving
from distdoctor.postmortem.nccl_logs.communicator_ranks import cast_of
from distdoctor.postmortem.nccl_logs.log_observations import Teller
from distdoctor.postmortem.nccl_logs.log_pieces import read_all, read_stream
from distdoctor.postmortem.nccl_logs.log_summary import summary
from distdoctor.postmortem.nccl_logs.piece_facts import Piece
from distdoctor.postmortem.nccl_logs.torch_lines import others_of
from distdoctor.postmortem.readers import Reader

KIND = "NCCL log"

_TELLING = re.compile(rb"NCCL (?:INFO|WARN|TRACE|CALL) |[NR]CCL version \d")
_TEXT_OF_OTHERS = (
    ".py",
    ".cc",
    ".cpp",
    ".h",
    ".md",
    ".rst",
    ".json",
    ".html",
    ".ipynb",
)


def recognises(name: str, head: bytes) -> bool:
    """Whether a file is a log with lines of NCCL.

    Args:
        name: Of the file.
        head: Its first bytes.
    """
    if name.lower().endswith(_TEXT_OF_OTHERS) or b"\0" in head[:4096]:
        return False
    return _TELLING.search(head) is not None


def read(leavings: Sequence[Leaving], evidence: Evidence) -> None:
    """Read logs into the evidence.

    Args:
        leavings: The files.
        evidence: Of the job.
    """
    read_known(leavings, evidence, {}, {})


def read_known(
    leavings: Sequence[Leaving],
    evidence: Evidence,
    ranks: Mapping[int, int],
    most: Mapping[str, int],
) -> None:
    """Read logs of a job whose processes are known.

    Args:
        leavings: The files.
        evidence: Of the job.
        ranks: By process id, its rank. What others logged is left out (of ranks that
            were started before these, of programs that ranks started); where none is
            known, nothing is.
        most: By path, how many bytes of a file are read, where it is not all of it.
    """
    whole = read_all(leavings, most)
    evidence.unreadable += whole.unreadable
    processes = whole.piece.processes
    for key, log in list(processes.items()):
        if log.pid in ranks:
            log.launcher_ranks = {ranks[log.pid]: 1}
        elif ranks:
            del processes[key]
    _tell(whole.piece, [one.path for one in leavings], evidence)


def read_input(stream: IO[bytes], evidence: Evidence) -> None:
    """Read a log that comes through a pipe into the evidence.

    Args:
        stream: Of bytes.
        evidence: Of the job.
    """
    _tell(read_stream(stream, "-"), ["-"], evidence)


READER = Reader(KIND, recognises, read)


def _tell(piece: Piece, files: Sequence[str], evidence: Evidence) -> None:
    if not (piece.processes or piece.versions or piece.others):
        evidence.left_out += [(file, "it has no line of NCCL") for file in files]
        return
    others = others_of(piece.others)
    cast = cast_of(
        piece.processes.values(), max(others.ranks_named, evidence.world_size)
    )
    Teller(piece, others, cast, evidence).tell()
    evidence.world_size = max(evidence.world_size, cast.world_size)
    for file in files:
        ranks = sorted(
            actor.rank
            for actor in cast.actors
            if actor.rank is not None
            and (len(files) == 1 or actor.process.first[0] == file)
        )
        evidence.sources.append(SourceRead(file, KIND, LOG, tuple(ranks)))
    evidence.remarks += summary(piece, cast)
