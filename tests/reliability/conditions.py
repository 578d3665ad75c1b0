"""Delete or invert, one at a time, the conditions that evidence and durability rest on, and see which test fails.

nice -n 19 python tests/reliability/conditions.py [WORD ...]

Each change of `CONDITIONS` is made in a copy of the repository, and the tests named with it are run; a test that fails
kills it.  Without a change all of them must pass: a test that fails anyway kills nothing.  Words choose those whose
name holds one of them.  `tests/reliability/test_conditions.py` sees that each text is still in the code, once.
"""

import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).parents[2]
SECONDS = 600
PASSED, FIRST = "survived", "__init__.py"
EVIDENCE, RFFL, SHARES = ("flower/test_evidence.py",), ("algorithms/test_rffl.py",), ("weighting/test_subset.py",)


class Condition(NamedTuple):
    """A change: its name, the file in `src/phalanx`, what is there and what takes its place, and the tests to run."""

    name: str
    file: str
    before: str
    after: str
    tests: tuple[str, ...]


def of(*tests):
    return lambda name, file, before, after: Condition(name, file, before, after, tests)


E, R = of(*EVIDENCE), of(*RFFL)
DURABLE, GUARD, ADMISSION = of("flower/test_durability.py"), of("engine/test_guard.py"), of("flower/test_admission.py")
ALTERED, W = of("reliability/test_alterations.py"), of("flower/test_witnesses.py")
CHANGING = of("reliability/test_changing_folders.py")
C, T, S = of("reliability/test_ceilings.py"), of("reliability/test_trust.py"), of("data/test_saved_folders.py")
FIELDS = ("kind", "coordinator", "session", "nonce", "client", "version", "turn", "transfer")
CONDITIONS = (
    *(E(f"{name} is not signed", "flower/codec.py", f"        task.{name},\n", "") for name in FIELDS),
    E(
        "the answer is not signed",
        "flower/codec.py",
        "        task.transfer,\n        digest,",
        "        task.transfer,",
    ),
    E(
        "a signature is not checked",
        "runs/signing.py",
        'return signed_by(key, signature, statement("train", *task, digest))',
        "return True",
    ),
    E("a line of the history is not compared", "runs/evidenced.py", "if compared != old:", "if False:"),
    E("a model is not compared", "runs/evidenced.py", "if hash_of(name) != digest:", "if False:"),
    E("a model that was added is not named", "runs/evidenced.py", "if name not in expected:", "if False:"),
    E("evidence before a resumption counts", "runs/evidenced.py", "if count <= kept}", "if True}"),
    E(
        "a kept update is not compared",
        "runs/evidenced.py",
        "fits = content(kept.update(client)).hex() == evidence.updates.get(client)",
        "fits = True",
    ),
    E("a kept file is not compared", "runs/evidenced.py", "same = hash_of(file) == evidence.kept", "same = True"),
    E(
        "the key at the end is not compared",
        "flower/register.py",
        "if answer.key != member.key or not signed_by",
        "if not signed_by",
    ),
    E(
        "the end is not signed",
        "flower/register.py",
        "or not signed_by(member.key, answer.signature, stated):",
        "or False:",
    ),
    E(
        "the end is for anybody",
        "flower/codec.py",
        'addressee = b"" if record["client"] == NOBODY else own',
        'addressee = b""',
    ),
    of("runs/test_replay.py")(
        "a replayed model is not compared",
        "runs/replay.py",
        "same = (content(served.model).hex(), others(served)) == (about.result, about.others)",
        "same = True",
    ),
    of("flower/test_durability.py")(
        "kept updates are not synced", "runs/updates.py", "            os.fsync(file.fileno())\n", ""
    ),
    of("flower/test_durability.py")(
        "their names are not synced", "runs/updates.py", "        settle(self._folder / UPDATES)\n", ""
    ),
    DURABLE(
        "what is added to a file is not synced",
        "runs/files.py",
        "                os.fsync(file.fileno())\n",
        "                pass\n",
    ),
    DURABLE(
        "the audit trail is not synced",
        "flower/audit.py",
        'append(self._path, b"".join(lines))',
        'append(self._path, b"".join(lines), durable=False)',
    ),
    DURABLE("the trail's name is not synced", "flower/audit.py", "            settle(self._path.parent)\n", ""),
    DURABLE(
        "the history is not synced",
        "runs/history.py",
        "            os.fsync(self._file.fileno())\n",
        "            pass\n",
    ),
    DURABLE("a checkpoint is not synced", "runs/checkpoint.py", "            os.fsync(file.fileno())\n", ""),
    DURABLE("a checkpoint's name is not synced", "runs/checkpoint.py", "    settle(path.parent)\n", ""),
    DURABLE("a roster is not synced", "flower/durable_files.py", "            os.fsync(descriptor)\n", ""),
    DURABLE("a roster's name is not synced", "flower/durable_files.py", "    settle(path.parent)\n", ""),
    DURABLE(
        "a client's list of tasks is not synced", "flower/seen.py", "                os.fsync(file.fileno())\n", ""
    ),
    DURABLE("the list's name is not synced", "flower/seen.py", "                settle(path.parent)\n", ""),
    DURABLE("a client's memory is not synced", "flower/client.py", "            os.fsync(file.fileno())\n", ""),
    DURABLE("the memory's name is not synced", "flower/client.py", "        settle(self.folder)\n", ""),
    of("flower/test_upload_counter.py")(
        "the count of tasks is not synced",
        "flower/upload_counter.py",
        "append(self._path, json.dumps(given)",
        "append(path=self._path, durable=False, lines=json.dumps(given)",
    ),
    of("flower/test_upload_counter.py")(
        "its name is not synced", "flower/upload_counter.py", "            settle(self._path.parent)\n", ""
    ),
    ADMISSION(
        "an introduction may answer another question",
        "flower/register.py",
        "if not signed_by(answer.key, answer.signature, codec.signing_input(task, reply.content)):",
        "if not signed_by(\n            answer.key,\n            answer.signature,\n"
        "            codec.signing_input(task._replace(nonce=answer.nonce), reply.content),\n        ):",
    ),
    ADMISSION(
        "a revoked client is let in", "flower/register.py", "if member is None or member.revoked:", "if member is None:"
    ),
    GUARD(
        "a size of 0 is taken",
        "engine/guard.py",
        "elif not 1 <= size <= self.max_size:",
        "elif not 0 <= size <= self.max_size:",
    ),
    GUARD("any size is taken", "engine/guard.py", "elif not 1 <= size <= self.max_size:", "elif not 1 <= size:"),
    GUARD("an old update is taken", "engine/guard.py", "and age > self.max_staleness:", "and False:"),
    GUARD(
        "an update as old as allowed is not",
        "engine/guard.py",
        "and age > self.max_staleness:",
        "and age >= self.max_staleness:",
    ),
    GUARD("any shape is taken", "engine/guard.py", "if delta.shape != model.shape:", "if False:"),
    GUARD(
        "any type is taken",
        "engine/guard.py",
        "if (delta.dtype, delta.device) != (model.dtype, model.device):",
        "if False:",
    ),
    GUARD(
        "a subclass is taken", "engine/guard.py", "if type(delta) is not Tensor:", "if not isinstance(delta, Tensor):"
    ),
    GUARD("any layout is taken", "engine/guard.py", "if delta.layout != torch.strided:", "if False:"),
    GUARD("any norm is taken", "engine/guard.py", "if not norm <= self.max_norm:", "if norm != norm:"),
    GUARD(
        "the largest norm is not", "engine/guard.py", "if not norm <= self.max_norm:", "if not norm < self.max_norm:"
    ),
    GUARD(
        "a negative loss is taken",
        "engine/guard.py",
        "or not 0 <= float(loss) <= LARGEST:",
        "or not float(loss) <= LARGEST:",
    ),
    GUARD(
        "an infinite loss is taken",
        "engine/guard.py",
        "or not 0 <= float(loss) <= LARGEST:",
        "or not 0 <= float(loss):",
    ),
    GUARD("a second answer is taken", "engine/guard.py", "if reply.client in answered:", "if False:"),
    GUARD(
        "any version is answered",
        "engine/guard.py",
        "if reply.version != sent[reply.client].version:",
        "if False:",
    ),
    of("flower/test_witnesses.py")(
        "a co-signature is not checked",
        "runs/witnessed.py",
        "if not is_cosigned(head, found.cosignature, public_key(found.key)):",
        "if False:",
    ),
    of("flower/test_witnesses.py")(
        "its coordinator is not compared",
        "runs/witnessed.py",
        "found.coordinator not in parties.coordinators:",
        "False:",
    ),
    of("flower/test_witnesses.py")(
        "its key is not compared",
        "runs/witnessed.py",
        "if found.key not in parties.keys.get(client, {found.key}):",
        "if False:",
    ),
    of("flower/test_witnesses.py")(
        "its name is not compared",
        "runs/witnessed.py",
        "if found.name not in parties.names.get(client, {found.name}):",
        "if False:",
    ),
    W(
        "a client without co-signature is not missed",
        "runs/witnessed.py",
        "{*entries, *parties.co_signers}",
        "{*entries}",
    ),
    of("flower/test_witnesses.py")(
        "other writing is taken", "runs/witnessed.py", "len(known) == len(entries) and text != as_json(known)", "False"
    ),
    E(
        "the other files are not in the evidence",
        "runs/evidence.py",
        "for name in files_of_end(folder)}",
        "for name in ()}",
    ),
    of("flower/test_witnesses.py")(
        "the run that has begun is not compared",
        "runs/evidenced.py",
        'if why not in {f"run {session}" for session in sessions}:',
        "if False:",
    ),
    W("a trail without an end is whole", "runs/evidenced.py", "if _sealed(folder) and not known.ended:", "if False:"),
    W(
        "a history without an end is compared in part",
        "runs/evidenced.py",
        "compared = new if ended or _sealed(folder) else new[:most]",
        "compared = new if ended else new[:most]",
    ),
    W(
        "what nobody has co-signed is intact",
        "runs/verification.py",
        'self.sealed and self.proves is not False and not self.unseen else "unknown"',
        'self.sealed and self.proves is not False else "unknown"',
    ),
    W(
        "what nobody has co-signed is complete",
        "runs/verification.py",
        "and not seal_gone and self.proves is not False and not self.unseen",
        "and not seal_gone and self.proves is not False",
    ),
    W(
        "the list of a client makes nothing known",
        "runs/verification.py",
        "seen[witness] = max(seen.get(witness, 0), size)",
        "pass",
    ),
    ALTERED("evidence without signatures proves", "runs/evidenced.py", "proves=bool(signed)", "proves=True"),
    of("flower/test_witnesses.py")(
        "a trail that nobody has co-signed is seen",
        "runs/verification.py",
        "if len(sizes) >= self.quorum else 0)",
        "if len(sizes) >= self.quorum else self.lines)",
    ),
    W("one client is a quorum", "runs/verification.py", "sizes[self.quorum - 1]", "sizes[0]"),
    W(
        "a client that is not in the roster is not named",
        "runs/evidenced.py",
        "        if not key:\n            of = shown(",
        "        if not key:\n            continue\n            of = shown(",
    ),
    W(
        "a key is not compared with the roster",
        "runs/evidenced.py",
        "for other in keys[client] - {key}]",
        "for other in ()]",
    ),
    W(
        "a coordinator is not compared with the roster",
        "runs/evidenced.py",
        "parties.coordinators - {roster.coordinator} if roster.coordinator else ()",
        "()",
    ),
    of("flower/test_identity.py")("a name may mix scripts", "flower/identity.py", "    one_script(name)\n", ""),
    of("cluster/test_crew.py")(
        "a stopped worker of Ray is left", "ray/crew.py", "stopped=pid in found", "stopped=False"
    ),
    of("cluster/test_crew.py")(
        "the process of a stopped worker is left", "ray/crew.py", ".remote(left, ended)", ".remote(left, [])"
    ),
    of("reliability/test_folders.py")(
        "a study in Python takes no lock",
        "experiments/study.py",
        "with alone, Carrier(",
        "with Carrier(",
    ),
    of("data/test_table_ceilings.py")(
        "texts are as long as the longest",
        "data/tables.py",
        "as_texts(np.asarray(column, dtype=object)) if is_text(column) else np.asarray(column)",
        "np.asarray(column.astype(str), dtype=str) if is_text(column) else np.asarray(column)",
    ),
    of("flower/test_witnesses.py")(
        "a broken chain under a new seal is not named",
        "runs/verification.py",
        "        found = found._replace(findings=(*found.findings, *broken))\n",
        "",
    ),
    E(
        "what is no file is read",
        "reading.py",
        "        if stat.S_ISREG(os.fstat(number).st_mode):\n",
        "        if True:\n",
    ),
    of("experiments/test_store.py")(
        "the seal of a record is not compared",
        "experiments/trace.py",
        "if now.get(name) != known.get(name)]",
        "if False]",
    ),
    of("reliability/test_ceilings.py")(
        "the size of a file is not looked at", "reading.py", "    if max(held, len(data)) > most:\n", "    if False:\n"
    ),
    of("reliability/test_ceilings.py")(
        "nesting is not looked at", "reading.py", "if _depth(text) > DEEPEST:", "if False:"
    ),
    of("reliability/test_ceilings.py")(
        "text counts as nesting", "reading.py", 'TEXTS.sub(b"", text).translate', "text.translate"
    ),
    of(*RFFL)(
        "the median is over all",
        "algorithms/rffl.py",
        "float(norms(reputable).quantile(0.5))",
        "float(norms(deltas).quantile(0.5))",
    ),
    of(*RFFL, "algorithms/test_agreement.py")(
        "who disagrees stays in the warm-up",
        "algorithms/rffl.py",
        "(i in disagree or not (lenient or i in c.trains))",
        "(not lenient)",
    ),
    of(*SHARES)(
        "more attackers than clients at once",
        "weighting/truncation.py",
        "f, q = min(attackers, size, len(N)), min(size, len(N))",
        "f, q = attackers, min(size, len(N))",
    ),
    of(*SHARES, "weighting/test_truncation.py", "weighting/test_certificate.py")(
        "more attackers than weights",
        "weighting/truncation.py",
        "    f = min(attackers, q)\n    top_f, rest = sum(V[len(V) - f :]), sum(V[: q - f])\n    return Fraction",
        "    f = attackers\n    top_f, rest = sum(V[len(V) - f :]), sum(V[: q - f])\n    return Fraction",
    ),
    C("a hole is read", "reading.py", "            if not _is_hollow(number):\n", "            if True:\n"),
    C("lines are not counted", "reading.py", 'if data.count(b"\\n") > MOST_LINES:', "if False:"),
    C(
        "lines that were packed are not counted",
        "reading.py",
        "    return _counted(data, path)\n\n\ndef _up",
        "    return data\n\n\ndef _up",
    ),
    C("lists are not counted", "reading.py", "if len(brackets) > 2 * MOST_LISTS:", "if False:"),
    C(
        "lines of a sealed folder are not counted",
        "runs/seal.py",
        'if sum(part.count(b"\\n") for part in iter(lambda: file.read(CHUNK), b"")) > MOST_LINES:',
        "if False:",
    ),
    CHANGING(
        "what is read is not compared with the seal",
        "runs/seal.py",
        "if held != (self.known.files.get(name) if lines is None else lines.link):",
        "if False:",
    ),
    CHANGING(
        "a link that is put there late is followed",
        "runs/files.py",
        "    with replacing(_replaceable(real_inside(folder, name), folder / name)) as file:\n        file.write(text)",
        "    write(inside(folder, name), text)",
    ),
    C(
        "a network is made before it is compared with its values",
        "runs/models.py",
        "            if not self.trust:\n                _check_fit",
        "            if False:\n                _check_fit",
    ),
    ADMISSION(
        "a strike that suspends is not said in the history",
        "flower/suspension.py",
        "return standing.strikes + 1 >= self.strikes",
        "return False",
    ),
    C("a model of any size is read", "runs/models.py", "contents(path, LARGEST_MODEL)", "contents(path, 1 << 60)"),
    C(
        "a model says anything about its tensors",
        "runs/models.py",
        '    if int.from_bytes(data[:8], "little") > LARGEST_HEADER:\n',
        "    if False:\n",
    ),
    C("updates of any size are read", "runs/updates.py", "if size > LARGEST_STEP or head", "if head"),
    C("updates say anything of themselves", "runs/updates.py", " or head > LARGEST_HEADER:", ":"),
    C("rows of a trace are not counted", "simulation/traces.py", "if len(rows) == MOST_ROWS:", "if False:"),
    C("a key of any size is read", "flower/identity.py", "contents(path, LARGEST_KEY)", "path.read_bytes()"),
    C(
        "certificates of any size are read",
        "flower/certificates.py",
        "load_pem_x509_certificates(contents(path, LARGEST_KEY))",
        "load_pem_x509_certificates(path.read_bytes())",
    ),
    C(
        "an authority's key of any size is read",
        "flower/certificates.py",
        "load_pem_private_key(contents(path, LARGEST_KEY), None)",
        "load_pem_private_key(path.read_bytes(), None)",
    ),
    C(
        "a pipe is watched",
        "flower/live.py",
        "self._turn_to(opened(self._path))",
        'self._turn_to(self._path.open("rb"))',
    ),
    W(
        "files that do not say whose they are count apart",
        "runs/witnessed.py",
        'seen.client >= 0), "")',
        "seen.client >= 0), str(path))",
    ),
    T(
        "what is read imports what it names",
        "trust.py",
        "    if policy.closed and module not in policy.allowed:\n        raise _untrusted(path, module)\n    return",
        "    return",
    ),
    T("nobody says what is imported", "trust.py", "        policy.say(f", "        str(f"),
    T("a folder is no package", "trust.py", "spec.submodule_search_locations is None", "False"),
    T("what is no class is public", "trust.py", " and isinstance(getattr(found, name), type)", ""),
    of("data/test_table_ceilings.py")(
        "numbers that texts become are not counted",
        "data/tables.py",
        "if most is not None and rows * len(self.columns) > most:",
        "if False:",
    ),
    of("data/test_table_ceilings.py")(
        "columns are not counted", "data/table_ceilings.py", "if count > MOST_COLUMNS:", "if False:"
    ),
    of("data/test_images.py")(
        "pixels of all images are not counted", "data/images.py", "min(self.most_pixels, left)", "self.most_pixels"
    ),
    S(
        "a compressed file of Arrow is loaded",
        "data/saved_folders.py",
        "                if _is_compressed(about):\n",
        "                if False:\n",
    ),
    S(
        "names lead out of a data set",
        "data/saved_folders.py",
        "if not (about.parent / name).resolve().is_relative_to(folder.resolve()):",
        "if False:",
    ),
    S("examples are not counted", "data/saved_folders.py", "if len(split) > MOST_CELLS:", "if False:"),
    S(
        "images are names of files",
        "data/saved_folders.py",
        'if item is None or item.get("bytes") is None:',
        "if False:",
    ),
    S(
        "pixels of a data set are not counted",
        "data/saved_folders.py",
        "            if left < 0:\n",
        "            if False:\n",
    ),
    of("cli/test_model_tables.py")(
        "a record has any file read",
        "cli/models.py",
        '"" if own is None or reads_files() else elsewhere(own, place)',
        '""',
    ),
)


