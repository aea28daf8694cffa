"""Reads a pickle that may be hostile: nothing is imported, called or built but data."""

from __future__ import annotations

import gc
import io
import pickle
import resource
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stderr
from pathlib import Path
from typing import Any, NoReturn

_SPARE_BYTES = 64 << 20
"""That reading may take beside what a file's own size explains."""

_TIMES_ITS_SIZE = 64  # a list takes 56 bytes, and one byte of a pickle makes one


class NotPlainData(pickle.UnpicklingError):
    """A pickle wants something imported: no recorder writes such a one."""


def load(data: bytes) -> Any:
    """The data in a pickle.

    Args:
        data: The pickle.

    Returns:
        Dicts, lists, tuples, texts, numbers, None.

    Raises:
        NotPlainData: It names something to import; nothing was imported.
        Exception: It is damaged; anything may come, as with every unpickler.
    """
    # Python prints an error of its own where bytes are shorter than they say.
    with bounded_memory(len(data)), redirect_stderr(io.StringIO()):
        return _PlainUnpickler(io.BytesIO(data)).load()


@contextmanager
def bounded_memory(file_bytes: int) -> Iterator[None]:
    """Lets the process take only so much more memory; then there is a MemoryError.

    A few bytes of a pickle can ask for gigabytes. It also stops the collector of
    cycles, which would look at each object again and again.

    Args:
        file_bytes: Size of the file that is read, which explains some memory.
    """
    collects = gc.isenabled()
    gc.disable()
    before = resource.getrlimit(resource.RLIMIT_AS)
    try:
        _limit(_SPARE_BYTES + _TIMES_ITS_SIZE * file_bytes, before)
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_AS, before)
        if collects:
            gc.enable()


def _limit(more_bytes: int, before: tuple[int, int]) -> None:
    try:
        pages = int(Path("/proc/self/statm").read_text("ascii").split()[0])
    except (OSError, ValueError, IndexError):
        return  # nothing tells how much there is already
    limit = pages * resource.getpagesize() + more_bytes
    for old in before:
        if old != resource.RLIM_INFINITY:
            limit = min(limit, old)
    resource.setrlimit(resource.RLIMIT_AS, (limit, before[1]))


class _PlainUnpickler(pickle.Unpickler):
    """Knows texts, numbers, lists, tuples and dicts only."""

    def find_class(self, module_name: str, global_name: str, /) -> NoReturn:
        """Never: plain data need nothing imported.

        Raises:
            NotPlainData: Always.
        """
        raise NotPlainData(
            f"it asks for {module_name}.{global_name}, as no recorder does; it was not "
            "run"
        )

    def persistent_load(self, pid: Any) -> NoReturn:  # noqa: ARG002 - its signature
        """Never: dumps refer to nothing outside.

        Raises:
            NotPlainData: Always.
        """
        raise NotPlainData("it refers to objects outside of it")
