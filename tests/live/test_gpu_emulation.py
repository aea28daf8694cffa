"""What stands for GPUs, in processes that start with it."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from command_box import Box

from distdoctor.journal.environment import (
    DEVICE_VARIABLE,
    FOLDER_VARIABLE,
)
from distdoctor.journal.folder import read_substitutes
from distdoctor.probes import NEEDLE

DEADLINE_S = 300.0


COMPILED = """
import torch
import torch._dynamo

assert torch.device(1).index == 1

def move(x):
    zeros = torch.zeros(3, device=torch.device("cuda"))
    with torch.autocast("cuda"):
        y = x.cuda().to("cuda:0") + zeros + torch.ones(3, device=x.device)
    return torch.mm(y.view(1, 3), y.view(3, 1))

compiled = torch.compile(move, fullgraph=True, backend="aot_eager")
print(compiled(torch.ones(3)).item())

@torch.jit.script
def scripted(x: torch.Tensor):
    return x + torch.zeros(3)

print(scripted(torch.ones(3, device="cuda")).tolist())
"""


def test_compiled_code_has_no_break_in_its_graph(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(COMPILED)
    variables = {FOLDER_VARIABLE: str(tmp_path), DEVICE_VARIABLE: "cpu"}
    done = subprocess.run(
        [sys.executable, "train.py"],
        cwd=tmp_path,
        env=os.environ | variables | {"PYTHONPATH": str(NEEDLE)},
        capture_output=True,
        text=True,
        timeout=DEADLINE_S,
        check=False,
    )
    assert done.stdout == "12.0\n[1.0, 1.0, 1.0]\n", done.stderr
    assert set(read_substitutes(tmp_path)) == {"amp", "devices"}


def test_gpus_that_are_not_there_cannot_be_asked_for(tmp_path: Path) -> None:
    if torch.cuda.device_count():
        pytest.skip("there are some")
    (tmp_path / "train.py").write_text("")
    command = [sys.executable, "-m", "distdoctor", "check", "train.py"]
    done = subprocess.run(
        [*command, "--device", "cuda"],
        cwd=tmp_path,
        env=os.environ | {"XDG_CACHE_HOME": str(tmp_path / "cache")},
        capture_output=True,
        text=True,
        timeout=DEADLINE_S,
        check=False,
    )
    assert (done.returncode, done.stdout) == (2, "")
    assert "torch sees no GPU" in done.stderr
    assert len(done.stderr.splitlines()) == 1


SHARED_OUT = """
import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor, Replicate, Shard, distribute_tensor
from torch.nn.functional import scaled_dot_product_attention

mesh = init_device_mesh("cuda", (2,))
torch.manual_seed(5)
whole = [torch.randn(2, 4, 6, 8, device="cuda", requires_grad=True) for _ in range(3)]
scaled_dot_product_attention(*whole, is_causal=True).square().sum().backward()

for placement in (Shard(0), Shard(1), Replicate()):
    parts = [
        distribute_tensor(one.detach(), mesh, [placement]).requires_grad_()
        for one in whole
    ]
    out = scaled_dot_product_attention(*parts, is_causal=True)
    assert isinstance(out, DTensor) and out.placements == (placement,)
    out.square().sum().backward()
    for one, part in zip(whole, parts):
        torch.testing.assert_close(part.grad.full_tensor(), one.grad)
print("as one")
dist.destroy_process_group()
"""


def test_attention_is_shared_out_over_ranks_as_on_gpus(box: Box) -> None:
    box.write(SHARED_OUT)
    status, out, err = box.run("check", "train.py")
    assert status == 0, out + err
    assert "[rank1]:as one" in out
