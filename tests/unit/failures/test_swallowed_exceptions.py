"""Swallowed exceptions, seen or told by the source, from drawings."""

from dataclasses import replace
from inspect import cleandoc

import pytest

from distdoctor.analysis.causes import Cause, Divergence
from distdoctor.analysis.divergence.cascade import divergences
from distdoctor.analysis.sentences import sentence
from distdoctor.model.drawing import sketch
from distdoctor.model.events import Failure, Place
from distdoctor.model.findings import Certainty
from distdoctor.model.run import Frame, Run

WAY_AROUND = """
def train():
    for step in range(6):
        try:
            loss = forward(step)
        except ValueError:
            continue
        for parameter in parameters:
            all_reduce(parameter.grad)
    barrier()
"""

INSIDE = """
def train():
    for step in range(6):
        try:
            loss = forward(step)
            loss.backward()
            all_reduce(loss)
            optimizer.step()
        except (ValueError, OSError) as error:
            print(error)
    barrier()
"""

CALLED = """
def train():
    all_reduce(loss())
for step in range(6):
    try:
        train()
    except ValueError:
        pass

barrier()
"""

RETURNED = """
def train():
    try:
        loss = forward()
        all_reduce(loss)
        return loss
    except ValueError:
        return None
for step in range(6):
    train()

barrier()
"""

CONDITION = INSIDE.replace("all_reduce(loss)", "if big: all_reduce(loss)")
OTHER_WAY = WAY_AROUND.replace("range(6):", "range(6):\n        if rank: continue")
RETURNS_BEFORE = RETURNED.replace("loss =", "if rank: return\n        loss =")
RAISING = INSIDE.replace("print(error)", "raise")


def skipped(source: str) -> tuple[Cause, Certainty]:
    """What a rank that went from the all_reduce's loop to the barrier did."""
    text = cleandoc(source)
    lines = text.splitlines()
    call = next(n for n, line in enumerate(lines, 1) if "all_reduce" in line)
    end = next(n for n, line in enumerate(lines, 1) if "barrier" in line)
    run = sketch(
        f"""
        rank 0 | barrier@t.py:{end}  all_reduce(4)@t.py:{call}...
        rank 1 | barrier@t.py:{end}  barrier@t.py:{end}!
        rank 2 | barrier@t.py:{end}  all_reduce(4)@t.py:{call}...
        """
    )
    name = "train" if "def" in source else "<module>"
    sites = [place and replace(place, function=name) for place in run.sites]
    (divergence,) = divergences(replace(run, sites=sites, sources={"t.py": text}))
    assert divergence.culprits == (1,)
    return divergence.why, divergence.certainty


@pytest.mark.parametrize("source", [WAY_AROUND, INSIDE, CALLED, RETURNED])
def test_a_handler_is_the_only_way_around_a_call(source: str) -> None:
    assert skipped(source) == (Cause.SWALLOWED, Certainty.LIKELY)


@pytest.mark.parametrize("source", [CONDITION, OTHER_WAY, RETURNS_BEFORE, RAISING])
def test_where_something_else_may_explain_it_no_handler_is_blamed(source: str) -> None:
    assert skipped(source) == (Cause.SKIPPED, Certainty.PROVED)


def caught_in(run: Run, function: str) -> Run:
    """The run with rank 1's exception caught in a function, and all calls in `step`."""
    failure = next(one for one in run.events(1) if isinstance(one, Failure))
    caught = replace(failure, caught=Place("t.py", 5, function))
    life = {
        rank: [(at, caught if one is failure else one) for at, one in events]
        for rank, events in run.life.items()
    }
    sites = [place and replace(place, function="step") for place in run.sites]
    return replace(run, sites=sites, life=life)


