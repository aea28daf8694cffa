"""What must hold of the steps of the reference jobs, whatever the numbers are.

A step that accumulates, scales, recomputes, or is divided among ranks must do to the
weights what the textbook's step does: one batch, one rank, float32. Each property takes
a job's module, whose step may be another than it was, and a case: sizes and numbers.
"""

from __future__ import annotations

import itertools
import sys
import tempfile
from collections.abc import Callable
from functools import partial
from pathlib import Path
from types import ModuleType
from typing import Any

import torch
from simulated import Ranks, Replica
from textbook import (
    CPU,
    MOMENTUM,
    RATE,
    Case,
    PaperLamb,
    PaperLars,
    assert_alike,
    by_the_book,
    classifier,
    clear_a_layer,
    count_weights,
    joined,
    language_model,
    mean_loss,
    on_ranks,
    point_windows,
    rate_factor,
    residual_network,
    sentence_windows,
    token_loss,
    weights_of,
)
from torch import Tensor
from torch.optim.lr_scheduler import LambdaLR

JOBS = Path(__file__).parent.parent / "reference_jobs"

Property = Callable[[Any, Case], None]


def load_job(name: str, source: str | None = None) -> ModuleType:
    """A job's module; of another source, where that is given."""
    path = JOBS / f"{name}.py"
    text = path.read_text() if source is None else source
    module = ModuleType(f"tried_{name}")
    sys.modules[module.__name__] = module  # dataclasses look for it
    exec(compile(text, str(path), "exec"), module.__dict__)
    return module


# Mixed precision


def amp_accumulated_is_full_batch(job: Any, case: Case) -> None:
    """Windows on all ranks change weights as full batches on one rank; so do rates."""
    steps = point_windows(case)
    start, wanted, losses = by_the_book(classifier(case), steps, mean_loss, rate_factor)

    def live(ranks: Ranks, rank: int) -> tuple[list[Tensor], list[Tensor], list[float]]:
        training = _training(job, ranks, case, torch.float32)
        given, rates = [], []
        for step in steps:
            rates.append(training.optimizer.param_groups[0]["lr"])
            given.append(job.step(training, step[rank]).detach())
        return weights_of(training.model.module), given, rates

    lived = on_ranks(job, case, live)
    for weights, _, rates in lived:
        assert_alike(weights, wanted, start)
        assert rates == [RATE * rate_factor(number) for number in range(len(steps))]
    means = torch.stack([torch.stack(given) for _, given, _ in lived]).mean(0)
    torch.testing.assert_close(means, losses, rtol=1e-4, atol=1e-5)


def amp_synchronises_once(job: Any, case: Case) -> None:
    """A window costs an exchange of all gradients, and no more."""
    steps = point_windows(case)

    def live(ranks: Ranks, rank: int) -> int:
        training = _training(job, ranks, case, torch.float32)
        for step in steps:
            job.step(training, step[rank])
        return ranks.exchanged

    assert max(on_ranks(job, case, live)) == len(steps) * count_weights(
        classifier(case)
    )


def amp_mixed_is_nearly_full(job: Any, case: Case) -> None:
    """A step in half precision is that in float32, but for its rounding."""
    steps = point_windows(case)

    def live(precision: torch.dtype, ranks: Ranks, rank: int) -> list[Tensor]:
        training = _training(job, ranks, case, precision)
        job.step(training, steps[0][rank])
        return weights_of(training.model.module)

    start = weights_of(classifier(case))
    wanted = on_ranks(job, case, partial(live, torch.float32))[0]
    for precision in (torch.float16, torch.bfloat16):
        for found in on_ranks(job, case, partial(live, precision)):
            assert_alike(found, wanted, start, tolerance=0.1)


