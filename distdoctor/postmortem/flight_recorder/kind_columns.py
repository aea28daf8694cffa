"""What is known of kinds of calls, as columns by the number of the kind."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from distdoctor.model.run import Spec
from distdoctor.postmortem.flight_recorder.call_kinds import CallKind, together


class KindColumns:
    """Kinds of calls as columns; more may be added.

    Attributes:
        all: The kinds; None: one that could not be understood.
        tells: By kind, whether "completed" is written of its calls once they are.
    """

    def __init__(self, kinds: Sequence[CallKind | None]) -> None:
        self.all = list(kinds)
        self._specs: dict[Spec, int] = {Spec(): 0}
        self._joined: dict[tuple[int, ...], int] = {}
        self.tells = np.ones(len(self.all), np.bool_)

    @property
    def specs(self) -> list[Spec]:
        """What calls carry, each once, in the order of their numbers."""
        return list(self._specs)

    def column(self, name: str, dtype: Any) -> NDArray[Any]:
        """One value of each kind; 0 for those that could not be understood."""
        return np.array(
            [0 if kind is None else getattr(kind, name) for kind in self.all], dtype
        )

    def spec_numbers(self) -> NDArray[np.int32]:
        """By kind, the number of what its calls carry."""
        return np.array(
            [
                0
                if kind is None
                else self._specs.setdefault(kind.spec, len(self._specs))
                for kind in self.all
            ],
            np.int32,
        )

    def joined(self, numbers: tuple[int, ...]) -> int:
        """The kind of calls made together; the last is what closes them."""
        if numbers not in self._joined:
            *parts, closing = [kind for n in numbers if (kind := self.all[n])]
            self._joined[numbers] = len(self.all)
            self.all.append(together(closing, parts))
            self.tells = np.append(self.tells, self.tells[numbers[-1]])
        return self._joined[numbers]
