"""Stand-ins: scripts written for GPUs find some, torch itself does not."""

# Much of torch that is used here has no types.
# mypy: allow-untyped-calls

import copy
import functools
import hashlib
import io
import json
import math
import multiprocessing
import operator
import os
import pickle
import select
import signal
import threading
import traceback
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import torch._dynamo  # the first optimizer of each process would import it
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.tensor import Shard, distribute_tensor
from torch.utils.checkpoint import checkpoint
from torch.utils.data import DataLoader, TensorDataset

import distdoctor
from distdoctor.errors import NoStandIn
from distdoctor.journal.environment import (
    DEVICE_VARIABLE,
    RANKS_VARIABLE,
)
from distdoctor.journal.folder import read_substitutes
from distdoctor.model.substitutes import SUBSTITUTES
from distdoctor.probes import gpu_emulation
from distdoctor.probes.gpu_emulation.visible_gpus import ALLOWS_SHARING, VISIBLE
from distdoctor.probes.recorder import RECORDER

DEADLINE_S = 300.0

INSIDE = {"__name__": "torch.some.part", "torch": torch}
"""Globals of what is to look like a module of torch's."""


def result_of(body: Callable[[], object], device: str) -> str:
    """What a function returned in a process of its own, as text; its error, if any.

    What stands in for CUDA cannot be taken away again.
    """
    reader, writer = os.pipe()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # that there are threads; they take no locks
        child = os.fork()
    if not child:
        text = "died"
        try:
            torch.set_num_threads(1)
            warnings.simplefilter("ignore")
            os.environ[DEVICE_VARIABLE] = device
            from distdoctor.probes import gpu_emulation

            gpu_emulation.install()
            text = f"={body()!r}"
        except BaseException:  # noqa: BLE001 - the parent raises it
            text = traceback.format_exc()
        finally:
            os.write(writer, text[-30_000:].encode())
            os._exit(0)
    os.close(writer)
    ready, _, _ = select.select([reader], [], [], DEADLINE_S)
    if not ready:
        os.kill(child, signal.SIGKILL)
    with os.fdopen(reader) as stream:
        text = stream.read()
    os.waitpid(child, 0)
    assert text.startswith("="), text
    return text[1:]


def without_gpus(test: Callable[[], None]) -> Callable[[Path], None]:
    """A test that runs as a script does in a job on the CPU."""

    @functools.wraps(test)
    def alone(tmp_path: Path) -> None:
        RECORDER.folder = tmp_path
        os.environ.pop("CUDA_VISIBLE_DEVICES", None)
        result_of(test, "cpu")

    del alone.__wrapped__  # pytest asks it for fixtures
    return alone


def as_torch(expression: str, **names: Any) -> Any:
    """What an expression is inside torch."""
    return eval(expression, {**INSIDE, **names})


def cuda(index: int = 0) -> torch.device:
    return torch.device("cuda", index)


# --- tensors ---


@without_gpus
def test_a_tensor_is_where_it_was_moved_to() -> None:
    x = torch.zeros(3)
    moves: list[Callable[[], torch.Tensor]] = [
        lambda: x.cuda(),
        lambda: x.cuda(0, non_blocking=True),
        lambda: x.cuda(torch.device("cuda:0")),
        lambda: x.to("cuda"),
        lambda: x.to("cuda:0", torch.float16),
        lambda: x.to(0),
        lambda: x.to(device=0, non_blocking=True),
        lambda: x.to(device="cuda", dtype=torch.float64, copy=True),
        lambda: x.to(torch.zeros(1, device="cuda")),
        lambda: x.type_as(torch.zeros(1, device=0)),
        lambda: x.type("torch.cuda.FloatTensor"),
    ]
    for n, move in enumerate(moves):
        moved = move()
        assert (moved.device, moved.is_cuda, moved.is_cpu) == (cuda(), True, False), n
        assert moved.get_device() == 0
        assert x.device == torch.device("cpu"), n
        assert x.get_device() == -1
    assert x.to("cuda").type() == "torch.cuda.FloatTensor"
    assert (
        x.to(torch.float64).dtype == x.to("cpu", torch.float64).dtype == torch.float64
    )
    assert x.to("meta").device.type == "meta"
    assert x.to(1).device == cuda(1)
    assert x.to("cuda:1").data.view(3).detach().device == cuda(1)
    assert copy.deepcopy(x.to(0)).is_cuda


@without_gpus
def test_a_move_copies_where_it_would_between_devices() -> None:
    x = torch.zeros(3)
    there = x.cuda()
    there += 1
    assert x.tolist() == [0, 0, 0]
    assert there.cuda() is there
    back = there.cpu()
    back += 1
    assert there.tolist() == [1, 1, 1]
    assert back.cpu() is back
    assert not torch.zeros(3, requires_grad=True).cuda().is_leaf
    batch = there[:2] * 2  # nobody knows; it is taken to be there
    assert batch.to("cuda") is batch


@without_gpus
def test_what_torch_asks_is_answered_by_the_truth() -> None:
    x = torch.zeros(3, device="cuda")
    assert as_torch("x.device.type, x.is_cuda, x.get_device()", x=x) == (
        "cpu",
        False,
        -1,
    )
    assert as_torch("x.to('cpu') is x", x=x)
    assert not as_torch("torch.cuda.is_available() or torch.cuda.device_count()")
    assert not as_torch("torch.accelerator.is_available()")
    assert as_torch("torch.get_default_device()") == torch.device("cpu")
    assert torch.cuda.is_available()
    assert torch.accelerator.is_available()
    assert str(torch.accelerator.current_accelerator()) == "cuda"


@without_gpus
def test_before_a_device_is_used_all_is_on_the_cpu() -> None:
    assert (torch.zeros(3) + 1).device == torch.device("cpu")
    assert not torch.cuda.is_initialized()
    torch.zeros(3).cuda()
    assert (torch.zeros(3) + 1).is_cuda
    assert torch.cuda.is_initialized()


