"""What is known of each told command: its exit status, or why it is not run."""

from __future__ import annotations

JUDGED = (1, 4)
"""Exit statuses where leavings are judged: sick, or not all seen."""

FOUND = (0, 1)
"""Exit statuses where sources are read: nothing or something was found."""

RUN: dict[str, tuple[int, ...]] = {
    "distdoctor check train.py --format github --format junit=distdoctor.xml "
    "--format markdown=comment.md": (0,),
    "distdoctor check train.py": (0,),
    "distdoctor check train.py -n 4": (0,),
    "distdoctor check train.py --format html=report.html": (0,),
    "distdoctor check train.py -n 4 -- --epochs 2": (0,),
    "distdoctor check -- torchrun --nproc-per-node 4 train.py --epochs 1": (0,),
    "distdoctor check -- python spawns_its_own_ranks.py": (0,),
    "distdoctor check -- python server.py ::: python worker.py --rank 1": (0,),
    "distdoctor check train.py -n 4 --reference": (0,),
    "distdoctor check --reference -- torchrun --nproc-per-node 4 train.py": (0,),
    "distdoctor check train.py --world-size 1024 --as-rank 0,1,513": (0,),
    "distdoctor check train.py -n 2 --budget 120 --format sarif "
    "--output distdoctor.sarif": (0,),
    "distdoctor check train.py -n 4 --budget 300 --output check.txt -- --epochs 1 "
    "|| exit 1": (0,),
    "distdoctor check -- horovodrun -np 2 python train.py": (0,),
    "distdoctor check fixtures/patients/dd313_contradicting_flags.py -- sick": (0,),
    "distdoctor record -- torchrun --nproc-per-node 4 train.py": (0,),
    "distdoctor record --to /scratch/last-night -- python spawns_its_own_ranks.py": (
        0,
    ),
    "distdoctor explain DD313": (0,),
    "distdoctor lint .": FOUND,
    "distdoctor lint train.py --format concise": FOUND,
    "distdoctor lint . --advice": FOUND,
    "distdoctor lint . --select DD108,DD409": FOUND,
    "distdoctor lint . --fix > mends.diff": FOUND,
    "distdoctor env": (0,),
    "distdoctor completion bash >> ~/.bashrc": (0,),
    "distdoctor completion zsh >> ~/.zshrc": (0,),
    "distdoctor completion fish > ~/.config/fish/completions/distdoctor.fish": (0,),
    "distdoctor autopsy slurm-4711.out": JUDGED,
    "distdoctor autopsy logs/": JUDGED,
    "distdoctor autopsy job.log.gz dmesg.txt": JUDGED,
    "distdoctor autopsy /scratch/timeline.json job.out": JUDGED,
    "distdoctor autopsy runs/": JUDGED,
    "distdoctor autopsy stacks/": JUDGED,
    "distdoctor nccl job.log": JUDGED,
    "python docs/make_pictures.py docs/pictures/unseen.txt mine.svg": (0,),
    'python -c "\nfrom pathlib import Path\nfrom distdoctor.journal.assembly import '
    "read_run\nfrom distdoctor.model.drawing import draw\n"
    "print(draw(read_run(Path('DIR'))))\n\"": (0,),
    "pytest -q tests/unit/examination/test_checks.py -k DD313": (0,),
    "pytest -q tests/unit/optimizer_step": (0,),
    "export DISTDOCTOR_TOKEN=$(openssl rand -hex 32)": (0,),
    "export TORCH_FR_BUFFER_SIZE=2000": (0,),
    "export TORCH_NCCL_TRACE_BUFFER_SIZE=2000": (0,),
    "export TORCH_NCCL_DUMP_ON_TIMEOUT=1": (0,),
}
"""By command, the exit statuses that are right for it in the folder of the test."""

_GATE = ".ci/run itself runs it"
_LIVE = "it is the test suite, or a part of it that .ci/run runs anyway"
_NODES = "it needs two machines; tests/live/test_several_nodes.py has two of its own"
_RAY = "it needs Ray on two machines; tests/live/test_ray_over_nodes.py does so"
_MPI = "it needs two machines; tests/live/test_mpirun_over_nodes.py does so"
_SLURM = "it needs Slurm; tests/live/test_srun_over_nodes.py starts one"
_LAUNCHED = "tests/live/test_horovod_launch.py starts jobs by all launchers of Horovod"
_LIVING = "it needs a job that hangs; tests/live/test_living_jobs.py has some"
_LOOKS = "tests/live/test_living_jobs_over_nodes.py looks at jobs over nodes"
_RAS = "it needs NCCL's server on GPUs; tests/unit/cli/test_autopsy_ras.py plays it"
_DOCKER = "it needs Docker"
_WATCHED = "it needs a job that runs; tests/live/test_watch.py has some"

_COMPARED = "tests/live/test_comparing.py proves jobs so, which takes several runs"
_ONE_RANK = "tests/live/test_reference.py compares jobs so, which takes two runs"
_SAME = "it is run with other arguments of the script, or with other formats"

