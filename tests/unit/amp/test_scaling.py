"""Scaled gradients: what the probes tell, and what is made of it."""

from collections.abc import Iterator
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.amp import GradScaler

from distdoctor.analysis.amp.scaler_faults import clips, reason
from distdoctor.catalogue import every_check
from distdoctor.examination.examining import verdict
from distdoctor.model.drawing import sketch
from distdoctor.model.events import Observation
from distdoctor.model.findings import Certainty, Finding, Severity, Sick
from distdoctor.model.observations.amp import (
    Handed,
    Limited,
    Overflow,
    Refused,
    Scaling,
)
from distdoctor.probes.accumulation import loss_terms
from distdoctor.probes.amp import grad_scalers
from distdoctor.probes.amp.scaled_gradients import Scalings, is_due, is_scaled
from distdoctor.probes.amp.skipped_steps import Rounds
from distdoctor.probes.gradients.clip_hooks import Clipping
from distdoctor.probes.optimizer_step import optimizers, step_protocol
from distdoctor.probes.recorder import RECORDER


class Job:
    """A rank that trains, and calls the probe as its hub does."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.observed: list[Observation] = []
        monkeypatch.setattr(RECORDER, "observe", self.observe)
        self.probe = Scalings()
        self.model = nn.Linear(2, 1, bias=False)
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.1)
        self.scaler = GradScaler("cpu", init_scale=64.0)
        self.words: list[str] = []
        cycles = [(self.optimizer, 0, self.words)]
        monkeypatch.setattr(step_protocol.PROTOCOL, "histories", lambda: cycles)
        known = SimpleNamespace(number=0)
        monkeypatch.setattr(optimizers, "of", lambda *_: known)

    def observe(self, one: Observation, _site: str = "") -> None:
        """Probes that an earlier test has put in place may tell, too."""
        if isinstance(one, (Scaling, Limited, Handed, Refused)):
            self.observed.append(one)

    def backward(self, gradient: float) -> None:
        """Fill gradients: both numbers are so large, without the scale."""
        self.words[:] = ["clear", "scaled"]
        loss = self.model(torch.full((1, 2), gradient)).sum()
        scaled = self.scaler.scale(loss)
        self.probe.scaled(self.scaler, loss, scaled)
        scaled.backward()

    def clip(self, name: str, limit: Any) -> None:
        """Clip, and step."""
        function = getattr(nn.utils, name)
        this = Clipping(list(self.model.parameters()), limit, "value" in name)
        self.probe.clipping(this)
        this.norm = function(this.parameters, limit)
        self.words.append("clip")
        self.probe.clipped(this)
        self.probe.tried(self.scaler, self.optimizer)

    def clips(self) -> list[tuple[str, float, float]]:
        """What is told of clips; norms to two digits."""
        return [
            (one.how, one.limit, round(one.found, 2))
            for one in self.observed
            if isinstance(one, Limited)
        ]


@pytest.fixture
def job(monkeypatch: pytest.MonkeyPatch) -> Job:
    return Job(monkeypatch)


# --- the probe ---


def test_a_clip_of_scaled_gradients_is_told_with_its_numbers(job: Job) -> None:
    for _ in range(3):
        job.backward(1.0)
        job.clip("clip_grad_norm_", 1.0)
    assert job.clips() == [("norm", 1.0, 90.51)]
    assert job.observed[0] == Scaling(rank=-1, kind="GradScaler", scale=64.0)


def test_a_clip_of_values_is_told_with_the_largest(job: Job) -> None:
    job.backward(-2.0)
    job.clip("clip_grad_value_", 0.5)
    assert job.clips() == [("value", 0.5, 128.0)]


def test_a_clip_to_infinity_asks_for_the_norm(job: Job) -> None:
    job.backward(1.0)
    job.clip("clip_grad_norm_", float("inf"))
    assert job.clips() == []


def test_a_clip_behind_unscale_is_not_told(job: Job) -> None:
    job.backward(1.0)
    job.words.append("unscale")
    job.clip("clip_grad_norm_", 1.0)
    assert job.clips() == []


@pytest.mark.parametrize(
    ("words", "scaled"),
    [
        ("clear scaled", True),
        ("scaled scaled/local", True),
        ("scaled exchange changed clip", True),
        ("scaled unscale", False),
        ("scaled divided clip", False),
        ("scaled drop", False),
        ("backward clip", False),
        ("", False),
    ],
)
def test_words_tell_whether_gradients_are_scaled(words: str, scaled: bool) -> None:
    assert is_scaled(words.split()) is scaled


def test_what_happens_often_is_looked_at_now_and_then() -> None:
    assert [n for n in range(1, 40) if is_due(n)] == [*range(1, 9), 16, 32]


def test_gradients_that_were_changed_are_told_with_their_size(job: Job) -> None:
    job.backward(1.0)
    job.words.append("changed")
    job.probe.trying(job.scaler, job.optimizer)
    (handed,) = [one for one in job.observed if isinstance(one, Handed)]
    assert handed.norm == pytest.approx(64 * 2**0.5)
    assert (handed.largest, handed.scale) == (64.0, 64.0)


def test_gradients_that_nobody_changed_are_not_looked_at(job: Job) -> None:
    job.backward(1.0)
    job.probe.trying(job.scaler, job.optimizer)
    assert not any(isinstance(one, Handed) for one in job.observed)


def messages() -> Iterator[tuple[str, str]]:
    """What torch says, as it is installed, when a scaler is called out of turn."""
    model = nn.Linear(1, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

    def scaled() -> GradScaler:
        scaler = GradScaler("cpu")
        scaler.scale(model(torch.ones(1, 1)).sum()).backward()
        return scaler

    scaler = scaled()
    scaler.unscale_(optimizer)
    yield "unscaled", error_of(lambda: scaler.unscale_(optimizer))
    scaler.step(optimizer)
    yield "stepped", error_of(lambda: scaler.step(optimizer))
    yield "stepped", error_of(lambda: scaler.unscale_(optimizer))
    yield "early", error_of(scaled().update)
    yield "unused", error_of(lambda: GradScaler("cpu").step(optimizer))
    empty = scaled()
    optimizer.zero_grad()
    yield "empty", error_of(lambda: empty.step(optimizer))


def error_of(call: Any) -> str:
    with pytest.raises((RuntimeError, AssertionError)) as caught:
        call()
    return str(caught.value)


def test_what_torch_says_is_understood(job: Job) -> None:
    expected = []
    for why, message in messages():
        job.probe.refused(job.scaler, job.optimizer, "step", message)
        expected.append(why)
    reasons = [one.why for one in job.observed if isinstance(one, Refused)]
    assert reasons == expected
    job.probe.refused(job.scaler, job.optimizer, "step", "something else")
    assert len(job.observed) == 1 + len(expected)


# --- what a loss was multiplied with ---


@pytest.mark.parametrize(
    ("made", "found"),
    [
        (lambda loss: loss, False),
        (lambda loss: loss * 64.0, True),
        (lambda loss: 64.0 * loss / 4, True),
        (lambda loss: loss * torch.tensor(64.0), True),
        (lambda loss: loss * 64.0 + loss, True),
        (lambda loss: loss * 2, False),
        (lambda loss: (loss * 64.0).exp(), False),
    ],
)
def test_a_loss_tells_what_it_was_multiplied_with(made: Any, found: bool) -> None:
    loss: Tensor = nn.Linear(2, 1)(torch.ones(1, 2)).pow(2).mean()
    assert loss_terms.is_multiplied(made(loss), {64.0}) is found


# --- whether the scale is saved ---


@pytest.fixture
def used(monkeypatch: pytest.MonkeyPatch) -> GradScaler:
    scaler = GradScaler("cpu", init_scale=64.0)
    scaler.scale(torch.ones(()))
    scaler.update(16.0)
    monkeypatch.setattr(grad_scalers, "_made", {scaler: 64.0})
    monkeypatch.setattr(grad_scalers, "_reported", [])
    return scaler


@pytest.mark.parametrize(
    "saved",
    [{"scale": 16.0}, {"a": {"b": [1, 16]}}, SimpleNamespace(scale=torch.tensor(16.0))],
)
@pytest.mark.usefixtures("used")
def test_a_number_that_is_the_scale_saves_it(saved: Any) -> None:
    assert grad_scalers.running(saved) == {}


@pytest.mark.parametrize(
    "saved",
    [{"epoch": 3}, {"optimizer": {"state": {}, "param_groups": [{"lr": 16.0}]}}],
)
@pytest.mark.usefixtures("used")
def test_a_scale_that_is_not_saved_is_told(saved: Any) -> None:
    assert grad_scalers.running(saved) == {"running_scale": 16.0, "first_scale": 64.0}


@pytest.mark.parametrize(
    ("interval", "is_reported"), [(2_000, True), (2**31 - 1, False)]
)
def test_a_scale_that_has_not_moved_is_told_if_it_ever_will(
    monkeypatch: pytest.MonkeyPatch, interval: int, is_reported: bool
) -> None:
    scaler = GradScaler("cpu", init_scale=64.0, growth_interval=interval)
    scaler.scale(torch.ones(()))
    monkeypatch.setattr(grad_scalers, "_made", {scaler: 64.0})
    monkeypatch.setattr(grad_scalers, "_reported", [])
    fields = {"running_scale": 64.0, "first_scale": 64.0}
    assert grad_scalers.running({}) == (fields if is_reported else {})


def test_whoever_asks_for_the_state_saves_it(
    used: GradScaler, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(RECORDER, "observe", lambda *_: None)
    grad_scalers._keep(GradScaler.state_dict, used)
    assert grad_scalers.running({}) == {}


# --- what is made of it ---


def finding_of(code: str, *ranks: str) -> Finding | None:
    (check,) = [one for one in every_check() if one.code == code]
    lines = [f"rank {n} | {one} exit=0" for n, one in enumerate(ranks)]
    found = verdict(sketch("\n".join(lines)), check)
    return found.findings[0] if isinstance(found, Sick) else None


CLIPS = (
    "scaling(scale=1024.0) limited(how=norm,limit={},found={},scale=1024.0)@t.py:8 "
    "cycle(words=update+clear+{}+scaled_step,more=5)@t.py:9"
)


@pytest.mark.parametrize("limit", [0.1, 0.5, 1.0, 5.0, 2.5, 100.0])
def test_a_threshold_that_somebody_has_chosen_is_accused(limit: float) -> None:
    found = finding_of("DD511", CLIPS.format(limit, 700.0, "scaled+clip"))
    assert found is not None
    assert found.details["limit"] == limit


@pytest.mark.parametrize(
    ("limit", "found", "words"),
    [
        (512.0, 700.0, "scaled+clip"),  # 0.5 of the scale
        (256.0, 700.0, "scaled+clip"),
        (2048.0, 7000.0, "scaled+clip"),
        (123.456, 700.0, "scaled+clip"),  # computed
        (1.0, 0.9, "scaled+clip"),
        (1.0, 700.0, "scaled+changed+clip"),
        (1.0, 700.0, "scaled+unscale+clip"),
        (1.0, 700.0, "scaled+divided+clip"),
    ],
)
def test_a_clip_that_may_be_right_is_not(
    limit: float, found: float, words: str
) -> None:
    assert finding_of("DD511", CLIPS.format(limit, found, words)) is None


def test_averaging_by_hand_leaves_gradients_scaled() -> None:
    words = "scaled+exchange+changed+clip"
    assert finding_of("DD511", CLIPS.format(1.0, 700.0, words)) is not None


HANDED = "handed(norm={},largest={},scale=1024.0)@t.py:9 "


def test_one_size_at_all_times_is_a_clip_by_hand() -> None:
    begin = "scaling(scale=1024.0) "
    norms = begin + "".join(HANDED.format(n, n / 2) for n in (0.9999, 1.0, 0.99995))
    found = finding_of("DD511", norms + "cycle(words=clear+scaled+changed+scaled_step)")
    assert found is not None
    assert found.certainty is Certainty.LIKELY
    assert "by hand to a norm of 1 " in found.message


@pytest.mark.parametrize(
    "sizes", [(0.9, 1.0, 0.8), (512.0, 512.0, 512.0), (0.9999, 1.0)]
)
def test_other_sizes_are_none(sizes: tuple[float, ...]) -> None:
    handed = "".join(HANDED.format(one, one / 2 + n) for n, one in enumerate(sizes))
    assert clips(sketch(f"rank 0 | scaling(scale=1024.0) {handed}")) == []


@pytest.mark.parametrize(
    ("why", "method", "words", "expected"),
    [
        ("stepped", "step", "clear scaled", "no update"),
        ("stepped", "unscale_", "clear scaled unscale", "no update"),
        ("unscaled", "unscale_", "scaled unscale clip unscale", "twice"),
        ("unscaled", "unscale_", "scaled unscale drop scaled unscale", "no update"),
        ("unscaled", "unscale_", "scaled unscale scaled/local unscale", "added"),
        ("unscaled", "unscale_", "unscale", ""),
        ("unused", "step", "clear backward", "no scale"),
        ("unused", "update", "", ""),
        ("early", "update", "clear scaled", "early update"),
        ("early", "update", "", ""),
    ],
)
def test_a_refusal_has_its_reason(
    why: str, method: str, words: str, expected: str
) -> None:
    refused = Refused(rank=0, why=why, method=method, words=tuple(words.split()))
    assert reason(refused) == expected


WRONG = "scaling(scale={}) cycle(words={},more={})@t.py:9"


@pytest.mark.parametrize(
    ("words", "phrase"),
    [
        ("update+clear+scaled+divided+scaled_step", "twice"),
        ("clear+scaled+unscale+update+scaled_step", "twice"),
        ("update+clear+backward+scaled_step", "never multiplied"),
        ("clear+scaled+step", "past the GradScaler"),
        ("clear+scaled/local+backward+scaled+scaled_step+update", "next to nothing"),
        ("update+clear+scaled+unscale+scaled+scaled_step", "that much more"),
    ],
)
def test_each_fault_has_its_words(words: str, phrase: str) -> None:
    found = finding_of("DD513", WRONG.format(1024.0, words, 5))
    assert found is not None
    assert phrase in found.message
    assert found.severity is None
    assert finding_of("DD513", WRONG.format(1.0, words, 5)) is None


def test_a_step_by_hand_with_unscaled_gradients_may_be_checked_by_hand() -> None:
    words = "clear+scaled+unscale+clip+step+update"
    found = finding_of("DD513", WRONG.format(1024.0, words, 5))
    assert found is not None
    assert (found.severity, found.certainty) == (Severity.WARNING, Certainty.LIKELY)
    spoilt = " not_finite(step=2,names=w,count=1,of=1,gradients)@t.py:9"
    found = finding_of("DD513", WRONG.format(1024.0, words, 5) + spoilt)
    assert found is not None
    assert found.severity is None


def test_what_happens_once_in_many_steps_is_no_habit() -> None:
    once = WRONG.format(1024.0, "update+clear+scaled+scaled_step", 20)
    once += " cycle(words=update+clear+backward+scaled_step)@t.py:9"
    assert finding_of("DD513", once) is None


KEPT = "stored(file=c,parts=model+optimizer,running_scale={},first_scale=1024.0)@t.py:2"


def test_one_halving_costs_at_most_one_step_and_is_a_warning() -> None:
    found = finding_of("DD517", KEPT.format(512.0))
    assert found is not None
    assert found.severity is Severity.WARNING
    found = finding_of("DD517", KEPT.format(1024.0))
    assert found is not None
    assert found.severity is Severity.WARNING
    found = finding_of("DD517", KEPT.format(128.0))
    assert found is not None
    assert found.severity is None
    assert "leaves out 3 steps" in found.message


IN_A_HELPER = """
import torch
def save(parts, path):
    torch.save(parts, path)  # saves