@without_gpus
def test_new_tensors_lie_where_they_are_asked_for() -> None:
    torch.cuda.set_device(1)
    made = [
        torch.zeros(2, device="cuda"),
        torch.randn(2, device=1),
        torch.tensor([1.0], device=torch.device("cuda")),
        torch.full((2,), 1.0, device="cuda:1"),
        torch.as_tensor([1], device="cuda"),
        torch.normal(0.0, 1.0, (2,), device="cuda"),
        torch.zeros_like(torch.zeros(2), device="cuda"),
        torch.zeros(2).new_ones(2, device="cuda"),
        torch.ones_like(torch.zeros(2, device="cuda")),
        torch.zeros(2, device="cuda").new_tensor([1.0]),
        nn.Linear(2, 2, device="cuda").weight,
        nn.Linear(2, 2, device="meta").to_empty(device="cuda").weight,
        torch.randn(2, generator=torch.Generator("cuda"), device="cuda"),
    ]
    assert [x.device for x in made] == [cuda(1)] * len(made)
    assert torch.zeros(2).device == torch.device("cpu")
    assert torch.zeros(2, device="cpu").device == torch.device("cpu")
    assert torch.zeros(2, device="meta").device == torch.device("meta")
    array = torch.zeros(2).numpy()
    torch.as_tensor(array, device="cuda").add_(1)
    assert array.tolist() == [0, 0]


@without_gpus
def test_default_devices_may_be_gpus() -> None:
    with torch.device("cuda"):
        inside = torch.zeros(2), nn.Linear(2, 2).weight
    assert [x.device for x in inside] == [cuda()] * 2
    assert torch.zeros(2).device == torch.device("cpu")
    torch.set_default_device("cuda:1")
    assert torch.get_default_device() == cuda(1)
    assert torch.zeros(2).device == torch.tensor(3).device == cuda(1)
    torch.set_default_device(None)
    assert torch.get_default_device() == torch.device("cpu")
    torch.set_default_tensor_type("torch.cuda.FloatTensor")
    assert torch.zeros(2).is_cuda


def test_a_number_alone_names_a_device(tmp_path: Path) -> None:
    RECORDER.folder = tmp_path
    result_of(_numbers_are_devices, "cpu")


def _one(x: torch.Tensor) -> torch.Tensor:
    return x + 1


def _numbers_are_devices() -> None:
    assert torch.device(1) == cuda(1)
    assert (
        torch.device("cpu", 0).type == torch.device(torch.device("cpu")).type == "cpu"
    )
    assert isinstance(torch.zeros(1).device, torch.device)
    assert pickle.loads(pickle.dumps(torch.device(1))) == cuda(1)
    assert isinstance(torch.Generator(), torch.Generator)
    assert type(torch.ones(1, device="cuda").device) is torch.device
    assert type(torch.device(1)) is torch.device is torch._C.device
    assert type(torch.Generator("cuda")) is torch.Generator
    with pytest.raises(RuntimeError, match="must not be negative"):
        torch.device(-1)
    with pytest.raises(TypeError, match="invalid combination of arguments"):
        torch.device("cpu", 1, 2)  # type: ignore[call-overload]

    class Own(torch.Generator):
        """One of the user's."""

    assert type(Own()) is Own
    assert nn.Linear(2, 2).to(1).weight.device == cuda(1)
    assert nn.Linear(2, 2).to(device=1).weight.device == cuda(1)
    # What compilers make asks whether a type is that of devices.
    local = torch.jit.script(_one)

    def two(x: torch.Tensor) -> torch.Tensor:
        return torch.add(local(x), 1)  # a name of this function's surroundings

    assert torch.jit.script(two)(torch.zeros(1)).item() == 2


@without_gpus
def test_modules_move_and_keep_their_parameters() -> None:
    model = nn.Sequential(nn.Linear(2, 2), nn.BatchNorm1d(2))
    weight = model[0].weight
    assert model.cuda() is model
    assert model[0].weight is weight
    assert {p.device for p in model.parameters()} == {cuda()}
    assert model[1].running_mean.is_cuda
    model.cpu()
    assert {p.device.type for p in model.parameters()} == {"cpu"}


@without_gpus
def test_every_thread_finds_the_devices() -> None:
    torch.cuda.set_device(1)
    seen: list[torch.device] = []

    def work() -> None:
        seen.append(torch.zeros(1).cuda().device)  # CUDA begins with the first one
        seen.append(torch.ones(1, device=1).device)

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert seen == [cuda(0), cuda(1)]


@without_gpus
def test_a_forked_worker_starts_on_the_cpu() -> None:
    torch.zeros(1).cuda()
    dataset = _Tells(range(2))
    for workers in (0, 2):
        loader = DataLoader(dataset, num_workers=workers, pin_memory=True)
        assert [bool(x) for x in loader] == [not workers] * 2


class _Tells(TensorDataset):
    """Says whether what it computes is on a GPU."""

    def __init__(self, numbers: Any) -> None:
        self.numbers = numbers

    def __len__(self) -> int:
        return len(self.numbers)

    def __getitem__(self, index: int) -> Any:
        return (torch.zeros(1) + 1).is_cuda


@without_gpus
def test_files_are_loaded_to_where_they_are_asked_for() -> None:
    file = io.BytesIO()
    torch.save({"a": torch.zeros(2, device="cuda")}, file)

    def load(where: Any) -> torch.device:
        file.seek(0)
        state: dict[str, torch.Tensor] = torch.load(file, map_location=where)
        return state["a"].device

    for where in ("cuda:1", cuda(1), lambda storage, _: storage.cuda(1)):
        assert load(where) == cuda(1)
    assert load("cpu") == load(torch.device("cpu")) == torch.device("cpu")
    assert load({"cuda:0": "cuda:1"}).type == "cuda"  # the file says cpu
    assert load("meta").type == "meta"


@without_gpus
def test_a_compiler_finds_autocast_as_it_is() -> None:
    """It sets what it has found again, and would switch on what is not there."""
    model = torch.compile(nn.Linear(3, 2), backend="eager")
    for device in ("cpu", "cuda"):
        with torch.autocast(device, dtype=torch.bfloat16):
            assert model(torch.ones(1, 3)).dtype == torch.bfloat16


