"""Losses that are divided by the number of ranks: in the source, and as steps show."""

from dataclasses import replace
from textwrap import dedent

import pytest

from distdoctor.analysis.gradients.shrunk_gradients import shrunk
from distdoctor.analysis.source.loss_divisions import Divisions
from distdoctor.analysis.source.program import Program
from distdoctor.catalogue import every_check
from distdoctor.examination.examining import examine
from distdoctor.model.drawing import sketch
from distdoctor.model.events import Place
from distdoctor.model.findings import Severity, Sick
from distdoctor.model.run import Run

HELPERS = """
def mean_of_ranks(value):
    value = value.clone()
    dist.all_reduce(value)
    return value / dist.get_world_size()
def shrink(loss, by):
    return loss / by
class Criterion(nn.Module):
    def __init__(self, world):
        self.world = world
    def forward(self, outputs, labels):
        return F.cross_entropy(outputs, labels) / self.world
"""


def division(source: str, size: int = 2) -> int:
    """The line, of the helpers a negative one, that divides the loss; 0: none."""
    text = dedent(source).strip() + "\n"
    (at,) = [
        n for n, line in enumerate(text.splitlines(), start=1) if "backward(" in line
    ]
    program = Program({"t.py": text, "helpers.py": HELPERS})
    place = Divisions(program, size).by_ranks(Place("t.py", at))
    if place is None:
        return 0
    return place.line if place.file == "t.py" else -place.line


@pytest.mark.parametrize(
    ("source", "line"),
    [
        ("loss = f(x) / dist.get_world_size()\nloss.backward()", 1),
        ("(f(x) / int(os.environ['WORLD_SIZE'])).backward()", 1),
        ("n = hvd.size()\nloss = f(x)\nloss = loss.div(n)\nloss.backward()", 3),
        ("n = mesh.size()\nloss = f(x)\nloss *= 1 / n\nloss.backward()", 3),
        ("loss = f(x)\nloss.div_(dist.get_world_size())\nloss.backward()", 2),
        ("loss = torch.div(f(x), world_size)\nscaler.scale(loss).backward()", 1),
        ("loss = f(x) / (ACCUM * world_size)\naccelerator.backward(loss)", 1),
        ("loss = -(world_size ** -1 * f(x))\nloss.backward()", 0),
        ("loss = f(x) * (1.0 / world_size)\nloss.backward()", 1),
        ("loss = shrink(f(x), dist.get_world_size())\nloss.backward()", -7),
        ("loss = mean_of_ranks(f(x))\nloss.backward()", -5),
        ("f = Criterion(dist.get_world_size())\nf(x, y).backward()", -12),
        (
            """
            class Trainer:
                def __init__(self):
                    self.world = dist.get_world_size()
                def loss_of(self, batch):
                    inputs, labels = batch
                    loss = self.criterion(self.model(inputs), labels)
                    if self.world > 1:
                        loss = loss / self.world
                    return loss, {"loss": loss.item()}
                def fit(self):
                    for batch in self.loader:
                        loss, shown = self.loss_of(batch)
                        loss.backward()
            """,
            8,
        ),
        (
            """
            def step(loss, optimizer):
                loss.backward()
                optimizer.step()
            for x in data:
                step(f(x) / dist.get_world_size(), optimizer)
            """,
            5,
        ),
    ],
)
def test_a_division_by_the_ranks_is_found(source: str, line: int) -> None:
    assert division(source) == line


@pytest.mark.parametrize(
    "source",
    [
        "loss = f(x)\nshown = loss.detach() / world_size\nloss.backward()",
        "loss = f(x)\nloss.backward()\nloss = loss / world_size",
        "loss = f(x)\nmean_of_ranks(loss.detach())\nloss.backward()",
        "loss = f(x) / 2\nloss.backward()",
        "ACCUM = 2\nloss = f(x) / ACCUM\nloss.backward()\nx = y / world_size",
        "loss = f(x) * world_size / tokens\nloss.backward()",
        "loss = f(x) * world_size\nloss.backward()",
        "loss = f(x) / world_size * world_size\nloss.backward()",
        "loss = f(x) / (tokens / world_size)\nloss.backward()",
        "each = tokens / world_size\nloss = f(x) / each\nloss.backward()",
        "loss = f(x) / world_size ** 2\nloss.backward()",
        "loss = f(x) / dist.get_world_size(tensor_parallel)\nloss.backward()",
        "loss = f(x) / x.size(0)\nloss.backward()",
        "loss = f(x) / count(x, world_size)\nloss.backward()",
        "rate = 0.1 / world_size\nloss = f(x)\nloss.backward()",
        "def other(loss):\n    return loss / world_size\nloss = f(x)\nloss.backward()",
    ],
)
def test_other_divisions_are_not_by_the_ranks(source: str) -> None:
    assert division(source) == 0


DIVIDED = "loss = f(x) / dist.get_world_size()\nloss.backward()"

