"""Faults that only some of a ring's contents tell, each beside a healthy near miss."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from recorder_dumps import Job, Simulation, Step, Style, all_reduce, dumps, write
from recorder_faults import report_of

_SIZES = (((4, 256),), ((4, 256),))
Tops = dict[int, dict[str, Any]]
Found = list[tuple[str, list[int]]]


def _message(op: str, peer: int, line: int) -> Step:
    return Step(op, sizes=_SIZES, peer=peer, line=("forward", line))


def _pipeline(
    world: int, micros: int, odd: Callable[[int, int], Step | None] = lambda *_: None
) -> Job:
    """Stages that pass on what they get; `odd` gives what a rank sends instead."""
    by_rank: dict[int, list[Step]] = {}
    for rank in range(world):
        mine: list[Step] = []
        for micro in range(micros):
            if rank:
                mine.append(_message("recv", rank - 1, 60))
            if rank < world - 1:
                usual = _message("send", rank + 1, 64)
                mine.append(odd(rank, micro) or usual)
            mine.append(Step("wait"))
        by_rank[rank] = [*mine, Step("barrier", line=("main", 70)), Step("wait")]
    return Job(world, {"0": tuple(range(world))}, by_rank)


def _found(folder: Path, tops: Tops, style: Style | None = None) -> Found:
    write(folder, tops, style or Style())
    findings = report_of(folder)["findings"]
    return [(one["code"], sorted(one["ranks"])) for one in findings]


def _left(job: Job, style: Style | None = None) -> Tops:
    return dumps(job, Simulation(job, 5), style or Style())


def _given_up(tops: Tops, *ranks: int) -> Tops:
    """These ranks gave their first open call up at its timeout."""
    for rank in ranks:
        still = [one for one in tops[rank]["entries"] if not one["retired"]]
        still[0]["retired"] = True
    return tops


def test_a_stage_that_stops_is_told_once_any_that_wait_for_it_gave_up(
    tmp_path: Path,
) -> None:
    job = _pipeline(5, 6)
    job.steps[2].insert(9, Step("stop"))
    late = _left(job)
    assert _found(tmp_path / "late", late) == []
    assert _found(tmp_path / "far", _given_up(_left(job), 4)) == [("DD204", [2])]
    everybody = _given_up(_left(job), 0, 1, 3, 4)
    assert _found(tmp_path / "all", everybody) == [("DD204", [2])]


@pytest.mark.parametrize("as_json", [False, True], ids=["stacks", "no stacks"])
@pytest.mark.parametrize(("rank", "peer"), [(1, 3), (2, 0)], ids=["ahead", "back"])
def test_a_message_to_a_wrong_peer_is_told_by_habit(
    rank: int, peer: int, as_json: bool, tmp_path: Path
) -> None:
    def odd(who: int, micro: int) -> Step | None:
        return _message("send", peer, 64) if (who, micro) == (rank, 3) else None

    style = Style(as_json=as_json)
    tops = _left(_pipeline(5, 5, odd), style)
    assert _found(tmp_path, tops, style) == [("DD112", [rank])]


def test_a_message_past_a_stage_that_is_still_on_its_way_is_no_fault(
    tmp_path: Path,
) -> None:
    job = _pipeline(4, 9)
    for rank, peer, op in ((1, 3, "send"), (3, 1, "recv")):
        steps = job.steps[rank]
        for at in reversed([n for n, step in enumerate(steps) if step.op == "wait"]):
            steps.insert(at, _message(op, peer, 64 if op == "send" else 60))
    for rounds in range(4, 16):
        simulation = Simulation(job, rounds, rounds)
        tops = dumps(job, simulation, Style(), at_once=True)
        assert _found(tmp_path / str(rounds), tops) == []


def test_a_stage_without_a_dump_that_messages_wait_for_is_lost(tmp_path: Path) -> None:
    job = _pipeline(4, 5)
    job.steps[2].insert(6, Step("die"))
    assert _found(tmp_path, _left(job)) == [("DD202", [2])]


def _metrics(world: int, extra: tuple[int, ...], *, line: int = 509) -> Job:
    """All reduce two values in each round; some ranks reduce another, of one size."""
    by_rank = {}
    for rank in range(world):
        mine: list[Step] = []
        for number in range(5):
            mine += [all_reduce(1, line=("loss", at)) for at in (500, 503)]
            if number == 2 and rank in extra:
                mine.append(all_reduce(1, line=("metric", line)))
            mine.append(Step("wait"))
        by_rank[rank] = mine
    return Job(world, {"0": tuple(range(world))}, by_rank)


@pytest.mark.parametrize(
    ("world", "extra"), [(8, (0,)), (8, (1, 5)), (2, (1,))], ids=str
)
def test_a_call_made_alone_of_the_same_shape_is_told_by_lines(
    world: int, extra: tuple[int, ...], tmp_path: Path
) -> None:
    tops = _left(_metrics(world, extra))
    assert _found(tmp_path, tops) == [("DD108", [*extra])]


def test_of_two_ranks_the_one_that_broke_its_habit_left_a_call_out(
    tmp_path: Path,
) -> None:
    job = _metrics(2, ())
    at = [n for n, step in enumerate(job.steps[1]) if step.line[1] == 500][3]
    del job.steps[1][at]
    assert _found(tmp_path, _left(job)) == [("DD108", [1])]


def _logged(
    world: int, rank: int, at: range, *, branch: bool = False, last: str = "barrier"
) -> Job:
    """One rank reduces a metric for itself in some steps; all else is as it should be.

    With `branch` each rank has a line of its own for one call of each step.
    """
    by_rank = {}
    for one in range(world):
        mine: list[Step] = []
        for number in range(12):
            mine += [all_reduce(8, line=("sync", 15)), Step("wait")] * 2
            if one == rank and number in at:
                mine += [all_reduce(8, line=("log", 25)), Step("wait")]
            line = ("mean", 60 + one) if branch else ("mean", 30)
            mine += [all_reduce(8, line=line), Step("wait")]
        own = last if one == rank else "barrier"
        by_rank[one] = [*mine, Step(own, line=("main", 40)), Step("wait")]
    return Job(world, {"0": tuple(range(world))}, by_rank)


_GLOO = Style(backend="gloo", prefix="fr_rank_")


@pytest.mark.parametrize("style", [_GLOO, Style()], ids=["gloo", "nccl"])
@pytest.mark.parametrize("at", [(3, 4), (0, 1), (11, 12), (1, 12, 4)], ids=str)
@pytest.mark.parametrize(("world", "rank"), [(2, 0), (2, 1), (3, 0), (4, 2)], ids=str)
def test_a_call_made_alone_long_before_the_fault_is_told_at_its_line(
    world: int, rank: int, at: tuple[int, ...], style: Style, tmp_path: Path
) -> None:
    tops = _left(_logged(world, rank, range(*at)), style)
    assert _found(tmp_path, tops, style) == [("DD108", [rank])]
    (found,) = report_of(tmp_path)["findings"]
    assert found["certainty"] == "likely"
    assert f"call {3 * at[0] + 3} on world" in found["summary"]
    assert {"line": 25} in [{"line": one["line"]} for one in found["locations"]]


@pytest.mark.parametrize("style", [Style(), Style(frames=False)], ids=["lines", "none"])
def test_of_two_ranks_that_go_on_the_one_with_a_call_of_another_size_is_told(
    style: Style, tmp_path: Path
) -> None:
    job = _logged(2, 1, range(3, 4))
    for steps in job.steps.values():
        steps[:] = [
            replace(step, sizes=(((1,),), ((1,),))) if step.line[0] == "log" else step
            for step in steps
            if step.op != "wait"
        ]
    assert _found(tmp_path, _left(job, style), style) == [("DD108", [1])]


def test_ranks_with_lines_of_their_own_are_not_out_of_step(tmp_path: Path) -> None:
    for world in (2, 4):
        own = _left(_logged(world, 0, range(0), branch=True), _GLOO)
        assert _found(tmp_path / f"well {world}", own, _GLOO) == []
        both = _left(_logged(world, 1, range(3, 4), branch=True), _GLOO)
        assert _found(tmp_path / f"shifted {world}", both, _GLOO) == [("DD108", [1])]
        job = _logged(world, 0, range(0), branch=True, last="broadcast")
        ranks = [] if world == 2 else [0]
        unlike = _found(tmp_path / f"unlike {world}", _left(job, _GLOO), _GLOO)
        assert unlike == [("DD101", ranks)]


@pytest.mark.parametrize(("world", "ranks"), [(2, []), (4, [0])], ids=str)
def test_of_a_call_that_has_left_the_ring_only_the_shift_is_told(
    world: int, ranks: list[int], tmp_path: Path
) -> None:
    style = Style(backend="gloo", prefix="fr_rank_", ring=20)
    tops = _left(_logged(world, 0, range(2, 3)), style)
    assert _found(tmp_path, tops, style) == [("DD108", ranks)]
    (found,) = report_of(tmp_path)["findings"]
    assert "lies before the records" in found["summary"]
    assert 15 not in [one["line"] for one in found["locations"]]


def test_a_rank_ahead_that_calls_from_lines_of_its_own_is_no_fault(
    tmp_path: Path,
) -> None:
    for world in (2, 5):
        by_rank = {}
        for rank in range(world):
            mine = [all_reduce(1, line=("setup", 11 if rank else 10))]
            mine += [all_reduce(1, line=("loop", 20)) for _ in range(4 + (rank == 1))]
            by_rank[rank] = mine
        job = Job(world, {"0": tuple(range(world))}, by_rank)
        assert _found(tmp_path / str(world), _left(job)) == []


def _exchange(rows: Callable[[int, int], tuple[int, int]], rounds: int = 4) -> Job:
    by_rank = {}
    for rank in range(4):
        mine: list[Step] = []
        for number in range(rounds):
            given, taken = rows(rank, number)
            sizes = (((given, 16),), ((taken, 16),))
            mine += [Step("all_to_all", sizes=sizes, line=("dispatch", 90))]
            mine += [Step("wait")]
        by_rank[rank] = mine
    return Job(4, {"0": (0, 1, 2, 3)}, by_rank)


def _through(tops: Tops, function: str) -> Tops:
    """The same, called by another function of torch; nobody ends the last call."""
    for top in tops.values():
        for entry in top["entries"]:
            frames = entry["frames"]
            entry["frames"] = [frames[0] | {"name": function}, *frames[1:]]
        top["entries"][-1] |= {
            "state": "scheduled",
            "retired": False,
            "time_discovered_completed_ns": None,
        }
    return tops


def test_all_to_alls_that_move_what_nobody_takes_are_told(tmp_path: Path) -> None:
    def odd(rank: int, number: int) -> tuple[int, int]:
        return 64, 48 if (rank, number) == (2, 3) else 64

    def uneven(rank: int, number: int) -> tuple[int, int]:
        return 64, (40 + 8 * number, 88 - 8 * number, 64, 64)[rank]

    def parts(rank: int, number: int) -> tuple[int, int]:
        return 64, 50 + 7 * rank + number

    known, lists = "all_to_all_single", "all_to_all"
    for name, job, function, codes in (
        ("after fits", _exchange(odd), lists, ["DD106"]),
        ("single", _exchange(lambda r, _: odd(r, 3), 1), known, ["DD106"]),
        ("perhaps of lists", _exchange(lambda r, _: odd(r, 3), 1), lists, []),
        ("uneven", _exchange(uneven), known, []),
        ("of lists", _exchange(parts), lists, []),
    ):
        found = _found(tmp_path / name, _through(_left(job), function))
        assert [code for code, _ in found] == codes, name
        assert all(ranks == [] for _, ranks in found)


def _two_groups(world: int) -> Job:
    half = world // 2
    groups = {
        "0": tuple(range(world)),
        "1": tuple(range(half)),
        "2": tuple(range(half, world)),
    }
    by_rank = {
        rank: [all_reduce(1), all_reduce(4, group="12"[rank >= half])]
        for rank in range(world)
    }
    return Job(world, groups, by_rank)


@pytest.mark.parametrize("is_lazy", [True, False])
def test_a_rank_that_made_its_groups_in_another_order_is_told(
    is_lazy: bool, tmp_path: Path
) -> None:
    tops = _left(_two_groups(8))
    if not is_lazy:
        for rank, top in tops.items():  # the lists of groups in which nobody called
            config = top["pg_config"]
            config.setdefault("12"[rank >= 4], config[[*config][-1]])
    assert _found(tmp_path / "well", tops) == []
    odd = tops[2]
    odd["pg_config"]["2"] = odd["pg_config"].pop("1") | {"name": "2"}
    last = odd["entries"][-1]
    last["process_group"] = ("2", "mesh_2")
    for rank in range(4):
        tops[rank]["entries"][-1] |= {
            "state": "scheduled",
            "retired": False,
            "time_discovered_completed_ns": None,
        }
    assert _found(tmp_path / "sick", tops) == [("DD109", [2])]


def test_groups_whose_numbers_count_otherwise_are_no_fault(tmp_path: Path) -> None:
    tops = _left(_two_groups(8))
    for rank, top in tops.items():
        for entry in top["entries"]:
            entry["pg_id"] = 0  # of a backend that does not count
        if rank > 1:
            del top["entries"][1:]
            del top["pg_config"]["12"[rank >= 4]]
    assert _found(tmp_path, tops) == []


def test_of_two_camps_in_a_circle_the_fewer_are_named_or_all(tmp_path: Path) -> None:
    for odd, ranks in (((1,), [1]), ((2, 3), [0, 1, 2, 3])):
        everyone: tuple[int, ...] = (0, 1, 2, 3)
        groups = dict.fromkeys(("0", "1", "2"), everyone)
        by_rank = {}
        for rank in range(4):
            order = "21" if rank in odd else "12"
            mine = [all_reduce(1), Step("wait")]
            for name in order:
                mine += [all_reduce(5, group=name, line=("aux", int(name)))]
                mine += [Step("wait")]
            by_rank[rank] = mine
        tops = _left(Job(4, groups, by_rank))
        assert _found(tmp_path / str(len(odd)), tops) == [("DD203", ranks)]


def test_groups_are_called_what_users_call_them(tmp_path: Path) -> None:
    tops = _left(_two_groups(8))
    for top in tops.values():
        for entry in top["entries"]:
            name, said = entry["process_group"]
            entry["process_group"] = (name, "mesh_tp" if name != "0" else said)
        for name, group in top["pg_config"].items():
            if name != "0":
                group["desc"] = "mesh_tp"
    for at, named in ((-1, "call 1 on mesh_tp of {0-3}"), (0, "call 1 on world")):
        tops[1]["entries"][at]["input_dtypes"] = ["Half"]
        write(tmp_path, tops, Style())
        (found,) = report_of(tmp_path)["findings"]
        assert named in found["summary"]


def test_ranks_that_nothing_tells_of_are_listed_as_data(tmp_path: Path) -> None:
    tops = _left(_two_groups(8))
    for top in tops.values():
        del top["entries"]
    write(tmp_path, tops, Style())
    report = report_of(tmp_path)
    assert report["findings"] == []
    assert [0, 1, 2, 3, 4, 5, 6, 7] in [
        one.get("ranks") for one in report["not_examined"]
    ]


def _crossing(odd: frozenset[int], rounds: int = 6, *, waits: bool = False) -> Job:
    """Four ranks use two groups of all of them; some begin with the other, once.

    With `waits` each rank looks at what the first of the two gave before it goes on.
    """
    groups = {name: tuple(range(4)) for name in ("0", "tp", "dp")}
    by_rank: dict[int, list[Step]] = {}
    for rank in range(4):
        mine: list[Step] = []
        for number in range(rounds):
            pair = [
                all_reduce(64, group="tp", line=("step", 80)),
                all_reduce(32, group="dp", line=("step", 84)),
            ]
            if number == 3 and rank in odd:
                pair.reverse()
            mine += pair[:1] + [Step("wait")] * waits + pair[1:]
            if number % 2:
                mine.append(Step("wait"))
        by_rank[rank] = mine
    return Job(4, groups, by_rank, in_order=True)


@pytest.mark.parametrize("timing", [False, True], ids=["order alone", "starts known"])
@pytest.mark.parametrize(
    ("odd", "named"),
    [({2}, [2]), ({0, 3}, [0, 1, 2, 3]), ({0, 1, 3}, [2])],
    ids=str,
)
def test_groups_used_in_other_orders_hang_devices_that_have_all_calls(
    odd: set[int], named: list[int], timing: bool, tmp_path: Path
) -> None:
    style = Style(timing=timing)
    left = _left(_crossing(frozenset(odd)), style)
    assert _found(tmp_path, left, style) == [("DD203", named)]


def test_calls_behind_others_on_devices_are_no_circle_in_one_order(
    tmp_path: Path,
) -> None:
    for rounds in range(2, 14):
        for timing in (False, True):
            style = Style(timing=timing)
            job = _crossing(frozenset(), 8)
            tops = dumps(job, Simulation(job, rounds, rounds), style, at_once=True)
            assert _found(tmp_path / f"{rounds}_{timing}", tops, style) == []


def test_calls_that_devices_have_begun_on_all_ranks_wait_for_no_other(
    tmp_path: Path,
) -> None:
    style = Style(timing=True)
    tops = _left(_crossing(frozenset({2})), style)
    for top in tops.values():
        for entry in top["entries"]:
            if entry["state"] == "scheduled":
                entry["state"] = "started"
    assert _found(tmp_path, tops, style) == []


def test_a_rank_that_waits_before_its_second_group_closes_the_circle(
    tmp_path: Path,
) -> None:
    job = _crossing(frozenset({1}))
    waiting = _crossing(frozenset({1}), waits=True)
    job.steps[1] = waiting.steps[1]
    assert _found(tmp_path, _left(job)) == [("DD203", [1])]


def _run_ahead(wrong: int | None) -> Job:
    """Stages whose devices have all messages of a step, and an average behind them.

    In its third step the middle stage gets one gradient from the stage `wrong`.
    """
    groups: dict[str, tuple[int, ...]] = {"0": (0, 1, 2), "dp": (0, 1, 2)}
    by_rank: dict[int, list[Step]] = {rank: [] for rank in range(3)}
    for step in range(4):
        for rank, mine in by_rank.items():
            for _ in range(2):
                mine += [_message("recv", rank - 1, 60)] * (rank > 0)
                mine += [_message("send", rank + 1, 60)] * (rank < 2)
            for micro in range(2):
                after = wrong if (step, micro) == (3, 0) and rank == 1 else None
                peer = rank + 1 if after is None else after
                mine += [_message("recv", peer, 60)] * (rank < 2)
                mine += [_message("send", rank - 1, 60)] * (rank > 0)
            mine.append(all_reduce(32, group="dp", line=("step", 84)))
            mine += [Step("wait")] * (step < 3)
    return Job(3, groups, by_rank, in_order=True)


def test_a_message_to_another_peer_than_each_time_before_is_told(
    tmp_path: Path,
) -> None:
    assert _found(tmp_path / "sick", _left(_run_ahead(0))) == [("DD112", [1])]
    assert _found(tmp_path / "well", _left(_run_ahead(None))) == []
    for rounds in range(4, 24):
        job = _run_ahead(None)
        tops = dumps(job, Simulation(job, rounds, rounds), Style(), at_once=True)
        assert _found(tmp_path / str(rounds), tops) == []
