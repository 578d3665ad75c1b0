"""The options of the commands.  Nothing slow is imported to read them, but for the classes that a run can choose."""

import os
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from phalanx.cli.deferred import Deferred
from phalanx.cli.parser import Parser, path
from phalanx.installation import DATA_DIR

PORT = 8000  # of the SuperLink, in `docs/deployment.md`
ALPHA_STAR = 0.5  # default of `phalanx weights --alpha_star`
COST = 0.5  # default of `phalanx weights --cost`
DELTA = 0.05  # default of `phalanx weights --delta`


@dataclass(frozen=True)
class Execution:
    """How the run is carried out; apart from the engine, its identity does not depend on it.

    Args:
        folder: where results go; null: runs/<name and identity of the run>.
        device: where it computes: cpu, cuda, cuda:1.
        threads: CPU threads. More are faster for large models, and can change the last bits of results.
        jobs: processes that train the clients; the bits are the same. Null: one for each processor, started
            when training has taken 5 seconds.
        engine: what computes the training, written to training.engine, and so a part of the run: loop, compiled, or
            auto. auto is compiled if the network has it and the examples of the whole run, times the parameters,
            exceed 1e11; otherwise the loop. A training.engine that is given stays.
        ray: train the clients of a round on a Ray cluster: auto for this machine's, local for one of its own, or
            HOST:PORT. The bits are the same.
        data_dir: where data sets lie, in their publishers' formats; null: the environment variable PHALANX_DATA, or a
            download if that is not set.
        again: repeat a run that is done already.
        dry_run: print what the run promises, and end before it trains.
        keep_best: keep the models of the best evaluation, besides those of the end.
        best_by: which evaluation is the best: the one with the highest accuracy, or the one with the lowest loss.
        model_gigabytes: room for models. If the different models of the clients need more, only the global one is kept.
        keep_updates: keep each step's updates, for phalanx replay: 4 bytes times parameters times clients in each step.
    """

    folder: Path | None = None
    device: str = "cpu"
    threads: int = 1
    jobs: int | None = None
    engine: Literal["loop", "compiled", "auto"] = "auto"
    ray: str | None = None
    data_dir: Path | None = None
    again: bool = False
    dry_run: bool = False
    keep_best: bool = False
    best_by: Literal["accuracy", "loss"] = "accuracy"
    model_gigabytes: float = 1.0
    keep_updates: bool = False


RUN = "Train one federation in simulation."
PARTITION = "Show which client would hold which examples."


def run() -> Parser:
    """Return the parser of `phalanx run`."""
    return Deferred("run", run_form)


def partition() -> Parser:
    """Return the parser of `phalanx partition`."""
    return Deferred("partition", partition_form)


def run_form() -> Parser:
    """Return the parser of `phalanx run`, made from the classes that a run can choose."""
    from phalanx.cli.form import Form  # noqa: PLC0415  (the classes that a run can choose are slow to import)
    from phalanx.runs.plan import Run  # noqa: PLC0415

    return Form("phalanx run", RUN, Run, Execution, epilog=EXAMPLES, usage=USAGE.format("run"))


def partition_form() -> Parser:
    """Return the parser of `phalanx partition`, made in the same way."""
    from phalanx.cli.form import Form  # noqa: PLC0415  (the classes that a run can choose are slow to import)
    from phalanx.runs.plan import Run  # noqa: PLC0415

    others = (
        "folder",
        "device",
        "threads",
        "jobs",
        "engine",
        "ray",
        "again",
        "dry_run",
        "keep_best",
        "best_by",
        "model_gigabytes",
        "keep_updates",
    )  # a file by `phalanx run --print_config` holds them
    parser = Form("phalanx partition", PARTITION, Run, Execution, hidden=others, usage=USAGE.format("partition"))
    parser.add_argument("--picture", type=path, help="Where to save a picture (.png, .svg or .pdf).")
    return parser


USAGE = """phalanx {} [--config FILE] [--OPTION VALUE ...]

Options of a class follow its name: --attack Gaussian --attack.std 2.
--attack.help lists what can be chosen, --attack.help Gaussian its options."""
EXAMPLES = """Examples:
  phalanx run --algorithm ByzantineCFL --attack Gaussian --byzantine 0.3
  phalanx run --algorithm.aggregate TrimmedMean --algorithm.aggregate.beta 0.3
  phalanx run --algorithm FedAsync --latency Lognormal --until.steps 600 --evaluation.every 20
  phalanx run --config examples/mnist.yaml --seed 1
  phalanx run --algorithm my_package.MyAlgorithm --attack my_package.MyAttack
"""
DEMO = "See an attack fail: six runs on handwritten digits, side by side."


