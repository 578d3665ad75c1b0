"""Tables: data frames, CSV and parquet files."""

import gzip
import hashlib
import sys

import numpy as np
import pandas as pd
import pytest
import torch

from commandline import chosen
from phalanx import LocalSGD, Run, Until, simulate
from phalanx.data import CSV, Dataset, HeldOut, Natural, Parquet, Source
from phalanx.data.tables import MOST_VALUES, read_frame
from phalanx.experiments.grid import name_of
from phalanx.installation import installation
from phalanx.models import MLP
from phalanx.simulation import AvailabilityTrace, LatencyTrace
from phalanx.training import Regression

FRAME = pd.DataFrame(
    {
        "age": [30, 40, 50, 60],
        "city": ["Rome", "Bern", "Rome", "Oslo"],
        "size": pd.Categorical(["S", "L", "S", "S"], categories=["S", "M", "L"]),
        "risk": ["low", "high", "low", "high"],
        "bank": [7, 7, 3, 3],
    }
)


# --- arrays


def test_arrays_and_lists():
    data = Dataset.from_numpy(np.array([[1.5, 2.0], [3.0, 4.0]]), [1, 0], owners=[1, 0])
    assert (data.x.dtype, data.x.tolist()) == (torch.float32, [[1.5, 2.0], [3.0, 4.0]])
    assert (data.y.tolist(), data.classes, data.owners.tolist()) == ([1, 0], 2, [1, 0])
    assert Dataset.from_numpy(np.full((1, 2), 255, np.uint8), [True], classes=5).x.tolist() == [[1.0, 1.0]]
    assert Dataset.from_numpy([[3, 4]], np.array([[1, 2]])).x.dtype == torch.int64


def test_arrays_are_copied():
    x = np.zeros((1, 2), np.float32)
    data = Dataset.from_numpy(x, [0])
    x[:] = 1
    assert data.x.tolist() == [[0.0, 0.0]]


def test_floating_point_numbers_are_targets():
    data = Dataset.from_numpy([[0.0], [1.0]], [0.5, 2.0])
    assert (data.y.dtype, data.y.tolist(), data.classes) == (torch.float32, [0.5, 2.0], 0)
    assert Dataset.from_numpy([[0.0]], [[1.0, 0.0]]).y.shape == (1, 2)
    with pytest.raises(ValueError, match="which are targets, and there are 2 classes"):
        Dataset.from_numpy([[0.0], [1.0]], [0.5, 2.0], classes=2)


def test_labels_of_arrays_are_numbers():
    with pytest.raises(ValueError, match=r"Labels must be numbers, got .* Number the classes first"):
        Dataset.from_numpy([[0.0], [1.0]], ["a", "b"])


# --- frames


def test_a_frame_by_hand():
    """Inputs: age; city Bern, Oslo, Rome in order; size S, M, L in the order of the category."""
    data = Dataset.from_pandas(FRAME, "risk", owner="bank")
    assert data.x.tolist() == [
        [30, 0, 0, 1, 1, 0, 0],
        [40, 1, 0, 0, 0, 0, 1],
        [50, 0, 0, 1, 1, 0, 0],
        [60, 0, 1, 0, 1, 0, 0],
    ]
    assert data.x.dtype == torch.float32
    assert (data.y.tolist(), data.classes) == ([1, 0, 1, 0], 2)
    assert data.owners.tolist() == [1, 1, 0, 0]


def test_classes_have_the_order_that_is_given():
    assert Dataset.from_pandas(FRAME, "risk", class_names=["low", "high", "none"]).y.tolist() == [0, 1, 0, 1]
    assert Dataset.from_pandas(FRAME, "risk", class_names=["low", "high", "none"]).classes == 3
    bank = Dataset.from_pandas(FRAME, "bank", drop=["city"])
    assert (bank.y.tolist(), bank.classes) == ([1, 1, 0, 0], 2), "sorted as numbers"
    assert Dataset.from_pandas(FRAME, "size").y.tolist() == [0, 2, 0, 0]
    assert Dataset.from_pandas(FRAME, "size").classes == 3
    assert Dataset.from_pandas(FRAME.assign(bank=[9, 10, 9, 10]), "bank").y.tolist() == [0, 1, 0, 1]


