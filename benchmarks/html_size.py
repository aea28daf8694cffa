"""How large the HTML report of a large job is, and how soon a browser shows it.

Run it with

    python benchmarks/html_size.py

Makes runs of up to 1,024 ranks with up to 10,000 calls each whose ranks also tell what
they read, their weights and their steps; one rank's last call has another dtype. In the
worst case each rank also makes calls of its own now and then, so that no two rows of
the map are alike. Told are: how long it takes to make the page, also in parts of the
time to judge the run, its size, and how long Debian's Chromium needs from the request
to the first picture after all was read. The goal is 2 s.
"""

from __future__ import annotations

import argparse
import shutil
import tempfile
import time
from pathlib import Path

import numpy as np
from figures import print_table, quartiles
from generated import Mesh, Step, generate
from generated_notes import recorded_notes, with_notes

from distdoctor.journal.folder import Manifest
from distdoctor.judging import judge_run
from distdoctor.model.events import WORLD
from distdoctor.model.run import Run
from distdoctor.report.formats import Rendering, render

GOAL_S = 2.0
SIZES = ((16, 1_000), (128, 10_000), (1024, 10_000))
_LOOP = [Step(WORLD, line) for line in (10, 20, 30)]
_SHOWN = """() => new Promise((done) => requestAnimationFrame(
    () => requestAnimationFrame(() => done(performance.now()))))"""


def usual(ranks: int, calls: int) -> Run:
    """One rank's last call has another dtype."""
    tails = {ranks // 3: [Step(WORLD, 10, "float16")]}
    run = generate(Mesh({"all": ranks}), _LOOP, calls, tails)
    return with_notes(run, recorded_notes())


def worst(ranks: int, calls: int) -> Run:
    """As `usual`, and one call in a hundred of each rank is none that others make."""
    run = usual(ranks, calls)
    chosen = np.random.default_rng(0).random(len(run.calls)) < 0.01
    run.calls["signature"][chosen] = np.arange(1, chosen.sum() + 1)
    run.memory.clear()
    return run


CASES = {"usual": usual, "worst": worst}


def page_of(run: Run) -> tuple[str, float, float]:
    """The page of a run, and seconds: to judge the run, and to make the page."""
    manifest = Manifest(
        distdoctor="0", launch=[], directory=".", script="train.py", stopped="deadlock"
    )
    begun = time.perf_counter()
    judgement = judge_run(run, manifest)
    judged = time.perf_counter()
    page = render("html", [judgement], Rendering(directory=Path()))
    return page, judged - begun, time.perf_counter() - judged


def shown_s(page: str, times: int) -> list[float]:
    """Seconds until a browser shows a page, each time in a browser of its own."""
    program = shutil.which("chromium")
    if program is None:
        return []
    from playwright.sync_api import sync_playwright

    found = []
    with tempfile.TemporaryDirectory() as folder, sync_playwright() as playwright:
        path = Path(folder, "page.html")
        path.write_text(page, encoding="utf-8")
        for _ in range(times):
            browser = playwright.chromium.launch(
                executable_path=program, args=["--no-sandbox"]
            )
            opened = browser.new_page()
            opened.goto(path.as_uri())
            found.append(opened.evaluate(_SHOWN) / 1e3)
            browser.close()
    return found


def main() -> None:
    """Measure all sizes of both cases."""
    parser = argparse.ArgumentParser(description="Size of the HTML report.")
    parser.add_argument("--cases", nargs="+", choices=CASES, default=[*CASES])
    parser.add_argument("--times", type=int, default=7, help="a page is opened")
    options = parser.parse_args()
    rows = []
    for case in options.cases:
        for ranks, calls in SIZES:
            page, judged_s, made_s = page_of(CASES[case](ranks, calls))
            times = shown_s(page, options.times)
            low, middle, high = quartiles(times) if times else (0.0, 0.0, 0.0)
            rows.append(
                [
                    case,
                    f"{ranks:,}",
                    f"{calls:,}",
                    f"{len(page.encode()) / 2**10:,.0f}",
                    f"{made_s:.2f}",
                    f"{made_s / judged_s:.2f}",
                    f"{middle:.2f} ({low:.2f} to {high:.2f})" if times else "–",
                ]
            )
    heads = ("case", "ranks", "calls", "KiB", "made in s", "of judging", "shown in s")
    print_table(heads, rows)
    print(f"goal: shown in {GOAL_S:.0f} s")
    if shutil.which("chromium") is None:
        print("no Chromium here: apt install chromium")


if __name__ == "__main__":
    main()
