"""Norms of parts by which ranks clip; what is told at first sight is in the manual."""

import pytest
import torch
from torch import Tensor, nn

from distdoctor.analysis.gradients.partial_norms import partial_norms
from distdoctor.model.drawing import sketch
from distdoctor.model.events import Observation
from distdoctor.model.observations.gradients import NormClip
from distdoctor.probes.gradients import clipped_norms, gradient_samples
from distdoctor.probes.gradients.clip_hooks import Clipping
from distdoctor.probes.recorder import RECORDER


def clips(*norms: float) -> str:
    return "\n".join(
        f"rank {rank} | norm_clip(norm={norm},bound=1.0,sharded)@t.py:9"
        for rank, norm in enumerate(norms)
    )


@pytest.mark.parametrize(
    ("norms", "found"),
    [
        ((0.8, 0.9), True),
        ((0.8, 0.8, 0.55, 0.55), False),  # two replicas of two shards: 0.97 in all
        ((0.8, 0.8, 0.8, 0.9), True),
        ((3.0, 3.0), False),
        ((3.0, 3.001), False),  # a rounding apart
    ],
)
def test_shards_are_added_up_and_replicas_count_once(
    norms: tuple[float, ...], found: bool
) -> None:
    assert bool(list(partial_norms(sketch(clips(*norms))))) is found


def test_norms_are_compared_at_one_line_alone() -> None:
    run = sketch(clips(3.0, 2.0).replace("9\nr", "8\nr"))
    assert not list(partial_norms(run))


def test_only_norms_that_this_rank_computed_are_told(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    told: list[Observation] = []
    monkeypatch.setattr(RECORDER, "observe", lambda one, *_: told.append(one))
    clipped_norms.reset()
    weights = [nn.Parameter(torch.ones(2))]
    for norm in (None, torch.tensor(0.0), torch.tensor(float("inf"))):
        clipped_norms._clipped(Clipping(weights, 1.0, norm is None, norm))
    without = Clipping(weights, float("inf"), False, torch.tensor(1.0))
    clipped_norms._clipped(without)
    for _ in range(9):
        clipped_norms._clipped(Clipping(weights, 1.0, False, torch.tensor(2.0)))
    clipped_norms.reset()
    assert [one.clip for one in told if isinstance(one, NormClip)] == [*range(6)]
    assert told[0] == NormClip(norm=2.0, bound=1.0)


class _Detached(torch.autograd.Function):  # it has no gradient for what it is given
    @staticmethod
    def forward(_ctx: object, given: Tensor) -> Tensor:
        return given.clone()

    @staticmethod
    def backward(_ctx: object, _gradient: Tensor) -> None:
        return None


def test_a_parameter_without_a_gradient_of_its_use_is_read_as_none(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    lost: list[object] = []
    monkeypatch.setattr(
        "distdoctor.probes.harmless.lost", lambda *what: lost.append(what)
    )
    weight = nn.Parameter(torch.ones(2))
    probes = gradient_samples._Probes([weight])
    _Detached.apply(weight).sum().backward()  # type: ignore[no-untyped-call]
    probes.remove()
    assert not lost
    assert probes.own == [0.0]
