"""Schedulers: what the probe counts, and when that is not what they were made for."""

import functools
import math
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn
from torch.optim import Optimizer, lr_scheduler

from distdoctor.analysis.learning_rate.schedules import (
    Misstep,
    ScheduleFault,
    given_metrics,
    misstep,
    missteps,
    rate_details,
    sparkline,
    unequally_asked,
)
from distdoctor.catalogue import every_check
from distdoctor.examination.examining import verdict
from distdoctor.model.drawing import sketch
from distdoctor.model.events import Place
from distdoctor.model.findings import Sick
from distdoctor.model.observations.checkpoints import Scheduled
from distdoctor.model.observations.data import Read
from distdoctor.model.observations.learning_rate import RateCourse, Schedule
from distdoctor.model.run import Run
from distdoctor.probes.accumulation.accumulation_windows import WINDOWS
from distdoctor.probes.learning_rate import schedulers
from distdoctor.probes.learning_rate.rising_rates import Rates
from distdoctor.probes.learning_rate.schedulers import Schedules
from distdoctor.probes.recorder import RECORDER
from distdoctor.report.page import spelled

pytestmark = pytest.mark.filterwarnings("ignore:Detected call of")

STEPS, WINDOW = 20, 4


class Job:
    """A rank that trains, and calls the probe as hooks do."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.observed: list[Any] = []
        monkeypatch.setattr(
            RECORDER, "observe", lambda one, _site="": self.observed.append(one)
        )
        self.rates = Rates()
        monkeypatch.setattr(schedulers, "RATES", self.rates)
        monkeypatch.setattr(WINDOWS, "attempts", 0)
        self.schedules = Schedules()
        self.rates.on_first.append(self.schedules.stepped)
        self.optimizer = torch.optim.SGD(nn.Linear(2, 1).parameters(), lr=0.1)

    def step(self) -> None:
        """Make a step."""
        self.optimizer.step()
        self.rates.stepped(self.optimizer)

    def ask(self, scheduler: Any) -> None:
        """Ask a scheduler for the next rate."""
        self.schedules.known(scheduler)
        scheduler.step()
        self.schedules.asked(scheduler, given=False)

    def train(self, scheduler: Any, window: int = WINDOW, steps: int = STEPS) -> None:
        """Ask the scheduler for each batch, and step for each window."""
        for batch in range(1, steps * window + 1):
            if batch % window == 0:
                self.step()
            self.ask(scheduler)

    def schedule(self) -> Schedule:
        """What is told of the only scheduler."""
        self.rates.flush()
        self.schedules.flush()
        (observed,) = [one for one in self.observed if isinstance(one, Schedule)]
        return observed


@pytest.fixture
def job(monkeypatch: pytest.MonkeyPatch) -> Job:
    return Job(monkeypatch)


def fault_of(schedule: Schedule) -> ScheduleFault | None:
    found = misstep(Run.of_events({0: [schedule]}), schedule)
    return None if found is None else found.fault


def falling(total: int) -> Callable[[int], float]:
    """A line down."""
    return lambda step: max(0.0, 1.0 - step / total)


def half_wave(step: int, total: int) -> float:
    """Down, and up again behind it, as that of well-known libraries."""
    return max(0.0, 0.5 * (1.0 + math.cos(math.pi * step / total)))


class Planned:
    """A job as a class, whose method is the schedule."""

    def __init__(self, total: int) -> None:
        self.total = total

    def share(self, step: int) -> float:
        """Of the highest rate."""
        return max(0.0, 1.0 - step / self.total)


class OwnScheduler(lr_scheduler.LRScheduler):
    """Written by the user."""

    def __init__(self, optimizer: Optimizer, total: int) -> None:
        self.total = total
        super().__init__(optimizer)

    def get_lr(self) -> list[float | torch.Tensor]:
        """Along a line."""
        left = max(0.0, 1.0 - self.last_epoch / self.total)
        return [rate * left for rate in self.base_lrs]


MAKERS: dict[str, Callable[[Optimizer, int], Any]] = {
    "closure": lambda one, n: lr_scheduler.LambdaLR(one, falling(n)),
    "partial": lambda one, n: lr_scheduler.LambdaLR(
        one, functools.partial(half_wave, total=n)
    ),
    "method": lambda one, n: lr_scheduler.LambdaLR(one, Planned(n).share),
    "cosine": lr_scheduler.CosineAnnealingLR,
    "polynomial": lr_scheduler.PolynomialLR,
    "linear": lambda one, n: lr_scheduler.LinearLR(one, 1.0, 0.01, n),
    "own": OwnScheduler,
    "sequence": lambda one, n: lr_scheduler.SequentialLR(
        one,
        [
            lr_scheduler.LinearLR(one, 0.1, total_iters=4),
            lr_scheduler.CosineAnnealingLR(one, n - 4),
        ],
        milestones=[4],
    ),
}


# --- the probe and what is made of it ---


@pytest.mark.parametrize("name", MAKERS)
def test_a_schedule_for_steps_is_not_for_micro_batches(name: str, job: Job) -> None:
    job.train(MAKERS[name](job.optimizer, STEPS))
    schedule = job.schedule()
    assert (schedule.calls, schedule.steps) == (STEPS * WINDOW, STEPS)
    assert fault_of(schedule) is ScheduleFault.MICRO_BATCHES


@pytest.mark.parametrize("name", MAKERS)
@pytest.mark.parametrize("window", [1, WINDOW])
def test_a_schedule_for_as_many_calls_as_are_made_is_well(
    name: str, window: int, job: Job
) -> None:
    job.train(MAKERS[name](job.optimizer, STEPS * window), window)
    assert fault_of(job.schedule()) is None


@pytest.mark.parametrize("name", MAKERS)
def test_its_length_or_its_numbers_are_known(name: str, job: Job) -> None:
    job.train(MAKERS[name](job.optimizer, 37))
    schedule = job.schedule()
    assert schedule.length == 37 or 37 in schedule.numbers


def test_schedulers_that_ask_each_other_are_not_counted(job: Job) -> None:
    inner = lr_scheduler.CosineAnnealingLR(job.optimizer, STEPS)
    outer = lr_scheduler.ChainedScheduler([inner])
    job.train(outer, window=1)
    schedule = job.schedule()
    assert (schedule.kind, schedule.calls, schedule.length) == (
        "ChainedScheduler",
        STEPS,
        STEPS,
    )


def test_a_call_that_names_the_epoch_is_not_counted(job: Job) -> None:
    scheduler = lr_scheduler.StepLR(job.optimizer, 2)
    job.step()
    job.schedules.asked(scheduler, given=True)
    assert job.schedule().calls == 0


def test_the_line_that_gives_a_metric_is_told_for_each_rank() -> None:
    drawing = "schedule(steps=9,kind=ReduceLROnPlateau)@t.py:7"
    run = sketch(f"rank 0 | {drawing}  exit=0\nrank 1 | {drawing}  exit=0")
    assert {rank: one.place for rank, one in given_metrics(run, 0, (0, 1)).items()} == {
        rank: Place("t.py", 7) for rank in (0, 1)
    }
    without = sketch(f"rank 0 | {drawing}  exit=0\nrank 1 | schedule(steps=9)  exit=0")
    assert given_metrics(without, 0, (0, 1)) == {}


def test_restarts_are_no_end(job: Job) -> None:
    job.train(lr_scheduler.CosineAnnealingWarmRestarts(job.optimizer, STEPS))
    schedule = job.schedule()
    assert (schedule.end, schedule.turned) == (0, False)
    assert fault_of(schedule) is None


def test_a_drop_is_no_slope(job: Job) -> None:
    job.train(lr_scheduler.StepLR(job.optimizer, STEPS))
    assert fault_of(job.schedule()) is None


def test_an_optimizer_that_is_gone_at_the_end_is_told_of(job: Job) -> None:
    job.train(MAKERS["closure"](job.optimizer, STEPS))
    del job.optimizer
    assert job.schedule().steps == STEPS


def test_what_was_told_is_told_again_only_if_it_changes(job: Job) -> None:
    scheduler = MAKERS["closure"](job.optimizer, STEPS)
    job.train(scheduler)
    for _ in range(2):
        job.rates.flush()
        job.schedules.flush()
    assert len(job.observed) == 2  # the course and the schedule
    job.step()
    job.ask(scheduler)
    job.rates.flush()
    job.schedules.flush()
    assert len(job.observed) == 4


def test_rates_in_tensors_are_left_alone(job: Job) -> None:
    job.optimizer.param_groups[0]["lr"] = torch.tensor(0.1)
    job.train(lr_scheduler.CosineAnnealingLR(job.optimizer, STEPS))
    job.rates.flush()
    job.schedules.flush()
    assert job.observed == []


# --- before the optimizer ---


def test_a_call_before_each_step_is_too_early(job: Job) -> None:
    scheduler = MAKERS["closure"](job.optimizer, STEPS)
    for _ in range(STEPS):
        job.ask(scheduler)
        job.step()
    schedule = job.schedule()
    assert fault_of(schedule) is ScheduleFault.EARLY
    assert schedule.begin == pytest.approx(0.1)
    assert schedule.second == pytest.approx(0.095)


@pytest.mark.parametrize(
    "excuse", ["another line", "a scaler", "another optimizer", "several"]
)
def test_a_first_call_may_come_early(excuse: str, job: Job) -> None:
    scheduler = MAKERS["closure"](job.optimizer, STEPS + 3)
    if excuse == "a scaler":
        WINDOWS.attempts += 1
    if excuse == "another optimizer":
        job.rates.stepped(torch.optim.SGD(nn.Linear(2, 1).parameters(), lr=0.1))
    if excuse in {"another line", "several"}:
        job.ask(scheduler)
    for number in range(STEPS):
        if excuse not in {"another line", "several"} or number:
            job.ask(scheduler)
        if excuse == "several" and number == 1:
            job.ask(scheduler)
        if excuse != "several" or number:
            job.step()
    job.schedules._kept[0].sites = ["a", "a" if excuse != "another line" else "b"]
    assert fault_of(job.schedule()) is None


def test_what_a_function_has_at_hand_is_no_length_of_its(job: Job) -> None:
    at_hand = Planned(STEPS)
    job.train(lr_scheduler.LambdaLR(job.optimizer, lambda n: 1 / (n + at_hand.total)))
    assert STEPS not in job.schedule().numbers


def test_half_of_a_rate_behind_half_of_the_calls_is_no_error(job: Job) -> None:
    course = lr_scheduler.LambdaLR(
        job.optimizer, lambda step: max(0.4, 1.0 - 0.6 * step / STEPS)
    )
    job.train(course, window=2)
    schedule = job.schedule()
    found = misstep(Run.of_events({0: [schedule]}), schedule)
    assert found is not None
    assert not found.grave


# --- epochs ---

EPOCHS = "".join(f" read(number={n},steps=12)@t.py:5" for n in range(5))


def faults(schedule: str, more: str = "") -> list[ScheduleFault]:
    run = sketch(f"rank 0 | {more} schedule({schedule}){EPOCHS} exit=0")
    return [found[0].fault for found in missteps(run)]


def test_a_length_in_epochs_is_not_for_batches() -> None:
    cosine = "length=5,calls=60,steps=60,highest=1,falls=5,end=5,turned"
    assert faults(cosine) == [ScheduleFault.BATCHES]
    assert faults(cosine.replace("length=5", "length=8")) == []
    assert faults(cosine, "shortened=12/90") == []
    assert faults(cosine.replace("calls=60", "calls=5")) == []


def test_a_rate_that_is_nothing_behind_as_many_batches_as_epochs() -> None:
    line = "calls=60,steps=60,highest=1,lowest=0,falls=5,end=5"
    assert faults(line) == [ScheduleFault.BATCHES]
    assert faults(line.replace("lowest=0,", "lowest=0.2,")) == []
    assert faults(line.replace("end=5", "end=9")) == []


def test_a_warm_up_as_long_as_there_are_epochs_is_well() -> None:
    assert faults("numbers=5,calls=60,steps=60,highest=1,lowest=1") == []


def test_a_length_in_steps_is_not_for_epochs() -> None:
    cycle = "length=60,calls=5,steps=60,highest=1"
    assert faults(cycle) == [ScheduleFault.EPOCHS]
    assert faults(cycle.replace("length=60", "length=100")) == []
    assert faults("numbers=6+60,calls=5,steps=60") == [ScheduleFault.EPOCHS]
    assert faults(cycle, "shortened=12/90") == []


@pytest.mark.parametrize(
    ("source", "sick"),
    [
        ("schedule = OneCycleLR(optimizer, 0.1, epochs * len(loader))", True),
        ("schedule = CosineAnnealingLR(optimizer, T_max=60)", False),
        ("schedule = CosineAnnealingLR(\n    optimizer,\n    60,\n)", False),
    ],
)
def test_a_length_that_is_written_may_be_as_many_by_chance(
    source: str, sick: bool
) -> None:
    run = sketch(
        "rank 0 | scheduled(kind=A)@t.py:1 "
        f"schedule(kind=A,length=60,calls=5,steps=60,highest=1){EPOCHS} exit=0"
    )
    assert bool(missteps(replace(run, sources={"t.py": source}))) is sick


# --- ranks ---


def test_a_scheduler_that_is_never_asked_is_told_of(job: Job) -> None:
    job.schedules.known(lr_scheduler.StepLR(job.optimizer, 3))
    for _ in range(STEPS):
        job.step()
    del job.optimizer
    schedule = job.schedule()
    assert (schedule.optimizer, schedule.calls, schedule.steps) == (0, 0, STEPS)


@pytest.mark.parametrize(
    ("other", "found"),
    [
        ("schedule(calls=0,steps=40)", True),
        ("schedule(calls=40,steps=40)", False),
        ("schedule(calls=20,steps=20)", False),
        ("schedule(calls=0,steps=40,optimizer=1)", False),
    ],
)
def test_ranks_that_ask_a_different_number_of_times(other: str, found: bool) -> None:
    run = sketch(f"rank 0 | schedule(calls=40,steps=40) exit=0\nrank 1 | {other}")
    asked = unequally_asked(run, 0, (0, 1))
    assert {rank: one.calls for rank, one in asked.items()} == (
        {0: 40, 1: 0} if found else {}
    )


# --- the picture ---


def test_a_long_course_is_told_in_few_values(job: Job) -> None:
    scheduler = lr_scheduler.CosineAnnealingLR(job.optimizer, 5_000)
    job.train(scheduler, window=1, steps=5_000)
    job.schedule()
    (course,) = [one for one in job.observed if isinstance(one, RateCourse)]
    assert (course.steps, len(course.rates) <= 128) == (5_000, True)
    assert course.rates[0] == course.highest == pytest.approx(0.1)
    for n, rate in enumerate(course.rates):
        share = half_wave(n * course.stride, 5_000)
        assert rate == pytest.approx(0.1 * share, abs=1e-6)


def test_a_course_is_drawn_with_its_figures() -> None:
    run = sketch(
        "rank 0 | rate_course(steps=9,stride=4,rates=.1+.2+0.0,highest=.2) exit=0"
    )
    assert rate_details(run, 0, 0)["picture"] == [
        "learning rate |▅█▁|",
        "steps 1 to 9: first 0.1, highest 0.2, last 0",
    ]
    assert rate_details(run, 0, 1) == {}


def test_a_jump_of_the_rate_is_drawn() -> None:
    (check,) = [one for one in every_check() if one.code == "DD533"]
    climb = "rate_rise(steps=3-9,rates=.2+.4+.6+.8+.27+.26+.25,until=9)@t.py:9"
    course = "rate_course(steps=9,stride=2,rates=.2+.2+.6+.27+.25,highest=.8,last=.25)"
    sick = verdict(sketch(f"rank 0 | {climb} {course} exit=0"), check)
    assert isinstance(sick, Sick)
    assert sick.findings[0].details["picture"] == [
        "learning rate |▃▃█▄▄|",
        "steps 1 to 9: first 0.2, highest 0.8, last 0.25",
    ]


@given(st.lists(st.floats(0, 1e9), max_size=200))
def test_any_course_can_be_drawn_and_spelled(rates: list[float]) -> None:
    drawn = sparkline(rates)
    assert len(drawn) == min(48, len(rates))
    assert len(spelled(drawn, "ascii")) == len(drawn)
    assert spelled(drawn, "utf-8") == drawn


# --- parts of schedules ---


def in_parts(job: Job, make: Callable[[Optimizer], Any], source: str) -> list[Misstep]:
    """What is found where a schedule is asked for each of 12 batches of an epoch."""
    job.train(make(job.optimizer), window=1, steps=48)
    line = Place("t.py", 1)
    made = Scheduled(rank=0, kind="CosineAnnealingLR", place=line)
    read = [Read(rank=0, number=n, steps=12, place=Place("t.py", 5)) for n in range(4)]
    schedule = replace(job.schedule(), rank=0)
    run = Run.of_events({0: [made, *read, schedule]}, sources={"t.py": source})
    found = misstep(run, schedule)
    return [] if found is None else [found]


def behind_a_warm_up(kind: Any, length: int, warm: int) -> Callable[[Optimizer], Any]:
    """Two schedules, one after the other."""
    return lambda optimizer: lr_scheduler.SequentialLR(
        optimizer,
        [
            lr_scheduler.LinearLR(optimizer, 0.1, total_iters=warm),
            kind(optimizer, length),
        ],
        [warm],
    )


COSINE = lr_scheduler.CosineAnnealingLR
RESTARTS = lr_scheduler.CosineAnnealingWarmRestarts


@pytest.mark.parametrize(
    ("make", "source", "grave"),
    [
        (behind_a_warm_up(COSINE, 4, 12), "COSINE(o, T_max=args.epochs)", True),
        (behind_a_warm_up(COSINE, 3, 1), "COSINE(o, args.epochs - args.warm)", True),
        (behind_a_warm_up(RESTARTS, 2, 4), "RESTARTS(o, T_0=epochs // 2)", True),
        (behind_a_warm_up(RESTARTS, 2, 4), "RESTARTS(o, T_0=2)", False),
        (lambda one: RESTARTS(one, 1, 2), "RESTARTS(o, args.epoch_cycle, 2)", True),
        (lambda one: RESTARTS(one, 3), "t = args.epochs; RESTARTS(o, t)", True),
    ],
)
def test_parts_that_were_made_for_epochs_begin_anew_for_batches(
    make: Callable[[Optimizer], Any], source: str, grave: bool, job: Job
) -> None:
    (found,) = in_parts(job, make, spelled_out(source))
    assert (found.fault, found.grave) == (ScheduleFault.BATCHES, grave)


@pytest.mark.parametrize(
    ("make", "source"),
    [
        (behind_a_warm_up(COSINE, 44, 4), "COSINE(o, epochs * len(loader) - 4)"),
        (behind_a_warm_up(RESTARTS, 12, 4), "RESTARTS(o, T_0=len(loader))"),
        (behind_a_warm_up(RESTARTS, 4, 4), "t = len(loader) // 3; RESTARTS(o, t)"),
        (behind_a_warm_up(RESTARTS, 4, 4), "RESTARTS(o, args.restart_steps)"),
        (behind_a_warm_up(RESTARTS, 8, 4), "RESTARTS(o, 8)"),
        (lambda one: RESTARTS(one, 3, 2), "RESTARTS(o, 3, T_mult=2)"),
    ],
)
def test_parts_that_were_made_for_batches_are_well(
    make: Callable[[Optimizer], Any], source: str, job: Job
) -> None:
    assert in_parts(job, make, spelled_out(source)) == []


def spelled_out(source: str) -> str:
    """The source with the names of torch's schedulers."""
    return source.replace("COSINE", COSINE.__name__).replace(
        "RESTARTS", RESTARTS.__name__
    )


