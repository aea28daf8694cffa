"""What ranks leave out of an average by hand, beside parts of their own."""

from collections.abc import Mapping

import pytest

from distdoctor.analysis.gradients.left_out_parameters import left_out
from distdoctor.analysis.gradients.used_gradients import apart
from distdoctor.model.drawing import sketch
from distdoctor.model.run import Run

SHARED, ALIKE, OWN, ZEROS = "averaged", "drawn alike", "drawn apart", "zeros"


def rank(own: int, kinds: Mapping[str, str], sent: str, more: str) -> str:
    """A rank that averages some parameters by hand, and makes two steps."""
    names = "+".join(kinds)
    eights = "+".join("8" for _ in kinds)
    first, samples, steps = [], [], []
    for n, kind in enumerate(kinds.values()):
        apart_, zeros = kind == OWN, kind == ZEROS
        first.append(100 + n + 10 * own * apart_)
        samples.append("0+0+0" if zeros else f".1+.2+.{3 + own * apart_}")
    for step in (1, 2):
        prints = [
            1000 * step + n + (0 if kind == SHARED else 100 * own)
            for n, kind in enumerate(kinds.values())
        ]
        later = [
            2000 + n + (0 if kind == SHARED else 100 * own)
            for n, kind in enumerate(kinds.values())
        ]
        weights = first if step == 1 else later
        steps.append(
            f"gradients(step={step},prints={'+'.join(map(str, prints))},"
            f"weights={'+'.join(map(str, weights))},passes=1,moved=8{more})"
        )
        if sent:
            steps.append(f"sent(step={step},positions={sent},own=1,sent=1,factors=1)")
    weights_ = "+".join(map(str, first))
    return (
        f"trained(names={names},numels={eights})  "
        f"weights(step=1,prints={weights_},samples={'+'.join(samples)})  "
        f"holds(names={names},sizes={eights})  {'  '.join(steps)}  exit=0"
    )


def found(kinds: Mapping[str, str], sent: str = "0", more: str = "") -> list[str]:
    """Names of what was left out."""
    rows = [f"rank {n} | {rank(n + 1, kinds, sent, more)}" for n in (0, 1)]
    run: Run = sketch("\n".join(rows))
    (one,) = apart(run)
    return [one.chapter.names[n] for n in left_out(run, one)]


@pytest.mark.parametrize(
    ("kinds", "expected"),
    [
        ({"a.w": SHARED, "b.w": ALIKE, "c.w": OWN}, ["b.w"]),
        ({"m.0.w": SHARED, "m.1.w": ALIKE, "m.2.w": OWN}, ["m.1.w"]),
        ({"a.w": SHARED, "a.b": ZEROS, "c.w": OWN}, ["a.b"]),
        ({"a.w": SHARED, "c.w": OWN, "c.b": ZEROS}, []),
        ({"a.w": SHARED, "h.0.w": ALIKE, "h.1.w": OWN}, []),
        ({"a.w": SHARED, "norm.w": ZEROS, "c.w": OWN}, []),
        ({"a.w": SHARED, "b.w": ALIKE, "c.w": ALIKE}, []),
        ({"b.w": ALIKE, "c.w": OWN}, []),
    ],
    ids=[
        *("a layer", "of a sequence", "of a layer", "a bias of one's own"),
        *("a layer of one's own", "constants", "nothing drawn apart", "no average"),
    ],
)
def test_what_is_left_out(kinds: Mapping[str, str], expected: list[str]) -> None:
    assert found(kinds) == expected


@pytest.mark.parametrize(
    ("sent", "more"),
    [("", ""), ("0-1", ""), ("0", ",unclear=64")],
    ids=["by nobody", "exchanged, too", "a pipeline"],
)
def test_what_may_be_otherwise(sent: str, more: str) -> None:
    kinds = {"a.w": SHARED, "b.w": ALIKE, "c.w": OWN}
    assert found(kinds, sent, more) == []