def amp_overflow_is_skipped_by_all(job: Any, case: Case) -> None:
    """An infinite loss on one rank: no rank steps, and the scale is halved."""
    steps = point_windows(case)

    def live(
        ranks: Ranks, rank: int
    ) -> tuple[list[Tensor], float, float, list[Tensor]]:
        training = _training(job, ranks, case, torch.float32)
        window = list(steps[0][rank])
        if rank == 0:
            points, classes = window[0]
            window[0] = (points.masked_fill(points > 0, torch.inf), classes)
        job.step(training, window)
        weights = [one.clone() for one in weights_of(training.model.module)]
        scale = training.scaler.get_scale()
        rate = training.optimizer.param_groups[0]["lr"]
        job.step(training, steps[1][rank])
        return weights, scale, rate, weights_of(training.model.module)

    start, after, _ = by_the_book(classifier(case), steps[1:2], mean_loss, rate_factor)
    for weights, scale, rate, then in on_ranks(job, case, live):
        assert all(torch.equal(a, b) for a, b in zip(weights, start, strict=True))
        assert scale == _SCALE / 2
        assert rate == RATE * rate_factor(0)
        assert_alike(then, after, start)


def amp_resumed_goes_on(job: Any, case: Case) -> None:
    """A job that was saved and loaded goes on as one that was not."""
    steps = [*point_windows(case), *point_windows(case)]
    saved_after = 2  # the scale has grown by then, and counts to its next growth

    def live(
        folder: Path | None, ranks: Ranks, rank: int
    ) -> tuple[list[Tensor], float, Any, int]:
        training = _training(job, ranks, case, torch.float32)
        epochs = 0
        for number, step in enumerate(steps, start=1):
            job.step(training, step[rank])
            if number == saved_after and folder is not None:
                job.save(training, folder / "checkpoint.pt", 6)
                training = _training(job, ranks, case, torch.float32)
                epochs = job.load(training, folder / "checkpoint.pt")
        state = training.scaler.state_dict()
        rate = training.optimizer.param_groups[0]["lr"]
        return weights_of(training.model.module), rate, state, epochs

    plain = on_ranks(job, case, partial(live, None))
    with tempfile.TemporaryDirectory() as folder:
        resumed = on_ranks(job, case, partial(live, Path(folder)))
    for one, other in zip(plain, resumed, strict=True):
        assert all(torch.equal(a, b) for a, b in zip(one[0], other[0], strict=True))
        assert one[1:3] == other[1:3]
        assert other[3] == 7


def amp_epoch_takes_every_batch(job: Any, case: Case) -> None:
    """An epoch is steps of full windows and of what is left; its loss is all's."""
    steps = point_windows(case)
    start, wanted, losses = by_the_book(classifier(case), steps, mean_loss, rate_factor)

    def live(ranks: Ranks, rank: int) -> tuple[list[Tensor], float]:
        training = _training(job, ranks, case, torch.float32)
        batches = [batch for step in steps for batch in step[rank]]
        mean = job.train_epoch(training, batches, case.window)
        return weights_of(training.model.module), mean

    for weights, mean in on_ranks(job, case, live):
        assert_alike(weights, wanted, start)
        assert abs(mean - float(losses.mean())) < 1e-4 * (1 + abs(mean))


def amp_rates_have_no_jump(job: Any, case: Case) -> None:
    """Rates go up to the full one and down to 0, by a little each time."""
    total = 20 + case.seed
    factors = [job.rate_factor(number, total) for number in range(total + 1)]
    assert 0 < factors[0] < 0.5
    assert max(factors) == 1
    assert abs(factors[-1]) < 1e-6
    assert all(abs(b - a) <= 0.21 for a, b in itertools.pairwise(factors))


# Tokens


def tokens_accumulated_is_full_batch(job: Any, case: Case) -> None:
    """Windows on all ranks change weights as all their sentences in one batch do."""
    steps = sentence_windows(job, case)
    start, wanted, losses = by_the_book(
        language_model(job, case), steps, token_loss, rate_factor
    )

    def live(ranks: Ranks, rank: int) -> tuple[list[Tensor], list[Tensor], int]:
        replica = Replica(language_model(job, case), ranks)
        optimizer = torch.optim.SGD(replica.parameters(), RATE, MOMENTUM)
        schedule = LambdaLR(optimizer, rate_factor)
        batches = [batch for step in steps for batch in step[rank]]
        given = [
            job.step(replica, optimizer, schedule, window, CPU)
            for window in job.windows(batches, case.window)
        ]
        return weights_of(replica.module), given, ranks.exchanged

    for weights, given, exchanged in on_ranks(job, case, live):
        assert_alike(weights, wanted, start)
        torch.testing.assert_close(torch.stack(given), losses, rtol=1e-4, atol=1e-5)
        # With each step's gradients go its tokens and its loss.
        assert exchanged <= len(steps) * (count_weights(language_model(job, case)) + 2)