def test_one_that_asks_others_counts_the_steps_since_they_were_made(job: Job) -> None:
    job.schedules.known(make := lr_scheduler.LinearLR(job.optimizer, 0.1))
    job.train(lr_scheduler.ChainedScheduler([make]), window=1, steps=9)
    job.schedules.flush()
    assert [one.steps for one in job.observed if isinstance(one, Schedule)] == [9, 9]


def test_the_line_that_made_a_part_is_told_first() -> None:
    (check,) = [one for one in every_check() if one.code == "DD532"]
    part = "scheduled(kind=Restarts)@t.py:3"
    schedule = "kind=Sequence,calls=60,steps=60,rises=15,parts=3+40,kinds=Restarts+Line"

    def lines(made: str) -> list[int]:
        drawing = f"{made} schedule({schedule})@t.py:9"
        sick = verdict(sketch(f"rank 0 | {drawing}{EPOCHS} exit=0"), check)
        assert isinstance(sick, Sick)
        return [one.place.line for one in sick.findings[0].locations]

    assert lines(f"{part} scheduled(kind=Line)@t.py:2") == [3, 9]
    assert lines(f"{part} scheduled(kind=Restarts)@t.py:4") == [9]  # one of two


# --- a part that is asked besides the whole ---


def asked_besides(job: Job, order: str, rounds: int = STEPS) -> list[Misstep]:
    """What is found where a warm-up ("w"), a wave ("c"), and both ("b") are asked.

    Args:
        job: That trains.
        order: Of these, and of the steps ("s"), in each round.
        rounds: That are made.
    """
    up = lr_scheduler.LinearLR(job.optimizer, 0.1, total_iters=2)
    wave = lr_scheduler.CosineAnnealingLR(job.optimizer, STEPS)
    both = lr_scheduler.SequentialLR(job.optimizer, [up, wave], [2])
    for one in (up, wave):
        job.schedules.known(one)
    asked = {"w": up, "c": wave, "b": both}
    for letter in order * rounds:
        job.step() if letter == "s" else job.ask(asked[letter])
    job.rates.flush()
    job.schedules.flush()
    schedules = [
        replace(one, rank=0) for one in job.observed if isinstance(one, Schedule)
    ]
    run = Run.of_events({0: schedules})
    return [found for (found,) in missteps(run)]


