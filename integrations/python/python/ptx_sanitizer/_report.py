"""What was found."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Optional


@dataclass(frozen=True)
class Place:
    """A line of the source, and the place that it was inlined into."""

    file: str
    line: int
    column: int
    inlined_at: Optional[Place] = None

    @classmethod
    def _of(cls, value: Optional[dict[str, Any]]) -> Optional[Place]:
        if value is None:
            return None
        return cls(value["file"], value["line"], value["column"], cls._of(value.get("inlined_at")))


@dataclass(frozen=True)
class Finding:
    """A fault at an instruction."""

    #: ``error``, ``warning`` or ``note``.
    severity: str
    #: Such as ``race in shared memory``.
    kind: str
    #: Address, bytes, and what else is known.
    message: str
    #: The first block and the first thread that met it.
    block: tuple[int, int, int]
    thread: tuple[int, int, int]
    #: Line of the PTX, from 1, and the instruction.
    ptx_line: int
    ptx: str
    #: Where the source stands, if the PTX has line tables.
    source: Optional[Place]
    #: How often it was met under the first schedule that met it.
    occurrences: int
    #: Under how many schedules, and the first of them.
    schedules: int
    schedule: str
    #: All of it, in several lines.
    text: str

    def __str__(self) -> str:
        return f"{self.severity}: {self.text}\n  under {self.schedules} schedules, first {self.schedule}"


@dataclass(frozen=True)
class Difference:
    """An array that ends with other elements under another schedule."""

    #: Which of the arguments, from 0.
    argument: int
    #: The first element that differs, counted in C order.
    element: int
    schedules: tuple[str, str]

    def __str__(self) -> str:
        first, second = self.schedules
        return (
            f"error: argument {self.argument} depends on the schedule: element {self.element} is another one under "
            f"{first} than under {second} (any_order=True if that is meant: sums in any order, slots that atomic "
            "operations hand out)"
        )


@dataclass(frozen=True)
class Report:
    """What a kernel showed under all schedules."""

    kernel: str
    schedules: tuple[str, ...]
    #: Errors first, then warnings, then notes.
    findings: tuple[Finding, ...]
    differences: tuple[Difference, ...]
    #: Arguments of :class:`Output` with elements that nothing wrote: the argument, and the first such element.
    unwritten: tuple[tuple[int, int], ...]
    #: What ``printf`` printed under the last schedule.
    output: str
    statistics: dict[str, int] = field(default_factory=dict)

    def _of(self, severity: str) -> tuple[Finding, ...]:
        return tuple(finding for finding in self.findings if finding.severity == severity)

    @property
    def errors(self) -> tuple[Finding, ...]:
        return self._of("error")

    @property
    def warnings(self) -> tuple[Finding, ...]:
        return self._of("warning")

    @property
    def notes(self) -> tuple[Finding, ...]:
        return self._of("note")

    def failures(self, deny: str = "errors") -> int:
        """How many findings fail a test: all that are errors, with ``"warnings"`` also those, with ``"notes"`` all."""
        counted = {"errors": self.errors, "warnings": self.errors + self.warnings, "notes": self.findings}
        if deny not in counted:
            raise ValueError(f"deny: expected errors, warnings or notes, got {deny!r}")
        return len(counted[deny]) + len(self.differences) + len(self.unwritten)

    def __str__(self) -> str:
        parts = [f"{self.kernel} under {len(self.schedules)} schedules"]
        parts += [f"{number}. {finding}" for number, finding in enumerate(self.findings, 1)]
        parts += [str(difference) for difference in self.differences]
        parts += [
            f"error: argument {argument}: element {element} was never written" for argument, element in self.unwritten
        ]
        if len(parts) == 1:
            parts.append("nothing found")
        return "\n\n".join(parts)


class SanitizerError(AssertionError):
    """A kernel with errors; :attr:`report` has them."""

    def __init__(self, report: Report) -> None:
        super().__init__(str(report))
        self.report = report
