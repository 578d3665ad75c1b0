"""Alter the folder of a deployment's run in every way that its files have, and see that `phalanx verify` finds each.

nice -n 19 python tests/reliability/alterations.py [--count 10000] [--seed 0]

The alterations are derived from the files: each field of each line and of each JSON file, lines, whole files, tensors,
signatures and co-signatures.  Each is made twice: by somebody who changes nothing else, and by a forger who owns the
folder and writes hash chain and seal again, but has no key.  Found: the exit status is 1.  Located: a finding names the
file and, where one was altered, the line (or the stretch between two heads of a witness's list that holds it), the step
and the client.
"""

import argparse
import copy
import dataclasses
import json
import random
import shutil
import sys
import tempfile
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

sys.path.insert(0, str(Path(__file__).parents[1]))

import safetensors.torch
from safetensors import safe_open

import phalanx
from flower.federations import KEYS, MINE, SMALL, at_nodes, coordinator, honest, named
from phalanx.algorithms import ClusteredFL
from phalanx.flower import InProcessGrid, coordinate
from phalanx.models import MLP
from phalanx.runs.seal import SEAL, HashChain, members, seal, split
from phalanx.runs.verification import Verification, verify

LINES = ("history.jsonl", "audit.jsonl", "asked.jsonl")
PARTS = ("run.json", "summary.json", "model.json", "witnesses.json")
CLIENTS = 3


class Alteration(NamedTuple):
    """What is altered, how, and what a finding must name.

    Args:
        kind: of alteration, for the count.
        file: that is altered.
        make: alters a folder; returns whether it could.
        line: that is altered; None: the file, or all from one on.
        step: of the run, that the finding must name; None: none.
        client: likewise.
    """

    kind: str
    file: str
    make: Callable[[Path], bool | None]
    line: int | None = None
    step: int | None = None
    client: int | None = None


def made(place: Path, seed: int) -> Path:
    """The folder of a run with several models and kept updates, and next to it the lists of its clients."""
    plan = dataclasses.replace(
        SMALL, clients=CLIENTS, algorithm=ClusteredFL(), model=MLP((4,)), until=phalanx.Until(3), seed=seed
    )
    apps = at_nodes(honest(plan, place, coordinator=MINE))
    options = {"folder": place / "run", "roster": named(CLIENTS), "key": KEYS[11], "keep_updates": True}
    with InProcessGrid(apps) as grid:
        coordinate(grid, coordinator(plan, **options))
    return place / "run"


# What can be altered