def tried(condition: Condition, copy: Path) -> str:
    """Make a change in a copy, run its tests, take it back, and return what became of it."""
    path = copy / "src/phalanx" / condition.file
    source = path.read_text()
    path.write_text(source.replace(condition.before, condition.after))
    own = {"PYTHONPATH": f"{copy / 'src'}:{copy}", "OMP_NUM_THREADS": "1", "PYTHONDONTWRITEBYTECODE": "1"}
    command = [
        "pytest",
        "-qx",
        "-m",
        "not slow",
        "-p",
        "no:cacheprovider",
        *(f"tests/{name}" for name in condition.tests),
    ]
    how = {"capture_output": True, "text": True, "timeout": SECONDS}
    try:
        ended = subprocess.run([sys.executable, "-m", *command], cwd=copy, env=os.environ | own, check=False, **how)
    except subprocess.TimeoutExpired:
        return "killed: too long"
    finally:
        path.write_text(source)
    failed = [
        line.partition(" - ")[0]
        for line in ended.stdout.splitlines()
        if line.startswith(("FAILED tests/", "ERROR tests/"))
    ]
    if ended.returncode == 1 and failed:
        return f"killed: {failed[0]}"
    return PASSED if ended.returncode == 0 else f"survived (pytest ended with {ended.returncode})"


def main() -> int:
    words, left = sys.argv[1:], 0
    chosen = [one for one in CONDITIONS if not words or any(word in one.name for word in words)]
    with tempfile.TemporaryDirectory() as folder:
        copy = Path(folder) / "copy"
        for name in ("src", "tests", "papers"):
            shutil.copytree(ROOT / name, copy / name, ignore=shutil.ignore_patterns("__pycache__"))
        shutil.copy(ROOT / "pyproject.toml", copy)
        passed = set()
        for condition in chosen:
            if (
                condition.tests not in passed
                and (how := tried(Condition("nothing", FIRST, "", "", condition.tests), copy)) != PASSED
            ):
                raise SystemExit(f"Without a change, too, of {', '.join(condition.tests)}: {how}")
            passed.add(condition.tests)
            how = tried(condition, copy)
            left += how.startswith("survived")
            print(f"{condition.file}: {condition.name}: {how}", flush=True)
    print(f"{len(chosen) - left} of {len(chosen)} killed")
    return 1 if left else 0


if __name__ == "__main__":
    sys.exit(main())
