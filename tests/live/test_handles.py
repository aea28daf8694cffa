"""Handles of asynchronous calls: what is done with them, under the real command."""

from pathlib import Path

import pytest
from by_rule.running import Runner
from real_runs import check_forked, findings_of, named_lines

HEALTHY = '''
"""Everything people do with handles that looks early and is not."""
import threading
import torch
import torch.distributed as dist
import torch.distributed._functional_collectives as funcol
from torch import nn
from torch.nn.parallel import DistributedDataParallel

dist.init_process_group("gloo")
rank, size = dist.get_rank(), dist.get_world_size()
torch.manual_seed(0)
own = torch.Generator().manual_seed(rank)

flat, handles = torch.zeros(64), []
for part in flat.split(8):  # one part is filled while the others travel
    part.fill_(rank)
    handles.append(dist.all_reduce(part, async_op=True))
for handle in handles:
    handle.wait()
flat.div_(size)

dist.all_reduce(torch.ones(3), async_op=True).get_future().wait()

polled = torch.ones(3)
handle = dist.all_reduce(polled, async_op=True)
while not handle.is_completed():
    pass
polled.mul_(2)

handle = dist.all_reduce(polled, async_op=True)
waiter = threading.Thread(target=handle.wait)
waiter.start()
waiter.join()
polled.mul_(0.5)

many = [torch.ones(10) for _ in range(1200)]  # more than are held
handles = [dist.all_reduce(tensor, async_op=True) for tensor in many]
dist.barrier()
for tensor, handle in zip(many, handles):
    handle.wait()
    tensor.mul_(1 / size)

out, back = torch.ones(4) * rank, torch.zeros(4)
there, here = (rank + 1) % size, (rank - 1) % size
sends_first = [(dist.isend, out, there), (dist.irecv, back, here)]
for message, tensor, peer in sends_first if rank % 2 else sends_first[::-1]:
    message(tensor, peer).wait()
ops = [dist.P2POp(dist.isend, out, there), dist.P2POp(dist.irecv, back, here)]
for handle in dist.batch_isend_irecv(ops):
    handle.wait()

net, issued = nn.Linear(4, 2), []
for parameter in net.parameters():
    parameter.register_post_accumulate_grad_hook(
        lambda p: issued.append((p, dist.all_reduce(p.grad, async_op=True)))
    )
optimizer = torch.optim.Adam(net.parameters())
for _ in range(3):
    optimizer.zero_grad()
    net(torch.randn(2, 4, generator=own)).sum().backward()
    for parameter, handle in issued:
        handle.wait()
        parameter.grad.div_(size)
    issued.clear()
    optimizer.step()


def average(_state, bucket):
    handle = dist.all_reduce(bucket.buffer().div_(size), async_op=True)
    return handle.get_future().then(lambda future: future.value()[0])


ddp = DistributedDataParallel(nn.Linear(4, 4))
ddp.register_comm_hook(None, average)
ddp(torch.randn(2, 4, generator=own)).sum().backward()

ahead = dist.broadcast(torch.ones(2), 0, async_op=True)
for _ in range(3):
    ahead.wait()
    ahead = dist.broadcast(torch.ones(2), 0, async_op=True)

parts = [torch.zeros(3) for _ in range(size)]
dist.all_gather(parts, torch.ones(3), async_op=True).wait()
with torch.inference_mode():
    dist.all_reduce(torch.ones(4), async_op=True).wait()
print(funcol.all_reduce(torch.ones(3), "sum", dist.group.WORLD) + 1)
del ddp
dist.destroy_process_group()
'''

STEPPING = """
import torch
import torch.distributed as dist
from torch import nn

dist.init_process_group("gloo")
torch.manual_seed(0)
net = nn.Linear(4, 2)
optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
own = torch.Generator().manual_seed(dist.get_rank())
for _ in range(3):
    optimizer.zero_grad()
    loss = net(torch.randn(3, 4, generator=own)).square().mean()
    (loss / dist.get_world_size()).backward()
    handles = [dist.all_reduce(p.grad, async_op=True) for p in net.parameters()]
    optimizer.step()
    for handle in handles:
        handle.wait()
dist.destroy_process_group()
"""

FORGETTING = """
import torch
import torch.distributed as dist

dist.init_process_group("gloo")
for _ in range(3):
    loss = torch.ones(1)
    dist.all_reduce(loss, async_op=True)
    print(loss.item())
dist.destroy_process_group()
"""


def test_handles_that_are_waited_for_somehow_are_well(
    forked: Runner, tmp_path: Path
) -> None:
    script = tmp_path / "job.py"
    script.write_text(HEALTHY)
    status, report, output = check_forked(forked, tmp_path, script)
    verdict, findings = report["verdict"], findings_of(report)
    assert (status, verdict, findings) == (0, "well", []), output
    assert "DD113" in report["checks"]["well"]


@pytest.mark.parametrize(("text", "line"), [(STEPPING, 15), (FORGETTING, 8)])
def test_what_is_not_waited_for_is_told(
    forked: Runner, tmp_path: Path, text: str, line: int
) -> None:
    script = tmp_path / "job.py"
    script.write_text(text)
    status, report, output = check_forked(forked, tmp_path, script)
    assert status in {0, 1}, output
    (finding,) = findings_of(report)
    assert finding["code"] == "DD113"
    assert line in named_lines(finding)
