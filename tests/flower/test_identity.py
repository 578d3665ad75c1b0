"""Keys and the roster."""

import base64
import dataclasses
import re
from datetime import UTC, datetime, timedelta

import msgspec
import pytest
import yaml
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from flower.federations import KEYS, MINE, named, roster_of
from phalanx.flower import Member, Roster, load_key, new_key
from phalanx.flower.identity import (
    AHEAD,
    LONGEST_NAME,
    VALID,
    EnrolmentRequest,
    P,
    as_text,
    coordinator_key,
    from_text,
    is_owned,
    public_bytes,
    public_text,
    signed_by,
)


def test_a_key_is_read_as_it_was_made_and_by_nobody_else(tmp_path):
    key = new_key(tmp_path / "keys" / "a.pem")
    assert public_bytes(load_key(tmp_path / "keys" / "a.pem")) == public_bytes(key)
    assert (tmp_path / "keys" / "a.pem").stat().st_mode & 0o777 == 0o600
    with pytest.raises(FileExistsError):
        new_key(tmp_path / "keys" / "a.pem")


def test_a_key_that_others_can_read_is_refused(tmp_path):
    new_key(tmp_path / "a.pem")
    (tmp_path / "a.pem").chmod(0o640)
    with pytest.raises(ValueError, match=r"Others can read .*a\.pem \(mode 640\).*chmod 600"):
        load_key(tmp_path / "a.pem")


def test_what_is_no_key_is_refused(tmp_path):
    with pytest.raises(ValueError, match=r"There is no key file .* `phalanx flower key"):
        load_key(tmp_path / "none.pem")
    (tmp_path / "b.pem").touch(0o600)
    with pytest.raises(ValueError, match="holds no private key"):
        load_key(tmp_path / "b.pem")


def test_public_keys_as_text():
    key = public_bytes(KEYS[0])
    assert from_text(as_text(key)) == key
    text = as_text(key)
    between = text[:20] + "!\n" + text[20:]  # a lenient reader skips them
    for wrong in ("", "ed25519:", text[:-4], text[8:], "ed25519:" + "!" * 44, between, as_text(key + b"x")):
        with pytest.raises(ValueError, match="A public key must be ed25519: followed by 44 characters"):
            from_text(wrong)


EIGHT = int("05fc536d880238b13933c6d305acdfd5f098eff289f4c345b027b2c28f95e826", 16)  # y of points of order 8
LOW = (0, 1, P - 1, P, P + 1, EIGHT, P - EIGHT)  # y of the points whose order divides 8, in all their forms


@pytest.mark.parametrize("y", LOW)
@pytest.mark.parametrize("sign", [0, 1])
def test_keys_for_which_anybody_can_sign_are_refused(y, sign):
    key = (y + (sign << 255)).to_bytes(32, "little")
    with pytest.raises(ValueError, match="anybody, or nobody, can sign for it"):
        from_text(as_text(key))


def test_such_keys_take_signatures_that_nobody_made():
    identity = (1).to_bytes(32, "little")
    forged = identity + bytes(32)  # R is the identity, and s is 0
    assert signed_by(identity, forged, b"whatever is stated")


def test_keys_that_are_no_points_or_have_two_forms_are_refused():
    keys = [number.to_bytes(32, "little") for number in range(2, 200)]
    known = [is_owned(key) for key in keys]
    assert 60 < sum(known) < 140, "half of all numbers are the y of a point"
    assert not any(is_owned((int.from_bytes(key, "little") + P).to_bytes(32, "little")) for key in keys[:10])
    assert all(is_owned(public_bytes(Ed25519PrivateKey.generate())) for _ in range(50))


UNPRINTED = "\u3164\u115f\u2800\u034f\ufe0f\u17b4"  # Python takes them for printable, and fonts show nothing


