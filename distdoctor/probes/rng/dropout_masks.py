"""Records which elements dropout lets go of, in the first steps of training.

The functions of `torch.nn.functional` are replaced, which modules call, too. Masks that
a program makes by hand are not seen, nor those within fused attention.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from distdoctor.model.observations.rng import Dropped
from distdoctor.probes.call_sites import call_site
from distdoctor.probes.fingerprints import exact, sampled
from distdoctor.probes.harmless import harmless
from distdoctor.probes.patching import standing_for
from distdoctor.probes.probe import Probe
from distdoctor.probes.readability import has_values
from distdoctor.probes.recorder import RECORDER

_FUNCTIONS = (
    *("dropout", "alpha_dropout", "feature_alpha_dropout"),
    *("dropout1d", "dropout2d", "dropout3d"),
)

_BY_ELEMENT = "dropout"
"""Sets each element to zero, or not, by itself."""

_STEPS = 2  # in which masks are recorded

_MOST_CALLS = 64  # of a step

_BITS = 64


class _Looking:
    """How far the recording has come; it holds while steps are to be looked at."""

    def __init__(self) -> None:
        self.begin()

    def begin(self) -> None:
        self.step = self.calls = 0
        self.on = True


_looking = _Looking()


def install() -> None:
    """Wrap the functions right after `import torch`: user files import them by name."""
    for name in _FUNCTIONS:
        made = getattr(functional, name, None)
        if made is not None:
            setattr(functional, name, _telling(made, name))


def _telling(made: Callable[..., Any], name: str) -> Callable[..., Any]:
    is_compiling = torch.compiler.is_dynamo_compiling
    looking, look_before, look_after = _looking, _look_before, _look_after

    def around(*args: Any, **kwargs: Any) -> Any:
        if is_compiling() or not looking.on:
            return made(*args, **kwargs)
        before = look_before(name, args, kwargs)
        result = made(*args, **kwargs)
        if before is not None:
            look_after(before, result)
        return result

    return standing_for(made, around)


@harmless
def _look_before(
    name: str, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> _Given | None:
    """What dropout is given; None: it is not looked at."""
    named = dict(zip(("input", "p", "training", "inplace"), args, strict=False))
    named |= kwargs
    given, share = named.get("input"), named.get("p", 0.5)
    if RECORDER.writer is None or _looking.calls >= _MOST_CALLS:
        return None
    if not named.get("training", name == _BY_ELEMENT) or not 0.0 < share < 1.0:
        return None
    if not isinstance(given, Tensor) or not given.requires_grad:
        return None
    if not torch.is_grad_enabled() or not has_values(given) or sampled.is_capturing():
        return None
    return _Given(given, name == _BY_ELEMENT, bool(named.get("inplace")))


class _Given:
    """A tensor that dropout is given, with what is needed of it afterwards."""

    def __init__(self, tensor: Tensor, by_element: bool, in_place: bool) -> None:
        self.by_element = by_element
        self._tensor = tensor
        self._looked = self._look() if in_place else None

    def looked(self) -> tuple[int, int, Tensor]:
        """Number of elements, fingerprint, and some of the elements."""
        # As late as can be: what a collective still computes is waited for by dropout.
        return self._looked or self._look()

    def _look(self) -> tuple[int, int, Tensor]:
        with torch.no_grad():
            part = _part(self._tensor)
            return part.numel(), sampled.print_of(part), _some(part).clone()


@harmless
def _look_after(given: _Given, result: Tensor) -> None:
    count, print_, elements = given.looked()
    if not elements.numel() or bool((elements == elements[0]).all()):
        return  # numbers that are all alike are so on any rank
    known = kept = 0
    with torch.no_grad():
        part = _part(result)
        left = sampled.print_of(part)
        if given.by_element:
            had = elements != 0
            known, kept = _bits(had), _bits(had & (_some(part) != 0))
    observation = Dropped(
        step=_looking.step,
        call=_looking.calls,
        elements=count,
        given=print_,
        left=left,
        known=known,
        kept=kept,
    )
    _looking.calls += 1
    RECORDER.observe(observation, call_site(2))


def _part(tensor: Tensor) -> Tensor:
    """What this rank has of a tensor; of one that was waited for, the result."""
    part = exact.local(tensor)
    if type(part).__name__ == "AsyncCollectiveTensor":
        waited: Tensor = part.elem  # type: ignore[attr-defined]
        return waited
    return part


def _some(tensor: Tensor) -> Tensor:
    flat = tensor.detach().reshape(-1)
    return flat[:: max(1, -(-flat.numel() // _BITS))]


def _bits(truths: Tensor) -> int:
    return sum(1 << at for at, one in enumerate(truths.tolist()) if one)


def _stepped(_: object) -> None:
    _looking.step += 1
    _looking.calls = 0
    _looking.on = _looking.step < _STEPS


PROBE = Probe(install=install, stepped=_stepped, reset=_looking.begin)