def demo() -> Parser:
    """Return the parser of `phalanx demo`."""
    from phalanx.cli.help import documentation, sentence  # noqa: PLC0415  (YAML need not be imported for all)

    parser = Parser("phalanx demo", DEMO)
    parser.add_argument("--seed", type=int, default=0, help="Where all randomness comes from. (default: %(default)s)")
    title, texts = documentation(Execution)
    group = parser.add_argument_group(title.rstrip("."))
    folder = Path("runs/demo")
    parser.add_to_group(group, "--folder", type=path, default=folder, help="Where results go. (default: %(default)s)")
    for name, kind in (("device", str), ("threads", int)):
        help_ = f"{sentence(texts[name])} (default: %(default)s)"
        parser.add_to_group(group, f"--{name}", type=kind, default=getattr(Execution, name), help=help_)
    parser.add_to_group(group, "--ray", help=sentence(texts["ray"]))
    return parser


VERIFY = "Show what was changed in the folder of a run since the run ended."
VERIFY_STATUS = """Exit status: 0 if all is as the run left it, 1 if something was changed or is missing, 2 if that
cannot be known. A seal shows accidents and careless changes; it is no signature."""


def verify() -> Parser:
    """Return the parser of `phalanx verify`."""
    missing = "Name the folder of a run, such as runs/NAME."
    parser = Parser("phalanx verify", VERIFY, missing=missing, epilog=VERIFY_STATUS)
    parser.add_argument("folder", type=path, help="The folder of a run, simulated or with real clients.")
    help_ = "What real clients keep of the audit trail, such as tasks.jsonl: one or more files."
    parser.add_argument("--witness", type=path, action="extend", nargs="+", default=[], metavar="FILE", help=help_)
    help_ = "Least number of clients that must have co-signed each line of the audit trail."
    parser.add_argument("--quorum", type=int, default=1, metavar="N", help=help_)
    help_ = "The roster as you have it from elsewhere: names and keys of the audit trail are compared with it."
    parser.add_argument("--roster", type=path, metavar="FILE", help=help_)
    help_ = "The public key of the coordinator; the one that each witness names if not given."
    parser.add_argument("--coordinator", default="", metavar="KEY", help=help_)
    return parser


REPLAY = "Show what another rule, or the absence of a client, would have made of the updates of a run, step by step."
REPLAY_STATUS = """Exit status: 0 if the run's own algorithm comes to the same bytes in each step, 1 if not, 2 if the
run cannot be replayed. Clients would have trained from other models after the first difference: each step's answer is
exact, and together they are no run."""


def replay() -> Parser:
    """Return the parser of `phalanx replay`."""
    from phalanx.cli.form import Form  # noqa: PLC0415  (the classes that a run can choose are slow to import)
    from phalanx.cli.replaying import Replaying  # noqa: PLC0415

    missing = "Name the folder of a run whose updates were kept, such as runs/NAME."
    usage = "phalanx replay FOLDER [--algorithm NAME] [--without CLIENT ...] [--OPTION VALUE ...]"
    parser = Form("phalanx replay", REPLAY, Replaying, missing=missing, usage=usage, epilog=REPLAY_STATUS)
    parser.add_argument("folder", type=path, help="The folder of a run, simulated or with real clients.")
    help_ = "A client whose updates are left out, by number; several by giving it again."
    parser.add_argument("--without", type=int, action="append", default=[], metavar="CLIENT", help=help_)
    _add_trust_and_unsealed(parser)
    return parser


REPORT = "Make one page of one or more runs that are done, or were stopped."


def report() -> Parser:
    """Return the parser of `phalanx report`."""
    parser = Parser("phalanx report", REPORT, missing="Name the folder of at least one run, such as runs/NAME.")
    parser.add_argument("runs", nargs="+", type=path, help="Folders of runs.")
    help_ = "Where to put the page, a file or a folder; the first run's if not given."
    parser.add_argument("--out", type=path, help=help_)
    parser.add_argument("--title", default="Federated runs", help="Title of the page. (default: %(default)s)")
    _add_unsealed(parser)
    return parser


