"""The fixture `check_script`: what it refuses, and what importing it costs."""

from __future__ import annotations

import pytest

pytest_plugins = ["pytester"]

DEADLINE_S = 300.0


def run(pytester: pytest.Pytester, *arguments: str) -> pytest.RunResult:
    return pytester.runpytest_subprocess(
        *("-p", "no:cacheprovider", "--basetemp=base"),
        *("--distdoctor-report=out/report.json", *arguments),
        timeout=DEADLINE_S,
    )


def test_what_cannot_be_started_fails_with_one_sentence(
    pytester: pytest.Pytester,
) -> None:
    pytester.makepyfile(
        """
        import pytest
        from distdoctor.errors import LaunchRefused

        @pytest.mark.parametrize(("words", "options", "said"), [
            (["gone.py"], {}, "there is no script gone.py"),
            ([], {}, "takes a script, or command="),
            (["a.py"], {"command": ["x"]}, "takes a script, or command="),
            ([], {"command": ["no-such-program"]}, "no program 'no-such-program'"),
            (["test_it.py"], {"nproc": 0}, "give the number of ranks, 1 or more"),
        ])
        def test_refused(check_script, words, options, said):
            with pytest.raises(LaunchRefused, match=said):
                check_script(*words, **options)

        @pytest.mark.ranks(2)
        def test_both(check_script):
            pass
        """,
        test_it="",
    )
    result = run(pytester, "-p", "no:randomly", "-Wignore::pytest.PytestWarning")
    assert result.ret == 1
    result.stdout.fnmatch_lines(["*check_script starts ranks of its own*"])
    assert "5 passed" in result.stdout.str()
    assert not [*(pytester.path / "base").glob("distdoctor-record[0-9]*")]


def test_each_report_that_is_asked_for_is_written(pytester: pytest.Pytester) -> None:
    pytester.makepyfile("def test_alone():\n    pass\n")
    result = run(pytester, "--distdoctor-report=out/r.html", "--distdoctor-report=r.md")
    assert result.ret == 0
    for name in ("out/report.json", "out/r.html", "r.md"):
        assert (pytester.path / name).is_file()
