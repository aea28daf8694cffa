"""Decides the tests of a program that its text does not decide."""

from __future__ import annotations

import ast
import re

_DISTRIBUTED = re.compile(r"distributed|\bis_dist|\bddp\b|multi_gpu|world_size > 1")
"""Tests of whether a job is distributed: else it has no ranks that could part."""

_SETTING = re.compile(r"[\w.]+( (==|in|is) .*['\"].*)?$|getattr\(")
"""What was chosen for the whole run: by its name, or as one of some words."""

_KEY = "_distdoctor_key"


class Oracle:
    """Decides tests that the text does not, for all ranks alike.

    Args:
        against: Keys of tests that are decided against what is preferred.
        splits: Key of a test that only the first rank finds so, where each rank asks
            for something of its own.
    """

    def __init__(self, against: frozenset[str] = frozenset(), splits: str = "") -> None:
        self._against, self.splits = against, splits
        self._said: dict[str, bool] = {}
        self.effort = 0  # statements gone through by it; who walks counts them
        self.is_ranked = False  # whether anything rested on the rank; who asks notes it
        self.asked: dict[str, bool] = {}  # by key, whether it is local

    def decide(self, test: ast.expr, prefer: bool, rank: int, local: bool) -> bool:
        """Whether a test holds."""
        key, turned = _key(test)
        self.asked.setdefault(key, local)
        if key not in self._said:
            # A job that is not distributed has no ranks that could part.
            wanted = (prefer != turned) or bool(_DISTRIBUTED.search(key))
            self._said[key] = wanted != (key in self._against)
        answer = self._said[key]
        if local and key == self.splits:
            answer = (rank == 0) == answer
        return answer != turned

    def rests_on_setting(self, test: ast.expr) -> bool:
        """Whether a test rests on a setting that the text does not tell.

        Whether the job is distributed is none: else it has no ranks that could part.
        """
        parts = [node for node in ast.walk(test) if isinstance(node, ast.expr)]
        keys = {_key(part)[0] for part in parts}
        return any(
            self.asked.get(key) is False
            and _SETTING.match(key)
            and not _DISTRIBUTED.search(key)
            for key in keys
        )


def _key(test: ast.expr) -> tuple[str, bool]:
    """A test as text, and whether the text says the opposite."""
    known = getattr(test, _KEY, None)
    if known is None:
        known = _worked_out(test)
        setattr(test, _KEY, known)  # texts of nodes are dear
    return known


def _worked_out(test: ast.expr) -> tuple[str, bool]:
    if isinstance(test, ast.Compare) and len(test.ops) == 1:
        opposite = {ast.NotEq: " == ", ast.IsNot: " is ", ast.NotIn: " in "}
        word = opposite.get(type(test.ops[0]))
        if word is not None:
            sides = ast.unparse(test.left), ast.unparse(test.comparators[0])
            return word.join(sides), True
    return ast.unparse(test), False
