"""Studies as results: rows with the facts about their networks, tables, page and failures."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path

from nescio.api.results import ApiResult
from nescio.report.blocks import Story, tables_of
from nescio.report.studies import Study
from nescio.report.tables import Table
from nescio.rows import Row


@dataclass(repr=False)
class BenchmarkResult(ApiResult):
    """A study of a benchmark: rows, failures and notes.

    links  pages that its page links to: address → name
    lead   the first sentences of the page, if they are known
    """

    study: Study
    links: Mapping[str, str] = field(default_factory=dict)
    lead: Sequence[str] | None = None

    @property
    def rows(self) -> list[Row]:  # type: ignore[override]
        return list(self.study.frame.rows)

    @property
    def notes(self) -> list[str]:
        return self.study.notes

    @property
    def failures(self) -> list[str]:
        """Why parts of the study are missing."""
        failed = [f"{failure.name}: {failure.reason}" for failure in self.study.failures]
        if self.study.rows or failed:
            return failed
        return ["; ".join(self.notes) or "The study has no result: no network and no rows fit its plan."]

    @property
    def exit_code(self) -> int:  # type: ignore[override]
        failures = self.study.failures
        if failures and not self.study.rows and all(failure.refused for failure in failures):
            return 2
        return 1 if self.failures else 0

    def __repr__(self) -> str:
        study = self.study
        lines = [f"Study of {study.benchmark} on {study.data}: {len(study.rows)} rows, {len(study.failures)} failures"]
        return "\n  ".join([*lines, *self.sentences()])

    @cached_property
    def _story(self) -> Story:
        from nescio.benchmarks.base import story_of

        return story_of(self.study)

    def story(self) -> Story:
        return self._story

    def sentences(self) -> list[str]:
        return list(self._story.lead if self.lead is None else self.lead)

    def tables(self, brief: bool = True) -> Sequence[Table]:
        from nescio.benchmarks.base import registry

        return registry[self.study.benchmark].first_look(self.study) if brief else tables_of(self._story)

    def show(self, brief: bool = True) -> None:
        from nescio.report.studies import print_story

        print_story(self.study, Story("", self.sentences(), []), self.tables())

    def report(self, folder: str | Path) -> Path:
        from nescio.report.studies import write_story

        return write_story(self.study, self._story, folder, self.links or None)

    def failure_lines(self) -> list[str]:
        """One line per failure, with the number of equal ones."""
        counts = Counter(self.failures).items()
        return [f"failed{f' {times} times' if times > 1 else ''}: {line}" for line, times in counts]
