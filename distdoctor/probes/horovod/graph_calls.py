"""Sees Horovod's operations inside of TensorFlow's functions (`tf.function`).

What is in such a function was called once, when TensorFlow traced it; what runs is its
graph. The graph tells which operations each run of it makes, without any change of it:
those that the function's results or effects depend on, and that are in no loop and in
no branch whose condition is known only when it runs. TensorFlow removes the others that
nothing depends on; of those in loops and such branches nothing is known, and a function
with some is only noted as that.

Horovod's name for one ends in the name of its node. What is before that are the names
of the functions around it; they are left out, so that what meets has the same name here
whatever is around it.

Source: Horovod 0.28.1, tensorflow/__init__.py (`_allreduce_cond`: a branch whose
condition is constant), and the names in its trace log, measured with TensorFlow 2.15.1.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator, Mapping, Sequence
from types import ModuleType
from typing import Any, NamedTuple
from weakref import WeakKeyDictionary

from distdoctor.model.observations.horovod import GraphUnclear
from distdoctor.model.operations import ASYNCHRONOUS
from distdoctor.probes.call_sites import call_site, layered_way
from distdoctor.probes.harmless import harmless
from distdoctor.probes.horovod import keras_variables, tensorflow_operations
from distdoctor.probes.horovod.keras_variables import TrainedVariables, all_trained
from distdoctor.probes.horovod.named_operations import FAMILIES, RequestedOperation
from distdoctor.probes.horovod.reduction_chains import (
    Chain,
    GraphChains,
    applied_in,
    branch_taken,
    remember,
    tell,
)
from distdoctor.probes.horovod.tensor_values import leaves
from distdoctor.probes.horovod.tensorflow_operations import (
    OPERATIONS_HERE,
    handles,
    members_of_set,
    traced,
    traced_sites,
)
from distdoctor.probes.interruptions import is_interruption
from distdoctor.probes.recorder import RECORDER, blinded

_KERNELS = {
    "Horovod" + "".join(word.capitalize() for word in family.split("_")): family
    for family in FAMILIES
}
_CALLS = {"PartitionedCall", "StatefulPartitionedCall"}
_BRANCHES = {"If", "StatelessIf"}
_LOOPS = {"While", "StatelessWhile", "Case", "StatelessCase"}

_DEEPEST = 32


class _Content(NamedTuple):
    """What a function's graph does.

    Attributes:
        certain: The operations that each run makes, in the order of their names.
        trained: The optimizers of Keras that it makes steps of.
        chains: Of which reductions its results came.
    """

    certain: tuple[RequestedOperation, ...] = ()
    trained: tuple[TrainedVariables, ...] = ()
    chains: tuple[Chain, ...] = ()


_NOTHING = _Content()

_contents: WeakKeyDictionary[Any, _Content] = WeakKeyDictionary()


def watch(concrete_function: ModuleType) -> None:
    """Wrap the method by which functions run, right after it was loaded.

    Args:
        concrete_function: TensorFlow's module of that name.
    """
    kind = concrete_function.__dict__["ConcreteFunction"]
    is_eager = concrete_function.__dict__["context"].executing_eagerly
    made = kind._call_flat

    @functools.wraps(made)
    def call_flat(self: Any, *args: Any, **kwargs: Any) -> Any:
        if (
            RECORDER.writer is None
            or not tensorflow_operations.was_loaded()
            or not is_eager()
        ):
            return made(self, *args, **kwargs)
        content = _contents.get(self)
        if content is None:
            content = _read(self) or _NOTHING
        given = _submitted(content.certain) if content.certain else ()
        if content.trained and content.certain:  # not given what was reduced before
            keras_variables.fed(content.trained, args[:1])
        result = tensorflow_operations.waited(
            given, lambda: made(self, *args, **kwargs)
        )
        if content.chains:
            _remember(result, content.chains)
        if content.trained:
            keras_variables.stepped(content.trained)
        return result

    kind._call_flat = call_flat


def _submitted(operations: Sequence[RequestedOperation]) -> tuple[int, ...]:
    given: list[int] = []
    try:
        here, (_, way, _) = OPERATIONS_HERE, layered_way(2)
        thread = RECORDER.thread()
        for operation in operations:
            plan = here.plans.get(operation) or here.plan(operation, operation)
            handle = next(handles)
            here.submitted(handle, plan, way, ASYNCHRONOUS, thread)
            given.append(handle)
    except Exception as failed:  # the job must not feel the probe
        if is_interruption(failed):
            raise
        blinded("graph", failed)
    return tuple(given)


@harmless
def _remember(result: Any, chains: Sequence[Chain]) -> None:
    """Follow the results of a function that reduces."""
    flat = list(leaves(result))
    if len(flat) == len(chains) and all(hasattr(one, "numpy") for one in flat):
        for tensor, chain in zip(flat, chains, strict=True):
            remember(tensor, chain)


def _chains(function: Any, graph: Any) -> tuple[Chain, ...]:
    """Of which reductions a function's results came; gradients' are told at once."""
    known = GraphChains(graph, traced_sites, len(members_of_set(0)))
    applied = applied_in(function.graph)
    if applied:
        tell([known.of(name) for name, _ in applied], applied[0][1])
    found = tuple(known.of(one.name) for one in function.graph.outputs)
    return found if any(one.sites for one in found) else ()


@harmless
def _read(function: Any) -> _Content:
    """Read what a function does; once for each."""
    _contents[function] = _NOTHING
    graph = function.graph.as_graph_def(add_shapes=True)
    functions = {one.signature.name: one for one in graph.library.function}
    found = list(_made(function.graph, graph, functions))
    certain = [one for one in found if one is not None]
    unclear = len(found) - len(certain)
    if unclear:
        event = GraphUnclear(
            function=str(function.graph.name), operations=unclear, certain=len(certain)
        )
        RECORDER.observe(event, call_site(2))
        # Where some may run and some may not, nobody knows which of them a rank is in.
        certain = []
    used = function.graph.variables
    content = _Content(
        tuple(sorted(certain, key=lambda one: one.name)),
        tuple(one for one in all_trained() if one.is_trained_in(used)),
        _chains(function, graph) if certain else (),
    )
    _contents[function] = content
    return content


def _made(
    outer: Any, graph: Any, functions: Mapping[str, Any]
) -> Iterator[RequestedOperation | None]:
    """The operations of one run; None for each that it may make or not."""
    nodes = {node.name: node for node in graph.node}
    ends = [one.op.name for one in outer.outputs]
    ends += [one.name for one in outer.control_outputs]
    yield from _among(nodes, ends, functions, 0)


def _among(
    nodes: Mapping[str, Any], ends: list[str], functions: Mapping[str, Any], depth: int
) -> Iterator[RequestedOperation | None]:
    needed = _needed(nodes, ends)
    for node in needed:
        if node.op in _KERNELS:
            yield _operation(node)
        elif node.op in _CALLS:
            yield from _inside(node.attr["f"].func.name, functions, depth)
        elif node.op in _BRANCHES:
            yield from _branch(node, nodes, functions, depth)
        elif node.op in _LOOPS:
            for value in node.attr.values():
                for one in [value.func, *value.list.func]:
                    yield from _unclear(one.name, functions, depth)


def _needed(nodes: Mapping[str, Any], ends: list[str]) -> list[Any]:
    """The nodes on which some others depend, themselves included."""
    seen: dict[str, Any] = {}
    waiting = list(ends)
    while waiting:
        name = waiting.pop().removeprefix("^").partition(":")[0]
        if name not in seen and name in nodes:
            seen[name] = node = nodes[name]
            waiting.extend(node.input)
    return list(seen.values())


def _inside(
    name: str, functions: Mapping[str, Any], depth: int
) -> Iterator[RequestedOperation | None]:
    function = functions.get(name)
    if function is None or depth > _DEEPEST:
        return
    nodes = {node.name: node for node in function.node_def}
    ends = [*function.ret.values(), *function.control_ret.values()]
    yield from _among(nodes, ends, functions, depth + 1)


def _branch(
    node: Any, nodes: Mapping[str, Any], functions: Mapping[str, Any], depth: int
) -> Iterator[RequestedOperation | None]:
    names = node.attr["then_branch"].func.name, node.attr["else_branch"].func.name
    taken = branch_taken(node, nodes)
    if taken is not None:
        yield from _inside(taken, functions, depth)
        return
    for name in names:
        yield from _unclear(name, functions, depth)


def _unclear(name: str, functions: Mapping[str, Any], depth: int) -> Iterator[None]:
    yield from (None for _ in _inside(name, functions, depth))


def _operation(node: Any) -> RequestedOperation:
    attributes = node.attr
    family = _KERNELS[node.op]
    name, given = node.name, node.name.rpartition("/")[2]
    if attributes["ignore_name_scope"].b:
        name = given
    count = max(int(attributes["N"].i), 1) if "N" in attributes else 1
    return RequestedOperation(
        family,
        name,
        traced.get(node.name, (("", ()),) * count),
        int(attributes["reduce_op"].i) if "reduce_op" in attributes else -1,
        int(attributes["root_rank"].i) if "root_rank" in attributes else -1,
        process_set=int(attributes["process_set_id"].i),
        given=given if given != name else "",
        sized=False,
    )
