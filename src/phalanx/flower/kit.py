"""A kit for a consortium: one folder for its coordinator, one archive for each site.

An archive holds no secret: a site makes its keys itself, and the coordinator's stay with the coordinator.  Whether an
archive is the coordinator's, a site finds out by telephone: it compares the fingerprint of the authority and the
coordinator's key.  The keys of the authorities are in a folder of their own, which belongs offline.
"""

import io
import re
import shlex
import shutil
import tarfile
import unicodedata
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, fields, replace
from importlib.resources import files
from itertools import chain, combinations, count
from pathlib import Path
from string import Template
from typing import Annotated, Any

import msgspec
import yaml
from cryptography import x509
from cryptography.hazmat.primitives import hashes
from msgspec import Meta
from typing_extensions import override

from phalanx.core import InfeasibleError
from phalanx.data.table_schema import LARGEST as LARGEST_SCHEMA
from phalanx.data.table_schema import SCHEMA_FILE, Schema
from phalanx.fields import CheckedFields, NonNegativeInt
from phalanx.flower.certificates import CA, CA_KEY, authorities_of, general_name, make_certificates, make_secret
from phalanx.flower.identity import COORDINATOR_KEY, LONGEST_NAME, ROSTER, Roster, alike, new_key, public_text
from phalanx.flower.signed_schema import sign_schema
from phalanx.reading import contents, decoded, in_words, load
from phalanx.runs.files import replacing, write
from phalanx.wording import shown, visible

COORDINATORS = {  # files of the coordinator: the template, and the name
    "coordinator.md": "README.md", "nginx.conf": "nginx.conf", "config.toml": "config.toml",
    "superlink.service": "phalanx-superlink.service", "superexec.service": "phalanx-superexec.service",
    "dashboard.json": "dashboard.json",
}  # fmt: skip
SERVICES = {"superlink.service": "superlink", "superexec.service": "superexec", "node.service": "node"}
COMPOSE = "compose.yaml"
IMAGE, PROXY_IMAGE = "phalanx", "nginx:stable"  # of containers: built by the Dockerfile of a checkout; nginx's own
OF_A_SITE = {"site.md": "README.md", "node.service": "phalanx-node.service"}
LARGEST = 1_000_000  # bytes of the description of a consortium
FOLDER = "/srv/phalanx"  # where the files lie on each machine, unless its description says otherwise
TAKEN = ("/tmp", "/home", "/root", "/var/cache/phalanx")  # where a service or container has other files
LOOPBACK_DAYS = 3650  # of the certificate that only the coordinator's own machine sees
COORDINATOR, OFFLINE, SITES = "coordinator", "offline", "sites"  # folders of a kit


@dataclass(frozen=True)
class Site:
    """One site.

    Args:
        name: by which it is enrolled.
        contact: whom to ask there.
    """

    name: str
    contact: str = "not given"


Port = Annotated[int, Meta(ge=1, le=65535)]
PORTS = ("port", "superlink", "metrics", "node")  # must differ: a site may share the coordinator's machine


