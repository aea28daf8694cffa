"""Restores files that the runs of a job have changed; see `file_backup`."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Self

from distdoctor.journal.environment import KEEP_VARIABLE
from distdoctor.journal.layout import KEPT_FILE
from distdoctor.journal.private_files import make_private_folder
from distdoctor.probes.comparison.file_backup import name_of


class FileRestore:
    """Context manager that restores, at its end, the files that runs changed.

    What stood there is put back, and what the runs made is removed.

    Args:
        folder: For copies; it is made, and removed in the end.

    Attributes:
        folder: The folder of the copies.
        failed: Files that could not be put back; their copies stay.
        environment: Variables that the runs need in their environment.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.failed: list[str] = []
        self.environment = {KEEP_VARIABLE: str(folder)}

    def __enter__(self) -> Self:
        make_private_folder(self.folder)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.put_back()
        if not self.failed:
            shutil.rmtree(self.folder, ignore_errors=True)

    def put_back(self) -> None:
        """Restore all files; also after Ctrl-C, which counts once only."""
        try:
            self._put_back()
        except KeyboardInterrupt:
            self._put_back()
            raise

    def _put_back(self) -> None:
        before = dict(self._noted())
        self.failed = []
        for path, (was, _) in before.items():
            if was == "folder of ours":
                shutil.rmtree(path, ignore_errors=True)
            elif was == "folder":
                Path(path).mkdir(parents=True, exist_ok=True)
        for path, (was, link) in before.items():
            try:
                self._restore(Path(path), was, link)
            except OSError:
                self.failed.append(path)
        # The innermost folders first.
        for path in sorted(before, key=len, reverse=True):
            if before[path][0] == "no folder":
                with suppress(OSError):  # something else lies in it
                    Path(path).rmdir()
        if not self.failed:
            (self.folder / KEPT_FILE).unlink(missing_ok=True)

    def _restore(self, path: Path, was: str, link: str) -> None:
        match was:
            case "nothing":
                path.unlink(missing_ok=True)
            case "link":
                path.unlink(missing_ok=True)
                path.symlink_to(link)
            case "file":
                path.parent.mkdir(parents=True, exist_ok=True)
                draft = path.with_name(f".{path.name}.distdoctor")
                shutil.copy2(self.folder / name_of(str(path)), draft)
                draft.replace(path)
            case _:
                pass

    def _noted(self) -> Iterator[tuple[str, tuple[str, str]]]:
        """What there was, by path; the first word counts: later ones saw our own."""
        known: set[str] = set()
        with suppress(FileNotFoundError), (self.folder / KEPT_FILE).open() as file:
            for line in file:
                with suppress(ValueError, KeyError):  # torn: its writer died
                    one = json.loads(line)
                    path = str(one["path"])
                    if path not in known or one["was"] == "folder of ours":
                        known.add(path)
                        yield path, (str(one["was"]), str(one["link"]))
