"""Finds the program that has a disease, where one is installed."""

from __future__ import annotations

import importlib.util
from pathlib import Path

PATIENTS = "distdoctor.patients"


def patient_file(code: str) -> Path | None:
    """The program with the disease of a code.

    Args:
        code: Of a check, such as "DD108".

    Returns:
        Its file; None: no program for a CPU has this disease, or none is installed.
    """
    spec = importlib.util.find_spec(PATIENTS)
    if spec is None:
        return None
    for folder in spec.submodule_search_locations or ():
        for path in Path(folder).glob(f"{code.lower()}_*.py"):
            return path
    return None