EVALUATE = "Evaluate the models of a run: on all test examples, by class, by client."


def evaluate() -> Parser:
    """Return the parser of `phalanx evaluate`."""
    from phalanx.cli.evaluating import Evaluating, EvaluationForm  # noqa: PLC0415  (slow to import)

    missing = "Name the folder of a run, such as runs/NAME."
    usage = "phalanx evaluate FOLDER [--OPTION VALUE ...]"
    parser = EvaluationForm("phalanx evaluate", EVALUATE, Evaluating, missing=missing, usage=usage)
    parser.add_argument("folder", type=path, help="The folder of a run, simulated or with real clients.")
    _add_trust_and_unsealed(parser)
    return parser


PREDICT = "Predict the rows of a table by a model of a run: classes with probabilities, or numbers in their own unit."


def predict() -> Parser:
    """Return the parser of `phalanx predict`."""
    missing = "Give the folder of a run, a table and a file: FOLDER --data FILE -o FILE."
    parser = Parser("phalanx predict", PREDICT, missing=missing)
    parser.add_argument("folder", type=path, help="The folder of a run that was trained on a table file.")
    help_ = "The table, CSV or parquet; columns are found by name, and that of the labels is not needed."
    parser.add_argument("--data", type=path, required=True, metavar="FILE", help=help_)
    help_ = "The CSV file to write: a line for each row, in the order of the table."
    parser.add_argument("--out", "-o", type=path, required=True, metavar="FILE", help=help_)
    _add_model(parser)
    _add_trust_and_unsealed(parser)
    return parser


def _add_model(parser: Parser) -> None:
    help_ = "Take the model that this client is served; the global model if not given."
    parser.add_argument("--client", type=int, help=help_)
    parser.flag("--best", "Take the model of the best evaluation, which phalanx run --keep_best keeps.")
    help_ = "If the record does not know the network: import path of a function that makes it."
    parser.add_argument("--module", metavar="PATH", help=help_)


EXPORT = "Write a model of a run to a file, for other programs."


def export() -> Parser:
    """Return the parser of `phalanx export`."""
    parser = Parser("phalanx export", EXPORT, missing="Give the folder of a run and a file: FOLDER --out FILE.")
    parser.add_argument("folder", type=path, help="The folder of a run, simulated or with real clients.")
    parser.add_argument("--out", "-o", type=path, required=True, metavar="FILE", help="The file to write.")
    help_ = "safetensors; torch, for torch.load; or onnx, with the network. (default: %(default)s)"
    parser.add_argument("--format", default="safetensors", help=help_)
    _add_model(parser)
    help_ = (
        "For onnx, of a run on a table: the network alone, from scaled inputs to scores. If not given, the file takes "
    )
    help_ += "raw columns, and gives classes and probabilities, or numbers in their own unit."
    parser.add_argument("--network", action="store_true", help=help_)
    parser.flag(
        "--fallen",
        "Export the model although a client reports that its accuracy has fallen, which is refused otherwise.",
    )
    help_ = "For onnx, if the record does not know it: the shape of one example, such as 3 32 32."
    parser.add_argument("--shape", type=int, nargs="+", metavar="SIZE", help=help_)
    _add_trust_and_unsealed(parser)
    return parser


REPRODUCE = "Compute tables and figures of papers again."
REPRODUCE_USAGE = """phalanx reproduce                        lists papers
       phalanx reproduce PAPER                  lists its tables and figures
       phalanx reproduce PAPER EXPERIMENT|all   carries out what is missing, and renders it"""


