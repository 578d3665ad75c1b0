"""The published numbers: all are there, and each says where it is from."""

import sys
from collections import Counter

import pytest

from phalanx.core import InfeasibleError
from phalanx.experiments.papers.published import Published, published

PACKAGE = "papers"
FIGURES = {  # entries that hold a claim, and those with numbers: how many
    "byzantine-cfl": {"table1": 24, "table2": 24, "figure2": 0, "figure3": 0},
    "client-weighting": {"figure1": 0, "figure2": 0, "figure3": 9, "figure4": 18, "figure5": 9, "figure6": 36},
    "clustered-fl": dict.fromkeys(("figure3", "figure5", "figure6", "figure7", "figure8", "figure9"), 0),
    "catalyst": {
        "table1": 4 * 9, "table2": 11, "figure1": 6,
        **dict.fromkeys(("figure2", "figure3", "figure4", "figure7", "figure8"), 0),
    },
    "rffl": {
        "table1": 18, "table2": 15, "table3": 24, "table4": 20, "table11": 18, "table12": 24,
        **dict.fromkeys(("table5", "table6", "table14"), 6 * 3),
        **dict.fromkeys((f"table{n}" for n in (7, 8, 9, 13, *range(15, 23))), 7 * 10),
        "figure1": 0, "figure2": 0,
    },
}  # fmt: skip


def test_every_table_and_figure_of_the_papers_is_there():
    found = {name: {key: len(table.numbers) for key, table in paper.tables.items()}
             for name, paper in published(PACKAGE).items()}  # fmt: skip
    assert found == FIGURES


@pytest.mark.parametrize("name", FIGURES)
def test_every_number_has_a_source_and_every_figure_without_numbers_a_claim(name):
    paper = published(PACKAGE)[name]
    assert paper.citation
    assert paper.setting
    for table in paper.tables.values():
        assert table.where.split()[0] in {"Table", "Figure", "Figures"}
        assert table.claim or table.numbers
        for labels, number in table.numbers.items():
            assert len(labels) == len(table.keys)
            assert (number.where, number.whose) != ("", "")
            assert number.where.endswith(table.where)
            assert number.kind in {"printed", "read off the figure"}
            assert (number.within > 0) == (number.kind == "read off the figure")
            assert number.value is not None or number.remark, f"{name} {table.name} {labels}: why is there no number?"


@pytest.mark.parametrize(
    ("paper", "labels", "value", "deviation"),
    [
        ("byzantine-cfl", ("table1", "MNIST", "CFL", "byzantine"), 93.19, None),
        ("byzantine-cfl", ("table2", "Fashion-MNIST", "FL", "label flip"), 68.4, None),
        ("byzantine-cfl", ("table1", "CIFAR-10", "CFL", "byzantine"), None, None),
        ("client-weighting", ("figure5", "median", "ignore"), 55, None),
        ("client-weighting", ("figure6", "label shift, 10 %", "mean", "truncate"), 66, None),
        ("client-weighting", ("figure4", "10 %", "trimmed mean", "passthrough"), 0, None),
        ("catalyst", ("table1", "random perturbation", "Kardam", "MNIST"), 48.0, 12.9),
        ("catalyst", ("table1", "gradient inversion", "FedAsync", "WikiText-2"), None, None),
        ("catalyst", ("table2", "BASGD", "main task"), 95.94, None),
        ("catalyst", ("figure1", "12"), 2.0, None),
        ("rffl", ("table1", "FedAvg", "20", "powerlaw"), -3.58, None),
        ("rffl", ("table4", "Standalone", "SST, 5 participants", "powerlaw"), 30.63, None),
        ("rffl", ("table6", "Median", "target accuracy"), 72.3, None),
        ("rffl", ("table8", "SignSGD", "7"), 66, None),
        ("rffl", ("table22", "RFFL", "8"), 93, None),
        ("rffl", ("table9", "Multi-Krum", "10"), 17, None),
    ],
)
def test_some_numbers_as_the_papers_have_them(paper, labels, value, deviation):
    number = published(PACKAGE)[paper].of(*labels)
    assert (number.value, number.deviation) == (value, deviation)


