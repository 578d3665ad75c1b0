"""The options of `phalanx flower`."""

from pathlib import Path

from phalanx.cli.parser import Parser, path

FLOWER = "Real clients over Flower: keys, the roster of who may take part, a local federation."
FLOWER_ACTIONS = {
    "up": "Start a federation on this machine, each client a process, and run the demonstration.",
    "watch": "Watch a run: rounds, connected clients, the last verdicts.",
    "coordinator": "Make the key by which clients know a coordinator, and its roster, which is empty.",
    "key": "Make a client's private key, and show the public one. The private key stays where it was made.",
    "kit": "Write a consortium's kit: a folder for its coordinator, and an archive for each site.",
    "node": "Be a client's SuperNode: wait for tasks of the coordinator, and carry them out.",
    "executor": "Carry out the coordinator's app, in a process that is ready before a run begins.",
    "request": "Sign a client's request to be enrolled, which proves that it holds its key.",
    "certificates": "Make the certificates of a coordinator, for TLS.",
    "enrol": "Enter a client in the roster, by the request that it has signed.",
    "revoke": "Take a client out. A server that runs notices within seconds.",
    "readmit": "Wipe out a client's strikes. A server that runs notices within seconds.",
    "rotate": "Give a client a new key, by the request that it has signed with that.",
    "roster": "Show who may take part.",
}
KEYS = {"coordinator", "key", "request", "certificates", "enrol", "revoke", "readmit", "rotate", "roster"}


def flower(action: str) -> Parser:
    """Return the parser of one action of `phalanx flower`."""
    parser = Parser(f"phalanx flower {action}", FLOWER_ACTIONS[action])
    if action == "up":
        parser.add_argument("--clients", type=int, default=4, help="How many. (default: %(default)s)")
        help_ = "Steps of the demonstration: rounds, or arrivals of an asynchronous algorithm; 5 if not given."
        parser.add_argument("--steps", type=int, help=help_)
        parser.flag("--asynchronous", "FedAsync without an attacker, instead of Byzantine CFL with one in four.")
        parser.add_argument("--app", type=path, help="A Flower app of your own, in place of the demonstration.")
        help_ = "Where keys, logs and results go. (default: %(default)s)"
        parser.add_argument("--folder", type=path, default=Path("runs/flower"), help=help_)
        parser.flag("--again", "Start over, even if a run was stopped in the folder.")
    elif action == "kit":
        parser.add_argument(
            "consortium", type=path, help="A YAML file: `host`, `sites`, `schema`, `tolerate`, ports and `folder`."
        )
        help_ = "Where it goes. (default: %(default)s)"
        parser.add_argument("--folder", type=path, default=Path("kit"), help=help_)
    elif action == "node":
        _add_node(parser)
    elif action == "executor":
        _add_executor(parser)
    elif action == "watch":
        parser.add_argument("folder", type=path, help="Folder of the run: `folder` of the coordinator.")
        help_ = "Keep an HTML page with the same content, which reloads itself."
        parser.add_argument("--page", type=path, metavar="FILE", help=help_)
    elif action == "key":
        parser.add_argument("file", type=path, help="Where the private key goes.")
    elif action == "request":
        parser.add_argument("name", help="Name of the client in reports, which no other client of the coordinator has.")
        parser.add_argument("key", type=path, help="Its private key, as `phalanx flower key` made it.")
        help_ = "The public key of the coordinator, as `phalanx flower coordinator` has shown it."
        parser.add_argument("coordinator", help=help_)
        help_ = "Where the request goes. (default: %(default)s)"
        parser.add_argument("--out", "-o", type=path, default=Path("request.json"), metavar="FILE", help=help_)
        parser.flag("--again", "Overwrite an existing file.")
    elif action == "certificates":
        parser.add_argument("hosts", nargs="*", help="Names and addresses under which clients reach it.")
        help_ = "Where they go. (default: %(default)s)"
        parser.add_argument("--folder", type=path, default=Path("certificates"), help=help_)
        help_ = "For how long they are valid. (default: %(default)s)"
        parser.add_argument("--days", type=int, default=365, help=help_)
        parser.flag(
            "--renew", "Replace the coordinator's certificate once half of its life is over. Clients need nothing new."
        )
        parser.flag("--again", "Renew it now, whatever its age.")
        help_ = "The authority's key, if it is not in the folder."
        parser.add_argument("--authority", type=path, metavar="FILE", help=help_)
        parser.flag(
            "--next_authority",
            "Make the authority that signs from the next renewal on; clients get ca.crt again, which holds both.",
        )
    else:
        _add_roster(parser, action)
    return parser


def _add_node(parser: Parser) -> None:
    """Add the options of `flower-supernode` that a client needs, by Flower's names."""
    parser.add_argument(
        "--superlink", required=True, metavar="ADDRESS", help="The coordinator's address, with the port."
    )
    help_ = "The certificate that identifies it."
    parser.add_argument("--root-certificates", type=path, required=True, metavar="FILE", help=help_)
    help_ = "The key by which Flower authenticates this node, as `ssh-keygen` made it."
    parser.add_argument("--auth-supernode-private-key", type=path, required=True, metavar="FILE", help=help_)
    help_ = 'What the client\'s app reads, such as \'key="key.pem" table="patients.csv"\'.'
    parser.add_argument("--node-config", required=True, metavar="TEXT", help=help_)
    help_ = "Flower's list of the publishers whose apps this node runs; all if not given."
    parser.add_argument("--trusted-entities", type=path, metavar="FILE", help=help_)
    help_ = "Where it listens for its own executor. (default: %(default)s)"
    parser.add_argument("--host", default="127.0.0.1", help=help_)
    parser.add_argument("--port", type=int, default=9094, help="Likewise. (default: %(default)s)")


def _add_executor(parser: Parser) -> None:
    """Add the options of `flower-superexec` that a coordinator needs, by Flower's names."""
    help_ = "The SuperLink's address on this machine, with the port."
    parser.add_argument("--runtime-api-address", required=True, metavar="ADDRESS", help=help_)
    help_ = "The certificate that identifies it."
    parser.add_argument("--root-certificates", type=path, required=True, metavar="FILE", help=help_)
    help_ = "The secret that the SuperLink was given, too."
    parser.add_argument("--superexec-auth-secret-file", type=path, required=True, metavar="FILE", help=help_)


def _add_roster(parser: Parser, action: str) -> None:
    help_ = "The file that the client made with `phalanx flower request`."
    if action == "enrol":
        parser.add_argument("request", type=path, help=help_)
    elif action not in ("roster", "coordinator"):
        parser.add_argument("client", help="Its name or its id.")
    if action == "rotate":
        parser.add_argument("request", type=path, help=help_)
    if action == "readmit":
        parser.flag("--revoked", "Accept it even if it was revoked; the revocation is undone.")
    help_ = "The file of the roster. (default: %(default)s)"
    parser.add_argument("--roster", type=path, default=Path("roster.yaml"), help=help_)
