"""A folder for what is needed for a while, which never stays."""

from __future__ import annotations

import shutil
import signal
import sys
import tempfile
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


@contextmanager
def temporary_folder() -> Iterator[Path]:
    """Make a folder that is removed at the end, also after Ctrl-C and SIGTERM.

    Yields:
        The folder, where `TMPDIR` says.
    """
    # Schedulers end a process by SIGTERM, which would leave no time to tidy up.
    heeds = (
        threading.current_thread() is threading.main_thread()
        and signal.getsignal(signal.SIGTERM) is signal.SIG_DFL
    )
    if heeds:
        signal.signal(signal.SIGTERM, lambda number, _: sys.exit(128 + number))
    folder = Path(tempfile.mkdtemp(prefix="distdoctor-"))
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)
        if heeds:
            signal.signal(signal.SIGTERM, signal.SIG_DFL)
