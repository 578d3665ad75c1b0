"""Read hostile files, small or claiming much, each in a process that may take 1 GiB and 60 s; print what they cost.

python tests/reliability/outside.py [NAME ...]

`readers` finds each function of the library that reads a file, in its source.  `CASES` has hostile files for those that
read what may be somebody else's, and `OWN` says why the others do not.  Printed is, as JSON, what each case ended with.
"""

import ast
import gzip
import io
import json
import lzma
import os
import resource
import shutil
import struct
import sys
import tempfile
import time
import warnings
import zipfile
import zlib
from collections.abc import Callable, Iterator
from importlib.util import find_spec
from pathlib import Path

SOURCE = Path(__file__).parents[2] / "src/phalanx"
READING = {
    "contents", "lines_of", "unzipped", "opened", "read_bytes", "read_text", "fromfile", "load_file", "safe_open",
    "get_handle", "read_parquet", "load_from_disk", "load_dataset", "ParquetFile", "loadtxt", "GzipFile",
}  # fmt: skip
MIBI, GIBI = 1 << 20, 1 << 30
SECONDS = 60
STEP = "updates/00000001.safetensors"


# --- readers


def readers() -> set[str]:
    """Return the functions that read a file which is neither the package's nor of /proc: "folder/file.py:name"."""
    return {
        name
        for path in SOURCE.rglob("*.py")
        for name in _readers(ast.parse(path.read_text()), f"{path.relative_to(SOURCE).as_posix()}:")
    }


def _readers(node: ast.AST, name: str) -> Iterator[str]:
    for inner in ast.iter_child_nodes(node):
        if isinstance(inner, ast.FunctionDef | ast.ClassDef):
            yield from _readers(inner, f"{name}{'' if name.endswith(':') else '.'}{inner.name}")
            continue
        if isinstance(inner, ast.Call) and _reads(inner):
            yield name
        yield from _readers(inner, name)


def _reads(call: ast.Call) -> bool:
    called = ast.unparse(call.func)
    if any(of in called for of in ("files('phalanx", "/proc/", "distribution(")):
        return False
    texts = [each.value for each in call.args[:2] if isinstance(each, ast.Constant) and isinstance(each.value, str)]
    if called.rpartition(".")[2] == "open":
        return called not in ("os.open", "tarfile.open") and not any({*text} & {*"wax+"} for text in texts)
    return called.rpartition(".")[2] in READING or called in ("np.load", "torch.load")


OWN = {
    "reading.py:opened": "what the readers below call",
    "reading.py:contents": "what the readers below call",
    "reading.py:lines_of": "what the readers below call",
    "reading.py:unzipped": "what the readers below call",
    "reading.py:_digest": "a hash, in parts",
    "data/image_draft.py:_seen": "the head of an image; its pixels are read by `ImageSource._read`",
    "data/saved_folders.py:_check_images": "the header of an image whose bytes are in memory",
    "runs/seal.py:file_hash": "a hash, in parts",
    "cli/deferred.py:Deferred.options": "of the package",
    "experiments/papers/published.py:published": "of the repository",
    "experiments/papers/scoreboard.py:write_scoreboard": "of the repository",
    "experiments/papers/manifest.py:Manifest._pages": "of the repository",
    "data/sources.py:_digits": "of scikit-learn",
    "runs/canonical.py:source": "the program that runs",
    "runs/provenance.py:sources": "the program that runs",
    "data/wikitext.py:_downloaded": "from the hub, of a known hash",
    "data/sources.py:HuggingFace._splits": "by the package datasets, which maps the files that were looked at",
    "data/table_files.py:line_of": "a table that was read, in parts",
    "runs/record.py:read_lines": "the history of a run that goes on, in parts",
    "runs/checkpoint.py:_read": "the checkpoint of a run that goes on; its sizes are compared with the file's",
    "runs/checkpoint.py:_check": "a hash, in parts",
    "cli/deployment_folder.py:_start": "64 bytes",
    "cli/deployment_folder.py:_promised": "a line of at most 100,000 bytes",
    "cli/flower.py:up": "written by this command",
    "cli/flower.py:_configured": "the app that is run",
    "flower/audit.py:Audit.__init__": "the trail of a coordinator that goes on",
    "flower/audit.py:Audit._recall": "the trail of a coordinator that goes on",
    "flower/client.py:_load": "written by this client",
    "flower/client.py:ClientWorker.personalize": "models that the client has saved",
    "flower/served_models.py:choose": "models that the client has saved",
    "flower/demo.py:participant": "written by the demo",
    "flower/local_federation.py:without_room": "logs of the processes that this one has started",
    "flower/kit.py:_written": "of the consortium that one describes",
    "flower/seen.py:SeenTasks.size": "written by this client",
}


