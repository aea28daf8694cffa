"""Where the parameters are chosen that an optimizer is given."""

from dataclasses import replace
from textwrap import dedent

import pytest

from distdoctor.analysis.optimizer_step.held_parameters import chosen_at, held
from distdoctor.model.drawing import sketch

GROUPS = """
def param_groups(model, decay):
    kept = []
    for module in model.modules():
        kept.append(module.weight)
    return [{"params": kept, "weight_decay": decay}]
opt = AdamW(param_groups(net, 0.1), lr=0.1)
"""

LISTED = """
kept = [p for n, p in net.named_parameters() if "bias" not in n]
opt = AdamW(params=kept, lr=0.1)
"""


@pytest.mark.parametrize(
    ("source", "lines"),
    [
        (GROUPS, [5]),
        (LISTED, [1]),
        ("opt = AdamW(net.parameters(), lr=0.1)", []),
        ("opt = AdamW(kept, lr=0.1)", []),
        ("opt = make(net)", []),
    ],
)
def test_the_lines_that_choose_are_told(source: str, lines: list[int]) -> None:
    text = dedent(source).strip() + "\n"
    made = next(n for n, one in enumerate(text.splitlines(), 1) if "opt =" in one)
    run = sketch(f"rank 0 | holds(kind=AdamW,names=w)@t.py:{made}  exit=0")
    (one,) = held(replace(run, sources={"t.py": text}), 0)
    found = chosen_at(replace(run, sources={"t.py": text}), one.holds)
    assert [place.line for place in found] == lines
