"""What every pytest pays for the plugin that it imports: next to nothing."""

from __future__ import annotations

import subprocess
import sys


def test_the_modules_that_every_pytest_imports_are_light() -> None:
    program = (
        "import sys\n"
        "from distdoctor.pytest_plugin import scripts, session_report, slots\n"
        "import distdoctor.testing\n"
        "heavy = {'torch', 'numpy', 'msgspec', 'psutil', 'rich', 'click'}\n"
        "assert not heavy & set(sys.modules), heavy & set(sys.modules)\n"
    )
    subprocess.run([sys.executable, "-c", program], check=True, timeout=60)


def test_the_plugin_costs_nothing_until_it_is_used() -> None:
    program = (
        "import sys, time, pytest\n"
        "before = set(sys.modules)\n"
        "begun = time.process_time()\n"
        "import distdoctor.pytest_plugin\n"
        "took = time.process_time() - begun\n"
        "print(took)\n"
        "heavy = {'torch', 'numpy', 'msgspec', 'psutil', 'rich', 'hypothesis'}\n"
        "assert not heavy & (set(sys.modules) - before)\n"
    )
    command = [sys.executable, "-c", program]
    took = [
        float(
            subprocess.run(command, check=True, timeout=60, capture_output=True).stdout
        )
        for _ in range(3)  # the first may have to compile it
    ]
    assert min(took) < 0.02
