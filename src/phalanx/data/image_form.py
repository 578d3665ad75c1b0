"""What a schema says of images in files, and which of them do not fit."""

from collections.abc import Iterator, Sequence
from typing import Annotated, Literal, NamedTuple

from msgspec import Meta

from phalanx.data.table_columns import SchemaMember
from phalanx.wording import plural

GRAY = ("1", "L", "LA")  # modes of Pillow, besides those of 16 bits
COLOUR = ("RGB", "RGBA", "P", "PA")
BYTE, WORD = 255, 65535
SIDE = 4096  # of the largest image after stretching, in pixels

Side = Annotated[int, Meta(ge=1, le=SIDE)]


class Images(SchemaMember, frozen=True, kw_only=True):
    """Images, of each of which a model takes (pixel - mean) / deviation, by channel, with pixels in [0, 1].

    Args:
        size: height and width in pixels.
        channels: "RGB", or "L" for gray.
        stretch: whether images of other sizes are stretched to it; if not, they do not fit.
        values: the numbers in a file that become 0 and 1. Files have 16 bits if the second is above 255, else 8.
        mean: of each channel; empty: nothing is subtracted.
        deviation: of each channel, above 0.
        column: of a table, with the paths of the images; a folder needs none.
    """

    size: tuple[Side, Side]
    channels: Literal["RGB", "L"] = "RGB"
    stretch: bool = False
    values: tuple[Annotated[int, Meta(ge=0)], Annotated[int, Meta(le=WORD)]] = (0, BYTE)
    mean: tuple[float, ...] = ()
    deviation: tuple[Annotated[float, Meta(gt=0)], ...] = ()
    column: Annotated[str, Meta(min_length=1)] = "image"

    @property
    def shape(self) -> tuple[int, int, int]:
        """Channels, height and width of an example."""
        return (len(self.channels), *self.size)

    @property
    def most(self) -> int:
        """The largest number that a file can hold."""
        return WORD if self.values[1] > BYTE else BYTE

    @property
    def wrong(self) -> str:
        """What is wrong with the description, and the remedy; empty if nothing is."""
        if {len(self.mean), len(self.deviation)} not in ({0}, {len(self.channels)}):
            return f"images need a mean and a deviation for each of {plural(len(self.channels), 'channel')}, or none"
        return "" if self.values[0] < self.values[1] else "the first of the values of images must be below the second"

    @property
    def text(self) -> str:
        """The description in words."""
        form = f"{self.size[0]} x {self.size[1]} pixels{', stretched to it' if self.stretch else ''}, {self.channels}"
        scaled = ", scaled" if self.mean else ""
        return f"{form}, values {self.values[0]} to {self.values[1]}{scaled}"

    def remedy(self, code: str) -> str:
        """Return what is wrong with images that do not fit in a way, and the remedy."""
        rows, columns = self.size
        return {
            "size": f"another size than {rows} x {columns} pixels. Save them so",
            "channels": f"other channels than {self.channels}. Save them so",
            "range": f"other values than {self.values[0]} to {self.values[1]}, in files of "
            f"{16 if self.most == WORD else 8} bits. Save them so",
            "image": "no image of a kind that is trained on. Repair them, or leave them out",
        }[code]


class Refused(NamedTuple):
    """An image that does not fit.

    Args:
        code: "size", "channels", "range"; or "image", if it cannot be read, or is of a kind that is not trained on.
        place: its number among the images, from 0.
        sentence: what is wrong with it, with its name.
    """

    code: str
    place: int
    sentence: str


def by_code(refused: Sequence[Refused]) -> Iterator[list[Refused]]:
    """Yield the images that do not fit in the same way."""
    for code in dict.fromkeys(one.code for one in refused):
        yield [one for one in refused if one.code == code]
