"""Probes: they write what the job calls, whoever does, and the job does not feel it."""

import json
import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import real_runs
from by_rule.running import Runner

from distdoctor.journal.assembly import read_run
from distdoctor.model.events import Failure, Left, Started, State, Wrapped
from distdoctor.model.run import Run

DEADLINE_S = 300.0


TRAINING = '''
"""Trains by DDP, by FSDP2 and with AMP, and prints what came out, bit for bit."""
import hashlib
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel


def model():
    torch.manual_seed(3)
    layers = nn.Linear(16, 32), nn.Dropout(0.2), nn.ReLU(), nn.Linear(32, 4)
    return nn.Sequential(*layers)


def digest(net):
    sha = hashlib.sha256()
    for p in net.parameters():
        local = p.to_local() if hasattr(p, "to_local") else p
        sha.update(local.detach().contiguous().numpy().tobytes())
    sha.update(torch.get_rng_state().numpy().tobytes())
    return sha.hexdigest()


def train(net, amp):
    optimizer = torch.optim.AdamW(net.parameters(), lr=0.01)
    scaler = torch.amp.GradScaler("cpu", enabled=amp)
    torch.manual_seed(100 + dist.get_rank())
    for _ in range(12):
        x = torch.randn(8, 16)
        optimizer.zero_grad()
        with torch.autocast("cpu", torch.bfloat16, enabled=amp):
            loss = net(x).square().mean()
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
    return digest(net)


dist.init_process_group("gloo")
ddp = train(DistributedDataParallel(model()), amp=False)
amp = train(DistributedDataParallel(model()), amp=True)
sharded = model()
fully_shard(sharded)
fsdp = train(sharded, amp=False)
digest = f"DIGEST {dist.get_rank()} {ddp} {amp} {fsdp}\\n"
print(digest, end="", flush=True)  # in one write: two ranks share the stream
dist.barrier()
dist.destroy_process_group()
'''

EVERY_CALL = """
import threading
import torch
import torch.distributed as dist
import torch.distributed._functional_collectives as funcol
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import Shard, distribute_tensor
from torch.nn.parallel import DistributedDataParallel

dist.init_process_group("gloo")
rank = dist.get_rank()
t = torch.ones(4)
if rank == 0:
    try:
        dist.init_process_group("gloo")
    except ValueError:
        print("joined already")
dist.all_reduce(t, op=dist.ReduceOp.MAX)
dist.broadcast(t, src=1)
dist.reduce(t, dst=0)
dist.barrier()
dist.all_gather([torch.zeros(4), torch.zeros(4)], t)
dist.all_gather_into_tensor(torch.zeros(8), t)
dist.gather(t, [torch.zeros(4), torch.zeros(4)] if rank == 0 else None, dst=0)
dist.scatter(torch.zeros(4), [t, t] if rank == 0 else None, src=0)
dist.reduce_scatter_tensor(torch.zeros(2), t)
dist.all_to_all_single(torch.zeros(4), t)
dist.monitored_barrier()
w = dist.all_reduce(t, async_op=True)
assert w.is_completed() in (True, False)
w.wait()
with dist._coalescing_manager():
    dist.all_reduce(t)
    dist.all_reduce(t)
for r in dist.batch_isend_irecv([
    dist.P2POp(dist.isend, t, 1 - rank, tag=7),
    dist.P2POp(dist.irecv, torch.zeros(4), 1 - rank, tag=7),
]):
    r.wait()
if rank == 0:
    dist.send(t, 1)
else:
    dist.recv(t)
dist.all_gather_object([None, None], {"rank": rank})
pair = dist.new_group([0, 1])
dist.all_reduce(t, group=pair)
thread = threading.Thread(target=lambda: dist.all_reduce(t))
thread.start()
thread.join()
funcol.all_reduce(t, "sum", dist.group.WORLD).add(1)
mesh = init_device_mesh("cpu", (2,))
distribute_tensor(torch.ones(4, 2), mesh, [Shard(0)]).full_tensor()
ddp = DistributedDataParallel(torch.nn.Linear(4, 4))
ddp(t).sum().backward()


@torch.compile(backend="aot_eager")
def compiled(x):
    return funcol.all_reduce(x * 2, "sum", dist.group.WORLD) + 1


compiled(torch.ones(3))
try:
    dist.all_gather([torch.zeros(1)], t)
except (RuntimeError, ValueError):
    print("refused by torch")
del ddp
try:
    dist.destroy_process_group()
finally:
    try:
        dist.destroy_process_group()
    except (AssertionError, ValueError):
        print("left already")
"""