def test_whole_numbers_may_be_named_by_texts():
    """As texts may be by whole numbers; a class that no row has may have a word for a name."""
    frame = pd.DataFrame({"x": [1.0, 2.0, 3.0], "y": [2, 1, 2]})
    for names, labels in ((("1", "2"), (1, 2)), (("+2", 1), (2, 1)), (("1", "2", "none"), ("1", "2", "none"))):
        for kind in ("int64", "Int64"):
            read = read_frame(frame.astype({"y": kind}), "y", class_names=names)
            assert read.reading.labels == labels
            assert [read.reading.labels[k] for k in read.y] == [type(labels[0])(label) for label in frame["y"]]
    with pytest.raises(ValueError, match=r"has labels that class_names lacks, in 3 of 3 rows"):
        Dataset.from_pandas(frame, "y", class_names=("01", "02"))


def test_parts_are_chosen_by_arrays_of_numpy_and_pandas():
    data = Dataset.from_pandas(FRAME, "risk", drop=["city", "size"])
    mask = FRAME["age"] > 40
    for chosen_rows in (mask, FRAME.index > 1, mask.tolist(), np.array([2, 3]), torch.tensor([2, 3])):
        assert data.of(chosen_rows).x[:, 0].tolist() == [50.0, 60.0]


def test_numbers_to_predict_are_targets():
    shares = Dataset.from_pandas(FRAME.assign(share=[0.1, 0.2, 0.3, 0.4]), "share", drop=["city", "size", "risk"])
    assert (shares.y.dtype, shares.classes) == (torch.float32, 0)
    assert shares.y.tolist() == pytest.approx([0.1, 0.2, 0.3, 0.4])
    assert Dataset.from_pandas(FRAME, "age", targets=True).y.tolist() == [30.0, 40.0, 50.0, 60.0]


def test_types_of_pandas_and_numpy_are_read_alike():
    plain = pd.DataFrame({"a": [1, 2], "b": [True, False], "c": [0.5, 1.5], "y": [0, 1]})
    nullable = plain.astype({"a": "Int64", "b": "boolean", "c": "Float64", "y": "Int64"})
    ours, theirs = (Dataset.from_pandas(frame, "y") for frame in (plain, nullable))
    assert ours.x.tolist() == [[1.0, 1.0, 0.5], [2.0, 0.0, 1.5]]
    assert ours.fingerprint() == theirs.fingerprint()


@pytest.mark.parametrize(
    ("frame", "options", "message"),
    [
        (FRAME, {"label": "rsk"}, r"There is no column 'rsk'; the columns are \['age', 'city', "),
        (FRAME, {"label": "risk", "owner": "x", "drop": ["y"]}, "There is no column 'x' or 'y'"),
        (FRAME, {"label": "risk", "owner": "risk"}, "must be different columns"),
        (FRAME, {"label": "risk", "drop": ["age", "city", "size", "bank"]}, "no column for the inputs"),
        (
            FRAME,
            {"label": "risk", "class_names": ["low"]},
            r"labels that class_names lacks, in 2 of 4 rows \(the first: row 2\)",
        ),
        (
            FRAME.assign(age=[1, None, 3, None]),
            {"label": "risk"},
            r"missing in 'age' \(2, the first in row 2\) of 4 rows\. Fill them",
        ),
        (
            FRAME.assign(risk=["low", None, "low", "low"]),
            {"label": "risk"},
            r"missing in 'risk' \(1, the first in row 2\)",
        ),
        (FRAME.iloc[:0], {"label": "risk"}, "has no rows"),
        (FRAME.assign(age=pd.Timestamp(0)), {"label": "age"}, "must be numbers or text, column 'age' holds datetime64"),
        (FRAME, {"label": "risk", "targets": True}, "must be numbers, since targets is set, column 'risk' holds"),
        (FRAME.assign(age=0.5), {"label": "age", "class_names": [0]}, "holds numbers that are targets.* convert the"),
        (FRAME.rename(columns={"age": "city"}), {"label": "risk"}, "different names, got city more than once"),
        (
            FRAME.assign(age=[1.0, float("inf"), 3.0, 4.0]),
            {"label": "risk"},
            "are infinite.* in 1 of 4 rows",
        ),
    ],
)
def test_says_what_is_wrong_with_a_frame(frame, options, message):
    with pytest.raises(ValueError, match=message):
        Dataset.from_pandas(frame, **options)


