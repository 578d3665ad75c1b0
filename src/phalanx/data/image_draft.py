"""A first schema of images, drafted from the folders or the tables of sites."""

from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import torch

from phalanx.data.findings import Finding, near
from phalanx.data.image_form import BYTE, COLOUR, GRAY, SIDE, WORD, Images, Refused
from phalanx.data.images import FORMATS, WIDE, ImageFile, ImageFolder, ImageSource, ImageTable, moments
from phalanx.data.table_columns import Field, Use
from phalanx.data.table_draft import LEAST_ROWS, LISTED, SchemaDraft
from phalanx.data.table_schema import Schema, Writing
from phalanx.errors import InfeasibleError
from phalanx.installation import optional
from phalanx.wording import plural

TURNED, ORIENTATION = (5, 6, 7, 8), 0x0112  # by the tag of photographs: rows and columns change places
SHARE = 0.5  # of the numbers of 16 bits, below which the largest value is in question


class _Seen(NamedTuple):
    """An image as the head of its file describes it: (height, width), channels, and whether it has 16 bits."""

    size: tuple[int, int]
    channels: str
    wide: bool


def draft_images(
    paths: Sequence[str], *, image: str | None = None, target: str | None = None, size: int | None = None,
    separator: str = ",",
) -> SchemaDraft:  # fmt: skip
    """Return a first schema of images.

    Args:
        paths: folders, or files, or patterns of such, each of one site.
        image: column of the paths, if they are tables.
        target: column of the classes.
        size: height and width to which images are stretched; None: they have one size.
        separator: of a table.

    Raises:
        FileNotFoundError: there is nothing at a path.
        ValueError: there is no image, or a column is missing.
    """
    if size is not None and not 0 < size <= SIDE:
        raise InfeasibleError(f"size must be 1 to {SIDE:,} pixels, got {size:,}.")
    sources: list[ImageSource] = [
        ImageFolder(path)
        if image is None
        else ImageTable(path, image=image, label=target or "label", separator=separator)
        for path in paths
    ]
    found = [source.gathered(None)[0] for source in sources]
    files, rows = [each for part in found for each in part], dict(zip(paths, map(len, found), strict=True))
    name = target or ("class" if image is None else "label")
    counts = Counter(each.label for each in files)
    labels = tuple(sorted(label for label, count in counts.items() if count >= LEAST_ROWS))
    findings = [*_said_of_classes(name, counts), *near([*counts], name, "Classes")]
    seen = [one for one in map(_seen, files) if one is not None]
    form = _form({one.size for one in seen}, seen, size)
    if isinstance(form, Finding) or not labels:
        errors = [form] if isinstance(form, Finding) else []
        few = [] if labels else [Finding("rare", name, f"No class has {LEAST_ROWS} images. Give more.")]
        return SchemaDraft(None, (*findings, *errors, *few), rows)
    form = form if image is None else _with(form, column=image)
    kept, refused = [each for each in files if each.label in labels], list[Refused]()
    x = sources[0].pixels(kept, form, refused)
    if refused:
        what = f"{len(refused)} of {plural(len(kept), 'image')} cannot be used. The first: {refused[0].sentence}"
        return SchemaDraft(None, (*findings, Finding("image", name, what)), rows)
    deviation, mean = moments(x, torch.arange(len(kept)))
    scaled = {"mean": _rounded(mean, -1.0), "deviation": _rounded(deviation, 0.01)}
    if form.most == WORD and (most := round(float(x.max()) * WORD)) < SHARE * WORD:
        what = f"No image holds more than about {float(f'{most:.1g}'):,.0f}, and 16 bits hold 65,535"
        findings.append(Finding("range", name, f"{what}. If they have fewer bits, correct values.", error=False))
    fields = (Field(name=name, type="string", categories=labels, use=Use(role="target")),)
    writing = Writing(delimiter=separator, images=_with(form, **scaled))
    return SchemaDraft(Schema.parse(Schema(fields=fields, writing=writing).json, "draft"), tuple(findings), rows)


def _with(form: Images, **given: Any) -> Images:
    made = {name: getattr(form, name) for name in form.__struct_fields__} | given
    return Images(**made)


def _rounded(values: torch.Tensor, least: float) -> tuple[float, ...]:
    return tuple(max(round(each, 2), least) for each in values.tolist())


def _seen(image: ImageFile) -> _Seen | None:
    """Return what the head of a file says; None if it cannot be read."""
    pillow = optional("PIL.Image", "images", "images")
    try:
        with pillow.open(image.file, formats=[*{*FORMATS.values()}]) as opened:
            width, height = opened.size
            turned = opened.getexif().get(ORIENTATION) in TURNED
            kind = "L" if opened.mode in (*GRAY, *WIDE) else "RGB" if opened.mode in COLOUR else str(opened.mode)
            return _Seen((width, height) if turned else (height, width), kind, opened.mode in WIDE)
    except (OSError, SyntaxError, ValueError, EOFError, pillow.DecompressionBombError):
        return None


def _form(sizes: set[tuple[int, int]], seen: Sequence[_Seen], size: int | None) -> Images | Finding:
    """Return what images are; or why that cannot be said."""
    if not seen:
        return Finding("image", "", "No file can be read as an image. Repair them, or name others.")
    kinds, bits = Counter(one.channels for one in seen), Counter(16 if one.wide else 8 for one in seen)
    if other := {*kinds} - {"L", "RGB"}:
        return Finding("channels", "", f"Images have the channels {min(other)}. Save them as RGB or gray.")
    if len(kinds) > 1:
        return Finding("channels", "", f"{kinds['L']} images are gray, {kinds['RGB']} have colours. Save them alike.")
    if len(bits) > 1:
        return Finding("range", "", f"{bits[8]} images have 8 bits, {bits[16]} have 16. Save them alike.")
    if len(sizes) > 1 and size is None:
        (low, _), (high, _) = ((each, each[0] * each[1]) for each in (min(sizes, key=_area), max(sizes, key=_area)))
        what = f"Images have {len(sizes)} sizes, from {low[0]} x {low[1]} to {high[0]} x {high[1]} pixels"
        return Finding("size", "", f"{what}. Give the one to which they are stretched: --size 64.")
    only = next(iter(sizes)) if size is None else (size, size)
    channels: Any = next(iter(kinds))
    return Images(size=only, channels=channels, stretch=sizes != {only}, values=(0, WORD if 16 in bits else BYTE))


def _area(size: tuple[int, int]) -> int:
    return size[0] * size[1]


def _said_of_classes(name: str, counts: Counter[str]) -> Iterator[Finding]:
    """Yield which classes are left out."""
    if rare := {label: count for label, count in counts.most_common() if count < LEAST_ROWS}:
        listed = ", ".join(f"{label!r} ({count})" for label, count in [*rare.items()][:LISTED])
        more = ", ..." if len(rare) > LISTED else ""
        what = f"{plural(len(rare), 'class')} of fewer than {LEAST_ROWS} images: {listed}{more}"
        yield Finding("rare", name, f"{what}. They are not in the schema. Add those that all sites may know to "
                      "categories, or map them in aliases; other images do not fit.", error=False)  # fmt: skip
