"""What the probe makes of calls that torch gives to Horovod's core."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
import torch

from distdoctor.journal.writer import JournalWriter
from distdoctor.model.observations.horovod import NameInFlight
from distdoctor.probes.horovod import torch_operations
from distdoctor.probes.metrics.evaluations import METRICS
from distdoctor.probes.recorder import RECORDER

Submit = Callable[..., int]

REFUSAL = (
    "Requested to allreduce, allgather, or broadcast a tensor with the same name as "
    "another tensor that is currently being processed."
)
"""Of Horovod 0.28.1."""


@pytest.fixture
def submit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Submit]:
    """The function of a core that takes whatever it is given."""
    monkeypatch.setattr(RECORDER, "folder", tmp_path)
    monkeypatch.setattr(RECORDER, "writer", JournalWriter(tmp_path, 0, 2, 8 << 20))
    monkeypatch.setattr(RECORDER, "_notes", None)
    core = SimpleNamespace(horovod_torch_allreduce_async_torch_FloatTensor=lambda *_: 1)
    mpi_ops = ModuleType("mpi_ops")
    mpi_ops.__dict__.update(
        mpi_lib=core, __file__=__file__, _basics=SimpleNamespace(size=lambda: 2)
    )
    torch_operations.watch(mpi_ops)
    yield core.horovod_torch_allreduce_async_torch_FloatTensor
    torch_operations.OPERATIONS_HERE.reset()


IN_HOROVOD = """
import torch

class Reduce(torch.autograd.Function):
    @staticmethod
    def forward(ctx, tensor, submit):
        ctx.submit = submit
        submit(tensor, tensor, 1, b"loss", 0, 1.0, 1.0, 0)
        return tensor.clone()

    @staticmethod
    def backward(ctx, gradient):
        ctx.submit(gradient, gradient, 1, b"loss", 0, 1.0, 1.0, 0)
        return gradient, None
"""
"""It communicates in forward, and in backward again, as the one of `hvd.allreduce`."""


def test_what_a_user_reduces_by_a_function_of_autograd_is_the_users(
    submit: Submit, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After an evaluation, it puts the ranks' figures together."""
    contributed: list[int] = []
    monkeypatch.setattr(METRICS, "passes", (1,))
    monkeypatch.setattr(
        METRICS, "contribute", lambda count, *_: contributed.append(count)
    )
    made: dict[str, Any] = {}
    code = compile(IN_HOROVOD, f"{Path(torch.__file__).parent}/mpi_ops.py", "exec")
    exec(code, made)
    figures = torch.ones(3, requires_grad=True)
    reduced = made["Reduce"].apply(figures, submit)
    assert contributed == [3]
    reduced.sum().backward()  # what backward submits is no figure of the user's
    assert contributed == [3]


def test_a_name_that_is_in_flight_is_told_and_refused_all_the_same(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(RECORDER, "writer", object())
    told: list[object] = []
    monkeypatch.setattr(RECORDER, "observe", lambda one, _site: told.append(one))

    def refuse(*_: object) -> int:
        raise ValueError(REFUSAL)

    name = "horovod_torch_allreduce_async_torch_FloatTensor"
    core = SimpleNamespace(**{name: refuse})
    mpi_ops = ModuleType("mpi_ops")
    mpi_ops.__dict__.update(mpi_lib=core, __file__=__file__, _basics=None)
    torch_operations.watch(mpi_ops)
    tensor = torch.ones(2)
    with pytest.raises(ValueError, match="same name"):
        getattr(core, name)(tensor, tensor, 1, b"loss", 0, 1.0, 1.0, 0)
    assert told == [NameInFlight(name="allreduce.loss")]