@pytest.mark.parametrize(
    ("name", "why"),
    [
        ("", "needs a name"),
        ("\u200b\u2060\xad", "needs a name"),
        (" \t", "needs a name"),
        ("x" * (LONGEST_NAME + 1), "A name has at most 100 characters, got 101"),
        ("Clinic-1", r"its own name, but clients 1 \(clinic-1\) and 2 \(Clinic-1\) share clinic-1"),
        (" \uff23linic-1", "its own name"),  # a wide letter
        *[(hidden * 2, "needs a name") for hidden in UNPRINTED],
        *[(f"clinic{hidden}-1", "its own name") for hidden in UNPRINTED],
    ],
)
def test_names_are_not_empty_and_of_one_client(name, why, tmp_path):
    with pytest.raises(ValueError, match=why):
        named(2).adding(EnrolmentRequest.sign(name, KEYS[5], MINE))
    entries = [
        {"id": i, "name": n, "key": as_text(public_bytes(KEYS[i]))} for i, n in enumerate(("a", "clinic-1", name))
    ]
    (tmp_path / "roster.yaml").write_text(yaml.safe_dump({"clients": entries}))
    if len(name) <= LONGEST_NAME:
        with pytest.raises(ValueError, match=r"is not a roster: (Client 2 has no name|Each client needs its own name)"):
            Roster.load(tmp_path / "roster.yaml")


LOOKING = dict(zip("aceopxyABEHIKMOPTX", "асеорхуАВΕΗΙΚΜΟΡΤΧ", strict=True))  # of others


@pytest.mark.parametrize("name", ["hospital", "CLINIC", "Praxis Koch", "MATERNITE"])
def test_names_with_letters_of_another_script_among_theirs_are_refused(name):
    """Each letter that has its like among Cyrillic and Greek ones, in its place."""
    EnrolmentRequest.sign(name, KEYS[5], MINE)
    places = [at for at, letter in enumerate(name) if letter in LOOKING]
    assert len(places) > 1
    for at in places:
        odd = LOOKING[name[at]]
        with pytest.raises(ValueError, match=f"mixes letters of .* and .*'{odd}' is (CYRILLIC|GREEK) .*one script"):
            EnrolmentRequest.sign(name[:at] + odd + name[at + 1 :], KEYS[5], MINE)


@pytest.mark.parametrize(
    "name",
    ["Zürich 2", "Oʻahu", "Больница 3", "東京 General", "さくら病院", "서울 Hospital", "مستشفى"],
)  # fmt: skip
def test_names_of_any_one_script_are_taken(name):
    assert named(1).adding(EnrolmentRequest.sign(name, KEYS[5], MINE)).members[-1].name == name


# --- requests


def test_a_request_to_another_coordinator_is_of_no_use_to_this_one():
    request = EnrolmentRequest.sign("Lyon", KEYS[5], as_text(public_bytes(KEYS[6])))
    for act in (named(2).adding, lambda made: named(2).rekeying(1, made), roster_of(2).adding):
        with pytest.raises(ValueError, match="The request is to the coordinator with the key ed25519:"):
            act(request)


@pytest.mark.parametrize("coordinator", ["3f9a0c5d7e21b864", as_text((1).to_bytes(32, "little"))])
def test_a_roster_names_a_coordinator_by_its_key_and_by_nothing_else(coordinator, tmp_path):
    (tmp_path / "roster.yaml").write_text(f"coordinator: {coordinator}\nclients: []\n")
    with pytest.raises(ValueError, match=r"known by its key and no longer by a name.*run `phalanx flower coordinator`"):
        Roster.load(tmp_path / "roster.yaml")


def test_the_key_of_a_coordinator_is_that_which_its_roster_names(tmp_path):
    file = tmp_path / "roster.yaml"
    named(2).save(file)
    with pytest.raises(ValueError, match=r"There is no .*coordinator\.pem, the coordinator's private key"):
        coordinator_key(None, file, MINE)
    own = new_key(tmp_path / "coordinator.pem")
    with pytest.raises(
        ValueError, match=rf"The public key of the coordinator is .* the roster names {re.escape(MINE)}"
    ):
        coordinator_key(None, file, MINE)
    assert public_bytes(coordinator_key(None, file, public_text(own))) == public_bytes(own)
    assert coordinator_key(KEYS[11], file, MINE) is KEYS[11]
    assert coordinator_key(None, roster_of(2), "") is None
    with pytest.raises(ValueError, match="the roster names none"):
        coordinator_key(KEYS[11], roster_of(2), "")
    with pytest.raises(ValueError, match=r"Give the private one: Coordinator\(key"):
        coordinator_key(None, named(2), MINE)


