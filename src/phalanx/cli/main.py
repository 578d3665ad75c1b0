"""The command line: `phalanx run`, `demo`, `partition`, `report`, `reproduce`, `weights`, `doctor`, `flower`."""

import dataclasses
import os
import sys
import warnings
from argparse import SUPPRESS
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from itertools import count
from pathlib import Path
from typing import Any, NoReturn

import torch
from jsonargparse import ArgumentParser, Namespace, _typehints
from rich.console import Console
from rich.markup import escape
from rich.table import Table

import phalanx
from phalanx.cli import advice, demo, doctor, progress, terminal, weights
from phalanx.cli import reproduce as command
from phalanx.cli.help import Help
from phalanx.core import InfeasibleError, Observer, Progress, StalledError
from phalanx.data import holdings
from phalanx.numerics.memory import keep_freed_memory
from phalanx.report import write
from phalanx.rng import numpy_generator
from phalanx.runs.checkpoint import Checkpoint, peek
from phalanx.runs.plan import Run
from phalanx.runs.record import REPORT, SUMMARY, Record
from phalanx.runs.session import simulate
from phalanx.runs.summary import outdated
from phalanx.simulation.executor import ExecutorFactory

DATA_DIR = "PHALANX_DATA"  # environment variable: the default of --data_dir
DEBUG = "PHALANX_DEBUG"  # environment variable: show where an error comes from
COLUMNS = 30  # classes that the table of `phalanx partition` has columns for, at most


def _forget(_: Any, before: Any, now: Any) -> None:
    """Another class takes nothing over from the one that stood there before, in a file or by default.

    By itself the library keeps options of the same name, so that `--algorithm ByzantineCFL` weighed clients as FedAvg
    does by default.
    """
    if before and "init_args" in before and _class(before["class_path"]) is not _class(now["class_path"]):
        before["init_args"] = type(before["init_args"])()


def _class(path: str | None) -> Any:
    """The class of that path; None where there is none, as where a subcommand is called like an option."""
    return path and (advice.imported(path) or path)


if not hasattr(_typehints, "discard_init_args_on_class_path_change"):  # not public: better no command than a wrong run
    raise ImportError("This version of jsonargparse is too new for Phalanx. Install jsonargparse 4.53.")
_typehints.discard_init_args_on_class_path_change = _forget


