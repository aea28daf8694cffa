"""Strategies from which hypothesis draws the micro-batches of an example."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from hypothesis import strategies as st
from torch import Tensor
from torch.utils._pytree import tree_flatten, tree_map, tree_unflatten

Make = Callable[[torch.Generator, int, Sequence[int]], Any]
"""Makes a micro-batch of so many rows; the lengths of rows are only for tokens."""


@dataclass(frozen=True)
class Batches:
    """Describes micro-batches, and draws examples of them.

    Args:
        make: Makes one, of a generator, a number of rows and their lengths. A batch is
            a tensor, or tuples, lists and dicts of tensors whose first dimension are
            the rows.
        rows: The most rows of a micro-batch.
        uneven: Micro-batches differ in their numbers of rows. The loss of the whole is
            then not the mean of their losses.
        length: Rows have 1 to so many tokens that count; 0: they have no lengths.
        shortest: Least length of a row.
        join: Joins micro-batches into one.
    """

    make: Make
    rows: int = 4
    uneven: bool = False
    length: int = 0
    shortest: int = 1
    join: Callable[[Sequence[Any]], Any] = field(default_factory=lambda: joined)

    def examples(
        self, least: int, most: int, *, ranks: int = 1
    ) -> st.SearchStrategy[Example]:
        """A strategy for examples with `least` to `most` micro-batches on each rank.

        Where numbers of samples that count may differ, they do: between ranks, and
        between micro-batches of the only one.
        """

        @st.composite
        def example(draw: st.DrawFn) -> Example:
            count = draw(st.integers(least, most)) * ranks
            sizes = st.integers(1, self.rows)
            if self.uneven:
                rows = draw(st.lists(sizes, min_size=count, max_size=count))
            else:
                rows = [draw(sizes)] * count
            lengths: list[list[int]] = []
            if self.length:
                one = st.integers(self.shortest, self.length)
                several = [st.lists(one, min_size=n, max_size=n) for n in rows]
                lengths = [draw(each) for each in several]
            seed = draw(st.integers(0, 2**16))
            return Example(self, tuple(rows), tuple(map(tuple, lengths)), seed, ranks)

        varies = self.length > self.shortest or (self.uneven and self.rows > 1)
        return example().filter(_is_unequal) if varies else example()


@dataclass(frozen=True)
class Example:
    """One drawn example: the micro-batches of one optimizer step.

    Attributes:
        batches: The strategy that they are drawn from.
        rows: Number of rows of each micro-batch.
        lengths: Lengths of the rows of each; empty if they have none.
        seed: Seed of the values, and of the random state for the step.
        ranks: Number of ranks that share them, in order.
    """

    batches: Batches = field(repr=False)
    rows: tuple[int, ...]
    lengths: tuple[tuple[int, ...], ...]
    seed: int
    ranks: int = 1

    def micro_batches(self) -> list[Any]:
        """All micro-batches; the same values at each call."""
        random = torch.Generator().manual_seed(self.seed)
        lengths = self.lengths or ((),) * len(self.rows)
        return [
            self.batches.make(random, rows, some)
            for rows, some in zip(self.rows, lengths, strict=True)
        ]

    def share(self, micro_batches: Sequence[Any], rank: int) -> list[Any]:
        """The micro-batches of one rank."""
        each = len(micro_batches) // self.ranks
        return list(micro_batches[rank * each : (rank + 1) * each])

    @property
    def counts(self) -> tuple[int, ...]:
        """What a mean loss divides by, for each micro-batch: labels, or rows."""
        return tuple(map(sum, self.lengths)) or self.rows

    def __str__(self) -> str:
        """In words, as a message tells it."""
        ranks = f"{self.ranks} ranks, each with " if self.ranks > 1 else ""
        count = len(self.rows) // self.ranks
        sizes = set(self.rows)
        rows = f"{self.rows[0]}" if len(sizes) == 1 else _listed(self.rows)
        one = count == 1
        text = (
            f"{ranks}K={count} micro-batch{'' if one else 'es'} of B={rows} "
            f"row{'s' * (rows != '1')}"
        )
        if self.lengths:
            text += f" with {_listed(self.counts)} tokens that count"
        shapes = [
            f"{list(leaf.shape)}"
            for leaf in tree_flatten(self.micro_batches()[0])[0]
            if isinstance(leaf, Tensor)
        ]
        return f"{text}, of shapes {' and '.join(shapes)}, seed {self.seed}"


def labelled(
    inputs: Sequence[int], classes: int, *, rows: int = 4, uneven: bool = False
) -> Batches:
    """Strategy: pairs of inputs [rows, *inputs] float32 and labels [rows] int64."""

    def make(random: torch.Generator, count: int, _lengths: Sequence[int]) -> Any:
        features = torch.randn(count, *inputs, generator=random)
        return features, torch.randint(classes, (count,), generator=random)

    return Batches(make, rows, uneven)


def regression(
    inputs: Sequence[int],
    outputs: Sequence[int],
    *,
    rows: int = 4,
    uneven: bool = False,
) -> Batches:
    """Strategy: pairs of inputs [rows, *inputs] and targets [rows, *outputs]."""

    def make(random: torch.Generator, count: int, _lengths: Sequence[int]) -> Any:
        features = torch.randn(count, *inputs, generator=random)
        return features, torch.randn(count, *outputs, generator=random)

    return Batches(make, rows, uneven)


def tokens(
    vocabulary: int,
    *,
    length: int = 6,
    shortest: int = 1,
    rows: int = 2,
    uneven: bool = False,
    ignored: int = -100,
) -> Batches:
    """Strategy: pairs of tokens and labels, both [rows, length] int64.

    Rows have different numbers of labels that count; those behind are `ignored`, and
    micro-batches therefore have different numbers, too.

    Args:
        vocabulary: Number of different tokens.
        length: Length of all rows, with padding.
        shortest: Least number of labels that count in a row; 2 if the step predicts
            the next token and leaves the first out.
        rows: As in `Batches`.
        uneven: As in `Batches`.
        ignored: Label that does not count.
    """

    def make(random: torch.Generator, count: int, lengths: Sequence[int]) -> Any:
        shape = (count, length)
        sequence = torch.randint(vocabulary, shape, generator=random)
        labels = torch.randint(vocabulary, shape, generator=random)
        for row, here in enumerate(lengths):
            labels[row, here:] = ignored
        return sequence, labels

    return Batches(make, rows, uneven, length, shortest)


def made(
    make: Callable[[torch.Generator, int], Any],
    *,
    rows: int = 4,
    uneven: bool = False,
    join: Callable[[Sequence[Any]], Any] | None = None,
) -> Batches:
    """Strategy: batches of any kind, as `make(generator, rows)` returns them.

    Args:
        make: All random values are to come from the generator.
        rows: As in `Batches`.
        uneven: As in `Batches`.
        join: Puts several together into one, where that is more than to concatenate
            their tensors along the first dimension.
    """
    return Batches(
        lambda random, count, _lengths: make(random, count),
        rows,
        uneven,
        join=joined if join is None else join,
    )


def joined(batches: Sequence[Any]) -> Any:
    """Join batches: tensors are concatenated along their first dimension."""
    leaves = [tree_flatten(one) for one in batches]
    several = zip(*(flat for flat, _ in leaves), strict=True)
    whole = [_joined(parts) for parts in several]
    return tree_unflatten(whole, leaves[0][1])


def _joined(parts: Sequence[Any]) -> Any:
    if all(isinstance(one, Tensor) and one.dim() for one in parts):
        return torch.cat(list(parts))
    return parts[0]


def cast(batch: Any, dtype: torch.dtype, device: str = "cpu") -> Any:
    """A copy of a batch on a device, with floating-point tensors cast to a dtype."""

    def one(leaf: Any) -> Any:
        if not isinstance(leaf, Tensor):
            return leaf
        wanted = dtype if leaf.is_floating_point() else leaf.dtype
        return leaf.to(device=device, dtype=wanted, copy=True)

    return tree_map(one, batch)


def _is_unequal(example: Example) -> bool:
    counts = example.counts
    if example.ranks > 1:
        each = [example.share(counts, rank) for rank in range(example.ranks)]
        return len(set(map(sum, each))) > 1
    return len(counts) == 1 or len(set(counts)) > 1


def _listed(numbers: Sequence[int]) -> str:
    return "+".join(map(str, numbers))


def share_of(counts: Sequence[int]) -> list[float]:
    """The weight of each micro-batch in the mean over all samples.

    >>> share_of([1, 3])
    [0.25, 0.75]
    """
    total = math.fsum(counts)
    return [one / total for one in counts]
