"""Numbers that ranks give to names: what the probe takes for such, and the source."""

import random
import subprocess
import sys
from collections import Counter, OrderedDict
from inspect import cleandoc
from textwrap import indent
from typing import Any, NoReturn

import pytest
import torch

from distdoctor.analysis.source.program import Program
from distdoctor.analysis.source.unordered_sets import makers_of
from distdoctor.model.observations.data import Numbered
from distdoctor.probes.data import numbered_names
from distdoctor.probes.recorder import RECORDER
from distdoctor.probes.replicas import trained_models

WORDS = [f"word{n}" for n in range(60)]


@pytest.fixture
def observed(monkeypatch: pytest.MonkeyPatch) -> list[Numbered]:
    """What is observed."""
    heard: list[Numbered] = []
    monkeypatch.setattr(RECORDER, "writer", object())
    monkeypatch.setattr(
        RECORDER, "observe", lambda event, _site="": heard.append(event)
    )
    return heard


class Vocab:
    """As users write one; its properties and lookups must not be asked."""

    def __init__(self, words: list[str]) -> None:
        self.stoi = {word: n for n, word in enumerate(words)}

    @property
    def size(self) -> NoReturn:
        """Not to be asked for."""
        raise AssertionError

    def __getattr__(self, name: str) -> NoReturn:
        raise AssertionError(name)


def looked(observed: list[Numbered], **held: Any) -> list[Numbered]:
    """What is told where a function has these variables when it runs backward."""
    looks = numbered_names.Numberings()
    names: dict[str, Any] = {"looks": looks}
    text = f"def train({', '.join(held)}):\n    for _ in range(9): looks.begin(())\n"
    exec(compile(text, "/home/user/t.py", "exec"), names)
    names["train"](**held)
    return observed


def test_the_vocabulary_that_an_object_holds_is_told_once(
    observed: list[Numbered],
) -> None:
    words = list(set(WORDS))
    (one,) = looked(observed, loader={"data": {"vocab": Vocab(words)}})
    assert (one.name, one.size) == ("loader.data.vocab.stoi", 60)
    assert one.first[0] == f"word0={words.index('word0')}"
    assert one.hashed


def test_names_are_the_same_whatever_their_numbers(observed: list[Numbered]) -> None:
    mine, theirs = looked(
        observed,
        mine=Vocab(sorted(WORDS)),
        theirs=Vocab(sorted(WORDS, reverse=True)),
    )
    assert mine.keys == theirs.keys
    assert mine.numbers != theirs.numbers


@pytest.mark.parametrize(
    "held",
    [
        dict.fromkeys(WORDS, 3),
        {word: 2 * n for n, word in enumerate(WORDS)},
        {word: float(n) for n, word in enumerate(WORDS)},
        {word: n > 3 for n, word in enumerate(WORDS)},
        dict(enumerate(WORDS)),
        {word: n for n, word in enumerate(WORDS[:7])},
        Counter({word: n for n, word in enumerate(WORDS)}),
        OrderedDict((word, n) for n, word in enumerate(WORDS)),
        dict(zip([*WORDS, 7], range(61), strict=True)),
    ],
)
def test_other_dictionaries_are_no_numbering(
    observed: list[Numbered], held: Any
) -> None:
    assert not looked(observed, held=held)


def ordered(words: list[str], observed: list[Numbered]) -> bool:
    (one,) = looked(observed, held={word: n for n, word in enumerate(words)})
    return one.hashed


@pytest.mark.parametrize("leading", [[], ["<pad>", "<unk>", "<s>", "</s>"]])
def test_the_order_of_a_set_is_known(
    observed: list[Numbered], leading: list[str]
) -> None:
    assert ordered(leading + list(set(WORDS)), observed)


@pytest.mark.parametrize("seed", range(20))
def test_a_shuffled_order_is_none(observed: list[Numbered], seed: int) -> None:
    words = sorted(WORDS)
    random.Random(seed).shuffle(words)
    assert not ordered(words, observed)


