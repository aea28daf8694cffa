"""The story in docs/postmortem.md: its commands run, and print what it says."""

import shutil
from pathlib import Path

from told_commands import ROOT
from told_stories import run_story

# Four ranks write into one file, and where Python does not buffer a line and its
# end are two writes: two ranks' words may stand in one line.
_FIRST_STEPS = """
until [ "$(grep -o 'step 2' job.out | wc -l)" = 4 ]; do sleep 0.5; done
sleep 3
"""


def test_its_commands_print_what_it_says(tmp_path: Path) -> None:
    shutil.copy(ROOT / "docs" / "one_late_shard.py", tmp_path)
    run_story("docs/postmortem.md", tmp_path, {0: _FIRST_STEPS})
