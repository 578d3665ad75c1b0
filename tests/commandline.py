"""The command line: what a command says, and what an option makes of its arguments."""

from dataclasses import make_dataclass

from phalanx.cli.form import Form
from phalanx.cli.main import main


def chosen(name, kind, arguments):
    """Return the value of the only option of a command, such as `--model` for a `Model`."""
    root = make_dataclass("Only", [(name, kind)])
    return getattr(Form("command", "", root).options(arguments).draft.make(root), name)


def said(capsys, *command):
    """Carry out a command; return its exit status, its output and its errors."""
    try:
        status = main([str(word) for word in command])
    except SystemExit as stop:
        status = stop.code
    out, err = capsys.readouterr()
    return status, out, err
