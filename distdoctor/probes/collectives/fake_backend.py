"""Lets a process simulate one rank of a large job, alone, on torch's fake backend.

No other rank is there, so what would be received from others is a stand-in: what the
first simulated rank of the group has seen there, so that ranks that decide by a common
value decide alike, as they do in earnest. A sum is one rank's summand times the ranks,
and a message is zeros. Calls that hang on such values are found by simulating again
with other ones; see `launch.rank_simulation`.

The fake backend's ways were measured with torch 2.8 to 2.13.
"""

from __future__ import annotations

import functools
import importlib
import inspect
import os
from collections.abc import Callable, Iterator, Sequence
from datetime import timedelta
from hashlib import blake2b
from types import SimpleNamespace
from typing import Any

import torch
import torch.distributed as dist
from torch._C._distributed_c10d import HashStore
from torch.nn.parallel import DistributedDataParallel

from distdoctor.journal.environment import SIMULATION_VARIABLE
from distdoctor.journal.layout import VALUES_FOLDER
from distdoctor.journal.private_files import make_private_folder
from distdoctor.model.layers import LAYERS
from distdoctor.model.operations import REDUCE_OPS, Operation
from distdoctor.probes.call_sites import layered_site
from distdoctor.probes.collectives import reduce_ops
from distdoctor.probes.collectives.interception import Collectives
from distdoctor.probes.collectives.interception import install as install_kernels
from distdoctor.probes.collectives.simulated_values import GroupValues
from distdoctor.probes.harmless import harmless
from distdoctor.probes.interruptions import is_interruption
from distdoctor.probes.patching import replace_everywhere
from distdoctor.probes.probe import Probe
from distdoctor.probes.recorder import RECORDER

_COMMON = {
    *("all_reduce", "broadcast", "all_gather", "all_gather_into_tensor"),
    *("all_reduce_coalesced", "all_gather_into_tensor_coalesced"),
}
"""Operations after which all members hold the same values."""

_LEFT_ALONE = {"recv", "recv_any", "scatter"}
"""Operations of which the fake backend writes no result."""

_NO_RESULT = {"send", "barrier", "monitored_barrier"}

_DECIDING = {"", "dtensor"}
"""Layers whose results scripts see; DDP and FSDP refuse what does not fit them."""

_MOST_ELEMENTS = 4096  # of a result that others get; decisions hang on small ones
_MOST_VARIED = 16  # elements from each rank
_KEY_TIMEOUT = timedelta(seconds=5)  # nobody is there to set a key
_META = torch._C.DispatchKey.Meta


def install() -> None:
    """Replace what needs other ranks, right after `import torch`."""
    around: dict[Callable[..., Any], Callable[..., Any]] = {
        dist.init_process_group: _init_process_group,
        dist.new_group: _new_group,
        dist.monitored_barrier: _monitored_barrier,
        dist.broadcast_object_list: _broadcast_object_list,
        dist.all_gather_object: _all_gather_object,
        dist.gather_object: _gather_object,
        dist.scatter_object_list: _scatter_object_list,
        dist.send_object_list: _send_object_list,
        dist.recv_object_list: _recv_object_list,
    }
    for function, replacement in around.items():
        replace_everywhere(function, replacement)
    _watch_ddp()
    _complete_work()


# --- joining and groups ---