MEASURE = """
import random
from distdoctor.probes.data.numbered_names import _is_of_a_set
draws = random.Random(7)
for size in (24, 60, 500):
    for _ in range(10):
        words = [f"w{draws.randrange(10**9)}" for _ in range(size)]
        assert _is_of_a_set(list(set(words))), size
        shuffled = sorted(words)
        draws.shuffle(shuffled)
        assert not _is_of_a_set(shuffled), size
"""


def test_orders_are_told_apart_under_a_seed() -> None:
    subprocess.run(
        [sys.executable, "-c", MEASURE], env={"PYTHONHASHSEED": "5"}, check=True
    )


def test_a_dimension_of_that_size_is_known(
    observed: list[Numbered], monkeypatch: pytest.MonkeyPatch
) -> None:
    table = torch.nn.Embedding(60, 4)
    known = trained_models.Model(0, table, "")
    monkeypatch.setattr(trained_models, "_models", [known])
    first, second = looked(observed, first=Vocab(WORDS), second=Vocab(WORDS[:-1]))
    assert (first.fits, second.fits) == (True, False)


def lines(source: str, name: str) -> tuple[list[int], list[int]]:
    """Of the dictionary, and of the sets."""
    made, sets = makers_of(Program({"t.py": cleandoc(source) + "\n"}), name)
    return [one.line for one in made], [one.line for one in sets]


VOCAB = """
class Vocab:
    def __init__(self, texts, specials=()):
        words = {w for t in texts for w in t.split()}
        self.itos = list(specials) + ORDER
        self.stoi = {w: i for i, w in enumerate(self.itos)}
"""


@pytest.mark.parametrize(
    ("order", "sets"),
    [("list(words)", [3]), ("sorted(words)", []), ("[*words]", [3])],
)
def test_the_set_behind_an_attribute_is_found(order: str, sets: list[int]) -> None:
    assert lines(VOCAB.replace("ORDER", order), "vocab.stoi") == ([5], sets)


@pytest.mark.parametrize(
    ("body", "sets"),
    [
        ("stoi = {}\nfor w in set(words):\n    stoi[w] = len(stoi)", [3]),
        ("names = list(set(words))\nstoi = dict(zip(names, range(9)))", [2]),
        ("stoi = {w: i for i, w in enumerate(unique(words))}", [10]),
        ("names = list(set(words))\nnames.sort()\nstoi = number(names)", []),
        ("stoi = {w: i for i, w in enumerate(sorted(set(words), key=f))}", []),
        ("stoi = {}\nfor w in sorted(set(words)):\n    stoi[w] = len(stoi)", []),
        ("names = [w for w in words if w in {'a', 'b'}]\nstoi = number(names)", []),
    ],
)
def test_the_set_behind_a_variable_is_found(body: str, sets: list[int]) -> None:
    rest = "\n" * (8 - body.count("\n") - 2)
    source = "def main(words):\n" + indent(body, "    ") + rest
    source += "\ndef unique(texts):\n    return set(texts)\n"
    assert lines(source, "stoi")[1] == sets


LABELS = cleandoc("""
    @dataclass
    class LabelMap:
        version: int
        index: dict = field(default_factory=dict)

        @classmethod
        def build(cls, names):
            return cls(1, {name: i for i, name in enumerate(names)})

    class Messages:
        def __init__(self, rows):
            self.desks = set(desk for _, desk in rows)
            self.labels = LabelMap.build(DESKS)
""")


@pytest.mark.parametrize(
    ("given", "lines"), [("self.desks", [12]), ("sorted(self.desks)", [])]
)
def test_a_dataclass_has_its_field_from_what_it_is_given(
    given: str, lines: list[int]
) -> None:
    program = Program({"t.py": LABELS.replace("DESKS", given)})
    _, sets = makers_of(program, "labels.index")
    assert [place.line for place in sets] == lines
