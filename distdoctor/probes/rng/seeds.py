"""Records which random generators are seeded, with which seed and from what source.

The functions that seed are replaced, in Python's `random` and in numpy when they are
imported, in torch when the other probes come in. What they do is not changed.
"""

from __future__ import annotations

import functools
import os
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from distdoctor.probes.call_sites import frame_above, is_users, text_of
from distdoctor.probes.harmless import harmless
from distdoctor.probes.probe import Probe
from distdoctor.probes.recorder import RECORDER

if TYPE_CHECKING:
    from types import FrameType, ModuleType

_MOST = 64
"""Seedings of a stream that are written down; loops may seed for each sample."""

_CERTAIN = 1e-6
"""How likely a seed that has nothing to do with the clock may be taken for one of it.

Each unit and modulus gets a window of that share of the modulus.
"""

_UNITS_NS = (1_000_000_000, 1_000_000, 1_000, 1)

_MODULI = (2**32, 2**32 - 1, 2**31, 2**31 - 1, 2**63, 2**64, 10**9, 10**8, 10**10)

_CHOSEN = 1_000_000
"""Seeds below are chosen by people: 0, 42, 1234. A clock that is cut to a modulus gives
so small a number once in a hundred times at most, and so many windows would meet one of
theirs by accident in one seeding of ten thousand."""

_OFFSET = 131_072
"""What may be added to the clock, such as the number of the rank."""

_NEVER_BEFORE_NS = 1_500_000_000 * 1_000_000_000  # July 2017, older than the probes

in_worker = False
"""This process is a DataLoader's worker, which tells of its streams itself."""

by_user = False
"""A worker is in the function that the user gave for its beginning."""

created: dict[int, str] = {}
"""Sites of the lines that made generators of numpy, by `id`; of the newest few."""

_MOST_CREATED = 512

_sources: dict[int, str] = {}
_counts: dict[str, int] = {}
_sites: dict[str, str] = {}
_early: list[tuple[str, int, str, str]] = []
_begun_ns = time.time_ns()


def watch_torch(torch: ModuleType) -> None:
    """Wrap torch's seeding functions right after `import torch`."""
    _patch(torch, "manual_seed", "torch")
    _patch(torch, "seed", "torch", "entropy")
    _patch(torch, "set_rng_state", "torch", "state")
    for name in ("manual_seed", "seed", "set_rng_state"):
        setattr(torch.random, name, getattr(torch, name))


def _watch_random(module: Any) -> None:
    _patch(module, "seed", "python")
    _patch(module, "setstate", "python", "state")


def _watch_numpy(module: Any) -> None:
    _patch(module, "seed", "numpy")
    _patch(module, "set_state", "numpy", "state")
    made = module.default_rng

    @functools.wraps(made)
    def default_rng(*args: Any, **kwargs: Any) -> Any:
        generator = made(*args, **kwargs)
        _created(generator, args[0] if args else kwargs.get("seed"))
        return generator

    default_rng.__module__ = module.__name__
    module.default_rng = default_rng


def _patch(module: Any, name: str, stream: str, source: str = "") -> None:
    """Note calls of a module's function; what they were given is a seed, or a state.

    Args:
        module: The module.
        name: Of the function.
        stream: That it seeds.
        source: Where what it was given came from, if it is no seed.
    """
    made: Callable[..., Any] = getattr(module, name)

    @functools.wraps(made)
    def seed(*args: Any, **kwargs: Any) -> Any:
        now_ns = time.time_ns()  # before, as the first call of all may take long
        result = made(*args, **kwargs)
        _seeded(stream, next(iter((*args, *kwargs.values())), None), source, now_ns)
        return result

    seed.__module__ = module.__name__  # so that it is pickled by its name
    seed.__qualname__ = name
    setattr(module, name, seed)


@harmless
def _seeded(stream: str, seed: object, source: str, now_ns: int) -> None:
    site = _site(3)
    if site is None:
        return
    _counts[stream] = count = _counts.get(stream, 0) + 1
    _sites[stream] = site
    if in_worker or count > (1 if source else _MOST):
        return
    if source:
        _note(stream, 0, source, site)
    else:
        _note(stream, *_number_and_source(seed, now_ns), site)


