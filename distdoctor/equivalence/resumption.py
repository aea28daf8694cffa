"""Property: a run resumed from a checkpoint equals one that was not interrupted."""

from __future__ import annotations

import io
from collections.abc import Callable, Iterator, Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.utils._pytree import keystr, tree_flatten_with_path

from distdoctor.equivalence.batches import Batches, Example, cast
from distdoctor.equivalence.capturing import Trial, capturing
from distdoctor.equivalence.comparing import (
    Difference,
    Reference,
    gradient_difference,
    weight_difference,
)
from distdoctor.equivalence.property_reports import PropertyReport, broken
from distdoctor.equivalence.rounding import gamma, unit_roundoff
from distdoctor.equivalence.scaler_model import scaler_of
from distdoctor.equivalence.searching import search, undisturbed
from distdoctor.equivalence.step import Step, Trainee, build, first_model
from distdoctor.equivalence.step_runner import Runner, forget
from distdoctor.model.observations.equivalence import RESUMING
from distdoctor.probes.harmless import paused

_ROUNDINGS = 4  # that are allowed: the same operations are done in the same order
_SCALE = 2.0**10
_OTHER_SEED = 1_234_567  # of the process that goes on


def assert_resumes(
    step: Step,
    batches: Batches,
    *,
    save: Callable[[Trainee], Any],
    load: Callable[[Trainee, Any], object],
    before: int = 3,
    after: int = 3,
    examples: int = 4,
    random: bool = True,
    device: str = "cpu",
) -> PropertyReport:
    """Fail unless a resumed run continues like one that was not interrupted.

    What `save` gives is written and read by `torch.save` and `torch.load`. It is loaded
    into a new model with other weights, a new optimizer, scheduler and scaler, under
    another random state, as in a new process.

    Args:
        step: The user's step; each call is given one micro-batch.
        batches: What micro-batches look like.
        save: Gives what a checkpoint holds, of a `Trainee`: `model`, `optimizer`,
            `scheduler` and `scaler`.
        load: Puts that into another `Trainee`.
        before: Steps before the checkpoint.
        after: Steps behind it, which are compared.
        examples: How many are tried.
        random: Whether random states are to be restored, too; else, both runs go on
            with the same.
        device: Where it runs.

    Returns:
        How far the worst example was from failing.

    Raises:
        EquivalenceBroken: It does not; the text names what was not restored.
    """
    __tracebackhide__ = True
    with undisturbed():
        runner = Runner(step, first_model(step), device)
        tried = _Resumption(runner, save, load, before, random)
        report, count = PropertyReport(RESUMING), before + after

        def attempt(example: Example) -> Difference | None:
            found = tried.compare(example).found
            if found.excess <= 1:
                report.add(found)
                return None
            return found

        worst = search(batches.examples(count, count), attempt, examples)
        if worst is not None:
            compared = tried.compare(worst[0])
            lost = compared.lost
            broken(
                RESUMING,
                "a run that is resumed is not equivalent to one without interruption",
                compared.found,
                example=f"{before} steps, a checkpoint, {after} steps; {worst[0]}",
                why=f"not restored: {', '.join(lost)}"
                if lost
                else "all that could be compared is restored, so the step keeps "
                "something elsewhere",
                site=compared.site,
                where=step.where,
            )
    return report.held()


@dataclass(frozen=True, slots=True)
class _Compared:
    found: Difference
    lost: Sequence[str]
    site: str


