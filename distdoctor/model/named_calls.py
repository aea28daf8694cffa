"""Calls that are matched by a name, and not by the order in which ranks make them.

Horovod's are: an operation begins when all ranks of a process set have asked for the
tensor of that name, in whatever order they ask for several. In a journal the `ordinal`
of such a call therefore tells more than an order; see `packed`.
"""

from __future__ import annotations

BY_NAME = "horovod"
"""Name of the group of all ranks whose calls are matched by name.

The names of such groups of some ranks begin with it.
"""

_HANDLE_BITS, _USE_BITS, _JOIN_BITS = 31, 23, 9
_HANDLES, _USES, _JOINS = 1 << _HANDLE_BITS, 1 << _USE_BITS, 1 << _JOIN_BITS


def packed(handle: int, use: int, joins: int) -> int:
    """The ordinal of a call that is matched by name: what its name does not tell.

    Each number is taken modulo its room.

    Args:
        handle: Horovod's number of the call in this process, from 1. It is the name of
            a call that was given none.
        use: How often this process has used the call's name since it joined last, this
            call included.
        joins: How often it had called `join` on the process set before.

    Returns:
        A number of 63 bits.
    """
    return (
        handle % _HANDLES
        | use % _USES << _HANDLE_BITS
        | joins % _JOINS << _HANDLE_BITS + _USE_BITS
    )


HANDLE_MASK = _HANDLES - 1
USE_SHIFT, USE_MASK = _HANDLE_BITS, _USES - 1
JOINS_SHIFT = _HANDLE_BITS + _USE_BITS


def is_by_name(group: str) -> bool:
    """Whether the calls on a group are matched by name.

    Args:
        group: Its name, or its text as `packed_texts.group_text` makes it.

    Returns:
        Whether its name says so.
    """
    return group.startswith(BY_NAME)


class NameCounter:
    """Numbers a process's calls that are matched by name, as Horovod would."""

    def __init__(self) -> None:
        self._handle = 0
        self._uses: dict[tuple[str, str, str], int] = {}
        self._joins: dict[str, int] = {}

    def numbered(self, group: str, operation: str, name: str) -> int:
        """Count a call.

        Args:
            group: Its process set.
            operation: What is called; "join" begins the counts of uses anew.
            name: The tensor's; "" if it has none.

        Returns:
            Its ordinal, as `packed` makes it.
        """
        self._handle += 1
        joins, use = self._joins.get(group, 0), 1
        if operation == "join":
            self._joins[group] = joins + 1
            self._uses = {key: n for key, n in self._uses.items() if key[0] != group}
        elif name or operation == "barrier":
            key = group, operation, name
            self._uses[key] = use = self._uses.get(key, 0) + 1
        return packed(self._handle, use, joins)