@harmless
def _created(generator: object, seed: object) -> None:
    site = _site(3)
    if site is None:
        return
    if len(created) >= _MOST_CREATED:
        created.pop(next(iter(created)))
    created[id(generator)] = site
    number, source = _number_and_source(seed, time.time_ns())
    _counts["generator"] = count = _counts.get("generator", 0) + 1
    if source and not in_worker and count <= _MOST:
        _note("generator", number, source, site)


def _note(stream: str, number: int, source: str, site: str) -> None:
    if RECORDER.writer is None:
        if len(_early) < _MOST:
            _early.append((stream, number, source, site))
        return
    from distdoctor.model.observations.rng import Seeded

    observation = Seeded(stream=stream, seed=number, source=source)
    RECORDER.observe(observation, site)


def tell_early() -> None:
    """Write the observations that came before the process had a rank."""
    early, _early[:] = list(_early), []
    for arguments in early:
        _note(*arguments)


def counts() -> dict[str, int]:
    """How often the user's code has seeded each stream in this process."""
    return dict(_counts)


def site_of(stream: str) -> str:
    """The line that last seeded a stream in this process; "" if none did."""
    return _sites.get(stream, "")


def _site(depth: int) -> str | None:
    """The user's line that seeds; None if a library does it for itself.

    So does a worker of a loader that it begins, and a module that is being imported.
    """
    frame: FrameType | None = frame_above(depth)
    while frame is not None:
        file = frame.f_code.co_filename
        if file.endswith(_WORKER):
            return "" if by_user else None
        if file.startswith(_IMPORTING):
            return None
        if is_users(file):
            return text_of(file, frame.f_lineno, frame.f_code.co_qualname)
        frame = frame.f_back
    return ""


_IMPORTING = "<frozen importlib"
_WORKER = os.path.join("torch", "utils", "data", "_utils", "worker.py")  # noqa: PTH118


def _number_and_source(seed: object, now_ns: int) -> tuple[int, str]:
    """A seed as a number, and where it came from as far as that can be seen."""
    if seed is None:
        return 0, "entropy"
    try:
        number = int(seed)  # type: ignore[call-overload]
    except (TypeError, ValueError, OverflowError):
        return 0, ""
    source = _sources.get(number)
    if source is None:
        source = source_of(number, now_ns, _begun_ns, os.getpid())
        if len(_sources) < _MOST:
            _sources[number] = source  # once taken from the clock, it stays so
    return number % 2**63, source


def source_of(seed: int, now_ns: int, begun_ns: int, process: int) -> str:
    """Whether a seed was taken from the clock, or is the process's number.

    It was if it is a moment since the process began, in one of the usual units, as it
    is or modulo a number that seeds are limited to; windows are so narrow that it is
    no accident.

    Args:
        seed: The seed.
        now_ns: The present time, since 1970.
        begun_ns: When the process began.
        process: Its number.

    Returns:
        "clock", "process", or "".
    """
    if seed >= _LOWEST_PROCESS and seed == process:
        return "process"
    age = now_ns - begun_ns
    for unit in _UNITS_NS:
        for clock in (now_ns, time.perf_counter_ns(), time.monotonic_ns()):
            moment = clock // unit
            large = moment * unit >= _NEVER_BEFORE_NS
            if large and abs(moment - seed) <= age // unit + _OFFSET:
                return "clock"
            for modulus in _MODULI if seed >= _CHOSEN else ():
                window = min(int(modulus * _CERTAIN), age // unit + 1)
                if moment < modulus or window < 1 or not 0 <= seed < modulus:
                    continue
                if (moment - seed + window) % modulus <= 2 * window:
                    return "clock"
    return ""


_LOWEST_PROCESS = 300
"""Numbers below are those of processes that came up with the machine or container."""


PROBE = Probe(imports={"random": _watch_random, "numpy.random": _watch_numpy})