# --- files


CASES = dict[str, tuple[str, tuple[str, ...], Callable[[Path], Callable[[], object]]]]()


def case(said: str, *of: str) -> Callable[[Callable[[Path], Callable[[], object]]], None]:
    """Note hostile files, what is said of them, and who reads them."""

    def noted(made: Callable[[Path], Callable[[], object]]) -> None:
        CASES[made.__name__] = (said, of, made)

    return noted


def grown(path: Path, size: int, head: bytes = b"") -> Path:
    """Write a file that is a hole after its head."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(head)
    os.truncate(path, size)
    return path


def zipped(path: Path, head: bytes, part: bytes, times: int, pack: Callable[[bytes], bytes] = gzip.compress) -> Path:
    """Write a compressed file in which a part occurs many times."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(pack(head) + pack(part) * times)
    return path


def tensors(path: Path, header: dict[str, object], size: int = 0) -> Path:
    """Write a safetensors file that claims so many bytes."""
    text = json.dumps(header).encode()
    return grown(path, 8 + len(text) + size, len(text).to_bytes(8, "little") + text)


def png(side: int) -> bytes:
    """Return a black image, of 8,000 pixels for each byte."""

    def chunk(kind: bytes, data: bytes) -> bytes:
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))

    head = struct.pack(">IIBBBBB", side, side, 1, 0, 0, 0, 0)
    body = zlib.compress(bytes((1 + (side + 7) // 8) * side), 9)
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", head) + chunk(b"IDAT", body) + chunk(b"IEND", b"")


def record(folder: Path) -> Path:
    """Return the folder of a run, without a seal."""
    from phalanx import Run, Until, simulate
    from phalanx.models import MLP

    run = folder / "run"
    simulate(Run(clients=3, model=MLP(()), until=Until(steps=1)), folder=run, keep_updates=True)
    (run / "seal.json").unlink()
    return run


@case(
    "almost nothing in it but a hole",
    "runs/record.py:_steps",
    "runs/models.py:read_tensors",
    "runs/updates.py:read_kept",
)
def holes(folder):
    from phalanx.runs.record import Record
    from phalanx.runs.updates import read_kept

    run = record(folder)
    about = {"dtype": "F32", "shape": [GIBI], "data_offsets": [0, 4 * GIBI]}
    tensors(run / "model.safetensors", {"w": about}, 4 * GIBI)
    tensors(run / STEP, {"losses": about}, 4 * GIBI)
    history = (run / "history.jsonl").read_bytes()

    def read():
        yield Record.load(run).model
        yield lambda: read_kept(run, 1)
        grown(run / "history.jsonl", 4 * GIBI, history)
        yield lambda: Record.load(run)

    return lambda: each(read())


@case(
    "more than 5,000,000 lines",
    "runs/evidenced.py:in_force",
    "runs/evidenced.py:_history",
    "runs/verification.py:_with_evidence",
    "runs/verification.py:_broken",
    "runs/witnessed.py:_trail",
    "experiments/line_store.py:_lines",
    "flower/audit.py:_check",
    "flower/audit.py:read",
)
def lines(folder):
    from phalanx.experiments.line_store import LineStore
    from phalanx.runs.evidenced import in_force
    from phalanx.runs.record import Record
    from phalanx.runs.verification import _broken
    from phalanx.runs.witnessed import _trail

    run, many = record(folder), b"\n" * 5_000_001
    for name in ("history.jsonl", "audit.jsonl"):
        (run / name).write_bytes(many)

    def read():
        yield lambda: Record.load(run)
        yield lambda: in_force(run, "audit.jsonl")
        yield lambda: [*_broken(run, "audit.jsonl")]
        yield lambda: _trail(run, "audit.jsonl")
        yield lambda: LineStore(run / "history.jsonl")

    return lambda: each(read())


@case("more than 5,000,000 lines", "runs/seal.py:_marked", "runs/seal.py:_compared_lines", "runs/seal.py:_read")
def sealed_lines(folder):
    from phalanx import Run, Until, simulate
    from phalanx.models import MLP
    from phalanx.runs.seal import examine

    run = folder / "run"
    simulate(Run(clients=3, model=MLP(()), until=Until(steps=1)), folder=run)
    (run / "history.jsonl").write_bytes(b"\n" * 5_000_001)
    return lambda: refused(examine(run).findings)


@case(
    "more than 2,000,000 lists or mappings",
    "runs/record.py:_read",
    "runs/models.py:Models.load",
    "runs/models.py:_schema",
    "experiments/trace.py:Trace.load",
    "flower/status.py:read",
    "runs/witnesses.py:witnesses_of",
    "runs/witnessed.py:compare_own",
    "runs/witnessed.py:_notes",
    "data/table_schema.py:Schema.load",
    "flower/signed_schema.py:sign_schema",
    "flower/signed_schema.py:signed_schema",
)
def lists(folder):
    from phalanx.data import Schema
    from phalanx.runs.models import Models
    from phalanx.runs.record import Record
    from phalanx.runs.witnesses import witnesses_of

    run, many = record(folder), b'{"a":[' + b"[]," * 3_000_000 + b"[]]}"
    for name in ("run.json", "model.json", "schema.json", "witnesses.json"):
        (run / name).write_bytes(many)

    def read():
        yield lambda: Record.load(run)
        yield lambda: Models.load(run)
        yield lambda: Schema.load(run / "schema.json")
        yield lambda: warned(lambda: witnesses_of(run))

    return lambda: each(read())


@case("bytes about its tensors, which no model does", "runs/seal.py:_served")
def many_tensors(folder):
    from phalanx.runs.record import Record

    run, empty = record(folder), {"dtype": "F32", "shape": [0], "data_offsets": [0, 0]}
    tensors(run / "model.safetensors", {f"w{k}": empty for k in range(200_000)})
    return lambda: Record.load(run).model()


@case("almost nothing in it but a hole", "runs/checkpoint.py:peek")
def checkpoint(folder):
    from phalanx.runs.checkpoint import MAGIC, peek

    grown(folder / "checkpoint", GIBI, MAGIC + GIBI.to_bytes(8, "little"))
    return lambda: peek(folder)


@case("holds more than 268,435,456 bytes", "experiments/store.py:Store._of_packed")
def packed(folder):
    from phalanx.experiments.store import PACKED, Store

    zipped(folder / PACKED, b"", bytes(1 << 24), 20)
    return lambda: [*Store(folder).traces()]


@case("100,000,000 (bytes|cells)", "data/published_files.py:text_file", "data/shakespeare.py:_jsonl")
def texts(folder):
    from phalanx.data import MR, SST, AGNews, Shakespeare, WikiText2

    names = ("ag_news/train.csv.gz", "ag_news/test.csv.gz", "sst/stsa.fine.train.gz", "sst/stsa.fine.test.gz")
    names += ("wikitext-2/wiki.train.tokens.gz", "wikitext-2/wiki.test.tokens.gz")
    names += ("rt-polaritydata/rt-polarity.pos.gz", "rt-polaritydata/rt-polarity.neg.gz")
    for name in (*names, "shakespeare/roles.jsonl.gz"):
        zipped(folder / name, b"", b"1" * (1 << 24), 6)
    return lambda: each(
        lambda source=source: source.load(folder) for source in (AGNews(), SST(), MR(), WikiText2(), Shakespeare())
    )


@case("almost nothing in it but a hole", "data/shakespeare.py:_leaf")
def plays(folder):
    from phalanx.data import Shakespeare

    grown(folder / "shakespeare/all_data.json", GIBI)
    return lambda: Shakespeare().load(folder)


@case("at most 300,000,000 (pixels )?are read", "data/published_files.py:_idx", "data/published_files.py:_records")
def pixels(folder):
    from phalanx.data import CIFAR10, MNIST
    from phalanx.data.published_files import CIFAR_FILES, CIFAR_FOLDER, IDX_FILES

    count = 600_000
    for name in IDX_FILES:
        images = "images" in name
        head = struct.pack(">IIII", 0x803, count, 28, 28) if images else struct.pack(">II", 0x801, count)
        zipped(folder / "mnist" / f"{name}.gz", head, bytes(count), 784 if images else 1)
    for name in CIFAR_FILES:
        grown(folder / CIFAR_FOLDER / name, 3073 * 20_000)
    return lambda: each(lambda source=source: source.load(folder) for source in (MNIST(), CIFAR10()))


@case("pixels|numbers|a hole", "data/images.py:ImageSource._read", "data/images.py:_lines")
def images(folder):
    from phalanx.data import ImageFolder, ImageTable

    small, large, most = folder / "small", folder / "large", 7000
    for label in "ab":
        for where, side in ((small, most), (large, most + 100)):
            (where / label).mkdir(parents=True)
            for k in range(12):
                (where / label / f"{k}.png").write_bytes(png(side))
    grown(folder / "many.csv", 100_000_001)

    def read():
        yield ImageFolder(str(large), size=8).load  # of more pixels than an image may have
        yield ImageFolder(str(small), channels="L").load  # of more numbers than all may have
        yield ImageTable(str(folder / "many.csv")).load

    return lambda: each(read())


@case(
    "columns, and at most 100,000 are read|more than 100,000,000 cells|cells. If|bytes of text",
    "data/table_files.py:CSV.read",
    "data/table_files.py:Parquet.read",
    "data/table_ceilings.py:check_text",
    "data/table_ceilings.py:check_parquet",
    "data/table_ceilings.py:_characters",
)
def tables(folder):
    import pyarrow
    from pyarrow import parquet

    from phalanx.data import CSV, Parquet

    wide = ",".join(f"c{k}" for k in range(200_000)) + "\n" + "1," * 199_999 + "0\n"
    (folder / "wide.csv").write_text(wide)
    (folder / "blank.csv").write_text("\n \n" + wide)
    (folder / "quoted.csv").write_text(",".join(f'"c\n{k}"' for k in range(200_000)) + "\n" + "1," * 199_999 + "0\n")
    packs = [("gz", gzip.compress), ("xz", lzma.compress)]
    if find_spec("zstandard"):
        import zstandard

        packs.append(("zst", zstandard.compress))
    for ending, pack in packs:
        zipped(folder / f"t.csv.{ending}", b"a,y\n", b"0,1\n" * (1 << 22), 20, pack)
        zipped(folder / f"text.csv.{ending}", b"a,y\n", b"x" * (1 << 24), 60, pack)
    with zipfile.ZipFile(folder / "t.csv.zip", "w", zipfile.ZIP_DEFLATED) as file:
        file.writestr("t.csv", b",\n" * (1 << 26))
    rows = b"".join(b",".join([b"v%d" % (k % 100)] * 9) + b",%d\n" % (k % 2) for k in range(100))
    zipped(folder / "texts.csv.gz", b"a,b,c,d,e,f,g,h,i,y\n", rows * 10, 120)  # 120,000 rows of 900 inputs
    one = pyarrow.DictionaryArray.from_arrays(pyarrow.array([0] * 20_000, pyarrow.int32()), ["x" * 100_000])
    parquet.write_table(pyarrow.table({"a": one, "y": pyarrow.array([0, 1] * 10_000)}), folder / "text.parquet")
    names = [f"c{k}" for k in range(100_001)]
    parquet.write_table(
        pyarrow.table({name: pyarrow.array([], pyarrow.int8()) for name in names}), folder / "wide.parquet"
    )
    files = sorted(path for path in folder.iterdir() if path.is_file())
    kinds = {".parquet": Parquet}
    return lambda: each(kinds.get(path.suffix, CSV)(str(path), "y").load for path in files)


@case(
    "at most 4,000,000,000 are read|Unable to allocate|allow_pickle=False",
    "cli/deployment_folder.py:examples_in",
    "cli/deployment_folder.py:_certificate",
    "cli/deployment_folder.py:_beside",
)
def examples(folder):
    import numpy as np

    from phalanx.cli.deployment_folder import examples_in

    def array(shape: int) -> bytes:
        held = io.BytesIO()
        np.lib.format.write_array_header_1_0(held, {"descr": "<f8", "fortran_order": False, "shape": (shape,)})
        return held.getvalue()

    with zipfile.ZipFile(folder / "shape.npz", "w") as file:
        file.writestr("x.npy", array(1 << 37))
    with zipfile.ZipFile(folder / "bomb.npz", "w") as file:
        file.writestr("x.npy", array(1 << 30))
        file.filelist[0].file_size = 8 * GIBI  # as if it had been compressed
    np.savez(folder / "objects.npz", x=np.array([{}], dtype=object), y=np.zeros(1))
    return lambda: each(lambda path=path: refused(examples_in(path)) for path in sorted(folder.glob("*.npz")))


@case(
    "is compressed, as save_to_disk never does|a hole",
    "data/saved_folders.py:check_folder",
    "data/saved_folders.py:_check_arrow",
)
def saved_folders(folder):
    import pyarrow

    from phalanx.data import HuggingFace

    zeros = pyarrow.table({"image": pyarrow.array([[0.0] * 1000] * 1000), "label": [0] * 1000})
    for name, options in (("zeros", pyarrow.ipc.IpcWriteOptions(compression="zstd")), ("hole", None)):
        for part in ("train", "test"):
            (place := folder / name / part).mkdir(parents=True)
            (place / "state.json").write_text('{"_data_files": [{"filename": "data.arrow"}]}')
            with pyarrow.ipc.new_stream(str(place / "data.arrow"), zeros.schema, options=options) as file:
                file.write_table(zeros)
        (folder / name / "dataset_dict.json").write_text('{"splits": ["train", "test"]}')
    os.truncate(folder / "hole" / "train" / "data.arrow", 8 * GIBI)
    return lambda: each(HuggingFace(str(folder / name)).load for name in ("zeros", "hole"))


@case(
    "a hole|larger than 1,000,000 bytes|more than 5,000,000 lines",
    "flower/identity.py:load_key",
    "flower/certificates.py:_read",
    "flower/certificates.py:_authority_of",
    "flower/live.py:lines",
    "flower/live.py:Tail.look",
    "flower/upload_counter.py:_read",
    "cli/flower.py:_before",
)
def deployed(folder):
    from phalanx.cli.flower import _before
    from phalanx.flower.certificates import _authority_of, authorities_of
    from phalanx.flower.identity import load_key
    from phalanx.flower.live import Tail, lines
    from phalanx.flower.upload_counter import UploadCounter

    key = folder / "ca.key"
    key.write_bytes(b"-----BEGIN PRIVATE KEY-----\n" + b"A" * 1_000_000)
    key.chmod(0o600)
    shutil.copy(key, folder / "ca.crt")
    for name in ("note.json", "history.jsonl"):
        grown(folder / name, 4 * GIBI)
    (folder / "asked.jsonl").write_bytes(b"\n" * 5_000_001)

    def read():
        yield lambda: load_key(key)
        yield lambda: authorities_of(folder)
        yield lambda: _authority_of(folder, None)
        yield lambda: lines(folder)
        yield Tail(folder / "history.jsonl").look
        yield lambda: UploadCounter(folder / "asked.jsonl")
        yield lambda: _before(folder / "note.json")

    return lambda: each(read())


@case("more than 2,000,000 rows", "simulation/traces.py:read_trace")
def trace(folder):
    from phalanx.simulation.traces import read_trace

    (folder / "trace.csv").write_text("client,seconds\n" + "0,1\n" * 2_000_001)
    return lambda: read_trace(str(folder / "trace.csv"), ["client", "seconds"])


# --- what they cost


def each(attempts):
    """Carry out all attempts; raise what they raise as one, or say which one was not refused."""
    said = []
    for number, attempt in enumerate(attempts):
        try:
            said.append(f"NOT REFUSED: {number}: {attempt()!r}"[:200])
        except ValueError as error:
            said.append(f"{type(error).__name__}: {error}")
    raise ValueError("\n".join(said))


def refused(findings):
    raise ValueError(" ".join(str(getattr(one, "text", one)) for one in findings))


def warned(work):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        try:
            return work()
        except UserWarning as warning:
            raise ValueError(str(warning)) from warning


def status(name: str) -> int:
    """Return a number of the process, in bytes."""
    return int(next(line for line in Path("/proc/self/status").open() if line.startswith(name)).split()[1]) * 1024


def cost(name: str, folder: Path) -> dict[str, object]:
    """Return what a case ended with, its seconds, and by how many MiB the process has grown."""
    read, write = os.pipe()
    work = CASES[name][2](folder)
    if not (child := os.fork()):
        Path("/proc/self/clear_refs").write_text("5")
        resource.setrlimit(resource.RLIMIT_AS, (status("VmSize") + GIBI,) * 2)
        resource.setrlimit(resource.RLIMIT_CPU, (SECONDS,) * 2)
        before, begun = status("VmHWM"), time.process_time()
        try:
            said = f"NOT REFUSED: {work()!r}"[:200]
        except ValueError as error:
            said = f"{type(error).__name__}: {error}"
        except BaseException as error:
            said = f"FELL: {type(error).__name__}: {error}"
        grown_by = (status("VmHWM") - before) // MIBI
        os.write(write, json.dumps([said[:20_000], time.process_time() - begun, grown_by]).encode()[:60_000])
        os._exit(0)
    os.close(write)
    ended = b"".join(iter(lambda: os.read(read, 1 << 16), b""))
    os.waitpid(child, 0)
    said, seconds, mibi = json.loads(ended) if ended else ["ENDED: by a limit", SECONDS, 0]
    return {"said": said.split("\n"), "seconds": round(seconds, 1), "MiB": mibi}


def main() -> None:
    import phalanx.data
    import phalanx.runs.verification  # noqa: F401

    for name in CASES:
        if not sys.argv[1:] or name in sys.argv[1:]:
            folder = Path(tempfile.mkdtemp(prefix="phalanx-outside-"))
            try:
                print(json.dumps({name: cost(name, folder)}), flush=True)
            finally:
                shutil.rmtree(folder)


if __name__ == "__main__":
    main()