@without_gpus
def test_what_stands_for_several_ranks_is_loaded() -> None:
    file = io.BytesIO()
    torch.save(distribute_tensor(torch.ones(3), mesh_of_one(), [Shard(0)]), file)
    places: list[Any] = [None, "cuda:0", {"cuda:0": "cpu"}]
    for where in places:
        file.seek(0)
        loaded = torch.load(file, map_location=where, weights_only=False)
        assert loaded.full_tensor().tolist() == [1, 1, 1]


@without_gpus
def test_pinned_memory_is_a_copy_that_says_so() -> None:
    x = torch.zeros(2)
    pinned = x.pin_memory()
    assert pinned.is_pinned()
    assert pinned.pin_memory() is pinned
    assert not x.is_pinned()
    assert torch.zeros(2, pin_memory=True).is_pinned()
    assert not pinned.cuda().is_pinned()


@without_gpus
def test_the_table_of_places_does_not_grow_for_ever() -> None:
    from distdoctor.probes.gpu_emulation import tensor_devices

    kept = [torch.zeros(1) for _ in range(10)]
    for _ in range(20_000):
        torch.zeros(1)
    assert len(tensor_devices._known) < 5_000
    assert {tensor_devices.known_place(x) for x in kept} == {tensor_devices.CPU}


# --- tensors of different devices ---

MIXED = "found at least two devices, cuda:0 and cpu!"