def parts_of(trainer):
    kept = {"epoch": 1}
    kept["opt"] = trainer.opt.state_dict()
    if trainer.whole:
        kept["scaler"] = trainer.scaler.state_dict()
    return kept
save(parts_of(trainer), "c")
def others():
    return {"opt": other.state_dict()}
"""

FROM_TWO = """
def save(parts):
    torch.save(parts, path)  # saves
first, second = {"opt": opt.state_dict()}, {"epoch": 1}
save(first)
save(second)
"""


@pytest.mark.parametrize(
    ("source", "lines"),
    [
        (IN_A_HELPER, [6, 4]),
        (FROM_TWO, [4, 3]),  # that with an optimizer
        ('torch.save({"opt": opt.state_dict()}, path)  # saves', [1]),
        ('other = {"opt": o.state_dict()}\nparts = 1\nsave(x)  # saves', [1, 3]),
    ],
    ids=["a function's", "one of two", "one line", "unknown"],
)
def test_the_dictionary_that_was_saved_is_named_first(
    source: str, lines: list[int]
) -> None:
    (line,) = [n for n, one in enumerate(source.splitlines(), 1) if "# saves" in one]
    run = sketch(f"rank 0 | {KEPT.format(512.0).replace(':2', f':{line}')} exit=0")
    (check,) = [one for one in every_check() if one.code == "DD517"]
    judgement = verdict(replace(run, sources={"t.py": source}), check)
    assert isinstance(judgement, Sick)
    assert [one.place.line for one in judgement.findings[0].locations] == lines


def test_a_comparison_that_has_told_of_the_scale_is_enough() -> None:
    compared = "compared(how=resume,steps=4,begun=2) unrestored(step=2,what=scale) "
    assert finding_of("DD517", compared + KEPT.format(128.0)) is None


def test_only_the_job_is_seen_to_ask_for_the_scale(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    asked: list[GradScaler] = []
    monkeypatch.setattr(GradScaler, "get_scale", asked.append)
    scaler = GradScaler("cpu", init_scale=64.0)
    assert grad_scalers.scale_of(scaler) == 64.0
    assert grad_scalers.scale_of(GradScaler("cpu", enabled=False)) == 1.0
    known = SimpleNamespace(number=0)
    monkeypatch.setattr(optimizers, "of", lambda *_: known)
    observed: list[Observation] = []
    monkeypatch.setattr(RECORDER, "observe", lambda one, _site="": observed.append(one))
    rounds = Rounds()
    rounds.trying(scaler, None)
    rounds.tried(scaler, None)
    assert observed == [Overflow(rank=-1, optimizer=0, round=0, scale=64.0)]
    assert not asked