@pytest.mark.parametrize("order", ["sbc", "scb", "scbc"])
def test_a_part_that_is_asked_besides_the_whole_is_told(order: str, job: Job) -> None:
    (found,) = asked_besides(job, order)
    assert (found.fault, found.schedule.kind) == (
        ScheduleFault.TWICE,
        "CosineAnnealingLR",
    )
    assert STEPS - 1 <= found.schedule.twice <= STEPS


@pytest.mark.parametrize(
    "order",
    [
        "sb",
        "sbw",  # which has come to its end, but for the first steps
        "s" * 9 + "c" * 9 + "sb" * 9,  # one after the other
        "sb" * 9 + "c" * 9 + "sc" * 9,  # likewise, and once behind the same step
    ],
)
def test_a_part_that_is_asked_at_other_times_is_not(order: str, job: Job) -> None:
    rounds = STEPS if len(order) < 4 else 1
    assert asked_besides(job, order, rounds) == []


# --- the steps that one rank would make alone ---

ALONE = "length=24,calls={n},steps={n},highest=.1"
SHARE = "read(number={n},steps={steps},length=96,batch=8{more})@t.py:5"


def of_shares(
    calls: int, steps: int, more: list[str], first: str = ""
) -> list[ScheduleFault]:
    """What is found for two ranks and two epochs, of a schedule 24 calls long."""
    lines = [
        f"rank {rank} | {first} schedule({ALONE.format(n=calls)}) "
        + " ".join(SHARE.format(n=n, steps=steps, more=more[rank]) for n in (0, 1))
        + " exit=0"
        for rank in (0, 1)
    ]
    return [found[0].fault for found in missteps(sketch("\n".join(lines)))]


def test_epochs_that_were_shortened_do_not_hide_it() -> None:
    sampled = [",replicas=2"] * 2
    early = "shortened=3/6@t.py:5"
    assert of_shares(8, 4, [",replicas=2,unfinished"] * 2) == []
    assert of_shares(6, 3, sampled, early) == [ScheduleFault.UNSHARDED]
    assert of_shares(6, 3, [",replicas=4"] * 2, early) == []


def test_a_part_that_the_job_took_of_the_dataset_is_a_share() -> None:
    parts = [",samples=0-47", ",samples=48-95"]
    assert of_shares(12, 6, parts) == [ScheduleFault.UNSHARDED]
    assert of_shares(12, 6, [",samples=0-90", ",samples=0-90"]) == []