def test_missing_values_in_unused_columns_do_not_matter():
    frame = FRAME.assign(age=[1, None, 3, None])
    assert len(Dataset.from_pandas(frame, "risk", drop=["age"])) == 4


def test_a_column_of_identifiers_is_refused():
    names = [f"name {k}" for k in range(MOST_VALUES + 1)]
    frame = pd.DataFrame({"name": names, "y": np.arange(len(names)) % 2})
    with pytest.raises(ValueError, match="Column 'name' has 101 different texts, and at most 100"):
        Dataset.from_pandas(frame, "y")
    assert Dataset.from_pandas(frame.iloc[1:], "y").x.tolist() == torch.eye(100)[_order(names[1:])].tolist()


def _order(names):
    return [sorted(names).index(name) for name in names]


def test_something_else_than_a_frame():
    with pytest.raises(TypeError, match=r"frame must be a pandas DataFrame, got str\. Read files by pandas\.read_csv"):
        Dataset.from_pandas("data.csv", "y")


# --- files


def table(n=60):
    """Four banks, three labels; the label follows from the amount."""
    amount = np.random.default_rng(0).normal(1000, 100, n).round(2)
    cuts = np.quantile(amount, [1 / 3, 2 / 3])
    names = np.array(["small", "middle", "large"])[np.searchsorted(cuts, amount)]
    return pd.DataFrame(
        {"amount": amount, "kind": np.array(["a", "b"])[np.arange(n) % 2], "bank": np.arange(n) % 4, "label": names}
    )


@pytest.fixture
def folder(tmp_path):
    frame = table()
    frame.to_csv(tmp_path / "all.csv", index=False)
    frame.to_csv(tmp_path / "all.csv.gz", index=False)
    frame.to_csv(tmp_path / "semicolons.txt", index=False, sep=";")
    frame.to_parquet(tmp_path / "all.parquet")
    frame[:45].to_csv(tmp_path / "train.csv", index=False)
    frame[45:].to_csv(tmp_path / "test.csv", index=False)
    return tmp_path


def test_all_formats_hold_the_same_examples(folder):
    sources = [
        CSV("all.csv", "label"),
        CSV("all.csv.gz", "label"),
        CSV("semicolons.txt", "label", separator=";"),
        Parquet("all.parquet", "label"),
    ]
    prints = {tuple(part.fingerprint() for part in source.load(folder)) for source in sources}
    assert len(prints) == 1


def test_the_test_part_is_a_share_of_each_class(folder):
    train, test = CSV("all.csv", "label", test_share=0.25).load(folder)
    assert (train.label_counts().tolist(), test.label_counts().tolist()) == ([15, 15, 15], [5, 5, 5])
    rows = {tuple(row) for part in (train, test) for row in part.x[:, 0].view(torch.int32)[:, None].tolist()}
    assert len(rows) == table()["amount"].nunique(), "each row is in one part"


