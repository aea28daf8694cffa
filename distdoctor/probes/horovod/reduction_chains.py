"""Finds gradients that are reduced twice before an optimizer of Keras is given them.

A tensor that was reduced is equal on all ranks: to average it again changes nothing,
and to sum it again multiplies it by the number of ranks. In a function of TensorFlow
its graph tells what a gradient was made of; in eager code tensors are followed from
call to call. Between two reductions a tensor may be cast, reshaped, or multiplied by a
single number.

Source: Horovod 0.28.1, tensorflow/__init__.py (what surrounds a reduction), measured
with TensorFlow 2.15.1.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterator, Mapping, Sequence
from struct import calcsize, pack, unpack
from typing import Any, NamedTuple
from weakref import WeakKeyDictionary, ref

from distdoctor.model.observations.horovod import ReducedAgain
from distdoctor.probes.harmless import harmless
from distdoctor.probes.recorder import RECORDER

_AVERAGE, _SUM = 0, 1
_REDUCTIONS = {"HorovodAllreduce", "HorovodGroupedAllreduce"}
_SAME = {
    *("Identity", "IdentityN", "Cast", "Reshape", "StopGradient", "PreventGradient"),
    *("CheckNumerics", "EnsureShape", "Squeeze", "ExpandDims"),
}
_CALLS = {"PartitionedCall", "StatefulPartitionedCall"}
_DEEPEST = 200
_MOST_FOLLOWED = 8_192
_MOST_TOLD = 16


class Chain(NamedTuple):
    """How a tensor came of reductions.

    Attributes:
        sites: The lines that reduced it, in their order.
        sums: How many of them, but for the first, summed.
        scale: By which numbers it was multiplied since the first.
    """

    sites: tuple[str, ...] = ()
    sums: int = 0
    scale: float = 1.0

    def reduced(self, op: int, scale: float, site: str) -> Chain:
        """What becomes of it by another reduction."""
        if not self.sites:
            return Chain((site,))
        sums = self.sums + (op == _SUM)
        return Chain((*self.sites, site), sums, self.scale * scale)


# --- in graphs ----------------------------------------------------------------------


class _Scope:
    """The nodes of a graph, or of a function that it calls.

    Args:
        nodes: By name.
        given: By the name of a function's argument, what it was called with, and where
            that is.
    """

    def __init__(
        self, nodes: Mapping[str, Any], given: Mapping[str, tuple[_Scope, str]]
    ) -> None:
        self.nodes, self.given = nodes, given


class GraphChains:
    """Tells of a graph's tensors of which reductions they came.

    Args:
        graph: As TensorFlow writes it, with shapes.
        sites: By the name of a node, the line of the user's that made it.
        size: Number of ranks.
    """

    def __init__(self, graph: Any, sites: Mapping[str, str], size: int) -> None:
        self._functions = {one.signature.name: one for one in graph.library.function}
        self._outer = _Scope({node.name: node for node in graph.node}, {})
        self._sites, self._size = sites, size
        self._inner: dict[tuple[int, str, str], _Scope] = {}
        self._known: dict[tuple[int, str], Chain] = {}

    def of(self, tensor: str) -> Chain:
        """The chain of a tensor of the outermost graph, by its name."""
        return self._of(self._outer, tensor, 0)

    def _of(self, scope: _Scope, tensor: str, depth: int) -> Chain:
        key = id(scope), tensor
        known = self._known.get(key)
        if known is None:
            known = Chain() if depth > _DEEPEST else self._make(scope, tensor, depth)
            self._known[key] = known
        return known

    def _make(self, scope: _Scope, tensor: str, depth: int) -> Chain:
        name, _, rest = tensor.partition(":")
        at = int(rest.rpartition(":")[2] or 0)
        if name in scope.given:
            outside, outer = scope.given[name]
            return self._of(outside, outer, depth + 1)
        node = scope.nodes.get(name)
        if node is None:
            return Chain()
        inputs = [one for one in node.input if not one.startswith("^")]
        if node.op in _REDUCTIONS and at < len(inputs):
            op = int(node.attr["reduce_op"].i)
            if node.attr["process_set_id"].i or op not in {_AVERAGE, _SUM}:
                return Chain()
            scale = node.attr["prescale_factor"].f * node.attr["postscale_factor"].f
            before = self._of(scope, inputs[at], depth + 1)
            return before.reduced(op, scale, self._sites.get(node.name, ""))
        if node.op in _SAME and inputs:
            which = at if node.op == "IdentityN" and at < len(inputs) else 0
            return self._of(scope, inputs[which], depth + 1)
        if node.op in {"Mul", "RealDiv", "DivNoNan"} and len(inputs) == 2:
            return self._scaled(scope, node.op, inputs, depth)
        inside = self._called(scope, node, inputs)
        if inside is not None:
            ends = [one.name for one in inside[1].signature.output_arg]
            if at < len(ends):
                return self._of(inside[0], inside[1].ret[ends[at]], depth + 1)
        return Chain()

    def _scaled(
        self, scope: _Scope, op: str, inputs: Sequence[str], depth: int
    ) -> Chain:
        """A tensor that is multiplied by a number, or divided by one."""
        pairs = [inputs, inputs[::-1]] if op == "Mul" else [inputs]
        for tensor, number in pairs:
            if not self._is_number(scope, number):
                continue
            chain = self._of(scope, tensor, depth + 1)
            if chain.sites:
                value = self._number(scope, number) or 1.0
                factor = value if op == "Mul" else 1 / value
                return chain._replace(scale=chain.scale * factor)
        return Chain()

    def _is_number(self, scope: _Scope, tensor: str) -> bool:
        name = tensor.partition(":")[0]
        if name in scope.given:
            return self._is_number(*scope.given[name])
        node = scope.nodes.get(name)
        shapes = [] if node is None else node.attr["_output_shapes"].list.shape
        return bool(shapes) and not shapes[0].unknown_rank and not shapes[0].dim

    def _number(self, scope: _Scope, tensor: str) -> float | None:
        """The value of a constant number, or of what is one."""
        name = tensor.partition(":")[0]
        if name in scope.given:
            return self._number(*scope.given[name])
        node = scope.nodes.get(name)
        if node is None:
            return None
        if node.op in {"Cast", "Identity"}:
            return self._number(scope, node.input[0])
        if node.op == "HorovodSize":
            return float(self._size)
        return _constant(node) if node.op == "Const" else None

    def _called(
        self, scope: _Scope, node: Any, inputs: list[str]
    ) -> tuple[_Scope, Any] | None:
        """What a node runs, if that is known: a function, or a branch that is taken."""
        if node.op in _CALLS:
            name = node.attr["f"].func.name
        elif node.op in {"If", "StatelessIf"}:
            taken = branch_taken(node, scope.nodes)
            if taken is None:
                return None
            name, inputs = taken, inputs[1:]
        else:
            return None
        function = self._functions.get(name)
        if function is None:
            return None
        key = id(scope), node.name, name
        if key not in self._inner:
            names = [one.name for one in function.signature.input_arg]
            self._inner[key] = _Scope(
                {one.name: one for one in function.node_def},
                {
                    given: (scope, tensor)
                    for given, tensor in zip(names, inputs, strict=False)
                },
            )
        return self._inner[key], function


_VALUES = {
    1: ("float_val", "<f"),
    2: ("double_val", "<d"),
    3: ("int_val", "<i"),
    9: ("int64_val", "<q"),
    19: ("half_val", "<e"),
}
"""By TensorFlow's number of a dtype: the field of constants, and how bytes read."""


