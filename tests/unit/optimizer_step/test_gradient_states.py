"""What happens to gradients: the words of the probe, and the table they are led by."""

from types import SimpleNamespace
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn

from distdoctor.analysis.optimizer_step.gradient_states import (
    TABLE,
    GradientState,
    ProtocolFault,
    follow,
    walk,
)
from distdoctor.analysis.optimizer_step.step_cycles import optimizer_histories
from distdoctor.model.drawing import sketch
from distdoctor.model.events import Observation
from distdoctor.model.observations import optimizer_step as words
from distdoctor.model.observations.optimizer_step import Act, Cycle, packed, unpacked
from distdoctor.probes.data.samples import SAMPLES
from distdoctor.probes.fingerprints import sampled
from distdoctor.probes.gradients.clip_hooks import Clipping
from distdoctor.probes.gradients.exchanges import EXCHANGES
from distdoctor.probes.optimizer_step import call_hooks, optimizers
from distdoctor.probes.optimizer_step.step_protocol import Protocol
from distdoctor.probes.recorder import RECORDER

INPUTS = torch.ones(4, 3)


class Job:
    """A rank that trains, and calls the probe as hooks do."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.observed: list[Observation] = []
        monkeypatch.setattr(RECORDER, "observe", self.observe)
        monkeypatch.setattr(RECORDER, "writer", SimpleNamespace())
        monkeypatch.setattr(SAMPLES, "latest", None)
        self.protocol = Protocol()
        self.known: list[optimizers.Optimizer] = []
        monkeypatch.setattr(optimizers, "every", lambda: self.known)
        monkeypatch.setattr(optimizers, "made", lambda: (len(self.known), 0))
        self.model = nn.Linear(3, 1)
        self.optimizer = self.optimize(self.model)
        self.scaler = torch.amp.GradScaler("cpu", init_scale=4.0)

    def observe(self, one: Observation, _site: str = "") -> None:
        """Probes that an earlier test has put in place may tell, too."""
        if isinstance(one, Cycle | Act):
            self.observed.append(one)

    def optimize(self, model: nn.Module) -> torch.optim.Optimizer:
        """Make an optimizer."""
        optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
        self.known.append(optimizers.Optimizer(optimizer, len(self.known), ""))
        return optimizer

    def loss(self, *models: nn.Module) -> Tensor:
        """Of what models make of each other's output."""
        made = INPUTS
        for model in models or (self.model,):
            made = model(made)
        return made.square().mean()

    def backward(self, loss: Tensor | None = None) -> None:
        """Run it, on a loss of the model's own."""
        loss = self.loss() if loss is None else loss
        self.protocol.begin(((loss,),))
        loss.backward()
        self.protocol.end()

    def scale(self, loss: Tensor) -> Tensor:
        """Multiply a loss."""
        scaled = self.scaler.scale(loss)
        self.protocol.losses.scaled(self.scaler, loss, scaled)
        return scaled

    def step(self, optimizer: torch.optim.Optimizer | None = None) -> None:
        """Let an optimizer step."""
        optimizer = optimizer or self.optimizer
        (one,) = [one for one in self.known if one.optimizer is optimizer]
        one.steps += 1
        self.protocol.stepping(optimizer, one, False)
        optimizer.step()
        self.protocol.stepped(optimizer, one)

    def scaled_step(self, *, skips: bool = False) -> None:
        """Let the scaler decide on a step."""
        self.protocol.trying(self.scaler, self.optimizer)
        if not skips:
            self.step()
        self.protocol.tried(self.scaler, self.optimizer)

    def zero(self, owner: Any = None, *, to_none: bool = True) -> None:
        """Clear."""
        owner = owner or self.optimizer
        self.protocol.clearing(owner, None)
        owner.zero_grad(set_to_none=to_none)
        self.protocol.cleared(owner, None)

    def unscale(self) -> None:
        """Let the scaler divide the gradients."""
        self.protocol.unscaling(self.scaler, self.optimizer)
        self.scaler.unscale_(self.optimizer)
        self.protocol.unscaled(self.scaler, self.optimizer)

    def clip(self) -> None:
        """Clip them by a small norm."""
        this = Clipping(list(self.model.parameters()), 1e-3, by_value=False)
        self.protocol.clipping(this)
        nn.utils.clip_grad_norm_(this.parameters, this.bound)
        self.protocol.clipped(this)

    def cycle_texts(self, optimizer: int = 0) -> list[str]:
        """Each kind of cycle as a text, with how often it came."""
        self.protocol.flush()
        return [
            f"{' '.join(one.words)} *{one.more + 1}"
            for one in self.observed
            if isinstance(one, Cycle) and one.optimizer == optimizer
        ]

    def faults(self, optimizer: int = 0) -> set[ProtocolFault]:
        """What the table says to it."""
        self.protocol.flush()
        cycles = [one for one in self.observed if isinstance(one, Cycle)]
        words = [
            word
            for one in cycles
            if one.optimizer == optimizer
            for word in list(unpacked(one.words)) * (one.more + 1)
        ]
        return set(walk(GradientState.EMPTY, words)[1])


