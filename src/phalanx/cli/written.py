"""What a user names by its file: a class in an option, `my_file.py:MyRule(f=f)`, or a study, `my_file.py:STUDY`."""

import re
import sys
from pathlib import Path
from types import ModuleType

from phalanx.core import InfeasibleError
from phalanx.trust import imported as import_said


def with_numbers(text: str, f: int, n: int) -> str:
    """Return the text with numbers for f, n and share: those of attackers and of clients, and their quotient."""
    values = {"f": f, "n": n, "share": f / n}
    return re.sub(r"=\s*(f|n|share)\b", lambda found: f"={values[found[1]]}", text)


def imported(text: str, said: str, kinds: tuple[type, ...], none: str) -> str:
    """Return the import path, with options, of a class that is named by its file, after the import of this file.

    Args:
        text: such as my_file.py:MyRule(f=f); without a file it is returned as it is.
        said: begins a message.
        kinds: the classes of which it can be a subclass.
        none: what a file lacks that has no such class, as "no rule and no algorithm".

    Raises:
        InfeasibleError: there is no such file, it cannot be imported, or it has no such class.
    """
    if ".py" not in text:
        return text
    file, module, inner = parted(text, said)
    if not inner.partition("(")[0].isidentifier() or not hasattr(module, inner.partition("(")[0]):
        own = [kind for kind in vars(module).values() if isinstance(kind, type) and kind.__module__ == file.stem]
        known = [kind.__name__ for kind in own if issubclass(kind, kinds)]
        there = f"It has {', '.join(known) if known else none}"
        raise InfeasibleError(f"{said} names no class of {file}. {there}. Write {file}:CLASS(OPTIONS).")
    return f"{file.stem}.{inner}"


def parted(text: str, said: str) -> tuple[Path, ModuleType, str]:
    """Return the file that a text such as my_file.py:NAME names, its module, which is imported, and the name.

    Args:
        text: of the user.
        said: begins a message.

    Raises:
        InfeasibleError: there is no such file, or it cannot be imported.
    """
    start, _, inner = text.partition(".py")
    file, inner = Path(f"{start}.py"), inner.removeprefix(":")
    if not file.is_file():
        raise InfeasibleError(f"{said}: there is no file {file}.")
    if not file.stem.isidentifier():
        raise InfeasibleError(f"{file} is no name of a module. Rename it, with letters, digits and _ alone.")
    sys.path.append(str(file.parent.resolve()))
    try:
        module = import_said(file.stem)
    except (Exception, SystemExit) as error:
        raise InfeasibleError(f"{file} cannot be imported: {type(error).__name__}: {error}.") from error
    if module.__file__ is None or not file.samefile(module.__file__):
        raise InfeasibleError(f"Another module has the name {file.stem} already. Rename {file}.")
    return file, module, inner