def _init_process_group(made: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    importlib.import_module("torch.testing._internal.distributed.fake_pg")
    asked = args[0] if args else kwargs.get("backend")
    store = HashStore()
    store.set_timeout(_KEY_TIMEOUT)
    rank, world_size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    made(backend="fake", rank=rank, world_size=world_size, store=store)
    if asked:
        # Scripts choose their device by it.
        dist.get_backend = lambda group=None: dist.Backend(str(asked))  # noqa: ARG005


def _new_group(made: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    ranks = args[0] if args else kwargs.get("ranks")
    kept = ("group_desc", "use_local_synchronization")
    return made(ranks, **{name: kwargs[name] for name in kept if name in kwargs})


def _monitored_barrier(
    _made: Callable[..., Any], group: Any = None, *_args: Any, **_kwargs: Any
) -> None:
    dist.barrier(group)


# --- stand-ins for what others send ---


_groups: dict[str, GroupValues] = {}


def _results(group: Any) -> GroupValues:
    name = group.group_name
    if name not in _groups:
        folder = make_private_folder(RECORDER.folder / VALUES_FOLDER)
        ranks = dist.get_process_group_ranks(group)
        key = blake2b(f"{name} {ranks}".encode(), digest_size=12).hexdigest()
        _groups[name] = GroupValues(folder / key)
    return _groups[name]


def _varies() -> bool:
    return os.environ.get(SIMULATION_VARIABLE) == "varied"


def varied(value: Any, factor: float = 1.5) -> Any:
    """Another value of the same type, on which decisions come out differently.

    >>> varied([True, 0, 8, {"loss": 2.0}])
    [False, 1, 4, {'loss': 3.0}]
    """
    match value:
        case bool():
            return not value
        case int():
            return value // 2 if value else 1
        case float():
            return float(not value) if value in {0.0, 1.0} else value * factor
        case list():
            return [varied(part, factor) for part in value]
        case dict():
            return {key: varied(part, factor) for key, part in value.items()}
        case torch.Tensor() if value.dtype is torch.bool:
            return value.logical_not()
        case torch.Tensor() if value.is_floating_point() or value.is_complex():
            switched = torch.where(value == 0, 1.0, 0.0).to(value.dtype)
            return torch.where((value == 0) | (value == 1), switched, value * factor)
        case torch.Tensor():
            return torch.where(value == 0, 1, value // 2)
    return value


def _factor() -> float:
    """Of this call; it goes up and down, so that no order of values stays."""
    return 0.5 + RECORDER.calls * 37 % 16 / 8


class SimulatedCollectives(Collectives):
    """The dispatcher kernels, which also make stand-ins for other ranks' data."""

    def _kernel(self, code: int, operation: Operation, op: Any) -> Callable[..., Any]:
        kernel = super()._kernel(code, operation, op)
        if operation.name in _NO_RESULT:
            return kernel
        at = {argument.name: n for n, argument in enumerate(op._schema.arguments)}
        at_group, at_reduce = at["process_group"], at.get("reduce_op")
        at_root = at.get("root_rank")

        @harmless
        def settle(args: tuple[Any, ...], out: Any, varies: bool) -> None:
            group = dist.ProcessGroup.unbox(args[at_group])
            results = out[0] if isinstance(out, tuple) else args[0]
            summed = at_reduce is not None and reduce_ops.read(
                args[at_reduce]
            ) == REDUCE_OPS.index("sum")
            own = at_root is not None and args[at_root] == group.rank()
            if group.size() > 1:
                tensors = list(_flat(results))
                sent = _settle(group, operation.name, tensors, summed, own)
                if varies and not sent:
                    _vary(tensors, group.size())
            if isinstance(out, tuple):
                work = dist.Work.unbox(out[-1])
                _values[id(work)] = (work, results)
                if len(_values) > _MOST_VALUES:
                    _values.pop(next(iter(_values)))

        def settled(keyset: Any, *args: Any) -> Any:
            out = kernel(keyset, *args)
            if not keyset.has(_META):
                settle(args, out, _varies() and LAYERS[layered_site(2)[1]] in _DECIDING)
            return out

        return settled


def _flat(results: Any) -> Iterator[torch.Tensor]:
    if isinstance(results, torch.Tensor):
        yield results
    elif isinstance(results, list | tuple):
        for part in results:
            yield from _flat(part)


def _settle(
    group: Any, name: str, tensors: list[torch.Tensor], summed: bool, own: bool
) -> bool:
    """Put stand-ins into the results of a call.

    Returns:
        Whether they are none, but what a rank that was played sent.
    """
    is_source = own and name in {"broadcast", "scatter"}
    if name in _LEFT_ALONE and not is_source:
        for tensor in tensors:
            tensor.data.zero_()
    if name not in _COMMON:
        return is_source
    if summed:
        for tensor in tensors:
            if tensor.dtype is not torch.bool:
                tensor.data.mul_(group.size())
    shapes = [(str(tensor.dtype), tuple(tensor.shape)) for tensor in tensors]
    small = sum(tensor.numel() for tensor in tensors) <= _MOST_ELEMENTS
    mine = [tensor.detach().cpu() for tensor in tensors] if small else None
    theirs, sent = _results(group).agree(f"{name} {shapes}", mine, is_source)
    if theirs is not mine:
        for tensor, value in zip(tensors, theirs, strict=True):
            tensor.data.copy_(value)
    return sent


def _vary(tensors: list[torch.Tensor], ranks: int) -> None:
    if sum(tensor.numel() for tensor in tensors) <= _MOST_VARIED * ranks:
        factor = _factor()
        for tensor in tensors:
            tensor.data.copy_(varied(tensor.data, factor))


# --- objects: torch sends their sizes first, and here only these ---


def _by_name(
    play: Callable[[Any], Any],
) -> Callable[..., Any]:
    """Let a stand-in see the arguments of torch's function by their names there."""

    def called(made: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        bound = inspect.signature(made).bind(*args, **kwargs)
        bound.apply_defaults()
        return play(SimpleNamespace(**bound.arguments))

    return called


def _group_and_root(
    group: Any, root: int | None, group_root: int | None, default: int | None = 0
) -> tuple[Any, int]:
    group = group or dist.group.WORLD
    if group_root is not None:
        return group, group_root
    asked = default if root is None else root
    return group, dist.get_group_rank(group, asked or 0)


def _common_object(group: Any, kind: str, mine: Any, own: bool) -> Any:
    """A value that all members hold: a stand-in, or this rank's own."""
    try:
        value, sent = _results(group).agree(kind, mine, own)
    except Exception as error:  # the user's own containers may raise anything
        if is_interruption(error):
            raise
        return mine
    return varied(value, _factor()) if _varies() and not sent else value


@_by_name
def _broadcast_object_list(call: Any) -> None:
    group, root = _group_and_root(call.group, call.src, call.group_src)
    objects = call.object_list
    sizes = torch.zeros(len(objects), dtype=torch.long, device=call.device)
    dist.broadcast(sizes, group=group, group_src=root)
    kind = f"objects {len(objects)}"
    objects[:] = _common_object(group, kind, list(objects), group.rank() == root)


@_by_name
def _all_gather_object(call: Any) -> None:
    group = call.group or dist.group.WORLD
    _exchange_sizes(group)
    mine = [call.obj] * len(call.object_list)
    common = _common_object(group, f"gathered {len(mine)}", mine, own=False)
    call.object_list[:] = common


@_by_name
def _gather_object(call: Any) -> None:
    group, _ = _group_and_root(call.group, call.dst, call.group_dst)
    _exchange_sizes(group)
    if call.object_gather_list is not None:
        call.object_gather_list[:] = [call.obj] * len(call.object_gather_list)


@_by_name
def _scatter_object_list(call: Any) -> None:
    group, root = _group_and_root(call.group, call.src, call.group_src)
    dist.broadcast(torch.zeros(1, dtype=torch.long), group=group, group_src=root)
    given = list(call.scatter_object_input_list or [None] * group.size())
    is_root = group.rank() == root
    common = _common_object(group, f"scattered {len(given)}", given, is_root)
    call.scatter_object_output_list[0] = common[group.rank()]


@_by_name
def _send_object_list(call: Any) -> None:
    sizes = torch.zeros(len(call.object_list), dtype=torch.long, device=call.device)
    dist.send(sizes, call.dst, call.group, group_dst=call.group_dst)


@_by_name
def _recv_object_list(call: Any) -> int:
    sizes = torch.zeros(len(call.object_list), dtype=torch.long, device=call.device)
    return dist.recv(sizes, call.src, call.group, group_src=call.group_src)


def _exchange_sizes(group: Any) -> None:
    sizes = [torch.zeros(1, dtype=torch.long) for _ in range(group.size())]
    dist.all_gather(sizes, torch.zeros(1, dtype=torch.long), group=group)


# --- work: that of the fake backend never ends, and its futures hold nothing ---

_MOST_VALUES = 256
_values: dict[int, tuple[Any, Any]] = {}


def _complete_work() -> None:
    made = dist.Work.get_future

    def get_future(self: Any) -> Any:
        held = _values.get(id(self))
        if held is None or held[0] is not self:
            return made(self)
        future: torch.futures.Future[Any] = torch.futures.Future()
        future.set_result(list(_flat(held[1])))
        return future

    def source_rank(_self: Any) -> int:
        # Nobody knows from whom a message comes that may be anyone's.
        return (dist.get_rank() + 1 + _varies()) % dist.get_world_size()

    dist.Work.get_future = get_future  # type: ignore[method-assign]
    dist.Work.is_completed = lambda _: True  # type: ignore[method-assign, assignment]
    dist.Work._source_rank = source_rank  # type: ignore[method-assign, assignment]


def _joined() -> None:
    install_kernels(SimulatedCollectives)


def _watch_ddp() -> None:
    """Average gradients by a hook: the reducer's own way reads the empty future."""
    made = DistributedDataParallel.__init__
    register = DistributedDataParallel.register_comm_hook

    @functools.wraps(made)
    def initialise(self: Any, *args: Any, **kwargs: Any) -> None:
        made(self, *args, **kwargs)
        self._simulated_hook = (None, _average)

        def dispatch(_state: Any, bucket: Any) -> Any:
            state, hook = self._simulated_hook
            return hook(self.process_group if hook is _average else state, bucket)

        dispatch.__annotations__ = {}
        register(self, None, dispatch)

    def register_comm_hook(self: Any, state: Any, hook: Any) -> None:
        self._simulated_hook = (state, hook)

    DistributedDataParallel.__init__ = initialise  # type: ignore[method-assign]
    DistributedDataParallel.register_comm_hook = register_comm_hook  # type: ignore[method-assign]


def _average(group: Any, bucket: Any) -> Any:
    buffer = bucket.buffer()
    buffer.div_(group.size())
    dist.all_reduce(buffer, group=group)
    future: torch.futures.Future[Sequence[torch.Tensor]] = torch.futures.Future()
    future.set_result(buffer)
    return future


PROBE = Probe(install=install, joined=_joined)