def test_the_test_part_is_a_share_of_each_owner_and_depends_on_the_seed(folder):
    train, test = CSV("all.csv", "label", owner="bank").load(folder)
    assert (torch.bincount(train.owners).tolist(), torch.bincount(test.owners).tolist()) == ([12] * 4, [3] * 4)
    again, other = (CSV("all.csv", "label", owner="bank", split_seed=seed).load(folder)[1] for seed in (0, 1))
    assert again.fingerprint() == test.fingerprint() != other.fingerprint()


def test_two_files_share_their_values_and_classes(folder):
    train, test = CSV("train.csv", "label", test="test.csv", standardize=False).load(folder)
    whole = Dataset.from_pandas(table(), "label")
    assert torch.equal(torch.cat([train.x, test.x]), whole.x)
    assert torch.equal(torch.cat([train.y, test.y]), whole.y)
    assert (len(train), len(test), train.classes) == (45, 15, 3)


def test_numbers_are_standardized_by_the_train_part_and_texts_are_not(folder):
    train, test = CSV("train.csv", "label", test="test.csv", drop=("bank",)).load(folder)
    amount = torch.tensor(table()["amount"].to_numpy())
    expected = (amount - amount[:45].mean()) / amount[:45].std(correction=0)
    assert torch.allclose(torch.cat([train.x, test.x])[:, 0].double(), expected, atol=1e-6)
    assert set(train.x[:, 1:].flatten().tolist()) == {0.0, 1.0}


def test_a_constant_column_is_zero(folder):
    table().assign(amount=7.5).to_csv(folder / "constant.csv", index=False)
    train, _ = CSV("constant.csv", "label").load(folder)
    assert train.x[:, 0].abs().max() == 0


@pytest.mark.filterwarnings("error")
def test_a_table_of_text_alone_has_nothing_to_scale(folder):
    table()[["kind", "label"]].to_csv(folder / "texts.csv", index=False)
    train, _ = CSV("texts.csv", "label").load(folder)
    assert set(train.x.flatten().tolist()) == {0.0, 1.0}


def test_a_file_in_the_current_folder_comes_first(folder, tmp_path, monkeypatch):
    (tmp_path / "here").mkdir()
    table(40).to_csv(tmp_path / "here" / "all.csv", index=False)
    monkeypatch.chdir(tmp_path / "here")
    assert sum(map(len, CSV("all.csv", "label").load(folder))) == 40


def test_what_is_wrong_with_a_file(folder):
    with pytest.raises(FileNotFoundError, match=r"CSV finds no file .*none\.csv or .*none\.csv\. Correct the path"):
        CSV("none.csv", "label").load(folder)
    (folder / "bad.csv").write_text('a,label\n"1,2\n')
    with pytest.raises(
        ValueError, match=r"bad\.csv cannot be read as CSV: a quotation mark in row 1 is not closed\. Close"
    ):
        CSV("bad.csv", "label").load(folder)
    with pytest.raises(ValueError, match=r"all\.csv cannot be read as Parquet: "):
        Parquet("all.csv", "label").load(folder)
    table().drop(columns="kind").to_csv(folder / "less.csv", index=False)
    with pytest.raises(ValueError, match=r"all\.csv and less\.csv must have the same columns; only one .* 'kind'"):
        CSV("all.csv", "label", test="less.csv").load(folder)
    table(3).assign(label=["a", "b", "c"]).to_csv(folder / "few.csv", index=False)
    with pytest.raises(ValueError, match=r"a test part of 0\.2 of 3 rows is empty: column 'label' has"):
        CSV("few.csv", "label").load(folder)
    (folder / "blank.csv").write_text("\n\n")
    with pytest.raises(ValueError, match=r"blank\.csv cannot be read as CSV: it has no columns\. Name a file"):
        CSV("blank.csv", "label").load(folder)
    with pytest.raises(ValueError, match="separator must be one character"):
        CSV("all.csv", "label", separator="\n")
    with pytest.raises(ValueError, match="test_share must lie in \\(0, 1\\)"):
        CSV("all.csv", "label", test_share=1.0)
    with gzip.open(folder / "half.csv.gz", "wb") as file:
        file.write(b"a,label\n1,2\n")
    (folder / "half.csv.gz").write_bytes((folder / "half.csv.gz").read_bytes()[:-6])
    with pytest.raises(ValueError, match=r"half\.csv\.gz cannot be read as CSV"):
        CSV("half.csv.gz", "label").load(folder)


