"""Looks at the nodes of a job, saved on each and judged as one."""

import json
import random
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from living_jobs import Acts, evidence, seen_part, waits

from distdoctor.errors import LeavingsMissing
from distdoctor.judging import Judgement, judge_run
from distdoctor.postmortem.evidence_run import manifest_of, run_of
from distdoctor.postmortem.job_evidence import Evidence
from distdoctor.postmortem.leavings import Leaving
from distdoctor.postmortem.living.listed_processes import LivingProcess
from distdoctor.postmortem.living.rank_views import in_words
from distdoctor.postmortem.living.saved_parts import READER, save
from distdoctor.postmortem.living.seen_job import JobPart
from distdoctor.postmortem.recognising import gather

NOON_S = 1_800_000_000.0
STUCK = Acts(stack=("read d.py:3", "step t.py:9"))
HANGING = {0: waits(), 1: waits(), 2: waits(), 3: STUCK}
APART = {0: waits(), 1: waits(), 2: waits(), 3: waits("barrier", "end t.py:9")}


def part(host: str, begun_s: float = NOON_S, **ranks: Acts) -> JobPart:
    """What is seen on one of two machines with two ranks each."""
    acts = {int(name[1:]): one for name, one in ranks.items()}
    seen = seen_part(acts, 4, size_here=2)
    views = {
        rank: replace(view, pid=4_000 + n)  # as in containers: the same on each
        for n, (rank, view) in enumerate(seen.views.items())
    }
    return replace(seen, host=host, begun_s=begun_s, views=views)


def halves(job: dict[int, Acts], later_s: float = 0.0) -> list[JobPart]:
    """A job of four ranks on two machines."""
    return [
        part("a", NOON_S, r0=job[0], r1=job[1]),
        part("b", NOON_S + later_s, r2=job[2], r3=job[3]),
    ]


def told(parts: list[JobPart], folder: Path) -> Evidence:
    for one in parts:
        save(one, folder)
    return gather([str(folder)])


def judged(found: Evidence) -> Judgement:
    return judge_run(run_of(found), manifest_of(found, ["looks"], "/job"))


def findings(found: Evidence) -> list[tuple[str, list[int], str]]:
    return [(one.code, one.ranks, one.summary) for one in judged(found).report.findings]


@pytest.mark.parametrize("job", [HANGING, APART, {n: waits() for n in range(4)}])
def test_two_nodes_are_told_as_one(job: dict[int, Acts], tmp_path: Path) -> None:
    here, there = evidence(job), told(halves(job), tmp_path)
    assert findings(there) == findings(here)
    assert run_of(there).stacks.keys() == run_of(here).stacks.keys()
    assert there.stack_tree == here.stack_tree
    assert judged(there).report.verdict == judged(here).report.verdict


def test_processes_with_one_number_are_kept_apart(tmp_path: Path) -> None:
    found = told(halves(HANGING), tmp_path)
    reported = {one.rank: (one.host, one.pid) for one in found.processes}
    assert reported == {0: ("a", 4000), 1: ("a", 4001), 2: ("b", 4000), 3: ("b", 4001)}
    assert [one.condition for one in found.processes] == [*["waiting"] * 3, "stuck"]


@pytest.mark.parametrize("missing", [0, 1])
def test_a_node_that_is_missing_accuses_nobody(missing: int, tmp_path: Path) -> None:
    parts = halves(HANGING)
    del parts[missing]
    found = told(parts, tmp_path)
    host = "ba"[missing]
    absent = [0, 1] if missing == 0 else [2, 3]
    assert found.unseen == dict.fromkeys(
        absent, f"it is not on {host}: look at its machine as well"
    )
    assert findings(found) == []
    assert judged(found).report.verdict == "unknown"


@pytest.mark.parametrize(("later_s", "is_told"), [(0.5, True), (12.0, False)])
def test_looks_count_as_far_as_they_were_together(
    later_s: float, is_told: bool, tmp_path: Path
) -> None:
    found = told(halves(HANGING, later_s), tmp_path)
    # For so long the looks at DD204 have to last; the rest is of one node alone.
    assert [one[0] for one in findings(found)] == (["DD204"] if is_told else [])


