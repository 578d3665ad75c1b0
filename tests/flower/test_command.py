"""`phalanx flower`, but for `up`, which test_live.py tries; and the page that shows its commands."""

import dataclasses
import re
import shlex
import shutil
import ssl
import subprocess
import sys
from pathlib import Path

import pytest
from cryptography.hazmat.primitives.serialization import load_ssh_private_key

from phalanx.cli.flower import cause, clear, excluded
from phalanx.cli.main import main
from phalanx.core import Verdict
from phalanx.flower import Roster, load_key
from phalanx.flower.audit import Entry
from phalanx.flower.demo import plan_of
from phalanx.flower.identity import EnrolmentRequest, as_text, public_bytes, public_text
from phalanx.flower.live import in_words
from phalanx.flower.local_federation import LOGS, LocalFederation, without_room
from phalanx.flower.register import SERVED
from phalanx.runs.schema import StepRecord
from phalanx.runs.session import simulate
from phalanx.training.evaluation import Metrics

DOCS = Path(__file__).parents[2] / "docs"
PAGE = "\n".join((DOCS / f"{name}.md").read_text() for name in ("deployment", "audit", "coming-from"))


@pytest.fixture(autouse=True)
def _here(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)


def new_key(name, capsys):
    assert main(["flower", "key", name]) == 0
    (text,) = re.findall(r"Public key: (ed25519:\S+)", capsys.readouterr().out)
    return text


def request(name, key):
    """The file of the request of a client with a new key, to a coordinator that is made if there is none."""
    if not Path("roster.yaml").exists():
        assert main(["flower", "coordinator"]) == 0
    assert main(["flower", "key", key]) == 0
    assert (
        main(["flower", "request", name, key, Roster.load(Path("roster.yaml")).coordinator, "--out", f"{key}.json"])
        == 0
    )
    return f"{key}.json"


def test_a_client_from_its_key_to_its_end(tmp_path, capsys):
    assert main(["flower", "enrol", request("Lyon", "a.pem")]) == 0
    assert main(["flower", "enrol", request("St. Mary's [bold]", "b.pem")]) == 0
    first, second = (as_text(public_bytes(load_key(Path(f"{name}.pem")))) for name in "ab")
    said = capsys.readouterr().out
    assert "St. Mary's [bold] is client 1." in said
    assert f"Its key, which it must read to you, by telephone or in person: {second}" in said
    assert f"Read this to the coordinator, by telephone or in person: {second}" in said
    roster = Roster.load(tmp_path / "roster.yaml")
    assert roster.owner(public_bytes(load_key(tmp_path / "b.pem"))).id == 1
    assert main(["flower", "rotate", "1", request("St. Mary's [bold]", "c.pem")]) == 0
    third = as_text(public_bytes(load_key(Path("c.pem"))))
    assert main(["flower", "readmit", "1"]) == 0
    assert main(["flower", "revoke", "0"]) == 0
    capsys.readouterr()
    assert main(["flower", "roster"]) == 0
    out = capsys.readouterr().out.splitlines()
    assert out == [f"   0  {first}  revoked  Lyon", f"   1  {third}  term 2  St. Mary's [bold]"]


def test_who_was_revoked_is_let_in_again_only_where_that_is_said(tmp_path, capsys):
    assert main(["flower", "enrol", request("Lyon", "a.pem")]) == 0
    assert main(["flower", "revoke", "0"]) == 0
    assert main(["flower", "readmit", "0"]) == 2
    assert "Client 0 (Lyon) is revoked. Give --revoked if it is to take part again" in capsys.readouterr().err
    assert Roster.load(tmp_path / "roster.yaml").active == {}
    assert main(["flower", "readmit", "0", "--revoked"]) == 0
    (member,) = Roster.load(tmp_path / "roster.yaml").members
    assert (member.revoked, member.term) == (False, 2)


@pytest.mark.parametrize(
    ("command", "why"),
    [
        (["enrol", "none.json"], "There is no request none.json. The client makes it with `phalanx flower request`."),
        (
            ["request", "Lyon", "none.pem", "ed25519:x"],
            "There is no key file none.pem. Make one with `phalanx flower key none.pem`.",
        ),
        (["revoke", "3"], "There is no roster roster.yaml. Make one with `phalanx flower coordinator`."),
        (["up", "--clients", "0"], "--clients must be at least 1, got 0."),
        (["up", "--steps", "0"], "--steps must be at least 1, got 0."),
        (["up", "--app", "nowhere"], "There is no nowhere/pyproject.toml. Name the folder of a Flower app."),
        (["certificates", "localhost", "--days", "0"], "--days must be 1 to 36500, got 0."),
        (["certificates", "localhost", "--days", "9999999"], "--days must be 1 to 36500, got 9999999."),
        (["certificates", "a b"], "A host must be an address such as 10.0.0.7, or a name of letters"),
        (["certificates", "münchen.example"], "Write names in other alphabets in their xn-- form."),
        (["up", "--client", "2"], "There is no option --client. Did you mean --clients?"),
        (
            [],
            "Give a command: up, watch, coordinator, key, kit, node, executor, request, certificates, enrol, revoke,",
        ),
        (
            ["enroll"],
            "There is no command enroll. Did you mean enrol? There are: up, watch, coordinator, key,",
        ),
        (["key"], "Give FILE as well, as in `phalanx flower key FILE`."),
        (["enrol"], "Give REQUEST as well, as in `phalanx flower enrol REQUEST`."),
    ],
)
def test_what_cannot_be_is_told_in_a_sentence(command, why, capsys):
    try:
        status = main(["flower", *command])
    except SystemExit as stop:
        status = stop.code
    assert status == 2
    assert why in capsys.readouterr().err


