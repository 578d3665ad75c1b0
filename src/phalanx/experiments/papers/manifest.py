"""The records from which the pages of a paper are made: `manifest.json` in its folder of results."""

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import date
from pathlib import Path
from typing import Any

from phalanx.experiments.papers.experiment import SCALES
from phalanx.runs.files import replacing


@dataclass(frozen=True)
class Page:
    """The records from which a page is made.

    Args:
        seeds: of its runs.
        without: the seeds of which it has no record, by cell.
        date: the day of the newest commit that computed one; None if git did not know any.
    """

    seeds: tuple[int, ...]
    without: Mapping[str, tuple[int, ...]] = field(default_factory=dict)
    date: str | None = None

    @classmethod
    def of(cls, seeds: int) -> "Page":
        """Return a page of this number of seeds, counted from 0."""
        return cls(tuple(range(seeds)))


class Manifest:
    """The pages of a paper, by experiment and form: its scale, and the engine if it is not the experiments' own.

    Args:
        folder: of the paper's results.
    """

    def __init__(self, folder: Path) -> None:
        self.path = folder / "manifest.json"

    def page(self, experiment: str, form: str) -> Page | None:
        """Return the records of a page; None if there is no such page.

        Raises:
            ValueError: the file holds something else.
        """
        return self._pages().get(f"{experiment}-{form}")

    def forms(self, experiment: str) -> list[str]:
        """Return the forms of which an experiment has a page: its scale, and engine if it is not its own."""
        start = f"{experiment}-"
        ends = (name.removeprefix(start) for name in self._pages() if name.startswith(start))
        return [form for form in ends if form.partition("-")[0] in SCALES]

    def keep(self, experiment: str, form: str, page: Page) -> None:
        """Write the records of a page, in place of an older entry."""
        pages = self._pages() | {f"{experiment}-{form}": page}
        forms = {name: {field: value for field, value in vars(pages[name]).items() if value} for name in sorted(pages)}
        entries = (f" {json.dumps(name)}: {json.dumps(form)}" for name, form in forms.items())
        with replacing(self.path) as file:
            file.write(("{\n" + ",\n".join(entries) + "\n}\n").encode())

    def _pages(self) -> dict[str, Page]:
        if not self.path.is_file():
            return {}
        try:
            return {name: _page(form) for name, form in json.loads(self.path.read_text(encoding="utf-8")).items()}
        except (AttributeError, KeyError, TypeError, ValueError, RecursionError) as error:
            raise ValueError(
                f"{self.path} is not a manifest of pages. Restore it; or delete it, and render the pages with --seeds."
            ) from error


def _page(form: Mapping[str, Any]) -> Page:
    without: Mapping[str, object] = form.get("without", {})
    seeds, day = _seeds(form["seeds"]), form.get("date")
    known = None if day is None else str(date.fromisoformat(day))
    return Page(seeds, {str(cell): _seeds(absent) for cell, absent in without.items()}, known)


def _seeds(form: object) -> tuple[int, ...]:
    if not isinstance(form, list) or not all(isinstance(seed, int) for seed in form):
        raise TypeError(f"seeds must be integers, got {form!r}")
    return tuple(form)
