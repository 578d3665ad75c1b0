"""`phalanx report`: a page of runs."""

from rich.console import Console

from phalanx.cli.checks import check_out
from phalanx.cli.consoles import say
from phalanx.cli.parser import Options
from phalanx.cli.terminal import say_unsealed
from phalanx.report import write
from phalanx.runs.record import REPORT, Record


def report_command(options: Options, console: Console) -> int:
    """Write a page of runs that are done; return the exit status."""
    records = [Record.load(folder, unsealed=options.unsealed) for folder in options.runs]
    say_unsealed(dict(zip(options.runs, records, strict=True)), console)
    target = options.out or options.runs[0]
    if not target.is_dir():
        check_out(target, REPORT)
    page = write(records, target, options.title)
    say(console, f"Report: {page}")
    return 0
