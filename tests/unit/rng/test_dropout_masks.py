"""What dropout lets go of is recorded, and nobody feels that."""

from collections.abc import Iterator
from typing import Any, ClassVar

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.nn.functional import dropout as made

from distdoctor.model.observations.rng import Dropped
from distdoctor.probes.recorder import RECORDER
from distdoctor.probes.rng import dropout_masks

Told = list[Dropped]


@pytest.fixture
def told(monkeypatch: pytest.MonkeyPatch) -> Iterator[Told]:
    """What is recorded while the functions are wrapped."""
    observed: Told = []
    for name in dropout_masks._FUNCTIONS:
        monkeypatch.setattr(functional, name, getattr(functional, name))
    monkeypatch.setattr(RECORDER, "writer", object())
    monkeypatch.setattr(RECORDER, "observe", lambda one, *_: observed.append(one))
    dropout_masks.PROBE.reset()
    dropout_masks.install()
    yield observed
    dropout_masks.PROBE.reset()


def rows(count: int = 4) -> Tensor:
    made = torch.arange(1.0, 8 * count + 1).reshape(count, 8)
    return made.requires_grad_()


def dropped(seed: int, given: Tensor, told: Told) -> Dropped:
    torch.manual_seed(seed)
    nn.Dropout(0.5)(given)
    return told[-1]


def test_the_same_seed_leaves_the_same_of_the_same(told: Told) -> None:
    one, same, other = (dropped(seed, rows(), told) for seed in (1, 1, 2))
    assert (one.given, one.left, one.kept) == (same.given, same.left, same.kept)
    assert other.given == one.given
    assert (other.left, other.kept) != (one.left, one.kept)


def test_the_mask_is_seen_whatever_the_activation(told: Told) -> None:
    one, other = dropped(1, rows(), told), dropped(1, 3 * rows(), told)
    assert one.given != other.given
    assert one.kept == other.kept
    assert one.known == 2**32 - 1


def test_what_was_zero_before_is_no_part_of_the_mask(told: Told) -> None:
    given = torch.tensor([0.0, 1.0, 2.0, 3.0]).requires_grad_()
    assert dropped(0, given, told).known == 0b1110


def test_dropout_in_place_is_seen_as_it_was_before(told: Told) -> None:
    torch.manual_seed(3)
    functional.dropout(rows(), 0.5)
    torch.manual_seed(3)
    functional.dropout(rows() * 1.0, 0.5, inplace=True)
    assert (told[0].given, told[0].left) == (told[1].given, told[1].left)
    assert told[0].kept == told[1].kept


@pytest.mark.parametrize(
    "silent",
    [
        lambda: functional.dropout(rows(), 0.5, training=False),
        lambda: functional.dropout(rows(), 0.0),
        lambda: functional.dropout(rows().detach(), 0.5),
        lambda: functional.dropout(torch.ones(8).requires_grad_(), 0.5),
        lambda: functional.alpha_dropout(rows(), 0.5),  # it does not train by default
        lambda: torch.no_grad()(functional.dropout)(rows(), 0.5),
        lambda: torch.func.vmap(functional.dropout, randomness="same")(rows()),
        lambda: functional.dropout(rows().detach().to("meta").requires_grad_()),
    ],
)
def test_what_tells_nothing_is_not_recorded(told: Told, silent: Any) -> None:
    silent()
    assert not told


def test_only_the_first_steps_are_looked_at(told: Told) -> None:
    for _ in range(4):
        functional.dropout(rows(), 0.5)
        dropout_masks.PROBE.stepped(None)  # type: ignore[misc]
    assert [one.step for one in told] == [0, 1]


def test_random_numbers_and_results_are_as_without(told: Told) -> None:
    torch.manual_seed(5)
    here, after = functional.dropout(rows(), 0.3), torch.rand(3)
    torch.manual_seed(5)
    there, expected = made(rows(), 0.3), torch.rand(3)
    assert told
    assert here.equal(there)
    assert after.equal(expected)


def test_wrong_arguments_get_the_words_of_torch(told: Told) -> None:
    with pytest.raises(ValueError, match="probability") as here:
        functional.dropout(rows(), 1.5)
    with pytest.raises(ValueError, match="probability") as there:
        made(rows(), 1.5)
    assert str(here.value) == str(there.value)
    with pytest.raises(TypeError):
        functional.dropout()  # type: ignore[call-arg]
    assert not told


@pytest.mark.filterwarnings("ignore:.*torch.jit:DeprecationWarning")
@pytest.mark.usefixtures("told")
def test_compilers_see_the_function_of_torch() -> None:
    model = nn.Sequential(nn.Linear(8, 8), nn.Dropout(0.5))
    assert torch.jit.script(model)(rows()).shape == (4, 8)
    assert torch.compile(model, fullgraph=True, backend="eager")(rows()).shape == (4, 8)
    assert torch.jit.trace(model, rows(), check_trace=False)(rows()).shape == (4, 8)
    torch.fx.symbolic_trace(model)


class Words(Tensor):
    """A tensor that tells which functions it is given to."""

    heard: ClassVar[list[Any]] = []

    @classmethod
    def __torch_function__(
        cls, func: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        cls.heard.append(func)
        return super().__torch_function__(func, types, args, kwargs or {})  # type: ignore[no-untyped-call]


@pytest.mark.usefixtures("told")
def test_tensors_of_other_classes_are_given_the_function_that_users_see() -> None:
    functional.dropout(rows().as_subclass(Words), 0.5)
    assert functional.dropout in Words.heard
