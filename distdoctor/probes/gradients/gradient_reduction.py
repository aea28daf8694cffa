"""Checks whether a rank's gradients are changed before they are averaged by hand.

Looked at are the steps that are looked at anyway, and only where lines of the user's
own exchange gradients. What backward gave is kept as norms and some elements, and
compared with what is sent: a multiple of it has been clipped, weighted or scaled.
"""

from __future__ import annotations

import math
import weakref
from collections.abc import Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from distdoctor.model.observations.gradients import NO_GRADIENT, Clip, Exchange, Sent
from distdoctor.probes.call_sites import call_site, frame_above, is_users, text_of
from distdoctor.probes.fingerprints.sampled import is_capturing
from distdoctor.probes.gradients import clip_hooks
from distdoctor.probes.gradients.clip_hooks import Clipping
from distdoctor.probes.gradients.exchanges import EXCHANGES
from distdoctor.probes.gradients.gradient_provenance import (
    Own,
    detached,
    factor,
    is_readable,
    moved,
    parts,
    sample,
    settle,
)
from distdoctor.probes.harmless import harmless
from distdoctor.probes.optimizer_step import optimizers
from distdoctor.probes.optimizer_step.optimizers import Optimizer
from distdoctor.probes.probe import Probe
from distdoctor.probes.recorder import RECORDER

_MOST = 1000  # parameters that are followed

_MOST_CLIPS = 64  # between two steps

_MOST_LINES = 64


@dataclass(slots=True)
class _Clipped:
    parameters: set[int]
    bound: float
    norm: Tensor
    site: str
    elements: int
    reduced: int  # `EXCHANGES.reduced` at that moment
    watched: weakref.ref[Tensor]  # one of the parameters
    state: tuple[int, int]  # of its gradient: where, which version
    kept: bool = True  # when backward ran again, nobody had cleared it


@dataclass(slots=True)
class _Window:
    """What happened since the last optimizer step."""

    own: dict[int, Own] = field(default_factory=dict)
    clips: list[_Clipped] = field(default_factory=list)
    site: str = ""  # of the first exchange
    above: str = ""  # of the call of the function that it is in
    sent_at: int = -1  # clips before the first exchange
    reduced: int = 0


_window = _Window()
_lines: set[tuple[int, str]] = set()


def install() -> None:
    """Install the probe; called at the first `init_process_group`."""
    clip_hooks.watch(end=_clipped)
    EXCHANGES.watchers.append(harmless(_sending))


def reset() -> None:
    """Forget all state: the process starts to play in another run."""
    global _window
    _window = _Window()
    _lines.clear()


# --- what happens ---


def begun(_loss: Tensor, _given: object) -> None:
    """Called before a backward pass: see whether clipped gradients were cleared."""
    if EXCHANGES.looking:
        for one in _window.clips:
            watched = one.watched()
            if watched is None or _state_of(watched) != one.state:
                one.kept = False


def passed(reduced: bool, _local: bool) -> None:
    """Called after a backward pass: keep norms of the rank's own gradients."""
    if not EXCHANGES.looking or is_capturing():
        return
    if reduced:
        _window.own.clear()
        return
    given = [
        one
        for one in optimizers.trained()[:_MOST]
        if one.grad is not None and is_readable(one.grad) and not _is_sharded(one)
    ]
    if given:
        norms = torch._foreach_norm([detached(one.grad) for one in given])
        _window.own = {
            id(one): Own(weakref.ref(one), norm, sample(detached(one.grad)).clone())
            for one, norm in zip(given, norms, strict=True)
        }


def _clipped(this: Clipping) -> None:
    norm = this.norm
    window = _window
    if not EXCHANGES.looking or len(window.clips) >= _MOST_CLIPS:
        return
    if type(norm) is not Tensor:  # to read one that is sharded would need the others
        return
    given = [one for one in this.parameters if one.grad is not None]
    if not given:
        return
    window.clips.append(
        _Clipped(
            parameters=set(map(id, given)),
            bound=float(this.bound),
            norm=norm,
            site=call_site(3),
            elements=sum(one.numel() for one in given),
            reduced=EXCHANGES.reduced,
            watched=weakref.ref(given[0]),
            state=_state_of(given[0]),
        )
    )


def _sending(tensors: Sequence[Tensor]) -> None:
    """Some tensors are about to be sent."""
    window = _window
    if not window.own:
        return
    for tensor in tensors:
        if not is_readable(tensor):
            continue
        for own, part, is_sure in parts(tensor, list(window.own.values())):
            multiple = factor(own.sample, sample(detached(part)))
            if own.sent is not None and (own.factor or not multiple):
                continue  # a metric may have the shape of a parameter
            if window.sent_at < 0:
                window.sent_at = len(window.clips)
                window.site, window.above = _sites()
            own.sent = torch.linalg.vector_norm(detached(part))
            own.factor = multiple
            own.call = RECORDER.calls if is_sure else 0


