"""Scripts of Horovod's: how they are known, started and refused."""

import sys
from pathlib import Path

import pytest

from distdoctor.errors import LaunchRefused
from distdoctor.launch import command as commands
from distdoctor.launch.command import Launcher, command_for, rank_count
from distdoctor.launch.horovod_installation import Framework
from distdoctor.launch.horovod_source import framework_of
from distdoctor.launch.horovodrun import HOROVODRUN, horovodrun, starts_horovodrun
from distdoctor.launch.launched_ranks import launched_ranks
from distdoctor.launch.script_source import read_source

HVD = "import horovod.torch as hvd\n"
TORCH = "import torch.distributed as dist\n"
WITHOUT = "Horovod is not installed; `distdoctor horovod build` builds one"


@pytest.fixture
def problem(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Why Horovod cannot be used here: the first element."""
    why = [""]

    def require(_framework: Framework) -> None:
        if why[0]:
            raise LaunchRefused(why[0])

    monkeypatch.setattr(commands, "horovod_problem", lambda _framework: why[0])
    monkeypatch.setattr(commands, "require_horovod", require)
    return why


def launched(folder: Path, source: str, *given: str) -> list[str]:
    script = folder / "train.py"
    script.write_text(source)
    return command_for(script, given, 2, Launcher.AUTO, folder)


# --- looking into a script ------------------------------------------------------------


@pytest.mark.parametrize(
    "source",
    [
        HVD + "hvd.init()",
        "import horovod.torch\nhorovod.torch.init()",
        "from horovod import torch as hvd\nhvd.init()",
        "from horovod.torch import init\ninit()",
        "from horovod.torch import *\ninit()",
        "import horovod.tensorflow as hvd\nhvd.init()",
        "import horovod.tensorflow.keras as hvd\nhvd.init()",
        "import horovod.keras as hvd\nclass A:\n    def f(self):\n        hvd.init()",
        HVD + "self.hvd = hvd\nself.hvd.init()",
        HVD + "hvd.init()\nmultiprocessing.Process(target=load).start()",
        HVD + TORCH + "hvd.init()\n"
        "dist.init_process_group('gloo', rank=hvd.rank(), world_size=hvd.size())",
        HVD + TORCH + "hvd.init()\nos.environ['RANK'] = str(hvd.rank())\n"
        "dist.init_process_group('gloo')",
    ],
)
@pytest.mark.usefixtures("problem")
def test_a_script_that_calls_init_is_for_horovodrun(
    tmp_path: Path, source: str
) -> None:
    command = launched(tmp_path, source)
    assert starts_horovodrun(command)
    assert rank_count(command, 2) == 2


@pytest.mark.parametrize(
    "source",
    [
        HVD + "print(hvd.__name__)",
        "torch.init()\nhvd = 1",
        TORCH + "dist.init_process_group('gloo')  # hvd.init()",
        HVD + TORCH + "rank = int(os.environ['RANK'])\n"
        "hvd.init() if rank < 0 else dist.init_process_group('gloo')",
        HVD + TORCH + "hvd.init() if args.old else dist.init_process_group('gloo')",
    ],
)
@pytest.mark.usefixtures("problem")
def test_a_script_that_joins_torch_is_for_torchrun(tmp_path: Path, source: str) -> None:
    assert commands.starts_torchrun(launched(tmp_path, source))


@pytest.mark.usefixtures("problem")
def test_arguments_decide_for_a_script_that_can_do_both(tmp_path: Path) -> None:
    both = HVD + TORCH + "hvd.init() if args.hvd else dist.init_process_group('gloo')\n"
    assert starts_horovodrun(launched(tmp_path, both, "--backend=horovod"))


@pytest.mark.usefixtures("problem")
def test_what_the_users_own_modules_call_counts(tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text(HVD + "def start():\n    hvd.init()\n")
    assert starts_horovodrun(launched(tmp_path, "import mine\nmine.start()"))


@pytest.mark.usefixtures("problem")
def test_a_module_for_torch_that_is_not_used_does_not_count(tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text(
        TORCH + "def start():\n    dist.init_process_group('gloo')\n"
    )
    assert starts_horovodrun(launched(tmp_path, f"import mine\n{HVD}hvd.init()"))


@pytest.mark.usefixtures("problem")
def test_a_script_that_starts_ranks_by_horovod_is_run_as_it_is(tmp_path: Path) -> None:
    source = f"import horovod\n{HVD}def f():\n    hvd.init()\nhorovod.run(f, np=2)"
    command = launched(tmp_path, source)
    assert command == [sys.executable, str(tmp_path / "train.py")]


BY_AN_OPTION = f"""
import horovod
{HVD}
def main():
    hvd.init()
if __name__ == "__main__":
    if {{}}:
        {{}}
    else:
        {{}}
"""
RUN = "horovod.run(main, np=args.num_proc)"


@pytest.mark.usefixtures("problem")
@pytest.mark.parametrize(
    ("test", "yes", "no"),
    [
        ("args.num_proc", RUN, "main()"),
        ("args.num_proc is not None", RUN, "main()"),
        ("args.num_proc is None", "main()", RUN),
        ("not args.num_proc", "main()", RUN),
    ],
)
def test_a_script_that_starts_ranks_if_it_is_told_to_is_told_so_by_its_arguments(
    tmp_path: Path, test: str, yes: str, no: str
) -> None:
    source = BY_AN_OPTION.format(test, yes, no)
    assert starts_horovodrun(launched(tmp_path, source))
    assert starts_horovodrun(launched(tmp_path, source, "--epochs", "2"))
    for told in (["--num-proc", "2"], ["--num_proc=2"]):
        assert launched(tmp_path, source, *told)[0] == sys.executable


def test_a_script_without_its_horovod_is_refused(
    tmp_path: Path, problem: list[str]
) -> None:
    problem[0] = WITHOUT
    with pytest.raises(LaunchRefused, match="`distdoctor horovod build`"):
        launched(tmp_path, HVD + "hvd.init()")


def test_a_script_that_only_may_use_horovod_goes_another_way(
    tmp_path: Path, problem: list[str]
) -> None:
    problem[0] = WITHOUT
    source = (
        "try:\n    import horovod.torch as hvd\n    hvd.init()\n"
        "except ImportError:\n    hvd = None\n"
    )
    assert commands.starts_torchrun(launched(tmp_path, source))
    problem[0] = ""
    assert starts_horovodrun(launched(tmp_path, source))


def test_the_framework_is_the_one_that_is_imported(tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    for module, framework in (
        ("horovod.torch", Framework.TORCH),
        ("horovod.keras", Framework.TENSORFLOW),
        ("horovod.tensorflow", Framework.TENSORFLOW),
    ):
        script.write_text(f"import {module} as hvd")
        assert framework_of(read_source(script)) is framework


# --- commands -------------------------------------------------------------------------


def test_ranks_run_by_the_same_python_as_we() -> None:
    command = horovodrun([sys.executable, "train.py", "--lr", "1"], 3)
    assert command[:6] == [sys.executable, "-P", "-m", HOROVODRUN, "-np", "3"]
    assert command[-4:] == [sys.executable, "train.py", "--lr", "1"]


@pytest.mark.parametrize(
    ("command", "ranks"),
    [
        ("horovodrun -np 2 --gloo --network-interface lo python x.py", 2),
        ("/opt/bin/horovodrun --num-proc=4 -H a:2,b:2 python3.11 x.py", 4),
        ("mpirun -np 4 -x PATH -bind-to none python x.py", 4),
        ("mpirun --oversubscribe -n 2 ./x.py", 2),
        ("mpirun -H a:2,b:3 python x.py", 5),
        ("mpiexec -n 8 nice python -u x.py", 8),
        ("srun -n4 python x.py", 4),
        ("srun --ntasks=8 --unbuffered python x.py", 8),
    ],
)
def test_the_number_of_ranks_is_read_where_it_is_plain(
    command: str, ranks: int
) -> None:
    assert launched_ranks(command.split()) == ranks


@pytest.mark.parametrize(
    "command",
    [
        "",
        "python x.py",
        "torchrun --nproc-per-node 2 x.py",
        "srun python x.py",
        "srun -n 2 torchrun --nproc-per-node 2 x.py",
        "srun --ntasks-per-node 2 -n 4 python x.py",
        "mpirun -np 2 bash run.sh",
        "mpirun -np 2 python -m torch.distributed.run x.py",
        "mpirun -np 1 python a.py : -np 1 python b.py",
        "mpirun -np two python x.py",
        "mpirun -np 99999999999999999999 python x.py",
        "mpirun -np 2 -n 3 python x.py",
        "mpirun -H a,b python x.py",
        "horovodrun -np 2 --min-np 1 --max-np 4 python x.py",
        "mpirun -np 2 python a.py ::: mpirun -np 2 python b.py",
        "mpirun ./a.out -np 2",
    ],
)
def test_the_number_of_ranks_is_left_open_elsewhere(command: str) -> None:
    assert launched_ranks(command.split()) == 0


@pytest.mark.usefixtures("problem")
def test_a_long_sum_in_a_script_is_no_obstacle(tmp_path: Path) -> None:
    source = f"{HVD}hvd.init()\nx = {' + '.join(['1'] * 900)}"
    assert starts_horovodrun(launched(tmp_path, source))
