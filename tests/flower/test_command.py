"""`phalanx flower`, but for `up`, which test_live.py tries; and the page that shows its commands."""

import re
import shlex
import ssl
import subprocess
import sys
from pathlib import Path

import pytest

from phalanx.cli import main
from phalanx.flower import Roster, load_key
from phalanx.flower.command import cause, clear
from phalanx.flower.identity import public_bytes
from phalanx.flower.live import told

PAGE = (Path(__file__).parents[2] / "docs" / "deployment.md").read_text()


@pytest.fixture(autouse=True)
def _here(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)


def new_key(name, capsys):
    assert main(["flower", "key", name]) == 0
    (text,) = re.findall(r"Public key, for the coordinator: (ed25519:\S+)", capsys.readouterr().out)
    return text


def test_a_client_from_its_key_to_its_end(tmp_path, capsys):
    first, second, third = (new_key(f"{name}.pem", capsys) for name in "abc")
    assert main(["flower", "enrol", "Lyon", first]) == 0
    assert main(["flower", "enrol", "St. Mary's", second]) == 0
    assert "St. Mary's is client 1." in capsys.readouterr().out
    roster = Roster.load(tmp_path / "roster.yaml")
    assert roster.owner(public_bytes(load_key(tmp_path / "b.pem"))).id == 1
    assert main(["flower", "rotate", "1", third]) == 0
    assert main(["flower", "readmit", "1"]) == 0
    assert main(["flower", "revoke", "0"]) == 0
    capsys.readouterr()
    assert main(["flower", "roster"]) == 0
    out = capsys.readouterr().out.splitlines()
    assert out == [f"   0  {first}  revoked  Lyon", f"   1  {third}  term 2  St. Mary's"]


@pytest.mark.parametrize(
    ("command", "why"),
    [
        (["enrol", "Lyon", "abc"], "A public key is ed25519: and 44 characters of base64, got 'abc'."),
        (["revoke", "3"], "There is no roster roster.yaml. `phalanx flower enrol` makes one."),
        (["up", "--clients", "0"], "--clients must be at least 1, got 0."),
        (["up", "--steps", "0"], "--steps must be at least 1, got 0."),
        (["up", "--app", "nowhere"], "There is no nowhere/pyproject.toml. Name the folder of a Flower app."),
        (["certificates", "localhost", "--days", "0"], "--days must be 1 to 36500, got 0."),
        (["certificates", "localhost", "--days", "9999999"], "--days must be 1 to 36500, got 9999999."),
        (["certificates", "a b"], "A host is an address such as 10.0.0.7, or a name of letters"),
        (["certificates", "münchen.example"], "Names in other alphabets begin with xn--."),
        (["up", "--client", "2"], "There is no option --client. Did you mean --clients?"),
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
    assert "File exists" in capsys.readouterr().err


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
    assert "There is a door/ca.crt, and who has that certificate" in capsys.readouterr().err
    assert Path("door/ca.crt").read_bytes() == before


def test_a_run_that_failed_is_told_by_its_error_alone():
    log = (
        'Loading project configuration...\nTraceback (most recent call last):\n  File "server.py", line 3, in main\n'
        "    coordinate()\nphalanx.core.Infeasible: 2 of the 3 clients enrolled.\n  node 7: its key is not in the "
        "roster\n"
        "\x1b[91mERROR \x1b[0m:     Exit Code: 201\n\nAn unhandled exception occurred in the ServerApp.\n"
    )
    assert cause(log) == "2 of the 3 clients enrolled.\n  node 7: its key is not in the roster"
    assert cause("Failed to load\n") == "Failed to load\n"
    assert cause("x" * 9000) == "x" * 1500


def test_a_new_run_in_a_folder_removes_all_but_audit_trails(tmp_path):
    results = tmp_path / "run"
    clear(results)
    for name in ("checkpoint", "history.jsonl", "model.pt", "audit.jsonl", "audit-20261121T201600.000000Z.jsonl"):
        (results / name).write_text("")
    (results / "more").mkdir()
    clear(results)
    assert sorted(p.name for p in results.iterdir()) == ["audit-20261121T201600.000000Z.jsonl", "audit.jsonl", "more"]


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


def test_a_line_of_the_history_for_people():
    line = {"step": 3, "seconds": 17.25, "accuracy": 0.5, "lost": {"2": "no answer within 90 s"}}
    line |= {"verdicts": {"0": {"accepted": True, "reason": ""}, "1": {"accepted": False, "reason": "far away"}}}
    assert told(line) == (
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


@pytest.mark.slow
@pytest.mark.parametrize("program", ["flower-superlink", "flower-superexec", "flower-supernode"])
def test_the_page_shows_options_that_flower_has(program):
    shown = [word for command in commands(program) for word in command if word.startswith("--")]
    assert len(shown) >= 3
    tool = Path(sys.executable).parent / program
    known = subprocess.run([tool, "--help"], capture_output=True, text=True, check=True, timeout=120).stdout
    assert [word for word in shown if word not in known] == []


def test_what_the_page_shows_of_an_app_is_python():
    for block in re.findall(r"^```python\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL):
        compile(block, "deployment.md", "exec")


def test_the_page_leads_somewhere():
    folder = Path(__file__).parents[2] / "docs"
    for target in re.findall(r"\]\((?!https?:)([^)#]+)", PAGE):
        assert (folder / target).exists(), target
