"""The reference of a job is its command with one rank."""

import shlex

import pytest

from distdoctor.errors import LaunchRefused
from distdoctor.launch.reference_command import on_one_rank


@pytest.mark.parametrize(
    ("command", "alone"),
    [
        (
            "torchrun --nproc-per-node 4 t.py --n 4",
            "torchrun --nproc-per-node 1 t.py --n 4",
        ),
        ("torchrun --nproc_per_node=8 t.py", "torchrun --nproc_per_node=1 t.py"),
        (
            "python -m torch.distributed.run --standalone --nproc-per-node=gpu t.py",
            "python -m torch.distributed.run --standalone --nproc-per-node=1 t.py",
        ),
        ("/usr/bin/mpirun -np 4 python t.py", "/usr/bin/mpirun -np 1 python t.py"),
        ("horovodrun -np 2 python t.py", "horovodrun -np 1 python t.py"),
        ("srun --ntasks=16 python t.py", "srun --ntasks=1 python t.py"),
    ],
)
def test_launchers_are_asked_for_one(command: str, alone: str) -> None:
    assert on_one_rank(shlex.split(command)) == shlex.split(alone)


@pytest.mark.parametrize(
    "command",
    ["torchrun t.py", "python t.py", "torchrun --nproc-per-node", "", "a ::: b"],
)
def test_others_must_be_given(command: str) -> None:
    with pytest.raises(LaunchRefused, match="--reference"):
        on_one_rank(shlex.split(command))