class Joined(nn.Module):
    """Adds, and joins."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """What comes of both."""
        return torch.cat([x + 1, x])


def classifier() -> nn.Module:
    return nn.Sequential(nn.Linear(4, 8), nn.LayerNorm(8), nn.ReLU(), nn.Linear(8, 3))


def labelled(workers: int) -> DataLoader[Any]:
    data = TensorDataset(torch.randn(4, 4), torch.randint(3, (4,)))
    return DataLoader(data, 2, num_workers=workers)


@without_gpus
def test_a_batch_that_was_not_moved_meets_no_model_on_a_gpu() -> None:
    model = classifier().cuda()
    batches = [torch.randn(2, 4), torch.randn(6, 4)[:2]]
    batches += [next(iter(labelled(workers)))[0] for workers in (0, 1)]
    for batch in batches:
        with pytest.raises(RuntimeError, match=MIXED):
            model(batch)
        model(batch.cuda())
    with pytest.raises(RuntimeError, match=MIXED):
        nn.Embedding(5, 2, device="cuda")(torch.tensor([1, 2]))
    with pytest.raises(RuntimeError, match=MIXED):
        nn.Conv2d(1, 2, 3).to("cuda:0")(torch.randn(1, 1, 5, 5))


def test_only_forked_workers_are_known_to_send_what_is_on_the_cpu() -> None:
    from distdoctor.probes.gpu_emulation.mixed_devices import _are_forked

    assert _are_forked([multiprocessing.get_context("fork").Process()])
    for workers in ([], [multiprocessing.get_context("spawn").Process()]):
        assert not _are_forked(workers)
    assert _are_forked([multiprocessing.Process()]) == (
        multiprocessing.get_start_method() == "fork"
    )


@without_gpus
def test_a_model_that_was_not_moved_takes_no_batch_on_a_gpu() -> None:
    with pytest.raises(RuntimeError, match=MIXED):
        classifier()(torch.randn(2, 4).cuda())


@without_gpus
def test_labels_or_weights_that_were_not_moved_make_no_loss_on_a_gpu() -> None:
    model, x = classifier().cuda(), torch.randn(2, 4).cuda()
    targets = [torch.tensor([0, 2]), *(next(iter(labelled(n)))[1] for n in (0, 1))]
    for target in targets:
        with pytest.raises(RuntimeError, match=MIXED):
            nn.CrossEntropyLoss()(model(x), target)
        nn.CrossEntropyLoss()(model(x), target.cuda())
    with pytest.raises(RuntimeError, match=MIXED):
        nn.functional.mse_loss(model(x).relu().mean(1), torch.zeros(2))
    with pytest.raises(RuntimeError, match=MIXED):
        nn.CrossEntropyLoss(torch.ones(3))(model(x), targets[0].cuda())
    with pytest.raises(RuntimeError, match=MIXED):
        nn.functional.l1_loss(torch.zeros(2, device="cuda"), torch.zeros(2))


@without_gpus
def test_what_may_be_on_one_device_is_not_refused() -> None:
    model, x, y = classifier().cuda(), torch.randn(2, 4), torch.tensor([0, 2])
    loss = nn.functional.cross_entropy
    nn.functional.mse_loss(model(x.cuda()).sum(), torch.tensor(1.0))  # no dimensions
    model(x * 2)  # nobody can tell
    made = torch.randn(2, 4) @ torch.eye(4)
    made.cuda()  # and now the table says of both that they may be there
    nn.functional.mse_loss(made, torch.zeros(2, 4))
    classifier()(x)
    loss(classifier()(x), y)
    loss(copy.deepcopy(model).cpu()(x), y)
    with torch.no_grad():
        loss(model(x.cuda()), y)  # it has no graph that tells
    on_host = model(x.cuda()).cpu()
    loss(on_host, y)
    loss(on_host * 2, y)


@without_gpus
def test_ddp_of_one_device_moves_what_it_is_given() -> None:
    class WithLoss(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.model = classifier()

        def forward(self, x: torch.Tensor, y: torch.Tensor) -> Any:
            return nn.functional.cross_entropy(self.checkpointed(x), y)

        def checkpointed(self, x: torch.Tensor) -> Any:
            return checkpoint(self.model, x, use_reentrant=False)

    joined("nccl")
    ddp = nn.parallel.DistributedDataParallel
    x, y = torch.randn(2, 4), torch.tensor([0, 2])
    ddp(WithLoss().cuda(), device_ids=[0])(x, y).backward()
    model = ddp(classifier().cuda(), device_ids=[0])
    with pytest.raises(RuntimeError, match=MIXED):
        nn.functional.cross_entropy(model(x), y)
    nn.functional.cross_entropy(model(x), y.cuda()).backward()
    with pytest.raises(RuntimeError, match=MIXED):
        ddp(classifier().cuda())(x)


@without_gpus
def test_compilers_see_the_functions_of_torch() -> None:
    torch.jit.script(classifier())
    assert torch.nn.functional.linear is torch._C._nn.linear
    assert torch.cat is torch._C._VariableFunctions.cat
    assert torch.Tensor.__add__ is torch._C.TensorBase.__add__


MIXING: tuple[Callable[[torch.Tensor, torch.Tensor], object], ...] = (
    lambda a, b: a + b,
    lambda a, b: a - b,
    lambda a, b: a * b,
    lambda a, b: a / b,
    lambda a, b: a @ b,
    lambda a, b: a.mul_(b),
    lambda a, b: torch.add(a, b),
    lambda a, b: torch.maximum(a, b),
    lambda a, b: torch.matmul(a, b),
    lambda a, b: a.mm(b),
    lambda a, b: torch.cat([a, b]),
    lambda a, b: torch.stack((a, b), dim=1),
    lambda a, b: torch.where(a > 0, a, b),
    lambda a, b: operator.iadd(a, b),
)
"""Operations of two square matrices that CUDA refuses on two devices."""


@without_gpus
def test_arithmetic_of_two_devices_is_refused() -> None:
    for mix in MIXING:
        there, left = torch.randn(2, 2).cuda(), torch.randn(2, 2)
        with pytest.raises(RuntimeError, match=MIXED):
            mix(there, left)
        with pytest.raises(RuntimeError, match=MIXED):
            mix(nn.Linear(4, 4).cuda().weight.t()[:2, :2].detach(), left)
        mix(torch.randn(2, 2), left)
        mix(torch.randn(2, 2).cuda(), left.cuda())
    weights = torch.rand(3)
    with pytest.raises(RuntimeError, match=MIXED):  # its graph tells where it is
        (classifier().cuda()(torch.randn(2, 4).cuda()) - 1).pow(2) * weights


@without_gpus
def test_arithmetic_that_cuda_takes_is_not_refused() -> None:
    there, left, number = torch.randn(3, 3).cuda(), torch.randn(3, 3), torch.tensor(2.0)
    for taken in (there + number, number * there, there / 2, 2 - there, there.add_(1)):
        assert taken.shape == (3, 3)
    assert torch.where(there > 0, there, number).shape == (3, 3)
    there.copy_(left)
    there[0] = left[0]
    assert there[torch.tensor([0, 2])].shape == (2, 3)  # indices
    assert torch.cat([there, torch.empty(0)]).shape == (3, 3)
    there.mul_(there.sum()).add_(there, alpha=2)
    left + left.numpy()
    left + (there * 2).cpu()
    (there * 2) + left.to(there)
    unknown = torch.randn(3, 3) * 2
    there + unknown  # nobody can tell
    eval("one + other", {**INSIDE, "one": there, "other": left})


@without_gpus
def test_what_was_computed_before_a_gpu_was_used_is_on_the_cpu() -> None:
    left = torch.randn(3, 3).exp()
    moved, held = left.exp(), [torch.ones(3).cumsum(0)]
    held.append(held[0].clone())
    held[1].set_(held[0].untyped_storage(), 0, (3,))  # type: ignore[call-overload]
    there = moved.cuda()
    assert there is not moved
    for one in (left, left[0], left.detach(), moved, held[1]):
        assert one.device.type == "cpu"
        with pytest.raises(RuntimeError, match=MIXED):
            there - one
    there - left.to(there)
    left.data = left.cuda()
    there - left
    (there - held[0].sum()).add_(there.exp())
    moved.set_(there.exp())  # type: ignore[call-overload]
    there - moved


def loaded_as_saved() -> torch.Tensor:
    file = io.BytesIO()
    torch.save(torch.ones(3), file)
    file.seek(0)
    loaded: torch.Tensor = torch.load(file)
    return loaded


def mesh_of_one() -> DeviceMesh:
    dist.init_process_group(
        "gloo", store=torch._C._distributed_c10d.HashStore(), rank=0, world_size=1
    )
    return init_device_mesh("cuda", (1,))


def in_a_mesh() -> torch.Tensor:
    return distribute_tensor(torch.ones(3), mesh_of_one(), [Shard(0)]).to_local()


@pytest.mark.parametrize(
    "make",
    [
        loaded_as_saved,
        in_a_mesh,
        lambda: as_torch("torch.cuda.FloatTensor([1.0, 2.0, 3.0])"),
        lambda: torch.ones(3).exp().share_memory_(),
    ],
    ids=["a file's", "a mesh's", "of a type of CUDA", "of another process perhaps"],
)
def test_what_may_be_on_a_gpu_before_one_is_used_is_not_refused(
    make: Callable[[], torch.Tensor], tmp_path: Path
) -> None:
    def combined() -> int:
        one = make()
        result = one * 2
        return len(torch.ones(3).cuda() + result)

    RECORDER.folder = tmp_path
    assert result_of(combined, "cpu") == "3"


@without_gpus
def test_a_forked_child_of_who_used_a_gpu_knows_nothing_of_its_results() -> None:
    result = torch.ones(3).cuda() * 2

    def combined() -> int:
        return len(torch.ones(3).cuda() + result)

    assert result_of(combined, "cpu") == "3"


@without_gpus
def test_types_of_cuda_are_those_of_torch() -> None:
    module: Any = torch.cuda
    assert module.LongTensor is torch.LongTensor
    assert not hasattr(module, "NoTensor")


@without_gpus
def test_operators_stay_those_of_torch_for_others_than_plain_tensors() -> None:
    class Own(torch.Tensor):
        def __radd__(self, other: object) -> str:  # type: ignore[override]
            return "own"

    torch.ones(1).cuda()
    own = torch.ones(2).as_subclass(Own)
    assert torch.ones(2) + own == "own"
    assert type(own * 2) is Own
    assert 1 + torch.ones(1) == 2
    with pytest.raises(TypeError):
        operator.add(torch.ones(1), object())
    assert hash(torch.ones(1))
    graph = torch.fx.symbolic_trace(Joined())
    assert graph(torch.ones(1)).tolist() == [2.0, 1.0]
    assert "torch.cat" in graph.code


# --- devices ---


@without_gpus
def test_there_is_a_device_for_each_rank_of_the_node() -> None:
    os.environ[RANKS_VARIABLE] = "3"
    assert torch.cuda.device_count() == torch.accelerator.device_count() == 3
    os.environ["LOCAL_WORLD_SIZE"] = "4"
    assert torch.cuda.device_count() == 4
    for visible, count in {"0,1": 2, "3": 1, "": 0, "-1": 0, "0,-1,1": 1}.items():
        os.environ["CUDA_VISIBLE_DEVICES"] = visible
        assert (torch.cuda.device_count(), torch.cuda.is_available()) == (
            count,
            count > 0,
        )
    assert torch.zeros(1).cuda().is_cuda  # hard-coded


@without_gpus
def test_what_tests_are_made_with_counts_the_devices_that_tests_count() -> None:
    """It would skip a test that has chosen NCCL because it was told of devices."""
    os.environ[RANKS_VARIABLE] = "2"
    question = "torch.cuda.is_available(), torch.cuda.device_count()"
    asked = {"__name__": "torch.testing._internal.common_distributed", "torch": torch}
    assert eval(question, asked) == eval(question) == (True, 2)
    comparing = {"__name__": "torch.testing._comparison", "torch": torch}
    assert eval(question, comparing) == as_torch(question) == (False, 0)


@without_gpus
def test_the_current_device_is_the_one_that_was_chosen() -> None:
    torch.cuda.set_device("cuda:1")
    assert torch.cuda.current_device() == torch.accelerator.current_device_index() == 1
    with torch.cuda.device(2):
        assert torch.zeros(1).cuda().device == cuda(2)
    with torch.cuda.device_of(torch.zeros(1, device=3)):
        assert torch.cuda.current_device() == 3
    with torch.cuda.device(None), torch.cuda.device_of(torch.zeros(1)):
        assert torch.cuda.current_device() == 1
    torch.accelerator.set_device_index(0)
    assert torch.zeros(1).to("cuda").device == cuda(0)
    torch.cuda.set_device(-1)  # changes nothing, as torch has it
    assert torch.cuda.current_device() == 0


@without_gpus
def test_devices_have_properties_and_no_memory_in_use() -> None:
    assert torch.cuda.get_device_capability() == (8, 0)
    assert torch.cuda.get_device_properties(0).name == torch.cuda.get_device_name(0)
    assert torch.cuda.is_bf16_supported()
    free, total = torch.cuda.mem_get_info()
    assert free == total == torch.cuda.get_device_properties(0).total_memory
    torch.cuda.reset_peak_memory_stats()
    torch.cuda.empty_cache()
    assert torch.cuda.memory_allocated() + torch.cuda.max_memory_allocated(0) == 0
    assert torch.cuda.memory_stats()["allocated_bytes.all.current"] == 0
    assert torch.accelerator.memory_allocated() == 0
    assert "CPU" in torch.cuda.memory_summary()
    assert torch.cuda.nccl.version() >= (2, 10)
    assert torch.backends.cudnn.version() > 8000
    torch.cuda.cudart().cudaProfilerStart()
    torch.cuda.nvtx.range_push("step")
    with torch.cuda.nvtx.range("step"), torch.cuda.profiler.profile():
        torch.cuda.synchronize()


@without_gpus
def test_generators_of_devices_keep_their_seeds_and_touch_no_other() -> None:
    torch.manual_seed(5)
    assert torch.cuda.initial_seed() == 5
    before = torch.get_rng_state()
    torch.cuda.manual_seed(7)
    state = torch.cuda.get_rng_state()
    torch.cuda.manual_seed_all(8)
    torch.cuda.seed()
    torch.cuda.set_rng_state(state)
    assert torch.cuda.initial_seed() == 7
    assert state.dtype == torch.uint8
    torch.cuda.set_rng_state_all(torch.cuda.get_rng_state_all())
    assert torch.equal(torch.get_rng_state(), before)


@without_gpus
def test_streams_and_events_are_in_one_order() -> None:
    stream, begun = torch.cuda.Stream(), torch.cuda.Event(enable_timing=True)
    begun.record()
    with torch.cuda.stream(stream):
        assert torch.cuda.current_stream() is stream
        x = torch.zeros(2).cuda(non_blocking=True)
    assert torch.cuda.current_stream() is not stream
    torch.cuda.current_stream().wait_stream(stream)
    x.record_stream(stream)
    done = stream.record_event(torch.cuda.Event(enable_timing=True))
    done.synchronize()
    assert done.query()
    assert begun.elapsed_time(done) > 0
    with stream:
        assert torch.cuda.current_stream() is stream
    with pytest.raises(ValueError, match="must be recorded"):
        begun.elapsed_time(torch.cuda.Event())


@without_gpus
def test_what_needs_a_gpu_is_refused_in_one_sentence() -> None:
    with pytest.raises(NoStandIn, match="--device cuda"):
        torch.cuda.CUDAGraph()
    with pytest.raises(RuntimeError, match="CUDA graph"):
        torch.cuda.graph(None)  # type: ignore[arg-type]
    assert torch.cuda.make_graphed_callables(len, ([],)) is len  # type: ignore[arg-type]
    assert not torch.cuda.is_current_stream_capturing()


# --- mixed precision, kernels ---


@without_gpus
def test_autocast_and_scaling_for_cuda_are_on() -> None:
    model, x = nn.Linear(2, 2).cuda(), torch.ones(1, 2).cuda()
    with torch.autocast("cuda"):
        assert model(x).dtype == torch.get_autocast_dtype("cuda") == torch.float16
        assert torch.is_autocast_enabled()
        with torch.autocast("cuda", enabled=False):
            assert model(x).dtype == torch.float32
    with torch.cuda.amp.autocast(dtype=torch.bfloat16):
        assert model(x).dtype == torch.get_autocast_gpu_dtype() == torch.bfloat16
    assert not torch.is_autocast_enabled("cuda")
    for scaler in (torch.amp.GradScaler(), torch.cuda.amp.GradScaler()):
        assert scaler.is_enabled()
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    before = model.weight.clone()
    scaler = torch.amp.GradScaler("cuda", init_scale=4.0)
    scaler.scale(model(x * float("inf")).sum()).backward()
    scaler.step(optimizer)
    scaler.update()
    assert scaler.get_scale() == 2.0  # the step was left out
    assert torch.equal(model.weight, before)


@without_gpus
def test_attention_falls_back_to_what_the_cpu_has() -> None:
    from torch.nn.attention import SDPBackend, sdpa_kernel

    q = torch.randn(1, 2, 4, 8, device="cuda")
    plain = nn.functional.scaled_dot_product_attention(q, q, q)
    with sdpa_kernel(SDPBackend.EFFICIENT_ATTENTION):
        chosen = nn.functional.scaled_dot_product_attention(q, q, q)
    torch.backends.cuda.enable_math_sdp(False)
    torch.testing.assert_close(plain, chosen)


@without_gpus
def test_the_kernels_of_sync_batch_norm_are_those_of_one_large_batch() -> None:
    from distdoctor.probes.gpu_emulation import batch_norm as kernels

    torch.manual_seed(0)
    x = torch.randn(10, 3, 4, dtype=torch.float64)
    whole = nn.BatchNorm1d(3, dtype=torch.float64)
    nn.init.normal_(whole.weight)
    leaf = x.clone().requires_grad_()
    out = whole(leaf)
    slopes = torch.randn_like(out)
    out.backward(slopes)
    mean0, var0 = (
        torch.zeros(3, dtype=torch.float64),
        torch.ones(3, dtype=torch.float64),
    )
    parts, grads = x.split([4, 6]), slopes.split([4, 6])  # as on two ranks
    stats = [kernels.batch_norm_stats(part, whole.eps) for part in parts]
    counts = torch.tensor([16.0, 24.0], dtype=torch.float64)
    means, invstds = (torch.stack(column) for column in zip(*stats, strict=True))
    mean, invstd = kernels.batch_norm_gather_stats_with_counts(
        x, means, invstds, mean0, var0, 0.1, whole.eps, counts
    )
    close = torch.testing.assert_close
    close(mean0, whole.running_mean)
    close(var0, whole.running_var)
    weight, bias = whole.weight.detach(), whole.bias.detach()
    norm = [
        kernels.batch_norm_elemt(part, weight, bias, mean, invstd, whole.eps)
        for part in parts
    ]
    close(torch.cat(norm), out.detach())
    sums = [
        kernels.batch_norm_backward_reduce(
            grad, part, mean, invstd, weight, True, True, True
        )
        for grad, part in zip(grads, parts, strict=True)
    ]
    dy, xmu, grad_weight, grad_bias = (
        sum(column) for column in zip(*sums, strict=True)
    )
    close(grad_weight, whole.weight.grad)
    close(grad_bias, whole.bias.grad)
    back = [
        kernels.batch_norm_backward_elemt(
            grad, part, mean, invstd, weight, dy, xmu, counts.int()
        )
        for grad, part in zip(grads, parts, strict=True)
    ]
    close(torch.cat(back), leaf.grad)
    half = parts[0].half()
    assert kernels.batch_norm_stats(half, 1e-5)[0].dtype == torch.float32
    shifted = kernels.batch_norm_elemt(half, None, None, mean, invstd, 1e-5)
    assert shifted.dtype == torch.float16


# --- groups ---


def joined(backend: str | None, **options: Any) -> None:
    store = dist.HashStore()  # type: ignore[attr-defined]
    dist.init_process_group(backend, store=store, rank=0, world_size=1, **options)


@without_gpus
def test_nccl_is_gloo_and_answers_to_its_name() -> None:
    options = dist.ProcessGroupNCCL.Options(is_high_priority_stream=True)
    joined("nccl", device_id=cuda(), pg_options=options)
    group = dist.new_group([0])
    other = dist.new_group([0], backend="gloo")
    assert dist.get_backend() == dist.get_backend(group) == "nccl"
    assert dist.get_backend(other) == "gloo"
    assert as_torch("torch.distributed.get_backend()") == "gloo"
    assert dist.is_nccl_available()
    assert dist.is_backend_available("nccl")
    assert not as_torch("torch.distributed.is_nccl_available()")
    mesh = init_device_mesh("cuda", (1,))
    assert (mesh.size(), mesh.device_type) == (1, "cuda")
    assert as_torch("mesh.device_type", mesh=mesh) == "cpu"
    x = torch.ones(2, device="cuda")
    dist.all_reduce(x)
    dist.barrier(device_ids=[0])
    sent: list[Any] = [None]
    dist.all_gather_object(sent, {"a": 1})
    assert sent == [{"a": 1}]


@without_gpus
def test_nccl_refuses_what_was_left_on_the_cpu() -> None:
    joined("nccl")
    left = torch.zeros(2)
    refusal = "No backend type associated with device type cpu"
    with pytest.raises(RuntimeError, match=refusal):
        dist.all_reduce(left)
    with pytest.raises(RuntimeError, match=refusal):
        dist.all_gather([left], left.cuda(), group=dist.group.WORLD)
    dist.all_reduce(left.cuda())
    dist.all_reduce(left.cuda() * 2)  # nobody can tell
    as_torch("torch.distributed.all_reduce(left)", left=left)  # not the user's call
    with pytest.raises(RuntimeError, match=refusal):
        dist.all_reduce(torch.zeros_like(left))
    sharded = as_torch("left.new_zeros(2)", left=left)
    dist.all_reduce(sharded)
    dist.all_reduce(as_torch("x.to('cpu')", x=torch.zeros(2)))  # a mesh's, perhaps
    dist.all_reduce(torch.zeros(2, device="cpu"))  # named, perhaps after torch's words
    dist.all_reduce(left.cuda().to("cpu"))
    with pytest.raises(RuntimeError, match=refusal):
        dist.all_reduce(left.cuda().cpu())
    on_host = dist.new_group([0], backend="gloo")
    dist.all_reduce(left, group=on_host)
    dist.destroy_process_group()
    joined("cpu:gloo,cuda:nccl")
    dist.all_reduce(left)


def as_another_process(body: Callable[[], int | None]) -> int | None:
    """What a function returned, of integers or None, in a fork of this process."""
    child = os.fork()
    if not child:
        result = body()
        os._exit(255 if result is None else result)
    code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    return None if code == 255 else code


def test_of_two_living_ranks_the_second_on_a_device_is_told(tmp_path: Path) -> None:
    from distdoctor.probes.gpu_emulation.shared_gpus import _first_of

    result_of(functools.partial(_two_on_a_device, tmp_path, _first_of), "")


def _two_on_a_device(folder: Path, first_of: Callable[..., int | None]) -> None:
    def second() -> int | None:
        return as_another_process(lambda: first_of(folder, "0 [0, 1] 0", 1))

    assert second() is None  # and it has gone: of a job before this one
    assert first_of(folder, "0 [0, 1] 0", 0) is None
    assert second() == 0
    assert first_of(folder, "0 [0, 1] 0", 0) is None
    assert as_another_process(lambda: first_of(folder, "0 [0, 1] 1", 1)) is None


@pytest.mark.parametrize(
    ("gpus", "environment", "wanted"),
    [
        (0, {}, True),
        (1, {"LOCAL_WORLD_SIZE": "2"}, True),
        (1, {RANKS_VARIABLE: "2"}, True),  # of a script that starts its own
        (2, {"LOCAL_WORLD_SIZE": "2"}, False),
        (1, {"LOCAL_WORLD_SIZE": "1"}, False),
        (1, {"LOCAL_WORLD_SIZE": "2", "CUDA_VISIBLE_DEVICES": "3"}, False),
        (1, {"LOCAL_WORLD_SIZE": "2", "NCCL_MULTI_RANK_GPU_ENABLE": "1"}, False),
    ],
)
def test_the_cpu_stands_in_where_ranks_cannot_have_a_gpu_each(
    gpus: int,
    environment: dict[str, str],
    wanted: bool,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for name in ("LOCAL_WORLD_SIZE", RANKS_VARIABLE, VISIBLE, ALLOWS_SHARING):
        monkeypatch.delenv(name, raising=False)
    for name, text in environment.items():
        monkeypatch.setenv(name, text)
    monkeypatch.setenv(DEVICE_VARIABLE, "auto")
    monkeypatch.setattr(torch.cuda, "device_count", lambda: gpus)
    assert gpu_emulation._is_wanted() == wanted
    monkeypatch.setenv(DEVICE_VARIABLE, "cuda")
    assert not gpu_emulation._is_wanted()


@pytest.mark.parametrize("visible", [None, "2,3"])
def test_where_the_cpu_stands_in_torch_finds_no_gpu(
    visible: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """C++ asks once, with what is visible then; the user's code sees no change."""
    seen = []
    monkeypatch.delenv(VISIBLE, raising=False)
    if visible is not None:
        monkeypatch.setenv(VISIBLE, visible)
    count = lambda: seen.append(os.environ[VISIBLE])  # noqa: E731
    monkeypatch.setattr(torch._C, "_cuda_getDeviceCount", count, raising=False)
    monkeypatch.setattr(torch.cuda, "_cached_device_count", None)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    gpu_emulation.hide_gpus()
    assert seen == [""]
    assert os.environ.get(VISIBLE) == visible
    assert torch.cuda._cached_device_count == 0