def tokens_padding_changes_nothing(job: Any, case: Case) -> None:
    """A batch is padded behind each sentence, and the words to guess are the next."""
    generator = torch.Generator().manual_seed(case.seed)
    lengths = torch.randint(2, 9, (case.rows,), generator=generator).tolist()
    sentences = [torch.arange(1, 1 + length) for length in lengths]
    words, following = job.collate(sentences)
    assert words.shape == following.shape == (case.rows, max(lengths) - 1)
    for row, length in enumerate(lengths):
        assert words[row, : length - 1].tolist() == list(range(1, length))
        assert following[row].tolist() == [
            *range(2, length + 1),
            *[0] * (max(lengths) - length),
        ]


# Trust ratios


def trust_step_is_full_batch(job: Any, case: Case) -> None:
    """Steps of LARS and LAMB on all ranks are those of the papers, on one batch."""
    steps = point_windows(case)
    for name in ("Lars", "Lamb"):
        network = classifier(case)
        clear_a_layer(network)
        start = weights_of(network)
        papers = {"Lars": PaperLars, "Lamb": PaperLamb}[name](network)
        losses = []
        for number, step in enumerate(steps):
            losses.append(papers.step(joined(step), RATE * rate_factor(number)))

        def live(
            ranks: Ranks, rank: int, name: str = name
        ) -> tuple[list[Tensor], list[Tensor], int]:
            replica = Replica(classifier(case), ranks)
            clear_a_layer(replica.module)
            optimizer = getattr(job, name)(replica.parameters(), lr=RATE)
            schedule = LambdaLR(optimizer, rate_factor)
            batches = [batch for step in steps for batch in step[rank]]
            given = [
                job.step(replica, optimizer, schedule, window, CPU)
                for window in job.windows(batches, case.window)
            ]
            return weights_of(replica.module), given, ranks.exchanged

        lived = on_ranks(job, case, live)
        for weights, _, exchanged in lived:
            assert_alike(weights, papers.weights(), start)
            assert exchanged == len(steps) * count_weights(network)
        means = torch.stack([torch.stack(given) for _, given, _ in lived]).mean(0)
        wanted = torch.stack(losses).float()
        torch.testing.assert_close(means, wanted, rtol=1e-4, atol=1e-5)


def trust_of_nothing_is_one(job: Any, case: Case) -> None:
    """Weights or gradients of 0 leave the rate as it is."""
    weights = torch.full((2, 2), 1.0 + case.seed)
    assert job.trust_ratio(0 * weights, torch.tensor(2.0), 0.1) == 1
    assert job.trust_ratio(weights, torch.tensor(0.0), 0.1) == 1
    expected = 0.1 * weights.norm() / 4
    torch.testing.assert_close(
        job.trust_ratio(weights, torch.tensor(4.0), 0.1), expected
    )


# Recomputed blocks


def checkpointed_is_plain(job: Any, case: Case) -> None:
    """What is computed again in backward is what was computed in forward."""
    steps = point_windows(case)

    def live(
        ranks: Ranks, rank: int, **options: bool
    ) -> tuple[list[Tensor], list[Tensor]]:
        torch.manual_seed(case.seed)
        replica = Replica(job.Network(dropout=0.4, **options), ranks)
        optimizer = torch.optim.SGD(replica.parameters(), RATE, MOMENTUM)
        schedule = LambdaLR(optimizer, rate_factor)
        torch.manual_seed(case.seed + rank)
        given = []
        for step in steps:
            for batch in step[rank]:
                given.append(job.step(replica, optimizer, schedule, batch, CPU))
                job.accuracy(replica.module, batch, CPU)
        return weights_of(replica.module), given

    torch.manual_seed(case.seed)
    start = weights_of(job.Network(dropout=0.4))
    plain = on_ranks(job, case, partial(live, checkpointing=False))
    for reentrant in (False, True):
        found = on_ranks(job, case, partial(live, reentrant=reentrant))
        for (weights, given), (wanted, losses) in zip(found, plain, strict=True):
            assert_alike(weights, wanted, start)
            torch.testing.assert_close(given, losses, rtol=1e-4, atol=1e-5)