def test_a_key_is_not_written_over(capsys):
    new_key("a.pem", capsys)
    assert main(["flower", "key", "a.pem"]) == 2
    assert "There is a a.pem, and a key is not written over" in capsys.readouterr().err


def test_the_key_of_a_coordinator_is_made_once(tmp_path, capsys):
    assert main(["flower", "coordinator"]) == 0
    shown = capsys.readouterr().out
    made, files = load_key(tmp_path / "coordinator.pem"), {p: p.read_bytes() for p in tmp_path.glob("[cr]*")}
    assert f"Public key, for its clients, who answer no other: {public_text(made)}" in shown
    assert Roster.load(tmp_path / "roster.yaml").coordinator == public_text(made)
    for roster, why in (("roster.yaml", "names the key of a coordinator already"), ("b.yaml", "not written over")):
        assert main(["flower", "coordinator", "--roster", roster]) == 2
        assert why in capsys.readouterr().err
    assert files == {p: p.read_bytes() for p in tmp_path.glob("[cr]*")}
    assert not (tmp_path / "b.yaml").exists()


def test_a_request_is_not_written_over_unasked(capsys):
    made = request("Lyon", "a.pem")
    again = ["flower", "request", "Nice", "a.pem", Roster.load(Path("roster.yaml")).coordinator, "--out", made]
    assert main(again) == 2
    assert "There is a a.pem.json already" in capsys.readouterr().err
    assert main([*again, "--again"]) == 0
    assert EnrolmentRequest.load(Path(made)).name == "Nice"


def test_nobody_is_enrolled_without_a_proof_and_the_roster_stays_as_it_was(tmp_path, capsys):
    made = request("Lyon", "a.pem")
    assert main(["flower", "enrol", made]) == 0
    before = (tmp_path / "roster.yaml").read_bytes()
    forged = (tmp_path / made).read_text().replace("Lyon", "Nice")
    (tmp_path / "forged.json").write_text(forged)
    for name, why in ((made, "Each client needs its own key"), ("forged.json", "not signed by the key that it names")):
        assert main(["flower", "enrol", name]) == 2
        assert why in capsys.readouterr().err
        assert (tmp_path / "roster.yaml").read_bytes() == before


def test_the_help_speaks_of_paths_and_of_no_classes(capsys):
    with pytest.raises(SystemExit):
        main(["flower", "up", "--help"])
    out = " ".join(capsys.readouterr().out.split())
    assert "Where keys, logs and results go. (default: runs/flower)" in out


def test_certificates_are_those_of_the_hosts(tmp_path, capsys):
    assert main(["flower", "certificates", "coordinator.example", "10.0.0.7", "--folder", "door"]) == 0
    assert (tmp_path / "door" / "server.key").stat().st_mode & 0o777 == 0o600
    context = ssl.create_default_context(cafile=str(tmp_path / "door" / "ca.crt"))
    server = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    server.load_cert_chain(tmp_path / "door" / "server.crt", tmp_path / "door" / "server.key")
    for host, good in (("coordinator.example", True), ("10.0.0.7", True), ("other.example", False)):
        assert shaken_hands(context, server, host) is good


def test_certificates_are_not_written_over(capsys):
    assert main(["flower", "certificates", "localhost", "--folder", "door"]) == 0
    before = Path("door/ca.crt").read_bytes()
    assert main(["flower", "certificates", "localhost", "--folder", "door"]) == 2
    assert "There is a door/ca.crt, and clients that trust it would refuse another" in capsys.readouterr().err
    assert Path("door/ca.crt").read_bytes() == before


