"""One scoreboard of all claims of all papers, and counts of what the pages show."""

import csv
import io
import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from phalanx.experiments.papers.claims import LEGEND, Judged, judged
from phalanx.experiments.papers.comparison import ComparedCell
from phalanx.experiments.papers.experiment import Context, Experiment, Reproduction
from phalanx.experiments.papers.rendering import Rendering
from phalanx.experiments.shown.text import Flat, markdown_table
from phalanx.experiments.trace import Trace
from phalanx.runs.files import write
from phalanx.wording import plural

BEGIN, END = "<!-- scoreboard -->", "<!-- end of the scoreboard -->"
PAGE = Path("docs/reproduction.md")  # next to the folder of results; between the two marks it has the decided claims
DECIDED = (
    "These are the claims that hold or fail at the papers' own size, and those that fail at quick scale. "
    "[All claims](../results/scoreboard.md)."
)
VERDICTS = re.compile(
    r"(<!-- verdicts of ([a-z-]+) -->\n).*?(<!-- end of the verdicts -->)", re.DOTALL
)  # on other pages
SEEDS = 3  # from which a page counts as repeated


@dataclass(frozen=True)
class Shown:
    """A page: an experiment with the results that were drawn.

    Args:
        experiment: the experiment.
        context: of the rendering.
        rendering: its results.
        records: its traces, by cell.
        date: of the newest one; None if it is not known.
    """

    experiment: Experiment
    context: Context
    rendering: Rendering
    records: Mapping[str, Sequence[Trace]]
    date: str | None = None

    @property
    def size(self) -> str:
        """The size of its runs, in words."""
        return "the paper's" if self.context.own_size else "quick"

    @property
    def command(self) -> str:
        """The end of the command that carries out its runs, after the name of the paper."""
        engine = "" if self.context.engine is None else f" --engine {self.context.engine}"
        scale = "" if self.context.scale == "quick" else f" --scale {self.context.scale}"
        return f"{self.experiment.name}{scale} --seeds {len(self.context.seeds)}{engine}"

    @property
    def numerics(self) -> str:
        """The numerics versions of its records."""
        return ", ".join(map(str, sorted({t.provenance.numerics for some in self.records.values() for t in some})))

    @property
    def repeated(self) -> bool:
        """Whether it trains, with at least three seeds in each cell that has any."""
        counts = [len(some) for some in self.records.values() if some]
        return bool(counts) and min(counts) >= SEEDS

    @property
    def comparisons(self) -> Iterator[ComparedCell]:
        """Our numbers with a published one."""
        cells = (cell for table in self.rendering.tables for row in table.rows for cell in row)
        return (cell for cell in cells if isinstance(cell, ComparedCell) and cell.difference is not None)


def write_scoreboard(pages: Sequence[Shown], found: Mapping[str, Reproduction], folder: Path) -> list[Path]:
    """Write the scoreboard as Markdown and CSV, and into the pages of the documentation that have marks for it.

    Args:
        pages: all pages.
        found: the papers.
        folder: of all results.

    Returns:
        The files.
    """
    text, table = scoreboard(pages, found), csv_of(pages)
    files = {folder / "scoreboard.md": f"# Claims of the papers\n\n{text}\n", folder / "scoreboard.csv": table}
    page = folder.parent / PAGE
    if page.is_file() and BEGIN in (before := page.read_text(encoding="utf-8")):
        head, _, rest = before.partition(BEGIN)
        short = scoreboard(pages, found, decided=True)
        files[page] = f"{head}{BEGIN}\n\n{short}\n\n{END}{rest.partition(END)[2]}"
    for page in sorted(page for page in (folder.parent / PAGE).parent.glob("*.md") if page not in files):
        if (after := with_verdicts(before := page.read_text(encoding="utf-8"), table)) != before:
            files[page] = after
    for path, content in files.items():
        write(path, content.encode())
    return list(files)


def with_verdicts(page: str, table: str) -> str:
    """Return a page with the verdicts on the claims of a paper between its marks, if it has any.

    Args:
        page: in Markdown.
        table: the scoreboard, as CSV.
    """
    rows = [*csv.DictReader(io.StringIO(table))]
    return VERDICTS.sub(
        lambda found: f"{found[1]}{_verdicts([r for r in rows if r['paper'] == found[2]])}{found[3]}", page
    )