def test_looks_at_other_times_say_so(tmp_path: Path) -> None:
    found = told(halves(HANGING, 600.0), tmp_path)
    assert findings(found) == []
    report = judged(found).report
    assert report.verdict == "unknown"
    assert any(
        "not looked at at the same time" in gap.why for gap in report.not_examined
    )
    assert [one.condition for one in found.processes] == [*["waiting"] * 3, "stuck"]


def test_a_look_at_another_job_is_set_aside(tmp_path: Path) -> None:
    other = part("c", r0=waits(), r1=waits())
    identities = {
        rank: replace(one, job="other") for rank, one in other.identities.items()
    }
    parts = [*halves(HANGING), replace(other, identities=identities)]
    found = told(parts, tmp_path)
    assert [why for _, why in found.set_aside] == [
        "it is of another job than the others"
    ]
    assert findings(found) == findings(evidence(HANGING))


def test_of_two_looks_at_a_node_the_later_counts(tmp_path: Path) -> None:
    first = part("a", NOON_S - 60, r0=STUCK, r1=waits())
    save(first, tmp_path / "first")
    found = told(halves(HANGING), tmp_path)
    assert [why for _, why in found.set_aside] == [
        "a later look has ranks {0-1} as well"
    ]
    assert findings(found) == findings(evidence(HANGING))


def test_ranks_of_which_nothing_tells_the_job_are_not_joined(tmp_path: Path) -> None:
    parts = [replace(one, identities={}) for one in halves(HANGING)]
    found = told(parts, tmp_path)
    assert [why for _, why in found.set_aside] == [
        "nothing in the environment of its ranks tells the job"
    ]
    assert findings(found) == []


def test_a_file_has_no_texts_of_variables_and_no_secrets(tmp_path: Path) -> None:
    acts = Acts(stack=("f t.py:3",), variables=[{"step": "7", "name": "'hunter2'"}])
    seen = part("a", r0=acts)
    helper = LivingProcess(9, 1, ("curl", "--api-key=ghp_" + "a" * 36))
    with_helper = replace(seen.views[0], helpers=in_words([helper]))
    path = save(replace(seen, views={0: with_helper}), tmp_path)
    text = path.read_text()
    assert '"step":"7"' in text
    assert "hunter2" not in text
    assert "ghp_" not in text
    assert "curl" in text
    assert path.stat().st_mode & 0o077 == 0


def changed(value: Any, chance: random.Random) -> Any:
    """A value of JSON with something in it that is not as it was."""
    if isinstance(value, dict) and value and chance.random() < 0.9:
        key = chance.choice([*value])
        return {**value, key: changed(value[key], chance)}
    if isinstance(value, list) and value and chance.random() < 0.9:
        at = chance.randrange(len(value))
        return [*value[:at], changed(value[at], chance), *value[at + 1 :]]
    return chance.choice([None, -1, 1 << 40, 1e300, "x" * 99, [], {}, {"999999": {}}])


@pytest.mark.parametrize("seed", range(200))
def test_hostile_files_are_unreadable_and_no_more(seed: int, tmp_path: Path) -> None:
    paths = [save(one, tmp_path) for one in halves(APART)]
    content = json.loads(paths[0].read_text())
    content["part"] = changed(content["part"], random.Random(seed))
    paths[0].write_text(json.dumps(content, separators=(",", ":")))
    found = Evidence()
    READER.read([Leaving(str(path), path.stat().st_size) for path in paths], found)
    assert judged(found).report.verdict in {"unknown", "sick"}


def test_a_file_of_another_release_is_told_as_that(tmp_path: Path) -> None:
    (path,) = [save(one, tmp_path) for one in halves(APART)[:1]]
    path.write_text(path.read_text().replace("node-look/1", "node-look/9"))
    ((_, why),) = gather([str(path)]).unreadable
    assert "and this release has distdoctor.node-look/1" in why


def test_a_folder_that_cannot_be_written_is_told(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(LeavingsMissing, match="give another folder"):
        save(halves(APART)[0], tmp_path / "file" / "looks")