STEPS = (
    "{wrap}  backward@t.py:2  holds(names=w,sizes=4,averaged=0{holds})  "
    "cycle(words={words},batches=1,more=9)  "
    "gradients(step=2,passes={passes},factor={factor},probed=0-2,{own},used={used})  "
    "gradients(step=3,passes={passes},factor={factor},probed=0-2,{own},used={used})"
)

DDP = "wrap=ddp:w"


def job(
    *,
    wrap: str = DDP,
    holds: str = "",
    words: str = "clear+backward+step",
    passes: int = 1,
    factor: str = ".5",
    used: str = "1.5+2.5+3.5",
    more: str = "",
    source: str = DIVIDED,
) -> Run:
    ranks = [
        STEPS.format(
            wrap=wrap,
            holds=holds,
            words=words,
            passes=passes,
            factor=factor,
            used=used,
            own=own,
        )
        for own in ("own=1+2+3", "own=2+3+4")
    ]
    drawing = "\n".join(f"rank {n} | {one}  {more}" for n, one in enumerate(ranks))
    return replace(sketch(drawing), sources={"t.py": source})


def severities(run: Run) -> list[Severity]:
    (check,) = [one for one in every_check() if one.code == "DD405"]
    (verdict,) = examine(run, [check])
    if not isinstance(verdict, Sick):
        return []
    return [verdict.severity_of(finding) for finding in verdict.findings]


def test_a_mean_that_was_divided_before_is_told() -> None:
    (found,) = shrunk(job())
    assert [place.line for place in found.divided] == [1]
    assert severities(job()) == [Severity.ERROR]


@pytest.mark.parametrize(
    "run",
    [
        job(factor=".125", passes=4, words="4:clear.backward+step"),
        job(
            factor="512",
            used=".00146484375+.00244140625+.00341796875",
            words="clear+scaled+update+scaled_step",
        ),
    ],
    ids=["accumulated", "scaled"],
)
def test_other_factors_beside_it_are_known(run: Run) -> None:
    assert severities(run) == [Severity.ERROR]


@pytest.mark.parametrize(
    "run",
    [
        job(holds=",adaptive"),
        job(words="clear+backward+clip+step", used=".15+.25+.35"),
        job(source=f"lr = 0.1 * dist.get_world_size(); {DIVIDED}"),
    ],
    ids=["adaptive", "clipped", "rate"],
)
def test_what_may_make_up_for_it_makes_it_a_warning(run: Run) -> None:
    assert severities(run) == [Severity.WARNING]


@pytest.mark.parametrize(
    "run",
    [
        job(wrap=""),
        job(used="3+5+7"),
        job(used=".75+1.25+1.75"),
        job(factor="1"),
        job(factor="0"),
        job(factor=".25"),
        job(factor=".5", passes=2, words="2:backward+step"),
        job(words="clear+backward/local+exchange+changed+step"),
        job(words="clear+backward+divided+step"),
        job(
            words="clear+backward+clip+step",
            used=".15+.25+.35",
            source=f"{DIVIDED}\nmodel.register_comm_hook(None, hook)",
        ),
        job(more="within"),
        job(more="backward@t.py:1"),
        job(source="loss = f(x) / 2\nloss.backward()"),
        job(source=""),
        job(wrap="wrap=fsdp:w", holds=",sharded"),
    ],
    ids=[
        *("not wrapped", "summed", "divided again", "no factor", "no mean"),
        *("another factor", "window", "by hand", "by others", "hooked"),
        *("gathered", "another loss", "constant", "no source", "sharded somehow"),
    ],
)
def test_what_may_be_meant_so_is_well(run: Run) -> None:
    assert not shrunk(run)


COUNTED = (
    "wrap=ddp:w  backward@t.py:4  holds(names=w,sizes=4,averaged=0)  "
    "cycle(words=clear+backward+step,batches=1,more=9)  "
    "gradients(step=2,passes=1,scale={scale},counts={count},probed=0-2,own={own},"
    "used=1.5+2.5+3.5)  "
    "gradients(step=3,passes=1,scale={scale},counts={count},probed=0-2,own={own},"
    "used=1.5+2.5+3.5)"
)


@pytest.mark.parametrize(
    ("scale", "counts", "is_found"),
    [(0.1, (4, 6), True), (0.2, (4, 6), False), (0.1, (5, 5), False)],
    ids=["by all", "times the ranks", "a constant"],
)
def test_sums_that_are_divided_by_the_count_of_all_ranks(
    scale: float, counts: tuple[int, int], is_found: bool
) -> None:
    """DDP averages what is meant to be summed; of equal counts it may be a constant."""
    lines = [
        COUNTED.format(scale=scale, count=count, own=own)
        for count, own in zip(counts, ("1+2+3", "2+3+4"), strict=True)
    ]
    drawing = "\n".join(f"rank {n} | {one}" for n, one in enumerate(lines))
    source = "loss = total(x)\nn = count(x)\ndist.all_reduce(n)\n(loss / n).backward()"
    found = shrunk(replace(sketch(drawing), sources={"t.py": source}))
    assert [one.by_all for one in found] == [True] * is_found
