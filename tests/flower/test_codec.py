"""Vectors and words as Flower's records: exact where exact, bounded where not, and refused where anything is off."""

import io
import struct

import numpy as np
import pytest
import torch
from flwr.app import Array, ArrayRecord, ConfigRecord, MetricRecord, RecordDict
from hypothesis import given, settings
from hypothesis import strategies as st

from flower.federations import KEYS
from phalanx.flower import MalformedError, codec
from phalanx.flower.codec import BLOCK, VECTOR, WORDS, AnswerMessage, TaskMessage
from phalanx.flower.identity import signed_by, statement

D = 300
TASK = TaskMessage("train", "a1b2", bytes(32), 3, 7, 2, "float32")
TRANSFERS = ("float32", "bfloat16", "int8")


def vector(d=D, seed=0):
    return torch.randn(d, generator=torch.Generator().manual_seed(seed))


def there_and_back(v, transfer):
    out = torch.full_like(v, torch.nan)
    codec.decode(codec.encode(v, transfer), transfer, out)
    return out


# --- vectors


@pytest.mark.parametrize("d", [0, 1, 255, 256, 257, 1000])
def test_float32_is_exact(d):
    v = vector(d)
    if d > 3:
        v[:4] = torch.tensor([-0.0, 1e-45, 3e38, torch.inf])
    assert there_and_back(v, "float32").view(torch.int32).equal(v.view(torch.int32))


@pytest.mark.parametrize("d", [1, 255, 256, 257, 1000])
@pytest.mark.parametrize("scale", [1e-30, 1.0, 1e30])
def test_bfloat16_is_off_by_a_256th_at_most(d, scale):
    v = scale * vector(d)
    assert ((there_and_back(v, "bfloat16") - v).abs() <= v.abs() / 256).all()


@settings(max_examples=50, deadline=None)
@given(st.integers(1, 700), st.integers(0, 99), st.sampled_from([1e-20, 1.0, 1e20]))
def test_int8_is_off_by_a_254th_of_the_largest_of_its_block(d, seed, scale):
    v = scale * vector(d, seed)
    off = (there_and_back(v, "int8") - v).abs()
    for begin in range(0, d, BLOCK):
        block = slice(begin, begin + BLOCK)
        assert off[block].max() <= v[block].abs().max() / 254 * (1 + 1e-5)


def test_int8_by_hand():
    v = torch.tensor([127.0, -127.0, 0.4, 0.6, 63.5, 0.0])
    assert there_and_back(v, "int8").tolist() == [127.0, -127.0, 0.0, 1.0, 64.0, 0.0]
    assert there_and_back(torch.zeros(5), "int8").tolist() == [0.0] * 5


def test_what_is_not_a_number_stays_none():
    for transfer in TRANSFERS:
        v = vector()
        v[5] = torch.nan
        assert not there_and_back(v, transfer).isfinite().all()


def test_smaller_is_smaller():
    sizes = [sum(len(a.data) for a in codec.encode(vector(100_000), t).values()) for t in TRANSFERS]
    assert sizes[1] / sizes[0] == pytest.approx(1 / 2, rel=0.01)
    assert sizes[2] / sizes[0] == pytest.approx(1 / 4, rel=0.02)


def test_vectors_are_ordinary_arrays_of_flower():
    assert np.array_equal(codec.encode(vector())["values"].numpy(), vector().numpy())


def test_only_float32_travels():
    with pytest.raises(ValueError, match=r"float32, got torch\.float64"):
        codec.encode(vector().double())


# --- arrays that are something else


def npy(array, **options):
    buffer = io.BytesIO()
    np.save(buffer, array, **options)
    return buffer.getvalue()


def claiming(text, d):
    head = text.encode().ljust(117) + b"\n"
    return codec.NPY + struct.pack("<H", len(head)) + head + bytes(4 * d)


def archive(d):
    buffer = io.BytesIO()
    np.savez(buffer, values=vector(d).numpy())
    return buffer.getvalue()


