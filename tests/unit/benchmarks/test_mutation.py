"""The mutation benchmark: what it plants, and how it counts."""

import ast
from collections import Counter
from collections.abc import Iterator

import pytest
import torch
from mutants import AMP, AnchorLost, Edit, Mutant, add, drop, move, mutated, swap
from mutation import (
    UNMUTATED,
    Result,
    caught_by_properties,
    source_of,
    summary,
)
from planted import MUTANTS
from step_properties import JOBS, PROPERTIES
from textbook import CASES


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    """Tiny tensors on a busy machine: several threads would wait for each other."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


SOURCE = """\
def step(batches):
    total = 0
    for batch in batches:
        total += batch
    return total
"""


def planted(*edits: Edit, within: str = "step") -> str:
    return mutated(SOURCE, Mutant("job", "name", [(within, edit) for edit in edits]))


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.label)
def test_a_mutant_is_another_program(mutant: Mutant) -> None:
    source = source_of(mutant)
    pristine = (JOBS / f"{mutant.job}.py").read_text()
    assert ast.dump(ast.parse(source)) != ast.dump(ast.parse(pristine))
    compile(source, mutant.label, "exec")


def test_there_are_enough_of_each_kind() -> None:
    assert max(Counter(one.label for one in MUTANTS).values()) == 1
    assert {one.job for one in MUTANTS} == set(PROPERTIES)
    assert sum(not one.equivalent for one in MUTANTS) >= 60
    assert sum(one.equivalent for one in MUTANTS) >= 20
    assert all(bool(one.codes) != one.equivalent for one in MUTANTS)


@pytest.mark.parametrize(
    ("label", "by"),
    [
        ("amp_accumulation:not_divided", "amp_accumulated_is_full_batch"),
        ("token_accumulation:mean_of_means", "tokens_accumulated_is_full_batch"),
        ("trust_ratio:no_sync_inverted", "trust_step_is_full_batch"),
        ("checkpointed:random_state_forgotten", "checkpointed_is_plain"),
    ],
)
def test_a_fault_is_told_by_a_property(label: str, by: str) -> None:
    (mutant,) = [one for one in MUTANTS if one.label == label]
    result = caught_by_properties(mutant, CASES[:1])
    assert (result["told"], result["by"]) == (True, by)


@pytest.mark.parametrize("job", PROPERTIES)
def test_jobs_as_they_are_have_no_fault(job: str) -> None:
    unmutated = next(one for one in UNMUTATED if one.job == job)
    assert source_of(unmutated) == (JOBS / f"{job}.py").read_text()
    assert caught_by_properties(unmutated, CASES[1:3]) == {"told": False}


def test_lines_are_dropped_moved_and_added() -> None:
    assert planted(drop("total += batch")) == SOURCE.replace("total += batch", "pass")
    moved = planted(move("total = 0", after="for batch in batches:"))
    assert moved.splitlines()[1:4] == [
        "    pass",
        "    for batch in batches:",
        "        total = 0",
    ]
    doubled = planted(add("total += batch", after="total += batch"))
    assert doubled.count("        total += batch\n") == 2


@pytest.mark.parametrize(
    ("edit", "within"),
    [
        (drop("total += batches"), "step"),
        (swap("total", "sum"), "step"),  # there more than once
        (swap("product", "sum"), "step"),
        (drop("total = 0"), "stride"),
        (drop("total = 0"), "step.inner"),
    ],
)
def test_an_edit_that_does_not_fit_is_told(edit: Edit, within: str) -> None:
    with pytest.raises(AnchorLost, match=r"job:name, in st"):
        planted(edit, within=within)


def test_shares_and_alarms() -> None:
    right, missed = (Mutant(AMP, name, (), "DD501") for name in ("right", "missed"))
    same = Mutant(AMP, "same", (), equivalent=True)
    found: Result = {"told": True, "findings": ["DD501 error"]}
    results: dict[tuple[str, str], Result] = {
        ("checks", right.label): found,
        ("checks", missed.label): {"told": False, "findings": ["DD501 warning"]},
        ("checks", same.label): found,
        ("properties", right.label): {"told": False},
        ("properties", missed.label): {"told": False},
        ("properties", same.label): {"told": False},
    }
    assert list(summary([right, missed, same], results)) == [
        "checks: 1 of 2 told, 50.0%",
        "  missed: amp_accumulation:missed (DD501); only DD501 warning",
        "properties: 0 of 2 told, 0.0%",
        "  missed: amp_accumulation:right (DD501); only DD501 error",
        "  missed: amp_accumulation:missed (DD501); only DD501 warning",
        "checks or properties: 1 of 2 told, 50.0%",
        "  missed: amp_accumulation:missed (DD501); only DD501 warning",
        "checks, by the code that was meant: 2 of 2",
        "checks: 1 alarms at 1 that are no fault",
        "  alarm: amp_accumulation:same: ['DD501 error']",
        "properties: 0 alarms at 1 that are no fault",
    ]
