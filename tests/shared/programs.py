"""The programs with known answers in `fixtures`, as their constants describe them.

The format is told in `fixtures/README.md`. Programs are read and not imported: what
they import takes seconds, and some start ranks.
"""

import ast
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parent.parent.parent

FIXTURES = ROOT / "fixtures"

FOLDERS = (
    *("patients", "guises", "near_misses", "standing", "textbook"),
    *("horovod", "tensorflow", "systems"),
)

EXIT_STATUS = {"well": 0, "sick": 1, "unknown": 4}
"""Of distdoctor, by its verdict."""

_CULPRIT = re.compile(r"# culprit(?: (DD\d{3}))?$")


@dataclass(frozen=True, slots=True)
class Program:
    """One program and the answer that is known for it.

    Attributes:
        path: Of the script.
        ranks: On how many ranks it runs.
        findings: Codes of all findings of its sick form, in ascending order.
        culprits: The ranks at fault.
        culprit_lines: Lines at fault by code; by "" where they are of the only code.
        severity: Of the findings: "error", "warning" or "note".
        verdict: On its sick form: "sick", "well" or "unknown".
        has_twin: Whether it runs as `sick` and as `well`; else it takes no argument.
        is_exact: Whether the line at fault itself must be named, not one beside it.
        of_a_start: Whether the answer depends on an interpreter that starts, so that
            forks of a running one do not show it.
        options: Further ones of `distdoctor check`.
        restarts: How often torchrun may start its ranks again.
        error: Class of an exception that the report must name.
        launcher: What starts its ranks: "torchrun", or one that `launchers` knows.
        system: Of `fixtures/systems`: the system of parallelism that it uses.
        leaves: The folder into which it writes what `distdoctor examine` then judges;
            its ranks run without distdoctor. "": it runs under `distdoctor check`.
    """

    path: Path
    ranks: int
    findings: tuple[str, ...]
    culprits: tuple[int, ...]
    culprit_lines: Mapping[str, tuple[int, ...]]
    severity: str
    verdict: str
    has_twin: bool
    is_exact: bool
    of_a_start: bool
    options: tuple[str, ...]
    restarts: int
    error: str
    launcher: str
    system: str
    leaves: str

    @property
    def name(self) -> str:
        """Of the file, without its ending."""
        return self.path.stem

    @property
    def code(self) -> str:
        """Of its only finding; "" where nothing is found.

        Raises:
            ValueError: It has several.
        """
        if not self.findings:
            return ""
        (code,) = self.findings
        return code

    @property
    def healthy_verdict(self) -> str:
        """That on its twin: leavings never show that a job is well."""
        return "unknown" if self.leaves else "well"

    @property
    def status(self) -> int:
        """Exit status of distdoctor on its sick form."""
        return EXIT_STATUS[self.verdict]

    def lines_of(self, code: str) -> tuple[int, ...]:
        """The lines at fault for one of its findings."""
        return self.culprit_lines.get(code, self.culprit_lines.get("", ()))


def program(path: Path) -> Program:
    """Read one.

    Raises:
        KeyError: It does not say on how many ranks it runs.
        ValueError: One of the constants that describe it is no literal.
    """
    text = path.read_text()
    constants = _constants(text)
    code = constants.get("CODE", "")
    findings = constants.get("FINDINGS", [code] if code else [])
    severity = constants.get("SEVERITY", "error")
    usual = "sick" if findings and severity == "error" else "well"
    return Program(
        path=path,
        ranks=constants["RANKS"],
        findings=tuple(findings),
        culprits=tuple(constants.get("CULPRITS", ())),
        culprit_lines=_culprit_lines(text),
        severity=severity,
        verdict=constants.get("VERDICT", usual),
        has_twin=constants.get("TWIN", bool(findings) or "VERDICT" in constants),
        is_exact=constants.get("EXACT", False),
        of_a_start=constants.get("OF_A_START", False),
        options=tuple(constants.get("OPTIONS", ())),
        restarts=constants.get("RESTARTS", 0),
        error=constants.get("ERROR", ""),
        launcher=constants.get("LAUNCHER", "torchrun"),
        system=constants.get("SYSTEM", ""),
        leaves=constants.get("LEAVES", ""),
    )


def programs(folder: str) -> list[Program]:
    """All of one folder of `fixtures`, by name."""
    return [program(path) for path in sorted((FIXTURES / folder).glob("[!_]*.py"))]


_NAMES = frozenset(
    (
        *("RANKS", "CODE", "FINDINGS", "CULPRITS", "SEVERITY", "VERDICT", "ERROR"),
        *("TWIN", "EXACT", "OF_A_START", "OPTIONS", "RESTARTS", "LAUNCHER"),
        *("SYSTEM", "LEAVES"),
    )
)


def _constants(text: str) -> dict[str, Any]:
    """Values of the constants that describe a program; it has others of its own."""
    constants = {}
    for node in ast.parse(text).body:
        if isinstance(node, ast.AnnAssign):
            target: ast.expr = node.target
        elif isinstance(node, ast.Assign) and len(node.targets) == 1:
            (target,) = node.targets
        else:
            continue
        if isinstance(target, ast.Name) and target.id in _NAMES and node.value:
            constants[target.id] = ast.literal_eval(node.value)
    return constants


def _culprit_lines(text: str) -> dict[str, tuple[int, ...]]:
    found: dict[str, tuple[int, ...]] = {}
    for number, line in enumerate(text.splitlines(), start=1):
        if mark := _CULPRIT.search(line):
            code = mark[1] or ""
            found[code] = (*found.get(code, ()), number)
    return found
