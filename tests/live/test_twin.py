"""What a job can see of distdoctor: alone and under check, it tells what it sees."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import real_runs

DEADLINE_S = 300.0

TWIN = """
import sys
early, path, argv = sorted(sys.modules), list(sys.path), list(sys.argv)
finders = [getattr(one, "__name__", type(one).__name__) for one in sys.meta_path]
import atexit, gc, json, locale, os, resource, signal, threading, traceback, warnings

def descriptors():
    return [n for n in map(int, os.listdir("/proc/self/fd")) if 2 < n < 64]

limits = [name for name in dir(resource) if name.startswith("RLIMIT_")]
numbers = sorted(signal.valid_signals())
os.umask(umask := os.umask(0))
found = {
    "modules": early,
    "path": path,
    "arguments": argv,
    "flags": repr(sys.flags),
    "finders": finders,
    "descriptors": len(descriptors()),
    "variables": sorted(os.environ),
    "warning filters": [repr(one) for one in warnings.filters],
    "excepthook": sys.excepthook is sys.__excepthook__,
    "exit": type(sys.exit).__name__,
    "handlers": {int(n): str(signal.getsignal(n)) for n in numbers},
    "blocked": [int(n) for n in signal.pthread_sigmask(signal.SIG_BLOCK, [])],
    "threads": len(os.listdir("/proc/self/task")),
    "locale": [locale.setlocale(locale.LC_ALL), sys.getfilesystemencoding()],
    "directory": os.getcwd(),
    "umask": umask,
    "limits": [resource.getrlimit(getattr(resource, name)) for name in limits],
    "collector": [gc.get_threshold(), gc.isenabled(), gc.get_freeze_count()],
    "at exit": atexit._ncallbacks(),
    "trace": [sys.gettrace(), sys.getprofile()],
    "main": sorted(name for name in globals() if name.startswith("__")),
}

import torch
import torch.distributed as dist

dist.init_process_group("gloo")
try:
    dist.all_reduce("no tensor")
except TypeError:
    found["traceback"] = traceback.format_exc()
net = torch.nn.Linear(2, 2)
optimizer = torch.optim.SGD(torch.nn.parallel.DistributedDataParallel(net).parameters())
net(torch.ones(2)).sum().backward()
optimizer.step()
with warnings.catch_warnings(record=True) as caught:
    warnings.simplefilter("always")
    torch.tensor(torch.ones(1))
found["warning"] = [[w.filename, w.lineno] for w in caught]
found["filters of a rank"] = [repr(one) for one in warnings.filters]
found["threads of a rank"] = len(os.listdir("/proc/self/task"))
found["descriptors of a rank"] = len(descriptors())
found["device"] = type(net.weight.device) is torch.device
if dist.get_rank() == 0:
    with open("told.json", "w") as file:
        json.dump(found, file, default=str)
dist.barrier()
dist.destroy_process_group()
"""

SEEN = {"modules", "finders", "variables", "excepthook", "exit", "at exit"}
"""What a job sees of distdoctor; docs/guide.md tells of each."""

OTHERS = {"TORCHELASTIC_LOG_LINE_PREFIX_TEMPLATE", "XDG_CACHE_HOME"}
"""Variables of how torchrun is asked to mark the ranks' lines, and of this test."""


def test_a_job_sees_no_more_of_distdoctor_than_is_documented(
    tmp_path: Path,
) -> None:
    script = tmp_path / "train.py"
    script.write_text(TWIN)
    status, _, output = real_runs.check(
        tmp_path, "-n", "2", "train.py", "--", "--lr", "1"
    )
    assert status in {0, 4}, output
    checked = _told(tmp_path)
    words = [sys.executable, "-P", "-m", "torch.distributed.run", "--standalone"]
    subprocess.run(
        [*words, "--nproc-per-node", "2", script.name, "--lr", "1"],
        cwd=tmp_path,
        env={k: v for k, v in os.environ.items() if not k.startswith("DISTDOCTOR_")},
        timeout=DEADLINE_S,
        check=True,
        capture_output=True,
    )
    alone = _told(tmp_path)
    assert {name for name in alone if checked[name] != alone[name]} == SEEN
    variables = set(checked["variables"]) - set(alone["variables"])
    ours = {name for name in variables if name.startswith("DISTDOCTOR_")}
    told = {"PYTHONPATH", "PYTHONUNBUFFERED", "GLOO_SOCKET_IFNAME"}
    assert variables - ours - OTHERS <= told
    assert set(checked["finders"]) - set(alone["finders"]) == {"AroundImports"}
    assert set(alone["modules"]) <= set(checked["modules"])


def _told(folder: Path) -> dict[str, Any]:
    told = folder / "told.json"
    found: dict[str, Any] = json.loads(told.read_text())
    told.unlink()
    return found
