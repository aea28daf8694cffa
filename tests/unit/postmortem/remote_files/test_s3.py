"""A job's leavings on a real server that speaks S3; skipped where moto is not there.

pip install 'moto[server]' s3fs
"""

import json
import os
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any
from urllib.error import URLError
from urllib.request import urlopen

import pytest
from autopsies import findings_in, report_on
from recorder_dumps import Simulation, Style, changed, ddp, dumps, write

pytestmark = pytest.mark.skipif(
    not all(map(find_spec, ("moto", "flask", "s3fs"))),
    reason="moto[server] and s3fs are not installed",
)

SECRET = "hush-this-is-the-secret-key"

UPLOAD = """
import sys
from pathlib import Path
import fsspec
system = fsspec.filesystem("s3")
system.mkdir("night")
for file in Path(sys.argv[1]).rglob("*"):
    if file.is_file():
        system.put_file(str(file), f"night/job/{file.relative_to(sys.argv[1])}")
"""


@pytest.fixture
def environment(tmp_path: Path) -> Iterator[dict[str, str]]:
    """The environment in which s3:// is the server's."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    address = f"http://127.0.0.1:{port}"
    (tmp_path / "tmp").mkdir()
    # The server would look for proxies and the credentials of this machine.
    kept = {name: os.environ[name] for name in ("PATH", "HOME") if name in os.environ}
    changed_ = {
        **kept,
        "AWS_ENDPOINT_URL": address,
        "AWS_ACCESS_KEY_ID": "somebody",
        "AWS_SECRET_ACCESS_KEY": SECRET,
        "AWS_DEFAULT_REGION": "us-east-1",
        "AWS_EC2_METADATA_DISABLED": "true",
        "TMPDIR": str(tmp_path / "tmp"),
    }
    command = [sys.executable, "-m", "moto.server", "-H", "127.0.0.1", "-p", str(port)]
    quiet: Any = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
    server = subprocess.Popen(command, env=changed_, **quiet)
    try:
        for _ in range(600):
            try:
                urlopen(address, timeout=1).close()
                break
            except (URLError, OSError):
                assert server.poll() is None
                time.sleep(0.1)
        yield changed_
    finally:
        server.kill()
        server.wait()


def autopsy(
    environment: dict[str, str], *arguments: str
) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "distdoctor", *arguments]
    return subprocess.run(
        command, env=environment, capture_output=True, text=True, check=False
    )


def test_a_bucket_gets_the_verdict_of_a_folder(
    environment: dict[str, str], tmp_path: Path
) -> None:
    job = ddp(6, 8)
    changed(job, 3, 20, dtype="Half")
    folder = tmp_path / "job"
    write(folder / "node0" / "dumps", dumps(job, Simulation(job, 1), Style()), Style())
    (folder / "big.bin").write_bytes(os.urandom(3_000_000))
    program = [sys.executable, "-c", UPLOAD, str(folder)]
    subprocess.run(program, env=environment, check=True)

    done = autopsy(environment, "autopsy", "s3://night/job/", "--format", "json")
    assert done.returncode == 1, done.stderr
    report = json.loads(done.stdout)
    found = [(one["code"], tuple(one["ranks"])) for one in report["findings"]]
    assert found == findings_in(report_on(folder)) == [("DD103", (3,))]
    paths = {one["path"] for one in report["files"]}
    assert "s3://night/job/node0/dumps/comm_lib_trace_rank_0" in paths
    assert "s3://night/job/big.bin" in paths
    assert SECRET not in done.stdout + done.stderr
    assert list((tmp_path / "tmp").iterdir()) == []

    done = autopsy(environment, "autopsy", "s3://no-such-bucket/job")
    assert done.returncode == 2
    assert done.stderr.count("\n") == 1
    assert SECRET not in done.stderr