@pytest.fixture
def job(monkeypatch: pytest.MonkeyPatch) -> Job:
    return Job(monkeypatch)


# --- the probe ---


def test_a_job_as_it_should_be_is_told_once(job: Job) -> None:
    for _ in range(5):
        job.zero()
        job.backward()
        job.clip()
        job.step()
    assert job.cycle_texts() == ["backward clip step *1", "clear backward clip step *4"]
    assert not job.faults()


@pytest.mark.parametrize("to_none", [True, False])
def test_windows_are_told_by_their_passes(job: Job, *, to_none: bool) -> None:
    for _ in range(3):
        for _ in range(4):
            job.backward()
        job.step()
        job.zero(to_none=to_none)
    assert job.cycle_texts() == ["4:backward step *1", "clear 4:backward step *2"]
    assert not job.faults()


def test_gradients_that_are_cleared_within_a_window_are_dropped(job: Job) -> None:
    for _ in range(3):
        for _ in range(4):
            job.zero()
            job.backward()
        job.step()
    usual = "3:backward.drop backward step"
    assert job.cycle_texts() == [f"{usual} *1", f"clear {usual} *2"]
    assert job.faults() == {ProtocolFault.DROPPED}


def test_nothing_that_clears_is_seen_by_the_gradients(job: Job) -> None:
    for _ in range(3):
        job.backward()
        job.step()
    assert job.cycle_texts() == ["backward step *3"]
    assert job.faults() == {ProtocolFault.CARRIED}


@pytest.mark.parametrize("how", ["none", "zero", "data", "foreach", "stale"])
def test_what_clears_is_seen_whatever_it_is(job: Job, how: str) -> None:
    stale = [torch.zeros(1)]
    for _ in range(3):
        job.backward()
        job.step()
        for parameter in job.model.parameters():
            gradient = parameter.grad
            assert gradient is not None
            if how == "none":
                parameter.grad = None
            elif how == "zero":
                gradient.zero_()
            elif how == "data":
                gradient.data.zero_()
            elif how == "foreach":
                torch._foreach_zero_([gradient])
            else:
                torch._foreach_zero_(stale)
    assert job.cycle_texts()[-1].startswith(
        "backward" if how == "stale" else "clear backward"
    )
    assert job.faults() == ({ProtocolFault.CARRIED} if how == "stale" else set())


def test_gradients_that_cannot_be_read_are_not_said_to_be_zero(
    job: Job, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sampled, "is_capturing", lambda: True)
    for _ in range(2):
        job.backward()
        for parameter in job.model.parameters():
            assert parameter.grad is not None
            parameter.grad.zero_()
        job.backward()
        job.step()
        job.zero()
    assert job.cycle_texts()[-1] == "clear backward changed backward step *1"


def test_an_optimizer_may_clear_what_it_used(job: Job) -> None:
    def clear(*_: Any) -> None:
        for parameter in job.model.parameters():
            assert parameter.grad is not None
            parameter.grad.zero_()

    job.optimizer.register_step_post_hook(clear)
    for _ in range(3):
        job.backward()
        job.step()
    assert job.cycle_texts() == ["backward step *1", "clear backward step *2"]