FAULTY_PROBES = """
import os, sys
from distdoctor.probes import call_sites
found, calls = call_sites.layered_way, []
def layered_way(depth):
    calls.append(depth)
    if len(calls) % 3 == 0:
        raise ZeroDivisionError("injected")
    return found(depth)
call_sites.layered_way = layered_way
sys.stderr.write("MINE TOO\\n")
"""


def job(
    folder: Path, command: Sequence[str], **environment: str
) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        command,
        cwd=folder,
        env=os.environ
        | {"XDG_CACHE_HOME": str(folder / "cache"), "OMP_NUM_THREADS": "1"}
        | environment,
        timeout=DEADLINE_S,
        capture_output=True,
        text=True,
        check=False,
    )


def check(folder: Path, text: str, *options: str) -> tuple[Run, str]:
    """Run a script under the real command; the run, and what the job printed."""
    (folder / "train.py").write_text(text)
    command = [sys.executable, "-m", "distdoctor", "check", "train.py"]
    done = job(folder, [*command, "--record", "record", *options])
    assert done.returncode in {0, 4}, done.stdout + done.stderr
    return read_run(folder / "record"), done.stdout + done.stderr


def check_forked(runner: Runner, folder: Path, text: str) -> tuple[Run, str]:
    """The same from a process in which torch is loaded."""
    script = folder / "train.py"
    script.write_text(text)
    status, _, output = real_runs.check_forked(
        runner, folder, script, options=["--record", "record"]
    )
    assert status in {0, 4}, output
    return read_run(folder / "record"), output


def digests(output: str) -> list[str]:
    lines = [line.partition("DIGEST ")[2] for line in output.splitlines()]
    return sorted(filter(None, lines))


def bare(folder: Path) -> list[str]:
    torchrun = ["torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    done = job(folder, [sys.executable, "-m", *torchrun, "train.py"])
    return digests(done.stdout)


def test_weights_and_random_state_are_the_same_bit_for_bit(
    forked: Runner, tmp_path: Path
) -> None:
    """DDP, AMP and FSDP2; also when every third look for a call site fails."""
    _, output = check_forked(forked, tmp_path, TRAINING)
    with_probes, without = digests(output), bare(tmp_path)
    assert len(without) == 2
    assert with_probes == without

    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "sitecustomize.py").write_text(FAULTY_PROBES)
    command = [sys.executable, "-m", "distdoctor", "check", "train.py"]
    options = ["--format", "json", "--output", "report.json"]
    done = job(tmp_path, [*command, *options], PYTHONPATH=str(tmp_path / "mine"))
    assert "MINE TOO" in done.stderr  # the user's own sitecustomize had its turn
    assert digests(done.stderr + done.stdout) == without
    assert done.returncode == 4
    report = json.loads((tmp_path / "report.json").read_text())
    assert report["verdict"] == "unknown"  # and what was found is advice
    gaps = " ".join(f"{gap['what']}: {gap['why']}" for gap in report["not_examined"])
    assert "ranks {0-1}" in gaps
    assert "events could not be written whole by the probes" in gaps
    assert "injected" in gaps


COMPILED = """
import torch
import torch.distributed as dist
from torch._dynamo.utils import counters
from torch.nn.parallel import DistributedDataParallel

dist.init_process_group("gloo")
model = DistributedDataParallel(torch.nn.Linear(4, 4))
compiled = torch.compile(model, backend="aot_eager")
for batch in torch.ones(2, 3, 4):
    compiled(batch).sum().backward()
print("BROKEN AT", *counters["graph_break"], flush=True)


def clear():
    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    model.zero_grad()


torch.compile(clear, fullgraph=True, backend="eager")()
print("IN ONE GRAPH", [parameter.grad for parameter in model.parameters()], flush=True)
dist.destroy_process_group()
"""


def test_nothing_of_the_probes_is_compiled(forked: Runner, tmp_path: Path) -> None:
    _, output = check_forked(forked, tmp_path, COMPILED)
    assert "BROKEN AT" in output
    assert "IN ONE GRAPH [None, None]" in output
    for sign in ("know how to trace the builtin", "DispatchKeySet", "/probes/"):
        assert sign not in output


