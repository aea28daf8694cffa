"""Ranks of a larger job, simulated: what is found, and what is not claimed."""

import sys
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from distdoctor.analysis.divergence.cascade import divergences
from distdoctor.cli.simulation_options import command_alone, ranks_to_play
from distdoctor.errors import LaunchRefused
from distdoctor.examination.concluding import conclude
from distdoctor.journal.folder import Manifest, Simulated, Sure
from distdoctor.journal.simulated import as_simulated
from distdoctor.launch import rank_simulation
from distdoctor.launch.audience import Audience, JobProgress, Surface
from distdoctor.launch.rank_simulation import simulate, usual_ranks
from distdoctor.launch.supervisor import Plan
from distdoctor.model.drawing import sketch
from distdoctor.model.events import Event, Failure, Started
from distdoctor.model.run import Run
from distdoctor.probes.collectives.fake_backend import varied

# --- the options ---


@pytest.mark.parametrize(
    ("given", "ranks"),
    [
        ("0,1,513", (0, 1, 513)),
        (" 3 , 0-2,1", (0, 1, 2, 3)),
        ("1023", (1023,)),
        ("all", tuple(range(1024))),
        (None, (0, 1, 8, 512, 1023)),
    ],
)
def test_ranks_are_named_as_people_write_them(
    given: str | None, ranks: tuple[int, ...]
) -> None:
    assert ranks_to_play(1024, given) == ranks


@pytest.mark.parametrize(
    ("world_size", "given", "message"),
    [
        (None, "0,1", "--world-size as well"),
        (1, None, "from 2"),
        (10**10, "all", "from 2"),
        (4, "0,4", "are 0 to 3"),
        (4, "3-1", "the range is empty"),
        (4, "0,", "give ranks such as"),
        (4, "-1", "give ranks such as"),
        (4, "0-1-2", "give ranks such as"),
        (4, "first", "give ranks such as"),
    ],
)
def test_ranks_that_are_none_are_refused(
    world_size: int | None, given: str | None, message: str
) -> None:
    with pytest.raises(LaunchRefused, match=message):
        ranks_to_play(world_size, given)


def test_the_default_ranks_differ_as_far_as_there_are_ranks() -> None:
    assert usual_ranks(2) == (0, 1)
    assert usual_ranks(16) == (0, 1, 8, 15)


