"""`phalanx schema sign` and `verify`: the coordinator's signature of a schema, and its check at a site."""

from rich.console import Console

from phalanx.cli.consoles import say
from phalanx.cli.parser import Options
from phalanx.data import Schema
from phalanx.flower.identity import load_key
from phalanx.flower.signed_schema import UnsignedSchemaError, sign_schema, signed_schema


def sign_command(options: Options, console: Console) -> int:
    """Sign a schema; return the exit status."""
    made = sign_schema(options.schema, load_key(options.key))
    digest = Schema.load(options.schema).digest
    say(console, f"{made}: {digest}. Give both files to each site.")
    return 0


def verify_command(options: Options, console: Console) -> int:
    """Check the signature of a schema; return the exit status."""
    try:
        found = signed_schema(options.schema, options.coordinator)
    except UnsignedSchemaError as error:
        say(console, f"error: {error}")
        return 1
    say(console, f"{options.schema}: signed by {options.coordinator}. {found.digest}")
    return 0