def test_a_pass_for_another_optimizer_is_not_lost(job: Job) -> None:
    maker = nn.Linear(3, 3)
    of_maker = job.optimize(maker)
    for _ in range(3):
        job.zero()
        job.backward()
        job.step()
        job.zero(of_maker)
        job.backward(job.loss(maker, job.model))
        job.step(of_maker)
    assert job.cycle_texts() == ["backward step *1", "spare clear backward step *2"]
    assert not job.faults()
    assert job.cycle_texts(1) == ["backward step *1", "clear backward step *2"]


def test_parameters_that_are_moved_in_between_have_used_it(job: Job) -> None:
    for _ in range(3):
        job.backward()
        with torch.no_grad():
            for parameter in job.model.parameters():
                assert parameter.grad is not None
                parameter.data.add_(parameter.grad)
        job.zero()
        job.backward()
        job.step()
        job.zero()
    assert job.cycle_texts()[-1] == "clear backward taken clear backward step *2"
    assert not job.faults()


def test_a_closure_is_the_affair_of_its_step(job: Job) -> None:
    job.optimizer = torch.optim.LBFGS(job.model.parameters(), max_iter=3)
    known = optimizers.Optimizer(job.optimizer, 0, "")
    job.known = [known]

    def closure() -> Tensor:
        job.zero()
        loss = job.loss()
        job.backward(loss)
        return loss

    job.backward()
    for _ in range(2):
        known.steps += 1
        job.protocol.stepping(job.optimizer, known, True)
        job.optimizer.step(closure)
        job.protocol.stepped(job.optimizer, known)
    assert job.cycle_texts() == ["backward step *1", "step *1"]


def test_a_scaler_is_followed_also_where_it_skips(job: Job) -> None:
    for at in range(4):
        job.zero()
        job.backward(job.scale(job.loss()))
        job.unscale()
        job.clip()
        job.scaled_step(skips=at == 2)
        job.scaler.update()
        job.protocol.updated(job.scaler, None)
    usual = "update clear scaled unscale clip"
    assert job.cycle_texts() == [
        "scaled unscale clip scaled_step *1",
        f"{usual} scaled_step *1",
        f"{usual} skip *1",
        f"{usual} scaled_step *1",
    ]
    assert not job.faults()


def test_what_comes_of_a_scaled_loss_is_scaled(job: Job) -> None:
    scaled = job.scale(job.loss())
    job.backward((scaled / 2).sum())
    assert job.protocol._followed[0].words == [words.SCALED]


def test_division_by_hand_is_seen_by_the_numbers(job: Job) -> None:
    job.backward(job.scale(job.loss()))
    for parameter in job.model.parameters():
        assert parameter.grad is not None
        parameter.grad.data.div_(4.0)
    job.scaled_step()
    assert job.cycle_texts() == ["scaled divided scaled_step *1"]
    assert job.faults() == {ProtocolFault.UNSCALED_TWICE}


def test_what_changes_gradients_else_is_told(job: Job) -> None:
    for _ in range(2):
        job.backward()
        for parameter in job.model.parameters():
            assert parameter.grad is not None
            parameter.grad.mul_(3)
        job.step()
        job.zero()
    assert job.cycle_texts() == [
        "backward changed step *1",
        "clear backward changed step *1",
    ]


def test_passes_may_all_come_before_the_steps(job: Job) -> None:
    maker = nn.Linear(3, 3)
    of_maker = job.optimize(maker)
    for _ in range(3):
        job.zero(of_maker)
        job.backward(job.loss(maker, job.model))
        job.zero()
        job.backward()
        job.step()
        job.step(of_maker)
    assert job.cycle_texts() == ["spare clear backward step *3"]
    assert not job.faults()


def test_a_pass_that_no_optimizer_uses_is_lost_by_all(job: Job) -> None:
    maker = nn.Linear(3, 3)
    of_maker = job.optimize(maker)
    for _ in range(2):
        for _ in range(2):
            job.zero()
            job.zero(of_maker)
            job.backward(job.loss(maker, job.model))
        job.step()
        job.step(of_maker)
    assert job.faults() == job.faults(1) == {ProtocolFault.DROPPED}


