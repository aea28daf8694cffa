"""Faults in the calls by which ranks communicate."""

from __future__ import annotations

import ast
from collections.abc import Iterator, Sequence

from by_rule.asking import (
    REDUCING,
    ROOTED,
    argument,
    call_of,
    is_asynchronous,
    is_collective,
    is_method,
    keyword,
)
from by_rule.bases import (
    Base,
    Edited,
    appended,
    indented,
    inserted,
    own_lines,
    replaced,
    swapped,
)
from by_rule.faulted import Making, fault, operator

_IN_PLACE = frozenset({"all_reduce", "broadcast", "reduce", "barrier"})
"""Whoever leaves out another one lacks its output, and may fail for that first."""


def collectives(base: Base) -> Iterator[tuple[ast.stmt, ast.Call]]:
    """Statements that are a collective of all ranks, which all of them make alike."""
    if not base.get_rank:
        return
    for node in base.statements():
        call = call_of(node)
        if call is None or not is_collective(call) or is_asynchronous(call):
            continue
        if keyword(call, "group") is None and base.runs(node):
            yield node, call


def some_rank(base: Base, node: ast.stmt) -> int:
    """A rank for a fault at a statement: any, but always the same."""
    return node.lineno % base.ranks


def only(base: Base, rank: int) -> str:
    """The head of a branch for one rank."""
    return f"if {base.get_rank} == {rank}:"


def on_rank(base: Base, node: ast.stmt, rank: int, otherwise: Sequence[str]) -> Edited:
    """The source with other lines in a statement's place, on one rank."""
    lines = own_lines(base, node)
    head = only(base, rank)
    return replaced(base, node, [head, *indented(otherwise), "else:", *indented(lines)])


def lone(base: Base, rank: int) -> list[set[int]]:
    """Who is to be named where one rank leaves out what all others make.

    Of two ranks, the other one is then alone inside the branch.
    """
    return [{rank}, {1 - rank}] if base.ranks == 2 else [{rank}]


@operator
def call_on_one_rank(base: Base) -> Making:
    """`if rank == k:` around a collective: k alone is inside."""
    for node, call in collectives(base):
        if not is_collective(call, _IN_PLACE):
            continue
        rank = some_rank(base, node)
        edited = replaced(
            base, node, [only(base, rank), *indented(own_lines(base, node))]
        )
        yield fault("call_on_one_rank", base, edited, "DD108 DD212", [{rank}])


@operator
def call_on_all_but_one(base: Base) -> Making:
    """`if rank != k:` around a collective: k alone leaves it out."""
    for node, call in collectives(base):
        if not is_collective(call, _IN_PLACE):
            continue
        rank = some_rank(base, node)
        head = f"if {base.get_rank} != {rank}:"
        edited = replaced(base, node, [head, *indented(own_lines(base, node))])
        codes = "DD108 DD212"
        yield fault("call_on_all_but_one", base, edited, codes, lone(base, rank))


@operator
def call_twice_on_one_rank(base: Base) -> Making:
    """A collective is made once more by rank k."""
    for node, _ in collectives(base):
        rank = some_rank(base, node)
        edited = appended(
            base, node, [only(base, rank), *indented(own_lines(base, node))]
        )
        codes = "DD108 DD201"
        yield fault("call_twice_on_one_rank", base, edited, codes, [{rank}])


@operator
def calls_swapped(base: Base) -> Making:
    """Rank k makes two neighbouring collectives in the other order."""
    found = dict(collectives(base))
    for node, call in found.items():
        following = base.after(node)
        if following not in found or ast.dump(call) == ast.dump(found[following]):
            continue
        rank = some_rank(base, node)
        mine, next_one = own_lines(base, node), own_lines(base, following)
        # First the later one, so that the lines of the earlier one still stand.
        without = replaced(base, following, ["pass"])
        rest = Base(base.name, without.text, base.ranks, base.traces)
        edited = replaced(
            rest,
            next(one for one in rest.statements() if one.lineno == node.lineno),
            [
                *(only(base, rank), *indented([*next_one, *mine])),
                *("else:", *indented([*mine, *next_one])),
            ],
        )
        codes = "DD107 DD101"
        yield fault("calls_swapped", base, edited, codes, [{rank}])


def _tensors(base: Base) -> Iterator[tuple[ast.stmt, ast.Call, ast.expr]]:
    """Collectives with one tensor that has a name."""
    for node, call in collectives(base):
        tensor = argument(call, 0, "tensor")
        known = is_collective(call, REDUCING | ROOTED)
        if known and isinstance(tensor, (ast.Name, ast.Attribute)):
            yield node, call, tensor


def _with_tensor(base: Base, call: ast.Call, expression: str) -> list[str]:
    """A call with another tensor."""
    words = [expression, *(base.source(one) for one in call.args[1:])]
    words += [
        f"{one.arg}={base.source(one.value)}"
        for one in call.keywords
        if one.arg != "tensor"
    ]
    return [f"{base.source(call.func)}({', '.join(words)})"]


@operator
def other_shape(base: Base) -> Making:
    """Rank k brings a tensor of twice the size."""
    for node, call, tensor in _tensors(base):
        rank, name = some_rank(base, node), base.source(tensor)
        longer = f"{name}.detach().reshape(-1).repeat(2)"
        edited = on_rank(base, node, rank, _with_tensor(base, call, longer))
        yield fault("other_shape", base, edited, "DD102", [{rank}])


