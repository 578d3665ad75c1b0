"""The command line: a table of commands.  Only what the given command needs is imported."""

import gc
import os
import sys
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from functools import partial
from importlib import import_module
from typing import Any, NamedTuple, NoReturn

import phalanx
from phalanx.cli import advice, flower_options, options
from phalanx.cli.parser import Options, Parser
from phalanx.errors import NotInRecordError, StalledError
from phalanx.runs.files import is_full
from phalanx.signals import ignore_stop_signals, stopped_like_ctrl_c
from phalanx.trust import announcing
from phalanx.wording import LONGEST_LINE, shown

NO_MEMORY = "There is not enough memory. Make the model, the data, the batches or the number of clients smaller."
DEBUG = "PHALANX_DEBUG"  # environment variable: show where an error comes from


class Command(NamedTuple):
    """A command.

    Args:
        description: what it does.
        parser: makes the parser of its options.
        module: the import path of the module that carries it out.
        function: its name in there. It takes the options and a `rich.console.Console`, and returns the exit status.
    """

    description: str
    parser: Callable[[], Parser]
    module: str
    function: str


COMMANDS = {
    "run": Command(options.RUN, options.run, "phalanx.cli.run", "run_command"),
    "demo": Command(options.DEMO, options.demo, "phalanx.cli.run", "demo_command"),
    "partition": Command(options.PARTITION, options.partition, "phalanx.cli.run", "partition_command"),
    "verify": Command(options.VERIFY, options.verify, "phalanx.cli.verify", "verify_command"),
    "replay": Command(options.REPLAY, options.replay, "phalanx.cli.replaying", "replay_command"),
    "report": Command(options.REPORT, options.report, "phalanx.cli.report", "report_command"),
    "study": Command(options.STUDY, options.study, "phalanx.cli.study", "study_command"),
    "compare": Command(options.COMPARE, options.compare, "phalanx.cli.study", "compare_command"),
    "leaderboard": Command(options.LEADERBOARD, options.leaderboard, "phalanx.cli.leaderboard", "leaderboard_command"),
    "evaluate": Command(options.EVALUATE, options.evaluate, "phalanx.cli.models", "evaluate_command"),
    "predict": Command(options.PREDICT, options.predict, "phalanx.cli.models", "predict_command"),
    "export": Command(options.EXPORT, options.export, "phalanx.cli.models", "export_command"),
    "reproduce": Command(options.REPRODUCE, options.reproduce, "phalanx.cli.reproduce", "reproduce_command"),
    "weights": Command(options.WEIGHTS, options.weights, "phalanx.cli.weights", "weights_command"),
    "choose": Command(options.CHOOSE, options.choose, "phalanx.cli.choose", "choose_command"),
    "check": Command(options.CHECK, options.check, "phalanx.cli.check", "check_command"),
    "doctor": Command(options.DOCTOR, options.doctor, "phalanx.cli.doctor", "doctor_command"),
}
FLOWER = {
    name: Command(
        description,
        partial(flower_options.flower, name),
        "phalanx.cli.flower_keys" if name in flower_options.KEYS else "phalanx.cli.flower",
        name,
    )
    for name, description in flower_options.FLOWER_ACTIONS.items()
}
SCHEMA = {
    "init": Command(options.SCHEMA_INIT, options.schema_init, "phalanx.cli.schema", "init_command"),
    "check": Command(options.SCHEMA_CHECK, options.schema_check, "phalanx.cli.schema", "check_command"),
    "statistics": Command(
        options.SCHEMA_STATISTICS, options.schema_statistics, "phalanx.cli.schema", "statistics_command"
    ),
    "scale": Command(options.SCHEMA_SCALE, options.schema_scale, "phalanx.cli.schema", "scale_command"),
    "sign": Command(options.SCHEMA_SIGN, options.schema_sign, "phalanx.cli.schema_signature", "sign_command"),
    "verify": Command(options.SCHEMA_VERIFY, options.schema_verify, "phalanx.cli.schema_signature", "verify_command"),
}
GROUPS = {"schema": (options.SCHEMA, SCHEMA), "flower": (flower_options.FLOWER, FLOWER)}  # commands of a command


def main(arguments: Sequence[str] | None = None) -> int:
    """Carry out a command.

    Returns:
        The exit status: 0, 1 for a run that failed, 2 for one that could not begin, 130 for one that was stopped.
    """
    with warnings.catch_warnings(), stopped_like_ctrl_c() as stopped:
        warnings.showwarning = _warn  # type: ignore[assignment]
        if arguments is None:  # importing makes many objects and no garbage; to look for some takes 0.3 seconds
            gc.disable()
        with _without_folder(), announcing(_say):
            status = _main(list(sys.argv[1:] if arguments is None else arguments))
    if arguments is None and stopped:  # the process ends now: another signal must not make it end with a traceback
        ignore_stop_signals()
    return status