def requested(**changes):
    """A request of a client, with fields that somebody changed."""
    return {**msgspec.json.decode(EnrolmentRequest.sign("Lyon", KEYS[0], MINE).text), **changes}


def loaded(path, content, now=None):
    path.write_bytes(msgspec.json.encode(content))
    return EnrolmentRequest.load(path, now)


def test_a_request_proves_that_its_maker_holds_the_key(tmp_path):
    made = EnrolmentRequest.sign("St. Mary's", KEYS[0], MINE)
    (tmp_path / "request.json").write_bytes(made.text)
    assert EnrolmentRequest.load(tmp_path / "request.json") == made
    (member,) = Roster(coordinator=MINE).adding(made).members
    assert (member.id, member.name, member.key) == (0, "St. Mary's", public_bytes(KEYS[0]))
    private = KEYS[0].private_bytes_raw()
    for secret in (private, base64.b64encode(private), private.hex().encode()):
        assert secret not in made.text


NOT_SIGNED = "it is not signed by the key that it names"


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({"name": "Nice"}, NOT_SIGNED),
        ({"coordinator": as_text(public_bytes(KEYS[1]))}, NOT_SIGNED),
        ({"coordinator": "north"}, "A public key must be"),
        ({"key": as_text(public_bytes(KEYS[1]))}, NOT_SIGNED),
        ({"time": "2026-11-26T12:00:00Z"}, NOT_SIGNED),
        ({"signature": base64.b64encode(bytes(64)).decode()}, NOT_SIGNED),
        ({"signature": ""}, NOT_SIGNED),
        ({"signature": "no base64"}, "signature"),
        ({"key": as_text((1).to_bytes(32, "little"))}, "anybody, or nobody, can sign for it"),
        ({"key": "ed25519:AAAA"}, "A public key must be"),
        ({"name": " "}, "needs a name"),
        ({"time": "2026-11-26T12:00:00+01:00"}, "not in UTC"),
        ({"version": 2}, "version"),
        ({"phalanx": "another"}, "another"),
        ({"more": 1}, "more is unknown here"),
    ],
)
def test_a_request_that_its_key_has_not_signed_is_refused(changes, why, tmp_path):
    assert loaded(tmp_path / "request.json", requested()).name == "Lyon"
    with pytest.raises(ValueError, match=rf"request\.json is no request of a client: .*{why}"):
        loaded(tmp_path / "request.json", requested(**changes))


def test_a_key_of_low_order_cannot_request_though_it_has_a_signature_for_all(tmp_path):
    """The forged signature is valid for any message, and the point is refused all the same."""
    forged = {
        "key": as_text((1).to_bytes(32, "little")),
        "signature": base64.b64encode(bytes([1, *bytes(63)])).decode(),
    }
    with pytest.raises(ValueError, match="anybody, or nobody, can sign for it"):
        loaded(tmp_path / "request.json", requested(**forged))


@pytest.mark.parametrize("off", [VALID + timedelta(seconds=2), -AHEAD - timedelta(seconds=2)])
def test_a_request_is_of_no_use_later_and_none_comes_from_the_future(off, tmp_path):
    time = datetime.now(UTC)
    for now, good in ((time + off, False), (time + off * 0.99, True)):
        if good:
            assert loaded(tmp_path / "r.json", requested(), now).name == "Lyon"
        else:
            with pytest.raises(ValueError, match="can be used for 30 days from then on"):
                loaded(tmp_path / "r.json", requested(), now)


