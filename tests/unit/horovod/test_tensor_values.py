"""Tensors in nested containers come in the order in which TensorFlow numbers them."""

from distdoctor.probes.horovod.tensor_values import leaves


def test_dictionaries_are_sorted_and_nothing_is_left_out() -> None:
    value = {"b": (1, [2, None]), "a": 0, "c": {"y": 4, "x": 3}}
    assert list(leaves(value)) == [0, 1, 2, 3, 4]


def test_what_holds_itself_has_an_end() -> None:
    value: list[object] = [7]
    value.append(value)
    assert set(leaves(value)) == {7}
