"""Examples of every public name, run when the site is built: their output is computed, not written.

A name whose docstring has an example needs none here.  A class of a family has the example of its family (`FAMILIES`),
any other name one in `api_examples.txt`.
"""

import ast
import contextlib
import hashlib
import importlib
import io
import json
import os
import tempfile
import warnings
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
SOURCES = ROOT / "src" / "phalanx"
CACHE = ROOT / "build" / "examples.json"


@cache
def public() -> dict[str, list[str]]:
    """Return what each package names in its `__all__`, without an import."""
    found = {}
    for file in sorted(SOURCES.rglob("__init__.py")):
        for node in ast.parse(file.read_text()).body:
            if isinstance(node, ast.Assign) and getattr(node.targets[0], "id", "") == "__all__":
                found[".".join(file.parent.relative_to(SOURCES.parent).parts)] = list(ast.literal_eval(node.value))
    return found


def key(value: Any, name: str) -> str:
    """Return the path by which griffe knows a class or function; that of its package for a constant."""
    return f"{value.__module__}.{value.__qualname__}" if callable(value) and hasattr(value, "__qualname__") else name


HONEST = "[[1.0, 2.0, 3.0], [1.2, 1.8, 3.1], [0.8, 2.2, 2.9], [1.1, 1.9, 3.2]]"
NOISE = "clip=1.0, noise_multiplier=0.1"
ARGUMENTS = {  # of classes that need some, or show more with some
    "BenignClusters": "threshold=0.2",
    "ByzantineCFL": "threshold=0.2",
    "Catalyst": "f=2",
    "CentrallyPrivate": f"FedAvg(preprocess=Ignore()), {NOISE}",
    "Private": f"FedAvg(), {NOISE}",
    "Quorum": "FedAvg(aggregate=Median()), k=3",
    "ClassImbalance": "fewest=1, most=10",
    "DirichletMultinomialSizes": "mu=3.0, sigma=0.0, draws=4",
    "Truncate": "alpha=0.25, alpha_star=0.45",
    "GivenModule": "torch.nn.Linear(64, 10)",
    "LoRA": 'MLP(), layers=("1", "3"), rank=2',
    "PartlyTrained": 'MLP(), trained=("3.*",)',
    "TorchModule": '"torch.nn.Linear", {"in_features": 64, "out_features": 10}',
    "Together": "SignFlip(), ReportSize()",
    "Scheduled": "SignFlip(), start=5",
    "Sybils": "Gaussian()",
    "Divided": "SignFlip(), Gaussian()",
    "InGroup": "ALIE(z=0.0), target=2",
    "OnCredit": "SignFlip()",
    "PerLayer": "sizes=(4, 6)",
    "Stragglers": "share=0.4, factor=10.0",
    "Compose": "(Flip(share=1.0), Flip(share=1.0))",
    "Flip": "share=1.0",
}
RUNS = {  # fields of the run that shows an algorithm or an attack
    "AFLGuard": "server_examples=100",
    "FLTrust": "server_examples=100",
    "ServerAlone": "server_examples=100",
    "ZenoPlusPlus": "server_examples=100",
    "LowRankProducts": 'model=LoRA(MLP(), layers=("1", "3"), rank=2)',
}
TEXTS = {"CharLSTM", "CausalTransformer", "WordLSTM", "KimCNN"}  # models of symbols
COLOURED = {"ResNet18", "SattlerVGG", "SattlerCifarCNN", "XuLyuCifarCNN"}


