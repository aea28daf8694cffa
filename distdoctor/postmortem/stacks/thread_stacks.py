"""Stacks as values: lines, threads and processes, whatever tool has taken them."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from distdoctor.model.events import Place

MOST_FRAMES = 400
"""Lines of a stack that are read; who recurses has thousands alike."""

MOST_THREADS = 1_000
"""Threads of a process that are read."""


class StackLine(NamedTuple):
    """A line of a stack.

    Attributes:
        file: Its file as the tool names it; of a native frame its library.
        line: From 1; 0: not known.
        function: Its name.
    """

    file: str
    line: int
    function: str

    def __str__(self) -> str:
        at = f"{self.file}:{self.line}" if self.line else self.file
        return f"{self.function} ({at})" if at else self.function


@dataclass(frozen=True, slots=True)
class ThreadStack:
    """The stack of a thread at one moment.

    Attributes:
        lines: Innermost first.
        name: As Python knows the thread; empty: not known.
        thread_id: As the kernel knows it; 0: not known.
        is_main: The first thread of its process.
        holds_gil: It held the interpreter's lock.
        is_idle: Whoever took it saw that it waited, and did not run.
        variables: Local variables of each line, as text by name; none: not taken.
    """

    lines: tuple[StackLine, ...]
    name: str = ""
    thread_id: int = 0
    is_main: bool = False
    holds_gil: bool = False
    is_idle: bool = False
    variables: Sequence[Mapping[str, str]] = ()

    def variable(self, at: int, name: str) -> str:
        """The text of a local variable; empty if it is not known.

        Args:
            at: Position of the line.
            name: Of the variable.
        """
        return self.variables[at].get(name, "") if at < len(self.variables) else ""


@dataclass(frozen=True, slots=True)
class ProcessStacks:
    """The stacks of a process at one moment.

    Attributes:
        threads: Its threads; the main one is marked, where that is known.
        pid: Its number; 0: not known.
        command: Its command line; empty: not known.
        taken_by: What took them, such as "py-spy".
    """

    threads: tuple[ThreadStack, ...]
    pid: int = 0
    command: str = ""
    taken_by: str = ""

    @property
    def main(self) -> ThreadStack | None:
        """The main thread; the only one, if none is marked; else None."""
        for thread in self.threads:
            if thread.is_main:
                return thread
        return self.threads[0] if len(self.threads) == 1 else None

    @property
    def others(self) -> tuple[ThreadStack, ...]:
        """All threads but the main one."""
        return tuple(thread for thread in self.threads if thread is not self.main)


_INSTALLED = re.compile(
    r"(^|/)(site-packages|dist-packages)/|/lib(64|exec)?/python\d[\d.]*/|^<|\.so[\d.]*$"
    r"|/distdoctor/probes/"
)
_PACKAGES = frozenset(
    {"torch", "horovod", "numpy", "deepspeed", "lightning", "pytorch_lightning"}
    | {"lightning_fabric", "transformers", "accelerate", "torchvision", "megatron"}
    | {"apex", "ray", "mpi4py", "pandas", "datasets", "fsspec", "webdataset"}
    | {"torchrun", "torchdata", "distdoctor", "filelock", "fasteners", "portalocker"}
    | {"requests", "urllib3", "boto3", "botocore", "s3fs", "gcsfs", "huggingface_hub"}
    | {
        "safetensors",
        "h5py",
        "zarr",
        "pyarrow",
        "wandb",
        "mlflow",
        "tensorboard",
        "PIL",
    }
)
"""Packages that py-spy's short names of files begin with; a user's may be called so."""


def is_library(file: str) -> bool:
    """Whether a file belongs to Python, an installed package or a native library.

    Args:
        file: Its whole name, or the short one that py-spy gives, from its package on.
    """
    if not file or _INSTALLED.search(file):
        return True
    if file.startswith("/"):
        return False
    module = file.partition("/")[0].removesuffix(".py")
    return module in _PACKAGES or module in sys.stdlib_module_names


def users(lines: Sequence[StackLine]) -> Iterator[tuple[int, StackLine]]:
    """Lines of the user's own source, each with its position in the stack.

    Args:
        lines: Innermost first.

    Yields:
        Position and line; what called `runpy` is a launcher's and no user's.
    """
    for at, line in enumerate(lines):
        if _RUNPY.search(line.file):
            return
        if not is_library(line.file):
            yield at, line


_RUNPY = re.compile(r"(^|/)runpy\.py$|^<frozen runpy>$")


def place_of(line: StackLine, directory: str = "") -> Place:
    """A line of a stack as a place, named from the job's directory on.

    Args:
        line: The line.
        directory: Where the job ran; empty: names stay whole.
    """
    file = line.file
    if directory:
        file = file.removeprefix(directory.rstrip("/") + "/")
    return Place(file, line.line, line.function)
