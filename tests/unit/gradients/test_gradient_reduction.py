"""What ranks send of their gradients: what the probe tells, and what that proves."""

from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from distdoctor.analysis.gradients.local_clipping import Clipped, clipped_apart
from distdoctor.analysis.gradients.trust_ratios import Trusted, trusted_apart
from distdoctor.model.drawing import sketch
from distdoctor.model.events import Observation
from distdoctor.model.observations.gradients import Clip, Exchange, Sent
from distdoctor.probes.fingerprints.sampled import print_of
from distdoctor.probes.gradients import clip_hooks, gradient_reduction
from distdoctor.probes.gradients.clip_hooks import Clipping
from distdoctor.probes.gradients.exchanges import EXCHANGES
from distdoctor.probes.optimizer_step import optimizers
from distdoctor.probes.optimizer_step.optimizers import Optimizer
from distdoctor.probes.recorder import RECORDER

# --- the hub around clipping ---


def test_who_watches_is_told_of_each_clip(monkeypatch: pytest.MonkeyPatch) -> None:
    begun: list[int] = []
    heard: list[tuple[int, float, float]] = []

    def ended(this: Clipping) -> None:
        norm = -1.0 if this.norm is None else float(this.norm)
        assert this.by_value is (this.norm is None)
        heard.append((len(this.parameters), this.bound, norm))

    monkeypatch.setattr(clip_hooks, "_begins", [])
    monkeypatch.setattr(clip_hooks, "_ends", [])
    clip_hooks.watch(lambda this: begun.append(len(this.parameters)), ended)
    by_norm = clip_hooks._telling(nn.utils.clip_grad_norm_, "max_norm")
    by_value = clip_hooks._telling(nn.utils.clip_grad_value_, "clip_value")
    parameter = nn.Parameter(torch.zeros(4))
    parameter.grad = torch.full((4,), 3.0)
    assert float(by_norm(parameter, 3.0)) == pytest.approx(6.0)
    assert float(by_norm((one for one in [parameter]), max_norm=2.0)) == (
        pytest.approx(3.0)
    )
    by_norm(parameters=iter([parameter]), max_norm=1.0, norm_type=2.0)
    by_value([parameter], clip_value=0.25)
    assert begun == [1, 1, 1, 1]
    assert heard == [
        (1, 3.0, pytest.approx(6.0)),
        (1, 2.0, pytest.approx(3.0)),
        (1, 1.0, pytest.approx(2.0)),
        (1, 0.25, -1.0),
    ]
    assert parameter.grad.tolist() == pytest.approx([0.25] * 4)


