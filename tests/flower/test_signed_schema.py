"""Sites take the schema that the coordinator's key has signed, byte by byte, and no other."""

import dataclasses

import pytest

from flower.federations import KEYS
from phalanx import LocalSGD
from phalanx.aggregators import Median
from phalanx.algorithms import FedAvg
from phalanx.cli.main import main
from phalanx.core import InfeasibleError
from phalanx.data import Schema
from phalanx.flower import Participant, new_key
from phalanx.flower.client import ClientWorker
from phalanx.flower.gate import UNSIGNED, reason_of
from phalanx.flower.identity import public_text
from phalanx.flower.signed_schema import UnsignedSchemaError, sign_schema, signature_file, signed_schema
from phalanx.models import MLP

TEXT = """{"fields": [
 {"name": "age", "type": "number", "title": "years", "phalanx": {"scaling": {"mean": 50, "deviation": 10}}},
 {"name": "state", "type": "string", "categories": ["healthy", "ill"], "phalanx": {"role": "target"}}]}"""


@pytest.fixture
def signed(tmp_path):
    """A schema with its signature, a table, and the coordinator's key."""
    key = new_key(tmp_path / "coordinator.pem")
    (tmp_path / "schema.json").write_text(TEXT)
    (tmp_path / "site.csv").write_text("age,state\n40,ill\n50,healthy\n60,ill\n")
    sign_schema(tmp_path / "schema.json", key)
    return tmp_path / "schema.json", public_text(key)


def site(schema, coordinator, **options):
    plan = FedAvg(aggregate=Median()), MLP((8,)), LocalSGD(lr=0.1)
    given = {"schema": schema} | options
    return Participant(*plan, schema.parent / "site.csv", key=KEYS[0], coordinator=coordinator, **given)


def test_a_site_takes_a_schema_that_its_coordinator_has_signed(signed):
    schema, coordinator = signed
    assert signed_schema(schema, coordinator) == Schema.load(schema)
    ClientWorker(site(schema, coordinator))
    ClientWorker(site(schema, ""), coordinator)


def test_every_changed_byte_is_found(signed):
    schema, coordinator = signed
    text = schema.read_bytes()
    for k in range(len(text)):
        schema.write_bytes(text[:k] + bytes([text[k] ^ 1]) + text[k + 1 :])
        with pytest.raises(UnsignedSchemaError, match="was changed after it was signed"):
            signed_schema(schema, coordinator)
    for other in (text + b"\n", text[:-1], b""):
        schema.write_bytes(other)
        with pytest.raises(UnsignedSchemaError):
            signed_schema(schema, coordinator)


def test_every_changed_byte_of_a_signature_is_found(signed):
    schema, coordinator = signed
    file = signature_file(schema)
    text = file.read_bytes()
    for k in range(len(text) - 1):
        file.write_bytes(text[:k] + bytes([text[k] ^ 1]) + text[k + 1 :])
        with pytest.raises(UnsignedSchemaError):
            signed_schema(schema, coordinator)


@pytest.mark.parametrize("expected", [None, True, False])
def test_a_site_refuses_a_schema_that_was_changed_in_its_title_alone(expected, signed):
    """The digest does not see it, and the signature does, also where none is expected."""
    schema, coordinator = signed
    before = Schema.load(schema).digest
    schema.write_text(TEXT.replace("years", "months"))
    assert Schema.load(schema).digest == before
    with pytest.raises(UnsignedSchemaError, match="was changed after it was signed") as caught:
        ClientWorker(site(schema, coordinator, signed=expected))
    assert reason_of(caught.value) == UNSIGNED


def test_a_signature_of_another_key_or_none_is_refused(signed, tmp_path):
    schema, coordinator = signed
    sign_schema(schema, new_key(tmp_path / "other.pem"))
    with pytest.raises(UnsignedSchemaError, match="signed by another coordinator"):
        ClientWorker(site(schema, coordinator))
    signature_file(schema).unlink()
    for key in (coordinator, ""):
        with pytest.raises(UnsignedSchemaError, match=r"no schema\.json\.sig next to it.* set signed=False") as caught:
            ClientWorker(site(schema, key), coordinator)
        assert reason_of(caught.value) == UNSIGNED
    with pytest.raises(UnsignedSchemaError, match=r"Ask the coordinator for schema\.json and schema\.json\.sig\.$"):
        ClientWorker(site(schema, coordinator, signed=True))
    ClientWorker(site(schema, coordinator, signed=False))
    ClientWorker(dataclasses.replace(site(schema, coordinator), schema=Schema.load(schema)))
    ClientWorker(site(schema, "any"))


def test_a_key_that_is_named_and_has_not_signed_is_found(signed, tmp_path):
    schema, coordinator = signed
    other = new_key(tmp_path / "other.pem")
    sign_schema(schema, other)
    file = signature_file(schema)
    file.write_text(file.read_text().replace(public_text(other), coordinator))
    with pytest.raises(UnsignedSchemaError, match="or never was"):
        signed_schema(schema, coordinator)


def test_what_nobody_can_check_is_refused(signed):
    schema, coordinator = signed
    with pytest.raises(InfeasibleError, match="A signed schema is a file"):
        dataclasses.replace(site(schema, coordinator, signed=True), schema=Schema.load(schema))
    with pytest.raises(InfeasibleError, match="Nobody knows who signs the schema"):
        ClientWorker(site(schema, "any", signed=True))


def test_a_schema_that_was_replaced_by_another_signed_one_is_found(signed):
    schema, coordinator = signed
    made = dataclasses.replace(site(schema, coordinator))
    assert made.contract is not None
    schema.write_text(TEXT.replace('"mean": 50', '"mean": 51'))
    assert main(["schema", "sign", str(schema), "--key", str(schema.parent / "coordinator.pem")]) == 0
    with pytest.raises(InfeasibleError, match="has changed since it was read"):
        ClientWorker(made)


def test_the_commands_sign_and_verify(signed, capsys):
    schema, coordinator = signed
    assert main(["schema", "verify", str(schema), "--coordinator", coordinator]) == 0
    assert f"signed by {coordinator}. {Schema.load(schema).digest}" in capsys.readouterr().out
    schema.write_text(TEXT.replace("years", "months"))
    assert main(["schema", "verify", str(schema), "--coordinator", coordinator]) == 1
    assert "was changed after it was signed" in capsys.readouterr().out
    assert main(["schema", "sign", str(schema), "--key", str(schema.parent / "coordinator.pem")]) == 0
    assert main(["schema", "verify", str(schema), "--coordinator", coordinator]) == 0
    assert main(["schema", "verify", str(schema), "--coordinator", "nobody"]) == 2
    assert main(["schema", "sign", str(schema.parent / "site.csv")]) == 2
