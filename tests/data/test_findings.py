"""What is found about data before a run: each kind with cases that have it, and cases that do not."""

import numpy as np
import pandas as pd
import pytest
import torch

from phalanx.data import CSV, Dataset, Schema
from phalanx.data.findings import as_number_column, counts_rows, merged, near, notation, predicts, unseen, zeros
from phalanx.wording import plural

RNG = np.random.default_rng(0)
N = 200
LABELS = RNG.integers(0, 3, N)
TEXTS = np.array(["healthy", "mild", "severe"])[LABELS]


def table(folder, name="t.csv", lines=None, **columns):
    """A file with these columns, or these lines."""
    if lines is not None:
        (folder / name).write_text("\n".join(lines) + "\n", encoding="utf-8")
    else:
        pd.DataFrame(columns).to_csv(folder / name, index=False)
    return str(folder / name)


def keys(data):
    return {one.key for one in data.findings}


# --- numbers in another notation

NOTATIONS = [
    "0,5",
    "1,000",
    "1.234,5",
    "<0.1",
    "> 3",
    "\u22125",
    "\u20133.2",
    "10%",
    "1 000",
    "1'000",
    "12\u00a0345",
    "$5",
]


@pytest.mark.parametrize("text", NOTATIONS)
def test_a_number_in_another_notation(text):
    assert notation(text)
    assert as_number_column([*map(str, range(3)), text])


@pytest.mark.parametrize("text", ["5", "-5", "1e-3", " 7 ", "+.5", "a", "01.02.2020", "B12", "", "2020-01-02", "5-10"])
def test_a_text_that_is_a_number_or_none(text):
    assert not notation(text)


@pytest.mark.parametrize(
    "values", [["f", "m"], ["1", "2", "3a", "3b"], ["<18", "18-65", ">65"], ["?", "yes", "no"], ["0", "1"], ["a"]]
)
def test_texts_that_are_categories(values):
    assert not as_number_column(values)


@pytest.mark.parametrize("word", ["?", "-", "n/a", "unknown", "*", "."])
@pytest.mark.parametrize("few", [1, 4, 60])
def test_a_word_for_missing_among_numbers(tmp_path, word, few):
    cells = [str(k % few) for k in range(N)]
    cells[7] = word
    path = table(tmp_path, a=cells, b=np.arange(N) % 7, y=TEXTS)
    if word == "n/a":  # which pandas reads as missing
        with pytest.raises(ValueError, match=r"Values are missing in 'a' \(1, the first in row \d+\)"):
            CSV(path, "y").load()
        return
    with pytest.raises(
        ValueError, match=r"Column 'a' holds .* among numbers in row 8\. .* list it in missing, and set impute"
    ) as refused:
        CSV(path, "y").load()
    assert str(refused.value).endswith(f" --data.missing '[\"{word}\"]' --data.impute median.")
    train, test = CSV(path, "y", missing=(word,), impute="indicator").load()
    assert (train.x.shape[1], len(train) + len(test)) == (3, N)
    gaps = torch.cat((train.x, test.x))[:, 1]
    assert gaps.tolist().count(1.0) == 1


def column_of(make, n=N):
    """A column of texts with these cells, in any order."""
    return [make(k) for k in np.random.default_rng(1).permutation(n)]


@pytest.mark.parametrize("word", ["nd", "#NUM!", "n.a.", "?? ", "B", "<LOD", "see note"])
@pytest.mark.parametrize("codes", [2, 5, 12])
@pytest.mark.parametrize("of", ["input", "label"])
def test_a_word_among_few_numbers_is_no_category_of_its_own(tmp_path, word, codes, of):
    cells = column_of(lambda k: word if k % 40 == 7 else str(k % codes))
    columns = {"a": cells, "b": np.arange(N) % 7, "y": LABELS} if of == "input" else {"b": np.arange(N) % 7, "y": cells}
    found = {one.key: one for one in CSV(table(tmp_path, **columns), "y").load()[0].findings}
    one = found[f"notation:{'a' if of == 'input' else 'y'}"]
    assert one.error
    assert f"text in {plural(sum(cell == word for cell in cells), 'row')}" in one.sentence


