"""Ranks that take turns in one process, so that a step is tried in milliseconds.

Each rank is a thread, and one runs at a time: until it ends or waits for the others in
a collective. Each has random numbers of its own. What comes of a step is thereby the
same in each run, and ranks that wait for each other in vain are told of at once.

`Ranks.run` starts them; a single rank needs no start. `Ranks` itself stands in for
`torch.distributed` in what is tried, and `Replica` for DistributedDataParallel.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterator, Sequence
from typing import Any, TypeVar

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.autograd import Variable

Result = TypeVar("Result")

_Given = tuple[str, list[Tensor]]  # what a rank calls a meeting, and its tensors

_ENDED_S = 60.0  # a rank that computes longer than this is given up


class Stuck(Exception):
    """Ranks wait in a collective that others never come to, or come to otherwise."""


class Ranks:
    """So many ranks; also what they call instead of `torch.distributed`."""

    ReduceOp = dist.ReduceOp

    def __init__(self, count: int) -> None:
        self.count = count
        self._mine = threading.local()
        self._turns = _Turns(count)
        self._alone = 0  # numbers that a rank without others has reduced

    @property
    def exchanged(self) -> int:
        """How many numbers have been reduced so far, gradients included."""
        return self._alone + self._turns.exchanged

    def run(self, job: Callable[[int], Result]) -> list[Result]:
        """What a job gives on each rank, called with its rank.

        Raises:
            Exception: What the job raised on some rank; or `Stuck`.
        """
        self._turns = _Turns(self.count)
        results: dict[int, Result] = {}
        errors: list[BaseException] = []

        def live(rank: int) -> None:
            self._mine.rank = rank
            try:
                with self._turns.of(rank):
                    results[rank] = job(rank)
            except BaseException as error:  # noqa: BLE001 - raised again by the caller
                errors.append(error)

        state = torch.get_rng_state()
        threads = [
            threading.Thread(target=live, args=(rank,), daemon=True)
            for rank in range(self.count)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(_ENDED_S)
        torch.set_rng_state(state)
        if errors:
            # Others are stuck when one has failed: that one is told of.
            raise min(errors, key=lambda error: isinstance(error, Stuck))
        if len(results) < self.count:
            raise Stuck(f"a rank computed for more than {_ENDED_S:.0f} s")
        return [results[rank] for rank in range(self.count)]

    # What stands in for functions of torch.distributed has their names.

    def get_rank(self) -> int:
        """Of the caller."""
        rank: int = 0 if self.count == 1 else self._mine.rank
        return rank

    def get_world_size(self) -> int:
        """Of all."""
        return self.count

    def is_initialized(self) -> bool:
        """Always."""
        return True

    def barrier(self) -> None:
        """Wait for all."""
        self._meet("barrier", [])

    def all_reduce(self, tensor: Tensor, op: Any = dist.ReduceOp.SUM) -> None:
        """Reduce in place."""
        there = self._meet(f"all_reduce {op}", [tensor])
        with torch.no_grad():
            tensor.copy_(_reduced([given for (given,) in there], op))

    def mean_gradients(self, gradients: Sequence[Tensor]) -> None:
        """Average in place; the collective of DDP."""
        there = self._meet("gradients", gradients)
        for mine, *every in zip(gradients, *there, strict=True):
            mine.copy_(torch.stack(every).sum(0) / self.count)

    def _meet(self, what: str, tensors: Sequence[Tensor]) -> list[list[Tensor]]:
        given = [one.detach().clone() for one in tensors]
        if self.count == 1:
            self._alone += sum(one.numel() for one in given)
            return [given]
        met = self._turns.meet(self.get_rank(), what, given)
        if len({name for name, _ in met}) > 1:
            raise Stuck(f"ranks met in {[name for name, _ in met]}")
        return [value for _, value in met]


class Replica(nn.Module):
    """A module whose gradients are averaged at the end of backward, as DDP's are.

    Whether they are is settled in forward, as with DDP (torch 2.13,
    nn/parallel/distributed.py: `_pre_forward` asks for `require_backward_grad_sync`).
    What is averaged is what `grad` then holds, all that was accumulated included.
    """

    def __init__(self, module: nn.Module, ranks: Ranks) -> None:
        super().__init__()
        self.module = module
        self._ranks = ranks
        self._synchronises = True

    @contextlib.contextmanager
    def no_sync(self) -> Iterator[None]:
        """Leave gradients as they are, of what goes forward in here."""
        before, self._synchronises = self._synchronises, False
        try:
            yield
        finally:
            self._synchronises = before

    def forward(self, *inputs: Any) -> Any:
        """What the module gives."""
        outputs = self.module(*inputs)
        if torch.is_grad_enabled() and self._synchronises:
            apply: Callable[..., Any] = _AtBackward.apply
            outputs = apply(outputs, self._average)
        return outputs

    def _average(self) -> None:
        held = [one.grad for one in self.parameters() if one.grad is not None]
        self._ranks.mean_gradients(held)


class _AtBackward(torch.autograd.Function):
    """Calls something when the backward that goes through it is over."""

    @staticmethod
    def forward(ctx: Any, outputs: Tensor, then: Callable[[], None]) -> Tensor:
        ctx.then = then
        return outputs.view_as(outputs)

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> Any:
        Variable._execution_engine.queue_callback(ctx.then)
        return gradients[0], None


def _reduced(there: Sequence[Tensor], op: Any) -> Tensor:
    stacked = torch.stack(list(there))
    if op == dist.ReduceOp.SUM:
        return stacked.sum(0)
    if op == dist.ReduceOp.AVG:
        return stacked.sum(0) / len(there)
    if op == dist.ReduceOp.MAX:
        return stacked.amax(0)
    if op == dist.ReduceOp.MIN:
        return stacked.amin(0)
    raise NotImplementedError(f"ranks that are simulated know no {op}")


class _Turns:
    """Who may run: one rank, until it ends or waits."""

    def __init__(self, count: int) -> None:
        self.exchanged = 0  # numbers of each rank's
        self._changed = threading.Condition()
        self._count = count
        self._running = 0
        self._ended: set[int] = set()
        self._given: dict[int, _Given] = {}  # by rank, that waits in the collective
        self._met: dict[int, list[_Given]] = {}  # by rank, that has not yet gone on
        self._stuck = False
        state = torch.get_rng_state()
        self._random = dict.fromkeys(range(count), state)

    @contextlib.contextmanager
    def of(self, rank: int) -> Iterator[None]:
        """Everything that a rank does."""
        with self._changed:
            self._wait(rank)
        try:
            yield
        finally:
            with self._changed:
                self._ended.add(rank)
                self._pass_on(rank)

    def meet(self, rank: int, what: str, tensors: list[Tensor]) -> list[_Given]:
        """What all ranks gave, when all are there."""
        with self._changed:
            self._given[rank] = (what, tensors)
            if len(self._given) == self._count:
                everything = [self._given[one] for one in range(self._count)]
                self._met = dict.fromkeys(range(self._count), everything)
                self._given = {}
                self.exchanged += sum(one.numel() for one in tensors)
            else:
                self._random[rank] = torch.get_rng_state()
                self._pass_on(rank)
                self._wait(rank)
            return self._met.pop(rank)

    def _wait(self, rank: int) -> None:
        while self._running != rank and not self._stuck:
            self._changed.wait()
        if self._stuck:
            raise Stuck("a rank waits for others that have ended")
        torch.set_rng_state(self._random[rank])

    def _pass_on(self, rank: int) -> None:
        after = [(rank + n) % self._count for n in range(1, self._count + 1)]
        ready = [one for one in after if one not in self._ended | self._given.keys()]
        if ready:
            self._running = ready[0]
        elif len(self._ended) < self._count:
            self._stuck = True
        self._changed.notify_all()
