"""Faults made by rule: what operators make of a program, and how a report is judged."""

import ast
from pathlib import Path
from typing import Any

import pytest
from by_rule.bases import Base, Trace
from by_rule.faulted import OPERATORS, Fault, made_in
from by_rule.kept import Results
from by_rule.mutating import is_hang_called_well, is_strict, judged, sample, summary
from by_rule.programs import program_of, programs_in

PROGRAM = """\
import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, DistributedSampler

dist.init_process_group("gloo")
rank = dist.get_rank()
sampler = DistributedSampler(data)
loader = DataLoader(data, batch_size=4, sampler=sampler)
model = DDP(net)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)


def report(total):
    dist.all_reduce(total)
    dist.broadcast(total, src=0)


for epoch in range(3):
    sampler.set_epoch(epoch)
    for i, (x, y) in enumerate(loader):
        loss = criterion(model(x), y) / 4
        loss.backward()
        if (i + 1) % 4 == 0 or i + 1 == len(loader):
            optimizer.step()
            optimizer.zero_grad()
    for batch in loader:
        model(batch).sum().backward()
    report(torch.zeros(3))
    if rank == 0:
        torch.save(model.state_dict(), "checkpoint.pt")
"""

LINES = PROGRAM.splitlines()


def base(text: str = PROGRAM, ranks: int = 3) -> Base:
    """A program of which every rank runs every line twelve times."""
    counts = dict.fromkeys(range(1, len(text.splitlines()) + 1), 12)
    for line, source in enumerate(text.splitlines(), start=1):
        if source.strip().startswith("for "):
            counts[line] = 13
        if "optimizer.step" in source:
            counts[line] = 4
    trace = Trace(counts, frozenset(counts), frozenset(counts))
    return Base("program", text, ranks, [trace] * ranks)


def made(operator: str, text: str = PROGRAM, ranks: int = 3) -> list[Fault]:
    return list(OPERATORS[operator](base(text, ranks)))


def line_of(text: str) -> int:
    return next(at for at, line in enumerate(LINES, start=1) if text in line)


def changed(fault: Fault) -> list[str]:
    """Lines of the faulty program that the healthy one lacks."""
    return [line for line in fault.text.splitlines() if line not in LINES]


def test_there_are_enough_operators() -> None:
    assert len(OPERATORS) >= 25
    assert all(function.__doc__ for function in OPERATORS.values())


def test_each_fault_is_another_program_and_lies_in_it() -> None:
    faults = list(made_in(base()))
    assert len({one.operator for one in faults}) >= 20
    for fault in faults:
        compile(fault.text, fault.operator, "exec")
        assert fault.text != PROGRAM
        assert max(fault.lines) <= len(fault.text.splitlines())
        assert all(set(ranks) <= {0, 1, 2} for ranks in fault.culprits)
        assert fault.codes


def test_a_collective_is_guarded_by_a_rank() -> None:
    first, second = made("call_on_one_rank")
    rank = line_of("dist.all_reduce") % 3
    assert changed(first) == [
        f"    if dist.get_rank() == {rank}:",
        "        dist.all_reduce(total)",
    ]
    assert first.lines == (15, 16)
    assert first.culprits == (frozenset({rank}),)
    assert second.lines == (16, 17)


def test_of_two_ranks_the_one_inside_or_the_one_that_skips_may_be_named() -> None:
    fault = made("call_on_all_but_one", ranks=2)[0]
    assert set(fault.culprits) == {frozenset({0}), frozenset({1})}
    assert len(made("call_on_all_but_one", ranks=4)[0].culprits) == 1


def test_neighbours_are_swapped_on_one_rank() -> None:
    (fault,) = made("calls_swapped")
    assert [line.strip() for line in fault.text.splitlines()[14:21]] == [
        "if dist.get_rank() == 0:",
        "dist.broadcast(total, src=0)",
        "dist.all_reduce(total)",
        "else:",
        "dist.all_reduce(total)",
        "dist.broadcast(total, src=0)",
        "pass",
    ]


