"""The steps of the action for GitHub, and of the component for GitLab, are run."""

import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml
from told_commands import ROOT

from distdoctor.cli import _COMMANDS

BIN = Path(sys.executable).parent
SICK = ROOT / "docs" / "tutorial" / "train.py"
WELL = ROOT / "docs" / "tutorial" / "mended.py"

HOSTILE = "$(touch pwned) `touch pwned`; touch pwned #"
"""What somebody may name a file or a branch."""


def action() -> dict[str, Any]:
    loaded: dict[str, Any] = yaml.safe_load((ROOT / "action.yml").read_text())
    return loaded


def step(name: str) -> dict[str, Any]:
    """A step of the action."""
    found: dict[str, Any] = next(
        one for one in action()["runs"]["steps"] if one.get("name") == name
    )
    return found


def run_step(
    name: str, folder: Path, inputs: dict[str, str], outputs: dict[str, str]
) -> subprocess.CompletedProcess[str]:
    """Run a step as a runner does: its inputs filled in, in its variables alone."""
    given = {key: one.get("default", "") for key, one in action()["inputs"].items()}
    given |= inputs

    def filled(value: str) -> str:
        value = re.sub(r"\$\{\{ inputs\.([\w-]+) \}\}", lambda m: given[m[1]], value)
        return re.sub(
            r"\$\{\{ steps\.check\.outputs\.(\w+) \}\}",
            lambda m: outputs.get(m[1], ""),
            value,
        )

    environment = {
        **os.environ,
        **{key: filled(value) for key, value in step(name)["env"].items()},
        "PATH": f"{BIN}:{os.environ['PATH']}",
        "GITHUB_OUTPUT": str(folder / "output"),
        "GITHUB_STEP_SUMMARY": str(folder / "summary"),
        "RUNNER_TEMP": str(folder),
    }
    # As GitHub calls bash for `shell: bash`.
    return subprocess.run(
        ["bash", "--noprofile", "--norc", "-eo", "pipefail", "-c", step(name)["run"]],
        cwd=folder,
        env=environment,
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )


def checked(folder: Path, **inputs: str) -> tuple[dict[str, str], str]:
    """The outputs of the step that checks, and the job's summary."""
    done = run_step("Check", folder, inputs, {})
    assert done.returncode == 0, done.stdout + done.stderr
    lines = (folder / "output").read_text().splitlines()
    summary = folder / "summary"
    return (
        dict(line.split("=", 1) for line in lines),
        summary.read_text() if summary.exists() else "",
    )


def judged(folder: Path, outputs: dict[str, str], fail_on: str) -> int:
    return run_step("Judge", folder, {"fail-on": fail_on}, outputs).returncode


def test_no_input_is_text_of_a_command() -> None:
    for one in action()["runs"]["steps"]:
        assert "${{" not in one.get("run", "")
    component = (ROOT / "templates" / "check.yml").read_text()
    (document,) = [*yaml.safe_load_all(component)][1:]
    (job,) = document.values()
    assert "$[[" not in str(job["script"]) + str(job["before_script"])


