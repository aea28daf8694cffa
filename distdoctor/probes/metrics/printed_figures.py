"""Records which numbers a rank sums over ranks, and prints afterwards.

A number that a rank gives may be the mean of its own losses, so what backward ran on is
counted up between one such sum and the next. Losses on a GPU are not: to read one is to
wait for it.
"""

from __future__ import annotations

import math
import re
from typing import Any

from torch import Tensor

from distdoctor.model.observations.metrics import AddedUp, Shown
from distdoctor.probes.accumulation import loss_terms
from distdoctor.probes.call_sites import call_site
from distdoctor.probes.groups import world
from distdoctor.probes.harmless import harmless
from distdoctor.probes.metrics.half_precision_sums import TALLIES
from distdoctor.probes.metrics.small_values import few_values
from distdoctor.probes.probe import Probe
from distdoctor.probes.recorder import RECORDER

_MOST_AT_ONE_LINE = 12  # that are told, of either kind
_MOST_LINES = 100  # of source, of either kind

_MOST_AFTER = 10  # lines of text that may tell what a sum came to

_MOST_TEXT = 4096  # characters of a line of text
_MOST_NUMBERS = 8  # of a line of text

_LOOKED_AT = 8  # losses whose graphs are read

_NUMBER = re.compile(r"[-+]?\d+\.(\d+)(?:[eE]([-+]?\d+))?")

_NEAR = 40  # characters before a number that may say what it is

_WORDS = {
    "average": r"avg|average[sd]?|mean",
    "loss": r"loss(?:es)?|nll|mse|bce",
    "accuracy": r"acc|accuracy|precision|recall|f1|auc|auroc|top-?[15]",
}

_SAYS = {
    what: re.compile(rf"(?<![a-z])(?:{words})(?![a-z])")
    for what, words in _WORDS.items()
}

_TOTAL = re.compile(r"(?<![a-z])(?:totals?|sum(?:med)?)(?![a-z])")


class Figures:
    """Follows the numbers that this process sums over ranks, and its output.

    Attributes:
        lines: How many more lines of text are examined.
    """

    def __init__(self) -> None:
        self.reset()

    def reset(self) -> None:
        """Forget all state: the process starts to play in another run."""
        self.lines = 0
        self._text = ""
        self._reported: dict[str, int] = {}
        self._total, self._count, self._over = 0.0, 0, False
        self._looked, self._is_mean = 0, True

    def begun(self, loss: Tensor, given: Any) -> None:
        """Called before a backward pass: add its loss to the rank's own mean."""
        if not self._is_mean:
            return
        if not loss.is_cpu or not (given is None or float(given) == 1.0):
            self._is_mean = False
            return
        if self._looked < _LOOKED_AT:
            self._looked += 1
            factor = loss_terms.factor_of(loss, members=world.size())
            self._is_mean = factor == 1.0
        if self._over:
            self._total, self._count, self._over = 0.0, 0, False
        self._total += float(loss.detach())
        self._count += 1

    def are_open(self, site: str) -> bool:
        """Whether more sums of a line may be told; on the hot path."""
        return self._reported.get(site, 0) < _MOST_AT_ONE_LINE

    @harmless
    def summed(self, floating: int, argument: Any, site: str) -> None:
        """Called before numbers are reduced; the call is already recorded.

        Args:
            floating: How many floating-point numbers there are.
            argument: The tensors that they are in.
            site: The user's line.
        """
        if not self._may_tell(site):
            return
        values = few_values(floating, argument)
        if not values:
            return
        TALLIES.look(last=True)
        count = self._count if self._is_mean else 0
        if not math.isfinite(self._total):  # a step that a GradScaler will leave out
            count = 0
        loss = self._total / count if count else 0.0
        self._over, self.lines = True, _MOST_AFTER
        observation = AddedUp(values=values, loss=loss, losses=count)
        RECORDER.observe(observation, site)

    @harmless
    def write(self, text: str) -> None:
        """Called when the rank prints; a line may come in pieces."""
        self._text = (self._text + text)[-_MOST_TEXT:]
        if "\n" in text:
            whole, self._text = self._text, ""
            self._tell(whole, call_site(3))

    @harmless
    def log(self, text: str) -> None:
        """Called when the rank logs a message."""
        self._tell(text[:_MOST_TEXT], call_site(3))

    def _tell(self, text: str, site: str) -> None:
        found = [
            one for one in _NUMBER.finditer(text) if math.isfinite(float(one.group()))
        ][:_MOST_NUMBERS]
        if not found or "\r" in text:  # a progress bar is written anew again and again
            return
        self.lines -= 1
        if not site or not self._may_tell(site):
            return
        labels, end = [], 0
        for one in found:
            labels.append(_label(text[max(end, one.start() - _NEAR) : one.start()]))
            end = one.end()
        if _TOTAL.search(text.lower()):
            labels = ["total"] * len(found)
        observation = Shown(
            numbers=tuple(float(one.group()) for one in found),
            decimals=tuple(len(one[1]) - int(one[2] or 0) for one in found),
            labels=tuple(labels),
        )
        RECORDER.observe(observation, site)

    def _may_tell(self, site: str) -> bool:
        times = self._reported.get(site, 0)
        if times >= _MOST_AT_ONE_LINE or (
            not times and len(self._reported) >= 2 * _MOST_LINES
        ):
            return False
        self._reported[site] = times + 1
        return True


def _label(text: str) -> str:
    """What the words before a number say that it is: "average-loss"; "-": nothing."""
    low = text.lower()
    return (
        "-".join(what for what, pattern in _SAYS.items() if pattern.search(low)) or "-"
    )


FIGURES = Figures()


PROBE = Probe(reset=FIGURES.reset)