def test_what_must_be_known_about_a_number_goes_with_it():
    weighting, catalyst = published(PACKAGE)["client-weighting"], published(PACKAGE)["catalyst"]
    for figure in ("figure3", "figure4"):
        assert all("axis is wrong" in number.source for number in weighting.tables[figure].numbers.values())
    starred = [labels for labels, number in catalyst.tables["table1"].numbers.items() if "Starred" in number.remark]
    assert Counter(attack for attack, _, _ in starred) == {"random perturbation": 5, "gradient inversion": 3}
    assert "0.1" in catalyst.of("table1", "no attack", "Catalyst", "CIFAR-10").remark


def test_a_number_as_text():
    assert Published(84.0).text == "84"
    assert Published(18335.0, 3751.0).text == "18335 ± 3751"
    assert Published(None).text == "/"
    read = Published(84.0, where="Toy 2020, Figure 1", kind="read off the figure", within=1, whose="A. Toy", note="So.")
    assert read.source == "Toy 2020, Figure 1, read off the figure, within 1; runs of A. Toy. So."


def test_wrong_labels_are_answered_with_those_that_there_are():
    paper = published(PACKAGE)["client-weighting"]
    with pytest.raises(KeyError, match=r"no number for 'meen, ignore' \(rule, weights\). There are: \['mean, ignore'"):
        paper.of("figure5", "meen", "ignore")
    with pytest.raises(KeyError, match=r"has no 'figure9' of client-weighting\. There are: figure1, "):
        paper.of("figure9")


ENTRY = "where: Table 1, kind: printed, whose: me, what: shares, keys: [a]"


@pytest.mark.parametrize(
    ("entry", "why"),
    [
        ("{where: Table 1}", "must hold values, or a claim"),
        (f"{{{ENTRY}, values: {{x: 1}}, colour: red}}", "paper table1 holds colour. Known are: claim, "),
        ("{where: Table 1, values: {x: 1}}", "lacks keys, kind, what, whose"),
        (
            f"{{{ENTRY.replace('printed', 'guessed')}, values: {{x: 1}}}}",
            "must be of kind printed or figure, got guessed",
        ),
        (f"{{{ENTRY.replace('printed', 'figure')}, values: {{x: 1}}}}", "within which distance it was read off"),
        (f"{{{ENTRY}, within: 1, values: {{x: 1}}}}", "within which distance it was read off"),
        (f"{{{ENTRY}, values: 3}}", "must have 1 levels of labels"),
        (f"{{{ENTRY}, values: {{x: many}}}}", "must be a number, or \\[mean, deviation\\], got 'many'"),
        (f"{{{ENTRY}, values: {{x: [1, 2, 3]}}}}", "must be a number, or"),
        (f"{{{ENTRY}, values: {{x: 1}}, remarks: {{y: odd}}}}", "has a remark on y, and no such number"),
    ],
)
def test_an_entry_that_is_not_what_it_must_be(tmp_path, monkeypatch, entry, why):
    package = f"numbers_{abs(hash(entry))}"
    (tmp_path / package).mkdir()
    (tmp_path / package / "__init__.py").touch()
    text = f"paper:\n  short: Me\n  citation: Me\n  tables:\n    table1: {entry}\n"
    (tmp_path / package / "published.yaml").write_text(text)
    monkeypatch.setattr(sys, "path", [str(tmp_path), *sys.path])
    with pytest.raises(InfeasibleError, match=why):
        published(package)


def test_a_package_without_numbers_has_none():
    assert published("phalanx.report") == {}


def test_lists_pairs_and_remarks():
    paper = published("toy_papers")["toy-paper"]
    assert (paper.of("table2", "works").value, paper.of("table2", "works").deviation) == (80.0, 1.5)
    assert paper.of("figure1", "mean", "noise").remark == "Reaches 30 before it falls."
    assert paper.tables["figure3"].claim == "nothing is trained, and still there is a line"
