"""The card of a run's models: a short page in Markdown that says what they are and how far they can be trusted."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import groupby
from typing import TYPE_CHECKING

from phalanx.runs.found_clusters import found_clusters
from phalanx.runs.missing import counts, lost_rounds, never, subset, suspended
from phalanx.runs.reports import fallen, reported, spread
from phalanx.wording import percent, plural, visible

if TYPE_CHECKING:
    from phalanx.runs.record import Record
    from phalanx.runs.schema import PromiseRecord

SHOWN = 20  # clients and reasons that are listed, at most
LONGEST = 300  # characters of a text that the card takes over


def card(record: "Record") -> str:
    """Return the card of a run's models, in Markdown.  Names and reasons, which clients may write, are escaped."""
    rows = "\n".join(f"| {name} | {_plain(text)} |" for name, text in _facts(record))
    excluded = "\n".join(f"- {line}" for line in _exclusions(record)) or "No client was excluded."
    schema = record.kept().schema
    of_table = schema is not None and schema.images is None
    scored = "\nmodel(record.inputs(frame))  # of a data frame with the columns of the training" if of_table else ""
    promise = "\n".join(f"- {_plain(line)}" for line in promised(record.summary.promise, record.summary.remarks))
    doubted = "\n".join(f"- {line}" for line in _suspicions(record))
    history, summary = record.history, record.summary
    lacking = [
        found_clusters(history, summary.clients),
        never(summary.missing),
        lost_rounds(history),
        suspended(history, summary.clients),
    ]
    lacking += [subset(history, summary.clients)]
    lacking += fallen(history, {i: client.name for i, client in summary.clients.items()})
    without = "".join(f"\n{_plain(text)}\n" for text in lacking if text)
    suspicious = f"\n## Suspicious clients\n\n{doubted}\n" if doubted else ""
    return f"""# {_plain(record.name)}

| | |
| --- | --- |
{rows}

## Excluded clients

{excluded}
{without}{suspicious}
## What the run promises

{promise}

## Use

```python
from pathlib import Path
from phalanx import Record

record = Record.load(Path("..."))  # the folder of this file
model = record.model()  # model(client=3): the one that client 3 is served{scored}
```
"""


def promised(promise: "PromiseRecord | None", remarks: Iterable[str]) -> Iterator[str]:
    """Yield what a run promises and its audit, a sentence or two each, and what it warned of."""
    if promise is None:
        yield "Not known: it was recorded before runs had promises."
    else:
        yield from promise.text
        yield promise.audit
    yield from remarks


def _facts(record: "Record") -> Iterator[tuple[str, str]]:
    """Yield the rows of the table."""
    summary, config = record.summary, record.config
    p, index = summary.provenance, record.kept().index
    if accepted := config.get("accept"):
        yield "accepted by name", described(accepted)
    for finding in summary.findings:
        yield "found before the first step", finding
    yield "trained by", f"{described(config.get('algorithm'))}, {plural(summary.steps, 'step')}, {summary.status}"
    if summary.error:
        yield "why it ended", summary.error
    yield "task", _task(record)
    if summary.data is not None:
        data = summary.data
        sizes = f"{data.train:,} training and {data.test:,} test examples"
        yield "data", f"{described(config.get('data', data.name))}: {sizes}"
    if "partition" in config:
        yield "partition", described(config["partition"])
    yield "clients", _clients(record)
    if used := _used(record):
        yield "accepted updates", used
    if "model" in config:
        yield "network", f"{described(config['model'])}, {summary.dimension:,} parameters"
    yield "last evaluation", _evaluation(record)
    files = {file for candidates in index.clients.values() for file in candidates.values()} | {"model.safetensors"}
    also = "; models of clients were left out, for lack of room" if index.left_out else ""
    yield "models", plural(len(files), "file") + also
    if (schema := record.kept().schema) is not None:
        yield "schema", f"{schema.digest}, in schema.json"
        if schema.images is not None:
            yield "images", schema.images.text
    yield "identity", summary.identity
    commit = f", commit {p.commit[:12]}{'' if p.clean else ' with changes'}" if p.commit else ""
    versions = f"torch {p.torch}, Python {p.python}, {p.device}" + (f", engine {p.engine}" if p.engine else "")
    yield "made by", f"Phalanx {p.phalanx} (numerics {p.numerics}){commit}; {versions}"


def _task(record: "Record") -> str:
    inputs = record.kept().index.inputs
    if inputs is None:
        return "not known: the coordinator was given a module"
    task = described(record.config.get("task")) if "task" in record.config else "Classification"
    wanted = f"scores of {inputs.classes} classes" if inputs.classes else f"{plural(inputs.outputs, 'output')}"
    return f"{task}: {wanted} for {inputs.dtype} examples of shape {inputs.shape}"