def bad_arrays(d):
    """Arrays that are not what they should be, where a vector of d entries is expected, with what is said of each."""

    def declared(data, dtype="float32", shape=(d,), stype="numpy.ndarray"):
        return Array(dtype, shape, stype, data)

    def entries(size):
        return f"holds {size:,} bytes of entries, expected {4 * d:,}"

    good, objects = npy(vector(d).numpy()), np.array([{}], dtype=object)
    columns = f"{{'descr': '<f4', 'fortran_order': True, 'shape': ({d},), }}"
    terabytes = "{'descr': '<f4', 'fortran_order': False, 'shape': (9999999999999,), }"
    return {
        "another dtype": (Array(vector(d).double().numpy()), "claims to be float64"),
        "another length": (Array(vector(d + 1).numpy()), rf"claims to be float32 \({d + 1},\)"),
        "another shape": (Array(vector(d).numpy().reshape(2, -1)), rf"claims to be float32 \(2, {d // 2}\)"),
        "another length than it says": (
            declared(npy(vector(d + 1).numpy())),
            rf"the header .*\({d + 1},.* expected .*{d}",
        ),
        "another dtype than it says": (declared(npy(vector(d).double().numpy())), "has the header .*<f8"),
        "big-endian": (declared(npy(vector(d).numpy().astype(">f4"))), "has the header .*>f4"),
        "columns first": (declared(claiming(columns, d)), "has the header .*True"),
        "a pickle": (declared(npy(objects, allow_pickle=True)), "has the header .*O"),
        "an archive": (declared(archive(d)), "is an archive"),
        "garbage": (declared(b"garbage" * 200), "begins with b'garbageg'"),
        "nothing": (declared(b""), "begins with b''"),
        "terabytes": (declared(claiming(terabytes, d)), "has the header .*9999999999999"),
        "code": (declared(claiming("__import__('os').abort()", d)), "has the header __import__"),
        "a header without end": (declared(codec.NPY + b"\xff\xff" + bytes(70_000)), "has the header 65535 bytes long"),
        "format 2": (declared(good.replace(b"NUMPY\x01", b"NUMPY\x02")), r"begins with b'\\x93NUMPY\\x02"),
        "cut short": (declared(good[:-1]), entries(4 * d - 1)),
        "too long": (declared(good + bytes(10**6)), entries(4 * d + 10**6)),
        "another serialisation": (declared(good, stype="pickle"), "as pickle"),
        "shape of terabytes": (declared(good, shape=(10**13,)), r"\(10000000000000,\)"),
        "a negative shape": (declared(good, shape=(-1,)), r"\(-1,\)"),
        "a thousand dimensions": (declared(good, shape=(1,) * 1000), r"float32 \((1, ){18}1,\.\.\. as numpy"),
        "a dtype for a screen": (declared(good, dtype="\x1b[31m" * 1000), r"claims to be ( \[31m){11} \[\.\.\. \("),
    }


@pytest.mark.parametrize(("array", "why"), bad_arrays(D).values(), ids=bad_arrays(D))
def test_an_array_that_is_something_else_is_refused_and_nothing_is_written(array, why):
    out = torch.full((D,), 5.0)
    with pytest.raises(MalformedError, match=why):
        codec.decode(ArrayRecord({"values": array}), "float32", out)
    assert (out == 5.0).all()


@pytest.mark.parametrize("transfer", TRANSFERS)
def test_each_form_is_refused_where_another_is_expected(transfer):
    for other in set(TRANSFERS) - {transfer}:
        with pytest.raises(MalformedError, match=r"claims to be|arrays are"):
            codec.decode(codec.encode(vector(), other), transfer, torch.empty(D))


@pytest.mark.parametrize(
    ("arrays", "why"),
    [
        ({}, "arrays are none, expected 'values'"),
        ({"values": Array(vector().numpy()), "more": Array(vector().numpy())}, "arrays are 'more', 'values'"),
        ({f"x{i}" * 50: Array(vector(1).numpy()) for i in range(9)}, "and 4 more, expected 'values'"),
    ],
)
def test_missing_and_additional_arrays_are_refused(arrays, why):
    with pytest.raises(MalformedError, match=why):
        codec.decode(ArrayRecord(arrays), "float32", torch.empty(D))


def test_a_record_of_another_kind_is_refused():
    with pytest.raises(MalformedError, match="is a MetricRecord, expected an ArrayRecord"):
        codec.decode(MetricRecord({"values": 1.0}), "float32", torch.empty(D))


# --- words


def answered(value=0.5, **more):
    content = codec.answer_content(AnswerMessage(bytes(32), bytes(32), 7, value, b""), codec.encode(vector()))
    for name, record in more.items():
        content[name] = record
    return content