def family(kind: type, name: str) -> str | None:
    """Return the example of a class of a family, without its imports; None if it has none."""
    from phalanx import algorithms, attacks, data, models, simulation, training, weighting
    from phalanx.algorithms.reputation import Allocation

    if getattr(kind, "__abstractmethods__", None) or kind in (
        algorithms.Algorithm,
        attacks.Attack,
        simulation.Availability,
    ):
        return None
    families = (
        algorithms.Algorithm, algorithms.Staleness, Allocation, attacks.Attack, data.Partition, data.Groups, models.Model,
        simulation.Latency, training.Schedule, training.Transform, weighting.Preprocess,
    )  # fmt: skip
    if not issubclass(kind, families) or name in {"Topics", "LatencyTrace"}:
        return None
    made = f"{name}({arguments(kind, name)})"
    for base, make in (
        (algorithms.Algorithm, _algorithm),
        (attacks.Attack, _attack),
        (data.Partition, _partition),
        (models.Model, _model),
    ):
        if issubclass(kind, base):
            return make(kind, name, made)
    templates = {
        algorithms.Staleness: "discount = {}\n[round(discount(age), 3) for age in (0, 1, 5, 20)]",
        Allocation: "{}.parts(10)",
        weighting.Preprocess: "sizes = {{0: 100, 1: 120, 2: 80, 3: 1_000_000}}  # the last one lies\n{}(sizes)",
        simulation.Latency: "times = {}\n[round(times.seconds(Workload(client, examples=100, download=4_000_000, upload=4_000_000, clients=4), seed=0), 2) for client in range(4)]",
        training.Schedule: "rate = {}\n[round(rate(version), 4) for version in (0, 10, 100)]",
        training.Transform: "image = torch.arange(9.0).reshape(1, 1, 3, 3)\n{}(image, torch.Generator().manual_seed(0))[0, 0]",
    }
    if issubclass(kind, data.Groups):
        images = "torch.arange(16.0).reshape(4, 1, 2, 2)"
        return (f"groups = {made}\ngroups.of(4)  # the group of each client\n"
                f"seen = groups.seen_by(1, Dataset({images}, torch.tensor([1, 3, 5, 7]), classes=10))\n"
                "seen.y, seen.x[0, 0]")  # fmt: skip
    for base, template in templates.items():
        if issubclass(kind, base):
            return template.format(made)
    return None


def arguments(kind: type, name: str) -> str:
    """Return the arguments of a class in its example: those it needs."""
    import dataclasses

    from phalanx.contracts.subject import made_for

    if name in ARGUMENTS:
        return ARGUMENTS[name]
    fields = dataclasses.fields(kind) if dataclasses.is_dataclass(kind) else ()
    if not (needed := [f.name for f in fields if f.init and f.default is f.default_factory is dataclasses.MISSING]):
        return ""
    value = made_for(kind, {}, 8, 1)
    return ", ".join(f"{field}={_written(getattr(value, field))}" for field in needed)


def _written(value: Any) -> str:
    """Return how a value is written with only the fields that are not at their default."""
    return (
        f"{type(value).__name__}()"
        if hasattr(value, "__dataclass_fields__") and value == type(value)()
        else repr(value)
    )


def _algorithm(kind: Any, name: str, made: str) -> str:
    fields = ["clients=7", *filter(None, [RUNS.get(name)])]
    if "model=" not in str(fields):
        fields.append("model=MLP(hidden=())")
    return (f"record = simulate(Run(algorithm={made}, {', '.join(fields)}, until=Until(steps=14)))\n"
            "record.summary.name, record.summary.steps, round(record.summary.final.accuracy, 2)\n"
            "record.summary.promise.text[0] if record.summary.promise else None")  # fmt: skip


