"""Finds dictionaries that number names, such as vocabularies and label maps.

Looked through are the variables of the user's functions that are running at a few of
the first backward passes, and what the objects in them hold: dictionaries of Python's
own type alone, and no code of the user's is run. Counts and marks of names are no
numbering: it gives each of n names another one of n numbers that follow one another.
"""

from __future__ import annotations

from collections.abc import Iterator
from types import FrameType, FunctionType, GetSetDescriptorType, ModuleType
from typing import Any

import torch

from distdoctor.model.observations.data import Numbered
from distdoctor.probes.call_sites import text_of, users_frames
from distdoctor.probes.fingerprints import exact
from distdoctor.probes.fingerprints.sampled import is_capturing
from distdoctor.probes.frame_variables import variables
from distdoctor.probes.harmless import harmless
from distdoctor.probes.optimizer_step import backward_hooks
from distdoctor.probes.probe import Probe
from distdoctor.probes.recorder import RECORDER
from distdoctor.probes.replicas import trained_models

FEWEST = 3
"""Names of a numbering."""

_FEW = 8
"""Of fewer names only those count that a model has as many rows of."""

MOST = 200_000
"""Names of one that is looked at."""

_LOOKS = (2, 6)  # backward passes; an optimizer makes its model known at the first
_MOST_FRAMES = 8
_MOST_OBJECTS = 3_000  # of a look
_MOST_PARTS = 200  # of an object, or a dictionary, that are gone through
_DEEPEST = 4  # attributes of attributes
_MOST_TOLD = 16
_FIRST = 3  # names that are told, by the alphabet
_LONGEST = 40  # characters of one that is told

_LARGE = 20  # names from which on the order of a set shows
_SHARE = 0.8
"""Of neighbours that stand in the order of a set, from which on it is taken for it.

Measured: CPython 3.11, sets of random words that were made in one way or in another and
made again from their order. 0.79 to 0.998 for 20 to 50,000 words, of shuffled ones at
most 0.74.
"""
_MOST_LEADING = 8  # special names before those of a set


class Numberings:
    """Finds and records dictionaries that map names to numbers in this process."""

    def __init__(self) -> None:
        self.reset()

    def reset(self) -> None:
        """Forget all state: the process starts to play in another run."""
        self._passes = 0
        self._reported: set[tuple[str, int, bool]] = set()

    def begin(self, _args: tuple[Any, ...]) -> None:
        """Called before each backward pass; on the hot path."""
        self._passes += 1
        if self._passes in _LOOKS:
            self._look()

    @harmless
    def _look(self) -> None:
        if RECORDER.writer is None or is_capturing():
            return
        sizes = _sizes()
        for name, found, frame in _dictionaries():
            observation = _numbered(name, found, sizes)
            if observation is None or len(self._reported) >= _MOST_TOLD:
                continue
            key = observation.name, observation.numbers, observation.fits
            if key not in self._reported:
                self._reported.add(key)
                code = frame.f_code
                RECORDER.observe(
                    observation,
                    text_of(code.co_filename, frame.f_lineno, code.co_qualname),
                )


def _sizes() -> set[int]:
    """Dimensions of the parameters of the models that are trained."""
    return {
        size
        for model in trained_models.models()
        for one in (model.module.parameters() if model.module is not None else ())
        for n, size in enumerate(one.shape)
        if not n or size >= _FEW
    }


def _numbered(name: str, found: dict[Any, Any], sizes: set[int]) -> Numbered | None:
    pairs = list(found.items())  # at once: another thread may change it
    if set(map(type, found)) != {str}:
        return None
    numbers = [number for _, number in pairs]
    if set(map(type, numbers)) != {int}:
        return None
    first, last = min(numbers), max(numbers)
    if last - first + 1 != len(pairs) or len(set(numbers)) != len(pairs):
        return None
    fits = bool({len(pairs), last + 1} & sizes)
    if len(pairs) < _FEW and not fits:
        return None
    order = [""] * len(pairs)
    for word, number in pairs:
        order[number - first] = word
    by_name = sorted(order)
    examples = [word for word in by_name if word.isprintable() and word][:_FIRST]
    return Numbered(
        name=name,
        size=len(pairs),
        keys=exact.of_value(by_name),
        numbers=exact.of_value((first, order)),
        first=tuple(f"{word[:_LONGEST]}={found[word]}" for word in examples),
        hashed=_is_of_a_set(order),
        fits=fits,
    )


