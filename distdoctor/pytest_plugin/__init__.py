"""Distributed tests for pytest: `@pytest.mark.ranks(4)` runs a test on four ranks.

A test that hangs, dies or diverges fails with a diagnosis, and the session always ends.
Nothing heavy is loaded before a test asks for ranks.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from distdoctor.pytest_plugin import fixtures

if TYPE_CHECKING:
    from distdoctor.pytest_plugin.scheduler import Scheduler

pytest_plugins = ("distdoctor.pytest_plugin.scripts",)

_LANES: pytest.StashKey[Scheduler] = pytest.StashKey()

_MARKERS = (
    "ranks(n, backend='gloo', device='cpu', timeout=None, lane='auto', "
    "launcher='torch'): run the test on n ranks, each with the process group "
    "initialised, or with Horovod (launcher='horovod'); a list of numbers runs it on "
    "each of them in turn",
    "distdoctor(ignore=(), watch=True): codes of findings that do not fail the test; "
    "whether the ranks are watched at all",
)


def pytest_addoption(parser: pytest.Parser) -> None:
    """Declare the plugin's options."""
    group = parser.getgroup("distdoctor", "tests on ranks")
    group.addoption(
        "--distdoctor-slots",
        type=int,
        default=0,
        metavar="N",
        help="how many ranks may run at once, of all tests of yours on this machine; "
        "by default as many as there are processors, or as the largest test asks for",
    )
    group.addoption(
        "--distdoctor-report",
        action="append",
        metavar="FILE",
        help="write all that was found to a file: .json, .sarif, .xml (JUnit), .md, "
        ".html; may be given several times",
    )
    parser.addini(
        "distdoctor_timeout",
        "seconds after which a test on ranks is ended, whatever it does",
        default="300",
    )


def pytest_configure(config: pytest.Config) -> None:
    """Declare the markers and the fixtures."""
    for marker in _MARKERS:
        config.addinivalue_line("markers", marker)
    config.pluginmanager.register(fixtures, "distdoctor-fixtures")
    asked = config.getoption("distdoctor_report") or ()  # a rank: none
    paths = [*dict.fromkeys(map(Path, asked))]
    if paths and not fixtures.is_rank(config) and not hasattr(config, "workerinput"):
        from distdoctor.errors import PackageMissing
        from distdoctor.pytest_plugin.session_report import (
            SessionWriter,
            require_format,
        )

        try:
            for path in paths:
                require_format(path)
        except PackageMissing as error:
            raise pytest.UsageError(str(error)) from None
        config.pluginmanager.register(SessionWriter(paths, config.rootpath))


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Make one test per number of ranks, where a list of them is given."""
    if metafunc.definition.get_closest_marker("ranks") is None:
        return
    from distdoctor.pytest_plugin.rank_orders import PARAMETER, MarkerWrong, sizes_of

    try:
        sizes = sizes_of(metafunc.definition)
    except MarkerWrong as error:
        raise pytest.UsageError(str(error)) from None
    if len(sizes) > 1:
        metafunc.fixturenames.append(PARAMETER)
        metafunc.parametrize(PARAMETER, sizes, ids=[f"{n}ranks" for n in sizes])


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_protocol(
    item: pytest.Item, nextitem: pytest.Item | None
) -> bool | None:
    """Run a test marked for ranks on its ranks, instead of in this process."""
    config = item.config
    if fixtures.is_rank(config) or item.get_closest_marker("ranks") is None:
        return None
    if _LANES not in config.stash:
        from distdoctor.pytest_plugin.scheduler import Scheduler

        config.stash[_LANES] = Scheduler(config, _largest(item.session))
    config.stash[_LANES].run(item, nextitem)
    return True


def _largest(session: pytest.Session) -> int:
    """The most ranks that a test of the session asks for."""
    from distdoctor.pytest_plugin.rank_orders import ranks_of

    return max(map(ranks_of, session.items), default=1)


@pytest.hookimpl(trylast=True)
def pytest_sessionfinish(session: pytest.Session) -> None:
    """End all ranks."""
    if _LANES in session.config.stash:
        session.config.stash[_LANES].close()


def pytest_unconfigure(config: pytest.Config) -> None:
    """End all ranks, also where the session came to no orderly end."""
    if _LANES in config.stash:
        config.stash[_LANES].close()