def _verdicts(rows: Sequence[Mapping[str, str]]) -> str:
    """Return the counts of the verdicts on a paper in sentences, and which claims fail."""
    lines = []
    for size, what in (("the paper's", "At the paper's own size"), ("quick", "At quick scale")):
        counts = Counter(row["verdict"] for row in rows if row["size"] == size)
        if counts:
            lines.append(f"{what}, of {plural(counts.total(), 'claim')}: {_counted(counts)}.")
    failed = dict.fromkeys(
        (row["experiment"], row["claim"], row["claimed"]) for row in rows if row["verdict"] == "fails"
    )
    lines += [f"Fails, in {experiment}: {claim} (claimed: {claimed})." for experiment, claim, claimed in failed]
    return "".join(f"- {line}\n" for line in lines)


def scoreboard(pages: Sequence[Shown], found: Mapping[str, Reproduction], decided: bool = False) -> str:
    """Return the counts, and a table of claims for each paper, as Markdown.

    Args:
        pages: all pages.
        found: the papers.
        decided: whether the tables leave out claims that are open, or hold at quick scale only.
    """
    blocks = [_counts(pages, found), LEGEND, *[DECIDED] * decided]
    for name, reproduction in found.items():
        rows = [
            [one.claim.text, one.verdict, one.claim.ours, one.claim.claimed, str(len(one.claim.values)), page.size,
             page.date or "", page.numerics, f"`{page.command}`"]
            for page, one in _claims(pages)
            if page.experiment.paper.name == name
            and not (decided and (one.verdict == "open" or (one.verdict == "holds" and not page.context.own_size)))
        ]  # fmt: skip
        if rows:
            columns = ["claim", "verdict", "ours", "claimed", "seeds", "size", "date", "numerics", "command"]
            title = f"{reproduction.paper.citation} (`phalanx reproduce {name}`, and the command of the row)"
            blocks.append(markdown_table(Flat(title, columns, rows, [], [False] * len(columns))))
    return "\n\n".join(blocks)


def _claims(pages: Sequence[Shown]) -> list[tuple[Shown, Judged]]:
    """Return all claims with their pages, those at the papers' own size first."""
    ordered = sorted(pages, key=lambda page: not page.context.own_size)
    return [(page, one) for page in ordered for one in judged(page.rendering.claims)]


def _counted(verdicts: Mapping[str, int]) -> str:
    return f"{verdicts['holds']} hold, {verdicts['fails']} fail, {verdicts['open']} open"


def _counts(pages: Sequence[Shown], found: Mapping[str, Reproduction]) -> str:
    """Return the counts in sentences."""
    lines = []
    for own, what in ((True, "At the papers' own size"), (False, "At quick scale")):
        verdicts = Counter[str](one.verdict for page, one in _claims(pages) if page.context.own_size == own)
        lines.append(f"* {what}: {plural(verdicts.total(), 'claim')}; {_counted(verdicts)}.")
    numbers = [cell for page in pages for cell in page.comparisons]
    inside = Counter("none" if c.ours.half is None else c.verdict or "inside" for c in numbers)
    published = sum(
        number.value is not None
        for reproduction in found.values()
        for table in reproduction.published.tables.values()
        for number in table.numbers.values()
    )
    lines.append(
        f"* {len(numbers):,} of our numbers stand next to one of the {published:,} published ones: {inside['inside']} "
        f"with it in their 95 % interval, {inside['higher']} higher, {inside['lower']} lower, {inside['none']} of one "
        "seed, without an interval."
    )
    trained = [page for page in pages if any(page.records.values())]
    full = [page for page in trained if page.context.own_size]
    versions = Counter(
        trace.provenance.numerics
        for trace in {t.identity: t for page in trained for some in page.records.values() for t in some}.values()
    )
    counted = ", ".join(f"{count:,} of version {version}" for version, count in sorted(versions.items()))
    lines.append(
        f"* {len(trained)} pages from runs, {len(full)} of them at the paper's own size and "
        f"{sum(page.repeated for page in trained)} with at least {SEEDS} seeds in each cell. Records by numerics "
        f"version: {counted}."
    )
    return "\n".join(lines)


def csv_of(pages: Sequence[Shown]) -> str:
    """Return a line for each claim."""
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow(
        ["paper", "experiment", "claim", "verdict", "mean", "half", "claimed", "seeds", "size", "date", "command"]
    )
    for page, one in _claims(pages):
        claim, sample = one.claim, one.claim.sample
        name, command = page.experiment.paper.name, f"phalanx reproduce {page.experiment.paper.name} {page.command}"
        values = (sample.mean, sample.half, claim.claimed, sample.n, page.size, page.date or "")
        writer.writerow([name, page.experiment.name, claim.text, one.verdict, *values, command])
    return out.getvalue()
