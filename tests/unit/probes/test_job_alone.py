"""What a program sees of the process it runs in: as if it were alone there."""

from pathlib import Path

import pytest
from twins import JOINED, told_bare, told_probed

OWN_MODULES = """
import importlib
found = {}
for name in NAMES:
    module = importlib.import_module(name)
    found[name] = getattr(module, "MINE", None)
tell(found)
"""

NAMES = ("random", "tempfile", "bisect", "token", "struct", "signal", "shutil", "math")


@pytest.mark.parametrize("by_variable", [False, True])
def test_a_programs_own_modules_are_not_hidden(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, by_variable: bool
) -> None:
    place = tmp_path / "modules" if by_variable else tmp_path
    place.mkdir(exist_ok=True)
    for name in NAMES[:-1]:
        (place / f"{name}.py").write_text(f"MINE = '{name}'\n")
    (place / "math").mkdir()  # only a folder: Python's own is found
    if by_variable:
        monkeypatch.setenv("PYTHONPATH", str(place))
    text = f"NAMES = {NAMES!r}\n" + OWN_MODULES
    bare = told_bare(tmp_path, text)
    assert [name for name, mine in bare.items() if mine == name] == [*NAMES[:-1]]
    assert told_probed(tmp_path, text) == bare


def test_no_module_of_a_programs_is_imported_but_by_itself(tmp_path: Path) -> None:
    for name in ("statistics", "secrets", "xxhash", "hmac", "fractions"):
        text = "raise RuntimeError('imported by somebody else')\n"
        (tmp_path / f"{name}.py").write_text(text)
    text = JOINED + "tell(sorted(vars(torch))[:3])"
    assert told_probed(tmp_path, text) == told_bare(tmp_path, text)


DESCRIPTORS = (
    JOINED
    + """
import os
t = torch.ones(2)
dist.all_reduce(t)
torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(2, 2))
low = [n for n in map(int, os.listdir("/proc/self/fd")) if n < 64]
with open(__file__) as first, open(__file__) as second:
    tell([len(low), first.fileno(), second.fileno()])
"""
)


def test_a_programs_files_have_the_numbers_they_would_have(tmp_path: Path) -> None:
    assert told_probed(tmp_path, DESCRIPTORS) == told_bare(tmp_path, DESCRIPTORS)


WARNINGS = (
    JOINED
    + """
import warnings
from torch.nn import functional as F

net, x = torch.nn.Linear(2, 2), torch.ones(2)
optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
rates = torch.optim.lr_scheduler.StepLR(optimizer, 2)
found = {"filters": [repr(one) for one in warnings.filters]}
for name, body in {
    "tensor": lambda: torch.tensor(x),
    "on a GPU": lambda: torch.tensor(x, device=PLACE),
    "new": lambda: x.new_tensor(x),
    "loss": lambda: F.mse_loss(torch.ones(2), torch.ones(3)),
    "too early": lambda: rates.step(),
    "epoch": lambda: rates.step(3),
    "workers": lambda: torch.utils.data.DataLoader([1, 2], num_workers=99),
    "own": lambda: warnings.warn("mine"),
}.items():
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        try:
            body()
        except RuntimeError:
            pass
    found[name] = [(str(w.message)[:50], w.filename, w.lineno) for w in caught]
tell(found)
"""
)


@pytest.mark.parametrize("device", ["", "cpu"])
def test_warnings_name_the_lines_that_they_would_name(
    tmp_path: Path, device: str
) -> None:
    bare = told_bare(tmp_path, "PLACE = 'cpu'\n" + WARNINGS)
    text = f"PLACE = {'cuda' if device else 'cpu'!r}\n" + WARNINGS
    assert all(bare[name] for name in bare)
    assert told_probed(tmp_path, text, device) == bare


ERRORS = (
    JOINED
    + """
import traceback
net = torch.nn.Linear(2, 2)

found = {}
for name, body in {
    "reduce": lambda: dist.all_reduce("x"),
    "gather": lambda: dist.all_gather([torch.zeros(1)], torch.zeros(4)),
    "group": lambda: dist.new_group([77]),
    "again": lambda: dist.init_process_group("gloo"),
    "load": lambda: net.load_state_dict({"a": 1}),
    "clip": lambda: torch.nn.utils.clip_grad_norm_(3, 1.0),
    "wrap": lambda: torch.nn.parallel.DistributedDataParallel(3),
    "make": lambda: torch.optim.SGD([], lr=1.0),
    "backward": lambda: torch.zeros(2).backward(),
    "forward": lambda: net(torch.zeros(7)),
    "save": lambda: torch.save(1, "/nonexistent/x"),
    "cuda": lambda: torch.zeros(1).cuda("nowhere"),
    "device": lambda: torch.device("nowhere"),
}.items():
    try:
        body()
    except Exception as error:
        text = traceback.format_exc()
        link, files = error.__traceback__, []
        while link is not None:
            files.append(link.tb_frame.f_code.co_filename)
            link = link.tb_next
        walked = files if name in ("reduce", "group", "again", "save") else []
        found[name] = text, walked
tell(found)
"""
)


@pytest.mark.parametrize("device", ["", "cpu"])
def test_tracebacks_are_those_of_the_program(tmp_path: Path, device: str) -> None:
    bare = told_bare(tmp_path, ERRORS)
    assert len(bare) == 13
    assert told_probed(tmp_path, ERRORS, device) == bare