@pytest.mark.parametrize(
    ("operator", "expected"),
    [
        ("other_shape", "dist.all_reduce(total.detach().reshape(-1).repeat(2))"),
        ("other_dtype", "dist.all_reduce(total.detach().short())"),
        ("other_reduction", "dist.all_reduce(total, op=dist.ReduceOp.MAX)"),
        ("other_root", "dist.broadcast(total, src=1)"),
        ("loop_left_by_one_rank", "break"),
        ("round_skipped_by_one_rank", "continue"),
        ("sampler_left_out", "loader = DataLoader(data, batch_size=4)"),
        (
            "sampler_of_rank_0",
            "sampler = DistributedSampler(data, num_replicas=3, rank=0)",
        ),
        ("epoch_not_set", "pass"),
        ("loss_not_divided", "loss = criterion(model(x), y)"),
        ("remainder_dropped", "if (i + 1) % 4 == 0:"),
        (
            "optimizer_misses_some",
            "optimizer = torch.optim.SGD(list(model.parameters())[1:], lr=0.1)",
        ),
        ("unwrapped_forward", "loss = criterion(model.module(x), y) / 4"),
        ("exception_on_one_rank", 'raise ValueError("a broken record")'),
        ("rank_exits", '__import__("os")._exit(1)'),
        ("late_unfreeze", "next(model.parameters()).requires_grad_(True)"),
    ],
)
def test_an_operator_changes_what_it_says(operator: str, expected: str) -> None:
    fault = made(operator)[0]
    assert expected in [line.strip() for line in changed(fault)]
    near = fault.text.splitlines()[fault.lines[0] - 1 : fault.lines[1]]
    assert expected in [line.strip() for line in near]


MESSAGES = """import torch.distributed as dist
rank = dist.get_rank()
dist.send(total, dst=rank + 1)
"""


def test_a_message_goes_to_another() -> None:
    fault = made("message_to_another", MESSAGES, ranks=3)[0]
    (line,) = changed(fault)
    assert line.startswith("dist.send(total, dst=((rank + 1) + (")
    assert line.endswith(") % 3)")
    assert not made("message_to_another", MESSAGES, ranks=2)


def test_a_loss_that_is_not_scaled_is_one_expression() -> None:
    loss = "criterion(model(x), y) / 4"
    text = PROGRAM.replace("loss.backward()", f"scaler.scale({loss}).backward()")
    fault = made("backward_past_scaler", text)[0]
    assert [one.strip() for one in changed(fault)] == [f"({loss}).backward()"]


def test_a_state_is_loaded_by_one_rank() -> None:
    text = PROGRAM + "optimizer.load_state_dict(torch.load('state.pt'))\n"
    fault = made("state_loaded_by_one_rank", text)[0]
    assert fault.text.splitlines()[-2:] == [
        "if dist.get_rank() == 0:",
        "    optimizer.load_state_dict(torch.load('state.pt'))",
    ]
    assert set(fault.culprits) == {frozenset({0}), frozenset({1, 2})}


def test_a_swallowed_exception_surrounds_the_whole_round() -> None:
    fault = made("exception_swallowed")[0]
    tries = [one for one in ast.walk(ast.parse(fault.text)) if isinstance(one, ast.Try)]
    assert len(tries) == 1
    assert "loss.backward()" in ast.unparse(tries[0])
    assert ast.unparse(tries[0]).endswith("continue")


def test_what_was_not_run_by_all_ranks_is_left_alone() -> None:
    counts = dict.fromkeys(range(1, len(LINES) + 1), 12)
    some = dict(counts)
    del some[line_of("dist.all_reduce")]
    grouped = frozenset(counts)
    traces = [Trace(counts, grouped, grouped), Trace(some, grouped, grouped)]
    faults = list(OPERATORS["call_on_one_rank"](Base("program", PROGRAM, 2, traces)))
    assert [fault.lines for fault in faults] == [(16, 17)]