@dataclass(frozen=True)
class Consortium(CheckedFields):
    """Who takes part, and where they meet.

    Args:
        host: name or address under which sites reach the coordinator.
        sites: those that take part.
        schema: the file of the schema of their tables.
        port: on which they reach it.
        superlink: port of the coordinator's loopback address at which the SuperLink listens.
        metrics: port of the coordinator's loopback address for figures.
        node: port of a site's loopback address at which its node listens.
        folder: where the files lie on each machine.
        tolerate: how many of them may lie.

    Raises:
        InfeasibleError: names are empty, too long or twice there, ports clash, or the host or a figure makes no sense.
    """

    host: str
    sites: tuple[Site, ...]
    schema: Path
    port: Port = 443
    superlink: Port = 8000
    metrics: Port = 9464
    node: Port = 9094
    folder: str = FOLDER
    tolerate: NonNegativeInt = 1

    @override
    def __post_init__(self) -> None:
        super().__post_init__()
        names = [alike(visible(site.name)) for site in self.sites]
        for site in self.sites:
            bad = not alike(site.name) or len(site.name) > LONGEST_NAME or visible(site.name) != site.name
            if bad or site.name.startswith("-"):
                raise InfeasibleError(
                    f"The name of a site must have 1 to {LONGEST_NAME} visible characters and not begin with a hyphen, "
                    f"got {shown(site.name)}."
                )
        if twice := next((name for name in names if names.count(name) > 1), None):
            raise InfeasibleError(f"Two sites are called {shown(twice)}. Give each a name of its own.")
        if ":" in self.host or not isinstance(general_name(self.host), x509.GeneralName):
            raise InfeasibleError(f"host must be a name or an IPv4 address, got {shown(self.host)}.")
        for one, other in combinations(PORTS, 2):
            if (number := getattr(self, one)) == getattr(self, other):
                raise InfeasibleError(f"{one} and {other} must not both be {number}. Give {other} another port.")
        if not re.fullmatch(r"(/[A-Za-z0-9][A-Za-z0-9._-]*)+", self.folder):
            raise InfeasibleError(
                f"folder must be a path from the root of letters, digits, '.', '_' and '-', got {shown(self.folder)}."
            )
        if any(self.folder == place or self.folder.startswith(f"{place}/") for place in TAKEN):
            raise InfeasibleError(
                f"folder must not be {self.folder}, which services do not see or share. Take {FOLDER}."
            )
        if self.tolerate >= len(self.sites) / 2:
            raise InfeasibleError(
                f"tolerate must be below half of the {len(self.sites)} sites, got {self.tolerate}: if half of them "
                "lie, no rule can find out which half."
            )

    @classmethod
    def load(cls, path: Path) -> "Consortium":
        """Read the description of a consortium from a YAML file; the file of its schema is found from there.

        Raises:
            InfeasibleError: the file is missing, or does not say what is needed.
        """
        if not path.is_file():
            raise InfeasibleError(f"There is no file {path}.")
        try:
            found = load(decoded(contents(path, LARGEST, own=True), path.name), LARGEST)
            known = {field.name for field in fields(cls)}
            if isinstance(found, Mapping) and (unknown := sorted(map(str, {*found} - known))):
                raise ValueError(f"it has no field {shown(unknown[0])}. Its fields are: {', '.join(sorted(known))}")
            made = msgspec.convert(found, cls, dec_hook=lambda kind, value: kind(value))
        except ValueError as error:  # also msgspec's
            said = in_words(str(error)).rstrip(".")
            raise InfeasibleError(f"{path} describes no consortium: {said}.") from error
        return replace(made, schema=path.parent / made.schema)


def write_kit(consortium: Consortium, folder: Path) -> dict[str, str]:
    """Write the kit of a consortium.

    Args:
        consortium: who takes part, and where they meet.
        folder: receives `coordinator`, `sites` with an archive for each site, and `offline`.

    Returns:
        What each site compares by telephone: the `fingerprint` of the authority, and the coordinator's `key`.

    Raises:
        InfeasibleError: there is something in the folder already, or the schema cannot be used.
    """
    if folder.exists() and any(folder.iterdir()):
        raise InfeasibleError(f"There is something in {folder}, and keys are not written over. Choose another folder.")
    Schema.load(consortium.schema)
    above, made = [path for path in (folder, *folder.parents) if not path.exists()], list[Path]()
    try:
        for name in (COORDINATOR, OFFLINE, SITES):
            (folder / name).mkdir(parents=True, mode=0o700)
            made.append(folder / name)  # one that is there now is another writer's, with keys
        return _written(consortium, folder)
    except BaseException:  # what there is room for is no kit, and would be in the way of a whole one
        for each in made:
            shutil.rmtree(each, ignore_errors=True)
        with suppress(OSError):
            for each in above:
                each.rmdir()
        raise