def checkpointed_recomputes(job: Any, case: Case) -> None:
    """Blocks go forward once in evaluation, and twice in the step behind it."""
    ((batch, *_), *_), *_ = point_windows(case)

    def live(ranks: Ranks, _: int) -> tuple[int, int]:
        network = job.Network(blocks=1)
        seen = []
        network.blocks[0].register_forward_pre_hook(lambda *_: seen.append(1))
        optimizer = torch.optim.SGD(network.parameters(), RATE)
        schedule = LambdaLR(optimizer, rate_factor)
        job.accuracy(network, batch, CPU)
        evaluated = len(seen)
        job.step(Replica(network, ranks), optimizer, schedule, batch, CPU)
        return evaluated, len(seen) - evaluated

    assert set(on_ranks(job, case, live)) == {(1, 2)}


def checkpointed_evaluates_without_dropout(job: Any, case: Case) -> None:
    """Evaluation draws no random numbers."""
    ((batch, *_), *_), *_ = point_windows(case)
    network = job.Network()
    before = torch.get_rng_state()
    job.accuracy(network, batch, CPU)
    assert torch.equal(before, torch.get_rng_state())


def checkpointed_step_is_full_batch(job: Any, case: Case) -> None:
    """Without dropout, ranks step as one rank does with all their batches."""
    steps = [
        [[batch] for batch in same]
        for step in point_windows(case)
        for same in zip(*step, strict=True)
    ]
    plain = residual_network(job, case, checkpointing=False)
    start, wanted, losses = by_the_book(plain, steps, mean_loss, rate_factor)

    def live(
        ranks: Ranks, rank: int
    ) -> tuple[list[Tensor], list[Tensor], list[Tensor]]:
        replica = Replica(residual_network(job, case), ranks)
        optimizer = torch.optim.SGD(replica.parameters(), RATE, MOMENTUM)
        schedule = LambdaLR(optimizer, rate_factor)
        given, hits = [], []
        for step in steps:
            (batch,) = step[rank]
            given.append(job.step(replica, optimizer, schedule, batch, CPU))
            hits.append(job.accuracy(replica.module, batch, CPU))
            guessed = replica.module(batch[0]).argmax(1)
            hits[-1] -= (guessed == batch[1]).float().mean()
        return weights_of(replica.module), given, hits

    lived = on_ranks(job, case, live)
    for weights, _, hits in lived:
        assert_alike(weights, wanted, start)
        assert not any(hits)
    means = torch.stack([torch.stack(given) for _, given, _ in lived]).mean(0)
    torch.testing.assert_close(means, losses, rtol=1e-4, atol=1e-5)


PROPERTIES: dict[str, tuple[Property, ...]] = {
    "amp_accumulation": (
        amp_accumulated_is_full_batch,
        amp_synchronises_once,
        amp_mixed_is_nearly_full,
        amp_overflow_is_skipped_by_all,
        amp_resumed_goes_on,
        amp_epoch_takes_every_batch,
        amp_rates_have_no_jump,
    ),
    "token_accumulation": (
        tokens_accumulated_is_full_batch,
        tokens_padding_changes_nothing,
    ),
    "trust_ratio": (trust_step_is_full_batch, trust_of_nothing_is_one),
    "checkpointed": (
        checkpointed_is_plain,
        checkpointed_recomputes,
        checkpointed_evaluates_without_dropout,
        checkpointed_step_is_full_batch,
    ),
}
"""By job."""


_SCALE = 2.0**10


def _training(job: Any, ranks: Ranks, case: Case, precision: torch.dtype) -> Any:
    replica = Replica(classifier(case), ranks)
    optimizer = torch.optim.SGD(replica.parameters(), RATE, MOMENTUM)
    scaler = torch.amp.GradScaler("cpu", init_scale=_SCALE, growth_interval=2)
    schedule = LambdaLR(optimizer, rate_factor)
    return job.Training(replica, optimizer, schedule, scaler, precision, CPU)