def _constant(node: Any) -> float | None:
    """The value of a constant that is one number."""
    value = node.attr["value"].tensor
    field, form = _VALUES.get(value.dtype, ("", ""))
    if field and value.tensor_content:
        if len(value.tensor_content) == calcsize(form):
            return float(unpack(form, value.tensor_content)[0])
        return None
    told = list(getattr(value, field)) if field else []
    if len(told) != 1:
        return None
    # Of half precision the bits are told, as a number.
    bits = field == "half_val"
    return float(unpack(form, pack("<H", told[0]))[0] if bits else told[0])


def branch_taken(node: Any, nodes: Mapping[str, Any]) -> str | None:
    """The function that an `If` runs; None: its condition is known when it runs."""
    condition = nodes.get(node.input[0].partition(":")[0])
    if condition is None or condition.op != "Const":
        return None
    values = condition.attr["value"].tensor
    holds = list(values.bool_val) or [any(values.tensor_content)]
    name: str = node.attr["then_branch" if holds[0] else "else_branch"].func.name
    return name


# --- in eager code ------------------------------------------------------------------

_followed: OrderedDict[int, tuple[ref[Any], Chain]] = OrderedDict()
"""By `id` of an eager tensor, how it came of reductions."""

_traced: WeakKeyDictionary[Any, list[tuple[str, str]]] = WeakKeyDictionary()
"""By graph, gradients that an optimizer is given in it: their names, and the line."""

