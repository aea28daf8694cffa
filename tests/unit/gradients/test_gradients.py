"""Gradients and optimizers: what is compared between ranks, and what excuses them."""

from dataclasses import replace

import pytest

from distdoctor.analysis.gradients.gradient_ratios import wrong_ratios
from distdoctor.analysis.gradients.used_gradients import apart, chapters
from distdoctor.analysis.optimizer_step.held_parameters import missed
from distdoctor.catalogue import every_check
from distdoctor.examination.examining import verdict
from distdoctor.model.drawing import sketch
from distdoctor.model.findings import Severity, Sick
from distdoctor.model.run import Run


def drawn(*ranks: str) -> Run:
    return sketch("\n".join(f"rank {n} | {words}" for n, words in enumerate(ranks)))


def steps(
    own: int, *, holds: str = "names=w,sizes=4,divided", more: str = "", last: str = ""
) -> str:
    """A rank that steps three times with its own gradients, and drifts."""
    return f"holds({holds})  " + "  ".join(
        f"gradients(step={n},prints={10 * own + n},weights={7 if n == 1 else own},"
        f"passes=1,moved=2{more}{last if n == 3 else ''})"
        for n in (1, 2, 3)
    )


def codes(run: Run) -> list[str]:
    return [c.code for c in every_check() if isinstance(verdict(run, c), Sick)]


def test_ranks_that_step_with_their_own_gradients_drift_apart() -> None:
    assert codes(drawn(steps(1), steps(2), steps(3))) == ["DD404"]


def test_gradients_that_a_step_read_too_early_are_another_disease() -> None:
    overtaken = "stepped=t.py:7@t.py:9  " + steps(2)
    assert codes(drawn(steps(1), overtaken, steps(3))) == ["DD113"]


def test_the_line_of_a_bypass_is_named_first() -> None:
    holds = "names=w,sizes=4,averaged=0"
    rank = "wrap=ddp:w@t.py:3  bypassed@t.py:6  backward@t.py:7  {}"
    run = drawn(*(rank.format(steps(n, holds=holds)) for n in (1, 2)))
    (check,) = [c for c in every_check() if c.code == "DD404"]
    found = verdict(run, check)
    assert isinstance(found, Sick)
    lines = [location.place.line for location in found.findings[0].locations]
    assert lines == [6, 7, 3]


@pytest.mark.parametrize(
    "more",
    [",mixed=4", ",unclear=17", ",most=8", ",local", ",settings"],
    ids=["weights", "activations", "now and then", "no_sync", "search"],
)
def test_ranks_that_share_the_work_in_another_way_are_not_accused(more: str) -> None:
    ranks = [
        steps(n, holds=f"names=w,sizes=4,divided,settings={n}")
        if more == ",settings"
        else steps(n, more=more)
        for n in (1, 2)
    ]
    assert codes(drawn(*ranks)) == []


def test_weights_that_become_equal_again_are_no_drift() -> None:
    later = (
        "  gradients(step=4,prints={0}4,weights=5,passes=1)"
        "  gradients(step=8,prints={0}5,weights={0},passes=1)"
    )
    assert not apart(drawn(*(steps(n) + later.format(n) for n in (1, 2))))


def test_an_ensemble_begins_with_other_weights() -> None:
    ranks = [
        steps(n, holds="names=w,sizes=4").replace("weights=7", f"weights={n}")
        for n in (1, 2)
    ]
    assert codes(drawn(*ranks)) == []


def test_parts_of_sharded_tensors_are_not_compared() -> None:
    ranks = [steps(n, holds="names=w,sizes=4,sharded") for n in (1, 2)]
    assert not chapters(drawn(*ranks))


def test_what_an_optimizer_was_given_later_is_compared_by_itself() -> None:
    """DD406 of two parameters that came in when the others had been averaged."""
    rank = (
        "wrap=ddp:b  holds(names=b,sizes=4,averaged=0)  "
        "gradients(step=1,prints=5,weights=7,passes=1,reduced=4)  "
        "holds(names=b+h,sizes=4+4,averaged=0,late=1)  "
        "gradients(step=2,prints=5+{0}1,weights=8+7,passes=1,reduced=4)  "
        "gradients(step=3,prints=6+{0}2,weights=9+{0},passes=1,reduced=4)"
    )
    assert codes(drawn(rank.format(1), rank.format(2))) == ["DD406"]