def _attack(kind: Any, name: str, made: str) -> str:
    from phalanx.attacks import Attack
    from phalanx.attacks.attack import HOOKS

    def own(method: str) -> bool:
        base = HOOKS.get(method, Attack)
        return issubclass(kind, base) and getattr(kind, method) is not getattr(base, method)

    if own("train"):
        return (f"plan = Run(attack={made}, byzantine=3, clients=10, model=MLP(), until=Until(steps=2))\n"
                "[round(simulate(run).summary.final.accuracy, 3) for run in (plan, replace(plan, attack=None, byzantine=0))]")  # fmt: skip
    lines = [f"attack = {made}"]
    if own("poison"):
        lines += [
            "data = Digits().load()[0].of(torch.arange(100))",
            "bad = attack.poison(data, torch.Generator().manual_seed(0))",
            "int((bad.y != data.y).sum()), int((bad.x != data.x).flatten(1).any(1).sum())  # labels and images changed, of 100",
            "sorted({(int(a), int(b)) for a, b in zip(data.y, bad.y) if a != b})[:4]  # (label, label that it trains with)",
        ]
    if own("reported_size"):
        lines.append("attack.reported_size(100)  # for 100 examples")
    if own("joins_after"):
        lines.append("attack.joins_after()  # seconds after the begin of the run")
    if own("delay"):
        lines.append("attack.delay(2.0, torch.Generator().manual_seed(0))  # seconds, of a task of 2 seconds")
    if own("sends_now"):
        lines.append(
            "[attack.sends_now(Meanwhile(versions=1, others=n)) for n in (3, 0)]  # the server waits for 3, for none"
        )
    if own("answers"):
        lines += ["now, before = Answer(5, torch.tensor([1.0, 2.0])), Answer(4, torch.tensor([3.0, 4.0]))",
                  "attack.answers(now, [before])"]  # fmt: skip
    if own("respond") or own("forge"):
        lines += [
            f"honest = torch.tensor({HONEST})",
            "own = Update(9, 6, torch.zeros(3), torch.tensor([0.9, 2.1, 3.0]), previous=torch.full((3,), -0.1))",
            "known = Knowledge(honest, frozenset({9}), (0, 1, 2, 3), (own,), Krum(f=1))" if kind.__name__ == "FangKrum"
            else "known = Knowledge(honest, frozenset({9}), (0, 1, 2, 3), (own,), Median())",
            "sent = attack.forge(own, known, torch.Generator().manual_seed(0))",
            "[round(x, 2) for x in sent.tolist()]",
        ]  # fmt: skip
    return "\n".join(lines)


def _partition(kind: Any, name: str, made: str) -> str:
    owners = ", torch.arange(200) // 50" if name == "Natural" else ""
    return (f"labels = torch.arange(200) % 10  # 20 examples of each of 10 classes\n"
            f"parts = {made}.split(labels, 4, np.random.default_rng(0){owners})\n"
            "[len(part) for part in parts]\n"
            "holdings(labels, parts, 10)  # a row for each client, a column for each class")  # fmt: skip


def _model(kind: Any, name: str, made: str) -> str:
    shape = "(32,)" if name in TEXTS else "(3, 32, 32)" if name in COLOURED else "(1, 28, 28)"
    if name in {"MLP", "GivenModule", "LoRA", "PartlyTrained", "TorchModule"}:
        shape = "(64,)"
    dtype = ", dtype=torch.long" if name in TEXTS else ""
    return (f"module = {made}.build({shape}, classes=10).eval()\n"
            f"module(torch.zeros(2, *{shape}{dtype})).shape\n"
            "sum(p.numel() for p in module.parameters() if p.requires_grad)  # what is trained and sent")  # fmt: skip


def own() -> dict[str, str]:
    """Return the examples of `api_examples.txt`: after `# package: names` follows the code, which shows all of these."""
    found = {}
    for part in (Path(__file__).parent / "api_examples.txt").read_text().split("\n# ")[1:]:
        head, _, code = part.partition("\n")
        package, _, names = head.partition(": ")
        place = "phalanx" if package == "phalanx" else f"phalanx.{package}"
        found |= {f"{place}.{name}": code.strip() for name in names.split(", ")}
    return found


def written(code: str, package: str) -> str:
    """Return code after the imports of the names that it uses but does not define."""
    return "\n".join([*imports(code, package), code])


def imports(code: str, package: str, module: str | None = None) -> list[str]:
    """Return the imports of the names that code uses but does not define; those of a module, if they are in no package."""
    tree = ast.parse(code)
    nodes = [node for node in ast.walk(tree) if isinstance(node, ast.Name)]
    stored = {node.id for node in nodes if not isinstance(node.ctx, ast.Load)} | {
        getattr(node, "asname", None) or name
        for node in ast.walk(tree)
        for name in (getattr(node, "name", None), getattr(node, "arg", None))
        if name
    }
    used = {node.id for node in nodes} - stored
    known = vars(importlib.import_module(module)) if module else {}
    homes = {name: _home(known[name], name, module or "") for name in used & known.keys()}
    for place, names in [*public().items(), (package, public()[package])]:
        homes |= {name: place for name in names if name not in public()["phalanx"] or place in ("phalanx", package)}
    homes |= {"Path": "pathlib", "replace": "dataclasses", "dataclass": "dataclasses"}
    modules = {"torch": "import torch", "np": "import numpy as np", "sys": "import sys", "json": "import json"}
    homes = {name: home for name, home in homes.items() if name not in modules}
    lines = [modules[name] for name in sorted(used & modules.keys())]
    for place in sorted({homes[name] for name in used & homes.keys()}):
        names = sorted(name for name in used & homes.keys() if homes[name] == place)
        lines.append(f"from {place} import {', '.join(names)}")
    return lines