@pytest.mark.parametrize(
    ("function", "why"), [("step", Cause.SWALLOWED), ("import_plots", Cause.FINISHED)]
)
def test_an_exception_counts_where_it_was_handled_on_the_way_to_the_call(
    function: str, why: Cause
) -> None:
    run = sketch(
        """
        rank 0 | all_reduce(4)@t.py:7  all_reduce(4)@t.py:7...
        rank 1 | all_reduce(4)@t.py:7  fail=OSError@d.py:3~  exit=0
        """
    )
    (divergence,) = divergences(caught_in(run, function))
    assert divergence.why is why


def test_an_exception_that_ended_the_rank_was_not_swallowed() -> None:
    run = sketch(
        """
        rank 0 | all_reduce(4)@t.py:7  all_reduce(4)@t.py:7...
        rank 1 | all_reduce(4)@t.py:7  fail=OSError@d.py:3~  fail=OSError@d.py:3  exit=1
        """
    )
    assert [divergence.why for divergence in divergences(run)] == [Cause.DIED]


def test_a_rank_that_had_all_batches_and_made_fewer_calls_left_some_out() -> None:
    text = cleandoc(CALLED)
    run = sketch(
        """
        rank 0 | all_reduce(4)@t.py:2  all_reduce(4)@t.py:2...  batches=2@t.py:3...
        rank 1 | all_reduce(4)@t.py:2  batches=2@t.py:3         exit=0
        """
    )
    sites = [place and replace(place, function="train") for place in run.sites]
    (divergence,) = divergences(replace(run, sites=sites, sources={"t.py": text}))
    assert (divergence.why, divergence.culprits) == (Cause.SWALLOWED, (1,))


def test_a_rank_that_had_fewer_batches_did_not() -> None:
    text = cleandoc(CALLED)
    run = sketch(
        """
        rank 0 | all_reduce(4)@t.py:2  all_reduce(4)@t.py:2...  batches=2@t.py:3...
        rank 1 | all_reduce(4)@t.py:2  batches=1@t.py:3         exit=0
        """
    )
    sites = [place and replace(place, function="train") for place in run.sites]
    (divergence,) = divergences(replace(run, sites=sites, sources={"t.py": text}))
    assert divergence.why is Cause.UNEVEN


SKIPS_A_STEP = """
def step(n):
    try:
        x = features(n)
        all_reduce(x)
    except ValueError:
        pass
def report():
    barrier()
def fit():
    for n in range(40):
        step(n)
        if n % 20 == 19:
            report()
    return 0
fit()
"""

BY_ITS_LOSS = SKIPS_A_STEP.replace("if n % 20 == 19", "if randn(n) > 2")
OF_SOME_RANKS = SKIPS_A_STEP.replace("if n % 20 == 19", "if n == 19 and rank < 1")
OF_TWO_KINDS = SKIPS_A_STEP + "class Silent:\n    def report():\n        pass\n"
NOT_SWALLOWED = SKIPS_A_STEP.replace("    pass", "    raise")
LEFT_WITHIN = SKIPS_A_STEP.replace(
    "        x = features(n)\n        all_reduce(x)\n",
    "        if rand(): return\n        all_reduce(features(n))\n",
)
STEPS_BY_ITS_DATA = SKIPS_A_STEP.replace(
    "        step(n)", "        if rand(): step(n)"
)


def is_early(source: str) -> tuple[Cause, tuple[int, ...], list[int]]:
    """What rank 0 did, which is at the report while the others are in a step."""
    text = cleandoc(source)
    run = sketch(
        """
        rank 0 | all_reduce(4)@t.py:4  all_reduce(4)@t.py:4  barrier@t.py:8...
        rank 1 | all_reduce(4)@t.py:4  all_reduce(4)@t.py:4  all_reduce(4)@t.py:4...
        rank 2 | all_reduce(4)@t.py:4  all_reduce(4)@t.py:4  all_reduce(4)@t.py:4...
        """
    )
    names = {4: "step", 8: "report"}
    sites = [site and replace(site, function=names[site.line]) for site in run.sites]
    (divergence,) = divergences(replace(run, sites=sites, sources={"t.py": text}))
    lines = [location.place.line for location in divergence.elsewhere]
    return divergence.why, divergence.culprits, lines


