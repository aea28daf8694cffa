"""How a value parts the ranks: who has which, and who is in the minority."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from distdoctor.model.run import named

Partition = Mapping[str, tuple[int, ...]]
"""By value, the ranks that have it, ascending; each rank has one."""


def partition_of(values: Mapping[int, str]) -> Partition:
    """Who has which value.

    Args:
        values: By rank.

    Returns:
        By value the ranks, that of the lowest rank first.
    """
    found: dict[str, list[int]] = {}
    for rank in sorted(values):
        found.setdefault(values[rank], []).append(rank)
    return {value: tuple(ranks) for value, ranks in found.items()}


def odd_ranks(partition: Partition) -> tuple[int, ...]:
    """Ranks that have another value than most; none if there is no such majority.

    Args:
        partition: Of ranks, by a value.
    """
    usual = max(partition.values(), key=len)
    odd = [rank for ranks in partition.values() if ranks is not usual for rank in ranks]
    return tuple(sorted(odd)) if len(odd) < len(usual) else ()


def spoken_values(partition: Partition, most: int = 4) -> str:
    """Values and who has them, as a sentence names them.

    >>> spoken_values({"2.13.0": (0, 2), "2.12.1": (1,)})
    '2.13.0 on ranks {0,2}, 2.12.1 on rank 1'

    Args:
        partition: Of ranks, by a value.
        most: How many values are named.
    """
    words = [f"{value} on {named(ranks)}" for value, ranks in partition.items()]
    more = f", and {len(words) - most} more" if len(words) > most else ""
    return ", ".join(words[:most]) + more


def together(
    partitions: Mapping[str, Partition],
) -> Iterator[tuple[tuple[str, ...], tuple[int, ...]]]:
    """Names whose values part the ranks in the same way.

    Args:
        partitions: By name, who has which value; a rank may be in none.

    Yields:
        Names in their order, and the odd ranks.
    """
    alike: dict[frozenset[tuple[int, ...]], list[str]] = {}
    for name, partition in partitions.items():
        alike.setdefault(frozenset(partition.values()), []).append(name)
    for names in alike.values():
        yield tuple(names), odd_ranks(partitions[names[0]])