class Parser(ArgumentParser):
    """Ends with a sentence instead of a page."""

    def __init__(self, **options: Any) -> None:
        super().__init__(formatter_class=Help, allow_abbrev=False, **options)
        self.chosen: Parser | None = None  # the subcommand's, where it is known

    def error(self, message: str, ex: Exception | None = None) -> NoReturn:
        """Says what was wrong and what would have been right, and exits with 2."""
        if not self.exit_on_error:  # a parser within the parser, of the options of one class
            super().error(message, ex)
        if self.chosen is not None:
            self.chosen.error(message, ex)
        name = self.prog.replace(" [options]", "")
        shown = [action for action in self._actions if action.help != SUPPRESS]
        options = [o for action in shown for o in action.option_strings if o.startswith("--")]
        print(f"{name}: {advice.advice(str(message), Run, options)}\nSee: {name} --help", file=sys.stderr)
        sys.exit(2)

    def _load_config_parser_mode(self, content: str, *arguments: Any, **options: Any) -> Any:
        """Reads a configuration file; one that is empty, or holds nothing but comments, changes nothing."""
        lines = (line.strip() for line in content.splitlines())
        empty = all(not line or line.startswith("#") for line in lines)
        try:
            return super()._load_config_parser_mode("{}" if empty else content, *arguments, **options)
        except TypeError as error:
            if not str(error).startswith("Unexpected config"):
                raise
            start = content.strip().splitlines()[0]
            message = f"A configuration file must be a mapping of options to values, as `clients: 10`, got `{start}`."
            raise TypeError(message) from None


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs a command; returns the exit status: 0, 1 for a run that failed, 2 for one that could not begin."""
    with warnings.catch_warnings():
        warnings.showwarning = _warn  # type: ignore[assignment]
        sys.path.insert(0, os.getcwd())  # a user's own classes are found beside the user, as by `python -m`
        return _main(sys.argv[1:] if arguments is None else arguments)


def _main(arguments: Sequence[str]) -> int:
    parsers = {
        "run": _run_parser(),
        "demo": _demo_parser(),
        "partition": _partition_parser(),
        "report": _report_parser(),
        "reproduce": _reproduce_parser(),
        "weights": _weights_parser(),
        "doctor": _doctor_parser(),
        "flower": _flower_parser(),
    }
    parser = Parser(
        prog="phalanx", description=f"{phalanx.__doc__} Version {phalanx.__version__}.", version=phalanx.__version__
    )
    commands = parser.add_subcommands(dest="command", required=True)
    for name, sub in parsers.items():
        commands.add_subcommand(name, sub, help=sub.description)
    _add_flower_actions(parsers["flower"])  # after their own parser has been added
    parser.chosen = parsers.get(next(iter(arguments), ""))
    chosen = parser.parse_args(arguments)
    carry_out = {
        "run": run_command,
        "demo": demo_command,
        "partition": partition_command,
        "report": report_command,
        "reproduce": reproduce_command,
        "weights": weights.weights_command,
        "doctor": doctor_command,
        "flower": flower_command,
    }
    try:
        _check_groups(chosen[chosen.command])
        values = parser.instantiate(chosen)
        return carry_out[chosen.command](values[chosen.command], Console(highlight=False))
    except (InfeasibleError, StalledError, ValueError, OSError, ModuleNotFoundError) as error:
        if DEBUG in os.environ:
            raise
        lines = [str(error), *_notes(error), f"({DEBUG}=1 shows where this comes from.)"]
        print(f"phalanx {chosen.command}: " + "\n".join(lines), file=sys.stderr)
        return 2
    except KeyboardInterrupt as stop:
        print("\n".join(["\nStopped.", *_notes(stop)]), file=sys.stderr)
        return 130


def _check_groups(options: Namespace) -> None:
    """Raises ValueError where a configuration file has a single value for a group of options."""
    for field in dataclasses.fields(Run):
        given = options.get(field.name)
        if field.name in options and dataclasses.is_dataclass(field.type) and not isinstance(given, Namespace):
            names = ", ".join(f.name for f in dataclasses.fields(field.type))
            raise ValueError(f"{field.name} must be a mapping of its options ({names}), got {given!r}.")


def _notes(error: BaseException) -> list[str]:
    return list(getattr(error, "__notes__", []))


# Commands


def run_command(options: Namespace, console: Console) -> int:
    """One run: bar, table, folder."""
    plan = _plan(options)
    folder = options.folder or Path("runs") / plan.slug
    _check_execution(options, folder)
    record = None if options.again else _stored(plan, folder, console)
    if record is None:
        (record,) = _carry_out({plan.title: plan}, {plan.title: folder}, options, console)
    return _show([record], folder, plan.title, console)


def _stored(plan: Run, folder: Path, console: Console) -> Record | None:
    """The record of the run, if it is there and would come out the same again; says what it finds."""
    saved = peek(folder)
    record = Record.load(folder) if (folder / SUMMARY).is_file() else None
    if saved is not None and (record is None or record.summary.status != "finished"):
        _check_identity(saved.origin.identity, f"stopped after step {saved.step}", plan, folder)
        return None  # it goes on
    if record is None:
        return None
    _check_identity(record.summary.identity, record.name, plan, folder)
    if why := outdated(plan, record.summary):
        console.print(f"This run is repeated: {why}.", soft_wrap=True)
        return None
    console.print(f"This run is done already, its results are in {folder}. Give --again to repeat it.", soft_wrap=True)
    return record


def _check_identity(found: str, title: str, plan: Run, folder: Path) -> None:
    """Raises `InfeasibleError` if what was found in a folder is another run."""
    if found != plan.identity:
        raise InfeasibleError(
            f"{folder} holds another run ({title}). Choose another --folder, or --again to replace it."
        )


def demo_command(options: Namespace, console: Console) -> int:
    """Six runs: bars, tables, one report."""
    _check_execution(options, options.folder)
    plans = demo.runs(options.seed)
    folders = {name: options.folder / name.lower().replace(", ", "-").replace(" ", "-") for name in plans}
    (options.folder / REPORT).unlink(missing_ok=True)
    records = _carry_out(plans, folders, options, console)
    return _show(records, options.folder, "One federation, three algorithms, without and under attack", console)


def partition_command(options: Namespace, console: Console) -> int:
    """Who would hold what: a table, and a picture."""
    plan = _plan(options)
    train, _ = plan.data.load(_data_dir(options))
    parts = plan.partition.split(train.y, plan.clients, numpy_generator(plan.seed, "partition"), train.owners)
    counts, sizes = holdings(train.y, parts, train.classes), [len(part) for part in parts]
    title = f"{type(plan.data).__name__} dealt to {plan.clients} clients by {plan.partition}"
    console.print(_holdings(counts, sizes, title))
    if options.picture is not None:
        from phalanx.data import plot_holdings  # noqa: PLC0415  (matplotlib is slow to import)

        plot_holdings(counts, plan.attackers(), sizes).savefig(options.picture, dpi=150)
        console.print(f"Picture: {options.picture}", soft_wrap=True)
    return 0


def _holdings(counts: torch.Tensor, sizes: Sequence[int], title: str) -> Table:
    """Who holds what, as a table: a column for each class, or, of more than `COLUMNS`, sums."""
    table = Table(title=title, title_justify="left")
    few = counts.shape[1] <= COLUMNS
    for heading in ("client", "examples", *(range(counts.shape[1]) if few else ("labels", "classes"))):
        table.add_column(str(heading), justify="right")
    for i, (size, row) in enumerate(zip(sizes, counts.tolist(), strict=True)):
        shown = [str(n) if n else "·" for n in row] if few else [str(sum(row)), str(sum(n > 0 for n in row))]
        table.add_row(str(i), str(size), *shown)
    return table


def report_command(options: Namespace, console: Console) -> int:
    """A page of runs that are done."""
    records = [Record.load(folder) for folder in options.runs]
    target = options.out or options.runs[0] / REPORT
    page = write(records, target / REPORT if target.is_dir() else target, options.title)
    console.print(f"Report: {page}", soft_wrap=True)
    return 0


def reproduce_command(options: Namespace, console: Console) -> int:
    """Tables and figures of papers, computed again."""
    given = {**vars(options), "data_dir": _data_dir(options), "folder": options.folder or Path("results")}
    _check_device(options.device)
    _check_folder(given["folder"])
    return command.reproduce(command.Options.of(given), console)


def doctor_command(options: Namespace, console: Console) -> int:
    """Whether all that is needed is there."""
    return doctor.doctor(console, folder=options.folder, data_dir=_data_dir(options), ports=options.ports)


def flower_command(options: Namespace, console: Console) -> int:
    """Real clients: see `phalanx.cli.flower`."""
    from phalanx.cli import flower as command  # noqa: PLC0415  (Flower is an optional dependency, and slow to import)

    return command.COMMANDS[options.action](options[options.action], console)


def _check_execution(options: Namespace, folder: Path) -> None:
    """Looks whether a run can be carried out as the options say, before anything is done.

    Raises:
        InfeasibleError: there is no such device, no such number of threads, or no such folder can be made.
    """
    _check_device(options.device)
    if options.threads < 1:
        raise InfeasibleError(f"--threads must be at least 1, got {options.threads}.")
    if options.ray is not None and (options.device != "cpu" or options.threads != 1):
        name, value = ("device", options.device) if options.device != "cpu" else ("threads", options.threads)
        raise InfeasibleError(f"With --ray, clients train on CPUs, in one thread each. Leave out --{name} {value}.")
    _check_folder(folder)


def _check_device(device: str) -> None:
    """Raises InfeasibleError if there is no such device."""
    found = torch.cuda.device_count()
    allowed = ["cpu", *(["cuda"] if found else []), *(f"cuda:{k}" for k in range(found))]
    if device not in allowed:
        none = "" if found else f"; torch {torch.__version__} finds no CUDA device here"
        raise InfeasibleError(f"--device must be {' or '.join(allowed)}, got {device}{none}.")


def _check_folder(folder: Path) -> None:
    """Raises InfeasibleError if no such folder can be made."""
    if files := [path for path in (folder, *folder.parents) if path.exists() and not path.is_dir()]:
        raise InfeasibleError(f"--folder {folder}: {files[0]} is a file. Choose another folder, or move the file away.")


def _carry_out(
    plans: Mapping[str, Run], folders: Mapping[str, Path], options: Namespace, console: Console
) -> list[Record]:
    keep_freed_memory()
    torch.set_num_threads(options.threads)
    records = []
    with _executors(options) as executors, progress.progress_bar(console) as bar:
        for name, plan in plans.items():
            observers = [_where_it_goes_on(plan, console), progress.follow(bar, plan, name)]
            records.append(
                simulate(
                    plan,
                    name=name,
                    folder=folders[name],
                    data_dir=_data_dir(options),
                    device=options.device,
                    observers=observers,
                    checkpoint=Checkpoint(resume=not options.get("again")),
                    executors=executors,
                )
            )
    return records


def _executors(options: Namespace) -> AbstractContextManager[ExecutorFactory | None]:
    """Where the clients of a round train: on a Ray cluster if one is given, or in this process."""
    if options.ray is None:
        return nullcontext()
    from phalanx.ray import RayExecutors  # noqa: PLC0415  (Ray is an optional dependency, and slow to import)

    return RayExecutors(options.ray)


def _where_it_goes_on(plan: Run, console: Console) -> Observer:
    """An observer that says of a resumed run where it goes on."""
    calls = count()

    def observer(progress: Progress) -> None:
        if next(calls) == 0 and progress.step:
            limit = f" of {plan.until.limit}" if plan.until.limit else ""
            console.print(f"Goes on after step {progress.step}{limit}.")

    return observer


def _show(records: Sequence[Record], folder: Path, title: str, console: Console) -> int:
    for table in (terminal.results(records), terminal.exclusions(records), terminal.unused(records)):
        if table is not None:
            console.print(table)
    for record in records:
        for line in terminal.complaints(record):
            console.print(escape(f"{record.name}: {line}"), soft_wrap=True)
    failed = [record for record in records if record.summary.status == "failed"]
    for record in failed:
        why = escape(record.summary.error or "")
        console.print(f"[red]{escape(record.name)} had to stop.[/] {why}", soft_wrap=True)
    console.print(f"Report: {write(records, folder / REPORT, title)}", soft_wrap=True)
    return 1 if failed else 0


# Options


def _run_parser() -> Parser:
    parser = Parser(description="Train one federation in simulation.", epilog=EXAMPLES, usage=USAGE.format("run"))
    parser.add_argument(
        "--config", action="config", help="A YAML file with any of the options; later ones override it."
    )
    parser.add_class_arguments(Run, None)
    group = _add_execution(parser, "runs/<name and identity of the run>")
    _add_data_dir(group)
    group.add_argument("--again", action="store_true", help="Repeat a run that is done already.")
    return parser


def _partition_parser() -> Parser:
    parser = Parser(description="Show which client would hold which examples.", usage=USAGE.format("partition"))
    parser.add_argument("--config", action="config", help="A YAML file, as for `phalanx run`.")
    parser.add_class_arguments(Run, None)
    parser.add_argument("--picture", type=Path | None, help="Where to save a picture (.png, .svg or .pdf).")
    _add_data_dir(parser)
    for name in ("folder", "device", "threads", "ray", "again"):  # what a file by `phalanx run --print_config` holds
        parser.add_argument(f"--{name}", type=Any, help=SUPPRESS)
    return parser


def _demo_parser() -> Parser:
    parser = Parser(description="See an attack fail: six runs on handwritten digits, side by side.")
    parser.add_argument("--seed", type=int, default=0, help="Where all randomness comes from.")
    _add_execution(parser, "runs/demo")
    parser.set_defaults({"folder": "runs/demo"})
    return parser


def _report_parser() -> Parser:
    parser = Parser(description="Make one page of one or more runs that are done, or were stopped.")
    parser.add_argument("runs", nargs="+", type=Path, help="Folders of runs.")
    parser.add_argument(
        "--out", type=Path | None, help="Where to put the page, a file or a folder; the first run's if not given."
    )
    parser.add_argument("--title", type=str, default="Federated runs", help="Title of the page.")
    return parser


def _reproduce_parser() -> Parser:
    parser = Parser(description="Compute tables and figures of papers again.", usage=command.USAGE)
    command.add_options(parser)
    _add_data_dir(parser)
    return parser


def _weights_parser() -> Parser:
    parser = Parser(description=weights.DESCRIPTION, usage=weights.USAGE)
    weights.add_options(parser)
    return parser


def _doctor_parser() -> Parser:
    parser = Parser(description="Look whether what a run or a federation needs is there, and say the remedy if not.")
    parser.add_argument("--folder", type=Path | None, help="Of a coordinator or a client: certificates, keys, roster.")
    parser.add_argument("--ports", nargs="+", type=int, default=[doctor.PORT], help="That should be free here.")
    _add_data_dir(parser)
    return parser


def _flower_parser() -> Parser:
    return Parser(description="Real clients over Flower: keys, the roster of who may take part, a local federation.")


def _add_flower_actions(parser: Parser) -> None:
    actions = parser.add_subcommands(dest="action", required=True)
    up = Parser(description="Start a federation on this machine, each client a process, and run the demonstration.")
    up.add_argument("--clients", type=int, default=4, help="How many.")
    help_ = "Of the demonstration: rounds, or arrivals of an asynchronous algorithm; 5 if not given."
    up.add_argument("--steps", type=int | None, help=help_)
    help_ = "FedAsync without an attacker, instead of Byzantine CFL with one in four."
    up.add_argument("--asynchronous", action="store_true", help=help_)
    up.add_argument("--app", type=Path | None, help="A Flower app of your own, in place of the demonstration.")
    up.add_argument("--folder", type=Path, default=Path("runs/flower"), help="Where keys, logs and results go.")
    up.add_argument("--again", action="store_true", help="Begin anew, although a run was stopped in the folder.")
    watch = Parser(description="Watch a run that goes on: rounds, who is there, the last verdicts.")
    watch.add_argument("folder", type=Path, help="The run's: what the coordinator calls `folder`.")
    key = Parser(description="Make a client's private key, and show the public one, which the coordinator enters.")
    key.add_argument("file", type=Path, help="Where the private key goes.")
    enrol = Parser(description="Enter a client in the roster.")
    enrol.add_argument("name", type=str, help="For people.")
    enrol.add_argument("key", type=str, help="Its public key, as `phalanx flower key` has shown it.")
    change = {
        "revoke": "Take a client out. A server that runs notices within seconds.",
        "readmit": "Wipe out a client's strikes. A server that runs notices within seconds.",
        "rotate": "Give a client a new key.",
    }
    certificates = Parser(description="Make the certificates of a coordinator, for TLS.")
    certificates.add_argument("hosts", nargs="+", type=str, help="Names and addresses under which clients reach it.")
    certificates.add_argument("--folder", type=Path, default=Path("certificates"), help="Where they go.")
    certificates.add_argument("--days", type=int, default=365, help="For how long they are valid.")
    made = {"up": up, "watch": watch, "key": key, "certificates": certificates, "enrol": enrol}
    for name, description in change.items():
        made[name] = sub = Parser(description=description)
        sub.add_argument("client", type=int, help="Its id.")
        if name == "rotate":
            sub.add_argument("key", type=str, help="The new public key.")
        if name == "readmit":
            sub.add_argument("--revoked", action="store_true", help="Also if it was revoked, which is taken back.")
    made["roster"] = Parser(description="Show who may take part.")
    for name, sub in made.items():
        if name not in ("up", "watch", "key", "certificates"):
            sub.add_argument("--roster", type=Path, default=Path("roster.yaml"), help="The file of the roster.")
        actions.add_subcommand(name, sub, help=sub.description)


def _add_execution(parser: Parser, folder: str) -> Any:
    group = parser.add_argument_group("How it is carried out (no part of the run's identity)")
    group.add_argument("--folder", type=Path | None, help=f"Where results go; {folder} if not given.")
    group.add_argument("--device", type=str, default="cpu", help="Where it computes: cpu, cuda, cuda:1.")
    help_ = "CPU threads. More are faster for large models, and can change the last bits of results."
    group.add_argument("--threads", type=int, default=1, help=help_)
    help_ = "Train the clients of a round on a Ray cluster: auto for this machine's, local for one of its own, or "
    help_ += "HOST:PORT. The bits are the same."
    group.add_argument("--ray", type=str | None, help=help_)
    return group


def _add_data_dir(parser: Any) -> None:
    parser.add_argument(
        "--data_dir",
        type=Path | None,
        help=f"Where data sets lie, in their publishers' formats; the environment variable {DATA_DIR} if not given, "
        "and downloaded if neither is.",
    )


def _data_dir(options: Namespace) -> Path | None:
    given = options.get("data_dir") or os.environ.get(DATA_DIR)
    return Path(given) if given else None


def _plan(options: Namespace) -> Run:
    fields = Run.__dataclass_fields__
    return Run(**{name: value for name, value in vars(options).items() if name in fields})


def _warn(message: Warning | str, category: type[Warning], *_: Any) -> None:
    print(f"Warning: {message}", file=sys.stderr)


USAGE = """phalanx {} [--config FILE] [--OPTION VALUE ...]

Options of a class follow its name: --attack Gaussian --attack.std 2.
--attack.help Gaussian lists them."""
EXAMPLES = """Examples:
  phalanx run --algorithm ByzantineCFL --attack Gaussian --byzantine 0.3
  phalanx run --algorithm.aggregate TrimmedMean --algorithm.aggregate.beta 0.3
  phalanx run --algorithm FedAsync --latency Lognormal --until.steps 600 --evaluation.every 20
  phalanx run --config examples/mnist.yaml --seed 1
  phalanx run --algorithm my_package.MyAlgorithm --attack my_package.MyAttack
"""
