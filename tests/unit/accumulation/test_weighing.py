"""What batches weigh in a step: what the probe tells, and what excuses it."""

from collections.abc import Sequence
from dataclasses import replace
from types import SimpleNamespace

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812 - as everybody calls it

from distdoctor.analysis.accumulation.unequal_weights import undivided
from distdoctor.catalogue import every_check
from distdoctor.examination.examining import verdict
from distdoctor.model.drawing import sketch
from distdoctor.model.events import Observation
from distdoctor.model.findings import Finding, Severity, Sick
from distdoctor.model.observations.gradients import Weighed
from distdoctor.probes.accumulation.microbatch_weighting import Weighing
from distdoctor.probes.data.samples import SAMPLES
from distdoctor.probes.optimizer_step import optimizers
from distdoctor.probes.recorder import RECORDER

PADDING = -100


class Job:
    """A rank that trains, and calls the probe as hooks do."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.observed: list[Weighed] = []
        monkeypatch.setattr(RECORDER, "observe", self.observe)
        self.weighing = Weighing()
        self.model = nn.Linear(3, 2)
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.01)
        self.known = optimizers.Optimizer(self.optimizer, 0, "")
        monkeypatch.setattr(optimizers, "every", lambda: [self.known])
        monkeypatch.setattr(optimizers, "of", lambda _: self.known)
        monkeypatch.setattr(optimizers, "wrappers", list)
        part = SimpleNamespace(number=0)
        self.read = SimpleNamespace(begun=True, part=part, given=0)
        monkeypatch.setattr(SAMPLES, "latest", self.read)

    def observe(self, one: Observation, _site: str = "") -> None:
        """Probes that an earlier test has put in place may tell, too."""
        if isinstance(one, Weighed):
            self.observed.append(one)

    def backward(self, loss: Tensor, unit: float = 1.0) -> None:
        """Run backward."""
        gradient = torch.tensor(unit)
        self.weighing.begin(loss, gradient)
        loss.backward(gradient)
        self.weighing.passed(False, False)

    def loss(self, labels: Sequence[int]) -> Tensor:
        """Of a batch with these labels."""
        return F.cross_entropy(self.model(torch.ones(len(labels), 3)), tensor(labels))

    def batch(self, labels: Sequence[int], divisor: float = 1.0) -> None:
        """Run backward on the next batch of the loader."""
        self.read.given += 1
        self.backward(self.loss(labels) / divisor)

    def step(self) -> None:
        """Step, and clear."""
        self.weighing.stepping(self.optimizer, self.known, False)
        self.optimizer.step()
        self.optimizer.zero_grad()
        self.weighing.cleared(self.optimizer, None)


def tensor(labels: Sequence[int]) -> Tensor:
    return torch.tensor(labels)


@pytest.fixture
def job(monkeypatch: pytest.MonkeyPatch) -> Job:
    return Job(monkeypatch)


# --- the probe ---


def test_a_step_for_each_batch_is_not_worth_a_word(job: Job) -> None:
    for _ in range(5):
        job.batch([0, 1])
        job.step()
    assert job.observed == []


def test_windows_are_told_with_factors_and_counts(job: Job) -> None:
    for _ in range(6):
        job.batch([0, 1], 2)
        job.batch([0, 1, 1, PADDING], 2)
        job.step()
    assert [one.window for one in job.observed] == [1, 2, 3, 4]
    assert {one.batches for one in job.observed} == {2}
    assert {one.factors for one in job.observed} == {(0.5, 0.5)}
    assert {one.counts for one in job.observed} == {(2.0, 3.0)}
    assert all(one.own == one.used != 0.0 for one in job.observed)


def test_what_is_done_to_gradients_before_the_step_is_seen(job: Job) -> None:
    job.batch([0, 0])
    job.batch([0, 1])
    for parameter in job.model.parameters():
        assert parameter.grad is not None
        parameter.grad.div_(2)
    job.step()
    (one,) = job.observed
    assert one.used == pytest.approx(one.own / 2)


def test_the_scale_of_a_scaler_is_left_out(job: Job) -> None:
    scaler = torch.amp.GradScaler("cpu", init_scale=1024.0)
    for _ in range(2):
        job.read.given += 1
        loss = job.loss([0, 0, 1])
        scaled = scaler.scale(loss)
        job.weighing.scaled(scaler, loss, scaled)
        job.backward(scaled)
    scaler.unscale_(job.optimizer)
    job.step()
    (one,) = job.observed
    assert one.factors == (1.0, 1.0)
    assert one.used == pytest.approx(one.own)


def test_a_gradient_that_is_given_to_backward_is_a_factor_that_is_not_known(
    job: Job,
) -> None:
    for _ in range(2):
        job.read.given += 1
        job.backward(job.loss([0, 1, 1]), 0.5)
    job.step()
    assert [one.factors for one in job.observed] == [(0.0, 0.0)]


def test_two_losses_on_one_batch_are_no_two_batches(job: Job) -> None:
    for _ in range(3):
        job.read.given += 1
        for _ in range(2):
            job.backward(job.loss([0, 1, 1]))
        job.step()
    assert job.observed == []


def test_parts_of_one_batch_are_told_by_their_labels(job: Job) -> None:
    labels = tensor([0, 1, 1, 1, 0, 0])
    job.read.given += 1
    for part in labels.chunk(3):
        output = job.model(torch.ones(len(part), 3))
        job.backward(F.cross_entropy(output, part))
    job.step()
    assert [(one.batches, one.parts) for one in job.observed] == [(3, True)]


@pytest.mark.parametrize(
    ("given", "labels", "batches"),
    [
        (0, [[0, 1, 1], [1, 0, 1], [1, 1, 0]], [3]),
        (9, [[0, 1, 1], [1, 0, 1], [1, 1, 0]], [3]),
        (1, [[0, 1, 1], [1, 0, 1], [1, 1, 0]], []),
        (0, [[1, 1, 1], [0, 0, 0]], []),
        (0, [[0, 1, 1], [0, 1, 1]], []),
    ],
    ids=["by hand", "fetched before", "of one batch", "an adversary", "the same"],
)
def test_batches_without_a_loader_are_told_by_their_labels(
    job: Job, given: int, labels: list[list[int]], batches: list[int]
) -> None:
    job.read.given += given
    for of_one in labels:
        job.backward(job.loss(of_one))
    job.step()
    assert [one.batches for one in job.observed] == batches


def test_batches_that_were_fetched_for_a_window_are_counted(job: Job) -> None:
    for _ in range(3):
        job.read.given += 2
        for _ in range(2):
            job.backward(job.loss([0, 1]))
        job.step()
    assert [one.batches for one in job.observed] == [2, 2]


def test_losses_at_two_lines_without_a_loader_are_not_taken_for_batches(
    job: Job,
) -> None:
    job.backward(job.loss([0, 1, 1]))
    job.backward(job.loss([1, 1, 0]))
    job.step()
    assert job.observed == []


def test_two_loaders_that_take_turns_are_not_taken_for_batches(job: Job) -> None:
    for _ in range(2):
        for number in range(2):
            job.read.part = SimpleNamespace(number=number)
            job.batch([0, 1])
        job.step()
    assert job.observed == []


def test_gradients_that_are_cleared_in_between_are_not_accumulated(job: Job) -> None:
    for how in (True, False):
        job.batch([0, 1])
        job.model.zero_grad(set_to_none=how)
        job.batch([0, 1])
        job.step()
    assert job.observed == []


def test_a_hook_that_may_divide_is_not_told_of(job: Job) -> None:
    for parameter in job.model.parameters():
        parameter.register_hook(lambda gradient: gradient / 2)
    job.batch([0, 1, 1])
    job.batch([0, 1, 1])
    job.step()
    assert job.observed == []


def test_our_own_hooks_divide_nothing(job: Job) -> None:
    def look(gradient: Tensor) -> None:
        del gradient

    look.__module__ = "distdoctor.probes.gradients.gradient_samples"
    for parameter in job.model.parameters():
        parameter.register_hook(look)
    job.batch([0, 1, 1])
    job.batch([0, 1, 1])
    job.step()
    assert len(job.observed) == 1


def test_sparse_gradients_are_left_alone(job: Job) -> None:
    job.model = nn.Embedding(4, 2, sparse=True)  # type: ignore[assignment]
    job.optimizer.param_groups.clear()
    job.optimizer.add_param_group({"params": list(job.model.parameters())})
    for _ in range(2):
        job.read.given += 1
        output = job.model(tensor([0, 1]))
        job.backward(F.cross_entropy(output, tensor([0, 1])))
    job.step()
    assert job.observed == []


# --- the check ---

LOOK = "weighed(window={n},batches={batches},{what})@t.py:9 "


def found_by(*what: str, batches: int = 2) -> Finding | None:
    (check,) = [one for one in every_check() if one.code == "DD501"]
    looks = "".join(
        LOOK.format(n=n, batches=batches, what=one) for n, one in enumerate(what, 1)
    )
    run = sketch(f"rank 0 | {looks} exit=0\nrank 1 | {looks} exit=0")
    sick = verdict(run, check)
    return sick.findings[0] if isinstance(sick, Sick) else None


SUM = "factors=1+1,own=2,used=2"


def test_a_sum_of_means_is_named_with_its_factor() -> None:
    found = found_by(SUM, SUM)
    assert found is not None
    assert "gradients are 2 times those of the mean" in found.message
    assert found.severity is None


@pytest.mark.parametrize(
    ("source", "is_reported"),
    [
        ("opt = SGD(net.parameters(), lr=0.1 / args.accum_steps)", False),
        ("n = cfg.grad_accumulation\nlr = base / n\nAdam(p, lr=lr)", False),
        ("opt = SGD(net.parameters(), lr=0.1)\nmean = total / accum", True),
    ],
)
def test_a_rate_that_is_divided_by_the_batches_makes_up_for_their_sum(
    source: str, is_reported: bool
) -> None:
    looks = "".join(LOOK.format(n=n, batches=2, what=SUM) for n in (1, 2))
    drawing = f"rank 0 | {looks} exit=0\nrank 1 | {looks} exit=0"
    run = replace(sketch(drawing), sources={"t.py": source})
    assert bool(undivided(run)) is is_reported


def test_gradients_that_are_clipped_now_and_then_are_the_sum_all_the_same() -> None:
    found = found_by(SUM, SUM.replace("used=2", "used=.7"))
    assert found is not None
    assert found.severity is None


def test_gradients_that_are_clipped_to_little_more_than_the_mean_are_no_error() -> None:
    clipped = [SUM.replace("used=2", f"used={used}") for used in (0.3, 1.2)]
    much = [SUM.replace("used=2", f"used={used}") for used in (1.6, 1.8)]
    found = found_by(*clipped)
    assert found is not None
    assert found.severity is Severity.WARNING
    found = found_by(*much)
    assert found is not None
    assert found.severity is None
    assert "to 1.7 times those in the middle" in found.message


def test_a_sum_that_is_once_clipped_to_the_size_of_a_mean_is_told() -> None:
    clipped = [SUM.replace("used=2", f"used={used}") for used in (1.0, 1.2, 1.3)]
    assert found_by(*clipped) is not None


@pytest.mark.parametrize(
    "what",
    [
        [SUM],
        [SUM, "factors=.5+.5,own=2,used=2"],
        [SUM, "factors=1+0,own=2,used=2"],
        [SUM + ",constants=.5"] * 2,
        [SUM + ",constants=2"] * 2,
        [SUM.replace("used=2", "used=1")] * 2,
        [SUM.replace("used=2", "used=.1")] * 2,
        [SUM.replace("used=2", "used=.1"), SUM.replace("used=2", "used=.9")],
        [SUM.replace("used=2", "used=8")] * 2,
        [SUM.replace("used=2", "used=-1")] * 2,
        [SUM.replace("own=2", "own=0")] * 2,
    ],
    ids=[
        "once",
        "one divided",
        "not known",
        "something is divided",
        "something is multiplied",
        "divided afterwards",
        "by a constant",
        "divided and clipped",
        "larger",
        "turned",
        "nothing there",
    ],
)
def test_a_sum_that_may_be_meant_is_not_accused(what: list[str]) -> None:
    assert found_by(*what) is None


@pytest.mark.parametrize("of_each", [0.5, 0.25, 2.0])
def test_squared_errors_may_be_halved_and_no_more(of_each: float) -> None:
    look = f"factors={of_each}+{of_each}+{of_each},constants={of_each},own=2,used=2"
    found = found_by(*[look] * 2, batches=3)
    assert (found is not None) == (of_each == 0.5)


def test_a_constant_on_the_way_that_is_no_divisor_excuses_nothing() -> None:
    assert found_by(*[SUM + ",constants=.01"] * 2) is not None


def test_ranks_that_average_behind_backward_are_compared_with_their_mean() -> None:
    looks = [
        "".join(
            f"weighed(window={n},batches=2,factors=1+1,own={own},used=3)@t.py:9 "
            for n in (1, 2)
        )
        for own in (2, 4)
    ]
    run = sketch("\n".join(f"rank {n} | {one} exit=0" for n, one in enumerate(looks)))
    ((one, other),) = undivided(run)
    assert (one.rank, other.rank, one.batches, one.smaller) == (0, 1, 2, False)


@pytest.mark.parametrize(("used", "is_reported"), [(2, False), (8, True)])
def test_a_division_by_the_ranks_is_one_where_they_sum_up_gradients(
    used: float, is_reported: bool
) -> None:
    """Else a fourth, of four ranks, may be that of windows of four batches."""
    looks = "".join(
        f"weighed(window={n},batches=3,factors=.25+.25+.25,own=2,used={used})@t.py:9 "
        for n in (1, 2)
    )
    run = sketch("\n".join(f"rank {n} | {looks} exit=0" for n in range(4)))
    assert bool(undivided(run)) == is_reported
