"""`phalanx flower`: keys, certificates and the roster. Nothing here needs torch or Flower, so it begins at once."""

from collections.abc import Callable, Mapping
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

from rich.console import Console

from phalanx.cli.checks import check_folder
from phalanx.cli.consoles import say
from phalanx.cli.parser import Options
from phalanx.errors import InfeasibleError
from phalanx.flower.certificates import (
    CA,
    CA_KEY,
    CERTIFICATE,
    KEY,
    certificate_of,
    half_life,
    make_certificates,
    renew,
    succeed,
)
from phalanx.flower.durable_files import replace_durably
from phalanx.flower.identity import COORDINATOR_KEY, EnrolmentRequest, Roster, as_text, load_key, new_key, public_text

CENTURY = 36_500  # days


def key(options: Options, console: Console) -> int:
    """Make a new key; show its public half."""
    try:
        made = new_key(options.file)
    except FileExistsError as error:
        raise InfeasibleError(
            f"There is a {options.file}, and a key is not written over: the coordinator knows its client by it. Choose "
            "another name, or move it away."
        ) from error
    say(console, f"Private key: {options.file}. It stays here.")
    say(console, f"Public key: {public_text(made)}")
    return 0


def certificates(options: Options, console: Console) -> int:
    """Make the certificates of a coordinator, renew its own, or make the next authority."""
    if not 1 <= options.days <= CENTURY:
        raise InfeasibleError(f"--days must be 1 to {CENTURY}, got {options.days}.")
    if options.renew and options.next_authority:
        raise InfeasibleError("Give --renew or --next_authority: an authority signs from the renewal after it on.")
    if options.renew or options.next_authority:
        if options.hosts:
            raise InfeasibleError("The hosts stay those of the certificate. Leave them out, or make new certificates.")
        return (_renewed if options.renew else _succeeded)(options, console)
    if not options.hosts:
        raise InfeasibleError("Give HOSTS: names and addresses under which clients reach the coordinator.")
    check_folder(options.folder)
    there = [name for name in (CA, CA_KEY, CERTIFICATE, KEY) if (options.folder / name).exists()]
    if there:
        raise InfeasibleError(
            f"There is a {options.folder / there[0]}, and clients that trust it would refuse another. "
            "--renew replaces what expires. Else choose another --folder, or move it away."
        )
    make_certificates(options.folder, options.hosts, options.days)
    folder = options.folder
    say(console, f"For the SuperLink: {folder}/{CERTIFICATE} and {folder}/{KEY}.")
    say(console, f"For each client: {folder}/{CA}.")
    say(console, f"For renewals only, so keep it offline: {folder}/{CA_KEY}.")
    return 0


def _renewed(options: Options, console: Console) -> int:
    due = half_life(certificate_of(options.folder))
    if not options.again and datetime.now(UTC) < due:
        say(console, f"Not due before {due:%Y-%m-%d}, half of its life. (--again renews it now.)")
        return 0
    end = f"{renew(options.folder, options.days, options.authority):%Y-%m-%d}"
    say(console, f"Renewed, to {end}. Clients need nothing. The server reads it when it is reloaded.")
    return 0


def _succeeded(options: Options, console: Console) -> int:
    by = succeed(options.folder)
    say(
        console,
        f"Give {options.folder / CA} to each client before {by:%Y-%m-%d}, when the certificate is renewed "
        f"with the new {CA_KEY}. Until then clients may have either. The old {CA_KEY} signs nothing any more.",
    )
    return 0


def coordinator(options: Options, console: Console) -> int:
    """Make the coordinator's key, and a roster that names it."""
    file = options.roster.with_name(COORDINATOR_KEY)

    def named(roster: Roster) -> Roster:
        if roster.coordinator:
            raise InfeasibleError(
                f"{options.roster} names the key of a coordinator already, and its clients answer no other. Choose "
                "another --roster."
            )
        return replace(roster, coordinator=public_text(new_key(file)))

    try:
        roster = Roster.edit(options.roster, named, new=True)
    except FileExistsError as error:
        raise InfeasibleError(
            f"There is a {file}, and a key is not written over: clients know the coordinator by it. Move it away, or "
            "choose a --roster in another folder."
        ) from error
    say(console, f"Roster: {options.roster}. Private key of the coordinator: {file}.")
    say(console, f"Public key, for its clients, who answer no other: {roster.coordinator}")
    return 0


def request(options: Options, console: Console) -> int:
    """Sign a request to be enrolled."""
    if options.out.exists() and not options.again:
        raise InfeasibleError(f"There is a {options.out} already. Choose another --out, or give --again.")
    made = EnrolmentRequest.sign(options.name, load_key(options.key), options.coordinator)
    replace_durably(options.out, made.text)
    say(console, f"Request, for the coordinator: {options.out}. The private key stays here.")
    say(console, f"Read this to the coordinator, by telephone or in person: {made.key}")
    return 0


def enrol(options: Options, console: Console) -> int:
    """Add a client to the roster."""
    made = EnrolmentRequest.load(options.request)
    roster = Roster.edit(options.roster, lambda roster: roster.adding(made))
    say(console, f"{roster.members[-1].name} is client {roster.members[-1].id}.")
    say(console, _compare(made))
    return 0


def _compare(made: EnrolmentRequest) -> str:
    return f"Its key, which it must read to you, by telephone or in person: {made.key}"


def revoke(options: Options, console: Console) -> int:
    """Revoke a client."""
    return _changed(options, console, "is revoked", lambda roster: {"revoked": True})


def readmit(options: Options, console: Console) -> int:
    """Readmit a client with a clean record."""

    def next_term(roster: Roster) -> dict[str, Any]:
        found = roster.member(options.client)
        if found.revoked and not options.revoked:
            raise InfeasibleError(
                f"Client {found} is revoked. Give --revoked if it is to take part again all the same."
            )
        return {"term": found.term + 1, "revoked": False}

    return _changed(options, console, "is let in again", next_term)


def rotate(options: Options, console: Console) -> int:
    """Replace the key of a client."""
    made = EnrolmentRequest.load(options.request)
    changed = Roster.edit(options.roster, lambda roster: roster.rekeying(roster.member(options.client).id, made))
    say(console, f"{_who(changed, options)} has a new key.")
    say(console, _compare(made))
    return 0


def _who(roster: Roster, options: Options) -> str:
    found = roster.member(options.client)
    return f"Client {found.id} ({found.name})"


def _changed(options: Options, console: Console, what: str, fields: Callable[[Roster], Mapping[str, Any]]) -> int:
    def edited(roster: Roster) -> Roster:
        return roster.changing(roster.member(options.client).id, **fields(roster))

    say(console, f"{_who(Roster.edit(options.roster, edited), options)} {what}.")
    return 0


def roster(options: Options, console: Console) -> int:
    """Print the clients that may take part, one per line."""
    for m in sorted(Roster.load(options.roster).members, key=lambda m: m.id):
        state = "revoked" if m.revoked else f"term {m.term}"
        say(console, f"{m.id:>4}  {as_text(m.key)}  {state}  {m.name}")
    return 0
