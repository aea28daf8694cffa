"""The tutorial: its commands run, and print what it says."""

import shutil
from pathlib import Path

from told_commands import ROOT
from told_stories import run_story

_STANDS = """
until grep -q 'step 15' job.out; do sleep 0.5; done
sleep 3
"""


def test_its_commands_print_what_it_says(tmp_path: Path) -> None:
    for name in ("train.py", "mended.py", "test_train.py"):
        shutil.copy(ROOT / "docs" / "tutorial" / name, tmp_path)
    run_story("docs/tutorial.md", tmp_path, {0: _STANDS})