def test_a_clip_within_another_is_told_once_and_none_while_it_is_compiled(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    events: list[str] = []
    monkeypatch.setattr(clip_hooks, "_begins", [])
    monkeypatch.setattr(clip_hooks, "_ends", [])
    clip_hooks.watch(
        lambda _: events.append("before"), lambda _: events.append("after")
    )

    def clip(_parameters: object, max_norm: float) -> None:
        assert max_norm == 1.0
        events.append("clips")

    inner = clip_hooks._telling(clip, "max_norm")
    outer = clip_hooks._telling(inner, "max_norm")
    outer([], max_norm=1.0)
    assert events == ["before", "clips", "after"]
    monkeypatch.setattr(torch.compiler, "is_compiling", lambda: True)
    inner([], max_norm=1.0)
    assert events[3:] == ["clips"]


def test_a_wrong_call_raises_what_torch_raises() -> None:
    clip = clip_hooks._telling(nn.utils.clip_grad_norm_, "max_norm")
    with pytest.raises(TypeError):
        clip([])


# --- the probe ---


class Rank:
    """A rank that calls the probe as hooks do."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.observed: list[Observation] = []
        self._monkeypatch = monkeypatch
        monkeypatch.setattr(RECORDER, "observe", self.observe)
        monkeypatch.setattr(EXCHANGES, "looking", True)
        monkeypatch.setattr(EXCHANGES, "reduced", 0)
        gradient_reduction.reset()
        torch.manual_seed(2)
        self.model = nn.Sequential(nn.Linear(6, 5), nn.Tanh(), nn.Linear(5, 2))
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.5)
        monkeypatch.setattr(optimizers, "trained", lambda: list(self.parameters))
        self.known = Optimizer(self.optimizer, 3, "")
        self.known.parameters = self.parameters

    def observe(self, one: Observation, _site: str = "") -> None:
        """Probes that an earlier test has put in place may tell, too."""
        if isinstance(one, Clip | Exchange | Sent):
            self.observed.append(one)

    @property
    def parameters(self) -> list[Tensor]:
        """Of the model."""
        return list(self.model.parameters())

    @property
    def gradients(self) -> list[Tensor]:
        """Theirs, all there are."""
        return [one.grad for one in self.parameters if one.grad is not None]

    def backward(self) -> None:
        """On one batch."""
        self.model.zero_grad()
        self.model(torch.ones(3, 6)).square().sum().backward()
        gradient_reduction.passed(False, False)

    def clip(self, bound: float) -> float:
        """By torch's function."""
        norm = nn.utils.clip_grad_norm_(self.parameters, bound)
        gradient_reduction._clipped(Clipping(self.parameters, bound, False, norm))
        return float(norm)

    def call(self, number: int) -> None:
        """What is sent next is sent by this call of the rank's."""
        self._monkeypatch.setattr(RECORDER, "calls", number)

    def send(self, *tensors: Tensor) -> None:
        """Make a collective."""
        gradient_reduction._sending(list(tensors))

    def step(self) -> Sent | None:
        """Step, and tell."""
        self.known.steps += 1
        gradient_reduction.looking(self.known)
        self.optimizer.step()
        gradient_reduction.stepped(self.optimizer, self.known)
        found = [one for one in self.observed if isinstance(one, Sent)]
        return found[-1] if found else None


@pytest.fixture
def rank(monkeypatch: pytest.MonkeyPatch) -> Iterator[Rank]:
    yield Rank(monkeypatch)
    gradient_reduction.reset()


def test_gradients_that_are_sent_as_they_are(rank: Rank) -> None:
    rank.backward()
    own = [float(one.norm()) for one in rank.gradients]
    for gradient in rank.gradients:
        rank.send(gradient)
    step = rank.step()
    assert step is not None
    assert (step.optimizer, step.step, step.positions) == (3, 1, (0, 1, 2, 3))
    assert step.own == pytest.approx(own)
    assert step.sent == pytest.approx(own)
    assert step.factors == pytest.approx([1.0] * 4)
    assert step.moved[:3] == pytest.approx([0.5] * 3, rel=1e-3)
    assert (step.norm, step.bound, step.again) == (0.0, 0.0, False)


@pytest.mark.parametrize(
    "how", ["memory", "copies", "flat", "backwards", "buckets", "bfloat16"]
)
def test_a_clip_is_a_factor_however_it_is_sent(rank: Rank, how: str) -> None:
    rank.backward()
    norm = rank.clip(0.5)
    for gradient in rank.gradients:
        if how == "memory":
            rank.send(gradient)
        elif how == "copies":
            rank.send(gradient.clone())
        elif how == "bfloat16":
            rank.send(gradient.to(torch.bfloat16))
    if how == "flat":
        rank.send(torch.cat([one.reshape(-1) for one in rank.gradients]))
    if how == "backwards":
        rank.send(torch.cat([one.reshape(-1) for one in rank.gradients[::-1]]))
    if how == "buckets":
        flat = [one.reshape(-1) for one in rank.gradients]
        rank.send(torch.cat(flat[:2]))
        rank.send(torch.cat(flat[2:]))
    step = rank.step()
    assert step is not None
    wide = [step.factors[step.positions.index(n)] for n in (0, 1, 2)]
    assert wide == pytest.approx([0.5 / norm] * 3, rel=0.01)
    assert [step.norm, step.bound] == pytest.approx([norm, 0.5])


@pytest.mark.parametrize("copied", [False, True])
def test_the_call_that_carried_a_gradient_is_known(rank: Rank, copied: bool) -> None:
    rank.backward()
    for call, n in ((7, 2), (8, 0), (9, 1)):
        rank.call(call)
        gradient = rank.gradients[n]
        rank.send(gradient.clone() if copied else gradient)
    step = rank.step()
    assert step is not None
    assert step.positions == (0, 1, 2)
    assert step.calls == (8, 9, 7)


def test_values_that_several_gradients_have_tell_of_none(rank: Rank) -> None:
    rank.model = nn.Sequential(nn.Linear(4, 6, bias=False), nn.Linear(4, 6, bias=False))
    rank.known.parameters = rank.parameters
    for one in rank.parameters:
        one.grad = torch.ones_like(one)
    gradient_reduction.passed(False, False)
    rank.call(3)
    rank.send(rank.gradients[1].clone())
    step = rank.step()
    assert step is not None
    assert (step.positions, step.calls) == ((0,), ())


def test_a_clip_behind_the_exchange_is_no_clip_before_it(rank: Rank) -> None:
    rank.backward()
    for gradient in rank.gradients:
        rank.send(gradient)
    rank.clip(0.5)
    step = rank.step()
    assert step is not None
    assert (step.norm, step.again) == (0.0, True)


def test_noise_makes_no_multiple(rank: Rank) -> None:
    rank.backward()
    for gradient in rank.gradients:
        gradient += torch.randn_like(gradient) * gradient.norm()
        rank.send(gradient)
    step = rank.step()
    assert step is not None
    assert step.factors[0] == step.factors[2] == 0.0


def test_weights_and_metrics_are_no_gradients(rank: Rank) -> None:
    rank.backward()
    rank.send(*(one.detach() for one in rank.parameters), torch.ones(3))
    assert rank.step() is None


def test_a_metric_of_a_parameters_shape_does_not_hide_its_gradient(rank: Rank) -> None:
    rank.backward()
    rank.send(torch.randn(30))
    rank.send(rank.gradients[0].clone())
    step = rank.step()
    assert step is not None
    assert step.positions == (0,)
    assert step.factors == pytest.approx([1.0])


def test_what_a_wrapper_has_averaged_is_not_followed(rank: Rank) -> None:
    rank.backward()
    gradient_reduction.passed(True, False)
    rank.clip(0.5)
    for gradient in rank.gradients:
        rank.send(gradient)
    assert rank.step() is None


def average_later(rank: Rank, monkeypatch: pytest.MonkeyPatch) -> None:
    """Backward runs once more, and a wrapper averages meanwhile."""
    gradient_reduction.begun(torch.ones(()), None)
    elements = sum(one.numel() for one in rank.parameters)
    monkeypatch.setattr(EXCHANGES, "reduced", elements)
    gradient_reduction.passed(True, False)


@pytest.mark.parametrize("set_to_none", [True, False])
def test_what_was_clipped_and_cleared_is_not_sent_later(
    rank: Rank, set_to_none: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    rank.backward()
    rank.clip(0.5)
    rank.optimizer.zero_grad(set_to_none=set_to_none)
    average_later(rank, monkeypatch)
    assert rank.step() is None


def test_a_clip_between_the_batches_of_a_window_is_sent_later(
    rank: Rank, monkeypatch: pytest.MonkeyPatch
) -> None:
    rank.backward()
    norm = rank.clip(0.5)
    average_later(rank, monkeypatch)
    step = rank.step()
    assert step is not None
    assert step.in_backward
    assert [step.norm, step.bound] == pytest.approx([norm, 0.5])


class _Averaging(torch.optim.SGD):
    """Averages gradients itself, with a rank that has twice as large ones."""

    sending = staticmethod(gradient_reduction._sending)
    clears = False

    def step(self, closure: Any = None) -> Any:
        """Send each, and go on."""
        for group in self.param_groups:
            for one in group["params"]:
                self.sending([one.grad])
                one.grad.mul_(1.5)
        super().step(closure)
        if self.clears:
            self.zero_grad(set_to_none=False)
        return None


@pytest.mark.parametrize("clears", [False, True])
def test_what_a_step_averages_itself_is_what_it_uses(rank: Rank, clears: bool) -> None:
    rank.optimizer = _Averaging(rank.parameters, lr=0.5)
    rank.optimizer.clears = clears
    rank.known = Optimizer(rank.optimizer, 3, "")
    rank.known.parameters = rank.parameters
    rank.backward()
    own = [print_of(one) for one in rank.gradients]
    step = rank.step()
    assert step is not None
    if clears:  # nobody knows then what it was
        assert step.settled == ()
        return
    assert step.settled == tuple(map(print_of, rank.gradients))
    assert set(step.settled).isdisjoint(own)
    assert step.moved[:3] == pytest.approx([0.5] * 3, rel=1e-3)


def test_what_was_averaged_before_the_step_is_not_settled_by_it(rank: Rank) -> None:
    rank.backward()
    for gradient in rank.gradients:
        rank.send(gradient)
        gradient.mul_(1.5)

    def doubled(*_: Any) -> None:
        for gradient in rank.gradients:
            gradient.mul_(2.0)

    rank.optimizer.register_step_pre_hook(doubled)
    step = rank.step()
    assert step is not None
    assert step.settled == ()


# --- what it proves ---

HOLDS = "holds(names=a+b,sizes=40+8)"


def faults_of(*steps: tuple[str, str], norms: str = "") -> tuple[Any, Any]:
    """What is found of two ranks, given what each sent at each step."""
    ranks = [HOLDS, HOLDS]
    for n, pair in enumerate(steps, start=1):
        for at, sent in enumerate(pair):
            same = sent.replace("same,", "")
            prints = n if "same," in sent else 10 * n + at
            ranks[at] += f" gradients(step={n},prints={prints}+9,weights={n}+8{norms})"
            ranks[at] += f" sent(step={n},positions=0-1,{same})"
    run = sketch("\n".join(f"rank {n} | {words}" for n, words in enumerate(ranks)))
    return clipped_apart(run), trusted_apart(run)


def sent(own: float, factor: float, more: str = "") -> str:
    """Two tensors with one factor."""
    pair = f"own={own}+{own / 5},sent={own * factor}+{own * factor / 5}"
    return f"{pair},factors={factor}+{factor},weights=3.0+2.0{more}"


def test_a_clip_that_bites_on_one_rank_alone_is_enough() -> None:
    (one,), trusted = faults_of(
        (sent(4, 0.25, ",norm=4,bound=1"), sent(0.5, 1, ",norm=.5,bound=1"))
    )
    assert isinstance(one, Clipped)
    assert (one.by_function, one.bound, one.norms) == (True, 1.0, (4.0, 0.5))
    assert trusted == []


@pytest.mark.parametrize(
    "pair",
    [
        (sent(4, 1, ",norm=4,bound=9"), sent(2, 1, ",norm=2,bound=9")),
        (sent(4, 0.25, ",norm=4,bound=1"), sent(4, 0.25, ",norm=4,bound=1")),
        (sent(4, 0, ",norm=4,bound=1"), sent(2, 0, ",norm=2,bound=1")),
        (sent(4, 0.25, ",norm=4,bound=1,again"), sent(2, 0.5, ",norm=2,bound=1")),
        (sent(4, 0.25, ",norm=-1,bound=1"), sent(2, 0.5, ",norm=2,bound=1")),
    ],
    ids=["never reached", "one norm", "noise", "twice", "not finite"],
)
def test_a_clip_that_may_be_right_is_not_accused(pair: tuple[str, str]) -> None:
    assert faults_of(pair, pair) == ([], [])


def test_a_bound_that_nobody_exceeds_tells_of_a_clip() -> None:
    steps = [
        (sent(4, 0.25), sent(2, 0.5)),
        (sent(8, 0.125), sent(0.5, 1)),
        (sent(5, 0.2), sent(3, 1 / 3)),
    ]
    (one,), trusted = faults_of(*steps)
    assert isinstance(one, Clipped)
    assert (one.by_function, len(one.meetings), trusted) == (False, 3, [])
    assert faults_of(*steps[:1]) == ([], [])


@pytest.mark.parametrize(
    "steps",
    [
        [(sent(4, 0.6), sent(2, 0.4)), (sent(3, 0.5), sent(2, 0.5))] * 2,
        [(sent(4, 0.5), sent(2, 0.5)), (sent(3, 0.5), sent(2, 0.5))] * 2,
        [(sent(4, 0), sent(2, 0)), (sent(3, 0), sent(2, 0))] * 2,
    ],
    ids=["tokens", "mean", "compressed"],
)
def test_weights_of_ranks_are_no_clip(steps: list[tuple[str, str]]) -> None:
    assert faults_of(*steps) == ([], [])


def layers(own: str, sent_: str, more: str = "") -> str:
    return f"own={own},sent={sent_},weights=3.0+2.0{more}"


TRUSTED = [
    (layers("4.0+.5", ".03+.02"), layers("6.0+.3", ".03+.02")),
    (layers("3.0+.4", ".031+.02"), layers("7.0+.2", ".0309+.02")),
]


def test_lengths_that_are_a_share_of_the_weights_tell_of_their_ratio() -> None:
    clipped, (one,) = faults_of(*TRUSTED)
    assert clipped == []
    assert isinstance(one, Trusted)
    assert (one.sends, one.positions) == (True, (0, 1))
    assert one.ratio == pytest.approx((0.01, 0.031 / 3))
    assert faults_of(*TRUSTED[:1]) == ([], [])


@pytest.mark.parametrize(
    "steps",
    [
        [(layers("4.0+.5", ".4+.05"), layers("6.0+.3", ".6+.03"))] * 2,
        [(layers("4.0+.5", ".3+.02"), layers("6.0+.3", ".3+.02"))] * 2,
        [(layers("4.0+.5", ".03+.02"), layers("4.0+.5", ".03+.02"))] * 2,
        [(layers("3.1+2.0", ".03+.02"), layers("6.2+4.0", ".03+.02"))] * 2,
    ],
    ids=["one factor", "other ratios", "the same gradients", "like the weights"],
)
def test_other_lengths_are_no_trust_ratio(steps: list[tuple[str, str]]) -> None:
    assert faults_of(*steps)[1] == []


def test_factors_of_a_ranks_own_on_one_gradient_are_found() -> None:
    one_rank = layers("4.0+.5", "4.0+.5", ",moved=.06+.2")
    other = layers("6.0+.4", "6.0+.4", ",moved=.04+.25")
    _, (one,) = faults_of(("same," + one_rank, "same," + other))
    assert isinstance(one, Trusted)
    assert (one.sends, one.ratio) == (False, (0.04, 0.25))
    assert faults_of((one_rank, other)) == ([], [])
    rate = layers("6.0+.4", "6.0+.4", ",moved=.03+.1")
    assert faults_of(("same," + one_rank, "same," + rate)) == ([], [])
