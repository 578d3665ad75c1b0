"""The Merkle tree against the definitions of RFC 9162 and known vectors, and heads in signed notes."""

import base64
import hashlib
import random

import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from phalanx.runs.transparency import MerkleTree, TreeHead, cosign, goes_on, is_cosigned, open_note, sign_note

LINES = [  # of the test vectors of Certificate Transparency
    bytes.fromhex(text)
    for text in ("", "00", "10", "2021", "3031", "40414243", "5051525354555657", "606162636465666768696a6b6c6d6e6f")
]
ROOTS = [
    "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855",
    "6e340b9cffb37a989ca544e6bb780a2c78901d3fb33738768511a30617afa01d",
    "fac54203e7cc696cf0dfcb42c92a1d9dbaf70ad9e621f4bd8d98662f00e3c125",
    "aeb6bcfe274b70a14fb067a5e5578264db0fa9b51af5e0ba159158f329e06e77",
    "d37ee418976dd95753c1c73862b9398fa2a2cf9b4ff0fdfe8b30cd95209614b7",
    "4e3bbb1f7b478dcfe71fb631631519a3bca12c9aefca1612bfce4c13a86264d4",
    "76e67dadbcdf1e10e1b74ddc608abd2f98dfb16fbce75277b5232a127f2087ef",
    "ddb89be403809e325750d3d263cd78929c2942b7942a34b77e122c9594a74c8c",
    "5dc9da79a70659a9ad559cb701ded9a2ab9d823aad2f4960cfe370eff4604328",
]
PROOFS = {
    (1, 1): [],
    (1, 8): [
        "96a296d224f285c67bee93c30f8a309157f0daa35dc5b87e410b78630a09cfc7",
        "5f083f0a1a33ca076a95279832580db3e0ef4584bdff1f54c8a360f50de3031e",
        "6b47aaf29ee3c2af9af889bc1fb9254dabd31177f16232dd6aab035ca39bf6e4",
    ],
    (6, 8): [
        "0ebc5d3437fbe2db158b9f126a1d118e308181031d0a949f8dededebc558ef6a",
        "ca854ea128ed050b41b35ffc1b87b8eb2bde461e9e3b5596ece6b9d5975a0ae0",
        "d37ee418976dd95753c1c73862b9398fa2a2cf9b4ff0fdfe8b30cd95209614b7",
    ],
    (2, 5): [
        "5f083f0a1a33ca076a95279832580db3e0ef4584bdff1f54c8a360f50de3031e",
        "bc1a0643b12e4d2d7c77918f44e0f4f79a838b6cf9ec5b5c283e1f4d88599e6b",
    ],
}


def tree_of(lines):
    tree = MerkleTree()
    for line in lines:
        tree.add(line)
    return tree


def sha(data):
    return hashlib.sha256(data).digest()


def largest(n):
    k = 1
    while 2 * k < n:
        k *= 2
    return k


def mth(lines):
    """MTH of RFC 9162, 2.1.1, as it stands there."""
    if not lines:
        return sha(b"")
    if len(lines) == 1:
        return sha(b"\x00" + lines[0])
    k = largest(len(lines))
    return sha(b"\x01" + mth(lines[:k]) + mth(lines[k:]))


def subproof(m, lines, b):
    """SUBPROOF of RFC 9162, 2.1.4.1, as it stands there."""
    if m == len(lines):
        return [] if b else [mth(lines)]
    k = largest(len(lines))
    if m <= k:
        return [*subproof(m, lines[:k], b), mth(lines[k:])]
    return [*subproof(m - k, lines[k:], False), mth(lines[:k])]


def head(size, root, origin="phalanx/abc"):
    return TreeHead(origin, size, root)


def test_roots_and_proofs_are_the_known_ones():
    tree = tree_of(LINES)
    assert [tree.root(n).hex() for n in range(9)] == ROOTS
    assert {pair: [step.hex() for step in tree.consistency(*pair)] for pair in PROOFS} == PROOFS


def test_roots_and_proofs_are_those_of_the_definitions_and_each_shows_what_it_should():
    lines = [str(k).encode() for k in range(40)]
    tree, oracle = tree_of(lines), [mth(lines[:n]) for n in range(41)]
    assert [tree.root(n) for n in range(41)] == oracle
    for new in range(1, 41):
        for old in range(new + 1):
            proof = tree.consistency(old, new)
            assert proof == (subproof(old, lines[:new], True) if old else [])
            assert goes_on(head(old, oracle[old]), head(new, oracle[new]), proof)