@pytest.mark.parametrize("content", [b"", b"[]", b"junk", b"\xff", b"{" * 20_000, b'"' + b"x" * 20_000 + b'"'])
def test_what_is_no_request_is_refused(content, tmp_path):
    (tmp_path / "request.json").write_bytes(content)
    with pytest.raises(ValueError, match=r"request\.json is no request of a client"):
        EnrolmentRequest.load(tmp_path / "request.json")


def test_a_new_key_is_for_the_client_that_has_signed_for_it():
    roster = named(2)
    assert roster.rekeying(1, EnrolmentRequest.sign("Clinic-1", KEYS[7], MINE)).active[1].key == public_bytes(KEYS[7])
    with pytest.raises(ValueError, match="The request is of clinic-0, and client 1 is clinic-1"):
        roster.rekeying(1, EnrolmentRequest.sign("clinic-0", KEYS[7], MINE))
    with pytest.raises(ValueError, match="There is no client 9"):
        roster.rekeying(9, EnrolmentRequest.sign("clinic-9", KEYS[7], MINE))
    with pytest.raises(ValueError, match="Each client needs its own key"):
        roster.rekeying(1, EnrolmentRequest.sign("clinic-1", KEYS[0], MINE))


def test_a_roster_is_read_as_it_was_written(tmp_path):
    roster = roster_of(3).changing(1, revoked=True).changing(2, term=4)
    roster.save(tmp_path / "roster.yaml")
    assert Roster.load(tmp_path / "roster.yaml") == roster
    assert list(roster.active) == [0, 2]


def test_a_roster_is_changed_in_a_copy():
    """Whoever holds one checks signatures against the members that it had."""
    roster = roster_of(2)
    with pytest.raises(dataclasses.FrozenInstanceError):
        roster.coordinator = "another"
    with pytest.raises(dataclasses.FrozenInstanceError):
        roster.members[0].revoked = True


def test_ids_are_never_given_twice():
    roster = named(2).changing(1, revoked=True).adding(EnrolmentRequest.sign("new", KEYS[5], MINE))
    assert [m.id for m in roster.members] == [0, 1, 2]


def test_nobody_takes_part_twice():
    with pytest.raises(ValueError, match=r"its own key, but clients 1 \(clinic-1\) and 2 .*share ed25519:"):
        named(2).adding(EnrolmentRequest.sign("sybil", KEYS[1], MINE))
    with pytest.raises(ValueError, match=r"its own id, but clients 0 \(a\) and 0 \(b\) share 0"):
        Roster((Member(0, "a", public_bytes(KEYS[0])), Member(0, "b", public_bytes(KEYS[1]))))


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("", "is not a roster"),
        ("clients: 3", "it has no list `clients`. Name the file that `phalanx flower coordinator` wrote"),
        ("members: []", "it has no list `clients`"),
        ("junk", "it has no list `clients`"),
        ("clients: [{id: 0, name: a, key: abc}]", "A public key must be"),
        ("clients: [{id: zero, key: abc}]", "id must be int, got 'zero'"),
        ("clients: [{id: -1, key: abc}]", "id must be at least 0"),
        ("clients: [{id: 0, key: abc, rank: 3}]", "unknown rank"),
        ("clients: [{id: 0, key: abc, rank: 3, 1: 2}]", "unknown 1, rank"),
        ("clients: [{id: 0, key: abc, revoked: 1}]", "revoked must be bool, got 1"),
        ("!!python/object/apply:os.system [exit]", "is not a roster"),
    ],
)
def test_a_damaged_roster_is_refused(text, why, tmp_path):
    (tmp_path / "roster.yaml").write_text(text)
    with pytest.raises(ValueError, match=why):
        Roster.load(tmp_path / "roster.yaml")


def test_a_client_that_is_not_there_cannot_be_changed():
    with pytest.raises(
        ValueError, match=r"There is no client 9 in the roster\. Its clients are: 0 \(clinic-0\), 1 \(clinic-1\)\."
    ):
        roster_of(2).changing(9, revoked=True)