def reproduce() -> Parser:
    """Return the parser of `phalanx reproduce`."""
    parser = Parser("phalanx reproduce", REPRODUCE, usage=REPRODUCE_USAGE)
    parser.add_argument("paper", nargs="?", help="Its name; all are listed if not given.")
    parser.add_argument("experiment", nargs="?", help="A table or figure, or all; listed if not given.")
    help_ = "quick, or paper: the paper's own size. (default: %(default)s)"
    parser.add_argument("--scale", default="quick", help=help_)
    help_ = "How many seeds: 3 means 0, 1 and 2. 1 if not given; with --no_training those of the existing page."
    parser.add_argument("--seeds", type=int, help=help_)
    help_ = "Processes at a time, each of one thread. 1 if not given; with --ray one for each CPU that is free."
    parser.add_argument("--jobs", type=int, help=help_)
    help_ = "Carry out runs on a Ray cluster: auto for this machine's, local for one of its own, or HOST:PORT."
    parser.add_argument("--ray", help=help_)
    help_ = "Where records, tables and figures go. (default: %(default)s)"
    parser.add_argument("--folder", type=path, default=Path("results"), help=help_)
    parser.add_argument("--device", default="cpu", help="Where runs compute: cpu, cuda, cuda:1. (default: %(default)s)")
    parser.flag("--no_training", "Render the results that exist, and list what is missing.")
    parser.flag("--again", "Repeat runs that are done already.")
    parser.flag(
        "--mixed",
        "Show records of several numerics versions in one table, which the page then says; refused if not given.",
    )
    help_ = "Compute so many stored records again, drawn at random, and say by how much they differ. Changes no file."
    parser.add_argument("--verify", type=int, help=help_)
    help_ = "With --verify: draw runs only that took at most so many seconds; any run if not given."
    parser.add_argument("--within", type=float, help=help_)
    parser.add_argument(
        "--draw", type=int, default=0, help="With --verify: which random choice. (default: %(default)s)"
    )
    help_ = (
        "Compute stored records again, the cheapest first, and say for each item how many come out to the bit, within "
        "tolerance, or differ; 1 is the exit status if any differs. The same command goes on where it stopped."
    )
    parser.add_argument("--check", action="store_true", help=help_)
    parser.flag("--pack", "Bring the records of PAPER into one compressed file, records.jsonl.gz, and do nothing else.")
    help_ = "With --check: stop before records that would take longer than this in all; no limit if not given."
    parser.add_argument("--hours", type=float, help=help_)
    help_ = "Carry out only cells with names like this, as in 'MNIST / *'; all if not given. Tables show what there is."
    parser.add_argument("--only", help=help_)
    help_ = (
        "Train by this engine where the network has it: faster, with other bits. Its records and pages are kept apart "
        "from those of the default, the loop."
    )
    parser.add_argument("--engine", choices=["compiled"], help=help_)
    help_ = "Where papers are looked for: the import path of a package; papers if not given."
    parser.add_argument("--package", help=help_)
    _add_data_dir(parser)
    return parser


STUDY = "Compare runs along axes, for several seeds: carry out what is missing, and show tables, tests and curves."


def study() -> Parser:
    """Return the parser of `phalanx study`."""
    parser = Parser("phalanx study", STUDY, missing="Name the file of a study, such as examples/study.yaml.")
    help_ = "A YAML file of base, grid, seeds and more, or a study in Python, as my_file.py:STUDY; see docs/studies.md."
    parser.add_argument("file", type=path, help=help_)
    help_ = "Runs at a time, each in a process of one thread. 1 if not given; with --ray one for each CPU that is free."
    parser.add_argument("--jobs", type=int, help=help_)
    help_ = "Carry out runs on a Ray cluster: auto for this machine's, local for one of its own, or HOST:PORT."
    parser.add_argument("--ray", help=help_)
    parser.add_argument("--folder", type=path, help="Where records and results go; studies/NAME if not given.")
    parser.add_argument("--device", default="cpu", help="Where runs compute: cpu, cuda, cuda:1. (default: %(default)s)")
    parser.flag("--estimate", "Only estimate the cost; steps are timed for that.")
    parser.flag("--no_training", "Show the results that exist, and count what is missing.")
    parser.flag("--again", "Repeat runs that are done already.")
    _add_data_dir(parser)
    return parser


COMPARE = "Compare runs that exist: tables, tests and curves by the settings in which they differ."


def compare() -> Parser:
    """Return the parser of `phalanx compare`."""
    parser = Parser("phalanx compare", COMPARE, missing="Name the folders of runs, such as runs/*.")
    parser.add_argument("runs", nargs="+", type=path, help="Folders of runs, or of studies.")
    help_ = "Where the results go. (default: %(default)s)"
    parser.add_argument("--folder", type=path, default=Path("comparison"), help=help_)
    parser.add_argument("--name", default="Comparison", help="Title of the page. (default: %(default)s)")
    help_ = "Accuracy for the time to accuracy, from 0 to 1; 95 %% of the best mean if not given."
    parser.add_argument("--target", type=float, help=help_)
    _add_trust_and_unsealed(parser)
    return parser


