"""The part of the probes that is compiled where it can be: what each call passes.

It is built when distdoctor is installed, if there is a compiler for C. Without it, or
with `DISTDOCTOR_INTERPRETED` set, everything is done by the code in Python that each
user of `HOT` has beside it, to the same effect.
"""

from __future__ import annotations

import os
from importlib import import_module
from typing import Any

INTERPRETED_VARIABLE = "DISTDOCTOR_INTERPRETED"


def _loaded() -> Any:
    if INTERPRETED_VARIABLE in os.environ:
        return None
    try:
        return import_module("distdoctor.compiled._hot")
    except ImportError:  # not built, or for another Python
        return None


HOT: Any = _loaded()
"""The module of `_hot.c`; None where Python does its work."""
