"""What the signs of drawings mean, for readers of one: those that stand in it.

`docs/drawings.md` has all of them.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator

from distdoctor.model.drawing_words import WORD, WORDS
from distdoctor.model.events import ADDRESS_FAULTS
from distdoctor.model.observations.drawing_syntax import KINDS
from distdoctor.model.operations import CODE_OF

_LINES = (
    (r"^group [\w-]+ \|", "group … |", "the members of a group"),
    (r"^rank \d+ \| *\?$", "?", "nothing is known of the rank"),
    (r"(?<= )\.(?= |$)", ".", "nothing; it keeps the columns in line"),
    (r"^nobody else", "nobody else", "no process is left that could become a rank"),
    (r"^the command left", "the command left with …", "how the whole job ended"),
)
"""What stands in lines of a drawing beside words: how it is found, shown and read."""

_ENDS = {
    "...": "waits there, or is not over",
    "...inside": "torch did not give back control",
    "...issued": "under way, and nobody waited for it yet",
    "!": "stopped before it was issued, since it does not fit the others' calls",
    "^": "ended with an exception",
}
"""Behind a call; `...` stands behind other words, too."""

_FLAGS = {
    "&": "asynchronous",
    "'": "its handle was given out and never used",
    "~": "while an exception was on its way up",
    "+": "one of several given to `batch_isend_irecv`",
}

_LIVES = {
    "start": "joined a job of so many ranks",
    "wrap": "wrapped a model: how, and its parameters",
    "misplaced": "called an operation on a tensor of that device",
    "unreduced": "backward ended, and DDP got no gradients of these",
    "batches": "a DataLoader gave so many batches",
    "shortened": "from there on a loader gave fewer batches: the budget was short",
    "fail": "an exception left the rank's code",
    "leave": "called `destroy_process_group`",
    "quit": "its own code asked the process to end",
    "exit": "the process ended with that status",
    "over": "a thread of it ended",
    "touched": "the tensor of the call at that line was changed before the wait",
    "stepped": "an optimizer read the tensor of the call at that line before the wait",
    "busy": "was seen there for so many seconds",
    "locked": "waited there for a lock for so many seconds",
    "stranded": "its threads waited there for each other for so many seconds",
    "dead": "held the interpreter's lock there for so many seconds",
    **ADDRESS_FAULTS,
}
"""By name, every word that is neither of a call nor of an observation."""

_KILLED = {
    "exit!": ("exit=…!", "killed"),
    "exit!!": ("exit=…!!", "ended by distdoctor or by the launcher"),
}


def legend(drawings: Iterable[str]) -> dict[str, str]:
    """The signs of some drawings.

    Args:
        drawings: As `sketch` reads them.

    Returns:
        By sign, as readers see it, what it means; none that does not occur.
    """
    found: dict[str, str] = {}
    for drawing in drawings:
        for line in drawing.splitlines():
            found |= {
                shown: meaning
                for pattern, shown, meaning in _LINES
                if re.search(pattern, line)
            }
            for word in line.partition("|")[2].split() if "|" in line else ():
                match = WORD.fullmatch(word)
                if match is not None and not line.startswith("group "):
                    found |= dict(_signs(match))
    return found


def _signs(word: re.Match[str]) -> Iterator[tuple[str, str]]:
    """The signs of a word, and what they mean."""
    name, end = word["name"], word["end"] or ""
    if word["value"] is None and name in CODE_OF:
        yield from _of_call(word)
    elif name in WORDS and (word["value"] is not None or not WORDS[name].value):
        yield f"{name}=…" if WORDS[name].value else name, _LIVES[name]
        if (killed := f"{name}{end}") in _KILLED:
            yield _KILLED[killed]
        elif end in {"...", "^"}:
            yield end, _ENDS[end]
        if "~" in word["flags"]:
            yield "~", _FLAGS["~"]
    elif name in KINDS:
        yield name, _told_by(name)
    if word["file"]:
        yield "@…:7", "the line of the program"
    if word["callers"]:
        yield "<…:9", "the line that led there"


def _of_call(word: re.Match[str]) -> Iterator[tuple[str, str]]:
    for option in filter(None, (word["tensors"] or "").split(",")):
        if "=" not in option:
            yield "(4)", "the size of the tensor"
    if word["group"]:
        yield "/…", "the group of the call"
    for flag in word["flags"] or "":
        yield flag, _FLAGS[flag]
    if word["end"]:
        yield word["end"], _ENDS[word["end"]]
    if word["thread"]:
        yield "%2", "the number of the rank's thread"


def _told_by(name: str) -> str:
    """What an observation of a name tells: the begin of its class's docstring."""
    told = " ".join((KINDS[name].__doc__ or "").split("\n\n")[0].split())
    told = re.split(r"[;:.](?: |$)", told)[0]
    small = re.match(r"[A-Z][a-z]* ", told) is not None and not told.startswith(_PROPER)
    return told[:1].lower() + told[1:] if small else told


_PROPER = ("Horovod", "Keras", "Backward ")
