"""The same as `fuzz.py`, led by what code an input reaches.

Needs `pip install atheris`.

    python benchmarks/fuzz_guided.py --seconds 300
    python benchmarks/fuzz_guided.py --target dumps --seconds 3600 --corpus corpus

Atheris (https://github.com/google/atheris, which is libFuzzer for Python) counts the
branches of the readers; a case that reaches new ones is kept and changed further. The
changes are those of `hostile_inputs.changed`, which know the structure of what they
change: bytes flipped by chance rarely pass the first line of a reader.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import atheris  # type: ignore[import-not-found, import-untyped, unused-ignore]
import msgspec

with atheris.instrument_imports(
    include=["distdoctor.postmortem", "distdoctor.journal"],
    enable_loader_override=False,
):
    import fuzz

from hostile_inputs import Case, changed, seeds

_LARGEST = 1 << 18
_BASE = 20  # a folder of many small files is as good as one of few


def _decoded(data: bytes) -> Case:
    """The folder that the bytes stand for; any bytes stand for one."""
    try:
        return msgspec.msgpack.decode(data, type=dict[str, bytes])
    except (msgspec.MsgspecError, RecursionError, UnicodeError):
        return {"job.log": data}


def _encoded(case: Case) -> bytes:
    return msgspec.msgpack.encode(
        {name: content for name, content in case.items() if name.isprintable()}
    )


def _one_target(options: argparse.Namespace) -> None:
    """Give inputs until the time is up; ends the process."""
    (name,) = options.target
    target = fuzz.TARGETS[name]
    pool = [case for kind in target.kinds for case in seeds(kind)]
    tally, begun = fuzz.Tally(), time.monotonic()
    signal.signal(signal.SIGVTALRM, fuzz.the_time_is_up)
    sys.addaudithook(fuzz.audit)

    def mutate(data: bytes, most: int, seed: int) -> bytes:
        rng = random.Random(seed)
        case = changed(_decoded(data), rng.choice(pool), rng)
        made = _encoded(dict(list(case.items())[:_BASE]))
        return made if len(made) <= most else data[:most]

    def give(data: bytes) -> None:
        tally.take(name, _decoded(data), options.save)
        if time.monotonic() - begun > options.seconds:
            print(
                json.dumps({"inputs": tally.inputs, "failures": tally.failures}),
                flush=True,
            )
            os._exit(0)  # libFuzzer has no end of its own but by a signal

    corpus = Path(options.corpus) / name
    corpus.mkdir(parents=True, exist_ok=True)
    for number, case in enumerate(pool):
        if len(made := _encoded(case)) <= _LARGEST:
            (corpus / f"seed{number}").write_bytes(made)
    limits = [f"-max_len={_LARGEST}", "-rss_limit_mb=4096", "-timeout=60"]
    quiet = ["-verbosity=0", f"-seed={options.seed}"]
    arguments = [sys.argv[0], *limits, *quiet, str(corpus)]
    atheris.Setup(arguments, give, custom_mutator=mutate)
    atheris.Fuzz()


def _in_a_process(name: str, options: argparse.Namespace) -> dict[str, Any]:
    command = [sys.executable, __file__, "--alone", "--target", name]
    command += ["--seconds", str(options.seconds), "--seed", str(options.seed)]
    command += ["--save", options.save, "--corpus", options.corpus]
    done = subprocess.run(
        command, stdout=subprocess.PIPE, text=True, timeout=options.seconds + 600
    )
    for line in reversed(done.stdout.splitlines()):
        if line.startswith("{"):
            answer: dict[str, Any] = json.loads(line)
            return answer
    return {"inputs": 0, "failures": {f"ended by itself, status {done.returncode}": 1}}


def main() -> None:
    """Give inputs to the targets, one after the other, and print what came of it."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--target", action="append", choices=list(fuzz.TARGETS))
    parser.add_argument("--seconds", type=float, default=60)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--save", default="fuzz-failures")
    parser.add_argument("--corpus", default="")
    parser.add_argument("--alone", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.alone:
        _one_target(options)
    wrong = total = 0
    with tempfile.TemporaryDirectory() as scratch:
        options.corpus = options.corpus or scratch
        for name in options.target or fuzz.TARGETS:
            answer = _in_a_process(name, options)
            total += answer["inputs"]
            failures: dict[str, int] = answer["failures"]
            wrong += sum(failures.values())
            failed = f"{sum(failures.values()):,} failed"
            print(f"{name}: {answer['inputs']:,} inputs, {failed}")
            for what, often in failures.items():
                print(f"    {often:,} × {what}", flush=True)
    print(f"all: {total:,} inputs, {wrong:,} failed")
    sys.exit(1 if wrong else 0)


if __name__ == "__main__":
    main()
