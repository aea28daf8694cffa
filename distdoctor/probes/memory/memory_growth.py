"""Counts autograd graphs that live on after their step, and memory, and their growth.

At some backward passes a small object is hung on the graph, as metadata of its last
nodes: it lives as long as one of them. How many are alive tells how many old graphs
are kept, and costs no look at other objects. Nothing else of a graph is touched.
"""

from __future__ import annotations

import gc
import weakref
from collections.abc import Collection, Iterable
from typing import Any

import torch

from distdoctor.model.observations.memory import Memory, Retained, Summed
from distdoctor.probes.call_sites import call_site
from distdoctor.probes.harmless import harmless
from distdoctor.probes.memory.graph_holders import holder_of, holders
from distdoctor.probes.optimizer_step import backward_hooks
from distdoctor.probes.probe import Probe
from distdoctor.probes.recorder import RECORDER
from distdoctor.probes.rng.stream_draws import PASSES

KEY = "distdoctor"
"""Of a graph's mark in the metadata of its nodes."""

_ALL = 128  # backward passes that are all marked
_EACH = 16  # of later ones, every so manieth

_DEPTH = 6
"""Nodes from the loss back: the loss, a reduction, the model's output."""

_MANY = 8
"""Graphs alive of other than recent steps."""

_KEPT_STEPS = 3
"""Steps whose graphs must be alive: a first result that is compared may be kept."""

_FROM_EARLIER = 4  # graphs of an earlier pass, alive when the next is under way

_FEW_STEPS = 2

_RECENT = 6
"""Steps whose graphs may be alive for a reason, as in gradient accumulation."""

_MOST_SAMPLES = 256
_MOST_LOOKS = 4  # at what keeps graphs; each costs a collection of garbage


_LEAST_BATCHES = 4
"""Of a pass without backward; who sums up fewer losses may mean to use them."""

_MOST_NODES = 2000  # of a loss's graph, that are searched for a sum

_MOST_EVALUATIONS = 4  # that are looked at

_SUM = "distdoctor_sum"


class _Mark:
    """An object attached to one autograd graph, alive as long as the graph."""

    __slots__ = ("__weakref__", "begun", "step")

    def __init__(self, step: int, begun: int) -> None:
        self.step, self.begun = step, begun


