"""The arguments by which a launcher passes a script its rank.

`torchrun` passes none. Older scripts get `--local_rank` from their launcher, and some
are started by hand with a rank for each.
"""

from __future__ import annotations

from collections.abc import Sequence

from distdoctor.launch.script_source import Option, ScriptSource

_LOCAL_RANK = {"local_rank"}
_RANK = {"rank", "global_rank"}
_NODE_RANK = {"node_rank", "machine_rank", "nr"}
_WORLD_SIZE = {"world_size", "worldsize", "num_ranks"}


def takes_rank(source: ScriptSource, given: Sequence[str]) -> bool:
    """Whether a script takes its rank by an argument that was not given."""
    by_itself = source.gives_rank or "RANK" in source.sets
    return any(
        option.plain & _RANK
        and not _is_given(option, given)
        and (option.required or by_itself)
        for option in source.options
    )


def gives_place(source: ScriptSource, given: Sequence[str]) -> bool:
    """Whether the user's arguments give the rank, or the rendezvous address."""
    return any(
        _is_given(option, given) and option.plain & (_RANK | _NODE_RANK)
        for option in source.options
        if not option.is_positional
    ) or any("tcp://" in word for word in given)


def rank_arguments(
    source: ScriptSource,
    given: Sequence[str],
    rank: int | str,
    world_size: int,
    by_hand: bool,
) -> list[str]:
    """The arguments that pass a rank its number, to precede the user's own.

    Args:
        source: The script.
        given: Arguments that the user gave to all ranks.
        rank: The rank, or the launcher's placeholder for it; it is the local one too.
        world_size: How many ranks there are.
        by_hand: Nothing else tells the rank; else only what is demanded is given.

    Source: torch.distributed.launch puts `--local-rank=N` before the arguments of the
    script (torch 2.13, distributed/run.py); until torch 2.0 it was `--local_rank=N`.
    """
    values = {name: str(rank) for name in (*_RANK, *_LOCAL_RANK)}
    values |= {name: str(world_size) for name in _WORLD_SIZE}
    options: list[str] = []
    positional: list[str] = []
    known = True
    for option in source.options:
        name = next((name for name in sorted(option.plain) if name in values), "")
        if option.is_positional:
            known = known and bool(name) and not _is_given(option, given)
            if known and option.required:
                positional.append(values[name])
        elif (
            name
            and not _is_given(option, given)
            and (by_hand or option.required or name in _LOCAL_RANK)
        ):
            options.append(f"{_long(option)}={values[name]}")
    return [*dict.fromkeys(options), *positional]


def _long(option: Option) -> str:
    """Its first spelling with two dashes, which takes a value after `=`."""
    long = [name for name in option.names if name.startswith("--")]
    return long[0] if long else option.names[0]


def _is_given(option: Option, given: Sequence[str]) -> bool:
    if option.is_positional:
        return bool(given) and not given[0].startswith("-")
    return any(word.partition("=")[0] in option.names for word in given)
