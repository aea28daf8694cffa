"""A folder of stack dumps as evidence."""

import gzip
from pathlib import Path

from stack_dumps import faulthandler_text, py_spy_text, write_job

from distdoctor.judging import judge_run
from distdoctor.model.outside_view import StackBranch
from distdoctor.postmortem.evidence_run import manifest_of, run_of
from distdoctor.postmortem.job_evidence import Evidence
from distdoctor.postmortem.recognising import gather
from distdoctor.postmortem.stacks.stack_reader import READER
from distdoctor.report.stack_text import stack_lines
from distdoctor.report.text import render


def gathered(folder: Path) -> Evidence:
    return gather([str(folder)], [READER])


def leaves(branches: tuple[StackBranch, ...]) -> dict[str, tuple[int, ...]]:
    """By innermost function, the ranks that are there."""
    found = {}
    for branch in branches:
        if branch.ending:
            found[branch.function] = branch.ranks
        found |= leaves(branch.branches)
    return found


def test_the_odd_rank_of_a_thousand_is_seen(tmp_path: Path) -> None:
    write_job(tmp_path, 1_000, 617, "node{host:03d}_{local}.txt")
    evidence = gathered(tmp_path)
    found = leaves(evidence.stack_tree)
    assert found["read_shard"] == (617,)
    assert found["all_reduce"] == tuple(n for n in range(1_000) if n != 617)
    assert evidence.world_size == 1_000
    text = "\n".join(stack_lines(evidence.stack_tree))
    assert "rank 617: train_step train.py:27" in text
    assert "ranks {0-616,618-999}" in text


def test_one_look_proves_nothing(tmp_path: Path) -> None:
    write_job(tmp_path, 8, 3)
    evidence = gathered(tmp_path)
    run = run_of(evidence)
    judged = judge_run(run, manifest_of(evidence, ["d"], "/"))
    assert judged.report.verdict == "unknown"
    assert judged.report.findings == []
    assert [one.depth for one in judged.report.stacks] == [0, 1, 2, 3, 4, 2, 3, 4]
    assert any("rank 3: at data/shards.py:12" in one for one in judged.report.remarks)
    assert "rank 3: train_step train.py:27" in render(judged.report, run)


def test_dumps_of_several_tools_and_packed_ones_are_one_job(tmp_path: Path) -> None:
    (tmp_path / "rank0.txt").write_text(py_spy_text(0))
    (tmp_path / "rank1.log").write_text(faulthandler_text())
    with gzip.open(tmp_path / "rank2.txt.gz", "wt") as file:
        file.write(py_spy_text(2, stuck=True))
    (tmp_path / "notes.md").write_text("nothing of the kind")
    evidence = gathered(tmp_path)
    assert sorted(evidence.stacks) == [0, 1, 2]
    assert len(evidence.left_out) == 1


def test_ranks_named_inside_a_file_are_kept_apart(tmp_path: Path) -> None:
    text = "".join(
        f"=== rank {rank} ===\n{py_spy_text(rank, stuck=rank == 1)}"
        for rank in range(3)
    )
    (tmp_path / "all.txt").write_text(text)
    evidence = gathered(tmp_path)
    assert leaves(evidence.stack_tree)["read_shard"] == (1,)
    assert sorted(evidence.stacks) == [0, 1, 2]


def test_lines_that_a_launcher_marked_belong_to_its_rank(tmp_path: Path) -> None:
    lines = [
        f"[rank{rank}]:{line}"
        for rank in range(2)
        for line in py_spy_text(rank, stuck=rank == 1).splitlines()
    ]
    (tmp_path / "all.txt").write_text("\n".join(lines))
    assert leaves(gathered(tmp_path).stack_tree)["read_shard"] == (1,)


def test_dumps_without_ranks_name_nobody(tmp_path: Path) -> None:
    for pid in (4711, 4713):
        (tmp_path / f"py-spy-{pid}.txt").write_text(py_spy_text(0))
    evidence = gathered(tmp_path)
    assert not evidence.stacks
    assert any("name no rank" in one for one in evidence.remarks)
    assert sum(one.startswith("2 of them: ") for one in evidence.remarks) == 1


def test_a_broken_file_is_listed(tmp_path: Path) -> None:
    (tmp_path / "rank0.json").write_text(
        '[{"os_thread_id": 1, "thread_id": 2, "frames": 5}]'
    )
    (tmp_path / "rank1.txt").write_text(py_spy_text(1))
    evidence = gathered(tmp_path)
    assert [Path(path).name for path, _ in evidence.unreadable] == ["rank0.json"]


def test_deep_recursion_is_merged_and_shown() -> None:
    from distdoctor.postmortem.stacks.stack_tree import merged
    from distdoctor.postmortem.stacks.thread_stacks import StackLine

    deep = [StackLine("t.py", n, "f") for n in range(1, 400)]
    tree = merged({0: deep, 1: deep[5:]})
    assert stack_lines(tree)