@pytest.mark.parametrize(
    "write",
    [
        lambda number: f"{number:.1f} mg",
        lambda number: f"{number:.1f}mg/dL",
        lambda number: f"({number:.1f})",
        lambda number: f"{number:.0f}/80",
        lambda number: f"{number:.1f} +",
    ],
)
def test_numbers_with_a_unit_are_no_categories(tmp_path, write):
    cells = column_of(lambda k: write(20 + k % 60))
    found = CSV(table(tmp_path, a=cells, b=np.arange(N) % 7, y=LABELS), "y").load()[0].findings
    assert ("notation:a", True) in {(one.key, one.error) for one in found}


@pytest.mark.parametrize(
    "values", [["f", "m"], ["1a", "1b", "2a"], ["30-39", "40-49"], ["T1", "T2", "3"], ["5 mg", "10 mg"]]
)
def test_categories_with_digits_are_no_mistake(tmp_path, values):
    cells = column_of(lambda k: values[k % len(values)])
    assert "notation:a" not in keys(CSV(table(tmp_path, a=cells, b=np.arange(N) % 7, y=LABELS), "y").load()[0])


@pytest.mark.parametrize("digits", ["\u0661\u0662", "\uff11\uff12", "\u0967\u0968"])
def test_digits_of_other_scripts_are_no_texts(tmp_path, digits):
    cells = [digits[k % 2] for k in range(N)]
    with pytest.raises(ValueError, match="Column 'a' holds a number with digits other than 0 to 9 in row 1"):
        CSV(table(tmp_path, a=cells, b=np.arange(N) % 7, y=LABELS), "y").load()


@pytest.mark.parametrize("blank", [" ", "   ", "\t", "\u00a0", "\u2009 "])
@pytest.mark.parametrize("cell", [lambda k: str(k % 3), lambda k: f"{k}.5", lambda k: "fm"[k % 2]])
def test_a_cell_of_spaces_is_empty(tmp_path, blank, cell):
    cells = [blank if k == 8 else cell(k) for k in range(N)]
    path = table(tmp_path, a=cells, b=np.arange(N) % 7, y=LABELS)
    with pytest.raises(ValueError, match=r"Values are missing in 'a' \(1, the first in row 9\)"):
        CSV(path, "y").load()
    train, test = CSV(path, "y", impute="indicator").load()
    schema = Schema.of(train.reading)
    assert [each.use.impute is not None for each in schema.inputs_of] == [True, True]
    gap = next(i for i, column in enumerate(schema.reading.columns) if column.gap and column.name == "a")
    assert schema.dataset(path).x[:, gap].tolist().count(1.0) == 1
    assert len(test)