def test_a_task_arrives_as_it_was_sent():
    out = torch.empty(D)
    assert codec.read_task(codec.task_content(TASK, vector()), out) == TASK
    assert out.equal(vector())


def test_an_answer_arrives_as_it_was_sent():
    answer, out = codec.read_answer(answered()), torch.empty(D)
    codec.read_update(answered(), "float32", out)
    assert (answer.version, answer.value) == (7, 0.5)
    assert out.equal(vector())


@pytest.mark.parametrize(
    ("change", "why"),
    [
        ({"extra": ConfigRecord({"x": 1})}, "records are 'extra', 'phalanx', 'vector', expected 'phalanx', 'vector'"),
        ({VECTOR: None}, "records are 'phalanx', expected 'phalanx', 'vector'"),
    ],
)
def test_records_that_are_missing_or_too_many_are_refused(change, why):
    content = answered(**{k: v for k, v in change.items() if v})
    for name in [k for k, v in change.items() if v is None]:
        del content[name]
    with pytest.raises(MalformedError, match=why):
        codec.read_update(content, "float32", torch.empty(D))


@pytest.mark.parametrize(
    ("words", "why"),
    [
        ({"version": 7.0}, "version is a float, expected int"),
        ({"version": True}, "version is a bool, expected int"),
        ({"nonce": "text"}, "nonce is a str, expected bytes"),
        ({"format": 1}, "format is 1, expected '3 of Phalanx 0.1': install the same Phalanx on both sides"),
        ({"format": "3 of Phalanx 0.2"}, "format is '3 of Phalanx 0.2', expected '3 of Phalanx 0.1'"),
        ({"more": 1}, "holds .*'more'"),
    ],
)
def test_words_of_another_kind_are_refused(words, why):
    content = answered()
    for name, value in words.items():
        content[WORDS][name] = value
    with pytest.raises(MalformedError, match=why):
        codec.read_answer(content)


def test_an_answer_without_words_is_refused():
    with pytest.raises(MalformedError, match="'phalanx' is a NoneType, expected a ConfigRecord"):
        codec.read_answer(RecordDict({VECTOR: codec.encode(vector())}))


# --- signatures


def signature(task=TASK, content=None):
    return KEYS[0].sign(codec.signing_input(task, answered() if content is None else content))


def public(key):
    return key.public_key().public_bytes_raw()


def test_a_signature_holds_for_what_was_signed():
    assert signed_by(public(KEYS[0]), signature(), codec.signing_input(TASK, answered()))
    assert not signed_by(public(KEYS[1]), signature(), codec.signing_input(TASK, answered()))


@pytest.mark.parametrize(
    "field", [{"session": "other"}, {"nonce": bytes(31) + b"x"}, {"client": 4}, {"version": 8}, {"turn": 3}]
)
def test_a_signature_holds_for_no_other_task(field):
    assert not signed_by(public(KEYS[0]), signature(), codec.signing_input(TASK._replace(**field), answered()))


def changed_contents():
    def entry(content):
        data = bytearray(content[VECTOR]["values"].data)
        data[-1] ^= 1
        content[VECTOR]["values"].data = bytes(data)

    yield "one bit", entry
    yield "the loss", lambda c: c[WORDS].update(value=0.25)
    yield "the kind of the loss", lambda c: c[WORDS].update(value="0.5")
    yield "the version", lambda c: c[WORDS].update(version=8)
    yield "one more record", lambda c: c.update(x=ConfigRecord())
    yield "one more array", lambda c: c[VECTOR].update(x=Array(vector().numpy()))
    yield "the shape", lambda c: setattr(c[VECTOR]["values"], "shape", (1, D))


@pytest.mark.parametrize("change", [c for _, c in changed_contents()], ids=[n for n, _ in changed_contents()])
def test_a_signature_holds_for_no_other_content(change):
    content = answered()
    change(content)
    assert not signed_by(public(KEYS[0]), signature(), codec.signing_input(TASK, content))


def test_statements_of_different_parts_are_different():
    assert statement("a", "bc") != statement("ab", "c")
    assert statement("a", "1") != statement("a", 1) != statement("a", b"1")


@pytest.mark.parametrize("given", [b"", bytes(64), "text", None, 7, bytes(10**6)])
def test_whatever_stands_for_a_signature_is_looked_at_without_harm(given):
    assert not signed_by(public(KEYS[0]), given, b"anything")
