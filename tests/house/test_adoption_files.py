"""Files by which others adopt distdoctor: their form is that of who reads them."""

import re
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
import yaml

ROOT = Path(__file__).parent.parent.parent
BIN = Path(sys.executable).parent


def valid(schema: str, file: Path, *options: str) -> None:
    done = subprocess.run(
        [BIN / "check-jsonschema", "--builtin-schema", schema, *options, file],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr


def test_the_action_has_the_form_of_an_action() -> None:
    valid("vendor.github-actions", ROOT / "action.yml")


def test_the_component_has_the_form_of_a_pipeline(tmp_path: Path) -> None:
    text = (ROOT / "templates" / "check.yml").read_text()
    spec, _ = yaml.safe_load_all(text)
    inputs = spec["spec"]["inputs"]
    used = set()
    pipeline = text.partition("\n---\n")[2]
    for name, one in inputs.items():
        assert one["description"]
        mark = f"$[[ inputs.{name} ]]"
        if mark in pipeline:
            used.add(name)
        pipeline = pipeline.replace(mark, str(one.get("default", "x")) or "x")
    assert used == set(inputs)
    assert "$[[" not in pipeline
    (tmp_path / ".gitlab-ci.yml").write_text(pipeline)
    valid("vendor.gitlab-ci", tmp_path / ".gitlab-ci.yml")


def test_inputs_that_are_told_are_those_that_are_there() -> None:
    page = (ROOT / "docs" / "ci.md").read_text()
    action = yaml.safe_load((ROOT / "action.yml").read_text())
    for name, one in action["inputs"].items():
        default = one.get("default", "")
        row = next(
            line for line in page.splitlines() if line.startswith(f"| `{name}` ")
        )
        assert default in row or "https" in default, row
    spec = next(yaml.safe_load_all((ROOT / "templates" / "check.yml").read_text()))
    listed = page.partition("Its inputs are ")[2].partition(". The report")[0]
    assert {word.strip("`,.") for word in listed.split()} - {"and"} == set(
        spec["spec"]["inputs"]
    )


def test_the_hook_is_one_of_pre_commit() -> None:
    done = subprocess.run(
        [BIN / "pre-commit", "validate-manifest", ROOT / ".pre-commit-hooks.yaml"],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr


def test_nothing_is_wrong_with_the_dockerfile() -> None:
    hadolint = shutil.which("hadolint", path=str(BIN))
    if hadolint is None:
        pytest.skip("hadolint is not installed")
    done = subprocess.run(
        [hadolint, ROOT / "Dockerfile"],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr


def test_what_the_image_is_built_of_is_sent_to_it() -> None:
    """What the wheel needs, by pyproject, is not left out."""
    kept = (ROOT / ".dockerignore").read_text().splitlines()
    needed = {"pyproject.toml", "README.md", "LICENSE", ".ci/constraints.txt"}
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text())
    needed |= {*settings["tool"]["setuptools"]["package-dir"].values()}
    assert {line[1:] for line in kept if line.startswith("!")} == needed


def test_pipelines_that_are_told_have_their_form(tmp_path: Path) -> None:
    blocks = re.findall(
        r"^```yaml\n(.*?)^```$",
        (ROOT / "docs" / "ci.md").read_text(),
        re.DOTALL | re.MULTILINE,
    )
    assert len(blocks) == 5
    for number, block in enumerate(blocks):
        data = yaml.load(block, Loader=yaml.BaseLoader)  # else `on` is True
        name = ".gitlab-ci.yml"
        schema = "vendor.gitlab-ci"
        if "jobs" in data:
            name, schema = "workflow.yml", "vendor.github-workflows"
        elif "repos" in data:
            continue
        file = tmp_path / str(number) / name
        file.parent.mkdir()
        file.write_text(block)
        valid(schema, file)
