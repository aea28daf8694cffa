"""Results read before the wait: what the source shows, and what it does not."""

from dataclasses import replace
from inspect import cleandoc

import pytest

from distdoctor.analysis.causes import SOURCE, Cause, Divergence
from distdoctor.analysis.divergence.cascade import divergences
from distdoctor.analysis.sentences import sentence
from distdoctor.analysis.source.program import Program
from distdoctor.model.drawing import sketch
from distdoctor.model.events import Place
from distdoctor.model.findings import Certainty
from distdoctor.model.observations.collectives import step_text


def found(
    source: str,
    *,
    issued: str,
    waited: str,
    call: str = "all_reduce(4)",
) -> list[Divergence]:
    """What is told of two ranks.

    Args:
        source: Of t.py. Lines of a way have a comment: the letters that name them.
        issued: Letters of the lines by which the call is come to, outermost first.
        waited: Likewise, of the wait.
        call: The call, as in drawings.
    """
    text = cleandoc(source)
    program = Program({"t.py": text})
    lines = {}
    for number, line in enumerate(text.splitlines(), start=1):
        for letter in line.partition("  # ")[2].split():
            function = program.at("t.py", number)
            assert function is not None
            lines[letter] = Place("t.py", number, function.name)
    ways = [
        "+".join(
            step_text(lines[letter]).replace("<", "%3C").replace(">", "%3E")
            for letter in way
        )
        for way in (issued, waited)
    ]
    at = f"@t.py:{lines[issued[-1]].line}"
    words = f"{call}{at}&  awaited(issued={ways[0]},waited={ways[1]}){at}  exit=0"
    run = replace(sketch(f"rank 0 | {words}\nrank 1 | {words}"), sources={"t.py": text})
    # Drawings do not name functions.
    run = replace(
        run,
        sites=[
            None if site is None else replace(site, function=lines[issued[-1]].function)
            for site in run.sites
        ],
    )
    return [one for one in divergences(run) if one.why is Cause.EARLY]


def read_line(source: str, **ways: str) -> int:
    """The line that is told to read early."""
    (divergence,) = found(source, **ways)
    assert divergence.certainty is Certainty.LIKELY
    assert divergence.details[SOURCE]
    return divergence.elsewhere[0].place.line


PLAIN = """
def step(loss, total):
    work = dist.all_reduce(loss, async_op=True)  # i
    {}
    work.wait()  # w
    return loss
"""

READS = [
    "total += loss.item()",
    "total = total + loss",
    "print(loss)",
    "print(f'{loss:.3f}')",
    "x = loss.detach().clone()",
    "x = torch.cat([loss, total])",
    "x = loss.view(-1)[0].sum()",
    "x = F.relu(loss)",
    "x = float(loss)",
    "if loss > 3: pass",
    "assert not torch.isnan(loss)",
    "x = [one.mean() for one in [loss]]",
    "if dist.get_rank() == 0: print(loss.item())",
    "if step % 10 == 0 and dist.get_rank() == 0: print(loss.item())",
    "if not step % 10: print(loss.item())",
    "with torch.no_grad(): total.add_(loss)",
    "model = nn.Linear(4, 4); model(loss)",
    "same = loss; same.sum()",
    "x = loss.double()",
    "loss.mul_(2)",
]


@pytest.mark.parametrize("line", READS)
def test_a_reading_between_the_call_and_the_wait_is_told(line: str) -> None:
    assert read_line(PLAIN.format(line), issued="i", waited="w") == 3


NO_READS = [
    "x = loss.shape, loss.dtype, loss.numel(), loss.device",
    "x = loss.float()",
    "x = loss.to(device)",
    "x = loss.view(-1)[2:]",
    "rooms.append(loss)",
    "x = torch.empty_like(loss)",
    "dist.broadcast(loss, 0, async_op=True)",
    "del loss",
    "loss = other; loss.item()",
    "total.sum().backward()",
    "loss.backward()",
    "x = len(loss)",
    "x = loss is not None and total",
    "x = lambda: loss.item()",
    "work.wait(); loss.item()",
    "if work is not None: work.wait()\n    loss.item()",
    "torch.cuda.synchronize(); loss.item()",
    "while not work.is_completed(): pass\n    loss.item()",
    "dist.barrier(); loss.item()",
    "if verbose: print(loss.item())",
    "if dist.get_rank() == 5: print(loss.item())",
    "for batch in batches: total += loss.item()",
    "if verbose: return None\n    loss.item()",
    "sink.take(loss)",
    "thread.join(); loss.item()",
]


