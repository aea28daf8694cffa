"""Commands: how a script's ranks come to life, and what cannot be started."""

import os
import sys
from pathlib import Path

import pytest

from distdoctor.errors import LaunchRefused
from distdoctor.journal.environment import LOOPBACK_VARIABLE, PORTS_VARIABLE
from distdoctor.launch import multi_command
from distdoctor.launch.command import (
    TORCHRUN,
    Launcher,
    command_for,
    given_command,
    rank_count,
    script_in,
    starts_torchrun,
)
from distdoctor.launch.isolation import may_be_isolated
from distdoctor.launch.job import Job, job_of, plan_of
from distdoctor.probes import NEEDLE


def launcher_of(folder: Path, source: str) -> Launcher:
    script = folder / "train.py"
    script.write_text(source)
    command = command_for(script, [], 2, Launcher.AUTO, folder)
    return Launcher.TORCHRUN if TORCHRUN in command else Launcher.PYTHON


# --- looking into a script ------------------------------------------------------------


@pytest.mark.parametrize(
    "source",
    [
        "",
        "dist.init_process_group('gloo')",
        "rank = int(os.environ['RANK'])",
        "rank = int(os.environ.get('LOCAL_RANK', 0))",
        "rank = int(os.getenv('RANK', '0'))",
        "os.environ.setdefault('RANK', '0')\nos.environ.setdefault('WORLD_SIZE', '1')",
        "os.environ['MASTER_ADDR'] = 'localhost'",
        "print('spawn')  # mp.spawn(main, nprocs=2)",
        "local_rank = int(os.environ['LOCAL_RANK'])\nProcess(target=serve).start()",
        "rank = os.getenv('RANK')\nmp.spawn(load, nprocs=4)",
        "parser.add_argument('--world-size')",
        "idist.Parallel('gloo', nproc_per_node=config['ranks'])",
        "import psutil\nprint(psutil.Process().memory_info())",
        "if 'RANK' not in os.environ:\n    os.environ['RANK'] = '0'",
        "if 'RANK' in os.environ:\n    main()\nelse:\n    mp.spawn(main)",
        "import ray.data\ndata = ray.data.read_csv('s')",
        "import x_ray\nx_ray.Trainer()",
        "def tuned():\n    import ray\n    ray.init()\ndist.init_process_group()",
        "m = nn.DataParallel(m) if old else m\ndist.init_process_group()",
        "m = nn.DataParallel(m)\nrank = os.environ.get('RANK')",
        "import accelerate\nnn.DataParallel(m)",
        "from mpi4py import MPI\ndist.init_process_group('gloo')",
        "seeds = numpy.random.SeedSequence(7).spawn(ranks)",
        "def spawn(rank):\n    return Member(rank)\nmember = spawn(rank)",
        "children = population.spawn(4)",
    ],
)
def test_a_script_that_is_given_its_rank_is_for_torchrun(
    tmp_path: Path, source: str
) -> None:
    assert launcher_of(tmp_path, source) is Launcher.TORCHRUN


@pytest.mark.parametrize(
    "source",
    [
        "mp.spawn(main, nprocs=2)",
        "import torch.multiprocessing as mp\nif main:\n    mp.spawn(train, (2,), 2)",
        "from torch.multiprocessing import spawn\nspawn(main)",
        "mp.start_processes(main, nprocs=2)",
        "import torch\ntorch.multiprocessing.spawn(main)",
        "import torch.multiprocessing as processes\nprocesses.spawn(main)",
        "for rank in range(2):\n    mp.Process(target=main, args=(rank,)).start()",
        "context.Process(target=main)",
        "notebook_launcher(main, num_processes=2)",
        "with idist.Parallel('gloo', nproc_per_node=2) as ranks:\n    pass",
        "os.environ['RANK'] = str(rank)",
        "def main(rank):\n    os.environ['WORLD_SIZE'] = '2'\nmp.spawn(main, nprocs=2)",
        "environ['LOCAL_RANK'] = environ['RANK'] = '0'",
        "m = torch.nn.DataParallel(m, device_ids=[0, 1])",
        "from torch.nn import DataParallel\nnet = DataParallel(net).cuda()",
        "from ray.train.torch import TorchTrainer\nTorchTrainer(train).fit()",
        "import ray.train.torch as rt\nr = environ['RANK']\nrt.TorchTrainer(f).fit()",
        "from ray import tune\ntune.Tuner(train).fit()",
        "import ray.train\nray.init(num_cpus=4)",
        "import ray\n@ray.remote\nclass Rank:\n    pass\ndist.init_process_group()",
        "try:\n    import ray\nexcept ImportError:\n    raise\nray.init()",
    ],
)
def test_a_script_that_starts_its_own_ranks_is_for_python(
    tmp_path: Path, source: str
) -> None:
    assert launcher_of(tmp_path, source) is Launcher.PYTHON