def test_schedulers_that_call_each_other_are_one(job: Job) -> None:
    job.backward()
    job.step()
    for _ in range(3):
        job.protocol.scheduled(job.optimizer)
    job.backward()
    assert job.protocol._followed[0].words == ["schedule", "backward"]


def test_what_ranks_exchange_before_a_step_is_told(
    job: Job, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(EXCHANGES, "moved", EXCHANGES.moved)
    for _ in range(2):
        job.backward()
        EXCHANGES.moved += 2
        job.step()
        job.zero()
    assert job.cycle_texts() == [
        "backward exchange step *1",
        "clear backward exchange step *1",
    ]


class Wrapper(nn.Module):
    """What is asked of DDP."""

    require_backward_grad_sync = True
    require_forward_param_sync = True
    static_graph = True


@pytest.mark.parametrize(
    ("in_backward", "in_forward", "reduced", "asked", "word"),
    [
        (True, True, True, False, "backward"),
        (False, False, False, True, "backward/local"),
        (True, False, False, True, "backward/local"),
        (True, False, False, False, "backward/bare"),
        (False, True, True, True, "backward"),
        (True, True, False, False, "backward/bare"),
    ],
)
def test_what_wrappers_do_is_the_end_of_the_word(
    job: Job,
    monkeypatch: pytest.MonkeyPatch,
    *,
    in_backward: bool,
    in_forward: bool,
    reduced: bool,
    asked: bool,
    word: str,
) -> None:
    ddp = Wrapper()
    monkeypatch.setattr(optimizers, "averaging", lambda _: [ddp])
    monkeypatch.setattr(optimizers, "made", lambda: (1, 1))
    monkeypatch.setattr(EXCHANGES, "reduced", EXCHANGES.reduced)
    ddp.require_backward_grad_sync = in_backward
    ddp.require_forward_param_sync = in_forward
    if asked:
        job.protocol.unsynced(ddp, None)
    loss = job.loss()
    job.protocol.begin(((loss,),))
    loss.backward()
    EXCHANGES.reduced += reduced
    job.protocol.end()
    (one,) = job.protocol._followed
    assert (one.words, one.static) == ([word], True)


def test_optimizers_by_the_dozen_are_not_followed(job: Job) -> None:
    job.backward()
    job.step()
    for _ in range(20):
        job.optimize(job.model)
    job.backward()
    assert job.protocol._followed == []
    assert job.cycle_texts() == ["backward step *1"]


def test_a_scaler_that_is_off_or_of_another_kind_is_no_scaler(job: Job) -> None:
    class Other(torch.amp.GradScaler):
        def scale(self, outputs: Any) -> Any:
            return outputs

    for scaler in (torch.amp.GradScaler("cpu", enabled=False), Other("cpu")):
        job.scaler = scaler
        job.zero()
        job.backward(job.scale(job.loss()))
        job.scaled_step()
        job.protocol.updated(scaler, None)
    assert job.cycle_texts() == ["backward step *1", "clear backward step *1"]


def test_another_run_begins_with_nothing(job: Job) -> None:
    job.backward()
    job.step()
    job.protocol.reset()
    assert job.cycle_texts() == []


# --- what goes around functions ---


def test_a_method_is_told_with_what_it_was_given() -> None:
    class Kind:
        def method(self, optimizer: object) -> object:
            return optimizer

    given_to: list[tuple[object, object]] = []
    call_hooks._around(Kind, "method", [], [lambda *given: given_to.append(given)])
    kind = Kind()
    assert kind.method(optimizer=1) == kind.method(1) == 1
    assert given_to == [(kind, 1)] * 2


# --- words ---


@given(st.lists(st.sampled_from(["backward", "clear", "scaled/local", "step"])))
def test_packed_words_are_the_same_words(words: list[str]) -> None:
    assert list(unpacked(packed(words))) == words


def test_cycles_are_drawn_and_read() -> None:
    drawing = "rank 0 | cycle(step=1,words=3:clear.backward/local+step,more=4)@t.py:9"
    (cycle,) = sketch(drawing).of(Cycle, 0)
    assert list(unpacked(cycle.words)) == ["clear", "backward/local"] * 3 + ["step"]


# --- the table ---


def test_every_target_is_a_state_of_the_table() -> None:
    assert set(TABLE) == set(GradientState)
    for row in TABLE.values():
        for target in row.values():
            assert (target if isinstance(target, GradientState) else target[1]) in TABLE


@pytest.mark.parametrize(
    "cycle",
    [
        "backward step clear",
        "clear backward step",
        "clear backward backward backward step",
        "backward/local backward/local backward clip step clear",
        "step",
        "clear scaled scaled unscale clip scaled_step update",
        "scaled scaled_step update clear schedule",
        "scaled scaled_step clear update",
        "scaled skip update clear",
        "scaled unscale skip clear update",
        "scaled divided clip step clear",
        "spare clear backward step",
        "scaled scaled_step spare update clear",
        "backward taken clear backward step clear",
        "backward step changed",
        "changed step clear",
        "scaled exchange unscale clip scaled_step update clear",
    ],
)
def test_healthy_orders_have_no_fault(cycle: str) -> None:
    assert walk(GradientState.EMPTY, cycle.split() * 3)[1] == []


@pytest.mark.parametrize(
    ("cycle", "fault"),
    [
        ("clear backward drop backward step", ProtocolFault.DROPPED),
        ("backward step", ProtocolFault.CARRIED),
        ("scaled clip unscale scaled_step update clear", ProtocolFault.CLIPPED_SCALED),
        ("scaled clip scaled_step update clear", ProtocolFault.CLIPPED_SCALED),
        (
            "scaled unscale unscale scaled_step update clear",
            ProtocolFault.UNSCALED_TWICE,
        ),
        (
            "scaled divided unscale scaled_step update clear",
            ProtocolFault.UNSCALED_TWICE,
        ),
        ("backward scaled_step update clear", ProtocolFault.NEVER_SCALED),
        ("backward unscale clip scaled_step update clear", ProtocolFault.NEVER_SCALED),
        ("scaled scaled_step clear", ProtocolFault.NO_UPDATE),
        (
            "scaled unscale scaled scaled_step update clear",
            ProtocolFault.ADDED_UNSCALED,
        ),
        ("scaled step clear update", ProtocolFault.BY_PASSED),
        ("scaled unscale step clear update", ProtocolFault.UNCHECKED),
        ("scaled backward scaled_step update clear", ProtocolFault.MIXED),
    ],
)
def test_each_fault_is_found(cycle: str, fault: ProtocolFault) -> None:
    assert fault in walk(GradientState.EMPTY, cycle.split() * 3)[1]


@st.composite
def windows(draw: st.DrawFn) -> list[str]:
    """A step as it should be, after which nothing is left."""
    scaler = draw(st.booleans())
    kinds = ["scaled", "scaled/local"] if scaler else ["backward", "backward/local"]
    words = draw(st.lists(st.sampled_from([*kinds, "spare"]), min_size=1))
    words.append(kinds[0])
    if scaler and draw(st.booleans()):
        words += ["unscale", *["clip"] * draw(st.integers(0, 2))]
    elif not scaler and draw(st.booleans()):
        words.append(draw(st.sampled_from(["clip", "changed", "exchange"])))
    behind = ["clear", "schedule"]
    if scaler:
        words.append(draw(st.sampled_from(["scaled_step", "skip"])))
        behind.append("update")
    else:
        words.append("step")
    return words + draw(st.permutations(behind))


@given(st.lists(windows()))
def test_windows_in_any_order_have_no_fault(found: list[list[str]]) -> None:
    state, faults = walk(
        GradientState.EMPTY, [word for window in found for word in window]
    )
    assert (state, faults) == (GradientState.EMPTY, [])


def test_the_end_of_a_word_does_not_matter() -> None:
    assert follow(GradientState.EMPTY, "backward/bare") == follow(
        GradientState.EMPTY, "backward"
    )


def test_cycles_that_are_alike_count() -> None:
    run = sketch(
        "rank 0 | cycle(step=1,words=backward+step)"
        " cycle(step=2,words=backward+step,more=7,optimizer=1)"
        " cycle(step=2,words=clear+backward+step,more=7)"
    )
    first, second = optimizer_histories(run)
    assert (first.steps, first.faults) == (9, {})
    assert (second.steps, second.faults) == (8, {ProtocolFault.CARRIED: 7})