def _home(value: Any, name: str, module: str) -> str:
    """Return where a name of a module comes from."""
    home = str(getattr(value, "__module__", module))
    return home if getattr(importlib.import_module(home), name, None) is value else module


def performed(code: str) -> str:
    """Return code as a session of Python shows it, with what comes out; raise what it raises."""
    names: dict[str, Any] = {"__name__": "__main__"}
    shown = []
    for node in ast.parse(code).body:
        out = io.StringIO()
        with contextlib.redirect_stdout(out):
            exec(compile(ast.Interactive([node]), "<example>", "single"), names)
        source = code.splitlines()[node.lineno - 1 - bool(getattr(node, "decorator_list", ())) : node.end_lineno]
        shown.append("\n".join(f"{'...' if k else '>>>'} {line}".rstrip() for k, line in enumerate(source)))
        if said := out.getvalue().rstrip():
            shown.append(said)
    return "\n".join(shown)


def sources() -> dict[str, str]:
    """Return the code of the example of each name that has none in its docstring, by the name's public path."""
    given, found = own(), {}
    for package, names in public().items():
        module = importlib.import_module(package)
        for name in names:
            value, path = getattr(module, name), f"{package}.{name}"
            if path not in given and ">>> " in (_own_docstring(value)):
                continue
            home = next(
                (
                    f"{p}.{name}"
                    for p in public()
                    if f"{p}.{name}" in given and getattr(importlib.import_module(p), name) is value
                ),
                None,
            )
            code = (
                given.get(path)
                or (given[home] if home else None)
                or (family(value, name) if isinstance(value, type) else None)
            )
            found[path] = written(code, package) if code else ""
    return found


def _own_docstring(value: Any) -> str:
    if callable(value) and getattr(value, "__module__", "").startswith("phalanx"):
        return value.__doc__ or ""
    return ""


def kept(what: str, make: Callable[[], dict[str, str]], *files: Path) -> dict[str, str]:
    """Return what `make` gives; it is kept until a source or one of `files` changes."""
    files = (*sorted(SOURCES.rglob("*.py")), *files)
    digest = hashlib.sha256(b"".join(file.read_bytes() for file in files)).hexdigest()
    cache = CACHE.with_name(f"{what}.json")
    with contextlib.suppress(OSError, ValueError):
        stored: dict[str, Any] = json.loads(cache.read_text())
        if stored["digest"] == digest:
            return dict(stored["shown"])
    found = make()
    cache.parent.mkdir(exist_ok=True, parents=True)
    cache.with_suffix(f".{os.getpid()}").write_text(json.dumps({"digest": digest, "shown": found}))
    cache.with_suffix(f".{os.getpid()}").replace(cache)
    return found


@cache
def shown() -> dict[str, str]:
    """Return the example of each name, run: by public path, and by the path in the source that griffe knows.

    They are run again when a source, this file or `api_examples.txt` changes.
    """
    return kept("examples", _shown, Path(__file__), Path(__file__).with_suffix(".txt"))


def _shown() -> dict[str, str]:
    found, runs, here = dict[str, str](), dict[str, str](), Path.cwd()
    with tempfile.TemporaryDirectory() as folder, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            for path, code in sources().items():
                if code:
                    if code not in runs:
                        os.chdir(tempfile.mkdtemp(dir=folder))
                        runs[code] = performed(code)
                    package, _, name = path.rpartition(".")
                    value = getattr(importlib.import_module(package), name)
                    found[path if key(value, path) == path else key(value, path)] = runs[code]
        finally:
            os.chdir(here)
    return found
