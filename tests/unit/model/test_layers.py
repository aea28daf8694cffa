"""Which part of torch a call came from."""

from collections.abc import Callable
from functools import partial
from types import CodeType
from typing import Any

import pytest

from distdoctor.model.layers import LAYER_MASK, LAYER_SHIFT, LAYERS, layer_of
from distdoctor.probes import call_sites

TORCH = "/env/lib/python3.11/site-packages/torch"


def through(file: str, function: Callable[[], tuple[str, int]]) -> tuple[str, int]:
    """Call a function from code that lies in another file."""
    code: CodeType = compile("result = function()", file, "exec")
    names: dict[str, Any] = {"function": function}
    exec(code, names)
    found: tuple[str, int] = names["result"]
    return found


@pytest.mark.parametrize(
    ("file", "layer"),
    [
        ("autograd/graph.py", "backward"),
        ("nn/parallel/distributed.py", "ddp"),
        ("distributed/fsdp/_fully_shard/_fsdp_param_group.py", "fsdp"),
        ("distributed/tensor/_redistribute.py", "dtensor"),
        ("distributed/checkpoint/state_dict.py", "checkpoint"),
        ("distributed/pipelining/schedules.py", "pipeline"),
        ("distributed/distributed_c10d.py", ""),
    ],
)
def test_a_call_knows_its_layer(file: str, layer: str) -> None:
    site, number = through(f"{TORCH}/{file}", lambda: call_sites.layered_site(2))
    assert LAYERS[number] == layer
    assert "test_layers" in site


def test_a_call_knows_who_led_there() -> None:
    def helper() -> tuple[str, str, int]:
        return call_sites.layered_way(0)

    def user() -> tuple[str, str, int]:
        return helper()

    (line, way, layer), again = (user() for _ in range(2))
    assert (way.split("\n")[:3], layer) == (line.split("\n"), 0)
    names = [name.rpartition(".")[2] for name in way.split("\n")[2::3]]
    assert names[:2] == ["helper", "user"]
    assert again == (line, way, layer)


@pytest.mark.parametrize("deep", [0, 60])
def test_each_way_is_told_apart_each_time(deep: int) -> None:
    def here() -> tuple[str, str, int]:
        return call_sites.layered_way(0)

    def one() -> tuple[str, str, int]:
        return here()

    def two() -> list[tuple[str, str, int]]:
        return [here(), one(), here()]

    def down(depth: int) -> list[tuple[str, str, int]]:
        return down(depth - 1) if depth else two()

    for _ in range(3):
        (first, *_), (middle, *_), (last, *_) = ways = down(deep)
        assert first == middle == last
        names = [way.split("\n")[2::3] for _, way, _ in ways]
        last_names = [[name.rpartition(".")[2] for name in one[:3]] for one in names]
        assert last_names[0][:2] == last_names[2][:2] == ["here", "two"]
        assert last_names[1] == ["here", "one", "two"]


def test_a_deep_recursion_keeps_a_bounded_way() -> None:
    def down(depth: int) -> str:
        return down(depth - 1) if depth else call_sites.layered_way(0)[1]

    ways = {down(depth) for depth in range(100)}
    assert max(way.count("\n") // 3 for way in ways) == 8


def test_the_layer_that_the_user_called_counts() -> None:
    hook = f"{TORCH}/distributed/fsdp/hooks.py"
    autograd = compile("inner()", f"{TORCH}/autograd/graph.py", "exec")
    inner = compile("found = layered_site(1)", hook, "exec")
    names: dict[str, Any] = {"layered_site": call_sites.layered_site}
    names["inner"] = partial(exec, inner, names)
    exec(autograd, names)
    assert LAYERS[names["found"][1]] == "backward"


def test_every_number_that_flags_can_hold_is_a_layer() -> None:
    found = [layer_of(number << LAYER_SHIFT) for number in range(LAYER_MASK + 1)]
    assert found == list(LAYERS)