def test_two_ranks_on_one_device_are_refused_if_each_could_have_its_own(
    tmp_path: Path,
) -> None:
    RECORDER.folder = tmp_path
    for environment, refused in (
        ({RANKS_VARIABLE: "2"}, True),
        ({RANKS_VARIABLE: "1"}, False),  # two nodes, or a single GPU
        ({RANKS_VARIABLE: "2", "CUDA_VISIBLE_DEVICES": "3"}, False),
        ({RANKS_VARIABLE: "2", "NCCL_MULTI_RANK_GPU_ENABLE": "1"}, False),
    ):
        result_of(functools.partial(_meets, environment, refused), "cpu")


def _zero_on_the_first(_folder: Path, device: str, _mine: int) -> int | None:
    return 0 if device.endswith(" 0") else None


def _meets(environment: dict[str, str], refused: bool) -> None:
    from distdoctor.probes.gpu_emulation import shared_gpus

    os.environ.pop("CUDA_VISIBLE_DEVICES", None)
    os.environ.update(environment)
    two_ranks: dict[str, Callable[..., Any]] = {
        "get_process_group_ranks": lambda _group: [0, 1],
        "get_world_size": lambda: 2,
        "get_rank": lambda: 1,
    }
    for name, function in two_ranks.items():
        setattr(dist, name, function)
    vars(shared_gpus)["_first_of"] = _zero_on_the_first

    class Group:
        group_name = "0"

    unknown, known = torch.zeros(2) * 2, torch.zeros(2).cuda()
    shared_gpus.refuse_shared(Group, [unknown])
    if refused:
        with pytest.raises(dist.DistBackendError, match="Duplicate GPU detected"):
            shared_gpus.refuse_shared(Group, [unknown, known])
        Group.group_name = "1"
        shared_gpus.refuse_shared(Group, [torch.zeros(2, device="cuda:1")])
        Group.group_name = "2"
        shared_gpus.excuse()  # as a mesh does, which chooses each rank's device
    shared_gpus.refuse_shared(Group, [known])