def test_nothing_but_the_proof_shows_it():
    """Each step changed, left out, doubled or in another place; each root; each size."""
    lines, rng = [str(k).encode() for k in range(24)], random.Random(0)
    tree = tree_of(lines)
    roots = [tree.root(n) for n in range(25)]
    tried = 0
    for new in range(1, 25):
        for old in range(1, new):
            proof = tree.consistency(old, new)
            wrong = [[*proof, sha(b"x")], [sha(b"x"), *proof], []]
            wrong += [[*proof[:k], bytes([proof[k][0] ^ 1]) + proof[k][1:], *proof[k + 1 :]] for k in range(len(proof))]
            wrong += [proof[:k] + proof[k + 1 :] for k in range(len(proof))]
            wrong += [proof[::-1]] if proof[::-1] != proof else []
            for other in wrong:
                assert not goes_on(head(old, roots[old]), head(new, roots[new]), other)
            assert not goes_on(head(old, roots[old]), head(new, sha(b"x")), proof)
            assert not goes_on(head(old, sha(b"x")), head(new, roots[new]), proof)
            assert not goes_on(head(new, roots[new]), head(old, roots[old]), proof)
            assert not goes_on(head(old, roots[old], "phalanx/other"), head(new, roots[new]), proof)
            k = rng.randrange(old)
            forked = tree_of([*lines[:k], b"another", *lines[k + 1 :]])
            assert not goes_on(head(old, roots[old]), head(new, forked.root(new)), forked.consistency(old, new))
            tried += 1
    assert tried == 276
    assert not goes_on(head(3, roots[3]), head(3, sha(b"x")), [])
    assert not goes_on(head(0, sha(b"x")), head(3, roots[3]), [])
    assert not goes_on(head(0, roots[0]), head(3, roots[3]), [roots[3]])


def test_roots_are_those_of_another_implementation():
    pymerkle = pytest.importorskip("pymerkle")
    other, tree = pymerkle.InmemoryTree(algorithm="sha256"), MerkleTree()
    for k in range(33):
        other.append_entry(str(k).encode())
        tree.add(str(k).encode())
        assert tree.root(k + 1) == other.get_state()


KEY, STRANGER = (Ed25519PrivateKey.from_private_bytes(bytes([k]) * 32) for k in (1, 2))
OWNER, ANOTHER = KEY.public_key().public_bytes_raw(), STRANGER.public_key().public_bytes_raw()
HEAD = head(8, bytes.fromhex(ROOTS[8]))


def test_a_note_has_the_form_of_a_checkpoint():
    note = sign_note(HEAD, KEY)
    *text, empty, line, end = note.split("\n")
    assert text == ["phalanx/abc", "8", base64.b64encode(HEAD.root).decode()]
    assert (empty, end) == ("", "")
    dash, name, signature = line.split(" ")
    assert (dash, name) == ("\u2014", "phalanx/coordinator")
    decoded = base64.b64decode(signature)
    assert decoded[:4] == sha(b"phalanx/coordinator\n\x01" + OWNER)[:4]
    KEY.public_key().verify(decoded[4:], ("\n".join(text) + "\n").encode())
    assert open_note(note, OWNER) == HEAD


def test_a_note_that_was_changed_anywhere_is_refused():
    note = sign_note(HEAD, KEY)
    changed = [note[:k] + chr(ord(note[k]) ^ 1) + note[k + 1 :] for k in range(len(note))]
    changed += [note[:k] + note[k + 1 :] for k in range(len(note))] + [note[:k] for k in range(len(note))]
    changed += [note + "\n", note + note, "\n" + note, note.replace("\n8\n", "\n08\n"), note + "x" * 2000]
    assert len(changed) > 400
    for other in changed:
        with pytest.raises(ValueError, match=r"it is no checkpoint|not signed by the coordinator"):
            open_note(other, OWNER)
    with pytest.raises(ValueError, match="not signed by the coordinator"):
        open_note(note, ANOTHER)


def test_a_witness_signs_a_head_at_a_time():
    line = cosign(HEAD, KEY, 1_800_000_000)
    assert is_cosigned(HEAD, line, OWNER)
    assert not is_cosigned(HEAD, line, ANOTHER)
    assert not is_cosigned(HEAD._replace(size=7), line, OWNER)
    assert not is_cosigned(HEAD._replace(root=sha(b"x")), line, OWNER)
    assert not is_cosigned(HEAD, sign_note(HEAD, KEY).split("\n\n")[1], OWNER), (
        "a signature of the log is none of these"
    )
    for k in range(len(line)):
        assert not is_cosigned(HEAD, line[:k] + chr(ord(line[k]) ^ 1) + line[k + 1 :], OWNER)
    decoded = base64.b64decode(line.split(" ")[2])
    assert decoded[:4] == sha(b"phalanx/client\n\x04" + OWNER)[:4]
    KEY.public_key().verify(decoded[12:], f"cosignature/v1\ntime 1800000000\n{HEAD.text}".encode())