@contextmanager
def _without_folder() -> Iterator[None]:
    """Find no module in the current folder, which can be somebody else's, before one of a user's own is named."""
    found, here = sys.path, os.getcwd()  # another thread may put another list in its place meanwhile
    before = [*found]
    found[:] = [path for path in before if path not in ("", here)]
    try:
        yield
    finally:
        found[:] = before


def _main(arguments: list[str]) -> int:
    program, commands, about = "phalanx", COMMANDS, f"{phalanx.__doc__} Version {phalanx.__version__}."
    listed = {name: command.description for name, command in commands.items()}
    listed |= {name: description for name, (description, _) in GROUPS.items()}
    if arguments and arguments[0] in GROUPS:
        (about, commands), program = GROUPS[arguments[0]], f"phalanx {arguments[0]}"
        listed, arguments = {name: command.description for name, command in commands.items()}, arguments[1:]
    if not arguments or arguments[0] not in commands:
        _overview(program, about, listed, arguments)
    command = commands[arguments[0]]
    given = command.parser().options(arguments[1:])
    try:
        return _carry_out(command, given)
    except KeyboardInterrupt as stop:
        with suppress(OSError):  # the terminal may be closed
            _say("\n".join(["\nStopped.", *_notes(stop)]))
        return 130
    except Exception as error:
        if DEBUG in os.environ or not (isinstance(error, _foreseen()) or _out_of_memory(error)):
            raise
        lines = [_said(error), *_notes(error), f"({DEBUG}=1 shows where this comes from.)"]
        _say(f"{program} {arguments[0]}: " + "\n".join(lines))
        return 2


def _overview(program: str, about: str, listed: Mapping[str, str], arguments: Sequence[str]) -> NoReturn:
    """Print the help or the version, or say that there is no such command; and exit."""
    parser = Parser(program, about, usage=f"{program} COMMAND ...")
    parser.add_argument(
        "--version", action="version", version=f"phalanx {phalanx.__version__}", help="Show the version."
    )
    group = parser.add_argument_group("commands", f"{program} COMMAND --help lists the options of one.")
    for name, description in listed.items():
        group.add_argument(name, nargs="?", help=description)
    if not arguments or not arguments[0].startswith("-"):
        wanted = f"Give a command: {', '.join(listed)}."
        parser.error(advice.unknown_command(arguments[0], list(listed)) if arguments else wanted)
    parser.options(arguments)
    parser.error(f"Give the command before its options: {', '.join(listed)}.")


def _carry_out(command: Command, given: Options) -> int:
    from rich.console import Console  # noqa: PLC0415  (not needed where an option is wrong)

    from phalanx.cli.consoles import plain_console  # noqa: PLC0415

    function: Callable[[Options, Console], int] = getattr(import_module(command.module), command.function)
    if not gc.isenabled():
        gc.freeze()  # what is imported stays
        gc.enable()
    return function(given, plain_console())


def _foreseen() -> tuple[type[Exception], ...]:
    """Return the errors whose message is all that a user needs."""
    return (ValueError, OSError, ModuleNotFoundError, NotInRecordError, StalledError)


def _said(error: Exception) -> str:
    """Return what an error says, without numbers of the operating system."""
    if is_full(error):
        what = shown(str(error.filename), 300) if error.filename else "What this command writes"
        return f"{what} has no room: its disk is full, or your quota of it. Free some space; then repeat the command."
    if isinstance(error, OSError) and error.strerror:
        return f"{shown(str(error.filename), 300)}: {error.strerror}." if error.filename else f"{error.strerror}."
    return NO_MEMORY if _out_of_memory(error) else str(error)


def _out_of_memory(error: Exception) -> bool:
    """Return whether memory was refused: by Python, by NumPy, by a GPU, or, which torch gives no class, by the CPU."""
    return isinstance(error, MemoryError) or (
        isinstance(error, RuntimeError) and ("can't allocate memory" in str(error) or "out of memory" in str(error))
    )


def _notes(error: BaseException) -> list[str]:
    return list(getattr(error, "__notes__", []))


def _say(text: str) -> None:
    print("\n".join(shown(line, LONGEST_LINE) for line in text.split("\n")), file=sys.stderr)


def _warn(message: Warning | str, category: type[Warning], *_: Any) -> None:
    _say(f"Warning: {message}")
