"""Where code may catch whatever is raised: few places, each with its reason.

A handler for any exception hides our own mistakes. It stands where code that is not
ours runs and may raise anything, or where the job must not feel us. Whoever needs
another one adds it here, and says why; one that cleans up and raises again is none.
"""

import ast
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parent.parent.parent

BROAD = {"Exception", "BaseException"}

MAY_CATCH_ANYTHING = {
    "distdoctor/cli/__init__.py": 1,  # a bug of ours has its own exit status
    "distdoctor/judging.py": 1,  # a hint is worth no report
    "distdoctor/watching/watch_screen.py": 1,  # told by the thread of the screen
    "distdoctor/examination/examining.py": 1,  # one broken check must not silence all
    # Code of the user's, or of hypothesis, whose exceptions are told as results.
    "distdoctor/equivalence/ranks.py": 1,
    "distdoctor/equivalence/searching.py": 1,
    "distdoctor/pytest_plugin/properties.py": 1,
    "distdoctor/pytest_plugin/rank.py": 5,
    "distdoctor/pytest_plugin/wire.py": 1,  # pickling runs an object's own code
    # What lies in files may do anything, and so may drivers that fetch them.
    "distdoctor/postmortem/flight_recorder/many_dumps.py": 1,
    "distdoctor/postmortem/columns/column_reader.py": 1,
    "distdoctor/postmortem/columns/column_writing.py": 1,
    "distdoctor/postmortem/remote_files.py": 2,
    # Packages may be broken: the job is ended all the same.
    "distdoctor/launch/orphan_guard.py": 2,
    # The job must not feel the probes.
    "distdoctor/probes/collectives/fake_backend.py": 1,
    "distdoctor/probes/collectives/interception.py": 4,
    "distdoctor/probes/collectives/pending_calls.py": 1,
    "distdoctor/probes/harmless.py": 3,
    "distdoctor/probes/horovod/graph_calls.py": 1,
    "distdoctor/probes/horovod/initialisation.py": 1,
    "distdoctor/probes/horovod/tensorflow_operations.py": 1,
    "distdoctor/probes/horovod/torch_operations.py": 1,
    "distdoctor/probes/lifecycle.py": 1,
    "distdoctor/probes/metrics/evaluations.py": 1,
    "distdoctor/probes/needle/sitecustomize.py": 1,
    "distdoctor/probes/recorder.py": 1,
    "distdoctor/probes/rendezvous/meetings.py": 2,
    "distdoctor/probes/rendezvous/setup_calls.py": 1,
}
"""By file, how many handlers of any exception it has."""


def broad_handlers(source: Path) -> Iterator[ast.AST]:
    """Handlers of any exception that do not raise it again, and `suppress` of it."""
    for node in ast.walk(ast.parse(source.read_text())):
        if isinstance(node, ast.ExceptHandler):
            again = isinstance(node.body[-1], ast.Raise) and node.body[-1].exc is None
            if (node.type is None or names_in(node.type) & BROAD) and not again:
                yield node
        elif (
            isinstance(node, ast.Call)
            and ast.unparse(node.func) == "suppress"
            and any(names_in(argument) & BROAD for argument in node.args)
        ):
            yield node


def names_in(node: ast.expr) -> set[str]:
    parts = node.elts if isinstance(node, ast.Tuple) else [node]
    return {part.id for part in parts if isinstance(part, ast.Name)}


def test_any_exception_is_caught_where_it_may_be() -> None:
    found = Counter(
        str(source.relative_to(ROOT))
        for top in ("distdoctor", "checks")
        for source in (ROOT / top).rglob("*.py")
        for _ in broad_handlers(source)
    )
    assert dict(found) == MAY_CATCH_ANYTHING


SAYS_NOTHING = {
    "sitecustomize.py": "no line of the job's has run yet",
    "recorder.py": "a finalizer, out of which nothing gets",
}
"""Modules of probes whose handlers need not ask whom an exception is for."""


def test_probes_let_pass_what_is_for_the_job() -> None:
    """A signal handler of the job's may raise while a probe runs."""
    for source in sorted((ROOT / "distdoctor" / "probes").rglob("*.py")):
        if source.name not in SAYS_NOTHING:
            for handler in broad_handlers(source):
                assert isinstance(handler, ast.ExceptHandler), source
                text = "\n".join(ast.unparse(line) for line in handler.body)
                asks = "if is_interruption(" in text or "lose_or_raise(" in text
                assert asks, (source, handler.lineno)
