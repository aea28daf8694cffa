"""Runs a script as it is, and writes down each optimizer step, bit by bit.

For programs that do not write that themselves: `wrapped.py SCRIPT ARGUMENTS`.
"""

from __future__ import annotations

import hashlib
import os
import runpy
import sys
from pathlib import Path

import torch
from torch.optim.optimizer import register_optimizer_step_post_hook

from bit_jobs.leaving import digests, of_optimizer, random_states, seed_all, write

_found: dict[str, str] = {}


def _digest(value: object) -> str:
    told = hashlib.sha256()
    for name, each in digests("", value):
        told.update(f"{name} {each}\n".encode())
    return told.hexdigest()[:16]


def _after_step(
    optimizer: torch.optim.Optimizer, _args: object, _named: object
) -> None:
    number = len(_found)
    _found[f"{number}: optimizer"] = _digest(of_optimizer(optimizer))
    _found[f"{number}: random"] = _digest(random_states())


def _tee_output() -> None:
    """Write down what the script prints, too."""
    write_on = sys.stdout.write

    def write_and_note(text: str) -> int:
        if text.strip():
            _found[f"{len(_found)}: printed"] = text
        return write_on(text)

    sys.stdout.write = write_and_note  # type: ignore[method-assign]


def main() -> None:
    """Run the script that is named first."""
    del sys.argv[0]
    sys.path[0] = str(Path(sys.argv[0]).resolve().parent)
    register_optimizer_step_post_hook(_after_step)
    _tee_output()
    seed_all(0)
    runpy.run_path(sys.argv[0], run_name="__main__")
    _found.update(digests("random", random_states()))
    rank = next(os.environ[k] for k in ("RANK", "HOROVOD_RANK") if k in os.environ)
    write(_found, int(rank))


if __name__ == "__main__":
    main()