@pytest.mark.parametrize(("source", "package"), [(CSV, "pandas"), (Parquet, "pandas"), (Parquet, "pyarrow")])
def test_without_the_packages(source, package, folder, monkeypatch):
    monkeypatch.setitem(sys.modules, package, None)
    with pytest.raises(ModuleNotFoundError) as error:
        source("all.parquet", "label").load(folder)
    assert str(error.value) == f"{source.__name__} needs the package {package}. Install it: {installation('tables')}."


def test_from_a_configuration(folder, tmp_path):
    (tmp_path / "run.yaml").write_text(
        "data:\n  class_path: CSV\n"
        "  init_args: {path: all.csv, label: label, owner: bank, class_names: [small, middle, large]}\n"
    )
    source = chosen("data", Source, ["--config", str(tmp_path / "run.yaml"), "--data.drop", "[kind]"])
    assert source == CSV("all.csv", "label", owner="bank", drop=("kind",), class_names=("small", "middle", "large"))


def test_a_run_that_predicts_a_number(folder):
    """The amount follows from the hours: the error falls far below that of predicting the mean, the variance."""
    frame = table().drop(columns=["bank", "label"]).assign(hours=lambda t: (t["amount"] - 1000) / 100)
    frame.assign(amount=3 * frame["hours"] + 1).to_csv(folder / "hours.csv", index=False)
    data, training = CSV("hours.csv", "amount", drop=("kind",)), LocalSGD(epochs=20, lr=0.05)
    plan = Run(data=data, task=Regression(), clients=4, model=MLP((16,)), training=training, until=Until(5))
    record = simulate(plan, data_dir=folder)
    assert record.history[-1].metrics.loss < 0.5 < record.history[0].metrics.loss


def test_a_run_with_an_owner_for_each_client(folder):
    data = CSV("all.csv", "label", owner="bank")
    training = LocalSGD(epochs=20)
    plan = Run(
        data=data, partition=Natural(), clients=4, model=MLP((16,)), training=training, until=Until(8),
        accept=("leak:amount",),
    )  # fmt: skip
    record = simulate(plan, data_dir=folder)
    assert record.history[-1].metrics.accuracy > 0.8
    assert [client.size for client in record.summary.clients.values()] == [12] * 4


# --- identities


def named(path, **options):
    return Run(data=CSV(str(path), "label", **options)).identity


def test_a_run_is_identified_by_the_content_of_its_files(folder):
    whole = named(folder / "all.csv")
    copy = folder / "elsewhere.csv"
    copy.write_bytes((folder / "all.csv").read_bytes())
    assert named(copy) == whole != named(folder / "train.csv")
    two = named(folder / "train.csv", test=str(folder / "test.csv"))
    assert two not in (named(folder / "train.csv"), named(folder / "train.csv", test=str(folder / "train.csv")))
    table(59).to_csv(copy, index=False)
    assert named(copy) != whole, "other rows at the same path"
    held = Run(data=HeldOut(CSV(str(copy), "label"))).identity
    table(58).to_csv(copy, index=False)
    assert Run(data=HeldOut(CSV(str(copy), "label"))).identity != held, "also within another source"


def test_the_file_of_an_identity_is_looked_for_in_the_data_folder(folder, monkeypatch):
    by_path = named("all.csv")
    monkeypatch.setenv("PHALANX_DATA", str(folder))
    assert named("all.csv") == named(folder / "all.csv") != by_path
    assert named("none.csv") != named("other.csv"), "a file that is nowhere goes by its path"