def _written(consortium: Consortium, folder: Path) -> dict[str, str]:
    """Write the files of a kit; see `write_kit`."""
    schema, archives = contents(consortium.schema, LARGEST_SCHEMA), archives_of(consortium.sites)
    home, offline, sites = (folder / name for name in (COORDINATOR, OFFLINE, SITES))
    make_certificates(home / "certificates", ["127.0.0.1", "localhost"], LOOPBACK_DAYS)
    make_certificates(home / "proxy", [consortium.host])
    for name in ("certificates", "proxy"):
        (home / name / CA_KEY).replace(offline / f"{name}-{CA_KEY}")
    make_secret(home / "superexec.secret")
    private = new_key(home / COORDINATOR_KEY)
    key = public_text(private)
    Roster(coordinator=key).save(home / ROSTER)
    (authority,) = authorities_of(home / "proxy")
    compared = {"fingerprint": authority.fingerprint(hashes.SHA256()).hex(":").upper(), "key": key}
    said = {
        **compared, "folder": consortium.folder, "host": consortium.host, "tolerate": consortium.tolerate,
        **{name: getattr(consortium, name) for name in PORTS},
        "count": len(consortium.sites), "sites": ", ".join(site.name for site in consortium.sites),
        "archives": ", ".join(archives),
        "ends": f"{authority.not_valid_after_utc:%Y-%m-%d}",
    }  # fmt: skip
    write(home / SCHEMA_FILE, schema)
    signature = sign_schema(home / SCHEMA_FILE, private)
    texts = {name: _filled(name, said) for name in COORDINATORS}
    for kept, text in {
        **{COORDINATORS[name]: text for name, text in texts.items()},
        COMPOSE: _compose(texts, consortium.folder),
    }.items():
        write(home / kept, text.encode())
    for site, archive in zip(consortium.sites, archives, strict=True):
        own = {"name": site.name, "quoted": shlex.quote(site.name), "contact": site.contact}
        texts = {name: _filled(name, {**said, **own}) for name in OF_A_SITE}
        inside = {kept: texts[name].encode() for name, kept in OF_A_SITE.items()}
        inside |= {
            "proxy-ca.crt": (home / "proxy" / CA).read_bytes(),
            COMPOSE: _compose(texts, consortium.folder).encode(),
        }
        _pack(sites / archive, {**inside, SCHEMA_FILE: schema, signature.name: signature.read_bytes()})
    return compared


def _compose(texts: Mapping[str, str], folder: str) -> str:
    """Return the file of `docker compose` whose containers do what the units among some files do."""
    services: dict[str, Any] = {}
    for template in SERVICES.keys() & texts.keys():
        services[SERVICES[template]] = {
            "image": IMAGE,
            "command": command_of(texts[template]),
            "network_mode": "host",
            "working_dir": folder,
            "environment": {"HOME": folder},
            "volumes": [f".:{folder}", "compiled:/var/cache/phalanx"],
            "read_only": True,
            "tmpfs": ["/tmp"],
            "cap_drop": ["ALL"],
            "security_opt": ["no-new-privileges:true"],
            "restart": "unless-stopped",
        }
    if "nginx.conf" in texts:
        services["superexec"]["depends_on"] = ["superlink"]
        parts = {"nginx.conf": "/etc/nginx/conf.d/default.conf"}
        parts |= {name: f"{folder}/{name}" for name in ("proxy", f"certificates/{CA}")}
        services["proxy"] = {
            "image": PROXY_IMAGE,
            "network_mode": "host",
            "volumes": [f"./{name}:{place}:ro" for name, place in parts.items()],
            "read_only": True,
            "tmpfs": ["/var/cache/nginx", "/run"],
            "restart": "unless-stopped",
        }
    made = {"services": dict(sorted(services.items())), "volumes": {"compiled": {}}}
    return f"# Made by `phalanx flower kit`, for `docker compose up --detach` in {folder}.\n" + yaml.safe_dump(made)


def command_of(unit: str) -> list[str]:
    """Return the words of the command in a unit of systemd, of a program without its folder."""
    found = re.search(r"^ExecStart=((?:.*\\\n)*.*)$", unit, re.MULTILINE)
    assert found is not None, "each unit starts something"
    program, *words = shlex.split(found[1].replace("\\\n", " "))
    return [Path(program).name, *words]


def archives_of(sites: Sequence[Site]) -> list[str]:
    """Return the names of the sites' archives, each once."""
    found = list[str]()  # without the suffix
    for site in sites:
        plain = unicodedata.normalize("NFKD", site.name).replace("'", "").encode("ascii", "ignore").decode()
        name = re.sub(r"[^A-Za-z0-9]+", "-", plain).strip("-").lower() or "site"
        numbered = (f"{name}-{k}" for k in count(2))
        found.append(next(each for each in chain([name], numbered) if each not in found))
    return [f"{name}.tar.gz" for name in found]


def _filled(name: str, said: Mapping[str, Any]) -> str:
    return Template((files("phalanx.flower") / "kit_files" / name).read_text(encoding="utf-8")).safe_substitute(said)


def _pack(path: Path, inside: Mapping[str, bytes]) -> None:
    """Write an archive; its files belong to nobody in particular."""
    with replacing(path) as file, tarfile.open(fileobj=file, mode="w:gz") as archive:
        for name, content in inside.items():
            entry = tarfile.TarInfo(name)
            entry.size, entry.mode = len(content), 0o644
            archive.addfile(entry, io.BytesIO(content))
