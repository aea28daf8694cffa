"""Whether a command starts ranks on other machines, and where these find the head."""

import subprocess
import sys
from pathlib import Path

import pytest

from distdoctor.errors import LaunchRefused
from distdoctor.launch.node_hosts import has_several_nodes, node_plan
from distdoctor.probes.node_entry import HeadText, place_here


@pytest.mark.parametrize(
    ("command", "several"),
    [
        ("mpirun -np 4 python t.py", False),
        ("mpirun --host localhost:4 python t.py", False),
        ("mpirun --host a:2,b:2 -np 4 python t.py", True),
        ("mpirun -H localhost,b -np 2 python t.py", True),
        ("srun -n 4 python t.py", False),
        ("srun -N 1 python t.py", False),
        ("srun -N 2 python t.py", True),
        ("srun --nodes=2-4 python t.py", True),
        ("torchrun --nnodes 2 t.py", False),  # starts none elsewhere
        ("python t.py --host b", False),
    ],
)
def test_launchers_name_other_machines(
    command: str, several: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("SLURM_JOB_NUM_NODES", raising=False)
    assert has_several_nodes(command.split()) is several


def test_a_job_of_slurm_has_the_nodes_of_its_allocation(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("SLURM_JOB_NUM_NODES", "3")
    assert has_several_nodes(["srun", "python", "t.py"])


def test_the_head_listens_where_the_job_meets(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MASTER_ADDR", "127.0.0.1")
    monkeypatch.delenv("DISTDOCTOR_TOKEN", raising=False)
    monkeypatch.delenv("GLOO_SOCKET_IFNAME", raising=False)
    plan = node_plan(["torchrun"], "", 2)
    assert (plan.host, plan.port, plan.is_new) == ("127.0.0.1", 0, True)
    assert plan.token in plan.invitation(7)
    assert node_plan(["torchrun"], "lo:4711", 2).address(4711) == "127.0.0.1:4711"


def test_a_token_of_the_users_is_not_printed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DISTDOCTOR_TOKEN", "0123456789abcdef" * 2)
    plan = node_plan(["torchrun"], "127.0.0.1", 2)
    assert plan.token == "0123456789abcdef" * 2
    assert plan.token not in plan.invitation(7)
    monkeypatch.setenv("DISTDOCTOR_TOKEN", "short")
    with pytest.raises(LaunchRefused, match="random letters"):
        node_plan(["torchrun"], "127.0.0.1", 2)


@pytest.mark.parametrize("listen", ["127.0.0.1:x", "127.0.0.1:70000", "no such name"])
def test_what_is_no_address_is_refused(listen: str) -> None:
    with pytest.raises(LaunchRefused, match="--listen"):
        node_plan(["torchrun"], listen, 2)


def test_what_the_head_tells_is_read_back() -> None:
    text = HeadText("[::1]:7", "ab12", place_here(), "/a folder/python")
    assert HeadText.read(text.written()) == text
    assert text.folder().name.endswith("-ab12")
    with pytest.raises(ValueError, match="DISTDOCTOR_HEAD"):
        HeadText.read("a:1 ../../x place python")


def test_a_job_on_one_machine_loads_no_message_library() -> None:
    program = (
        "import sys\n"
        "import distdoctor.cli.check, distdoctor.launch.job_watch\n"
        "import distdoctor.launch.supervisor\n"
        "assert 'zmq' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", program], check=True, timeout=60)


def test_a_script_alone_is_no_job_over_nodes(tmp_path: Path) -> None:
    script = tmp_path / "t.py"
    script.write_text("")
    done = subprocess.run(
        [sys.executable, "-m", "distdoctor", "check", "--nodes", "2", str(script)],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 2
    assert "need the whole command of this node" in done.stderr
