"""Many ranks: the same faults are found as on few, with exactly the ranks at fault."""

from collections.abc import Mapping

import pytest
from generated import Mesh, Step, Tail, died, finished, generate

from distdoctor.analysis.causes import Cause, Divergence
from distdoctor.analysis.divergence.cascade import divergences
from distdoctor.analysis.sentences import finding, sentence
from distdoctor.catalogue import every_check
from distdoctor.examination.concluding import conclude
from distdoctor.examination.examining import examine
from distdoctor.examination.waivers import Waiving
from distdoctor.journal.folder import Manifest
from distdoctor.model.events import WORLD
from distdoctor.model.findings import Sick
from distdoctor.model.run import Run, ranges
from distdoctor.report import text
from distdoctor.report.compose import compose

CALLS = 50
ON_WORLD = [Step(WORLD, line) for line in (10, 20, 30)]
ON_MESH = [Step("dp", 10), Step("tp", 20), Step("pp", 30)]
OTHER = [Step(WORLD, 10, "float16")]
MESHES = [(2, 2, 2), (8, 4, 2), (16, 8, 8), (64, 8, 8)]

Fault = tuple[Cause, tuple[int, ...]]


def on_world(ranks: int, tails: Mapping[int, Tail]) -> Run:
    return generate(Mesh({"all": ranks}), ON_WORLD, CALLS, tails)


def mesh_of(sizes: tuple[int, int, int]) -> Mesh:
    return Mesh(dict(zip(("dp", "tp", "pp"), sizes, strict=True)))


def faults(run: Run) -> list[Fault]:
    return [(found.why, found.culprits) for found in divergences(run)]


def circle_of(found: Divergence) -> set[int]:
    assert found.why is Cause.CIRCLE
    return set(found.calls)


