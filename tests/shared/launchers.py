"""Launchers that start ranks, and what may not be installed."""

import functools
import re
import subprocess
import sys
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path

import pytest
import slurm

LIBRARIES = ("horovod.torch", "horovod.tensorflow", "mpi4py", "ray.train")
"""What jobs need beside torch."""

LONGEST_IMPORT_S = 120.0


def command_of(launcher: str, ranks: int) -> list[str]:
    """A command that starts Python on several ranks of this machine.

    Args:
        launcher: "torchrun", "torch.distributed.launch" (may have " --use-env" behind
            it), "python" (the script starts its ranks, or has none), "ray" (likewise,
            by Ray), "horovodrun", "mpirun", "srun", "accelerate" or "deepspeed".
        ranks: How many.

    Returns:
        Its words; a script and its arguments are to follow.

    Raises:
        KeyError: The launcher is no such.
    """
    python = sys.executable
    beside = Path(python).with_name
    mpirun = "mpirun --allow-run-as-root --oversubscribe --bind-to none"
    launch = f"{python} -m torch.distributed.launch --nproc-per-node {ranks}"
    words = {
        "torchrun": f"{python} -m torch.distributed.run --standalone "
        f"--nproc-per-node {ranks}",
        "torch.distributed.launch": launch,
        "torch.distributed.launch --use-env": f"{launch} --use-env",
        "python": python,
        "ray": python,
        "horovodrun": f"{beside('horovodrun')} --gloo --network-interface lo "
        f"-np {ranks} {python}",
        "mpirun": f"{mpirun} -np {ranks} {python}",
        "accelerate": f"{beside('accelerate')} launch --multi_gpu --num_machines 1 "
        "--mixed_precision no --dynamo_backend no --num_cpu_threads_per_process 1 "
        f"--main_process_port 0 --num_processes {ranks}",
        "deepspeed": f"{beside('deepspeed')} --num_accelerators {ranks}",
        "srun": f"srun --ntasks {ranks} {python}",
    }
    return words[launcher].split()


def with_what_it_needs(launcher: str) -> AbstractContextManager[None]:
    """What must run while a launcher does: for srun, a Slurm."""
    return slurm.cluster() if launcher == "srun" else nullcontext()


@functools.cache
def can_import(library: str) -> bool:
    """Whether it is there, and was built for the torch that is there."""
    done = subprocess.run(
        [sys.executable, "-c", f"import {library}"],
        timeout=LONGEST_IMPORT_S,
        capture_output=True,
        check=False,
    )
    return done.returncode == 0


def skip_without(*libraries: str) -> None:
    """Skip the test that calls this where one of these cannot be imported."""
    for library in libraries:
        if not can_import(library):
            pytest.skip(f"{library} cannot be imported here")


def skip_where_it_cannot_run(script: Path) -> None:
    """Likewise where one of `LIBRARIES` that a script imports is not there."""
    text = script.read_text()
    for library in LIBRARIES:
        if re.search(rf"^(import|from) {re.escape(library)}\b", text, re.MULTILINE):
            skip_without(library)