def test_a_run_that_failed_is_told_by_its_error_alone():
    log = (
        'Loading project configuration...\nTraceback (most recent call last):\n  File "server.py", line 3, in main\n'
        "    coordinate()\nphalanx.core.InfeasibleError: 2 of the 3 clients enrolled.\n  node 7: its key is not in the "
        "roster\n"
        "\x1b[91mERROR \x1b[0m:     Exit Code: 201\n\nAn unhandled exception occurred in the ServerApp.\n"
    )
    assert cause(log) == "2 of the 3 clients enrolled.\n  node 7: its key is not in the roster"
    assert cause("Failed to load\n") == "Failed to load\n"
    assert cause("x" * 9000) == "x" * 1500


@pytest.mark.parametrize(
    "said", ["(sqlite3.OperationalError) database or disk is full", "OSError: [Errno 27] File too large"]
)
def test_a_log_that_speaks_of_a_full_disk_is_named(said, tmp_path):
    (tmp_path / LOGS).mkdir()
    (tmp_path / LOGS / "node-0.log").write_text("INFO: started\n")
    assert without_room(tmp_path) == ""
    (tmp_path / LOGS / "superlink.log").write_text(f"Traceback\n{said}\n(Background on this error)\n")
    assert without_room(tmp_path) == (
        f"The disk of {tmp_path} is full, or your quota of it, as {tmp_path / LOGS / 'superlink.log'} says. Free some "
        "space; then repeat the command."
    )


def entry(event, client, score=None, why="far away", step=2):
    return Entry("2026-11-21T20:16:00.000Z", 1.0, step, step, event, client, "Lyon", why, score)


def test_who_was_excluded_is_said_at_the_end_with_reason_and_figure():
    trail = [entry("enrolled", 0), entry("filtered", 1, 0.5), entry("excluded", 2, -0.123456), entry("suspended", 3)]
    assert list(excluded(trail)) == [
        "Client 2 (Lyon): excluded in step 2: far away (-0.123)",
        "Client 3 (Lyon): suspended in step 2: far away",
    ]


def test_who_takes_part_again_was_not_excluded_and_others_are_named_once():
    trail = [
        *(entry("suspended", 0, step=step) for step in (1, 2)),
        entry("suspended", 1),
        entry("re-admitted", 1, why="by the roster, in term 2"),
        entry("revoked", 2),
        entry("re-admitted", 2, why="by the roster, after it was revoked"),
        entry("suspended", 3),
        entry("revoked", 3, why="by the roster"),
        entry("re-admitted", 3, why=SERVED),
        entry("suspended", 4),
        entry("excluded", 4, 0.5, "for good"),
        entry("re-admitted", 4, why=SERVED),
    ]
    assert [*excluded(trail)] == [
        "Client 0 (Lyon): suspended in step 2: far away",
        "Client 3 (Lyon): revoked in step 2: by the roster",
        "Client 4 (Lyon): excluded in step 2: for good (0.5)",
    ]


@pytest.mark.parametrize("clients", [4, 10])
@pytest.mark.parametrize("seed", range(3))
def test_the_demonstration_excludes_its_attackers_and_nobody_else(clients, seed):
    plan = dataclasses.replace(plan_of(clients, 5, asynchronous=False), seed=seed)
    summary = simulate(plan).summary
    assert summary.detection.true_positives == clients // 4
    assert summary.detection.false_positives == 0
    assert summary.final.accuracy > 0.75


def test_a_new_run_in_a_folder_removes_all_but_audit_trails_and_how_often_clients_were_asked(tmp_path):
    results = tmp_path / "run"
    clear(results)
    kept = ["asked.jsonl", "audit-20261121T201600.000000Z.jsonl", "audit.jsonl", "lock"]
    for name in ("checkpoint", "history.jsonl", "model.safetensors", *kept):
        (results / name).write_text("")
    (results / "more").mkdir()
    clear(results)
    assert sorted(p.name for p in results.iterdir()) == [*kept, "more"]


def shaken_hands(client, server, host):
    to_client, to_server = ssl.MemoryBIO(), ssl.MemoryBIO()
    one = client.wrap_bio(to_client, to_server, server_hostname=host)
    other = server.wrap_bio(to_server, to_client, server_side=True)
    for _ in range(10):
        for side in (one, other):
            try:
                side.do_handshake()
            except ssl.SSLWantReadError:
                continue
            except ssl.SSLCertVerificationError:
                return False
    return one.version() is not None


def test_a_step_of_the_history_in_words():
    step = StepRecord(
        step=3,
        version=3,
        seconds=17.25,
        metrics=Metrics(accuracy=0.5),
        verdicts={0: Verdict(True, 1.0), 1: Verdict(False, 0.0, reason="far away")},
        lost={2: "no answer within 90 s"},
    )
    assert in_words(step) == (
        "step   3    17.2 s  accuracy 50.0 %  updates of clients 0, 1  not used: 1 (far away)  "
        "lost: 2 (no answer within 90 s)"
    )


# --- the page