PAGE = Path("docs/leaderboard.md")
LEADERBOARD = "Rank all defences, or one of your own, by their accuracy under the worst attack that a search finds."


def leaderboard() -> Parser:
    """Return the parser of `phalanx leaderboard`."""
    parser = Parser("phalanx leaderboard", LEADERBOARD)
    parser.add_argument("--tier", default="digits", help="digits or fashion-mnist. (default: %(default)s)")
    help_ = "Runs at a time, each in a process of one thread. (default: %(default)s)"
    parser.add_argument("--jobs", type=int, default=1, help=help_)
    help_ = "Rank a rule or an algorithm of your own, such as own_rule.py:ShortenedMean(factor=1.5); f, n and share in "
    help_ += "place of a value are the number of attackers, that of clients, and their quotient."
    parser.add_argument("--defence", metavar="CLASS", help=help_)
    help_ = "Carry out only defences with names like these, such as 'NNM*', in this order; all if not given."
    parser.add_argument("--only", nargs="+", default=(), metavar="PATTERN", help=help_)
    help_ = "Carry out one run of the page alone, and write its configuration: the digits in its cell."
    parser.add_argument("--alone", metavar="DIGITS", help=help_)
    help_ = "Where the records are. (default: %(default)s)"
    parser.add_argument("--folder", type=path, default=Path("results/leaderboard"), help=help_)
    help_ = "The page; with --defence leaderboard/TIER.md if not given. The cells as CSV are next to it, "
    help_ += "for the default page next to the records. (default: %(default)s)"
    parser.add_argument("--page", type=path, default=PAGE, help=help_)
    parser.flag("--retry", "Carry out runs again that failed.")
    parser.flag("--estimate", "Only estimate the cost; runs are timed for that.")
    parser.flag("--no_training", "Render the results that exist, and mark what is missing.")
    _add_data_dir(parser)
    return parser


WEIGHTS = "Truncate reported sizes, so that few clients cannot outweigh the others."
WEIGHTS_USAGE = """phalanx weights SIZES [--OPTION VALUE ...]

SIZES is a CSV or JSON file of clients and the sizes that they report, or - for standard input.
Without --alpha it shows what there is to choose from, with --frontier what each choice costs."""


def weights() -> Parser:
    """Return the parser of `phalanx weights`."""
    parser = Parser("phalanx weights", WEIGHTS, usage=WEIGHTS_USAGE)
    parser.add_argument("sizes", nargs="?", type=path, help="CSV or JSON file of reported sizes, or -.")
    parser.add_argument("--alpha", type=float, help="Largest share of the clients that may be Byzantine.")
    help_ = "Largest share of the weight that they may get. (default: %(default)s)"
    parser.add_argument("--alpha_star", "--alpha-star", metavar="SHARE", type=float, default=ALPHA_STAR, help=help_)
    parser.add_argument("--client_column", metavar="NAME", help="Name of the column, or key, of the clients.")
    parser.add_argument("--size_column", metavar="NAME", help="Name of the column, or key, of the sizes.")
    parser.add_argument("--weights", metavar="FILE", type=path, help="Where to save the weights (.csv or .json).")
    help_ = "Where to save the trade-off (.png, .svg or .pdf)."
    parser.add_argument("--picture", metavar="FILE", type=path, help=help_)
    group = parser.add_argument_group("For a consortium of up to 300 sites, instead of one alpha_star")
    help_ = (
        "Try all caps on the weight of one site, or of --alpha of them, and show the clean error and the worst site. "
        "Both are relative errors of a trimmed mean of modelled updates: a site sends what its class counts say, with "
        "noise that falls with its size. A liar sends what does most, and reports the size that does most. A cap is "
        "useful if a step under the worst lie surely lowers a smooth loss by at least half of what it does without: "
        "1 - worst^2 is at least (1 - clean^2) / 2."
    )
    parser.add_to_group(group, "--frontier", action="store_true", help=help_)
    help_ = "Names of the columns, or keys, of the examples of each class; without them, sites are taken to be alike."
    parser.add_to_group(group, "--classes", nargs="+", metavar="NAME", help=help_)
    help_ = f"Largest clean error of a useful cap; {COST} if not given, with three quarters of the descent left."
    parser.add_to_group(group, "--cost", type=float, metavar="ERROR", help=help_)
    group = parser.add_argument_group("If the file is only a random sample of the clients")
    help_ = "Check whether truncation at BOUND keeps the promise for all clients."
    parser.add_to_group(group, "--certify", type=int, metavar="BOUND", help=help_)
    help_ = f"How often the answer may be wrong; {DELTA} if not given."
    parser.add_to_group(group, "--delta", type=float, metavar="SHARE", help=help_)
    help_ = "Number of all clients; very many if not given."
    parser.add_to_group(group, "--population", type=int, metavar="CLIENTS", help=help_)
    return parser


