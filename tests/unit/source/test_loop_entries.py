"""Whether what a call in a loop over names works on belongs to the name."""

from textwrap import dedent

import pytest

from distdoctor.analysis.source.loop_entries import belongs_to
from distdoctor.analysis.source.program import Program
from distdoctor.model.events import Place


def belongs(
    source: str, op: str = "all_reduce", names: str = "name", *, only: bool = False
) -> bool:
    """Of the call of an operation in the first loop of a source."""
    text = dedent(source)
    lines = text.splitlines()
    call = next(n for n, line in enumerate(lines, start=1) if op in line)
    loop = next(n for n, line in enumerate(lines, start=1) if "for " in line)
    place = Place("t.py", call)
    program = Program({"t.py": text})
    return belongs_to(program, place, loop, names.split(), op, entries_only=only)


@pytest.mark.parametrize(
    "source",
    [
        """
        for name in sums:
            dist.all_reduce(sums[name])
        """,
        """
        for name in names:
            dist.all_reduce(getattr(self, name).grad, op=dist.ReduceOp.SUM)
        """,
        """
        for name in names:
            value = self.metrics.get(name)
            dist.all_reduce(value)
        """,
        """
        for name, p in parameters:
            dist.all_reduce(p.grad, group=group)
            p.grad /= world
        """,
        """
        for name, p in parameters:
            g = p.grad
            dist.all_reduce(tensor=g)
        """,
        """
        for name in sums:
            dist.all_reduce_coalesced([sums[name], counts[name]])
        """,
    ],
)
def test_the_entry_of_the_name_is_changed(source: str) -> None:
    assert belongs(source)
    assert belongs(source, only=True)


@pytest.mark.parametrize(
    "source",
    [
        """
        for name in self._sum:
            pair = torch.tensor([self._sum[name], self._cnt[name]])
            dist.all_reduce(pair)
            out[name] = (pair[0] / pair[1]).item()
        """,
        """
        for name, value in metrics.items():
            t = torch.tensor(value)
            dist.all_reduce(t)
            mean = t / world
            out[name] = mean.item()
        """,
        """
        for name in names:
            t = torch.tensor(values[name])
            dist.all_reduce(t)
            out.update({name: t.item()})
        """,
        """
        for name in names:
            t = torch.tensor(getattr(self, name))
            dist.all_reduce(t)
            setattr(self, name, t.item())
        """,
        """
        for name in names:
            t = torch.tensor(values[name])
            dist.all_reduce(t)
            history[name].append(t.item())
        """,
        """
        for name in names:
            out[name] = funcol.all_reduce(torch.tensor(values[name]), "sum", group)
        """,
        """
        out = {name: funcol.all_reduce(value) for name, value in values.items()}
        """,
    ],
)
def test_the_result_is_kept_under_the_name(source: str) -> None:
    assert belongs(source)
    assert not belongs(source, only=True)


@pytest.mark.parametrize(
    "source",
    [
        # Gradients of a task's batch are the model's.
        """
        for name in order:
            loss = model(data[name]).mean()
            loss.backward()
            flat = parameters_to_vector([p.grad for p in model.parameters()])
            dist.all_reduce(flat)
            norms[name] = flat.norm()
            losses[name] = loss.item()
        """,
        # A sum over all names has no order.
        """
        for name in order:
            loss = torch.tensor(losses[name])
            dist.all_reduce(loss)
            total += loss
        """,
        # What is kept under the name is not what the call gave.
        """
        for name in order:
            loss = torch.tensor(losses[name])
            dist.all_reduce(loss)
            seen[name] = count
        """,
        # A flag that all ranks share.
        """
        for name in order:
            flag.fill_(1)
            dist.all_reduce(flag, group=groups[name])
        """,
        # The value is another one by then.
        """
        for name, value in pairs:
            value = torch.ones(1)
            dist.all_reduce(value)
        """,
        """
        for name in order:
            print(name)
            dist.all_reduce(x)
        """,
    ],
)
def test_what_is_given_or_kept_is_not_the_names(source: str) -> None:
    assert not belongs(source)


def test_lists_that_are_gathered_belong_to_it() -> None:
    source = """
    for name in names:
        {given} = [None] * world
        dist.all_gather_object(parts, values[name])
        out[name] = parts
    """
    assert belongs(source.format(given="parts"), "all_gather")


def test_what_is_unknown_belongs_to_nobody() -> None:
    program = Program({})
    assert not belongs_to(program, Place("t.py", 3), 2, ["name"], "all_reduce")
