"""Source texts of any kind."""

import ast

import pytest

from distdoctor.model.source_text import LARGEST_SOURCE, shallow_tree, syntax_tree


def test_a_program_has_a_tree() -> None:
    tree = syntax_tree("x = 1")
    assert tree is not None
    assert ast.unparse(tree) == "x = 1"
    assert syntax_tree("") is not None


@pytest.mark.parametrize(
    "text",
    [
        "if:",
        "\0",
        b"\xff\xfe\x00",
        "#" * (LARGEST_SOURCE + 1),
        "+".join(["1"] * 20_000),
        "[" * 5_000,
    ],
    ids=range(6),
)
def test_what_cannot_be_read_has_none(text: str | bytes) -> None:
    assert syntax_tree(text) is None


@pytest.mark.parametrize(
    "text", ["+".join(["1"] * 400), "if x: pass\n" + "elif x: pass\n" * 300]
)
def test_a_deep_tree_is_for_those_who_do_not_call_themselves(text: str) -> None:
    assert syntax_tree(text) is not None
    assert shallow_tree(text) is None


def test_a_tree_can_be_walked_by_calls() -> None:
    deep = shallow_tree("+".join(["1"] * 190))
    assert deep is not None
    assert ast.unparse(deep).count("+") == 189
    ast.NodeVisitor().visit(deep)