def test_who_is_past_the_call_of_the_others_in_their_round_left_one_out() -> None:
    assert is_early(SKIPS_A_STEP) == (Cause.SWALLOWED, (0,), [5, 4])


@pytest.mark.parametrize("source", [BY_ITS_LOSS, OF_SOME_RANKS, OF_TWO_KINDS])
def test_what_not_all_come_to_in_a_round_tells_no_rounds(source: str) -> None:
    why, culprits, lines = is_early(source)
    assert (why, culprits) == (Cause.SKIPPED, (0,))
    assert 5 not in lines


def test_a_wrapper_may_keep_ranks_from_a_call() -> None:
    text = cleandoc(SKIPS_A_STEP).replace("def report", "@main_only\ndef report")
    run = sketch(
        """
        rank 0 | all_reduce(4)@t.py:4  all_reduce(4)@t.py:4  barrier@t.py:9...
        rank 1 | all_reduce(4)@t.py:4  all_reduce(4)@t.py:4  all_reduce(4)@t.py:4...
        rank 2 | all_reduce(4)@t.py:4  all_reduce(4)@t.py:4  all_reduce(4)@t.py:4...
        """
    )
    (divergence,) = divergences(replace(run, sources={"t.py": text}))
    assert "alone calls" in sentence(divergence)


@pytest.mark.parametrize("source", [NOT_SWALLOWED, STEPS_BY_ITS_DATA, LEFT_WITHIN])
def test_a_call_left_out_by_other_ways_was_not_swallowed(source: str) -> None:
    assert is_early(source)[:2] == (Cause.SKIPPED, (0,))


@pytest.mark.parametrize(
    ("loop", "why"),
    [
        ("for n in range(40)", Cause.SWALLOWED),
        ("for n in range(parse_args().steps)", Cause.SWALLOWED),
        ("for n in read(urandom())", Cause.FINISHED),
        ("for n in range(len(read()))", Cause.FINISHED),
        ("while time() < 9", Cause.FINISHED),
    ],
)
def test_who_is_gone_after_common_rounds_left_a_call_out(loop: str, why: Cause) -> None:
    text = cleandoc(SKIPS_A_STEP).replace("for n in range(40)", loop)
    run = sketch(
        """
        rank 0 | all_reduce(4)@t.py:4  leave@t.py:15         exit=0
        rank 1 | all_reduce(4)@t.py:4  all_reduce(4)@t.py:4...
        rank 2 | all_reduce(4)@t.py:4  all_reduce(4)@t.py:4...
        """
    )
    sites = [site and replace(site, function="step") for site in run.sites]
    (divergence,) = divergences(replace(run, sites=sites, sources={"t.py": text}))
    assert (divergence.why, divergence.culprits) == (why, (0,))


def test_of_a_loop_that_all_are_still_in_the_rounds_do_not_count() -> None:
    text = cleandoc(SKIPS_A_STEP).replace("fit()\n", "")
    text = text.removesuffix("\nfit()") + "\nwhile more():\n    fit()\n    gather()"
    run = sketch(
        """
        rank 0 | all_reduce(4)@t.py:4  all_gather(4)@t.py:17...
        rank 1 | all_reduce(4)@t.py:4  all_reduce(4)@t.py:4...
        rank 2 | all_reduce(4)@t.py:4  all_reduce(4)@t.py:4...
        """
    )
    names = {4: "step", 17: "<module>"}
    sites = [site and replace(site, function=names[site.line]) for site in run.sites]
    (divergence,) = divergences(replace(run, sites=sites, sources={"t.py": text}))
    assert (divergence.why, divergence.culprits) == (Cause.SWALLOWED, (0,))


