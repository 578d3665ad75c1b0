"""The command line without a command: what an option makes of its arguments."""

from dataclasses import make_dataclass

from phalanx.cli.form import Form


def chosen(name, kind, arguments):
    """Return the value of the only option of a command, such as `--model` for a `Model`."""
    root = make_dataclass("Only", [(name, kind)])
    return getattr(Form("command", "", root).options(arguments).draft.make(root), name)