def _is_of_a_set(order: list[str]) -> bool:
    """Whether names stand as a set of them would give them in this process."""
    if len(order) < _LARGE:
        return False
    leading = range(min(_MOST_LEADING, len(order) - _LARGE) + 1)
    return any(
        _share(order[first:], ranked) >= _SHARE
        for first in (leading if len(order) < _MOST_PARTS else (0,))
        for ranked in _made_again(order[first:])
    )


def _made_again(order: list[str]) -> Iterator[list[str]]:
    """Sets of the same names: how large one became depends on how it was made."""
    plain, half = set(order), len(order) // 2
    yield list(plain)
    yield list(plain | set(order[:1]))
    yield list(set(plain))
    yield list(set(order[:half]) | set(order[half:]))


def _share(order: list[str], ranked: list[str]) -> float:
    at = {word: n for n, word in enumerate(ranked)}
    places = [at[word] for word in order]
    rising = sum(map(int.__lt__, places, places[1:]))
    return rising / (len(places) - 1)


# --- what is held ---


def _dictionaries() -> Iterator[tuple[str, dict[Any, Any], FrameType]]:
    """Those that may be numberings, each by the shortest name, innermost first."""
    known: set[int] = set()
    left = _MOST_OBJECTS
    for frame in users_frames(_MOST_FRAMES):
        named = dict(list(frame.f_globals.items())) if _is_outermost(frame) else {}
        waiting = [(n, one, 0) for n, one in {**named, **variables(frame)}.items()]
        for name, value, depth in waiting:
            if (
                id(value) in known
                or id(type(value)) in _LEAVES
                or name.startswith("__")
            ):
                continue
            known.add(id(value))
            left -= 1
            if left <= 0:
                return
            if type(value) is dict and _may_be_one(value):
                yield name, value, frame
            elif depth < _DEEPEST:
                parts = _parts_of(value)
                waiting += [(f"{name}.{key}", one, depth + 1) for key, one in parts]


def _is_outermost(frame: FrameType) -> bool:
    """Whether no function of the same file is further out: its names are asked once."""
    outer = frame.f_back
    while outer is not None:
        if outer.f_globals is frame.f_globals:
            return False
        outer = outer.f_back
    return True


_KINDS = {str, bytes, int, float, bool, type(None), type, list, tuple, set, frozenset}
_KINDS |= {ModuleType, FunctionType, torch.Tensor, torch.nn.Parameter}
_LEAVES = frozenset(map(id, _KINDS))
"""By identity: to hash a type may run code of its metaclass."""


def _may_be_one(value: dict[Any, Any]) -> bool:
    if not FEWEST <= len(value) <= MOST:
        return False
    pair = next(iter(value.items()), ("", None))
    return type(pair[0]) is str and type(pair[1]) is int


def _parts_of(value: object) -> list[tuple[str, Any]]:
    """Attributes of an object, or entries of a dictionary, as they are stored."""
    held = value if type(value) is dict else _stored(value)
    if held is None or len(held) > _MOST_PARTS:
        return []
    return [(key, one) for key, one in list(held.items()) if type(key) is str]


def _stored(value: object) -> dict[Any, Any] | None:
    """An object's own dictionary, without running any code of its class."""
    for kind in type.__dict__["__mro__"].__get__(type(value)):
        found = type.__dict__["__dict__"].__get__(kind).get("__dict__")
        if found is not None:
            if type(found) is not GetSetDescriptorType:
                return None
            held = found.__get__(value)
            return held if type(held) is dict else None
    return None


NUMBERINGS = Numberings()


def install() -> None:
    """Install the probe right after `import torch`: names are numbered early."""
    backward_hooks.watch(begin=NUMBERINGS.begin)


PROBE = Probe(install=install, reset=NUMBERINGS.reset)
