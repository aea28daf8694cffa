"""The command that runs a job on one rank, of the command that runs it on several."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path

from distdoctor.errors import LaunchRefused
from distdoctor.launch.multi_command import BETWEEN

_TORCHRUN = {"torchrun", "torch.distributed.run", "torch.distributed.launch"}
_OF_TORCHRUN = re.compile(r"--?nproc[-_]per[-_]node(?:=(.*))?")
_OF_MPI = re.compile(r"(?:-np|--np|-n|--n|-c|--num-proc|--ntasks)(?:=(.*))?")
_MPI = {"mpirun", "mpiexec", "orterun", "prterun", "horovodrun", "srun"}


def on_one_rank(command: Sequence[str]) -> list[str]:
    """A launcher's command with one process instead of several.

    Args:
        command: Of torchrun, mpirun, horovodrun or srun, as the user gave it.

    Raises:
        LaunchRefused: It is another one, or does not say how many ranks it starts.

    >>> on_one_rank(["torchrun", "--nproc-per-node=4", "train.py", "-n", "3"])
    ['torchrun', '--nproc-per-node=1', 'train.py', '-n', '3']
    """
    names = {Path(word).name for word in command[:4]}
    option = _OF_TORCHRUN if names & _TORCHRUN else None
    if command and Path(command[0]).name in _MPI:
        option = _OF_MPI
    if option is None or BETWEEN in command:
        raise LaunchRefused(_UNCLEAR)
    words = list(command)
    for n, word in enumerate(words[1:], 1):
        found = option.fullmatch(word)
        if found is None:
            continue
        if found[1] is not None:
            words[n] = word.removesuffix(found[1]) + "1"
        elif n + 1 < len(words):
            words[n + 1] = "1"
        else:
            break
        return words
    raise LaunchRefused(_UNCLEAR)


_UNCLEAR = (
    "--reference: how this job runs on one rank cannot be read from its command: give "
    "that, as in --reference 'torchrun --nproc-per-node 1 train.py'"
)