@dataclass(frozen=True, slots=True)
class _Resumption:
    runner: Runner
    save: Callable[[Trainee], Any]
    load: Callable[[Trainee, Any], object]
    before: int
    random: bool

    def compare(self, example: Example) -> _Compared:
        """Run both ways, and compare."""
        parts = cast(example.micro_batches(), torch.float32, self.runner.device)
        with paused():
            trainee = self._trainee(0)
            torch.manual_seed(example.seed)
            begun = Trial()
            self._go_on(trainee, parts[: self.before], begun)
            written = io.BytesIO()
            torch.save(self.save(trainee), written)
            stood = dict(_state(trainee))
            state = torch.get_rng_state()
            usual = Trial()
            self._go_on(trainee, parts[self.before :], usual)
            forget(trainee, usual)

            resumed = self._trainee(_OTHER_SEED)
            torch.manual_seed(_OTHER_SEED)
            written.seek(0)
            self.load(resumed, torch.load(written, weights_only=False))
            if not self.random:
                torch.set_rng_state(state)
            stands = dict(_state(resumed))
            lost = list(_lost(stood, stands))
            if self.random and not torch.equal(torch.get_rng_state(), state):
                lost.append("the random state")
            trial = Trial()
            self._go_on(resumed, parts[self.before :], trial)
            forget(resumed, trial)
        expected = _exactly(usual)
        found = max(
            gradient_difference(trial, expected),
            weight_difference(trial, expected),
            _scale_difference(resumed, trainee),
            key=lambda one: one.excess,
        )
        return _Compared(found, lost, trial.site)

    def _trainee(self, seed: int) -> Trainee:
        runner = self.runner
        start = runner.start
        if seed:
            torch.manual_seed(seed)
            start = runner.step.model()
        scaler = scaler_of(runner.step, runner.device, _SCALE * (2 if seed else 1))
        return build(runner.step, start, torch.float32, scaler=scaler)

    def _go_on(self, trainee: Trainee, parts: Sequence[Any], trial: Trial) -> None:
        with capturing(trainee, trial):
            for part in parts:
                trainee.call(self.runner.step, [part])


def _scale_difference(resumed: Trainee, usual: Trainee) -> Difference:
    """Scales need not change a gradient, and make another step overflow."""
    found = Difference("weight")
    if usual.scaler is not None and usual.scaler.is_enabled():
        here, there = resumed.scaler.get_scale(), usual.scaler.get_scale()
        if here != there:
            words = f"the loss is scaled by {here:g} where {there:g} is right"
            found = Difference("weight", words=words)
    return found


def _exactly(trial: Trial) -> Reference:
    """A run as the reference of one that makes the same operations."""
    allowed = gamma(_ROUNDINGS, unit_roundoff(torch.float32))

    def bounds(tensors: Mapping[str, Tensor | None]) -> dict[str, float]:
        return {
            name: 0.0 if one is None else allowed * float(one.abs().max())
            for name, one in tensors.items()
        }

    return Reference(
        trial,
        [bounds(one) for one in trial.gradients],
        bounds(trial.weights),
        frozenset(),
    )


def _state(trainee: Trainee) -> Iterator[tuple[str, Any]]:
    """All that a checkpoint can hold, by what it is called in a message."""
    model = trainee.model
    names = {name for name, _ in model.named_parameters(remove_duplicate=False)}
    state = model.state_dict()
    yield "weights", deepcopy({name: state[name] for name in state if name in names})
    yield "buffers", deepcopy({n: state[n] for n in state if n not in names})
    for number, optimizer in enumerate(trainee.optimizers, start=1):
        which = (
            f"optimizer {number}" if len(trainee.optimizers) > 1 else "the optimizer"
        )
        known = optimizer.state_dict()
        yield f"the state of {which}", deepcopy(known["state"])
        yield f"the settings of {which}", deepcopy(known["param_groups"])
    if trainee.scheduler is not None:
        yield "the scheduler", deepcopy(trainee.scheduler.state_dict())
    if trainee.scaler is not None:
        yield "the scaler", deepcopy(trainee.scaler.state_dict())


def _lost(stood: Mapping[str, Any], stands: Mapping[str, Any]) -> Iterator[str]:
    for what, right in stood.items():
        first = _first_difference(right, stands.get(what))
        if first is not None:
            yield f"{what} ({first})" if first else what


def _first_difference(right: Any, here: Any) -> str | None:
    """Where two nested values differ; "" if in their form, None if nowhere."""
    one, _ = tree_flatten_with_path(right)
    other, _ = tree_flatten_with_path(here)
    if [path for path, _ in one] != [path for path, _ in other]:
        return ""
    for (path, mine), (_, theirs) in zip(one, other, strict=True):
        if isinstance(mine, Tensor) and isinstance(theirs, Tensor):
            same = mine.shape == theirs.shape and torch.equal(mine, theirs)
        else:
            same = _is_same(mine, theirs)
        if not same:
            return keystr(path).replace("][", ".").translate(_BARE)
    return None


_BARE = str.maketrans("", "", "[]'")


def _is_same(mine: Any, theirs: Any) -> bool:
    if callable(mine) and callable(theirs):  # of a scheduler's state
        return True
    return bool(mine == theirs)