@without_gpus
def test_ddp_takes_devices_unless_the_model_was_left_behind() -> None:
    joined("nccl")
    ddp = nn.parallel.DistributedDataParallel
    plain = nn.Sequential(nn.Linear(2, 2), nn.BatchNorm1d(2))
    with pytest.raises(ValueError, match="device_ids"):
        ddp(plain, device_ids=[0])
    normed = nn.SyncBatchNorm.convert_sync_batchnorm(plain).cuda()
    model = ddp(normed, device_ids=[0], output_device=0)
    model(torch.randn(4, 2)).sum().backward()
    assert model.module[0].weight.grad is not None


@without_gpus
def test_ddp_refuses_a_model_left_on_the_cpu_as_nccl_does() -> None:
    joined("nccl")
    ddp, model = nn.parallel.DistributedDataParallel, nn.Linear(2, 2)
    with pytest.raises(RuntimeError, match="device type cpu"):
        ddp(model)
    torch.ones(1).cuda()
    with pytest.raises(RuntimeError, match="device type cpu"):
        ddp(model)
    for backend in ("gloo", "cpu:gloo,cuda:nccl"):
        ddp(model, process_group=dist.new_group(backend=backend))
    ddp(model.cuda())


@without_gpus
def test_ddp_refuses_nothing_that_may_be_on_a_gpu() -> None:
    joined("nccl")
    ddp = nn.parallel.DistributedDataParallel
    with torch.device("cuda"):
        ddp(nn.Linear(2, 2))
    result_of_arithmetic = nn.Linear(2, 2)
    for one in result_of_arithmetic.parameters():
        one.data = one.data * 2
    ddp(result_of_arithmetic)