def _clients(record: "Record") -> str:
    clients = record.summary.clients.values()
    bad = sum(client.byzantine is True for client in clients)
    absent = sum(client.not_enrolled is not None for client in clients)
    attack = described(record.config.get("attack"))
    return (
        plural(len(clients), "client")
        + (f", {bad} of them Byzantine ({attack})" if bad else "")
        + (f"; {absent} not enrolled" if absent else "")
    )


def _evaluation(record: "Record") -> str:
    final = record.summary.final
    found = {"accuracy": percent(final.accuracy)} if final.accuracy is not None else {}
    found |= {"loss": f"{final.loss:.4g}"} if final.loss is not None else {}
    found |= {"success of the attack": percent(final.attack_success)} if final.attack_success is not None else {}
    if not found:
        return _by_clients(record)
    after = max(step.step for step in record.history if step.metrics is not None)
    return ", ".join(f"{name} {text}" for name, text in found.items()) + f", after step {after}"


def _by_clients(record: "Record") -> str:
    """Return what clients reported where the coordinator measured nothing."""
    last, known = reported(record.history), record.summary.clients
    found = spread({client: each.last for client, each in last.items()})
    if not found.values:
        return "none"
    of = sorted(found.values, key=lambda client: found.values[client])
    each = [f"{known[i].name if i in known and known[i].name else f'client {i}'} {found.text(i)}" for i in of[:SHOWN]]
    steps = {last[i].step for i in of}
    when = f"in step {max(steps)}" if len(steps) == 1 else f"each in its last step, {min(steps)} to {max(steps)}"
    return (
        f"none of the last model. {found.metric.capitalize()} on examples of their own, of the model before, that "
        f"clients reported {when}, and nobody has checked: {', '.join(each)}{' ...' if len(of) > SHOWN else ''}"
    )


def _used(record: "Record") -> str:
    """Return the number of accepted updates of each real client; "" of a simulation, or of too many."""
    clients = record.summary.clients
    if record.config.get("engine") != "flower" or len(clients) > SHOWN:
        return ""
    times = counts(record.history, clients).items()
    return ", ".join(f"{clients[i].name or f'client {i}'} {n}" for i, n in times) + f", in {record.summary.steps} steps"


def _exclusions(record: "Record") -> Iterator[str]:
    """Yield a line for each step and reason."""
    found = sorted((c.excluded.step, c.excluded.reason, i) for i, c in record.summary.clients.items() if c.excluded)
    lines = [(step, why, [i for *_, i in of]) for (step, why), of in groupby(found, key=lambda item: item[:2])]
    for step, why, clients in lines[:SHOWN]:
        who = f"{plural(len(clients), 'client')} ({_listed(record, clients)})"
        yield f"step {step}: {who}: {_plain(why) or 'no reason given'}"
    if len(lines) > SHOWN:
        yield f"and {len(lines) - SHOWN} more"


def _suspicions(record: "Record") -> Iterator[str]:
    """Yield a line for each suspicious client, up to a limit."""
    found = [(i, about.name, about.suspicious) for i, about in record.summary.clients.items() if about.suspicious]
    for i, name, why in found[:SHOWN]:
        yield f"client {i}{f' ({_plain(name)})' if name else ''}, step {why.step}: {_plain(why.reason)}"
    if len(found) > SHOWN:
        yield f"and {len(found) - SHOWN} more"


def _listed(record: "Record", clients: Sequence[int]) -> str:
    called = [record.summary.clients[i].name or str(i) for i in clients[:SHOWN]]
    return _plain(", ".join(called)) + (", ..." if len(clients) > SHOWN else "")


def described(value: object) -> str:
    """Return a value of a configuration in a line: a class as its call."""
    if isinstance(value, Mapping) and "class_path" in value:
        given = (value.get("init_args") or {}).items()
        inner = ", ".join(f"{name}={described(part)}" for name, part in given if part not in (None, []))
        return f"{str(value['class_path']).rpartition('.')[2]}({inner})"
    if isinstance(value, Mapping):
        return "{" + ", ".join(f"{name}: {described(part)}" for name, part in value.items()) + "}"
    if isinstance(value, (list, tuple)):
        return "[" + ", ".join(map(described, value)) + "]"
    return "not known" if value is None else f"{value:g}" if isinstance(value, float) else str(value)


def _plain(text: str) -> str:
    """Return text that Markdown and HTML show as it is, on one line."""
    line = visible(" ".join(text.split()))
    line = line if len(line) <= LONGEST else f"{line[: LONGEST - 1]}…"
    for mark in "\\`*_[]<>|#":
        line = line.replace(mark, {"<": "&lt;", ">": "&gt;"}.get(mark, f"\\{mark}"))
    return line