@operator
def other_dtype(base: Base) -> Making:
    """Rank k brings a tensor of another dtype."""
    for node, call, tensor in _tensors(base):
        rank, name = some_rank(base, node), base.source(tensor)
        edited = on_rank(
            base, node, rank, _with_tensor(base, call, f"{name}.detach().short()")
        )
        yield fault("other_dtype", base, edited, "DD103", [{rank}])


@operator
def other_reduction(base: Base) -> Making:
    """Rank k asks for another reduction."""
    for node, call in collectives(base):
        if not is_collective(call, REDUCING):
            continue
        named = keyword(call, "op")
        position = 1 if is_collective(call, frozenset({"all_reduce"})) else 2
        if len(call.args) > position:
            continue
        distributed = base.get_rank.rpartition(".")[0]
        is_sum = named is None or base.source(named).endswith("SUM")
        wanted = f"{distributed}.ReduceOp.{'MAX' if is_sum else 'SUM'}"
        words = [base.source(one) for one in call.args]
        words += [
            f"{one.arg}={base.source(one.value)}"
            for one in call.keywords
            if one.arg != "op"
        ]
        rank = some_rank(base, node)
        text = f"{base.source(call.func)}({', '.join([*words, f'op={wanted}'])})"
        edited = on_rank(base, node, rank, [text])
        yield fault("other_reduction", base, edited, "DD104", [{rank}])


@operator
def other_root(base: Base) -> Making:
    """Rank k names another root."""
    for node, call in collectives(base):
        if not is_collective(call, ROOTED):
            continue
        name = "src" if is_collective(call, frozenset({"broadcast"})) else "dst"
        root = argument(call, 1, name)
        if not isinstance(root, ast.Constant) or not isinstance(root.value, int):
            continue
        rank = some_rank(base, node)
        words = [base.source(call.args[0]) if call.args else ""]
        words += [
            f"{one.arg}={base.source(one.value)}"
            for one in call.keywords
            if one.arg != name
        ]
        words += [f"{name}={(root.value + 1) % base.ranks}"]
        text = f"{base.source(call.func)}({', '.join(filter(None, words))})"
        edited = on_rank(base, node, rank, [text])
        yield fault("other_root", base, edited, "DD105", [{rank}])


@operator
def group_on_one_rank(base: Base) -> Making:
    """Rank k alone creates a group before a collective."""
    distributed = base.get_rank.rpartition(".")[0]
    for node, _ in collectives(base):
        rank = some_rank(base, node)
        members = ", ".join(map(str, range(base.ranks)))
        edited = inserted(
            base,
            node,
            [only(base, rank), f"    extra = {distributed}.new_group([{members}])"],
        )
        codes = "DD109 DD108"
        yield fault("group_on_one_rank", base, edited, codes, [{rank}])


@operator
def message_left_out(base: Base) -> Making:
    """One rank leaves out a send or a receive that it makes."""
    for node, _, rank in _messages(base):
        edited = replaced(
            base,
            node,
            [f"if {base.get_rank} != {rank}:", *indented(own_lines(base, node))],
        )
        codes = "DD112 DD205 DD111 DD108"
        yield fault("message_left_out", base, edited, codes, [{rank}])


@operator
def message_with_other_tag(base: Base) -> Making:
    """One rank gives a message a tag of its own."""
    for node, call, rank in _messages(base):
        if keyword(call, "tag") is not None:
            continue
        words = [base.source(one) for one in call.args]
        words += [f"{one.arg}={base.source(one.value)}" for one in call.keywords]
        text = f"{base.source(call.func)}({', '.join([*words, 'tag=7'])})"
        edited = on_rank(base, node, rank, [text])
        codes = "DD111 DD112"
        # Which side is wrong cannot be seen: the peers may be named as well.
        peers = [{rank, other} for other in range(base.ranks) if other != rank]
        yield fault("message_with_other_tag", base, edited, codes, [{rank}, *peers])


@operator
def message_to_another(base: Base) -> Making:
    """One rank names the rank after its peer in a message, which may be itself."""
    for _, call, rank in _messages(base):
        peer = argument(call, 1, "dst") or argument(call, 1, "src")
        if peer is None or base.ranks < 3:
            continue
        more = f"({base.get_rank} == {rank})"
        value = f"(({base.source(peer)}) + {more}) % {base.ranks}"
        edited = swapped(base, peer, value)
        codes = "DD112 DD110 DD111 DD205 DD203"
        # Both peers, the right one and the wrong one, are left with half a message.
        peers = [{rank, other} for other in range(base.ranks) if other != rank]
        yield fault("message_to_another", base, edited, codes, [{rank}, *peers])


def _messages(base: Base) -> Iterator[tuple[ast.stmt, ast.Call, int]]:
    """Blocking messages, with a rank that makes them."""
    if not base.get_rank:
        return
    for node in base.statements():
        call = call_of(node)
        if call is None or not is_collective(call, frozenset({"send", "recv"})):
            continue
        who = [rank for rank in range(base.ranks) if base.count(node, rank)]
        if who:
            yield node, call, who[node.lineno % len(who)]


@operator
def wait_left_out(base: Base) -> Making:
    """The wait for asynchronous work is left out."""
    for node in base.statements():
        call = call_of(node)
        if call is None or not is_method(call, "wait") or call.args:
            continue
        issued = [
            one.lineno
            for one in ast.walk(base.tree)
            if isinstance(one, ast.Call) and is_asynchronous(one)
        ]
        if issued and base.runs(node) and len(base.block_of(node)) > 1:
            # Where the work is issued, and not waited for, will do.
            edited = replaced(base, node, ["pass"])
            yield fault("wait_left_out", base, edited, "DD113", lines=issued)
