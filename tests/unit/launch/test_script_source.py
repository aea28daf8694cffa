"""What a script's source tells of how it wants to be started."""

import ast
from pathlib import Path

import pytest

from distdoctor.launch.allocation import is_scheduled, meeting_point, of_job, of_rank
from distdoctor.launch.launcher_arguments import rank_arguments, takes_rank
from distdoctor.launch.script_source import ScriptSource, read_source


def of(text: str) -> ScriptSource:
    return ScriptSource(ast.parse(text))


# --- reading --------------------------------------------------------------------------


def test_variables_are_told_apart_by_how_they_are_used() -> None:
    source = of(
        "import os\nos.environ['A'] = '1'\nx = os.environ['B']\n"
        "y = os.environ.get('C')\nz = os.getenv('D', '')\nif 'E' in os.environ: pass\n"
        "os.environ.setdefault('F', '')\n"
    )
    assert source.sets == {"A"}
    assert source.demands == {"B"}
    assert source.asks == {"C", "D", "E"}
    assert source.reads == {"B", "C", "D", "E"}


def test_modules_beside_the_script_are_read_with_it(tmp_path: Path) -> None:
    (tmp_path / "utils").mkdir()
    for name, text in {
        "train.py": "import numpy, settings\nfrom utils import args\nimport gone",
        "settings.py": "import train\nos.environ['A']",
        "utils/__init__.py": "from .deep import x",
        "utils/args.py": "from . import broken\nos.environ['B']",
        "utils/deep.py": "from .. import above\nos.environ['C']",
        "utils/broken.py": "os.environ['D'",
        "other.py": "os.environ['E']",
    }.items():
        (tmp_path / name).write_text(text)
    assert read_source(tmp_path / "train.py").reads == {"A", "B", "C"}


def test_options_are_read_with_their_spellings() -> None:
    source = of(
        "p.add_argument('--local_rank', '--local-rank', type=int)\n"
        "p.add_argument('-r', '--rank', required=True)\n"
        "p.add_argument('data')\np.add_argument('out', nargs='?')\n"
        "p.add_argument(name)\n"
    )
    assert [option.names for option in source.options] == [
        ("--local_rank", "--local-rank"),
        ("-r", "--rank"),
        ("data",),
        ("out",),
    ]
    assert [option.required for option in source.options] == [False, True, True, False]
    assert [o.is_positional for o in source.options] == [False, False, True, True]


@pytest.mark.parametrize(
    ("text", "size"),
    [
        ("dist.init_process_group('gloo', world_size=4, rank=r)", 4),
        ("N = 3\ninit_process_group('gloo', world_size=N)", 3),
        ("init_process_group('gloo', world_size=n)", None),
        ("def f(r, n=4):\n    init_process_group(world_size=n)\nf(0)\nf(r=1)", 4),
        ("def f(r, n=4):\n    init_process_group(world_size=n)\nf(0, 2)", None),
        ("def f(r, n=4):\n    init_process_group(world_size=n)\nf(0, n=x)", None),
        ("def f(n):\n    init_process_group(world_size=n)\nf(2)", None),
        ("init_process_group('gloo')", None),
        ("init_process_group(world_size=1, rank=0)", None),
        ("init_process_group(world_size=512)", None),
        (
            "if a:\n    init_process_group()\n"
            "else:\n    init_process_group(world_size=4)",
            None,
        ),
        ("", None),
    ],
)
def test_a_number_of_ranks_in_the_code_is_found(text: str, size: int | None) -> None:
    assert of(text).world_size == size


# --- arguments ------------------------------------------------------------------------

LOCAL = "p.add_argument('--local_rank', type=int, default=-1)\n"
RANK = "p.add_argument('--rank', type=int, default=0)\n"
SIZE = "p.add_argument('--world-size', type=int, default=8)\n"
GIVES = "init_process_group('gloo', rank=args.rank, world_size=args.world_size)\n"


@pytest.mark.parametrize(
    ("text", "given", "arguments"),
    [
        (LOCAL, [], ["--local_rank=R"]),
        ("p.add_argument('--local-rank', type=int)", [], ["--local-rank=R"]),
        ("p.add_argument('-l', '--local_rank')", [], ["--local_rank=R"]),
        (LOCAL, ["--local_rank", "3"], []),
        (LOCAL, ["--local_rank=3"], []),
        (LOCAL + LOCAL, [], ["--local_rank=R"]),
        (RANK + SIZE, [], []),
        ("p.add_argument('--rank', required=True)\n" + SIZE, [], ["--rank=R"]),
        ("p.add_argument('rank')\np.add_argument('world_size')", [], ["R", "2"]),
        ("p.add_argument('rank')\np.add_argument('data')", [], ["R"]),
        ("p.add_argument('data')\np.add_argument('rank')", [], []),
        ("p.add_argument('rank')", ["0"], []),
        ("p.add_argument('rank', nargs='?')", [], []),
        ("", [], []),
    ],
)
def test_a_launcher_adds_what_is_demanded(
    text: str, given: list[str], arguments: list[str]
) -> None:
    assert rank_arguments(of(text), given, "R", 2, by_hand=False) == arguments


