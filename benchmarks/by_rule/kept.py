"""Results of runs, kept in a file as they come, so that a benchmark can go on."""

from __future__ import annotations

import json
import threading
from pathlib import Path
from typing import Any

Result = dict[str, Any]


class Results:
    """What is known, by key.

    Args:
        file: One line of JSON per result; None: nothing is kept.
    """

    def __init__(self, file: Path | None) -> None:
        self._file = file
        self._lock = threading.Lock()
        self._known: dict[str, Result] = {}
        if file is not None and file.exists():
            for line in file.read_text().splitlines():
                one = json.loads(line)
                self._known[one["key"]] = one

    def get(self, key: str) -> Result | None:
        """What is known of a run."""
        return self._known.get(key)

    def add(self, key: str, result: Result) -> None:
        """Keep a result."""
        one = {"key": key, **result}
        with self._lock:
            self._known[key] = one
            if self._file is not None:
                with self._file.open("a") as file:
                    file.write(json.dumps(one) + "\n")
