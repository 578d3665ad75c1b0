"""`phalanx schema`: draft the schema of a federation's tables or images, and check those of a site against it."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from glob import glob
from pathlib import Path
from typing import Any

from rich.console import Console

from phalanx.cli.checks import check_out
from phalanx.cli.consoles import say
from phalanx.cli.parser import Options
from phalanx.core import InfeasibleError
from phalanx.data import CSV, Schema
from phalanx.data.findings import Finding
from phalanx.data.image_draft import draft_images
from phalanx.data.table_check import TableCheck, examined, in_words, outcome
from phalanx.data.table_draft import SchemaDraft, draft
from phalanx.data.table_files import TableFile, files_of, is_pattern
from phalanx.data.table_schema import UnfitTableError
from phalanx.data.table_statistics import LARGEST_STATISTICS, POOLED, SiteStatistics, scaled_by, statistics_of, together
from phalanx.data.tables import WHOLE, Dialect, Name
from phalanx.reading import contents
from phalanx.runs.files import write
from phalanx.wording import LONGEST_LINE, plural, shown


def init_command(options: Options, console: Console) -> int:
    """Write a first schema, and say what is to be decided; return the exit status."""
    if options.image is not None or any(path.is_dir() for name in options.files for path in _files(name)):
        return _written(_draft_of_images(options), options, console)
    files = [file for path in options.files for file in _files(path)]
    _check_place(options, "schema.json", files)
    if options.target is None:
        raise InfeasibleError("Name the column of the labels or targets: --target NAME.")
    made = draft(
        options.files,
        options.target,
        owner=options.owner,
        drop=options.drop,
        codes=options.codes,
        zeros=options.zeros,
        classes=_classes(options.classes),
        indicator=options.indicator,
        dialect=Dialect(options.separator, options.decimal, options.thousands, tuple(options.missing)),
    )
    return _written(made, options, console)


def _draft_of_images(options: Options) -> SchemaDraft:
    """Return a first schema of images; raise `InfeasibleError` if an option is for tables."""
    tabular = ("owner", "drop", "codes", "zeros", "indicator", "classes", "missing", "thousands")
    if given := [name for name in tabular if options[name]]:
        raise InfeasibleError(f"--{given[0]} is for tables, and not for images. Leave it out.")
    _check_place(options, "schema.json", [file for path in options.files for file in _files(path) if file.is_file()])
    return draft_images(
        [str(place) for path in options.files for place in _files(path)],
        image=options.image,
        target=options.target,
        size=options.size,
        separator=options.separator,
    )


def _written(made: SchemaDraft, options: Options, console: Console) -> int:
    """Say what is to be decided of a draft, and write it; return the exit status."""
    for one in made.findings:
        _say(f"{'error' if one.error else 'decide'}: {one.sentence}", console)
    images = made.schema is not None and made.schema.images is not None
    unit, place = ("image", "place") if images else ("row", "file")
    rows = f"{plural(sum(made.rows.values()), unit)} of {plural(len(made.rows), place)}"
    if made.schema is None:
        _say(f"{rows}: no schema is written. Do as the errors say, and repeat this.", console)
        return 1
    options.out.parent.mkdir(parents=True, exist_ok=True)
    schema = made.schema if options.least_rows is None else made.schema.asking(options.least_rows)
    write(options.out, schema.json)
    form = schema.images
    inputs = plural(len(made.schema.reading.columns), "input") if form is None else form.text
    classes = f", classes {', '.join(map(str, made.schema.labels))}" if made.schema.labels else ""
    _say(f"{options.out}: {rows}, {inputs}{classes}. {schema.digest}", console)
    return 0


def _check_place(options: Options, example: str, read: Sequence[Path]) -> None:
    """Raise `InfeasibleError` if --out is a file that is read, or is there and `--again` is not given."""
    check_out(options.out, example, read)
    if options.out.exists() and not options.again:
        raise InfeasibleError(f"There is a {options.out}. Name another file by -o, or give --again to write over it.")


def _classes(given: Sequence[str]) -> Mapping[str, tuple[Name, ...]] | None:
    """Return the labels that each class joins, from texts such as ill=1,2,3."""
    found = dict[str, tuple[Name, ...]]()
    for text in given:
        name, sign, labels = text.partition("=")
        parts = [part.strip() for part in labels.split(",")]
        if not (name and sign and all(parts)) or name in found:
            raise InfeasibleError(
                f"--classes must name each class once with its labels, such as ill=1,2,3, got {shown(text)}."
            )
        before = [str(label) for of in found.values() for label in of]
        if twice := [part for part in parts if [*before, *parts].count(part) > 1]:
            raise InfeasibleError(f"--classes must name each label once, got {shown(twice[0])} twice. Leave out one.")
        found[name] = tuple(int(part) if re.fullmatch(WHOLE, part) else part for part in parts)
    return found or None


def _files(path: str) -> list[Path]:
    """Return the folder or the files of a path or a pattern; raise `FileNotFoundError` if there are none."""
    folders = [Path(path)] if Path(path).is_dir() else [*map(Path, sorted(glob(path)))] if is_pattern(path) else []
    if folders := [each for each in folders if each.is_dir()]:
        return folders
    if not (found := files_of(path, None)):
        raise FileNotFoundError(f"There is no file {shown(path, 300)}. Correct the path.")
    return found


def check_command(options: Options, console: Console) -> int:
    """Print what does not fit a schema; return the exit status."""
    schema = Schema.load(options.schema)
    files = dict.fromkeys(file for path in options.files for file in _files(path))
    found = [examined(schema, file, source_of(schema, file, options)) for file in files]
    fits = all(one.fits for one in found)
    if options.json:
        of = [_as_json(one) for one in found]
        console.print_json(data={"schema": str(options.schema), "digest": schema.digest, "fits": fits, "files": of})
        return int(not fits)
    for one in found:
        for each in one.findings:
            _say(f"{'error' if each.error else 'remark'}: {in_words(one, each)}", console)
        _say(outcome(one), console)
    return int(not fits)


def source_of(schema: Schema, file: Path, options: Options) -> TableFile | None:
    """Return how a table is written: as the schema says, but for what the options say; None for images."""
    if schema.images is not None:
        return None
    source = schema.source(str(file))
    given = {name: options.get(name) for name in ("separator", "decimal", "thousands") if options.get(name) is not None}
    source = replace(source, **given) if given and isinstance(source, CSV) else source
    return schema.as_site(replace(source, missing=tuple(options.missing)))


def _as_json(found: TableCheck) -> dict[str, Any]:
    """Return what was found in a file; no cell is quoted."""
    return {
        "file": found.file,
        "fits": found.fits,
        "rows": found.rows,
        "classes": {str(label): count for label, count in found.classes.items()},
        "findings": [_finding(_unquoted(one, found), found.lines.get(one.key)) for one in found.findings],
    }


def _unquoted(one: Finding, found: TableCheck) -> Finding:
    """Return a finding without names of columns that the schema does not have: without a header, these are cells."""
    if one.code == "unused":
        columns = plural(found.unused, "column")
        return replace(one, name="", sentence=f"Not used, as the schema has no such column: {columns}.")
    if one.code == "files":
        return replace(one, name="", sentence="Files that are no images in a folder of a class are left out.")
    if one.code == "file":
        return replace(one, sentence="The file cannot be read. phalanx schema check says why without --json.")
    return one


def _finding(one: Finding, line: int | None) -> dict[str, Any]:
    return {
        "code": one.code,
        "name": one.name,
        "error": one.error,
        "rows": one.rows or None,
        "first_row": one.first or None,
        "first_line": line,
        "sentence": one.sentence,
    }


def _schema_of_tables(path: Path) -> Schema:
    """Return a schema; raise `InfeasibleError` if it is one of images."""
    schema = Schema.load(path)
    if schema.images is not None:
        raise InfeasibleError(f"{path} describes images, and statistics are those of tables.")
    return schema


def statistics_command(options: Options, console: Console) -> int:
    """Write the statistics of a site; return the exit status."""
    schema, files = _schema_of_tables(options.schema), _files(options.table)
    _check_place(options, "site.json", [*files, options.schema])
    try:
        found = statistics_of(schema, options.table, source_of(schema, files[0], options))
    except UnfitTableError as error:
        raise ValueError(f"{options.table} does not fit: {error}") from error
    write(options.out, found.json)
    _say(f"{options.out}: {together([found])}. Look at it before you send it.", console)
    return 0


def scale_command(options: Options, console: Console) -> int:
    """Write a schema with the scaling that its sites agree on; return the exit status."""
    schema, out = _schema_of_tables(options.schema), options.out
    if options.rule == "pooled" and POOLED not in options.accept:
        raise InfeasibleError(
            "One site that lies moves a pooled scaling as far as it likes. Leave out --rule pooled, or accept that by "
            f"name: --accept '{POOLED}'."
        )
    _check_place(options, "scaled.json", [*options.statistics, options.schema])
    sites = {
        str(file): SiteStatistics.parse(contents(file, LARGEST_STATISTICS), str(file)) for file in options.statistics
    }
    made = scaled_by(schema, sites, options.rule)
    for one in made.findings:
        _say(f"{'error' if one.error else 'remark'}: {one.sentence}", console)
    write(out, made.schema.json)
    how = "pooled from" if options.rule == "pooled" else "the median of"
    _say(
        f"{out}: {how} {together([sites[name] for name in made.counted])}; {made.promise}. {made.schema.digest}",
        console,
    )
    return 0


def _say(text: str, console: Console) -> None:
    say(console, shown(text, LONGEST_LINE))