def leaves(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """The places of a JSON value, inner ones as well."""
    if path:
        yield path
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, inner in items:
        yield from leaves(inner, (*path, key))


def at(value: Any, path: tuple[Any, ...]) -> Any:
    for key in path:
        value = value[key]
    return value


def changed(value: Any) -> Any:
    """Another value of the same type, as far as there is one."""
    if isinstance(value, bool):
        return not value
    if isinstance(value, int | float):
        return value + 1
    if isinstance(value, str):
        return value[:-1] + ("0" if value[-1:] != "0" else "1")
    if isinstance(value, list):
        return value[::-1] if value[::-1] != value else [*value, *value[:1]] or [0]
    return {"x": 1} if not value else dict(list(value.items())[1:])


def remove(value: Any, path: tuple[Any, ...]) -> None:
    del at(value, path[:-1])[path[-1]]


def put(value: Any, path: tuple[Any, ...], new: Any) -> None:
    at(value, path[:-1])[path[-1]] = new


def fields(text: bytes, other: Any) -> Iterator[tuple[str, str, bytes]]:
    """A JSON text of which one field is changed, removed, of another type, or of another run."""
    form = json.loads(text)
    ways = {
        "changed": lambda new, path: put(new, path, changed(at(new, path))),
        "removed": remove,
        "of another type": lambda new, path: put(new, path, None if at(new, path) is not None else [0]),
        "of another run": lambda new, path: put(new, path, at(other, path)),
    }
    for path in leaves(form):
        for way, make in ways.items():
            new = copy.deepcopy(form)
            try:
                make(new, path)
            except (KeyError, IndexError, TypeError):
                continue  # the other run has no such place
            if new != form:
                yield f"a field is {way}", "/".join(map(str, path)), json.dumps(new, separators=(",", ":")).encode()


def of_lines(run: Path, other: Path, name: str) -> Iterator[Alteration]:
    """All alterations of a file of lines."""
    lines, others = split((run / name).read_bytes()), split((other / name).read_bytes())

    def written(*new: bytes) -> Callable[[Path], None]:
        return lambda folder: (folder / name).write_bytes(b"".join(new)) and None

    for k, line in enumerate(lines):
        form = json.loads(line)
        step = form.get("step") if isinstance(form, dict) and name == "history.jsonl" else None
        there, before, after = k + 1, lines[:k], lines[k + 1 :]
        twin = json.loads(others[k]) if k < len(others) else None
        for kind, _, new in fields(line, twin):
            yield Alteration(kind, name, written(*before, new + b"\n", *after), there, step)
        alone = there if lines.count(line) == 1 else None  # of equal lines, any can be the one
        yield Alteration("a line is removed", name, written(*before, *after), alone)
        yield Alteration("a line is repeated", name, written(*before, line, line, *after), alone and alone + 1)
        yield Alteration("a line is written otherwise", name, written(*before, line[:-1] + b" \n", *after), there, step)
        yield Alteration("a line is put in", name, written(*before, b'{"step":1}\n', line, *after), there)
        if k < len(others) and others[k] not in lines:
            yield Alteration("a line is of another run", name, written(*before, others[k], *after), there)
        for j in range(k + 1, len(lines)):
            swapped = [*before, lines[j], *lines[k + 1 : j], line, *lines[j + 1 :]]
            if lines[j] != line:
                yield Alteration("two lines are swapped", name, written(*swapped), there)
        yield Alteration("the end is cut", name, written(*before), there)
        for part in (1, len(line) // 2):
            yield Alteration("the end is cut in a line", name, written(*before, line[:part]), there)


def of_parts(run: Path, other: Path, name: str) -> Iterator[Alteration]:
    """All alterations of the fields of a JSON file."""
    twin = json.loads((other / name).read_bytes()) if (other / name).is_file() else None
    for kind, path, new in fields((run / name).read_bytes(), twin):
        words = path.split("/")
        client = int(words[1]) if name == "witnesses.json" and len(words) > 1 else None
        yield Alteration(kind, name, lambda folder, new=new: (folder / name).write_bytes(new) and None, client=client)


def of_cosignatures(run: Path, other: Path) -> Iterator[Alteration]:
    """Co-signatures that are moved between clients, or left out."""
    name = "witnesses.json"
    for i in range(CLIENTS):

        def lacking(folder: Path, i: int = i) -> None:
            form = json.loads((folder / name).read_bytes())
            del form["clients"][str(i)]
            (folder / name).write_text(json.dumps(form))

        yield Alteration("a co-signature is left out", name, lacking, client=i)
        for j in range(CLIENTS):
            for field in ("cosignature", "key", "name", ""):

                def moved(folder: Path, i: int = i, j: int = j, field: str = field) -> bool:
                    form = json.loads((folder / name).read_bytes())
                    clients = form["clients"]
                    if field:
                        clients[str(i)][field] = clients[str(j)][field]
                    else:
                        clients[str(i)] = clients[str(j)]
                    (folder / name).write_text(json.dumps(form))
                    return i != j

                yield Alteration("a co-signature is moved", name, moved, client=i)


def of_files(run: Path, other: Path) -> Iterator[Alteration]:
    """All alterations of whole files."""
    names = members(run)
    for name in names:
        data = (run / name).read_bytes()
        step = int(name[8:16]) if name.startswith("updates/0") else 0 if name.startswith("updates/") else None
        missing = {"file": name, "step": step}
        yield Alteration("a file is removed", make=lambda folder, name=name: (folder / name).unlink(), **missing)
        yield Alteration(
            "a file is emptied", make=lambda folder, name=name: (folder / name).write_bytes(b"") and None, **missing
        )
        for k in range(0, len(data), max(1, len(data) // 40)):
            flipped = data[:k] + bytes([data[k] ^ 1]) + data[k + 1 :]
            new = {
                "a bit is flipped": flipped,
                "a file is cut": data[:k],
                "bytes are put in": data[:k] + b"0" + data[k:],
            }
            for kind, text in new.items():
                if name.endswith(".jsonl"):
                    continue  # where its lines are, `of_lines` tells
                make = lambda folder, name=name, text=text: (folder / name).write_bytes(text) and None  # noqa: E731
                yield Alteration(kind, make=make, **missing)
        if (other / name).is_file() and (other / name).read_bytes() != data:
            make = lambda folder, name=name: shutil.copy(other / name, folder / name) and None  # noqa: E731
            yield Alteration("a file is that of another run", make=make, **missing)
        for second in names:
            if Path(second).suffix == Path(name).suffix != ".jsonl" and (run / second).read_bytes() != data:
                make = lambda folder, name=name, second=second: (  # noqa: E731
                    shutil.copy(run / second, folder / name) and None
                )
                yield Alteration("a file is another one of the run", make=make, **missing)
    for name in ("models/9.safetensors", "updates/00000009.safetensors", "schema.json", "best/model.json"):

        def added(folder: Path, name: str = name) -> None:
            (folder / name).parent.mkdir(exist_ok=True)
            (folder / name).write_bytes(b"{}")

        yield Alteration("a file is put in", name, added)


def of_updates(run: Path) -> Iterator[Alteration]:
    """Tensors of kept updates that are changed, or those of another client or step; with what the file says of them."""
    kept = {name: safetensors.torch.load_file(run / name) for name in members(run) if name.startswith("updates/0")}
    for name, tensors in kept.items():
        with safe_open(run / name, "pt") as opened:
            about = opened.metadata()
        for key, held in tensors.items():
            new = {f"{other} of {key}": twin for other, twin in tensors.items() if other != key}
            new |= {f"step {step}": twins[key] for step, twins in kept.items() if key in twins}
            new |= {"negative": -held, "twice": held * 2, "zero": held * 0, "reversed": held.flip(0)}
            new |= {
                f"entry {k}": held.clone().index_fill_(0, held.new_tensor([k]).long(), 9.0) for k in range(len(held))
            }
            for twin in new.values():
                if twin.shape == held.shape and not twin.equal(held):
                    text = safetensors.torch.save({**tensors, key: twin.clone()}, about)
                    yield Alteration(
                        "a kept update is changed",
                        name,
                        lambda folder, name=name, text=text: (folder / name).write_bytes(text) and None,
                        step=int(name[8:16]),
                        client=int(key) if key.isdecimal() else None,
                    )
        for _, _, text in fields(about["phalanx"].encode(), None):
            held = safetensors.torch.save(tensors, {"phalanx": text.decode()})
            yield Alteration(
                "what is said of kept updates is changed",
                name,
                lambda folder, name=name, held=held: (folder / name).write_bytes(held) and None,
                step=int(name[8:16]),
            )


def alterations(run: Path, other: Path) -> list[Alteration]:
    """All of them, but for those of the seal."""
    found = [one for name in LINES for one in of_lines(run, other, name)]
    found += [one for name in PARTS for one in of_parts(run, other, name)]
    return [*found, *of_cosignatures(run, other), *of_files(run, other), *of_updates(run)]


def of_seal(run: Path) -> Iterator[Alteration]:
    """Alterations of the seal, which nobody but the careless leaves like that."""
    for kind, _, new in fields((run / SEAL).read_bytes(), None):
        yield Alteration(kind, SEAL, lambda folder, new=new: (folder / SEAL).write_bytes(new) and None)


# What is found


def forged(folder: Path) -> None:
    """Write the hash chain of the trail and the seal again."""
    lines, chain = [], HashChain()
    path = folder / "audit.jsonl"
    for line in split(path.read_bytes()) if path.is_file() else []:
        new = line
        with suppress(ValueError, AttributeError):  # of half a line
            if (form := json.loads(line)).get("before", "") != chain.mark.link:
                new = json.dumps({**form, "before": chain.mark.link}, separators=(",", ":")).encode() + b"\n"
        lines.append(new)
        chain.add(new)
    if lines:
        path.write_bytes(b"".join(lines))
    seal(folder, {})


def stretch(what: str, line: int) -> range:
    """The lines that a finding of a witness names."""
    last = what.removeprefix("to ").partition(":")[0]
    return range(line, int(last) + 1) if what.startswith("to ") and last.isdecimal() else range(line, line + 1)


def missed(one: Alteration, found: Verification, *, forger: bool) -> str:
    """What a verification does not say of an alteration; empty if it says all."""
    if found.status != 1 or "no" not in (found.integrity, found.completeness):
        return f"not found: status {found.status}"
    named = [finding for finding in found.findings if one.file == finding.file or f"than {one.file}" in finding.what]
    if not named:
        return "the file is not named"
    whole = forger and one.file == "asked.jsonl"  # of which the evidence has one digest
    if one.line is not None and not whole:
        if not any(one.line in stretch(f.what, f.line) for f in named if f.line is not None):
            return f"line {one.line} is not named: {named}"
    elif one.step is not None and not any(f.step == one.step for f in named):
        return f"step {one.step} is not named: {named}"
    elif one.client is not None and not any(one.client in f.clients for f in named):
        return f"client {one.client} is not named: {named}"
    return ""


class Bench:
    """A copy of a run on which alterations are tried, one after the other."""

    def __init__(self, place: Path) -> None:
        self.run, self.other = made(place / "one", 0), made(place / "other", 1)
        self.folder, self.lists = place / "altered", [self.run.parent / str(i) / "tasks.jsonl" for i in range(CLIENTS)]
        shutil.copytree(self.run, self.folder)
        self.original = self._state()

    def _state(self) -> dict[Path, bytes]:
        return {path: path.read_bytes() for path in self.folder.rglob("*") if path.is_file()}

    def tried(self, one: Alteration, *, forger: bool) -> str | None:
        """What `verify` does not say; None if the alteration changes nothing."""
        try:
            if one.make(self.folder) is False:
                return None
            if forger:
                forged(self.folder)
            if self._state() == self.original:
                return None
            alone = verify(self.folder)
            if alone.status != 1:
                return f"not found in the folder alone: status {alone.status}"
            found = verify(self.folder, self.lists) if forger else alone
            return missed(one, found, forger=forger)
        finally:
            for path, data in self._state().items():
                if path not in self.original:
                    path.unlink()
                elif data != self.original[path]:
                    path.write_bytes(data := self.original[path])
            for path, data in self.original.items():
                if not path.is_file():
                    path.write_bytes(data)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--count", type=int, help="a sample of so many; all of them if not given")
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    counts, left = Counter[str](), 0
    with tempfile.TemporaryDirectory() as place:
        bench = Bench(Path(place))
        tried = [(one, forger) for one in alterations(bench.run, bench.other) for forger in (False, True)]
        tried += [(one, False) for one in of_seal(bench.run)]
        print(f"{len(tried):,} alterations", flush=True)
        random.Random(options.seed).shuffle(tried)
        for one, forger in tried[: options.count]:
            why = bench.tried(one, forger=forger)
            if why is None:
                continue
            counts[f"{one.kind}, {'by a forger' if forger else 'alone'}"] += 1
            if why:
                left += 1
                print(f"{one.file}, line {one.line}: {one.kind}, {'forger' if forger else 'alone'}: {why}", flush=True)
    for kind, count in sorted(counts.items()):
        print(f"{count:6,}  {kind}")
    print(f"{counts.total() - left:,} of {counts.total():,} found and located")
    return 1 if left else 0


if __name__ == "__main__":
    sys.exit(main())