def test_a_configuration_and_a_name_have_the_path(folder):
    source = CSV(str(folder / "all.csv"), "label")
    assert Run(data=source).config["data"]["init_args"]["path"] == str(folder / "all.csv")
    assert "all.csv" in name_of(source)


def test_an_unchanged_file_is_hashed_once(folder, monkeypatch):
    named(folder / "all.csv")
    monkeypatch.setattr(hashlib, "file_digest", None)
    named(folder / "all.csv")
    (folder / "all.csv").write_text("changed")
    with pytest.raises(TypeError):
        named(folder / "all.csv")


def test_a_trace_is_identified_by_its_content(tmp_path):
    first, second = tmp_path / "a.csv", tmp_path / "b.csv"
    for path in (first, second):
        path.write_text("client,seconds\n0,1\n")
    latency = [Run(latency=LatencyTrace(str(path))).identity for path in (first, second)]
    available = [Run(availability=AvailabilityTrace(str(path))).identity for path in (first, second)]
    assert latency[0] == latency[1]
    assert available[0] == available[1]
    second.write_text("client,seconds\n0,2\n")
    assert Run(latency=LatencyTrace(str(second))).identity != latency[0]
    assert Run(availability=AvailabilityTrace(str(second))).identity != available[0]


def test_a_word_for_missing_values_at_one_site_is_named_with_the_remedy(tmp_path):
    (tmp_path / "a.csv").write_text("x,y\n" + "1,0\n2,1\n" * 5)
    (tmp_path / "b.csv").write_text("x,y\n" + "1,0\n?,1\n" * 5)
    with pytest.raises(
        ValueError, match=r"b\.csv: Column 'x' holds '\?' among numbers in row 2\. .*list it in missing, and set"
    ):
        CSV(str(tmp_path / "*.csv"), "y").load()
    data, _ = CSV(str(tmp_path / "*.csv"), "y", missing=("?",), impute="median").load()
    assert data.reading.owners == ("a", "b")


ROWS = ["63,M,Rome,1.5,low,yes", "61,F,Bern,2.5,low,no", "58,M,Rome,?,high,yes", "63,F,Oslo,1.5,high,no"]


@pytest.mark.parametrize(
    "lines",
    [
        ROWS,
        [ROWS[2], *ROWS],
        ["63,,,1.5,,", *ROWS],
        [",".join(row.split(",")[1:3]) for row in [ROWS[0], *ROWS]],  # texts alone
        ["1,2,3", "3,1,2", "1,3,2"],
        ["a,b,5.0,6.0", "c,d,1.0,2.0", "e,f,3.0,4.0"],  # no name stands above a number
        ["age,bmi,y", "age,bmi,y", "1,2,a"],  # the names stand below once more
    ],
)
def test_a_first_line_that_looks_like_a_row_is_no_line_of_names(lines, tmp_path):
    (tmp_path / "a.csv").write_text("\n".join(lines))
    source = CSV(str(tmp_path / "a.csv"), "y")
    with pytest.raises(ValueError, match=r"line 1 looks like a row of data: .* a line with the names") as refused:
        source.frame(source.path, None)
    assert not [cell for cell in lines[0].split(",") if f"'{cell}'" in str(refused.value)]


@pytest.mark.parametrize(
    "names",
    [
        "age,sex,city,size,risk,y",
        ",sex,city,size,risk,y",
        "2019,2020,2021,2022,2023,y",
        "0,1,2,3,4,5",
        "400.5,402.5,404.5,406.5,408.5,y",
        "2019,sex,city,size,2020,y",
        "na,sex,city,size,risk,y",
    ],
)
def test_a_line_of_names_may_hold_numbers(names, tmp_path):
    (tmp_path / "a.csv").write_text("\n".join([names, *(row.replace("?", "7") for row in ROWS)]))
    source = CSV(str(tmp_path / "a.csv"), "y")
    assert len(source.frame(source.path, None)) == len(ROWS)
