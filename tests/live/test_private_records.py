"""Records of real runs: nobody else reads them, and no secret is in them."""

import json
import signal
import stat
import subprocess
import sys
import time
from pathlib import Path

from command_box import DEADLINE_S, Box

from distdoctor.journal.assembly import read_run
from distdoctor.model.observations.environment import Arguments

SECRETS = ("hunter22-of-rank", "s3cr3t-in-url", "0123456789abcdef-wandb")

SCRIPT = """
import argparse, os, sys
import torch
import torch.distributed as dist
sys.argv += ["--api-key", os.environ["A_SECRET"] + os.environ["RANK"]]
parser = argparse.ArgumentParser()
parser.add_argument("--api-key")
parser.add_argument("--token")
args = parser.parse_args()
dist.init_process_group("gloo")
model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(2, 2))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
model(torch.ones(2)).sum().backward()
optimizer.step()
print("logged in with WANDB_API_KEY=" + os.environ["WANDB_API_KEY"], flush=True)
if dist.get_rank() == 1:
    raise RuntimeError(f"cannot reach https://me:{os.environ['IN_URL']}@host/data")
dist.barrier()
"""

NEVER_ENDS = """
import time
import torch
import torch.distributed as dist
dist.init_process_group("gloo")
while True:
    dist.all_reduce(torch.ones(4))
    print("READY", flush=True)
    time.sleep(0.05)
"""


def files_of(folder: Path) -> list[Path]:
    return [path for path in folder.rglob("*") if path.is_file()]


def test_a_record_is_its_owners_alone_and_holds_no_secrets(box: Box) -> None:
    box.write(SCRIPT)
    given = ["check", "train.py", "--record", "kept", "--format", "json"]
    done = subprocess.run(
        [
            *(sys.executable, "-m", "distdoctor", *given, "--output", "report.json"),
            *("--", "--token", SECRETS[0] + "0"),
        ],
        cwd=box.folder,
        env=box.environment
        | {"A_SECRET": SECRETS[0], "IN_URL": SECRETS[1], "WANDB_API_KEY": SECRETS[2]}
        | {"HOROVOD_SECRET_KEY": SECRETS[0] + "9"},
        umask=0,
        timeout=DEADLINE_S,
        capture_output=True,
        text=True,
        check=False,
    )
    kept = box.folder / "kept"
    for path in (kept, *kept.rglob("*")):
        if "logs" not in path.parts:  # of the launcher
            mode = stat.S_IMODE(path.lstat().st_mode)
            assert mode == (0o700 if path.is_dir() else 0o600), path
    _, sarif, _ = box.run("examine", "kept", "--format", "sarif")
    _, text, _ = box.run("examine", "kept", "--verbose")
    report = (box.folder / "report.json").read_text()
    told = {
        "report": report,
        "SARIF": sarif,
        "text": text,
        **{
            str(path): path.read_bytes().decode(errors="replace")
            for path in files_of(kept)
            if "logs" not in path.parts
        },
    }
    for name, content in told.items():
        for secret in SECRETS:
            assert secret not in content, (name, secret)
    assert "<masked:" in json.dumps(json.loads(report)["launch"])
    # That ranks were given different ones is still seen.
    run = read_run(kept)
    read = [run.of(Arguments, rank)[0] for rank in (0, 1)]
    keys, tokens = zip(*(one.values for one in read), strict=True)
    assert read[0].names == ("api_key", "token")
    assert keys[0] != keys[1]
    assert tokens[0] == tokens[1] == keys[0]
    assert done.returncode in {1, 4}


def test_the_record_of_a_killed_run_shrinks(box: Box) -> None:
    box.write(NEVER_ENDS)
    process = box.start("check", "train.py", "-n", "2")
    assert process.stdout is not None
    for line in process.stdout:
        if "READY" in line:
            break
    (folder,) = box.records()
    _, living, _ = box.run("records", "list", "--format", "json")
    process.send_signal(signal.SIGKILL)
    process.communicate()
    end = time.monotonic() + 30
    while box.marked() and time.monotonic() < end:
        time.sleep(0.1)
    _, dead, _ = box.run("records", "list", "--format", "json")
    (before,), (after,) = (json.loads(text)["records"] for text in (living, dead))
    assert (before["state"], after["state"]) == ("running", "broken off")
    assert before["bytes"] > 2 * 64 << 20
    assert after["bytes"] < 1 << 20
    status, _, err = box.run("examine", str(folder))
    assert (status, err) == (4, "")  # its end was not seen
    status, out, _ = box.run("records", "prune")
    assert (status, out.count("removed: 0 of 1")) == (0, 1)