CHOOSE = "Choose a composition: by what it promises, and by what was measured in a federation of that size."
CHOOSE_EXAMPLES = """Examples:
  phalanx choose --clients 8 --byzantine 1
  phalanx choose --sizes sites.csv --groups unknown
  phalanx choose --clients 100 --byzantine 10 --asynchronous --json

It ends with status 1 if nothing promises to tolerate as many attackers."""


def choose() -> Parser:
    """Return the parser of `phalanx choose`."""
    parser = Parser("phalanx choose", CHOOSE, epilog=CHOOSE_EXAMPLES)
    parser.add_argument("--clients", type=int, help="Number of clients; with --sizes that of the file.")
    help_ = "How many of them may lie, and work together. (default: %(default)s)"
    parser.add_argument("--byzantine", type=int, default=1, help=help_)
    help_ = "Share of the clients that are drawn for each round. (default: %(default)s)"
    parser.add_argument("--participation", type=float, default=1.0, metavar="SHARE", help=help_)
    help_ = "CSV or JSON file of the sizes that clients report, as for phalanx weights; without it, promises hold "
    help_ += "whatever they report."
    parser.add_argument("--sizes", type=path, metavar="FILE", help=help_)
    help_ = "There may be groups of clients that learn different things, and nobody knows them. (default: no groups)"
    parser.add_argument("--groups", choices=["unknown"], help=help_)
    parser.flag("--alike", "Clients hold like data; if not given, their shares of the classes differ.")
    parser.flag("--asynchronous", "Serve clients as they come, without rounds.")
    parser.flag("--json", "Print the choice as JSON.")
    return parser


CHECK = "Check your own rule, attack, algorithm, weighting, partition, model or task against its contract, "
CHECK += "or the rules of a library against 18 cases."
CHECK_EXAMPLES = """Examples:
  phalanx check my_file.py:MyRule
  phalanx check "my_file.py:MyRule(factor=1.5)" --without translation
  phalanx check "TrimmedMean(beta=share)"
  phalanx check --library byzfl

It ends with status 1 if a property does not hold, or a rule does not meet a criterion."""


def check() -> Parser:
    """Return the parser of `phalanx check`."""
    parser = Parser("phalanx check", CHECK, epilog=CHECK_EXAMPLES)
    help_ = "The class, by its file or its import path, with options if it needs some. f, n and share in place of a "
    help_ += "value are the number of attackers, that of clients, and their quotient; fields of the names f, share and "
    help_ += "beta hold these if they are not given."
    parser.add_argument("subject", nargs="?", metavar="CLASS", help=help_)
    help_ = "The rules of a library that is installed here: byzfl, byzpy, flower, nvflare, torchjd or phalanx; or a "
    help_ += "file that runs the rules of another."
    parser.add_argument("--library", metavar="NAME", help=help_)
    help_ = "Properties that the docstring of a rule excepts: translation, scaling or order."
    parser.add_argument("--without", nargs="+", default=[], metavar="PROPERTY", help=help_)
    return parser


DOCTOR = "Check that what a run or a federation needs is installed and set up, and show the remedy if not."


def doctor() -> Parser:
    """Return the parser of `phalanx doctor`."""
    parser = Parser("phalanx doctor", DOCTOR)
    parser.flag(
        "--compile",
        "Compile rules and training now, one or two minutes after an installation, so that no run waits for that.",
    )
    help_ = "Folder of a coordinator or a client, with certificates, keys and roster."
    parser.add_argument("--folder", type=path, help=help_)
    _add_schema(parser)
    help_ = "Tables or images of a site, which should fit the schema."
    parser.add_argument("--tables", nargs="+", default=[], metavar="FILE", help=help_)
    _add_notation(parser)
    help_ = f"Ports that should be free here. (default: {PORT})"
    parser.add_argument("--ports", nargs="+", type=int, default=[PORT], metavar="PORT", help=help_)
    _add_data_dir(parser)
    return parser


