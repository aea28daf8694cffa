"""Operations: whose calls can meet, and who waits for whom."""

from hashlib import blake2b

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from distdoctor.model.drawing import sketch
from distdoctor.model.operations import (
    CODE_OF,
    NO_REDUCE_OP,
    OPERATIONS,
    REDUCE_OPS,
    UNKNOWN_REDUCE_OP,
    Waits,
    signature,
)

ALL_REDUCE, ALL_TO_ALL = CODE_OF["all_reduce"], CODE_OF["all_to_all_single"]
BY_NAME = {operation.name: operation for operation in OPERATIONS}

dtypes = st.lists(st.sampled_from(["float32", "int64", "bool"]), max_size=3).map(tuple)
numels = st.lists(st.integers(0, 1 << 40), max_size=3).map(tuple)
arguments = st.tuples(
    st.integers(0, len(OPERATIONS) - 1),
    st.sampled_from([*range(len(REDUCE_OPS)), NO_REDUCE_OP, UNKNOWN_REDUCE_OP]),
    st.integers(-1, 99),
    dtypes,
    numels,
)

Arguments = tuple[int, int, int, tuple[str, ...], tuple[int, ...]]


def what_counts(call: Arguments) -> Arguments:
    op, reduce_op, root, kinds, sizes = call
    return op, reduce_op, root, kinds, sizes if OPERATIONS[op].sizes_agree else ()


@settings(deadline=None)
@given(arguments, arguments)
@example((ALL_REDUCE, 1, 12, (), ()), (ALL_REDUCE, 11, 2, (), ()))
@example((ALL_REDUCE, 0, -1, (), (1, 23)), (ALL_REDUCE, 0, -1, (), (12, 3)))
@example((ALL_TO_ALL, 0, -1, ("bool",), (4,)), (ALL_TO_ALL, 0, -1, ("bool",), (5,)))
def test_signatures_are_equal_if_and_only_if_calls_can_meet(
    a: Arguments, b: Arguments
) -> None:
    alike = what_counts(a) == what_counts(b)
    assert (signature(*a) == signature(*b)) is alike


@settings(deadline=None)
@given(arguments, st.integers(0, 4))
def test_any_one_difference_that_counts_is_seen(call: Arguments, which: int) -> None:
    op, reduce_op, root, kinds, sizes = call
    other = [
        ((op + 1) % len(OPERATIONS), reduce_op, root, kinds, sizes),
        (op, (reduce_op + 1) % 256, root, kinds, sizes),
        (op, reduce_op, root + 1, kinds, sizes),
        (op, reduce_op, root, (*kinds, "float16"), sizes),
        (op, reduce_op, root, kinds, (*sizes, 1)),
    ][which]
    counts = which < 4 or OPERATIONS[op].sizes_agree
    assert (signature(*other) != signature(*call)) is counts


@settings(deadline=None)
@given(arguments)
def test_a_signature_fits_a_cell_and_is_never_that_of_an_empty_one(
    call: Arguments,
) -> None:
    assert 0 < signature(*call) < 1 << 64


@pytest.mark.parametrize(
    ("one", "other", "meet"),
    [
        ("all_reduce(4)", "all_reduce(2x2)", True),
        ("all_reduce(4)", "all_reduce(4)&", True),
        ("all_reduce(4)@a.py:1", "all_reduce(4)@b.py:2", True),
        ("all_reduce(4)", "all_reduce(4)/tp", True),  # groups are told apart elsewhere
        ("all_reduce(4)", "all_reduce(4)%3", True),
        ("send(4,peer=1)", "send(9,peer=2,tag=5)", True),
        ("all_to_all(4,sent=1/3,received=2/2)", "all_to_all(7)", True),
        ("all_reduce(4)", "all_reduce(5)", False),
        ("all_reduce(4)", "all_reduce(4:int64)", False),
        ("all_reduce(4)", "all_reduce(4,op=max)", False),
        ("broadcast(4)", "broadcast(4,root=1)", False),
        ("all_gather(4+4)", "all_gather(8)", False),
        ("all_to_all(4)", "all_to_all(4:int64)", False),
        ("barrier", "monitored_barrier", False),
    ],
)
def test_what_counts_for_a_meeting(one: str, other: str, meet: bool) -> None:
    a, b = sketch(f"rank 0 | {one}\nrank 1 | {other}").calls["signature"]
    assert bool(a == b) is meet


def test_codes_stay_what_they_were() -> None:
    """Journals of older releases hold these numbers."""
    assert [operation.name for operation in OPERATIONS[:20]] == [
        *("all_reduce", "broadcast", "all_gather", "all_gather_into_tensor"),
        *("reduce", "gather", "scatter", "reduce_scatter", "reduce_scatter_tensor"),
        *("all_to_all", "all_to_all_single", "barrier", "monitored_barrier"),
        *("send", "recv", "recv_any", "all_reduce_coalesced", "all_gather_coalesced"),
        *("all_gather_into_tensor_coalesced", "reduce_scatter_tensor_coalesced"),
    ]


def test_a_signature_is_made_as_the_docs_tell() -> None:
    text = b"0|3|-1|float32,int64|4,6"
    digest = blake2b(text, digest_size=8).digest()
    expected = int.from_bytes(digest, "little")
    assert signature(0, 3, -1, ("float32", "int64"), (4, 6)) == expected


@pytest.mark.parametrize(
    ("name", "point_to_point", "rooted"),
    [
        ("all_reduce", False, False),
        ("barrier", False, False),
        ("broadcast", False, True),
        ("scatter", False, True),
        ("reduce", False, True),
        ("gather", False, True),
        ("send", True, False),
        ("recv", True, False),
        ("recv_any", True, False),
    ],
)
def test_operations_know_their_shape(
    name: str, point_to_point: bool, rooted: bool
) -> None:
    operation = BY_NAME[name]
    assert (operation.is_point_to_point, operation.is_rooted) == (
        point_to_point,
        rooted,
    )


def test_a_root_gives_or_takes() -> None:
    assert {op.name for op in OPERATIONS if op.waits is Waits.ROOT} == {
        "broadcast",
        "scatter",
    }
    assert {op.name for op in OPERATIONS if op.waits is Waits.AT_ROOT} == {
        "reduce",
        "gather",
    }


def test_no_operation_stands_there_twice() -> None:
    operators = [op.c10d for op in OPERATIONS if op.c10d]
    assert len(CODE_OF) == len(OPERATIONS)
    assert len(operators) == len(set(operators))


def test_reduce_ops_do_not_reach_the_codes_for_none() -> None:
    assert len(REDUCE_OPS) < min(NO_REDUCE_OP, UNKNOWN_REDUCE_OP)


@pytest.mark.parametrize(
    ("one", "other", "meet"),
    [
        (("0",), ("1",), True),  # each makes a group of its own alone
        (("0", "1"), ("0", "1"), True),
        (("0", "1"), ("0", "2"), False),
        (("0", "1"), ("0",), False),
        (("0",), (), False),
    ],
)
def test_ranks_meet_to_make_a_group_whose_members_are_the_same_or_alone(
    one: tuple[str, ...], other: tuple[str, ...], meet: bool
) -> None:
    made = CODE_OF["new_group"], NO_REDUCE_OP, -1, (), ()
    assert (signature(*made, one) == signature(*made, other)) is meet
