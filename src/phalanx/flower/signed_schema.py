"""The coordinator's signature of a schema: over each byte of its file, in a file next to it, `schema.json.sig`."""

import binascii
from hashlib import sha256
from pathlib import Path
from typing import Literal

import msgspec
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from phalanx.core import InfeasibleError
from phalanx.data import Schema
from phalanx.data.table_schema import LARGEST
from phalanx.flower.durable_files import replace_durably
from phalanx.flower.identity import from_text, public_text
from phalanx.reading import contents, from_json
from phalanx.runs.signing import signed_by
from phalanx.runs.statements import statement

SUFFIX = ".sig"  # added to the name of the schema's file
LARGEST_SIGNATURE = 10_000  # bytes of that file


class UnsignedSchemaError(InfeasibleError):
    """The coordinator has not signed a schema as it is."""


class SchemaSignature(msgspec.Struct, frozen=True, forbid_unknown_fields=True, tag_field="phalanx", tag="schema"):
    """The signature of a schema.

    Args:
        coordinator: the public key, as text.
        signature: of the file's SHA-256.
        version: of this form.
    """

    coordinator: str
    signature: bytes
    version: Literal[1] = 1


def signature_file(schema: Path) -> Path:
    """Return where the signature of a schema's file lies."""
    return schema.with_name(schema.name + SUFFIX)


def sign_schema(path: Path, key: Ed25519PrivateKey) -> Path:
    """Sign the file of a schema; return the file of the signature, which replaces an earlier one.

    Args:
        path: of the schema.
        key: the coordinator's.

    Raises:
        OSError: it cannot be read.
        ValueError: it holds no schema.
    """
    text = contents(path, LARGEST)
    Schema.parse(text, str(path))
    made = SchemaSignature(coordinator=public_text(key), signature=key.sign(_stated(text)))
    replace_durably(signature_file(path), msgspec.json.encode(made) + b"\n")
    return signature_file(path)


def _stated(text: bytes) -> bytes:
    return statement("schema", sha256(text).digest())


def signed_schema(path: Path, coordinator: str) -> Schema:
    """Return a schema that the coordinator has signed, as its file is now.

    Args:
        path: of the schema.
        coordinator: the coordinator's public key, as text.

    Raises:
        UnsignedSchemaError: there is no signature, or it is of another key, or of another file.
        OSError: the schema cannot be read.
        ValueError: it is none, or that is no public key.
    """
    key, text, file = from_text(coordinator), contents(path, LARGEST), signature_file(path)
    remedy = f"Ask the coordinator for {path.name} and {file.name}"
    if not file.is_file():
        raise UnsignedSchemaError(f"{path} is not signed: there is no {file.name} next to it. {remedy}.")
    try:
        found = from_json(contents(file, LARGEST_SIGNATURE), SchemaSignature)
    except (ValueError, binascii.Error) as error:
        raise UnsignedSchemaError(f"{file} is no signature of a schema: {error} {remedy}.") from error
    if found.coordinator != coordinator:
        raise UnsignedSchemaError(f"{path} is signed by another coordinator than the one with {coordinator}. {remedy}.")
    if not signed_by(key, found.signature, _stated(text)):
        raise UnsignedSchemaError(f"{path} was changed after it was signed, or never was. {remedy}.")
    return Schema.parse(text, str(path))
