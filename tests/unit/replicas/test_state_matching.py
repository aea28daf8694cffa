"""Names of a state that differ from those of a model by what stands before them."""

import pytest
from torch import nn

from distdoctor.probes.replicas import state_matching

NAMES = {"0.weight", "0.bias", "2.weight"}


@pytest.mark.parametrize(
    ("state", "model", "prefix", "lacking"),
    [
        ("module.", "", "module.", ""),
        ("", "module.", "", "module."),
        ("_orig_mod.", "", "_orig_mod.", ""),
        ("module._orig_mod.", "", "module._orig_mod.", ""),
        ("_orig_mod.", "module.", "_orig_mod.", "module."),
        ("net.body.", "", "net.body.", ""),
    ],
)
def test_a_prefix_explains_all_names(
    state: str, model: str, prefix: str, lacking: str
) -> None:
    lacked = {model + name for name in NAMES}
    strange = {state + name for name in NAMES}
    assert state_matching.explain(lacked, strange) == (prefix, lacking, len(NAMES))


def test_names_of_another_model_are_not_explained() -> None:
    assert state_matching.explain({"0.weight"}, {"head.scale"}) == ("", "", 0)


def test_a_model_that_gets_its_own_tensors_is_told_from_one_that_gets_others() -> None:
    model = nn.Linear(2, 2)
    copies = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    assert state_matching.is_own(model, model.state_dict())
    assert not state_matching.is_own(model, copies)
    assert not state_matching.is_own(model, {})