SCHEMA = "The schema of a federation's tables: draft one, sign it, and check the file of a site against it."
SCHEMA_INIT = "Draft a schema from the files of all sites, or of one; no rare text and no extreme value is in it."
SCHEMA_CHECK = "Say what does not fit a schema in files, with column, line and remedy."
SCHEMA_STATUS = """Exit status: 0 if all files fit, 1 if one does not, 2 for a mistake in the command.
Sentences in the terminal quote cells of the file; --json does not."""


def schema_init() -> Parser:
    """Return the parser of `phalanx schema init`."""
    missing = "Name a file, or several, and the column of the labels: FILE --target NAME. Or a folder of images."
    parser = Parser("phalanx schema init", SCHEMA_INIT, missing=missing)
    parser.add_argument("files", nargs="+", metavar="FILE", help="CSV, parquet or images, of one site; or a pattern.")
    parser.add_argument("--target", metavar="NAME", help="Column of the labels or targets; of a table always needed.")
    parser.add_argument("--image", metavar="NAME", help="Column of paths, if the files name images.")
    help_ = "Height and width in pixels to which images are stretched; their own if not given."
    parser.add_argument("--size", type=int, metavar="PIXELS", help=help_)
    parser.add_argument("--owner", metavar="NAME", help="Column of the owner of a row, such as hospital.")
    help_ = "Columns that are no inputs, such as patient_id."
    parser.add_argument("--drop", nargs="+", default=(), metavar="NAME", help=help_)
    help_ = "Columns of whole numbers that are codes of kinds: each code becomes an input of 0 and 1."
    parser.add_argument("--codes", nargs="+", default=(), metavar="NAME", help=help_)
    help_ = "Columns in which 0 stands for a missing value."
    parser.add_argument("--zeros", nargs="+", default=(), metavar="NAME", help=help_)
    parser.flag("--indicator", "Add an input of 0 and 1 for each column of which values are missing, which says where.")
    help_ = "Rows below which a site is refused, and sends no statistics; none if not given."
    parser.add_argument("--least_rows", type=int, metavar="ROWS", help=help_)
    help_ = "Classes that join labels: healthy=0 ill=1,2,3,4. Each label is a class if not given."
    parser.add_argument("--classes", nargs="+", default=(), metavar="NAME=LABELS", help=help_)
    help_ = "A word for a missing value, besides an empty cell and those that are usual; several by giving it again."
    parser.add_argument("--missing", action="append", default=[], metavar="WORD", help=help_)
    parser.add_argument("--separator", default=",", metavar="SIGN", help="Between columns. (default: %(default)s)")
    parser.add_argument("--decimal", default=".", metavar="SIGN", help="Before decimals. (default: %(default)s)")
    parser.add_argument("--thousands", metavar="SIGN", help="Between groups of digits; none if not given.")
    help_ = "The file to write. (default: %(default)s)"
    parser.add_argument("--out", "-o", type=path, default=Path("schema.json"), metavar="FILE", help=help_)
    _add_again(parser)
    return parser


def schema_check() -> Parser:
    """Return the parser of `phalanx schema check`."""
    missing = "Name a file, or several."
    parser = Parser("phalanx schema check", SCHEMA_CHECK, missing=missing, epilog=SCHEMA_STATUS)
    parser.add_argument("files", nargs="+", metavar="FILE", help="CSV, parquet, a folder of images; or a pattern.")
    _add_schema(parser, default=Path("schema.json"))
    _add_notation(parser)
    parser.flag("--json", "Print the result as JSON, which quotes no cell.")
    return parser


SCHEMA_STATISTICS = "Write statistics of a site's table, rounded means and counts, to agree on a scaling with others."
SCHEMA_SCALE = "Set a schema's scaling to the median of its sites' statistics. Impossible ones are left out and named."