def looking(known: Optimizer) -> None:
    """Called before an optimizer step that is sampled."""
    for one in known.parameters:
        own = _window.own.get(id(one))
        if own is not None:
            own.early = own.sent is not None
        if own is not None and one.grad is not None and is_readable(one.grad):
            own.before = sample(one.detach()).clone()
            own.used = sample(detached(one.grad)).clone()


def stepped(_optimizer: torch.optim.Optimizer, known: Optimizer) -> None:
    """Called after an optimizer step."""
    global _window
    if not EXCHANGES.looking:
        return
    window, _window = _window, _Window(reduced=EXCHANGES.reduced)
    clipped = window.clips[: window.sent_at] if window.sent_at >= 0 else window.clips
    found = [
        (n, own)
        for n, one in enumerate(known.parameters)
        if (own := window.own.get(id(one))) is not None and own.sent is not None
    ]
    for _, own in found:
        if not own.early:
            settle(own)
    if found:
        _tell(known, window, found, clipped)
    elif clipped and (late := [one for one in clipped if _is_sent_later(one, window)]):
        worst = _worst(late)
        _tell_once(Clip(optimizer=known.number), worst.site)
        observation = Sent(
            optimizer=known.number,
            step=known.steps,
            norm=_finite(float(worst.norm)),
            bound=worst.bound,
            in_backward=True,
        )
        RECORDER.observe(observation, call_site(4))


def _tell(
    known: Optimizer,
    window: _Window,
    found: Sequence[tuple[int, Own]],
    clipped: Sequence[_Clipped],
) -> None:
    sent = {id(own.parameter) for _, own in found}
    before = [one for one in clipped if one.parameters & sent]
    behind = [one for one in window.clips[window.sent_at :] if one.parameters & sent]
    worst = _worst(before) if before else None
    if worst is not None:
        _tell_once(Clip(optimizer=known.number), worst.site)
    _tell_once(Exchange(optimizer=known.number), window.above)
    norms = [
        torch.linalg.vector_norm(own.parameter.detach()).to(own.norm.device)
        for _, own in found
    ]
    RECORDER.observe(
        Sent(
            optimizer=known.number,
            step=known.steps,
            positions=tuple(n for n, _ in found),
            own=_numbers([own.norm for _, own in found]),
            sent=_numbers([own.sent for _, own in found if own.sent is not None]),
            factors=tuple(_finite(own.factor) for _, own in found),
            calls=_or_none([own.call for _, own in found]),
            weights=_numbers(norms),
            settled=_or_none([own.settled for _, own in found]),
            moved=tuple(_finite(moved(own)) for _, own in found),
            norm=0.0 if worst is None else _finite(float(worst.norm)),
            bound=0.0 if worst is None else worst.bound,
            again=bool(behind),
        ),
        window.site,
    )


def _tell_once(observation: Clip | Exchange, site: str) -> None:
    key = observation.optimizer, site
    if site and len(_lines) < _MOST_LINES and key not in _lines:
        _lines.add(key)
        RECORDER.observe(observation, site)


def _sites() -> tuple[str, str]:
    """The line that sends, and the one that calls the function it is in; "": none."""
    found: list[str] = []
    frame = frame_above(1)
    while frame is not None and len(found) < 2:
        code = frame.f_code
        if is_users(code.co_filename):
            found.append(text_of(code.co_filename, frame.f_lineno, code.co_qualname))
        frame = frame.f_back
    return (*found, "", "")[0], (*found, "", "")[1]


def _is_sent_later(clip: _Clipped, window: _Window) -> bool:
    """Whether a backward pass averaged what had been clipped before any did so."""
    none_before = clip.reduced == window.reduced
    if not clip.kept:
        return False
    return none_before and EXCHANGES.reduced - clip.reduced >= clip.elements > 0


def _worst(clipped: Sequence[_Clipped]) -> _Clipped:
    """The clip that took away most."""
    return max(clipped, key=lambda one: float(one.norm) / max(one.bound, 1e-30))


# --- readings ---


def _state_of(parameter: Tensor) -> tuple[int, int]:
    gradient = parameter.grad
    if gradient is None or not is_readable(gradient):
        return 0, 0
    return gradient.data_ptr(), gradient._version


def _numbers(norms: Sequence[Tensor]) -> tuple[float, ...]:
    found = torch.stack([one.double() for one in norms]).tolist()
    return tuple(map(_finite, found))


def _or_none(numbers: Sequence[int]) -> tuple[int, ...]:
    """Prints, or numbers of calls, if there is one of a gradient among them."""
    return tuple(numbers) if any(one != NO_GRADIENT for one in numbers) else ()


def _finite(number: float) -> float:
    """A number that can be told; what is received into may hold anything before."""
    return number if math.isfinite(number) else 0.0


def _is_sharded(tensor: Tensor) -> bool:
    return optimizers.is_sharded(tensor) or type(tensor.data) is not Tensor


PROBE = Probe(install=install, reset=reset)