RATIO = "holds(names=w,sizes=4{})  gradients(step=2,passes={},{},rate={},probed=0-2,{})"


def of_ratio(
    *,
    used: str = "3+5+7",
    factor: str = "factor=1",
    passes: int = 1,
    rate: str = ".05",
    holds: str = "",
) -> Run:
    own = ["own=1+2+3", "own=2+3+4"]
    return drawn(
        *(
            RATIO.format(holds, passes, factor, rate, f"{one},used={used}")
            for one in own
        )
    )


@pytest.mark.parametrize("used", ["3+5+7", "0.75+1.25+1.75"])
def test_a_constant_ratio_of_the_ranks_is_told(used: str) -> None:
    assert codes(of_ratio(used=used)) == ["DD405"]


@pytest.mark.parametrize(
    "run",
    [
        of_ratio(used="1.5+2.5+3.5"),
        of_ratio(used="3+5+6"),
        of_ratio(factor="factor=.5"),
        of_ratio(factor="factor=0"),
        of_ratio(factor="factor=.5", passes=2),
    ],
    ids=["mean", "clipped", "divided", "no mean", "passes"],
)
def test_what_may_be_meant_so_is_not_told(run: Run) -> None:
    assert not wrong_ratios(run)


def test_an_accumulated_loss_is_a_plain_mean() -> None:
    assert wrong_ratios(of_ratio(factor="factor=.25", passes=4))


def test_as_many_passes_as_ranks_excuse_no_undivided_loss() -> None:
    assert wrong_ratios(of_ratio(passes=2))


@pytest.mark.parametrize(
    ("factor", "source", "is_reported"),
    [
        (6.3, "loss = 0.7 * 9 * kd\nloss.backward()", True),
        (6.3, "", False),  # what makes the factor is not known
        (6.3, "loss = kd * world_size\nloss.backward()", False),
        (6.3, "loss = kd * world_size\nscaler.scale(loss).backward()", False),
        (2.0, "loss = 2 * kd\nloss.backward()", False),  # as many as the ranks
    ],
)
def test_the_weight_of_a_loss_excuses_no_ratio(
    factor: float, source: str, is_reported: bool
) -> None:
    run = of_ratio(used="0.75+1.25+1.75", factor=f"factor={factor}")
    run = replace(run, sources={"t.py": source} if source else {})
    assert bool(wrong_ratios(run)) == is_reported


@pytest.mark.parametrize(
    ("third", "is_reported"), [("1.75", True), ("1.72", True), ("1.7", False)]
)
def test_a_ratio_of_several_may_be_rounded_twice(third: str, is_reported: bool) -> None:
    ranks = []
    for own in ("own=1+2+3", "own=2+3+4"):
        at = "  gradients(step={},passes=1,factor=1,probed=0-2,{},used=.75+1.25+{})"
        looks = ((2, "1.75"), (3, "1.75"), (4, third))
        more = "".join(at.format(step, own, used) for step, used in looks)
        ranks.append(f"holds(names=w,sizes=4){more}")
    assert bool(wrong_ratios(drawn(*ranks))) == is_reported


@pytest.mark.parametrize(
    ("batches", "source", "is_reported"),
    [
        (2, "loss = loss / 2", True),
        (2, "loss = loss / world_size\nloss.backward()", False),
        (1, "loss = loss / 2", False),  # several losses on one batch
    ],
)
def test_as_many_batches_as_ranks_are_told_from_ranks(
    batches: int, source: str, is_reported: bool
) -> None:
    more = f"  cycle(words=2:backward+step,batches={batches},more=3)"
    ranks = [
        RATIO.format("", 2, "factor=.5", ".05", f"{own},used=3+5+7") + more
        for own in ("own=1+2+3", "own=2+3+4")
    ]
    run = replace(drawn(*ranks), sources={"t.py": source})
    assert bool(wrong_ratios(run)) == is_reported


def test_a_rate_whose_digits_tell_of_a_division_is_a_warning() -> None:
    (check,) = [c for c in every_check() if c.code == "DD405"]
    found = verdict(of_ratio(rate=".00125"), check)
    assert isinstance(found, Sick)
    assert found.severity_of(found.findings[0]) is Severity.WARNING


