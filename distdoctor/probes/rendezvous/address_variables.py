"""Records who changes MASTER_ADDR and MASTER_PORT in the environment."""

from __future__ import annotations

import os

from distdoctor.probes.call_sites import call_site
from distdoctor.probes.harmless import harmless
from distdoctor.probes.probe import Probe

_NAMES = ("MASTER_ADDR", "MASTER_PORT")

_given: dict[str, str] = {}
_written: dict[str, str] = {}


def install() -> None:
    """Note the launcher's values, and wrap writes to the environment.

    `setdefault` and `update` go through `__setitem__` (CPython 3.11 to 3.14, os.py).
    """
    _given.update((name, os.environ[name]) for name in _NAMES if name in os.environ)
    kind = type(os.environ)
    made = kind.__setitem__

    def __setitem__(self: os._Environ[str], key: str, value: str) -> None:  # noqa: N807
        made(self, key, value)
        if key in _NAMES:
            _note(key)

    kind.__setitem__ = __setitem__  # type: ignore[method-assign]


@harmless
def _note(name: str) -> None:
    _written[name] = call_site(1)


def given_address() -> str:
    """The address that the launcher gave, such as "node0:29500"; "" if none."""
    return ":".join(_given[name] for name in _NAMES) if len(_given) == 2 else ""


def present_address() -> str:
    """The address that the variables give now."""
    return ":".join(os.environ.get(name, "") for name in _NAMES)


def writer_of_address() -> str:
    """The user's line that set the port, or else the host; "" if none did."""
    return _written.get("MASTER_PORT") or _written.get("MASTER_ADDR", "")


PROBE = Probe(install=install)