@pytest.mark.parametrize("line", NO_READS)
def test_what_reads_no_values_or_may_have_waited_is_not_told(line: str) -> None:
    assert not found(PLAIN.format(line), issued="i", waited="w")


def test_lines_behind_the_wait_are_not_early() -> None:
    source = PLAIN.format("pass").replace("return loss", "return loss.item()")
    assert not found(source, issued="i", waited="w")


def test_what_is_read_is_named_first_then_the_call_then_the_wait() -> None:
    (divergence,) = found(PLAIN.format("total += loss.item()"), issued="i", waited="w")
    assert [one.place.line for one in divergence.elsewhere] == [3, 2, 4]
    assert divergence.culprits == ()
    assert "t.py:3 reads its result" in sentence(divergence)


POOL = """
class Pool:
    def __init__(self):
        self.pending = []

    def launch(self, share):
        room = torch.empty(8, 4)
        work = dist.all_gather_into_tensor(room, share, async_op=True)  # i
        self.pending.append(work)
        return {}

    def drain(self):
        for work in self.pending:
            work.wait()  # w
        self.pending.clear()

def train(pool, model, batches):
    for batch in batches:
        room{} = pool.launch(batch)  # c
        {}
        loss = model(batch).sum()
        loss.backward()
        pool.drain()  # d
        use(room.sum())

train(Pool(), net, loader)  # m
"""
OF_POOL = {"issued": "mci", "waited": "mdw", "call": "all_gather_into_tensor(4)"}


@pytest.mark.parametrize(
    ("gives", "takes", "line", "at"),
    [
        ("room", "", "parts = room.clone()", 19),
        ("room", "", "parts = torch.cat([batch, room])", 19),
        ("room", "", "parts = room.split(4); x = parts[0] * 2", 19),
        ("room, work", ", work", "x = room.sum()", 19),
        ("room.clone()", "", "pass", 9),
    ],
)
def test_a_result_is_followed_to_the_caller(
    gives: str, takes: str, line: str, at: int
) -> None:
    assert read_line(POOL.format(gives, takes, line), **OF_POOL) == at


@pytest.mark.parametrize(
    ("gives", "takes", "line"),
    [
        ("room", "", "rooms.append(room)"),
        ("room", "", "pool.drain(); x = room.clone()"),
        ("room", "", "x = batch.clone()"),
        ("work", "", "x = room.clone()"),
        ("room, work", ", work", "x = work.clone()"),
    ],
)
def test_a_pool_that_is_drained_before_it_is_read_is_well(
    gives: str, takes: str, line: str
) -> None:
    assert not found(POOL.format(gives, takes, line), **OF_POOL)


def test_a_tensor_that_is_handed_to_a_helper_is_followed_back() -> None:
    source = """
    def start(tensor):
        flat = tensor.view(-1)
        return dist.all_reduce(flat, async_op=True)  # i

    def show(text, value):
        print(text, value.item())

    def step(loss):
        handle = start(loss)  # c
        show("loss", loss)
        handle.wait()  # w

    step(net())  # m
    """
    assert read_line(source, issued="mci", waited="mw") == 6
    clean = source.replace("(flat, a", "(flat.clone(), a")
    assert not found(clean, issued="mci", waited="mw")
    anew = source.replace("flat =", "tensor = tensor * 2; flat =")
    assert not found(anew, issued="mci", waited="mw")


def test_an_attribute_is_followed_until_another_is_put_in_its_place() -> None:
    source = """
    class Buffer:
        def start(self):
            self.work = dist.all_reduce(self.sums, async_op=True)  # i

        def swap(self):
            self.sums = torch.zeros(4)

    def step(buffer):
        buffer.start()  # c
        {}
        print(buffer.sums.mean())
        buffer.work.wait()  # w

    step(Buffer())  # m
    """
    ways = {"issued": "mci", "waited": "mw"}
    assert read_line(source.format("pass"), **ways) == 11
    assert not found(source.format("buffer.swap()"), **ways)


TURNS = """
def run(batches):
    work = None
    for batch in batches:
        {}
        if work is not None:
            work.wait()  # w
        {}
        work = dist.all_reduce(batch, async_op=True)  # i
        {}
    work.wait()
"""


def test_a_wait_at_the_head_of_the_next_round_is_behind_this_one() -> None:
    source = TURNS.format("pass", "pass", "print(batch.sum())")
    assert read_line(source, issued="i", waited="w") == 9


