"""What `--fix` prints can be applied, and mends what it was printed for."""

from __future__ import annotations

import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from distdoctor.lint.linting import lint
from distdoctor.lint.mending import diff

NEVER_UPDATED = """\
from torch.amp import GradScaler

def train(model, loader, optimizer, criterion):
    scaler = GradScaler("cuda")
    for inputs, labels in loader:
        optimizer.zero_grad()
        scaler.scale(criterion(model(inputs), labels)).backward()
        scaler.step(optimizer)
"""

CLIPPED = """\
from torch.amp import GradScaler
from torch.nn.utils import clip_grad_norm_

def train(model, loader, optimizer, criterion):
    scaler = GradScaler("cuda")
    for inputs, labels in loader:
        optimizer.zero_grad()
        scaler.scale(criterion(model(inputs), labels)).backward()
        clip_grad_norm_(model.parameters(), 1.0)
        scaler.step(optimizer)
        scaler.update()
"""

NEVER_CLEARED = """\
def train(model, loader, optimizer, criterion):
    for inputs, labels in loader:
        criterion(model(inputs), labels).backward()
        optimizer.step()
"""

NEVER_TOLD = """\
from torch.utils.data import DataLoader
from torch.utils.data.distributed import DistributedSampler

def train(model, data, epochs):
    sampler = DistributedSampler(data)
    loader = DataLoader(data, sampler=sampler)
    for epoch in range(epochs):
        for batch in loader:
            model(batch).sum().backward()
"""

SICK = {
    "DD512": NEVER_UPDATED,
    "DD511": CLIPPED,
    "DD507": NEVER_CLEARED,
    "DD302": NEVER_TOLD,
}

FORMS: dict[str, Callable[[str], bytes]] = {
    "as it is": lambda text: text.encode(),
    "without a final newline": lambda text: text.rstrip("\n").encode(),
    "with CRLF": lambda text: text.replace("\n", "\r\n").encode(),
    "with tabs": lambda text: text.replace("    ", "\t").encode(),
    "with a mark of its byte order": lambda text: b"\xef\xbb\xbf" + text.encode(),
    "with other letters": lambda text: f"größe = 1\n{text}".encode(),
    "with form feeds": lambda text: f"\f\n{text}".encode(),
}

TOOLS = {
    "git": ["git", "apply", "--whitespace=nowarn", "-"],
    "patch": ["patch", "-p1", "--binary"],
}


def applied(folder: Path, changes: str, tool: str) -> None:
    done = subprocess.run(
        TOOLS[tool],
        cwd=folder,
        input=changes.encode(),
        capture_output=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize("tool", TOOLS)
@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("code", SICK)
def test_a_diff_applies_and_mends_its_finding(
    code: str, form: str, tool: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    before = FORMS[form](SICK[code])
    file = Path("src") / "train.py"
    file.parent.mkdir()
    file.write_bytes(before)
    found = lint(["src"], advice=True)
    assert code in {one.code for one in found.findings}
    changes = diff(found)
    assert file.read_bytes() == before
    applied(tmp_path, changes, tool)
    after = file.read_bytes()
    compile(after, "train.py", "exec")
    assert code not in {one.code for one in lint(["src"], advice=True).findings}
    assert after.count(b"\r\n") in {0, after.count(b"\n")}
    assert after.startswith(b"\xef\xbb\xbf") == before.startswith(b"\xef\xbb\xbf")
    gone = [line for line in before.splitlines() if line not in after.splitlines()]
    assert not gone


def test_a_file_in_this_folder_is_named_from_here(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "train.py").write_text(NEVER_UPDATED)
    changes = diff(lint([str(tmp_path)]))
    assert changes.startswith("--- a/train.py\n+++ b/train.py\n")
    applied(tmp_path, changes, "git")


@pytest.mark.parametrize(
    "content",
    [
        f"# coding: latin-1\n# \xe4\n{NEVER_UPDATED}".encode("latin-1"),
        NEVER_UPDATED.replace("\n", "\r").encode(),
        NEVER_UPDATED.replace("optimizer)\n", "optimizer)  # \x1b[31m\n").encode(),
    ],
    ids=["not UTF-8", "old line ends", "escape sequences"],
)
def test_no_diff_is_made_that_could_not_be_applied_or_shown(
    content: bytes, tmp_path: Path
) -> None:
    (tmp_path / "train.py").write_bytes(content)
    found = lint([str(tmp_path)])
    assert "DD512" in {one.code for one in found.findings}
    assert diff(found) == ""


def test_no_diff_is_made_of_a_file_that_has_changed(tmp_path: Path) -> None:
    file = tmp_path / "train.py"
    file.write_text(NEVER_UPDATED)
    found = lint([str(tmp_path)])
    file.write_text(f"import sys\n{NEVER_UPDATED}")
    assert diff(found) == ""


def test_what_needs_a_thought_is_in_no_diff(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(
        "import torch.distributed as dist\n"
        "if dist.get_rank() == 0:\n    dist.barrier()\n"
    )
    found = lint([str(tmp_path)])
    assert found.findings
    assert diff(found) == ""
