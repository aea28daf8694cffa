"""Fingerprints: equal for equal bits in equal order, and for nothing else."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from distdoctor.probes.fingerprints import exact
from distdoctor.probes.fingerprints.on_device import sums

DTYPES = (torch.float32, torch.bfloat16, torch.float64, torch.int64, torch.bool)

seeds = st.integers(0, 2**32)
sizes = st.integers(1, 70)


def a_tensor(seed: int, size: int, dtype: torch.dtype) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return (torch.randn(size, generator=generator) * 50).to(dtype)


@given(seeds, sizes, st.sampled_from(DTYPES))
def test_a_copy_has_the_same(seed: int, size: int, dtype: torch.dtype) -> None:
    tensor = a_tensor(seed, size, dtype)
    apart = torch.stack([tensor, tensor], dim=1)[:, 0]  # not contiguous
    assert exact.of_tensor(tensor) == exact.of_tensor(tensor.clone())
    assert exact.of_tensor(tensor) == exact.of_tensor(apart)


@given(seeds, st.integers(1, 5000), st.data())
def test_any_bit_changes_it(seed: int, size: int, data: st.DataObject) -> None:
    tensor = a_tensor(seed, size, torch.float32)
    other = tensor.clone()
    at, bit = data.draw(st.integers(0, size - 1)), data.draw(st.integers(0, 30))
    other.view(torch.int32)[at] ^= 1 << bit
    assert exact.of_tensor(tensor) != exact.of_tensor(other)


@given(seeds, st.integers(2, 5000), st.data())
def test_any_exchange_changes_it(seed: int, size: int, data: st.DataObject) -> None:
    tensor = a_tensor(seed, size, torch.float64)
    i, j = data.draw(st.lists(st.integers(0, size - 1), min_size=2, max_size=2))
    other = tensor.clone()
    other[i], other[j] = tensor[j], tensor[i]
    same = torch.equal(tensor, other)
    assert (exact.of_tensor(tensor) == exact.of_tensor(other)) is same


def test_equal_values_of_other_bits_are_told_apart() -> None:
    assert exact.of_tensor(torch.tensor(0.0)) != exact.of_tensor(torch.tensor(-0.0))


def test_of_nothing_there_is_one() -> None:
    assert exact.of_tensor(torch.empty(0, 3)) == exact.EMPTY


def test_gradients_and_views_do_not_matter() -> None:
    weight = torch.nn.Parameter(torch.arange(12.0).reshape(3, 4))
    assert exact.of_tensor(weight) == exact.of_tensor(torch.arange(12.0))
    assert weight.grad_fn is None


@given(seeds, st.integers(1, 9), st.sampled_from(DTYPES))
def test_rows_are_those_of_the_parts(seed: int, size: int, dtype: torch.dtype) -> None:
    tensor = a_tensor(seed, 4 * size, dtype).reshape(4, size)
    assert exact.of_rows(tensor) == exact.of_tensors(list(tensor))


def test_rows_may_be_single_numbers_or_empty() -> None:
    assert (
        exact.of_rows(torch.tensor([3, 3, 4]))[0:2]
        == (exact.of_tensor(torch.tensor(3)),) * 2
    )
    assert exact.of_rows(torch.empty(0, 4)) == ()


def test_a_seed_joins_the_parts_of_a_sample() -> None:
    x = torch.tensor([1])
    assert exact.of_rows(x, seed=1) != exact.of_rows(x, seed=2)


def test_a_tensor_without_memory_has_none() -> None:
    with pytest.raises((RuntimeError, NotImplementedError)):
        exact.of_tensor(torch.empty(4, device="meta"))


def test_heads_see_a_change_and_its_undoing() -> None:
    tensors = [torch.randn(300), torch.randn(2, 2)]
    heads = exact.Heads(64)
    first = heads.print_of(tensors)
    tensors[1][1, 1] += 1
    changed = heads.print_of(tensors)
    tensors[1] = tensors[1].clone()  # elsewhere in memory, with the same values
    assert heads.print_of(tensors) == changed != first
    assert heads.print_of([tensors[0], None]) not in {first, changed}


def test_heads_are_those_of_tensors_that_have_moved() -> None:
    heads = exact.Heads(64)
    steps = [[torch.full((size,), float(n)) for size in (3, 900)] for n in range(4)]
    for moved in (*steps, [steps[0][0], steps[1][1]], steps[0][::-1]):
        expected = exact.of_bytes(
            b"".join(bytes(exact.bytes_of(one))[:64] for one in moved)
        )
        assert heads.print_of(moved) == expected


@given(
    st.lists(
        st.tuples(seeds, st.integers(0, 9000), st.sampled_from(DTYPES)), min_size=1
    )
)
def test_sums_are_those_of_each_tensor_alone(
    drawn: list[tuple[int, int, torch.dtype]],
) -> None:
    tensors = [a_tensor(*one) for one in drawn]
    assert sums(tensors).tolist() == [sums([one]).item() for one in tensors]


@given(seeds, st.sampled_from([3, 4000, 4096, 9000, 200_000]), st.data())
def test_sums_change_with_any_bit_and_any_exchange(
    seed: int, size: int, data: st.DataObject
) -> None:
    tensor = a_tensor(seed, size, torch.int64)
    i, j = data.draw(
        st.lists(st.integers(0, size - 1), min_size=2, max_size=2, unique=True)
    )
    bit = tensor.clone()
    bit[i] ^= 1 << data.draw(st.integers(0, 62))
    other = tensor.clone()
    other[i], other[j] = tensor[j], tensor[i]
    one, two, three = (int(sums([x]).item()) for x in (tensor, bit, other))
    assert one != two
    assert (one == three) is torch.equal(tensor, other)


def test_sums_know_how_many_zeros_there_are() -> None:
    assert sums([torch.zeros(3)]).item() != sums([torch.zeros(4)]).item()


@pytest.mark.parametrize("size", [8, 100_000])
def test_memory_that_was_given_back_is_not_read(size: int) -> None:
    """As FSDP does with the parameters that it gathered."""
    tensor = torch.ones(size)
    tensor.untyped_storage().resize_(0)
    with pytest.raises(RuntimeError, match="given back"):
        exact.of_tensor(tensor)