def test_what_contradicts_the_simulation_is_refused(tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text("import torch.multiprocessing as mp\nmp.spawn(print)\n")
    with pytest.raises(LaunchRefused, match="give one of the two"):
        command_alone(script, [], "auto", ranks_given=True)
    with pytest.raises(LaunchRefused, match="not of a command"):
        command_alone(None, ["torchrun", "train.py"], "auto", ranks_given=False)
    with pytest.raises(LaunchRefused, match="ranks of its own"):
        command_alone(script, [], "auto", ranks_given=False)
    assert command_alone(script, ["--lr", "1"], "torchrun", ranks_given=False) == [
        sys.executable,
        str(script),
        "--lr",
        "1",
    ]


# --- other values ---


def test_varied_values_are_others_of_the_same_kind() -> None:
    assert varied([True, 0, 1, 8, 0.0, 1.0, 2.0, "name", None]) == (
        [False, 1, 0, 4, 1.0, 0.0, 3.0, "name", None]
    )
    for dtype in (torch.bool, torch.int64, torch.float32, torch.bfloat16):
        value = torch.tensor([0, 1, 8]).to(dtype)
        other = varied(value)
        assert (other.dtype, other.shape) == (value.dtype, value.shape)
        assert (other != value).all()


# --- what a simulated run tells ---


def played(
    drawing: str,
    world_size: int,
    failure: Failure | None = None,
    sure: Sure | None = None,
    asked: Iterable[int] = range(3),
) -> Run:
    """The drawn run as ranks 0, 1, … of a larger job."""
    drawn = sketch(drawing)
    life: dict[int, list[tuple[int, Event]]] = {
        rank: [(0, Started(rank=rank, world_size=world_size)), *drawn.life[rank]]
        for rank in drawn.seen
    }
    if failure is not None:
        rank = failure.rank
        life[rank].append((len(drawn.rows_of(rank)), failure))
    larger = replace(
        drawn,
        world_size=world_size,
        life=life,
        unseen=dict.fromkeys(range(drawn.world_size, world_size), "no journal"),
        groups=tuple(
            replace(group, ranks=tuple(range(world_size))) for group in drawn.groups
        ),
    )
    ranks = [Simulated(rank=rank, begun=rank in drawn.seen) for rank in asked]
    manifest = Manifest(
        distdoctor="0", launch=[], directory="", simulated=ranks, sure=sure
    )
    return as_simulated(larger, manifest)


SKIPS = """
    rank 0 | all_reduce(4)@t:9  broadcast(2)@t:12  barrier@t:15  exit=0
    rank 1 | all_reduce(4)@t:9  broadcast(2)@t:12  barrier@t:15  exit=0
    rank 2 | all_reduce(4)@t:9  barrier@t:15  exit=0
"""


def test_a_rank_that_differs_is_found_and_no_other_is_accused() -> None:
    run = played(SKIPS, 64)
    (found,) = divergences(run)
    assert found.culprits == (2,)
    assert set(found.victims) <= {0, 1}


def test_calls_that_hang_on_received_values_accuse_nobody() -> None:
    run = played(SKIPS, 64, sure=Sure(calls=1, why="depends on values"))
    assert not divergences(run)
    assert len(run.calls) == 3
    assert sorted(run.partial) == [0, 1, 2]
    assert "after call 1 (t:9) depends on values" in run.partial[2]
    assert conclude(run, []).verdict == "unknown"


def test_ranks_that_were_not_simulated_are_not_missed() -> None:
    well = "\n".join(
        f"rank {n} | all_reduce(4)@t:9  barrier@t:15  exit=0" for n in (0, 1)
    )
    run = played(well, 64, asked=range(2))
    assert not run.missing
    assert not divergences(run)
    conclusion = conclude(run, [])
    gap_of = {gap.what: gap for gap in conclusion.gaps}
    assert not gap_of["ranks {2-63}"].hides
    assert not gap_of["values, waiting and speed"].hides


def test_ranks_that_there_was_no_time_for_are_missed() -> None:
    run = played(SKIPS, 64, asked=range(5))
    assert run.missing == [3, 4]
    gaps = conclude(run, []).gaps
    assert any(gap.hides and gap.what == "ranks {3-4}" for gap in gaps)


def test_one_rank_alone_proves_nothing() -> None:
    run = played("rank 0 | all_reduce(4)@t:9  barrier@t:15  exit=0", 64)
    assert conclude(run, []).verdict == "unknown"


def test_an_exception_may_come_of_the_stand_ins() -> None:
    ends_early = """
        rank 0 | all_reduce(4)@t:9  barrier@t:15  exit=0
        rank 1 | all_reduce(4)@t:9  barrier@t:15  exit=0
        rank 2 | all_reduce(4)@t:9  exit=0
    """
    (found,) = divergences(played(ends_early, 8))
    assert found.culprits == (2,)
    failure = Failure(rank=2, error="IndexError", message="no such row", fatal=True)
    run = played(ends_early.replace("t:9  exit=0", "t:9"), 8, failure)
    assert not divergences(run)
    assert "IndexError" in run.partial[2]


# --- running the ranks ---


class Nobody:
    """Hears nothing."""

    surface = Surface()

    def output(self, stream: str, text: bytes) -> None:
        """Some lines."""

    def unfinished(self, lines: list[bytes]) -> None:
        """Bars."""

    def progress(self, progress: JobProgress) -> None:
        """How it stands."""


def test_every_rank_gets_a_share_of_the_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = [100.0]
    shares: list[float] = []

    def all_of_it(plan: Plan, _audience: Audience) -> Manifest:
        shares.append(plan.budget_s)
        clock[0] += plan.budget_s
        return Manifest(
            distdoctor="0", launch=[], directory="", stopped="budget", alive=[7]
        )

    monkeypatch.setattr(rank_simulation, "supervise", all_of_it)
    monkeypatch.setattr("time.monotonic", lambda: clock[0])
    monkeypatch.setattr(
        rank_simulation, "assemble", lambda *_, **__: Run.of_events({0: [], 1: []})
    )
    plan = Plan(
        command=[], script="", directory=tmp_path, folder=tmp_path, ranks=0, budget_s=60
    )
    manifest = simulate(plan, 8, range(4), Nobody())
    assert [each.rank for each in manifest.simulated] == [0, 1, 2, 3]
    assert shares == pytest.approx([10.0] * 6)
    shares.clear()
    manifest = simulate(replace(plan, budget_s=20), 8, range(8), Nobody())
    assert [each.begun for each in manifest.simulated] == [True] * 2 + [False] * 6
    assert "no time" in manifest.remarks[0]
