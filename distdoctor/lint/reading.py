"""All that rules ask of a code base, worked out once."""

from __future__ import annotations

import re
from collections.abc import Sequence
from functools import cached_property

from distdoctor.lint.call_graph import CallGraph
from distdoctor.lint.code_base import CodeBase, ProgramFile, Scope
from distdoctor.lint.parted_ranks import Parting, partings
from distdoctor.lint.training_acts import Done, acts_of, files_that_train


class Reading:
    """A code base, and what was found out of it.

    Args:
        code: The code base.
    """

    def __init__(self, code: CodeBase) -> None:
        self.code = code
        self.graph = CallGraph(code)
        self._texts: dict[ProgramFile, str] = {}

    @cached_property
    def partings(self) -> Sequence[Parting]:
        """Where the ways of ranks part."""
        return partings(self.graph)

    @cached_property
    def training(self) -> Sequence[tuple[Scope, Sequence[Done]]]:
        """The functions that train, and what they do."""
        found = []
        for file in files_that_train(self.code.files):
            for scope in file.scopes:
                acts = acts_of(scope) if _may_train(scope) else []
                if acts:
                    found.append((scope, acts))
        return found

    def text_around(self, file: ProgramFile) -> str:
        """The text of a file, of what it imports and of what imports it.

        Without the lines that import: a name there may be used by nobody.
        """
        if file not in self._texts:
            text = "\n".join(one.text for one in self.code.around(file))
            self._texts[file] = _IMPORTS.sub("", text)
        return self._texts[file]

    def mentions(self, file: ProgramFile, words: re.Pattern[str]) -> bool:
        """Whether a file, or one it goes with, has a text that matches."""
        return any(words.search(one.text) for one in self.code.around(file))


def _may_train(scope: Scope) -> bool:
    return not scope.words.isdisjoint(_TRAINING)


_IMPORTS = re.compile(
    r"^(?:from\s+[\w.]+\s+)?import\s[^(\n]*(?:\([^)]*\))?", re.MULTILINE
)

_TRAINING = frozenset({"backward", "zero_grad", "step", "unscale_"})