def test_the_action_fails_on_a_sick_script(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(SICK.read_text())
    outputs, summary = checked(tmp_path, script="train.py", ranks="4")
    assert outputs == {"status": "1", "report": "distdoctor.sarif"}
    assert "DD208" in summary
    assert judged(tmp_path, outputs, "error") == 1
    assert judged(tmp_path, outputs, "never") == 0


def test_the_action_passes_on_a_script_that_is_well(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(
        WELL.read_text()
        + "\n\nimport sys\nopen('given', 'a').write(repr(sys.argv[1:]))"
    )
    outputs, summary = checked(
        tmp_path,
        script="train.py",
        options="--budget '100'",
        arguments=f"--name 'two words' '{HOSTILE}'",
    )
    assert outputs["status"] == "0"
    assert "well" in summary
    given = (tmp_path / "given").read_text()
    assert given == repr(["--name", "two words", HOSTILE]) * 2
    assert not (tmp_path / "pwned").exists()
    for fail_on in ("error", "warning", "unknown"):
        assert judged(tmp_path, outputs, fail_on) == 0


def test_a_hostile_name_of_a_script_runs_nothing(tmp_path: Path) -> None:
    outputs, _ = checked(tmp_path, script=HOSTILE, ranks="2")
    assert outputs == {"status": "2"}
    assert not (tmp_path / "pwned").exists()
    assert judged(tmp_path, outputs, "never") == 2


@pytest.mark.parametrize(
    ("status", "level", "fail_on", "expected"),
    [
        ("0", "note", "warning", 0),
        ("0", "warning", "warning", 1),
        ("0", "warning", "error", 0),
        ("0", "warning", "unknown", 1),
        ("4", "note", "error", 0),
        ("4", "note", "warning", 0),
        ("4", "note", "unknown", 4),
        ("3", "note", "never", 3),
        ("0", "note", "often", 2),
        ("", "note", "error", 3),
    ],
)
def test_what_fails_the_action(
    tmp_path: Path, status: str, level: str, fail_on: str, expected: int
) -> None:
    results = f'{{"runs": [{{"results": [{{"level": "{level}"}}]}}]}}'
    (tmp_path / "a.sarif").write_text(results)
    outputs = {"status": status, "report": "a.sarif"}
    assert judged(tmp_path, outputs, fail_on) == expected


def test_the_component_runs_what_it_says(tmp_path: Path) -> None:
    component = (ROOT / "templates" / "check.yml").read_text()
    spec, document = yaml.safe_load_all(component)
    (job,) = document.values()
    (tmp_path / "train.py").write_text(SICK.read_text())
    given = {key: one.get("default") for key, one in spec["spec"]["inputs"].items()}
    given |= {"script": "train.py", "ranks": 4, "arguments": f"'{HOSTILE}'"}
    variables = {}
    for name, value in job["variables"].items():
        text = value["value"] if isinstance(value, dict) else value
        found = re.fullmatch(r"\$\[\[ inputs\.([\w-]+) \]\]", text)
        if found:
            variables[name] = str(given[found[1]])
            if isinstance(given[found[1]], bool):
                variables[name] = variables[name].lower()
    done = subprocess.run(
        ["bash", "-eo", "pipefail", "-c", "\n".join(job["script"])],
        cwd=tmp_path,
        env=os.environ | variables | {"PATH": f"{BIN}:{os.environ['PATH']}"},
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 1, done.stdout + done.stderr
    assert "DD208" in (tmp_path / "distdoctor.txt").read_text()
    assert not (tmp_path / "pwned").exists()


@pytest.mark.skipif("lint" not in _COMMANDS, reason="there is no `distdoctor lint`")
def test_the_hook_finds_what_lint_finds(tmp_path: Path) -> None:
    project = tmp_path / "project"
    project.mkdir()
    environment = os.environ | {
        "PATH": f"{BIN}:{os.environ['PATH']}",
        "HOME": str(tmp_path),
        "GIT_AUTHOR_NAME": "a",
        "GIT_AUTHOR_EMAIL": "a@b",
        "GIT_COMMITTER_NAME": "a",
        "GIT_COMMITTER_EMAIL": "a@b",
    }

    def run(*command: str, cwd: Path) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            command,
            cwd=cwd,
            env=environment,
            capture_output=True,
            text=True,
            check=False,
        )

    hooks = tmp_path / "hooks"
    hooks.mkdir()
    (hooks / ".pre-commit-hooks.yaml").write_bytes(
        (ROOT / ".pre-commit-hooks.yaml").read_bytes()
    )
    (project / "train.py").write_text("print('no ranks at all')\n")
    for folder in (hooks, project):
        run("git", "init", "-q", cwd=folder)
        run("git", "add", "-A", cwd=folder)
        run("git", "commit", "-qm", "all", cwd=folder)
    done = run(
        *("pre-commit", "try-repo", str(hooks), "distdoctor-lint", "--all-files"),
        cwd=project,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "Passed" in done.stdout