@pytest.mark.parametrize(
    "arguments",
    [["--rank", "0"], ["--dist-url", "tcp://127.0.0.1:23456"], ["--url=tcp://x:1"]],
)
def test_a_script_that_can_do_both_starts_its_own_ranks_when_told_its_place(
    tmp_path: Path, arguments: list[str]
) -> None:
    source = "p.add_argument('--rank')\nr = os.environ['RANK']\nmp.spawn(main)"
    (tmp_path / "train.py").write_text(source)
    script = tmp_path / "train.py"
    alone = command_for(script, arguments, 2, Launcher.AUTO, tmp_path)
    assert alone == [sys.executable, str(script), *arguments]
    assert TORCHRUN in command_for(script, ["--lr=1"], 2, Launcher.AUTO, tmp_path)


@pytest.mark.parametrize(
    "source",
    [
        "rank = int(os.environ['SLURM_PROCID'])",
        "os.environ['RANK'] = os.environ['SLURM_PROCID']",
        "p.add_argument('--rank', required=True)",
        "p.add_argument('--rank', default=0)\ninit_process_group(rank=args.rank)",
        "p.add_argument('rank')\nos.environ['RANK'] = str(args.rank)",
    ],
)
def test_a_script_that_is_told_its_rank_by_hand_gets_a_command_for_each(
    tmp_path: Path, source: str
) -> None:
    script = tmp_path / "train.py"
    script.write_text(source)
    command = command_for(script, ["--lr", "1"], 3, Launcher.AUTO, tmp_path)
    assert command[:3] == [sys.executable, multi_command.__file__, "rank"]
    assert rank_count(command, 2) == 3
    for rank, words in enumerate(multi_command.split(command[3:])):
        assert words[-2:] == ["--lr", "1"]
        assert str(rank) in " ".join(words[:-2])