def test_a_rank_is_not_asked_for_before_there_is_a_group() -> None:
    counts = dict.fromkeys(range(1, len(LINES) + 1), 12)
    traces = [Trace(counts, frozenset(), frozenset())] * 2
    lonely = Base("program", PROGRAM, 2, traces)
    assert not list(OPERATORS["call_on_one_rank"](lonely))


def test_a_loop_in_which_ranks_do_not_meet_may_be_left() -> None:
    counts = dict.fromkeys(range(1, len(LINES) + 1), 12)
    everywhere = frozenset(counts)
    apart = [Trace(counts, everywhere, frozenset())] * 2
    lonely = Base("program", PROGRAM, 2, apart)
    assert not list(OPERATORS["loop_left_by_one_rank"](lonely))


def report(verdict: str = "sick", **finding: Any) -> dict[str, Any]:
    one = {"code": "DD108", "severity": "error", "ranks": [1]}
    one["locations"] = [{"line": 40}, {"line": 14}]
    run = {"stopped": "", "exit_code": 0, "exit_codes": {"0": 0}}
    return {"verdict": verdict, "findings": [one | finding], "run": run}


def test_code_ranks_and_line_must_be_one_findings() -> None:
    fault = made("call_on_one_rank")[0]
    rank = next(iter(fault.culprits[0]))
    assert is_strict(judged(fault, report(ranks=[rank])))
    assert not judged(fault, report(ranks=[(rank + 1) % 3]))["ranks"]
    assert not judged(fault, report(ranks=[rank], code="DD101"))["code"]
    assert not judged(fault, report(ranks=[rank], severity="warning"))["code"]
    far = report(ranks=[rank], locations=[{"line": 22}])
    assert judged(fault, far) == {"code": True, "ranks": True, "line": False}


def test_of_a_fault_of_all_ranks_all_or_none_are_named() -> None:
    fault = made("unwrapped_forward")[0]
    place = [{"line": fault.lines[0]}]
    for ranks, right in (([], True), ([0, 1, 2], True), ([1], False)):
        judgement = judged(fault, report(code="DD404", ranks=ranks, locations=place))
        assert is_strict(judgement) is right


def test_a_job_that_was_ended_is_not_well() -> None:
    well = report("well")
    assert not is_hang_called_well(well)
    assert is_hang_called_well(well | {"run": well["run"] | {"stopped": "budget"}})
    failed = well["run"] | {"exit_code": None, "exit_codes": {"0": 0, "1": -9}}
    assert is_hang_called_well(well | {"run": failed})


def test_a_sample_has_some_of_each_operator_and_is_the_same_again() -> None:
    faults = list(made_in(base()))
    names = {one.operator for one in faults}
    chosen = sample(faults, len(names), seed=1)
    assert {one.operator for one in chosen} == names
    assert chosen == sample(faults, len(names), seed=1)
    assert len(sample(faults, 0, seed=0)) == len(faults)


def test_results_are_kept_and_summed_up(tmp_path: Path) -> None:
    file = tmp_path / "results.jsonl"
    faults = made("call_on_one_rank")
    rank = sorted(faults[0].culprits[0])
    result = {"report": report(ranks=rank), "seconds": 1.0, "path": "one.py"}
    Results(file).add(faults[0].key, result)
    text = "\n".join(summary(faults, Results(file)))
    assert "call_on_one_rank" in text
    assert "100.0%" in text
    assert "called well: 0" in text


def test_programs_name_their_ranks_and_arguments(tmp_path: Path) -> None:
    (tmp_path / "a.py").write_text("# ranks: 2-4\n# arguments: --lr 0.1\n")
    (tmp_path / "b.py").write_text("RANKS: Final = 3\n")
    one, other = programs_in([tmp_path])
    assert (one.ranks, one.arguments) == ((2, 3, 4), ("--lr", "0.1"))
    assert other.ranks == (3,)
    assert program_of(tmp_path / "b.py") == other