@without_gpus
def test_data_parallel_is_the_module_itself() -> None:
    model = nn.DataParallel(nn.Linear(2, 2)).cuda()
    assert model(torch.ones(1, 2).cuda()).shape == (1, 2)


@pytest.mark.parametrize(
    ("asked", "served"),
    [
        (None, None),
        ("nccl", "gloo"),
        ("NCCL", "gloo"),
        ("gloo", "gloo"),
        ("mpi", "mpi"),
        ("cpu:gloo,cuda:nccl", "cpu:gloo"),
        ("cuda:nccl", "cpu:gloo"),
        ("cpu:gloo,cuda:gloo", "cpu:gloo"),
        ("cpu:mpi,cuda:nccl", "cpu:mpi"),
        ("cpu:gloo,xpu:ccl", "cpu:gloo,xpu:ccl"),
    ],
)
def test_a_backend_for_gpus_is_one_for_the_cpu(asked: Any, served: Any) -> None:
    from distdoctor.probes.gpu_emulation import nccl_groups

    assert nccl_groups.served(asked) == served


# --- all of it ---


def trained(device: str) -> str:
    """What comes out of some training, bit for bit."""
    torch.manual_seed(0)
    model: nn.Module = nn.Sequential(
        nn.Conv2d(1, 4, 3), nn.BatchNorm2d(4), nn.Dropout(0.2), nn.Flatten()
    )
    model = nn.Sequential(model, nn.Linear(4 * 36, 3)).to(device)
    optimizer = torch.optim.AdamW(model.parameters(), 1e-2)
    scaler = torch.amp.GradScaler(device, init_scale=256.0)
    data = TensorDataset(torch.randn(24, 1, 8, 8), torch.randint(0, 3, (24,)))
    for images, labels in DataLoader(data, 6, shuffle=True, pin_memory=device != "cpu"):
        noise = torch.rand(6, 1, 8, 8, device=device)
        with torch.autocast(device, enabled=False):
            out = model(images.to(device, non_blocking=True) + noise)
            loss = nn.functional.cross_entropy(out, labels.to(device))
        optimizer.zero_grad()
        scaler.scale(loss).backward()
        scaler.unscale_(optimizer)
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        scaler.step(optimizer)
        scaler.update()
    sha = hashlib.sha256(torch.get_rng_state().numpy().tobytes())
    for value in model.state_dict().values():
        sha.update(value.cpu().numpy().tobytes())
    return sha.hexdigest()