def test_each_rank_can_be_given_its_own_arguments(tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.touch()
    own = ["--rank", "1", ":::", "--rank", "0"]
    command = command_for(script, own, 2, Launcher.AUTO, tmp_path)
    program = [sys.executable, str(script)]
    assert multi_command.split(command[3:]) == [
        [*program, "--rank", "1"],
        [*program, "--rank", "0"],
    ]


def test_a_script_is_looked_at_whatever_its_encoding(tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_bytes("# coding: latin-1\nmp.spawn('é')\n".encode("latin-1"))
    assert TORCHRUN not in command_for(script, [], 2, Launcher.AUTO, tmp_path)


# --- commands -------------------------------------------------------------------------


BY_MPI = """
from mpi4py import MPI
comm = MPI.COMM_WORLD
"""


@pytest.mark.parametrize(
    "joins",
    [
        "dist.init_process_group('gloo', rank=comm.rank, world_size=comm.size)",
        "os.environ['RANK'] = str(comm.Get_rank())\ndist.init_process_group()",
    ],
)
@pytest.mark.parametrize(
    ("says", "wanted"),
    [
        ("mpirun (Open MPI) 4.1.4", ["--host", "localhost:3", "--bind-to", "none"]),
        ("HYDRA build details:", []),
    ],
)
def test_a_script_that_mpi_tells_its_rank_is_for_mpirun(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    joins: str,
    says: str,
    wanted: list[str],
) -> None:
    mpirun, script = tmp_path / "mpirun", tmp_path / "train.py"
    mpirun.write_text(f"#!/bin/sh\necho '{says}'\n")
    mpirun.chmod(0o700)
    script.write_text(BY_MPI + joins)
    monkeypatch.setenv("PATH", str(tmp_path))
    command = command_for(script, ["--lr", "1"], 3, Launcher.AUTO, tmp_path)
    at = command.index(str(mpirun))
    program = [sys.executable, str(script), "--lr", "1"]
    assert command[at:] == [str(mpirun), "-np", "3", *wanted, *program]
    assert all("=" in word for word in command[1:at])
    assert rank_count(command, 3) == 3


def test_a_script_for_mpirun_says_what_it_lacks(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    script = tmp_path / "train.py"
    script.write_text(BY_MPI + "dist.init_process_group(rank=comm.rank)")
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(LaunchRefused, match="no mpirun on PATH"):
        command_for(script, [], 2, Launcher.AUTO, tmp_path)


def test_torchrun_is_told_the_ranks_and_the_script_its_arguments(
    tmp_path: Path,
) -> None:
    script = tmp_path / "train.py"
    script.touch()
    logs = tmp_path / "logs"
    command = command_for(script, ["--lr", "0.1"], 4, Launcher.AUTO, logs)
    # The working directory is not on the path of `torchrun` either.
    assert command[:4] == [sys.executable, "-P", "-m", TORCHRUN]
    assert command[command.index("--nproc-per-node") + 1] == "4"
    assert command[command.index("--log-dir") + 1] == str(logs)
    assert not {"--tee", "-t", "--redirects", "-r"} & set(command)  # files of output
    assert command[-3:] == [str(script), "--lr", "0.1"]


def test_torchrun_puts_the_local_rank_where_a_script_wants_it(tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text("p.add_argument('--local_rank', type=int)")
    command = command_for(script, ["--lr", "0.1"], 2, Launcher.AUTO, tmp_path)
    assert command[-4:] == [str(script), "--local_rank=${local_rank}", "--lr", "0.1"]


def test_only_torchrun_and_commands_by_rank_start_as_many_ranks_as_asked() -> None:
    assert rank_count(["python", "-m", TORCHRUN, "train.py"], 4) == 4
    assert rank_count(["python", "train.py"], 4) == 0


def test_python_is_given_script_and_arguments(tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.touch()
    command = command_for(script, ["-n", "3"], 4, Launcher.PYTHON, tmp_path)
    assert command == [sys.executable, str(script), "-n", "3"]


def test_what_the_user_says_goes_before_what_the_script_looks_like(
    tmp_path: Path,
) -> None:
    script = tmp_path / "train.py"
    script.write_text("mp.spawn(main)")
    assert TORCHRUN in command_for(script, [], 2, Launcher.TORCHRUN, tmp_path)


def test_a_given_command_gets_the_path_of_its_program() -> None:
    program, *arguments = given_command(["sh", "-c", "true"])
    assert Path(program).is_absolute()
    assert Path(program).name == "sh"
    assert arguments == ["-c", "true"]


def test_commands_given_together_get_the_paths_of_their_programs() -> None:
    command = given_command(["sh", "a.sh", ":::", "RANK=1", "sh", "b.sh"])
    assert command[:3] == [sys.executable, multi_command.__file__, "command"]
    first, second = multi_command.split(command[3:])
    assert Path(first[0]).is_absolute()
    assert second[:2] == ["env", "RANK=1"]
    assert Path(second[2]).name == "sh"
    assert not starts_torchrun(command)


def test_a_commands_own_path_comes_behind_that_of_the_probes() -> None:
    command = given_command(["PYTHONPATH=lib", "sh", "a.sh"])
    assert command[:2] == ["env", f"PYTHONPATH={NEEDLE}{os.pathsep}lib"]


@pytest.mark.parametrize("words", [["RANK=0"], ["sh", ":::", "RANK=0"]])
def test_variables_without_a_program_are_refused(words: list[str]) -> None:
    with pytest.raises(LaunchRefused, match="give a program after them"):
        given_command(words)


# --- what is refused ------------------------------------------------------------------


@pytest.mark.parametrize("ranks", [0, -3])
def test_no_ranks_are_refused(tmp_path: Path, ranks: int) -> None:
    script = tmp_path / "train.py"
    script.touch()
    with pytest.raises(LaunchRefused, match=f"-n {ranks}: give the number of ranks"):
        command_for(script, [], ranks, Launcher.AUTO, tmp_path)


@pytest.mark.parametrize(
    ("name", "why"),
    [
        ("gone.py", r"there is no script .*; give a Python"),
        (".", r"is a folder; give the script in it"),
        ("train.ipynb", r"is a notebook; .*nbconvert --to script .*ipynb`"),
    ],
)
def test_what_is_no_script_is_refused(tmp_path: Path, name: str, why: str) -> None:
    (tmp_path / "train.ipynb").write_text("{}")
    with pytest.raises(LaunchRefused, match=why):
        command_for(tmp_path / name, [], 2, Launcher.AUTO, tmp_path)


def test_a_syntax_error_is_said_with_its_line(tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text("import os\nprint('a'\n")
    with pytest.raises(
        LaunchRefused, match=r"train\.py, line 2: '\(' was never closed"
    ):
        command_for(script, [], 2, Launcher.AUTO, tmp_path)


@pytest.mark.parametrize("launcher", Launcher)
@pytest.mark.parametrize("content", [b"print(1)\0", b"x = '\xff'\n", b"\xff\xfe\x00"])
def test_what_is_no_python_is_refused_however_it_would_be_started(
    tmp_path: Path, content: bytes, launcher: Launcher
) -> None:
    script = tmp_path / "train.py"
    script.write_bytes(content)
    with pytest.raises(LaunchRefused, match=r"train\.py") as caught:
        command_for(script, [], 2, launcher, tmp_path)
    assert "None" not in str(caught.value)


def test_a_program_that_is_not_there_is_refused() -> None:
    with pytest.raises(LaunchRefused, match="no program 'tochrun' on PATH"):
        given_command(["tochrun", "train.py"])


# --- names of commands ----------------------------------------------------------------


@pytest.mark.parametrize(
    ("command", "name"),
    [
        (["python", "train.py", "--lr", "1"], "train.py"),
        (["torchrun", "--nproc-per-node", "2", "src/train.py"], "src/train.py"),
        (["python", "-m", "package.train"], "python"),
        (["/usr/bin/make", "train"], "make"),
        (["run.py"], "run.py"),
        (["python", "a.py", ":::", "python", "b.py"], "a.py, b.py"),
        (["python", "a.py", "0", ":::", "python", "a.py", "1"], "a.py"),
        (["serve", ":::", "work"], "2 commands"),
    ],
)
def test_a_job_is_known_by_its_script(command: list[str], name: str) -> None:
    assert script_in(command) == name


@pytest.mark.parametrize(
    ("command", "torchrun"),
    [
        (["torchrun", "train.py"], True),
        (["/env/bin/torchrun", "train.py"], True),
        (["python", "-m", TORCHRUN, "train.py"], True),
        (["python", "-u", "-m", TORCHRUN, "train.py"], True),
        (["python", "-m", "torch.distributed.launch", "train.py"], True),
        (["python", "train.py"], False),
        (["bash", "torchrun.sh"], False),
        (["python", multi_command.__file__, "command", "/env/bin/torchrun"], False),
        (["python", "train.py", "-a", "-b", "torchrun"], False),
    ],
)
def test_torchrun_is_known_by_all_its_names(command: list[str], torchrun: bool) -> None:
    assert starts_torchrun(command) is torchrun


# --- ports of its own -----------------------------------------------------------------


@pytest.mark.parametrize(
    ("command", "alone"),
    [
        ("python train.py --rank 0", True),
        ("torchrun --nproc-per-node 2 train.py", True),
        ("torchrun --nnodes=1 train.py", True),
        ("torchrun --nnodes 1:1 train.py", True),
        ("torchrun --nnodes=2 --node-rank 0 train.py", False),
        ("torchrun --nnodes 1:4 train.py", False),
        ("torchrun --nnodes 2 a.py ::: torchrun --nnodes 2 a.py", True),
        ("/usr/bin/srun -n 4 python train.py", False),
        ("mpirun -np 2 python train.py", False),
        ("bash launch.sh", False),
        ("./launch.sh 4", False),
        ("python train.py --dist-url tcp://node0.cluster:23456", False),
        ("python train.py --dist-url=tcp://10.255.1.2:23456", False),
        ("python train.py --dist-url tcp://127.0.0.1:23456", True),
        ("torchrun --master-addr node0.cluster train.py", False),
        ("torchrun --master_addr=localhost train.py", True),
    ],
)
def test_a_job_that_may_span_machines_keeps_its_ports(
    command: str, alone: bool
) -> None:
    assert may_be_isolated(command.split(), {}) is alone


def test_a_master_on_another_machine_is_respected() -> None:
    command = ["python", "train.py"]
    assert not may_be_isolated(command, {"MASTER_ADDR": "node0.cluster"})
    assert may_be_isolated(command, {"MASTER_ADDR": "127.0.0.1"})


# --- who may reach it -----------------------------------------------------------------


def environment_of(command: str, tmp_path: Path, *, own: bool) -> dict[str, str]:
    """Variables that a job gets beside those that it inherits."""
    job = Job(command=command.split(), name="t.py", ranks=2, expected=2, own=own)
    return plan_of(job, tmp_path).environment


@pytest.mark.parametrize(
    "command",
    [
        "python -m torch.distributed.run --standalone t.py",
        "python -m horovod.runner.launch -np 2 python t.py",
        "python t.py",
    ],
)
def test_what_we_start_stays_on_the_loopback_interface(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, command: str
) -> None:
    monkeypatch.delenv("GLOO_SOCKET_IFNAME", raising=False)
    environment = environment_of(command, tmp_path, own=True)
    assert environment[LOOPBACK_VARIABLE] == "1"
    assert environment["GLOO_SOCKET_IFNAME"] == "lo"
    assert environment_of(command, tmp_path, own=False).keys() <= {PORTS_VARIABLE}


def test_an_interface_that_the_user_has_chosen_stays(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("GLOO_SOCKET_IFNAME", "eth0")
    assert "GLOO_SOCKET_IFNAME" not in environment_of("python t.py", tmp_path, own=True)


def test_an_allocation_that_names_a_master_elsewhere_is_none_of_torchruns(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MASTER_ADDR", "node0.cluster")
    ours = "python -m torch.distributed.run --standalone t.py"
    assert LOOPBACK_VARIABLE in environment_of(ours, tmp_path, own=True)
    assert LOOPBACK_VARIABLE not in environment_of("python t.py", tmp_path, own=True)


@pytest.mark.parametrize(
    ("text", "placed"),
    [
        ("from ray.train.torch import TorchTrainer\nTorchTrainer(f).fit()", True),
        ("import torch", False),
        ("def", False),
    ],
)
def test_a_command_of_rays_is_known_by_its_script(
    tmp_path: Path, text: str, placed: bool
) -> None:
    script = tmp_path / "train.py"
    script.write_text(text)
    words = [sys.executable, str(script), "no.py"]
    job = job_of(None, words, None, Launcher.AUTO, tmp_path)
    assert job.placed is placed
    assert plan_of(job, tmp_path).placed is placed


@pytest.mark.parametrize(
    ("words", "placed"),
    [
        (["sh", "-c", "/opt/bin/ray start --head && python -m train"], True),
        (["ray", "symmetric-run", "--address", "a:6379", "--", "./train"], True),
        (["python", "-m", "train", "--backend", "ray"], False),
    ],
)
def test_a_command_that_starts_ray_is_known_by_that(
    tmp_path: Path, words: list[str], placed: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("shutil.which", lambda program: program)
    assert job_of(None, words, None, Launcher.AUTO, tmp_path).placed is placed


def test_workers_of_ray_meet_where_it_says(tmp_path: Path) -> None:
    """They may be on other machines, to which a loopback interface does not lead."""
    script = tmp_path / "train.py"
    script.write_text("from ray.train.torch import TorchTrainer\nTorchTrainer(f).fit()")
    job = job_of(script, [], None, Launcher.AUTO, tmp_path)
    assert not plan_of(job, tmp_path).environment