NOT_RUN = {
    "distdoctor check train.py -n 4 -- --epochs 1": _SAME,
    "distdoctor check train.py --format junit=distdoctor.xml "
    "--format markdown=comment.md --format sarif=distdoctor.sarif": _SAME,
    "distdoctor check train.py --twice": _COMPARED,
    "distdoctor check train.py --resume 'train.py --resume ckpt.pt' -- --epochs 3": (
        _COMPARED
    ),
    "distdoctor check train.py --reference "
    "'torchrun --nproc-per-node 1 train.py --batch 64'": _ONE_RANK,
    "distdoctor check train.py -n 4 --reference "
    "'torchrun --nproc-per-node 1 train.py --batch 64'": _ONE_RANK,
    "pip install 'distdoctor[watch]'": _GATE,
    "distdoctor watch": _WATCHED,
    "distdoctor watch FOLDER": _WATCHED,
    "distdoctor watch 12345": _WATCHED,
    "distdoctor watch --once": _WATCHED,
    "distdoctor watch --once --format json FOLDER": _WATCHED,
    "pip install -c .ci/constraints.txt -e '.[dev]' && distdoctor check "
    "reference_jobs/ddp_training.py": _GATE,
    "pytest -n 2": _GATE,
    "pytest -n 2 -m 'not live'": _LIVE,
    "pytest -q tests/live/test_patients.py -k DD313": _LIVE,
    "pytest -q tests/live/test_systems.py -k FSDP2": _LIVE,
    "pytest -q tests/live/test_systems.py -k fsdp2": _LIVE,
    "ruff format . && ruff check . && mypy": _GATE,
    ".ci/run": "it is the gate",
    "python docs/make_systems.py FSDP2": "it changes docs/systems.md",
    "docker build -t distdoctor .": _DOCKER,
    'docker run --rm --shm-size 1g --cap-add SYS_PTRACE -v "$PWD:/work" distdoctor '
    "check train.py -n 2": _DOCKER,
    "distdoctor check train.py --world-size 64 --as-rank 0-7,63 --budget 300": (
        "it is the same as with three ranks, and takes nine times as long"
    ),
    "distdoctor check -- mpirun --host a:4,b:4 -np 8 python train.py": _MPI,
    "distdoctor check -- srun --nodes 2 --ntasks 8 python train.py": _SLURM,
    "distdoctor check --nodes 2 --listen a:4711 -- torchrun --nnodes 2 "
    "--node-rank 0 …": _NODES,
    "distdoctor join a:4711 -- torchrun --nnodes 2 --node-rank 1 …": _NODES,
    "distdoctor check --nodes 2 --listen a:4711 -- sh -c 'ray start --head "
    "--node-ip-address a --port 6379 && python train.py'": _RAY,
    "distdoctor join a:4711 -- ray start --address a:6379 --block": _RAY,
    "distdoctor check --nodes 2 --listen a:4711 -- ray symmetric-run --address a:6379 "
    "--min-nodes 2 -- python train.py": _RAY,
    "distdoctor join a:4711 -- ray symmetric-run --address a:6379 --min-nodes 2 -- "
    "python train.py": _RAY,
    "distdoctor horovod build": "it takes minutes; .ci/horovod runs it",
    "distdoctor check -- horovodrun -np 4 python train.py": _LAUNCHED,
    "distdoctor check -- mpirun -np 4 -x PYTHONPATH python train.py": _LAUNCHED,
    "distdoctor check -- srun -n 4 python train.py": _LAUNCHED,
    "horovodrun -np 4 --timeline-filename /scratch/timeline.json python train.py": (
        "Horovod's own; the timelines of tests/unit/postmortem/horovod come from it"
    ),
    "distdoctor record -- srun --nodes 2 --ntasks 16 python train.py": _SLURM,
    "distdoctor record --nodes 2 --listen a:4711 -- torchrun --nnodes 2 "
    "--node-rank 0 …": _NODES,
    "NCCL_DEBUG=INFO NCCL_DEBUG_SUBSYS=INIT,ENV,NET,COLL torchrun … 2>&1 "
    "| tee job.log": "it needs NCCL, and so GPUs",
    "distdoctor autopsy 4711": _LIVING,
    "distdoctor autopsy --job train.py": _LIVING,
    "distdoctor autopsy --all": _LIVING,
    "distdoctor autopsy 4711 --watch": _LIVING,
    "srun --overlap --jobid 4711 --ntasks-per-node 1 distdoctor autopsy --job train.py "
    "--save looks/": _LOOKS,
    "for host in a b; do ssh $host distdoctor autopsy --job train.py --save "
    "/shared/looks & done; wait": _LOOKS,
    "for pod in job-0 job-1; do kubectl exec $pod -- distdoctor autopsy --all --save "
    "/tmp/looks & done; wait": _LOOKS,
    "distdoctor autopsy looks/": _LOOKS,
    "distdoctor autopsy 4711 --worker-server '/tmp/worker-{rank}'": _LIVING,
    "for pid in $(pgrep -f train.py); do\n"
    "  rank=$(tr '\\0' '\\n' < /proc/$pid/environ | sed -n 's/^RANK=//p')\n"
    '  [ -z "$rank" ] || py-spy dump --pid $pid > stacks/rank$rank.txt\n'
    "done": _LIVING,
    "distdoctor autopsy --ras": _RAS,
    "distdoctor autopsy --ras node7:28028": _RAS,
    "distdoctor autopsy logs/ --ras": _RAS,
    "ncclras -v -f json > status.json; distdoctor autopsy status.json": _RAS,
    "jupyter nbconvert --to script train.ipynb": "Jupyter is nothing that we need",
}
"""By command, why it is not run here. Those of distdoctor are parsed all the same."""