def schema_statistics() -> Parser:
    """Return the parser of `phalanx schema statistics`."""
    parser = Parser("phalanx schema statistics", SCHEMA_STATISTICS, missing="Name a table and a file: FILE -o FILE.")
    parser.add_argument("table", metavar="FILE", help="CSV or parquet, of the site.")
    _add_schema(parser, default=Path("schema.json"))
    parser.add_argument("--out", "-o", type=path, required=True, metavar="FILE", help="The file to write, and to send.")
    _add_again(parser)
    _add_notation(parser)
    return parser


def schema_scale() -> Parser:
    """Return the parser of `phalanx schema scale`."""
    parser = Parser("phalanx schema scale", SCHEMA_SCALE, missing="Name the statistics of sites: FILE FILE FILE.")
    help_ = "Files that `phalanx schema statistics` has written, one of each site."
    parser.add_argument("statistics", nargs="+", type=path, metavar="FILE", help=help_)
    _add_schema(parser, default=Path("schema.json"))
    help_ = "The schema to write, which is not that of --schema. (default: %(default)s)"
    parser.add_argument("--out", "-o", type=path, default=Path("scaled.json"), metavar="FILE", help=help_)
    help_ = (
        "The median of sites, or pooled: of all rows together, which one lying site can move. (default: %(default)s)"
    )
    parser.add_argument("--rule", choices=("median", "pooled"), default="median", help=help_)
    help_ = "What is accepted by name: 'pooled scaling', without which --rule pooled is refused."
    parser.add_argument("--accept", action="append", default=[], choices=("pooled scaling",), help=help_)
    _add_again(parser)
    return parser


SCHEMA_SIGN = "Sign a schema as the coordinator, so that sites know it: schema.json.sig, next to it."
SCHEMA_VERIFY = "Say whether the coordinator has signed a schema as it is; exit status 1 if not."


def schema_sign() -> Parser:
    """Return the parser of `phalanx schema sign`."""
    parser = Parser("phalanx schema sign", SCHEMA_SIGN, missing="Name a schema: FILE.")
    parser.add_argument("schema", type=path, metavar="FILE", help="The schema.")
    help_ = "The coordinator's private key. (default: %(default)s)"
    parser.add_argument("--key", type=path, default=Path("coordinator.pem"), metavar="FILE", help=help_)
    return parser


def schema_verify() -> Parser:
    """Return the parser of `phalanx schema verify`."""
    missing = "Name a schema, and the coordinator's key: FILE --coordinator KEY."
    parser = Parser("phalanx schema verify", SCHEMA_VERIFY, missing=missing)
    parser.add_argument("schema", type=path, metavar="FILE", help="The schema, next to its signature.")
    help_ = "The coordinator's public key, ed25519:..., as you were given it."
    parser.add_argument("--coordinator", required=True, metavar="KEY", help=help_)
    return parser


def _add_again(parser: Parser) -> None:
    parser.flag("--again", "Overwrite an existing file.")


def _add_notation(parser: Parser) -> None:
    signs = {"separator": "between columns", "decimal": "before decimals", "thousands": "between groups of digits"}
    for name, what in signs.items():
        help_ = f"The sign {what}, if the files are not written as the schema says."
        parser.add_argument(f"--{name}", metavar="SIGN", help=help_)
    help_ = "A word for a missing value in these files, besides those of the schema; several by giving it again."
    parser.add_argument("--missing", action="append", default=[], metavar="WORD", help=help_)


def _add_schema(parser: Parser, default: Path | None = None) -> None:
    help_ = f"The schema of the tables of a federation.{' (default: %(default)s)' if default else ''}"
    parser.add_argument("--schema", type=path, default=default, metavar="FILE", help=help_)


def _add_trust_and_unsealed(parser: Parser) -> None:
    parser.flag(
        "--trust", "Import classes from elsewhere that a record names, which runs their code; imports are listed first."
    )
    _add_unsealed(parser)


def _add_unsealed(parser: Parser) -> None:
    parser.flag("--unsealed", "Read folders that were changed since their run ended, with a warning.")


def _add_data_dir(parser: Parser) -> None:
    help_ = f"Where data sets lie, in their publishers' formats; the environment variable {DATA_DIR} if not given, "
    parser.add_argument("--data_dir", type=path, help=help_ + "and downloaded if neither is.")


def data_dir(given: Path | None) -> Path | None:
    """Return the folder of data sets: the given one, or that of the environment variable; None if there is neither."""
    found = given or os.environ.get(DATA_DIR)
    return Path(found) if found else None