_told: set[tuple[str, ...]] = set()


def forget() -> None:
    """Forget all state: the process starts to play in another run."""
    _followed.clear()
    _told.clear()


@harmless
def follow(op: int, scale: float, given: Any, result: Any, site: str) -> None:
    """Called when a reduction of all ranks was made in eager code.

    Args:
        op: Horovod's number of the reduce op.
        scale: By which it multiplies besides.
        given: A tensor, or several.
        result: Likewise.
        site: The line of the user's.
    """
    if op not in {_AVERAGE, _SUM}:
        return
    pairs = zip(_listed(given), _listed(result), strict=False)
    for before, after in pairs:
        remember(after, _chain_of(before).reduced(op, scale, site))


def remember(tensor: Any, chain: Chain) -> None:
    """Note of which reductions an eager tensor came."""
    if chain.sites and len(_followed) < _MOST_FOLLOWED:
        number = id(tensor)
        _followed[number] = ref(tensor, lambda _: _followed.pop(number, None)), chain


def _chain_of(tensor: Any) -> Chain:
    known = _followed.get(id(tensor))
    return known[1] if known is not None and known[0]() is tensor else Chain()


def _listed(value: Any) -> list[Any]:
    return list(value) if isinstance(value, list | tuple) else [value]


@harmless
def given_to_optimizer(gradients: Sequence[Any], site: str) -> None:
    """Called with the gradients that an optimizer is given, also while tracing."""
    graphs = [getattr(one, "graph", None) for one in gradients if _is_symbolic(one)]
    if not graphs:
        tell([_chain_of(one) for one in gradients], site)
        return
    for one, graph in zip(filter(_is_symbolic, gradients), graphs, strict=True):
        _traced.setdefault(graph, []).append((one.name, site))


def _is_symbolic(tensor: Any) -> bool:
    return hasattr(tensor, "op") and not hasattr(tensor, "numpy")


def applied_in(graph: Any) -> list[tuple[str, str]]:
    """Names of the gradients that optimizers are given in a graph, with the lines."""
    return _traced.get(graph, [])


def tell(chains: Sequence[Chain], site: str) -> None:
    """Tell of gradients that were reduced more than once, each line of it once."""
    for sites, op, count in _twice(chains):
        if sites in _told or len(_told) >= _MOST_TOLD:
            continue
        _told.add(sites)
        for at, line in enumerate(sites):
            event = ReducedAgain(at=at, op=op, count=count, of=len(chains))
            RECORDER.observe(event, line or site)


def _twice(chains: Sequence[Chain]) -> Iterator[tuple[tuple[str, ...], str, int]]:
    found: dict[tuple[tuple[str, ...], str], int] = {}
    for chain in chains:
        if len(chain.sites) < 2 or (chain.sums and chain.scale <= _MENDED):
            continue
        key = chain.sites, "sum" if chain.sums else "avg"
        found[key] = found.get(key, 0) + 1
    yield from ((sites, op, count) for (sites, op), count in found.items())


_MENDED = 0.99
"""Whoever divides what was summed twice by a number has the number of ranks in mind."""
