"""The command line: `phalanx run`, `phalanx demo`, `phalanx partition`, `phalanx report`."""

import os
import sys
import warnings
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NoReturn

import torch
from jsonargparse import ArgumentParser, Namespace
from rich.console import Console
from rich.table import Table

import phalanx
from phalanx import advice, demo, terminal
from phalanx.core import Infeasible, Stalled
from phalanx.data import holdings
from phalanx.help import Help
from phalanx.history import Record
from phalanx.memory import keep_freed_memory
from phalanx.report import write
from phalanx.rng import numpy_generator
from phalanx.runs import Run, simulate

DATA_DIR = "PHALANX_DATA"  # environment variable: the default of --data_dir
DEBUG = "PHALANX_DEBUG"  # environment variable: show where an error comes from


class Parser(ArgumentParser):
    """Ends with a sentence instead of a page."""

    def __init__(self, **options: Any) -> None:
        super().__init__(formatter_class=Help, allow_abbrev=False, **options)

    def error(self, message: str, ex: Exception | None = None) -> NoReturn:
        """Says what was wrong and what would have been right, and exits with 2."""
        if not self.exit_on_error:  # a parser within the parser, of the options of one class
            super().error(message, ex)
        name = self.prog.replace(" [options]", "")
        options = [o for action in self._actions for o in action.option_strings if o.startswith("--")]
        print(f"{name}: {advice.advice(str(message), Run, options)}\nSee: {name} --help", file=sys.stderr)
        sys.exit(2)


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs a command; returns the exit status: 0, 1 for a run that failed, 2 for one that could not begin."""
    with warnings.catch_warnings():
        warnings.showwarning = _warn  # type: ignore[assignment]
        sys.path.insert(0, os.getcwd())  # a user's own classes are found beside the user, as by `python -m`
        return _main(arguments)


def _main(arguments: Sequence[str] | None) -> int:
    parsers = {
        "run": _run_parser(),
        "demo": _demo_parser(),
        "partition": _partition_parser(),
        "report": _report_parser(),
    }
    parser = Parser(
        prog="phalanx", description=f"{phalanx.__doc__} Version {phalanx.__version__}.", version=phalanx.__version__
    )
    commands = parser.add_subcommands(dest="command", required=True)
    for name, sub in parsers.items():
        commands.add_subcommand(name, sub, help=sub.description)
    chosen = parser.parse_args(arguments)
    command = {"run": run_command, "demo": demo_command, "partition": partition_command, "report": report_command}
    try:
        values = parser.instantiate(chosen)
        return command[chosen.command](values[chosen.command], Console(highlight=False))
    except (Infeasible, Stalled, ValueError, OSError) as error:
        if DEBUG in os.environ:
            raise
        lines = [str(error), *getattr(error, "__notes__", []), f"({DEBUG}=1 shows where this comes from.)"]
        print(f"phalanx {chosen.command}: " + "\n".join(lines), file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print("\nStopped. What was done so far is in the run's folder.", file=sys.stderr)
        return 130


# Commands


def run_command(options: Namespace, console: Console) -> int:
    """One run: bar, table, folder."""
    plan = _plan(options)
    folder = options.folder or Path("runs") / plan.slug
    if not options.again and (folder / "summary.json").is_file():
        record = Record.load(folder)
        if record.summary["identity"] != plan.identity:
            raise Infeasible(
                f"{folder} holds another run ({record.name}). Choose another --folder, or --again to replace it."
            )
        console.print(f"This run is done already, its results are in {folder}. Give --again to repeat it.")
    else:
        (record,) = _carry_out({plan.title: plan}, {plan.title: folder}, options, console)
    return _show([record], folder, plan.title, console)


def demo_command(options: Namespace, console: Console) -> int:
    """Six runs: bars, tables, one report."""
    plans = demo.runs(options.seed)
    folders = {name: options.folder / name.lower().replace(", ", "-").replace(" ", "-") for name in plans}
    records = _carry_out(plans, folders, options, console)
    return _show(records, options.folder, "One federation, three algorithms, without and under attack", console)


def partition_command(options: Namespace, console: Console) -> int:
    """Who would hold what: a table, and a picture."""
    plan = _plan(options)
    train, _ = plan.data.load(_data_dir(options))
    parts = plan.partition.split(train.y, plan.clients, numpy_generator(plan.seed, "partition"))
    counts = holdings(train.y, parts, train.classes)
    table = Table(
        title=f"{type(plan.data).__name__} dealt to {plan.clients} clients by {plan.partition}", title_justify="left"
    )
    table.add_column("client", justify="right")
    table.add_column("examples", justify="right")
    for c in range(train.classes):
        table.add_column(str(c), justify="right")
    for i, row in enumerate(counts.tolist()):
        table.add_row(str(i), str(sum(row)), *(str(n) if n else "·" for n in row))
    console.print(table)
    if options.picture is not None:
        from phalanx.data import plot_holdings  # noqa: PLC0415  (matplotlib is slow to import)

        plot_holdings(counts, plan.attackers()).savefig(options.picture, dpi=150)
        console.print(f"Picture: {options.picture}")
    return 0


def report_command(options: Namespace, console: Console) -> int:
    """A page of runs that are done."""
    records = [Record.load(folder) for folder in options.runs]
    target = options.out or options.runs[0] / "report.html"
    console.print(f"Report: {write(records, target, options.title)}")
    return 0


def _carry_out(
    plans: Mapping[str, Run], folders: Mapping[str, Path], options: Namespace, console: Console
) -> list[Record]:
    keep_freed_memory()
    torch.set_num_threads(options.threads or torch.get_num_threads())
    if options.device.startswith("cuda") and not torch.cuda.is_available():
        raise Infeasible(
            f"--device {options.device}: torch {torch.__version__} finds no CUDA device here. Use --device cpu."
        )
    records = []
    with terminal.progress_bar(console) as progress:
        for name, plan in plans.items():
            observer = terminal.follow(progress, plan, name)
            records.append(
                simulate(
                    plan,
                    name=name,
                    folder=folders[name],
                    data_dir=_data_dir(options),
                    device=options.device,
                    observers=[observer],
                )
            )
    return records


def _show(records: Sequence[Record], folder: Path, title: str, console: Console) -> int:
    console.print(terminal.results(records))
    if removed := terminal.removals(records):
        console.print(removed)
    failed = [record for record in records if record.summary["status"] == "failed"]
    for record in records:
        for line in terminal.complaints(record):
            console.print(f"{record.name}: {line}")
    for record in failed:
        console.print(f"[red]{record.name} had to stop.[/] {record.summary['error']}")
    console.print(f"Report: {write(records, folder / 'report.html', title)}")
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
    return parser


def _demo_parser() -> Parser:
    parser = Parser(description="See an attack fail: six runs on handwritten digits, side by side.")
    parser.add_argument("--seed", type=int, default=0, help="Where all randomness comes from.")
    _add_execution(parser, "runs/demo")
    parser.set_defaults({"folder": "runs/demo", "threads": 1})
    return parser


def _report_parser() -> Parser:
    parser = Parser(description="Make one page of one or more runs that are done.")
    parser.add_argument("runs", nargs="+", type=Path, help="Folders of runs.")
    parser.add_argument(
        "--out", type=Path | None, help="Where to put the page; report.html in the first folder if not given."
    )
    parser.add_argument("--title", type=str, default="Federated runs", help="Title of the page.")
    return parser


def _add_execution(parser: Parser, folder: str) -> Any:
    group = parser.add_argument_group("How it is carried out (no part of the run's identity)")
    group.add_argument("--folder", type=Path | None, help=f"Where results go; {folder} if not given.")
    group.add_argument("--device", type=str, default="cpu", help="Where it computes: cpu, cuda, cuda:1.")
    help_ = "CPU threads; torch decides if not given. 1 is best for small models."
    group.add_argument("--threads", type=int | None, help=help_)
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