def test_by_hand_a_rank_is_told_all_that_it_takes() -> None:
    source = of(RANK + SIZE + "p.add_argument('--lr', required=True)")
    assert rank_arguments(source, [], 1, 4, by_hand=True) == [
        "--rank=1",
        "--world-size=4",
    ]
    assert rank_arguments(source, ["--world-size", "9"], 1, 4, by_hand=True) == [
        "--rank=1"
    ]


@pytest.mark.parametrize(
    ("text", "given", "takes"),
    [
        (RANK + GIVES, [], True),
        (RANK + GIVES, ["--rank", "0"], False),
        (RANK + "init_process_group('gloo')", [], False),
        ("p.add_argument('--rank', required=True)", [], True),
        ("p.add_argument('rank')", [], True),
        ("p.add_argument('rank')", ["--lr", "1"], True),
        ("p.add_argument('rank')", ["0"], False),
        (RANK + "os.environ['RANK'] = str(args.rank)", [], True),
        (LOCAL + GIVES, [], False),
        (GIVES, [], False),
    ],
)
def test_a_script_that_takes_its_rank_is_known(
    text: str, given: list[str], takes: bool
) -> None:
    assert takes_rank(of(text), given) is takes


# --- schedulers -----------------------------------------------------------------------

SLURM = "r = int(os.environ['SLURM_PROCID'])\nn = os.environ.get('SLURM_NTASKS')\n"


@pytest.mark.parametrize(
    ("text", "scheduled"),
    [
        (SLURM, True),
        ("os.environ.get('OMPI_COMM_WORLD_RANK', 0)", True),
        (SLURM + "os.environ['RANK'] = os.environ['SLURM_PROCID']", True),
        (SLURM + "if 'RANK' in os.environ: pass", False),
        (
            "os.environ['RANK'] = os.environ['SLURM_PROCID']\n"
            "rank = os.environ['RANK']",
            True,
        ),
        ("n = os.environ['WORLD_SIZE']\nr = os.environ['SLURM_PROCID']", True),
        (
            "if 'SLURM_JOB_ID' in os.environ:\n"
            "    os.environ['RANK'] = os.environ['SLURM_PROCID']\n"
            "rank = os.environ['RANK']",
            False,
        ),
        ("os.environ['SLURM_JOB_ID']", False),
        ("", False),
    ],
)
def test_a_script_for_a_scheduler_is_known(text: str, scheduled: bool) -> None:
    assert is_scheduled(of(text)) is scheduled


def test_only_what_is_read_is_supplied() -> None:
    assert of_rank(of(SLURM), 1, 4) == {"SLURM_PROCID": "1", "SLURM_NTASKS": "4"}
    exported = of(SLURM + "os.environ['WORLD_SIZE']")
    assert of_rank(exported, 1, 4)["WORLD_SIZE"] == "4"
    hosts = of("os.environ['LSB_HOSTS'].split()[1]")
    assert of_rank(hosts, 0, 2) == {"LSB_HOSTS": "localhost localhost localhost"}


def test_all_ranks_are_given_what_they_demand_and_lack() -> None:
    demands = of("os.environ['SLURM_JOB_ID']\nos.environ['OTHER']")
    assert of_job(demands, 2, {}) == {"SLURM_JOB_ID": "1"}
    assert of_job(demands, 2, {"SLURM_JOB_ID": "77"}) == {}
    careful = of("if 'SLURM_JOB_ID' in os.environ: x = os.environ['SLURM_JOB_ID']")
    assert of_job(careful, 2, {}) == {}
    sets = of("os.environ['SLURM_JOB_ID'] = '1'\nos.environ['SLURM_JOB_ID']")
    assert of_job(sets, 2, {}) == {}


def test_devices_are_named_to_a_script_that_asks_for_them() -> None:
    asks = of("assert os.environ.get('CUDA_VISIBLE_DEVICES')")
    assert of_job(asks, 3, {}) == {"CUDA_VISIBLE_DEVICES": "0,1,2"}
    assert of_job(asks, 3, {"CUDA_VISIBLE_DEVICES": "1"}) == {}
    sets = of("os.environ['CUDA_VISIBLE_DEVICES'] = '0'\n" + ast.unparse(asks.script))
    assert of_job(sets, 3, {}) == {}


def test_ranks_are_told_where_to_meet_if_they_do_not_say_so() -> None:
    assert set(meeting_point(of(SLURM))) == {"MASTER_ADDR", "MASTER_PORT"}
    port = of("os.environ['MASTER_PORT'] = '29500'")
    assert meeting_point(port) == {"MASTER_ADDR": "127.0.0.1"}
    asks = of(
        "if 'MASTER_PORT' not in os.environ:\n    os.environ['MASTER_PORT'] = '1'"
    )
    assert "MASTER_PORT" in meeting_point(asks)
