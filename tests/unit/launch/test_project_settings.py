"""The table of pyproject.toml that is distdoctor's."""

from pathlib import Path

import pytest

from distdoctor.analysis.comparison.told_places import ToldPlace
from distdoctor.errors import LaunchRefused
from distdoctor.launch.project_settings import FILE, ProjectSettings, project_settings

TABLE = """
[tool.distdoctor.check]
ranks = 4
[tool.distdoctor.ignore]
DD301 = "every rank is to see all samples"
[tool.distdoctor.DD204]
stuck_after_s = 60
[[tool.distdoctor.reference]]
tensor = "experts.*.bias"
is = "moe.*.bias"
axis = 0
parts = [1, 0]
"""


def write(folder: Path, text: str) -> None:
    (folder / FILE).write_text(text)


def test_the_nearest_file_with_the_table_counts(tmp_path: Path) -> None:
    inner = tmp_path / "a" / "b"
    inner.mkdir(parents=True)
    write(tmp_path, TABLE)
    write(inner, "[tool.other]\ndistdoctor = 1\n")
    settings = project_settings(inner)
    assert settings.check == {"ranks": 4}
    assert settings.ignore == {"DD301": "every rank is to see all samples"}
    assert settings.thresholds == {"DD204": {"stuck_after_s": 60}}
    assert settings.places == (
        ToldPlace(
            tensor="experts.*.bias", reference="moe.*.bias", axis=0, parts=(1, 0)
        ),
    )
    assert settings.path == str(tmp_path / FILE)


def test_without_a_table_there_is_nothing(tmp_path: Path) -> None:
    write(tmp_path, "no TOML at all")
    assert project_settings(tmp_path) == ProjectSettings()


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("[tool.distdoctor\n", "cannot be read"),
        ("tool.distdoctor = 3", "is to be a table"),
        ("tool = 3 # distdoctor", "cannot be read"),
        ("[tool.distdoctor]\nrank = 4", "has no `rank`"),
        ('[tool.distdoctor.ignore]\nDD301 = " "', "DD301 needs a reason"),
        ("[tool.distdoctor.ignore]\nDD301 = true", "Expected `str`"),
        ("[tool.distdoctor.DD204]\nstuck_after_s = 'x'", "Expected `int | float`"),
        ("[tool.distdoctor]\nDD204 = 3", "Expected `object`"),
    ],
)
def test_what_cannot_be_used_is_refused(text: str, told: str, tmp_path: Path) -> None:
    write(tmp_path, text)
    with pytest.raises(LaunchRefused, match=FILE) as refused:
        project_settings(tmp_path)
    assert told in str(refused.value)
