"""`phalanx flower`: keys, certificates and the roster. Nothing here needs torch or Flower, so it begins at once."""

from collections.abc import Callable, Mapping
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

from rich.console import Console

from phalanx.cli.checks import check_folder
from phalanx.cli.consoles import escape
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
from phalanx.flower.identity import (
    COORDINATOR_KEY,
    EnrolmentRequest,
    Roster,
    as_text,
    load_key,
    new_key,
    public_text,
)

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
    console.print(f"Private key: {escape(str(options.file))}. It stays here.", soft_wrap=True)
    console.print(f"Public key: {public_text(made)}", soft_wrap=True)
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
    folder = escape(str(options.folder))
    console.print(f"For the SuperLink: {folder}/{CERTIFICATE} and {folder}/{KEY}.", soft_wrap=True)
    console.print(f"For each client: {folder}/{CA}.", soft_wrap=True)
    console.print(f"For renewals only, so keep it offline: {folder}/{CA_KEY}.", soft_wrap=True)
    return 0


def _renewed(options: Options, console: Console) -> int:
    due = half_life(certificate_of(options.folder))
    if not options.again and datetime.now(UTC) < due:
        console.print(f"Not due before {due:%Y-%m-%d}, half of its life. (--again renews it now.)", soft_wrap=True)
        return 0
    end = renew(options.folder, options.days, options.authority)
    console.print(f"Renewed, to {end:%Y-%m-%d}. Clients need nothing. The server reads it when it is reloaded.",
                  soft_wrap=True)  # fmt: skip
    return 0


def _succeeded(options: Options, console: Console) -> int:
    by = succeed(options.folder)
    console.print(
        f"Give {escape(str(options.folder / CA))} to each client before {by:%Y-%m-%d}, when the certificate is renewed "
        f"with the new {CA_KEY}. Until then clients may have either. The old {CA_KEY} signs nothing any more.",
        soft_wrap=True,
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
    console.print(f"Roster: {escape(str(options.roster))}. Private key of the coordinator: {escape(str(file))}.",
                  soft_wrap=True)  # fmt: skip
    console.print(f"Public key, for its clients, who answer no other: {roster.coordinator}", soft_wrap=True)
    return 0


def request(options: Options, console: Console) -> int:
    """Sign a request to be enrolled."""
    if options.out.exists() and not options.again:
        raise InfeasibleError(f"There is a {options.out} already. Choose another --out, or give --again.")
    made = EnrolmentRequest.sign(options.name, load_key(options.key), options.coordinator)
    replace_durably(options.out, made.text)
    console.print(f"Request, for the coordinator: {escape(str(options.out))}. The private key stays here.",
                  soft_wrap=True)  # fmt: skip
    console.print(f"Read this to the coordinator, by telephone or in person: {made.key}", soft_wrap=True)
    return 0


def enrol(options: Options, console: Console) -> int:
    """Add a client to the roster."""
    made = EnrolmentRequest.load(options.request)
    roster = Roster.edit(options.roster, lambda roster: roster.adding(made))
    console.print(f"{escape(roster.members[-1].name)} is client {roster.members[-1].id}.", soft_wrap=True)
    console.print(_compare(made), soft_wrap=True)
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
    console.print(escape(f"{_who(changed, options)} has a new key."), soft_wrap=True)
    console.print(_compare(made), soft_wrap=True)
    return 0


def _who(roster: Roster, options: Options) -> str:
    found = roster.member(options.client)
    return f"Client {found.id} ({found.name})"


def _changed(options: Options, console: Console, what: str, fields: Callable[[Roster], Mapping[str, Any]]) -> int:
    def edited(roster: Roster) -> Roster:
        return roster.changing(roster.member(options.client).id, **fields(roster))

    console.print(escape(f"{_who(Roster.edit(options.roster, edited), options)} {what}."), soft_wrap=True)
    return 0


def roster(options: Options, console: Console) -> int:
    """Print the clients that may take part, one per line."""
    for m in sorted(Roster.load(options.roster).members, key=lambda m: m.id):
        state = "revoked" if m.revoked else f"term {m.term}"
        console.print(f"{m.id:>4}  {as_text(m.key)}  {state}  {escape(m.name)}", soft_wrap=True)
    return 0