@pytest.mark.parametrize(
    "source",
    [
        "lr = 0.1 / dist.get_world_size()",
        "n = int(os.environ['WORLD_SIZE'])\nSGD(model.parameters(), lr=0.1 / n)",
        "world = hvd.size()\nscale = 1.0 / world\nrate = 0.1 * scale\n"
        "optimizer = optim.SGD(net.parameters(), rate)",
        "cfg.replicas = world_size\n"
        "def scaled(cfg):\n    return cfg.base / cfg.replicas\n"
        "opt = Adam(p, lr=scaled(cfg))",
        "def make(net, peak):\n    return SGD(net.parameters(), lr=peak)\n"
        "make(net, 0.1 / world_size)",
        "for group in opt.param_groups:\n    group['lr'] /= world_size",
        "lr = torch.tensor(0.1).div(world_size).item()",
        "lr = 0.1 * world_size ** -1",
    ],
)
def test_a_rate_divided_by_the_ranks_makes_up_for_a_sum(source: str) -> None:
    assert not wrong_ratios(replace(of_ratio(), sources={"t.py": source}))


@pytest.mark.parametrize(
    "source",
    [
        "lr = 0.1 * world_size\nprint(total / world_size)",
        "sampler = DistributedSampler(data, num_replicas=world_size)\n"
        "loader = DataLoader(data, sampler=sampler)\nlr = 0.1 / len(loader)",
        "per_rank = batch // world_size\nSGD(p, lr=0.1)",
        "loss = loss / world_size\nSGD(p, lr=0.1)",
        "broken(",
    ],
)
def test_other_divisions_make_up_for_nothing(source: str) -> None:
    assert wrong_ratios(replace(of_ratio(), sources={"t.py": source}))


def test_an_optimizer_that_feels_no_factor_is_a_warning() -> None:
    (check,) = [c for c in every_check() if c.code == "DD405"]
    found = verdict(of_ratio(holds=",adaptive,kind=Adam"), check)
    assert isinstance(found, Sick)
    assert found.severity_of(found.findings[0]) is Severity.WARNING


def test_a_layer_left_out_without_more_is_a_warning() -> None:
    run = drawn("holds(names=a,sizes=4)@t.py:5  forgotten(names=b,step=8)")
    (check,) = [c for c in every_check() if c.code == "DD407"]
    found = verdict(run, check)
    assert isinstance(found, Sick)
    assert found.severity_of(found.findings[0]) is Severity.WARNING


def test_a_part_without_gradients_is_no_proof_if_a_model_holds_it() -> None:
    run = drawn(
        "holds(names=a+pooler,sizes=4+4)  gradients(step=1,prints=1+0,weights=7+7)  "
        "gradients(step=2,prints=2+0,weights=8+7)  forgotten(names=b,step=8)"
    )
    (one,) = missed(run, 0)
    assert one.idle is None


def test_rounds_that_each_make_an_optimizer_may_begin_alike_again() -> None:
    def round_of(own: int) -> str:
        return "  holds(optimizer=1,names=w,sizes=4,divided)  " + "  ".join(
            f"gradients(optimizer=1,step={n},prints={own}{n},passes=1,moved=2,"
            f"weights={9 if n == 1 else own})"
            for n in (1, 2, 3)
        )

    ranks = [steps(own) + round_of(own) for own in (5, 6)]
    assert codes(drawn(*(f"{rank}  broadcast(4)" for rank in ranks))) == []
    assert codes(drawn(*ranks)) == ["DD404"]


@pytest.mark.parametrize(
    ("end", "found"),
    [
        ("all_reduce(4)", []),
        ("gather(4,root=0)", []),
        ("all_reduce(2)", ["DD404"]),
        ("all_gather(400)", ["DD404"]),
    ],
)
def test_weights_may_be_averaged_once_at_the_end(end: str, found: list[str]) -> None:
    assert codes(drawn(*(f"{steps(n)}  {end}" for n in (1, 2)))) == found


def test_experts_that_some_ranks_share_are_averaged_by_somebody() -> None:
    assert codes(drawn(steps(1), steps(1), steps(2))) == []
