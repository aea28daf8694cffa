"""Variables of running functions: read, and not kept.

What is looked at are functions without an `assert`: pytest's ask for `locals()`.
"""

import builtins
import gc
import sys
import weakref

from distdoctor.probes.frame_variables import Names, variables


class Held:
    """Something that can be let go of."""


def look(name: str) -> object:
    with Names(sys._getframe(1)) as value:
        return value(name)


def seen() -> list[object]:
    held = Held()
    return [look("held") is held, look("Held") is Held, look("nothing_of_that_name")]


def test_a_variable_of_a_function_is_seen() -> None:
    assert seen() == [True, True, None]


def left_alive() -> list[object]:
    held = Held()
    alive = weakref.ref(held)
    found = look("held") is held
    del held
    gc.collect()
    return [found, alive()]


def test_what_a_function_lets_go_of_does_not_live_on() -> None:
    assert left_alive() == [True, None]


def with_its_own() -> list[object]:
    mine = locals()
    size = len(mine)
    later = 3
    return [look("later"), len(mine) - size, later]


def test_who_holds_its_own_locals_does_not_see_them_change() -> None:
    expected = 3 if sys.version_info >= (3, 13) else None
    assert with_its_own() == [expected, 0, 3]


class Model:
    """Something that is put into evaluation mode."""

    def eval(self) -> None:
        """As modules are."""


def evaluating(model: Model) -> object:
    model.eval()
    total = 3
    return [look("total"), total]


def by_its_module() -> object:
    mine = builtins.locals()
    later = 3
    return [look("later"), later, "later" in mine]


def test_a_method_of_that_name_asks_for_no_variables() -> None:
    assert evaluating(Model()) == [3, 3]
    expected = 3 if sys.version_info >= (3, 13) else None
    assert by_its_module() == [expected, 3, False]


def copied(first: int, second: str) -> dict[str, object]:  # noqa: ARG001
    return variables(sys._getframe())


def test_a_copy_is_of_the_functions_own() -> None:
    assert copied(1, "two") == {"first": 1, "second": "two"}