def commands(program):
    text = PAGE.replace("\\\n", " ")
    return [
        shlex.split(c) for c in re.findall(rf"(?:^ *|`|=\S*/)({program} [^`\n]*?)(?:`|;|$| makes)", text, re.MULTILINE)
    ]


def test_the_page_shows_commands_that_there_are(capsys):
    shown = commands("phalanx flower")
    assert len(shown) >= 7
    for _, _, action, *words in shown:
        with pytest.raises(SystemExit) as stop:
            main(["flower", action, "--help"])
        assert not stop.value.code, action
        help_ = capsys.readouterr().out
        assert all(word in help_ for word in words if word.startswith("--"))


def test_keys_and_the_roster_need_neither_torch_nor_flower(tmp_path):
    """So that each of the many commands of an approval begins at once."""
    code = """
import sys
from pathlib import Path
from phalanx.cli import flower_options
from phalanx.cli.main import main
from phalanx.flower.identity import Roster
for words in (
    ["coordinator"], ["certificates", "localhost"], ["key", "a.pem"], ["request", "a", "a.pem", "KEY"],
    ["enrol", "request.json"], ["revoke", "a"], ["readmit", "a", "--revoked"], ["key", "b.pem"],
    ["request", "a", "b.pem", "KEY", "--again"], ["rotate", "a", "request.json"], ["roster"],
):
    given = [Roster.load(Path("roster.yaml")).coordinator if word == "KEY" else word for word in words]
    assert main(["flower", *given]) == 0, words
    flower_options.KEYS.discard(words[0])
assert not flower_options.KEYS, "each of these commands is tried"
print("loaded", *sys.modules)
"""
    command = [sys.executable, "-c", code]
    done = subprocess.run(command, check=False, cwd=tmp_path, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    loaded = done.stdout.rpartition("loaded")[2].split()
    assert "phalanx.flower.identity" in loaded
    assert not {"torch", "flwr", "numba", "numpy"}.intersection(loaded)


def program_of(words):
    return " ".join(map(str, words[:3] if words[0] == "phalanx" else words[:1]))


def started(tmp_path, monkeypatch):
    """What a federation on this machine starts, by the program, with the options."""
    seen = {}
    monkeypatch.setattr(LocalFederation, "_start", lambda self, name, *words: seen.update({program_of(words): words}))
    monkeypatch.setattr(LocalFederation, "_wait_for_server", lambda self: None)
    federation = LocalFederation(tmp_path, 1)
    federation.start_server()
    federation.start_node(0)
    return {program: {str(word) for word in words if str(word).startswith("--")} for program, words in seen.items()}


def test_a_federation_on_one_machine_is_started_as_the_page_tells_for_several(tmp_path, monkeypatch):
    there = started(tmp_path, monkeypatch)
    assert there.keys() == {"flower-superlink", "phalanx flower executor", "phalanx flower node"}
    of_one_machine = {"--host", "--port"}  # several SuperNodes, which need ports of their own
    for program, options in there.items():
        (shown,) = [command for command in commands(program) if len(command) > 2]
        wanted = {word for word in shown if word.startswith("--")}
        assert options - (of_one_machine if program == "phalanx flower node" else set()) == wanted, program


@pytest.mark.parametrize("program", ["ssh-keygen", "openssl"])
def test_the_keys_of_the_page_are_made_by_its_commands(program, tmp_path):
    if shutil.which(program) is None:
        pytest.skip(f"there is no {program}")
    (command,) = commands(program)
    subprocess.run([word.replace("/srv/phalanx", str(tmp_path)) for word in command], check=True, timeout=60)
    if program == "openssl":
        assert (tmp_path / "superexec.secret").stat().st_size == 32
        return
    private = load_ssh_private_key((tmp_path / "node").read_bytes(), None)
    assert private.curve.name == "secp384r1"
    assert (tmp_path / "node.pub").is_file()


@pytest.mark.slow
@pytest.mark.parametrize("program", ["flower-superlink", "phalanx flower executor", "phalanx flower node"])
def test_the_page_shows_options_that_flower_has(program):
    shown = [word for command in commands(program) for word in command if word.startswith("--")]
    assert len(shown) >= 3
    flowers = {"phalanx flower node": "flower-supernode", "phalanx flower executor": "flower-superexec"}
    tool = Path(sys.executable).parent / flowers.get(program, program)
    known = subprocess.run([tool, "--help"], capture_output=True, text=True, check=True, timeout=120).stdout
    assert [word for word in shown if word not in known] == []


def test_what_the_page_shows_of_an_app_is_python():
    for block in re.findall(r"^```python\n(?!>>> )(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL):
        compile(block, "deployment.md", "exec")


def test_the_page_leads_somewhere():
    for target in re.findall(r"\]\((?!https?:)([^)#]+)", PAGE):
        assert (DOCS / target).exists(), target