def test_results_are_those_of_the_script_written_for_the_cpu(tmp_path: Path) -> None:
    RECORDER.folder = tmp_path
    for device in ("cpu", "cuda"):
        written = result_of(functools.partial(trained, "cpu"), "")
        played = result_of(functools.partial(trained, device), "cpu")
        assert played == written
    assert set(read_substitutes(tmp_path)) == {"amp", "devices"}


def lowered(device: str, dtype: torch.dtype) -> tuple[list[str], list[float]]:
    """Types and values that come out of products under autocast, and gradients."""
    torch.manual_seed(0)
    layers = nn.Conv2d(3, 8, 3, padding="same"), nn.Flatten(2), nn.Linear(64, 8)
    model = nn.Sequential(*layers).to(device)
    with torch.autocast(device, dtype=dtype):
        x = model(torch.randn(2, 3, 8, 8, device=device))
        x = nn.functional.scaled_dot_product_attention(x, x, x) @ x.mT
        y = torch.baddbmm(x, x, x) + torch.full((), 7e4, device=device)
    (2**10 * x.float().square().mean()).backward()
    values = [x, y, *(weight.grad for weight in model.parameters())]
    known = [value.detach().cpu() for value in values if value is not None]
    return [str(value.dtype) for value in known], torch.cat(
        [value.float().flatten() for value in known]
    ).tolist()


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=str)
def test_products_of_autocast_are_rounded_as_on_the_cpu(dtype: torch.dtype) -> None:
    written = json.loads(result_of(lambda: json.dumps(lowered("cpu", dtype)), "")[1:-1])
    played = json.loads(
        result_of(lambda: json.dumps(lowered("cuda", dtype)), "cpu")[1:-1]
    )
    assert played[0] == written[0]
    unit = torch.finfo(dtype).eps
    assert played[1] == pytest.approx(written[1], rel=8 * unit, abs=8 * unit)
    assert math.inf in played[1] or dtype is not torch.float16


def test_all_kinds_that_are_noted_can_be_told() -> None:
    package = Path(distdoctor.__file__).parent / "probes" / "gpu_emulation"
    text = "".join(path.read_text() for path in package.glob("*.py"))
    for kind in SUBSTITUTES:
        assert f'substituted("{kind}")' in text
    assert text.count("substituted(") == sum(
        text.count(f'substituted("{kind}")') for kind in SUBSTITUTES
    )


@pytest.mark.parametrize(
    ("asked", "gpus", "wanted"),
    [
        ("cpu", 1, True),
        ("auto", 0, True),
        ("auto", 1, False),
        ("cuda", 0, False),
        ("", 0, False),
    ],
)
def test_gpus_that_are_there_are_used(
    asked: str, gpus: int, wanted: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    from distdoctor.probes import gpu_emulation

    monkeypatch.setenv(DEVICE_VARIABLE, asked)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: gpus)
    assert gpu_emulation._is_wanted() is wanted