def test_every_kind_of_call_is_seen_with_its_line(tmp_path: Path) -> None:
    run, output = check(tmp_path, EVERY_CALL)
    assert "refused by torch" in output
    assert "joined already" in output
    assert "left already" in output
    assert "A probe of" not in output
    calls = [run.call(row) for row in run.rows_of(0)]
    ops = [call.op for call in calls]
    expected = [
        "init_process_group",
        "all_reduce",
        "broadcast",
        "reduce",
        "barrier",
        "all_gather",
        "all_gather_into_tensor",
        "gather",
        "scatter",
        "reduce_scatter_tensor",
        "all_to_all_single",
        "monitored_barrier",
        "all_reduce",
        "all_reduce_coalesced",
        "send",
        "recv",
        "send",
    ]
    assert ops[: len(expected)] == expected
    lines = EVERY_CALL.splitlines()
    for call in calls:
        assert call.place is not None, call
        assert call.place.file == "train.py"
    for call in calls[: len(expected)]:
        assert call.place is not None
        assert "dist." in lines[call.place.line - 1]

    def of(op: str) -> list[str]:
        return [str(call) for call in calls if call.op == op]

    assert of("all_reduce")[0] == "all_reduce(4 float32, op=max)"
    assert of("broadcast")[0] == "broadcast(4 float32, root=1)"
    assert calls[12].asynchronous
    assert calls[14].peer == 1
    assert calls[14].tag == 7
    assert {call.group for call in calls} >= {"world", "group_1"}
    assert len({call.thread for call in calls}) == 2
    assert of("all_gather_into_tensor_coalesced"), "DTensor"
    wrapped = run.of(Wrapped, 0)
    assert [(event.how, event.parameters) for event in wrapped] == [
        ("ddp", ("weight", "bias"))
    ]
    backward = [c for c in calls if c.place and "backward" in lines[c.place.line - 1]]
    assert backward
    done = {State.DONE, State.ISSUED, State.RAISED}
    assert {call.state for call in calls} <= done
    assert all(call.state is State.DONE for call in backward)
    assert run.of(Started, 0)[0].joined
    assert any(call.op == "new_group" and call.names == ("0", "1") for call in calls)
    assert len(run.of(Left, 0)) == 1
    assert [call.op for call in calls].count("init_process_group") == 1
    ordinals = [call.ordinal for call in calls if call.group == "world"]
    assert sorted(filter(None, ordinals)) == list(range(1, max(ordinals) + 1))


SWALLOWED = """
import torch.distributed as dist
import torch.multiprocessing as mp

def train(rank, size):
    dist.init_process_group(
        "gloo", init_method="tcp://127.0.0.1:PORT", rank=rank, world_size=size
    )
    dist.barrier()
    if rank == 1:
        raise LookupError("no such sample")
    dist.barrier()

if __name__ == "__main__":
    try:
        mp.spawn(train, args=(2,), nprocs=2)
    except Exception:
        print("the parent does not care")
"""


def test_an_exception_is_seen_though_the_launcher_swallows_it(
    tmp_path: Path, free_port: int
) -> None:
    (tmp_path / "train.py").write_text(SWALLOWED.replace("PORT", str(free_port)))
    command = [sys.executable, "-m", "distdoctor", "check", "train.py"]
    done = job(tmp_path, [*command, "--record", "record"])
    assert "DD202" in done.stdout, done.stdout + done.stderr
    run = read_run(tmp_path / "record")
    (failure,) = run.of(Failure, 1)
    assert (failure.error, failure.message) == ("LookupError", "no such sample")
    assert failure.place is not None
    assert failure.place.line == 11


WORKERS = """
import subprocess, sys
import torch
import torch.distributed as dist
from torch.utils.data import DataLoader, TensorDataset

if __name__ == "__main__":
    dist.init_process_group("gloo")
    data = TensorDataset(torch.arange(8.0))
    for context in ("fork", "spawn"):
        for (batch,) in DataLoader(
            data, batch_size=4, num_workers=1, multiprocessing_context=context
        ):
            dist.all_reduce(batch)
    subprocess.run([sys.executable, "-I", "-c", "print('isolated')"], check=True)
    subprocess.run([sys.executable, "-c", "import torch"], check=True)
    dist.destroy_process_group()
"""


def test_loader_workers_and_helpers_write_no_journal(
    forked: Runner, tmp_path: Path
) -> None:
    run, output = check_forked(forked, tmp_path, WORKERS)
    assert "isolated" in output
    names = sorted(path.name for path in (tmp_path / "record").glob("*.journal"))
    assert names == ["rank-0.0.journal", "rank-1.0.journal"]
    assert not run.partial
    ops = [[run.call(row).op for row in run.rows_of(rank)] for rank in (0, 1)]
    assert ops == [["init_process_group"] + ["all_reduce"] * 4] * 2