TWO_PARTS = cleandoc("""
    def critic():
        for step in range(9):
            try:
                loss = forward(step)
                all_reduce(loss)
            except ValueError:
                continue
    def actor():
        all_gather(loss())
    actor()
    critic()
    actor()
""")

NEVER_CAME = """
    rank 0 | all_gather(4)@t.py:9  all_gather(4)@t.py:9!
    rank 1 | all_gather(4)@t.py:9  all_reduce(4)@t.py:5...
"""


def parted(source: str) -> Divergence:
    """Rank 1 is in a loop of which rank 0, behind it, never made a call."""
    actor = [Place("t.py", 9, "actor"), Place("t.py", 12, "<module>")]
    critic = [Place("t.py", 5, "critic"), Place("t.py", 11, "<module>")]
    stacks = {0: [Frame(one) for one in actor], 1: [Frame(one) for one in critic]}
    run = replace(sketch(NEVER_CAME), sources={"t.py": source}, stacks=stacks)
    (found,) = divergences(run)
    return found


def test_who_is_behind_a_loop_and_never_called_in_it_swallowed_something() -> None:
    found = parted(TWO_PARTS)
    assert (found.why, found.culprits) == (Cause.SWALLOWED, (0,))
    assert found.certainty is Certainty.LIKELY
    assert found.elsewhere[0].place.line == 6


def test_without_a_handler_it_left_the_loop() -> None:
    source = TWO_PARTS.replace("continue", "raise")
    found = parted(source)
    assert (found.why, found.culprits) == (Cause.SKIPPED, (0,))
    assert found.certainty is Certainty.LIKELY


@pytest.mark.parametrize("rounds", ["rounds_of(rank)", "read()"])
def test_a_loop_that_may_have_no_rounds_needs_no_handler(rounds: str) -> None:
    found = parted(TWO_PARTS.replace("range(9)", rounds))
    assert (found.why, found.culprits) == (Cause.SKIPPED, (0,))


def test_a_loop_that_is_not_for_all_is_its_own_ranks() -> None:
    found = parted(TWO_PARTS.replace("\ncritic()\n", "\nif data(): critic()\n"))
    assert (found.why, found.culprits) == (Cause.SKIPPED, (1,))


@pytest.mark.parametrize(
    ("line", "why", "culprits"),
    [(4, Cause.SWALLOWED, (1,)), (11, Cause.SKIPPED, (0,))],
    ids=["on the way", "behind it"],
)
def test_of_two_sides_who_caught_something_on_the_way_left_the_call_out(
    line: int, why: Cause, culprits: tuple[int, ...]
) -> None:
    """Without it the call that is new to one side would be blamed."""
    source = f"{cleandoc(WAY_AROUND)}\n    try:\n        save()\n    except ValueError:"
    run = sketch(
        f"""
        rank 0 | barrier@t.py:9 all_reduce(4)@t.py:8...
        rank 1 | barrier@t.py:9 fail=ValueError@t.py:{line}~ barrier@t.py:9!
        """
    )
    life = {
        rank: [
            (at, replace(one, caught=one.place) if isinstance(one, Failure) else one)
            for at, one in events
        ]
        for rank, events in run.life.items()
    }
    run = replace(run, life=life, sources={"t.py": f"{source}\n        pass\n"})
    (found,) = divergences(run)
    assert (found.why, found.culprits) == (why, culprits)
    assert found.certainty is Certainty.LIKELY


@pytest.mark.parametrize(
    ("function", "why"), [("step", Cause.SWALLOWED), ("import_plots", Cause.UNANSWERED)]
)
def test_a_message_left_out_for_a_swallowed_exception_is_told_so(
    function: str, why: Cause
) -> None:
    run = sketch(
        """
        rank 0 | send(4,peer=1)@t.py:7...
        rank 1 | fail=OSError@d.py:3~  broadcast(4)@t.py:9...
        """
    )
    (divergence,) = divergences(caught_in(run, function))
    assert (divergence.why, divergence.culprits) == (why, (1,))
