"""Chains of reductions in a graph; TensorFlow is not needed to read one."""

from types import SimpleNamespace
from typing import Any

import pytest

from distdoctor.probes.horovod.reduction_chains import Chain, GraphChains

AVERAGE, SUM, LARGEST = 0, 1, 4


class _Attributes(dict[str, Any]):
    """Of a node: what is not set has the value that protobuf gives."""

    def __missing__(self, name: str) -> Any:
        nothing = SimpleNamespace(shape=[])
        return SimpleNamespace(i=0, f=1.0, list=nothing, func=SimpleNamespace(name=""))


def node(name: str, op: str, *inputs: str, **attributes: Any) -> Any:
    attr = _Attributes(attributes)
    return SimpleNamespace(name=name, op=op, input=list(inputs), attr=attr)


def reduction(name: str, given: str, op: int, process_set: int = 0) -> Any:
    numbers = {"reduce_op": op, "process_set_id": process_set}
    attr = {key: SimpleNamespace(i=value) for key, value in numbers.items()}
    return node(name, "HorovodAllreduce", given, **attr)


def number(name: str, value: float) -> Any:
    shape = SimpleNamespace(unknown_rank=False, dim=[])
    told = SimpleNamespace(dtype=1, tensor_content=b"", float_val=[value])
    return node(
        name,
        "Const",
        value=SimpleNamespace(tensor=told),
        _output_shapes=SimpleNamespace(list=SimpleNamespace(shape=[shape])),
    )


def chain(tensor: str, *nodes: Any, functions: tuple[Any, ...] = ()) -> Chain:
    graph = SimpleNamespace(node=nodes, library=SimpleNamespace(function=functions))
    sites = {"a": "first", "b": "second"}
    return GraphChains(graph, sites, 2).of(tensor)


def test_a_sum_of_averages_is_a_chain() -> None:
    found = chain(
        "b:0",
        reduction("a", "x", AVERAGE),
        node("c", "Cast", "a"),
        reduction("b", "c", SUM),
    )
    assert found == Chain(("first", "second"), 1)


def test_one_reduction_does_not_count_as_a_sum_of_equal_tensors() -> None:
    assert chain("a:0", reduction("a", "x", SUM)) == Chain(("first",))


@pytest.mark.parametrize(
    "between",
    [
        node("c", "AddV2", "a", "x"),
        node("c", "Mul", "a", "x"),
        reduction("c", "a", LARGEST),
        reduction("c", "a", SUM, process_set=1),
    ],
)
def test_what_makes_another_tensor_of_it_ends_a_chain(between: Any) -> None:
    found = chain(
        "b:0", reduction("a", "x", AVERAGE), between, reduction("b", "c", SUM)
    )
    assert found == Chain(("second",))


def test_a_division_by_the_number_of_ranks_is_seen() -> None:
    found = chain(
        "d:0",
        number("two", 2.0),
        reduction("a", "x", AVERAGE),
        reduction("b", "a", SUM),
        node("d", "RealDiv", "b", "two"),
    )
    assert found == Chain(("first", "second"), 1, 0.5)


def test_a_function_that_is_called_is_followed_with_what_it_is_given() -> None:
    function = SimpleNamespace(
        signature=SimpleNamespace(
            name="inner",
            input_arg=[SimpleNamespace(name="given")],
            output_arg=[SimpleNamespace(name="out")],
        ),
        node_def=[reduction("b", "given", SUM)],
        ret={"out": "b:sum:0"},
    )
    call = node(
        "call",
        "PartitionedCall",
        "a",
        f=SimpleNamespace(func=SimpleNamespace(name="inner")),
    )
    nodes = reduction("a", "x", AVERAGE), call
    assert chain("call:0", *nodes, functions=(function,)) == Chain(
        ("first", "second"), 1
    )


def test_a_graph_that_goes_in_circles_ends() -> None:
    assert (
        chain("c:0", node("c", "Identity", "d"), node("d", "Identity", "c")) == Chain()
    )