@pytest.mark.parametrize("ranks", [3, 64, 800, 4096])
def test_one_rank_with_another_dtype(ranks: int) -> None:
    for culprit in {0, ranks // 3, ranks - 1}:
        run = on_world(ranks, {culprit: OTHER})
        assert faults(run) == [(Cause.DTYPE, (culprit,))]
        assert len(divergences(run)[0].victims) == ranks - 1


def test_of_two_ranks_none_is_the_odd_one() -> None:
    assert faults(on_world(2, {1: OTHER})) == [(Cause.DTYPE, ())]


@pytest.mark.parametrize("ranks", [8, 800, 4096])
def test_several_ranks_with_another_dtype(ranks: int) -> None:
    culprits = (1, ranks // 2, ranks - 1)
    run = on_world(ranks, dict.fromkeys(culprits, OTHER))
    assert faults(run) == [(Cause.DTYPE, culprits)]


@pytest.mark.parametrize("ranks", [2, 64, 4096])
def test_an_absent_rank(ranks: int) -> None:
    culprit = ranks // 2
    dead = on_world(ranks, {culprit: died(culprit, 12)})
    assert faults(dead) == [(Cause.DIED, (culprit,))]
    left = on_world(ranks, {culprit: finished(culprit, 12)})
    assert faults(left) == [(Cause.FINISHED, (culprit,))]


@pytest.mark.parametrize("sizes", MESHES)
def test_a_rank_absent_on_all_its_groups_is_one_fault(
    sizes: tuple[int, int, int],
) -> None:
    mesh = mesh_of(sizes)
    culprits = sorted({mesh.rank(dp=1, tp=1), mesh.rank(dp=1, pp=1)})
    run = generate(mesh, ON_MESH, CALLS, {r: died(r, 12) for r in culprits})
    found = faults(run)
    assert {why for why, _ in found} == {Cause.DIED}
    assert sorted(rank for _, ranks in found for rank in ranks) == culprits


@pytest.mark.parametrize("sizes", MESHES)
def test_a_circle_across_the_groups_of_a_mesh(sizes: tuple[int, int, int]) -> None:
    mesh = mesh_of(sizes)
    turned = [Step("tp", 20), Step("dp", 10)]
    run = generate(
        mesh, ON_MESH, CALLS, {mesh.rank(dp=1): turned, mesh.rank(tp=1): turned}
    )
    (found,) = divergences(run)
    assert circle_of(found) == {
        *(mesh.rank(), mesh.rank(dp=1), mesh.rank(tp=1), mesh.rank(dp=1, tp=1))
    }
    assert found.culprits == ()


@pytest.mark.parametrize("sizes", MESHES[1:])
def test_one_wrong_line_is_one_fault_on_many_groups(
    sizes: tuple[int, int, int],
) -> None:
    mesh = mesh_of(sizes)
    wrong = [Step("tp", 20, "float16")]
    tails = {
        mesh.rank(dp=d, tp=1, pp=p): [ON_MESH[0], *wrong]
        for d in range(sizes[0])
        for p in range(sizes[2])
    }
    run = generate(mesh, ON_MESH, CALLS, tails)
    assert faults(run) == [(Cause.DTYPE, tuple(sorted(tails)))]
    (found,) = divergences(run)
    assert f"The same {sizes[0] * sizes[2] - 1} more times" in sentence(found)
    assert len(finding(found).exhibits) == len(finding(found).locations) == 2


@pytest.mark.parametrize("sizes", MESHES[2:])
def test_faults_that_do_not_touch_are_told_each_once(
    sizes: tuple[int, int, int],
) -> None:
    """A wrong dtype in one group, a call too many in another, a death in a third."""
    mesh = mesh_of(sizes)
    dtype, line = mesh.rank(dp=0, tp=1, pp=0), mesh.rank(dp=1, tp=2, pp=1)
    dead = mesh.rank(dp=2, tp=3, pp=2)
    tails: dict[int, Tail] = {
        dtype: [ON_MESH[0], Step("tp", 20, "float16")],
        line: [ON_MESH[0], Step("tp", 25, "float64")],
        dead: [ON_MESH[0], *died(dead, 12)],
    }
    found = faults(generate(mesh, ON_MESH, CALLS, tails))
    assert sorted(found) == sorted(
        [(Cause.DTYPE, (dtype,)), (Cause.SKIPPED, (line,)), (Cause.DIED, (dead,))]
    )


def test_a_circle_beside_a_mismatch_is_told_too() -> None:
    """Where the ranks of the circle do not wait for the mismatch."""
    mesh = Mesh({"half": 2, "dp": 8, "tp": 8})
    turned = [Step("tp", 20), Step("dp", 10)]
    steps = [Step("dp", 10), Step("tp", 20)]
    mine = {mesh.rank(half=1, dp=1): turned, mesh.rank(half=1, tp=1): turned}
    wrong = mesh.rank(half=0, dp=3)
    run = generate(mesh, steps, CALLS, {**mine, wrong: [Step("dp", 10, "float16")]})
    mismatch, circle = divergences(run)
    assert (mismatch.why, mismatch.culprits) == (Cause.DTYPE, (wrong,))
    assert circle_of(circle) == {
        *mine,
        mesh.rank(half=1),
        mesh.rank(half=1, dp=1, tp=1),
    }
    assert all(rank >= 64 for rank in circle.victims)


def test_ranks_are_told_as_ranges() -> None:
    ranks = 1000
    run = on_world(ranks, dict.fromkeys((800, 801), OTHER))
    verdicts = examine(run, every_check())
    sick = [verdict for verdict in verdicts if isinstance(verdict, Sick)]
    (found,) = sick[0].findings
    assert ranges(found.victims) == "{0-799,802-999}"
    assert "ranks {0-799,802-999} with float32" in found.message
    assert len(found.exhibits) == len(found.locations) == 2
    report = compose(
        run,
        Waiving(verdicts),
        conclude(run, verdicts),
        Manifest(distdoctor="0", launch=[], directory="."),
    )
    assert "ranks {0-799,802-999}" in text.render(report, run)