@pytest.mark.parametrize("start", [2**53 + 1, 2**60, 2**63 + 5, 2**70, -(2**53) - N])
@pytest.mark.parametrize("few", [4, N])
def test_whole_numbers_that_float64_does_not_hold_are_refused(tmp_path, start, few):
    path = table(tmp_path, a=[str(start + k % few) for k in range(N)], b=np.arange(N) % 7, y=LABELS)
    with pytest.raises(ValueError, match="Column 'a' holds whole numbers beyond 9,007,199,254,740,992"):
        CSV(path, "y").load()
    small = table(tmp_path, "small.csv", a=np.arange(N) // 3, b=np.arange(N) % 7, y=LABELS)
    schema = Schema.of(CSV(small, "y").load()[0].reading)
    assert "number" in {one.code for one in schema.check(schema.read(path))}


@pytest.mark.parametrize("spread", [1.0, 30.0])
@pytest.mark.parametrize("level", [1.7e9, 2**31, -5e9])
def test_targets_that_float32_merges_are_an_error(tmp_path, level, spread):
    targets = level + spread * np.random.default_rng(2).normal(size=N)
    path = table(tmp_path, a=np.arange(N) // 3, y=targets)
    assert "distinct:target" in keys(CSV(path, "y").load()[0])
    near_zero = table(tmp_path, "zero.csv", a=np.arange(N) // 3, y=targets - level)
    train, _ = CSV(near_zero, "y").load()
    assert "distinct:target" not in keys(train)
    schema = Schema.of(train.reading)
    assert {one.code for one in schema.check(schema.read(path))} == {"number"}
    assert schema.check(schema.read(near_zero)) == ()


@pytest.mark.parametrize("copies", [2, 3])
def test_rows_of_the_test_part_that_are_in_training_are_said(tmp_path, copies):
    once = pd.DataFrame({"a": RNG.normal(size=N), "b": RNG.normal(size=N), "y": LABELS})
    once.to_csv(tmp_path / "once.csv", index=False)
    pd.concat([once] * copies).to_csv(tmp_path / "copies.csv", index=False)
    once[["y"]].assign(a=LABELS % 2, b=RNG.integers(0, 3, N)).to_csv(tmp_path / "codes.csv", index=False)
    said = {name: "twice:test" in keys(CSV(str(tmp_path / name), "y").load()[0]) for name in ("once.csv", "copies.csv")}
    assert said == {"once.csv": False, "copies.csv": True}
    assert "twice:test" not in keys(CSV(str(tmp_path / "codes.csv"), "y").load()[0]), "equal rows are the rule there"


@pytest.mark.parametrize(("rows", "error"), [(0, None), (1, False), (40, True), (60, True)])
def test_texts_of_the_test_part_that_are_not_trained_on_are_said(tmp_path, rows, error):
    train = table(tmp_path, a=["fm"[k % 2] for k in range(N)], b=np.arange(N) % 7, y=LABELS)
    test = ["female" if k < rows else "f" for k in range(60)]
    test = table(tmp_path, "test.csv", a=test, b=np.arange(60) % 7, y=LABELS[:60])
    found = {one.key: one for one in CSV(train, "y", test=test).load()[0].findings}
    assert (found["unseen:a"].error if "unseen:a" in found else None) is error
    assert error is None or f"in {rows} of the 60 rows of the test part" in found["unseen:a"].sentence


@pytest.mark.parametrize("code", [-1, -9, -999, 999, 9999])
@pytest.mark.parametrize("others", [lambda k: 1 + k % 5, lambda k: 200 + k % 50])
def test_a_number_that_stands_for_a_missing_value_is_said(tmp_path, code, others):
    cells = [code if k % 30 == 4 else others(k) for k in range(N)]
    found = keys(CSV(table(tmp_path, a=cells, b=np.arange(N) % 7, y=LABELS), "y").load()[0])
    assert "fill:a" in found


@pytest.mark.parametrize(
    ("make", "key"),
    [
        (lambda k: f"P{k // 2:05d}", "identifier:a"),
        (lambda k: 7919 * (k + 1) % 100_003, "rows:a"),
        (lambda k: k // 2, None),
    ],
)
def test_names_and_numbers_of_rows_are_said(tmp_path, make, key):
    found = keys(CSV(table(tmp_path, a=column_of(make, 190), b=np.arange(190) % 7, y=LABELS[:190]), "y").load()[0])
    assert {one for one in found if one.endswith(":a")} - {"unseen:a"} == ({key} - {None})


ABOVE = np.random.default_rng(0).normal(240, 50, 60).round()  # as cholesterol is in mg/dL


@pytest.mark.parametrize(
    ("cells", "noticed"),
    [
        (np.where(np.arange(60) % 9, ABOVE, 0), True),
        (np.where(np.arange(60) == 7, 0, ABOVE), True),
        (np.where(np.arange(60) % 9, ABOVE, -1), False),
        (np.where(np.arange(60) % 9, ABOVE - 235, 0), False),
        (np.where(np.arange(60) % 9, ABOVE, np.nan), False),
        (np.where(np.arange(60) % 9, ABOVE // 100 + 9, 0), False),
        (np.where(np.arange(60) % 9, np.arange(60) / 10, 0), False),
        (ABOVE, False),
        (np.zeros(60), False),
    ],
)
def test_zeros_that_may_stand_for_missing_values_are_noticed(cells, noticed):
    found = [*zeros({"chol": cells, "age": ABOVE})]
    assert [(one.key, one.error) for one in found] == [("zero:chol", False)] * noticed
    assert not noticed or f"is 0 in {int((cells == 0).sum())} of 60 rows" in found[0].sentence


def test_zeros_are_noticed_in_a_file(tmp_path):
    path = table(tmp_path, a=np.where(np.arange(N) % 9, np.arange(N) + 2.0 * N, 0), b=np.arange(N) % 7, y=TEXTS)
    assert "zero:a" in {one.key for one in CSV(path, "y").load()[0].findings}


@pytest.mark.parametrize("cells", [["0,5", "1,5", "2,5"], ["1,000", "2,000", "3"], ["<0.1", "0.2", "0.3"]])
@pytest.mark.parametrize("where", ["input", "label"])
def test_numbers_of_another_notation_are_refused(tmp_path, cells, where):
    column = [cells[k % 3] for k in range(N)]
    columns = {"a": column, "b": np.arange(N) % 7, "y": TEXTS} if where == "input" else {"a": LABELS, "y": column}
    with pytest.raises(ValueError, match=r"Column '[ay]' holds a number with .* in row \d\. ") as refused:
        CSV(table(tmp_path, **columns), "y").load()
    assert not any(cell in str(refused.value) for cell in cells[:2]), "no message quotes a cell"


@pytest.mark.parametrize("options", [{"decimal": ","}, {"decimal": ",", "thousands": "."}])
def test_the_remedy_for_another_notation(tmp_path, options):
    path = table(tmp_path, lines=["a;y", *(f"{1 + k % 5},5;{TEXTS[k]}" for k in range(N))])
    train, _ = CSV(path, "y", separator=";", standardize=False, **options).load()
    assert train.x.unique().tolist() == [1.5, 2.5, 3.5, 4.5, 5.5]


# --- shifted columns


@pytest.mark.parametrize("header", ["y,a", "y,a,b,c,d", "y"])
@pytest.mark.parametrize("first", ["1,2,3", "0,5.5,6"])
def test_lines_with_another_number_of_cells_than_the_header(tmp_path, header, first):
    with pytest.raises(
        ValueError, match=r"line 2 has 3 cells, and the first line, which names the columns, \d\. Correct"
    ):
        CSV(table(tmp_path, lines=[header, *([first] * 30)]), "y").load()


@pytest.mark.parametrize("line", [5, 17, 30])
@pytest.mark.parametrize("cells", [2, 4])
def test_one_line_with_another_number_of_cells(tmp_path, line, cells):
    lines = ["a,b,y", *("1,2,x" for _ in range(40))]
    lines[line - 1] = ",".join("1" * cells)
    with pytest.raises(ValueError, match=rf"line {line} has {cells} cells"):
        CSV(table(tmp_path, lines=lines), "y").load()


def test_blank_lines_and_quoted_line_breaks_are_no_shift(tmp_path):
    lines = ["a,b,y", *(f'{k},"x\n,y",{k % 2}' for k in range(20)), "", ""]
    train, test = CSV(table(tmp_path, lines=lines), "y").load()
    assert len(train) + len(test) == 20


# --- labels by spelling, unseen labels


@pytest.mark.parametrize(
    "pair",
    [
        ("malignant", "Malignant"),
        (">50K", ">50K."),
        ("a", " a"),
        ("caf\u00e9", "cafe\u0301"),
        ("a b", "a\u00a0b"),
        ("x", "x\u200b"),
    ],
)
def test_labels_that_differ_by_spelling(tmp_path, pair):
    labels = [pair[k % 2] for k in range(N)]
    train, _ = CSV(table(tmp_path, a=np.arange(N) % 9, b=np.arange(N) % 4, y=labels), "y").load()
    assert any(key.startswith("near:") for key in keys(train))


@pytest.mark.parametrize("labels", [["a", "b"], ["low", "lower"], ["1", "2"], ["A+", "A-"], ["<=50K", ">50K"]])
def test_labels_that_differ(labels):
    assert not [*near(labels, "y", "Labels")]


@pytest.mark.parametrize("missing", [[0], [2], [0, 1], [0, 1, 2]])
def test_labels_of_the_test_part_that_never_occur_in_training(missing):
    train = [0 if c in missing else 5 for c in range(3)]
    assert [one.name for one in unseen(train, [1, 1, 1], ())] == [str(c) for c in missing]
    assert not [*unseen(train, train, ())]


# --- columns that tell the label


def noisy(labels, wrong):
    out = labels.copy()
    out[:wrong] = (out[:wrong] + 1) % 3
    return out


@pytest.mark.parametrize(
    "column",
    [
        np.argsort(np.argsort(LABELS, kind="stable")),
        LABELS * 7.5 - 3,
        np.array([5, 1, 3])[LABELS],
        TEXTS,
        np.array(["r", "g", "b"])[LABELS],
        LABELS + RNG.uniform(0, 0.9, N),
        noisy(LABELS, 1),
        1_700_000_000 + LABELS * 1000 + RNG.integers(0, 900, N),
    ],
)
def test_a_column_that_predicts_the_label(column):
    assert predicts(np.asarray(column), LABELS)


@pytest.mark.parametrize(
    "column",
    [
        RNG.normal(size=N),
        np.arange(N),
        np.zeros(N),
        RNG.integers(0, 5, N),
        LABELS + RNG.normal(0, 0.6, N),
        noisy(LABELS, 20),
        np.array([f"id{k}" for k in range(N)]),
    ],
)
def test_a_column_that_does_not(column):
    assert not predicts(np.asarray(column), LABELS)


def test_few_rows_predict_nothing():
    assert not predicts(np.arange(10), np.arange(10) // 5)


@pytest.mark.parametrize("start", [0, 1, 1000])
@pytest.mark.parametrize("shuffled", [False, True])
def test_a_column_that_numbers_the_rows(start, shuffled):
    rows = np.arange(start, start + N)
    assert counts_rows(RNG.permutation(rows) if shuffled else rows)
    assert not counts_rows(rows * 2)
    assert not counts_rows(rows % 50)


@pytest.mark.parametrize("name", ["patient_no", "Unnamed: 0", "diagnosis_code"])
def test_a_leak_is_found_in_a_file(tmp_path, name):
    path = table(tmp_path, **{name: np.argsort(np.argsort(LABELS, kind="stable")), "b": RNG.normal(size=N), "y": TEXTS})
    assert f"leak:{name}" in keys(CSV(path, "y").load()[0])
    assert not keys(CSV(path, "y", drop=(name,)).load()[0])


# --- float32

WIDE = {
    "timestamps": 1_700_000_000 + np.arange(60.0),
    "milliseconds": 1_700_000_000_000 + np.arange(60.0) * 1000,
    "utm": 5_400_000 + np.arange(60) * 0.25,
    "meter": 98_765_432 + np.arange(60.0),
    "dates": 20240101 + np.arange(60.0) % 28,
}


@pytest.mark.parametrize("name", WIDE)
def test_values_that_float32_merges_are_scaled_first(tmp_path, name):
    values = WIDE[name]
    path = table(tmp_path, a=values, y=np.arange(60) // 30)
    train, test = CSV(path, "y").load()
    distinct = len(np.unique(values))
    assert len(torch.cat((train.x, test.x)).unique()) == distinct, "scaled in float64"
    assert "distinct" in {one.code for one in CSV(path, "y", standardize=False).load()[0].findings}
    assert "distinct" in {one.code for one in Dataset.from_numpy(values[:, None], np.zeros(60, int)).findings}


@pytest.mark.parametrize(
    "values",
    [RNG.normal(size=500), np.arange(500.0), RNG.uniform(0, 1e-9, 500), np.full(9, 1e12), 1e30 * np.arange(9.0)],
)
def test_values_that_float32_keeps(values):
    assert not [*merged(values[:, None])]
    assert not [*merged(values[:, None].astype(np.float32))]


# --- masks, strides, one element


@pytest.mark.parametrize("which", ["x", "y", "owners"])
@pytest.mark.parametrize("fill", [-999, 9.97e36])
def test_masked_values_are_missing(which, fill):
    arrays = {"x": np.ones((6, 2)), "y": np.zeros(6, int), "owners": np.zeros(6, int)}
    masked = np.ma.masked_array(
        arrays[which], mask=np.zeros(arrays[which].shape), fill_value=fill if which == "x" else 0
    )
    assert len(Dataset.from_numpy(**{**arrays, which: masked})) == 6, "nothing is masked"
    masked[1] = np.ma.masked
    with pytest.raises(ValueError, match=r"of an array are masked, so they are missing\. Fill them"):
        Dataset.from_numpy(**{**arrays, which: masked})


@pytest.mark.parametrize("dtype", [np.uint8, np.float64, np.float32, np.int32])
@pytest.mark.parametrize("axis", [0, 1, 2])
def test_reversed_arrays_are_copied(dtype, axis):
    x = np.arange(24).reshape(2, 3, 4).astype(dtype)
    read = Dataset.from_numpy(np.flip(x, axis), np.array([0, 1])[::-1], owners=np.array([0, 1])[::-1])
    plain = Dataset.from_numpy(np.flip(x, axis).copy(), [1, 0], owners=[1, 0])
    assert read.fingerprint() == plain.fingerprint()


@pytest.mark.parametrize("shape", [(1,), (1, 1), (1, 1, 1)])
@pytest.mark.parametrize("dtype", [torch.float32, torch.int64, torch.float64])
def test_the_fingerprint_of_one_element_with_other_strides(shape, dtype):
    wide = torch.zeros(4 * len(shape), dtype=dtype).as_strided(shape, [3] * len(shape))
    label = torch.arange(6).reshape(3, 2)[:1, 0]
    assert (
        Dataset(wide, label, 1).fingerprint()
        == Dataset(torch.zeros(shape, dtype=dtype), torch.tensor([0]), 1).fingerprint()
    )


# --- missing values


@pytest.mark.parametrize("impute", ["median", "indicator"])
def test_gaps_become_the_median_of_the_train_part(tmp_path, impute):
    ages = np.where(np.arange(N) % 10 == 0, np.nan, np.arange(N) % 7)
    cities = np.where(np.arange(N) % 9 == 0, None, np.array(["Rome", "Bern"])[np.arange(N) % 2])
    train, _ = CSV(table(tmp_path, age=ages, city=cities, y=TEXTS), "y", impute=impute, standardize=False).load()
    names = [(c.name, c.value, c.gap) for c in train.reading.columns]
    wanted = [
        ("age", None, False),
        ("age", None, True),
        ("city", "Bern", False),
        ("city", "Rome", False),
        ("city", None, True),
    ]
    assert names == [each for each in wanted if impute == "indicator" or not each[2]]
    rows = Schema.of(train.reading).inputs(pd.DataFrame({"age": [np.nan, 4.0], "city": [None, "Rome"]}))
    kept = [[3.0, 1.0, 0.0, 0.0, 1.0], [4.0, 0.0, 0.0, 1.0, 0.0]]
    assert rows.tolist() == [
        [v for v, w in zip(row, wanted, strict=True) if impute == "indicator" or not w[2]] for row in kept
    ]


def test_words_that_are_values(tmp_path):
    path = table(tmp_path, a=np.arange(N) % 7, y=np.array(["None", "NA", "Severe"])[LABELS])
    with pytest.raises(ValueError, match=r"Values are missing in 'y' .* If a word such as None or NA is a value here"):
        CSV(path, "y").load()
    assert CSV(path, "y", missing=()).load()[0].reading.labels == ("NA", "None", "Severe")


# --- a file for each owner


def test_a_pattern_names_a_file_for_each_owner(tmp_path):
    for k, name in enumerate(("bern", "oslo", "rome")):
        table(tmp_path, f"{name}.csv", a=np.arange(40) + k, y=np.arange(40) % 2)
    source = CSV(str(tmp_path / "*.csv"), "y")
    train, test = source.load()
    assert train.reading.owners == ("bern", "oslo", "rome")
    assert (train.owners.bincount().tolist(), test.owners.bincount().tolist()) == ([32] * 3, [8] * 3)
    before = source.file_digests["path"]
    table(tmp_path, "oslo.csv", a=np.arange(40) + 9, y=np.arange(40) % 2)
    assert source.file_digests["path"] != before
    table(tmp_path, "oslo.csv", b=np.arange(40), y=np.arange(40) % 2)
    with pytest.raises(ValueError, match=r"bern\.csv and oslo\.csv must have the same columns; .* 'a', 'b'"):
        source.load()


def test_a_column_that_is_empty_at_one_owner(tmp_path):
    table(tmp_path, "a.csv", c=[1.0, 2.0] * 10, d=["x", "y"] * 10, y=[0, 1] * 10)
    table(tmp_path, "b.csv", c=[None] * 20, d=[None] * 20, y=[0, 1] * 10)
    train, _ = CSV(str(tmp_path / "?.csv"), "y", impute="median", standardize=False).load()
    assert [(c.name, c.value) for c in train.reading.columns] == [("c", None), ("d", "x"), ("d", "y")]