class MemoryGrowth:
    """Counts autograd graphs alive some steps after their forward pass, and memory."""

    def __init__(self) -> None:
        self.reset()

    def reset(self) -> None:
        """Forget all state: the process starts to play in another run."""
        self._marks: weakref.WeakSet[_Mark] = weakref.WeakSet()
        self._backwards = self._steps = self._looks = 0
        self._next = 4
        self._begun = self._begun_at = 0
        self._samples: list[tuple[int, int, int, int, int]] = []
        self._most = _MANY
        self._crossed = False
        self._evaluations = 0
        self._held: tuple[int, dict[str, int]] = (-1, {})
        self._summed: tuple[object, Summed, str] | None = None

    @harmless
    def evaluating(self, number: int) -> None:
        """Called at the second batch of a pass without a backward pass."""
        if self._evaluations < _MOST_EVALUATIONS and torch.is_grad_enabled():
            held = {name: one.count for name, one in holders().items()}
            self._held = number, held

    @harmless
    def going_on(self, number: int, batches: int) -> None:
        """Called at each later batch of a pass without a backward pass.

        Passes may be left before their end. A held graph is recorded once per pass.
        """
        of, held = self._held
        # One made of a few batches may be for the step of an accumulation.
        if of == number and batches >= _MANY and batches & (batches - 1) == 0:
            self._evaluations += batches == _MANY
            self._look_at_holders(held, batches - 1)

    @harmless
    def evaluated(self, number: int, batches: int) -> None:
        """Called at the end of a pass over a DataLoader without a backward pass.

        Whether what is held then is meant for backward is known when that runs next.
        """
        (of, held), self._held = self._held, (-1, {})
        if of == number and batches >= _LEAST_BATCHES:
            self._evaluations += batches < _MANY
            self._look_at_holders(held, batches)

    def _look_at_holders(self, held: dict[str, int], batches: int) -> None:
        """Remember a variable that holds graphs of so many batches, if there is one."""
        if not torch.is_grad_enabled():
            return
        for name, one in holders().items():
            # What is made anew for each batch holds as much as it did before.
            if one.count - held.get(name, 0) < batches - 2 or not (site := one.site()):
                continue
            mark = one.last.metadata[_SUM] = object()
            observation = Summed(batches=batches, graphs=one.count, name=name)
            self._summed = mark, observation, site
            return

    def _settle(self, roots: Iterable[Any] = ()) -> None:
        """Tell of an evaluation's graphs, unless they are what backward runs on."""
        if self._summed is None:
            return
        (mark, observation, site), self._summed = self._summed, None
        nodes = [getattr(root, "grad_fn", None) for root in roots]
        for node in nodes:  # grows meanwhile
            if node is None:
                continue
            if node.metadata.get(_SUM) is mark:
                return
            if len(nodes) < _MOST_NODES:
                nodes += [following for following, _ in node.next_functions]
        RECORDER.observe(observation, site)

    @harmless
    def backward(self, roots: Iterable[Any]) -> None:
        """Called before a backward pass, with the tensors that it starts at."""
        roots = list(roots)
        self._settle(roots)
        self._backwards += 1
        if self._backwards > _ALL and self._backwards % _EACH:
            return
        mark = _Mark(self._steps, PASSES.begun)
        for root in roots[:2]:
            node = getattr(root, "grad_fn", None)
            for _ in range(_DEPTH):
                if node is None or hasattr(node, "variable"):
                    break
                node.metadata[KEY] = mark
                self._marks.add(mark)
                following = node.next_functions
                node = following[0][0] if following else None

    @harmless
    def stepped(self) -> None:
        """Called after an optimizer step."""
        self._steps += 1
        if PASSES.begun != self._begun:
            self._begun, self._begun_at = PASSES.begun, self._steps
        if self._steps < self._next or len(self._samples) >= _MOST_SAMPLES:
            return
        self._next = self._steps + max(4, self._steps // 16)
        marks = self._old()
        own, device = _own_kib(), _device_kib()
        self._samples.append((self._steps, own, device, len(marks), PASSES.begun))
        if len(self._samples) & (len(self._samples) - 1) == 0:
            self._tell()
        self._look(marks)

    def _old(self) -> list[_Mark]:
        return [mark for mark in self._marks if mark.step <= self._steps - _RECENT]

    def _look(self, marks: list[_Mark]) -> None:
        """Tell of graphs that are kept, once more if they outlive a pass."""
        earlier = [mark for mark in marks if mark.begun < PASSES.begun]
        under_way = self._steps - self._begun_at >= _FEW_STEPS
        crossed = under_way and len(earlier) >= _FROM_EARLIER and not self._crossed
        if self._looks >= _MOST_LOOKS or not _are_many(marks):
            return
        if not (crossed or len(marks) >= self._most):
            return
        self._looks += 1
        self._most = 2 * len(marks)
        gc.collect()  # what only cycles keep is not kept
        marks = self._old()
        if not _are_many(marks):
            return
        self._crossed |= crossed
        name, site = holder_of(marks, KEY)
        observation = Retained(
            steps=self._steps,
            graphs=len(marks),
            oldest=min(mark.step for mark in marks) + 1,
            passes=PASSES.begun,
            outlived=self._crossed,
            name=name,
        )
        RECORDER.observe(observation, site or call_site(4))

    @harmless
    def _tell(self) -> None:
        if not self._samples:
            return
        steps, own, device, graphs, passes = zip(*self._samples, strict=True)
        observation = Memory(
            steps=steps,
            own_kib=own,
            device_kib=device if any(device) else (),
            graphs=graphs,
            passes=passes,
        )
        RECORDER.observe(observation)

    def tell(self) -> None:
        """Record what is not yet, at the end of the process."""
        self._finish()
        self._tell()

    @harmless
    def _finish(self) -> None:
        self._settle()


def _are_many(marks: Collection[_Mark]) -> bool:
    """Whether the graphs of several steps are kept: one result keeps those of its."""
    return len(marks) >= _MANY and len({mark.step for mark in marks}) >= _KEPT_STEPS


MEMORY_GROWTH = MemoryGrowth()


def _watch_memory() -> None:
    """When the rank joins: see backward passes begin."""
    backward_hooks.watch(begin=lambda args: MEMORY_GROWTH.backward(args[0]))


def _own_kib() -> int:
    """Memory of the process that no file and no other process has a part in.

    Source: proc(5), /proc/pid/statm: resident and shared pages.
    """
    with open("/proc/self/statm") as file:  # noqa: PTH123 - pathlib costs more
        fields = file.read().split()
    return (int(fields[1]) - int(fields[2])) * _PAGE_KIB


_PAGE_KIB = 4


def _device_kib() -> int:
    """What tensors take on the rank's GPU; the count is kept on the host."""
    if not torch.cuda.is_available() or not torch.cuda.is_initialized():
        return 0
    return int(torch.cuda.memory_allocated()) // 1024


PROBE = Probe(
    joined=_watch_memory,
    stepped=lambda _: MEMORY_GROWTH.stepped(),
    flush=MEMORY_GROWTH.tell,
    reset=MEMORY_GROWTH.reset,
)
