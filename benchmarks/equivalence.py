"""How long the properties of `distdoctor.equivalence` take, in the process itself.

    python benchmarks/equivalence.py [ROUNDS]

For each property, one round to warm up, then some that are timed: the median of wall
clock and of processor seconds, and the processor time of an example in units of that of
the step itself.
"""

from __future__ import annotations

import statistics
import sys
import time
import warnings
from collections.abc import Callable
from typing import Any

import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

from distdoctor.equivalence import (
    PropertyReport,
    Step,
    Trainee,
    assert_accumulates,
    assert_amp,
    assert_checkpointed,
    assert_compiles,
    assert_resumes,
    batches,
)

GOAL_S = 2.0


class Recomputed(nn.Module):
    """A perceptron whose second half is computed again in backward."""

    def __init__(self, recomputed: bool = True) -> None:
        super().__init__()
        self.first = nn.Sequential(nn.Linear(16, 64), nn.ReLU())
        self.second = nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 8))
        self.recomputed = recomputed

    def forward(self, features: torch.Tensor) -> Any:
        """Score; [rows, 8]."""
        inner = self.first(features)
        if self.recomputed:
            return checkpoint(self.second, inner, use_reentrant=False)
        return self.second(inner)


def plain() -> nn.Module:
    """The same without."""
    return Recomputed(recomputed=False)


def adam(parameters: list[nn.Parameter]) -> torch.optim.Optimizer:
    """The usual one."""
    return torch.optim.AdamW(parameters, lr=1e-3)


def train_step(model: nn.Module, optimizer: Any, parts: Any) -> None:
    """Accumulate, and step."""
    optimizer.zero_grad()
    for features, labels in parts:
        loss = nn.functional.cross_entropy(model(features), labels)
        (loss / len(parts)).backward()
    optimizer.step()


def scaled_step(model: nn.Module, optimizer: Any, parts: Any, scaler: Any) -> None:
    """The same in mixed precision."""
    optimizer.zero_grad()
    for features, labels in parts:
        with torch.autocast("cpu", torch.float16):
            loss = nn.functional.cross_entropy(model(features), labels)
        scaler.scale(loss / len(parts)).backward()
    scaler.step(optimizer)
    scaler.update()


def save(trainee: Trainee) -> Any:
    """What a checkpoint holds."""
    return trainee.model.state_dict(), trainee.optimizer.state_dict()


def load(trainee: Trainee, saved: Any) -> None:
    """Put it back."""
    trainee.model.load_state_dict(saved[0])
    trainee.optimizer.load_state_dict(saved[1])


def resumes(step: Step, some: batches.Batches) -> PropertyReport:
    """Resuming, without dropout."""
    return assert_resumes(step, some, save=save, load=load, random=False)


def compiles(step: Step, some: batches.Batches) -> PropertyReport:
    """Compiling without a compiler."""
    return assert_compiles(step, some, backend="aot_eager")


FEATURES = batches.labelled((16,), 8)
STEP = Step(plain, adam, train_step)

PROPERTIES: dict[str, Callable[[], PropertyReport]] = {
    "accumulation": lambda: assert_accumulates(STEP, FEATURES),
    "mixed precision": lambda: assert_amp(Step(plain, adam, scaled_step), FEATURES),
    "checkpointing": lambda: assert_checkpointed(
        Step(Recomputed, adam, train_step), plain, FEATURES
    ),
    "compiling": lambda: compiles(STEP, FEATURES),
    "resuming": lambda: resumes(STEP, FEATURES),
}


def main(rounds: int) -> None:
    """Time each property."""
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    once = _step_s()
    print(f"torch {torch.__version__}, {rounds} rounds; the step itself {once:.2e} s")
    print(f"{'property':16} {'wall s':>8} {'cpu s':>8} {'examples':>9} {'x step':>8}")
    for name, tried in PROPERTIES.items():
        report = tried()
        walls, processors = [], []
        for _ in range(rounds):
            wall, processor = time.perf_counter(), time.process_time()
            tried()
            walls.append(time.perf_counter() - wall)
            processors.append(time.process_time() - processor)
        cpu = statistics.median(processors)
        late = "" if cpu <= GOAL_S else f"  over {GOAL_S} s"
        print(
            f"{name:16} {statistics.median(walls):8.2f} {cpu:8.2f} "
            f"{report.examples:9} {cpu / once / report.examples:8.0f}{late}"
        )


def _step_s() -> float:
    """Processor seconds of the step with two micro-batches of four."""
    model = plain()
    optimizer = adam(list(model.parameters()))
    parts = [(torch.randn(4, 16), torch.randint(8, (4,))) for _ in range(2)]
    train_step(model, optimizer, parts)
    begun = time.process_time()
    for _ in range(50):
        train_step(model, optimizer, parts)
    return (time.process_time() - begun) / 50


if __name__ == "__main__":
    main(int(sys.argv[1]) if sys.argv[1:] else 5)
