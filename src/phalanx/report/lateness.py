"""The verdicts on updates by their age, in a table, since late and fresh ones are judged differently."""

from collections.abc import Sequence
from typing import NamedTuple

from phalanx.report.client_ledger import ClientLedger
from phalanx.report.flights import ACCEPTED, FILTERED, UNDECIDED, Flight, flights
from phalanx.report.page_tables import Cell
from phalanx.report.words import NONE, portion

COLUMNS = ("Updates", "Accepted", "Filtered", "Undecided", "Mean weight")


class AgeRow(NamedTuple):
    """Updates of one age, of honest or of Byzantine clients.

    Args:
        age: in words: "fresh", "2 to 3".
        truth: the group's name.
        cells: one for each of COLUMNS; the mean weight is that of the accepted.
    """

    age: str
    truth: str
    cells: tuple[Cell, ...]


def rows(ledger: ClientLedger) -> tuple[AgeRow, ...]:
    """Return the table: ages 0, 1, 2 to 3, 4 to 7, and so on, honest clients before Byzantine ones; no row is empty."""
    known = [flight for flight in flights(ledger.record) if flight.age is not None]
    out = []
    for group in ledger.groups:
        members = set(group.clients)
        of_group = [flight for flight in known if flight.client in members]
        for number in sorted({(flight.age or 0).bit_length() for flight in of_group}):
            of_age = [flight for flight in of_group if (flight.age or 0).bit_length() == number]
            out.append((number, AgeRow(_words(number), group.name, _cells(of_age))))
    return tuple(row for _, row in sorted(out, key=lambda item: item[0]))


def _words(number: int) -> str:
    """Return in words the ages of this number of binary digits."""
    if number < 2:
        return ("fresh", "1 version")[number]
    return f"{2 ** (number - 1)} to {2**number - 1} versions"


def _cells(of_age: Sequence[Flight]) -> tuple[Cell, ...]:
    n, fates = len(of_age), [flight.fate for flight in of_age]
    shares = [fates.count(fate) / n for fate in (ACCEPTED, FILTERED, UNDECIDED)]
    used = [flight.weight for flight in of_age if flight.fate == ACCEPTED]
    mean = sum(used) / len(used) if used else None
    weight = Cell(NONE) if mean is None else Cell(f"{mean:.3g}", mean)
    return Cell(f"{n:,}", n), *(Cell(portion(share), share) for share in shares), weight