@pytest.mark.parametrize(
    "lines",
    [
        ("pass", "print(batch.sum())", "pass"),
        ("print(batch.sum())", "pass", "pass"),
        ("pass", "use(last.sum())", "last = batch"),
        ("pass", "pass", "room, batch = batch, room; batch.sum()"),
    ],
    ids=["before the call", "of the round before", "the buffer before", "swapped"],
)
def test_double_buffers_are_well(lines: tuple[str, ...]) -> None:
    assert not found(TURNS.format(*lines), issued="i", waited="w")


BUCKETS = """
def average(buckets):
    works, rooms = [], []
    for bucket in buckets:
        works.append(dist.all_reduce(bucket, async_op=True))  # i
        rooms.append(bucket)
    {}
    for bucket, work in zip(buckets, works):
        {}
        work.wait()  # w
        bucket.div_(2)
"""


def test_buckets_that_are_read_before_their_waits_are_told() -> None:
    source = BUCKETS.format("total = torch.cat(rooms)", "pass")
    assert read_line(source, issued="i", waited="w") == 6


@pytest.mark.parametrize(
    "lines", [("pass", "pass"), ("works[-1].wait(); torch.cat(rooms)", "pass")]
)
def test_buckets_that_are_waited_for_are_well(lines: tuple[str, str]) -> None:
    assert not found(BUCKETS.format(*lines), issued="i", waited="w")


def test_a_launch_that_waits_for_the_one_before_leaves_its_own_open() -> None:
    source = """
    class Feed:
        def launch(self, batch):
            if self.work is not None:
                self.work.wait()  # w
            room = torch.empty(8)
            self.work = dist.all_gather_into_tensor(room, batch, async_op=True)  # i
            return room

    def train(feed, batches):
        for batch in batches:
            room = feed.launch(batch)  # c
            {}

    train(Feed(), loader)  # m
    """
    ways = {"issued": "mci", "waited": "mcw", "call": "all_gather_into_tensor(4)"}
    assert read_line(source.format("x = room.sum()"), **ways) == 12
    assert not found(source.format("old, last = room, old; old and use(last)"), **ways)


def test_a_list_that_is_gathered_is_read_by_its_items() -> None:
    source = """
    def gather(share, outs):
        work = dist.all_gather(outs, share, async_op=True)  # i
        {}
        work.wait()  # w
    """
    ways = {"issued": "i", "waited": "w", "call": "all_gather(4)"}
    for line in ("sum(o.sum() for o in outs)", "outs[0].item()", "torch.stack(outs)"):
        assert read_line(source.format(line), **ways) == 3
    for line in ("share.sum()", "len(outs)", "x = outs[0]", "x = [*outs]"):
        assert not found(source.format(line), **ways)


def test_who_sends_may_read_what_is_sent() -> None:
    source = PLAIN.replace("all_reduce(loss", "broadcast(loss, 0")
    source = source.format("loss.item()")
    (divergence,) = found(source, issued="i", waited="w", call="broadcast(4,root=1)")
    assert divergence.culprits == (0,)
    sends = PLAIN.replace("all_reduce(loss, async_op=True", "isend(loss, 1")
    sent = {"issued": "i", "waited": "w", "call": "send(4,peer=1)"}
    assert not found(sends.format("loss.item()"), **sent)
    both = sends.replace("# i", "if first else dist.irecv(loss, 1)  # i")
    assert not found(both.format("loss.item()"), **sent)
    received = sent | {"call": "recv(4,peer=1)"}
    assert read_line(both.format("loss.item()"), **received) == 3


def test_a_wait_in_a_helper_that_is_called_on_the_same_line_is_no_late_one() -> None:
    source = """
    def finish(work):
        work.wait()  # w

    def step(loss):
        finish(dist.all_reduce(loss, async_op=True))  # i
        loss.item()

    step(net())  # m
    """
    assert not found(source, issued="mi", waited="miw")


def test_the_exit_of_a_context_waits() -> None:
    source = """
    class Waiting:
        def __exit__(self, *_):
            self.work.wait()  # w

    def step(loss):
        with Waiting() as waiting:  # c
            waiting.work = dist.all_reduce(loss, async_op=True)  # i
            {}
        {}

    step(net())  # m
    """
    ways = {"issued": "mi", "waited": "mcw"}
    assert read_line(source.format("loss.item()", "pass"), **ways) == 8
    assert not found(source.format("pass", "loss.item()"), **ways)
