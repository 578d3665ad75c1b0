"""Images in files: what they become, whose they are, and what is refused."""

import io
import os
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from phalanx import Run, Until, simulate
from phalanx.core import InfeasibleError
from phalanx.data import CSV, ImageFolder, ImageTable, Natural

Image = pytest.importorskip("PIL.Image", reason="Pillow is not installed")
RNG = np.random.default_rng(0)


def drawn(mode="RGB", height=6, width=6, low=0, high=256):
    bands = {"L": (), "RGB": (3,), "RGBA": (4,)}[mode]
    return Image.fromarray(RNG.integers(low, high, (height, width, *bands)).astype(np.uint8))


def folder(root, owners=("",), classes=("cat", "dog"), each=5):
    """A folder of images for each owner and class; those of every second class are bright."""
    for owner in owners:
        for k, name in enumerate(classes):
            place = root / owner / name
            place.mkdir(parents=True)
            for i in range(each):
                drawn(low=128 * (k % 2), high=128 * (k % 2) + 128).save(place / f"{i}.png")
    return str(root)


def table(root, rows, header="image,label"):
    root.mkdir(exist_ok=True)
    (root / "images.csv").write_text("\n".join([header, *rows]) + "\n", encoding="utf-8")
    return str(root / "images.csv")


def six(root, image, **options):
    """A table that names six files of one image."""
    root.mkdir(exist_ok=True)
    for i in range(6):
        image.save(root / f"{i}.png", **options)
    return table(root, [f"{i}.png,{label}" for i, label in enumerate("xyxyxy")])


def test_a_folder_for_each_class(tmp_path):
    train, test = ImageFolder(folder(tmp_path / "pets")).load()
    assert (train.shape, len(train), len(test)) == ((3, 6, 6), 8, 2)
    assert (train.reading.labels, train.owners, train.findings) == (("cat", "dog"), None, ())
    assert (train.x.mean((1, 2, 3)) > 0.5).tolist() == (train.y == 1).tolist()
    pixels = torch.from_numpy(np.array(Image.open(tmp_path / "pets/cat/0.png"))).movedim(-1, 0).float() / 255
    assert any(torch.equal(x, pixels) for x in torch.cat((train.x, test.x)))


@pytest.mark.parametrize("kind", ["folder", "table"])
def test_each_site_is_a_client_by_its_name(tmp_path, kind):
    names = ("bern", "oslo", "rome")
    folder(tmp_path / "sites", names)
    source = ImageFolder(str(tmp_path / "sites/*"))
    if kind == "table":
        for owner in names:
            rows = [f"{owner}/{label}/{i}.png,{label}" for label in ("cat", "dog") for i in range(5)]
            (tmp_path / "sites" / f"{owner}.csv").write_text("\n".join(["image,label", *rows]))
        source = ImageTable(str(tmp_path / "sites/*.csv"))
    train, test = source.load()
    assert (train.reading.owners, train.reading.labels) == (names, ("cat", "dog"))
    assert (train.owners.bincount().tolist(), test.owners.bincount().tolist()) == ([8] * 3, [2] * 3)
    record = simulate(Run(data=source, partition=Natural(), clients=3, until=Until(2)))
    assert tuple(client.name for client in record.summary.clients.values()) == names
    assert (record.summary.data.classes, record.summary.data.client_tests) == (("cat", "dog"), "own")


@pytest.mark.parametrize(
    ("pattern", "names"),
    [
        ("sites/*/train", ("bern", "oslo")),
        ("s*/*/train", ("sites/bern", "sites/oslo")),
        ("sites/*/*", ("bern/test", "bern/train", "oslo/test", "oslo/train")),
        ("./sites/[bo]*/../*/t*n", ("bern/bern/train", "bern/oslo/train", "oslo/bern/train", "oslo/oslo/train")),
    ],
)
@pytest.mark.parametrize("kind", ["folder", "table"])
@pytest.mark.parametrize("inside", [True, False])
def test_owners_have_the_names_that_wildcards_matched(tmp_path, monkeypatch, kind, pattern, names, inside):
    folder(tmp_path / "sites", [f"{site}/{part}" for site in ("bern", "oslo") for part in ("train", "test")])
    for place in (tmp_path / "sites").glob("*/*"):
        table(place, [f"{label}/{i}.png,{label}" for label in ("cat", "dog") for i in range(5)])
    if inside:
        monkeypatch.chdir(tmp_path)
    source = ImageFolder(pattern) if kind == "folder" else ImageTable(f"{pattern}/images.csv")
    train, _ = source.load(None if inside else tmp_path)
    assert train.reading.owners == names
    assert train.owners.bincount().tolist() == [8] * len(names)


def test_files_of_one_name_have_the_owners_of_their_folders(tmp_path):
    for name in ("bern", "oslo"):
        folder(tmp_path / name)
        for file in ("x.csv", "x.tsv"):
            table(tmp_path / name, [f"{label}/{i}.png,{label}" for label in ("cat", "dog") for i in range(5)])
            os.rename(tmp_path / name / "images.csv", tmp_path / name / file)
    assert ImageTable(f"{tmp_path}/*/*.csv").load()[0].reading.owners == ("bern/x", "oslo/x")
    assert ImageTable(f"{tmp_path}/bern/*").load()[0].reading.owners == ("x.csv", "x.tsv")


def test_images_of_two_folders_of_one_name_have_names_of_their_own(tmp_path):
    folder(tmp_path / "sites", ("bern/train", "oslo/train"))
    (tmp_path / "sites/oslo/train/cat/0.png").write_bytes(b"")
    with pytest.raises(ValueError, match=r"^oslo/train/cat/0\.png cannot be read"):
        ImageFolder(str(tmp_path / "sites/*/train")).load()


@pytest.mark.parametrize("known", ["train", "test"])
def test_owners_in_one_part_only(tmp_path, known):
    folder(tmp_path / "sites", ("bern", "oslo"))
    parts = {"path": folder(tmp_path / "other"), "test": str(tmp_path / "sites/*")}
    if known == "train":
        parts = {"path": parts["test"], "test": parts["path"]}
    train, test = ImageFolder(**parts).load()
    owned, bare = (train, test) if known == "train" else (test, train)
    assert (owned.owners.bincount().tolist(), owned.reading.owners) == ([10, 10], ("bern", "oslo"))
    assert (bare.owners, len(bare)) == (None, 10)
    run = Run(data=ImageFolder(**parts), partition=Natural(), clients=2, until=Until(1))
    if known == "train":
        record = simulate(run)
        assert tuple(client.name for client in record.summary.clients.values()) == ("bern", "oslo")
        assert record.summary.data.client_tests == "label-reweighted"
    else:
        with pytest.raises(ValueError, match=r"these data have no owners"):
            simulate(run)


def test_a_class_that_a_site_lacks(tmp_path):
    folder(tmp_path / "sites", ("bern",), ("cat", "dog"))
    folder(tmp_path / "sites", ("oslo",), ("dog", "eel"))
    train, _ = ImageFolder(str(tmp_path / "sites/*")).load()
    assert train.reading.labels == ("cat", "dog", "eel")
    assert {*train.of(train.owners == 1).y.tolist()} == {1, 2}
    with pytest.raises(ValueError, match=r"class_names lacks 'eel', of which there are images"):
        ImageFolder(str(tmp_path / "sites/*"), class_names=("dog", "cat")).load()


def test_columns_of_a_table(tmp_path):
    folder(tmp_path / "pets")
    rows = [f"{name};pets/{name}/{i}.png;site{i % 2}" for name in ("cat", "dog") for i in range(5)]
    path = table(tmp_path, rows, "kind;file;hospital")
    train, test = ImageTable(path, image="file", label="kind", owner="hospital", separator=";").load()
    assert (train.reading.owners, train.reading.labels) == (("site0", "site1"), ("cat", "dog"))
    assert len(train) + len(test) == 10


@pytest.mark.parametrize("channels", ["RGB", "L"])
@pytest.mark.parametrize("size", [None, 3])
def test_size_and_channels(tmp_path, channels, size):
    train, _ = ImageFolder(folder(tmp_path / "pets"), size=size, channels=channels).load()
    assert train.shape == (3 if channels == "RGB" else 1, size or 6, size or 6)
    assert 0 <= float(train.x.min()) < float(train.x.max()) <= 1


def test_pixels_are_standardized_by_the_train_part(tmp_path):
    train, test = ImageFolder(folder(tmp_path / "pets"), standardize=True).load()
    assert train.x.mean((0, 2, 3)).abs().max() < 1e-5
    assert (train.x.std((0, 2, 3), correction=0) - 1).abs().max() < 1e-5
    assert float(test.x.abs().max()) < 4


@pytest.mark.parametrize("size", [None, 4])
@pytest.mark.parametrize("channels", ["RGB", "L"])
def test_sixteen_bits_are_not_cut_off(tmp_path, channels, size):
    wide = np.linspace(0, 65535, 64).reshape(8, 8).astype(np.uint16)
    train, _ = ImageTable(six(tmp_path / "i", Image.fromarray(wide)), channels=channels, size=size).load()
    assert train.x[0, 0].unique().numel() == (size or 8) ** 2
    if size is None:
        assert torch.allclose(train.x[0, 0], torch.from_numpy(wide.astype(np.float32) / 65535), atol=1e-6)


def test_photographs_are_turned_upright(tmp_path):
    image, about = Image.new("L", (4, 2)), Image.Exif()
    image.putpixel((0, 0), 255)
    about[0x0112] = 6  # to be turned clockwise
    train, _ = ImageTable(six(tmp_path / "i", image, exif=about), channels="L").load()
    assert train.shape == (1, 4, 2)
    assert train.x[0, 0].nonzero().tolist() == [[0, 1]]


def test_an_alpha_channel_without_transparency_is_left_out(tmp_path):
    image = drawn()
    train, _ = ImageTable(six(tmp_path / "i", image.convert("RGBA"))).load()
    assert torch.equal(train.x[0], torch.from_numpy(np.array(image)).movedim(-1, 0).float() / 255)


def encoded():
    file = io.BytesIO()
    drawn().save(file, "PNG")
    return file.getvalue()


def frames(place):
    drawn().save(place, save_all=True, append_images=[drawn(), drawn()])


REFUSED = {
    "transparent": (lambda place: drawn("RGBA").save(place), "a.png", "has transparent pixels"),
    "frames": (frames, "a.gif", "has several frames"),
    "pages": (frames, "a.tif", "has several frames"),
    "32 bits": (lambda place: Image.fromarray(np.arange(36, dtype=np.int32).reshape(6, 6)).save(place), "a.tif",
                "has 32 bits a pixel"),
    "cut off": (lambda place: place.write_bytes(encoded()[:90]), "a.png", "cannot be read as an image: .*Repair"),
    "empty": (lambda place: place.write_bytes(b""), "a.png", "cannot be read as an image"),
    "text": (lambda place: place.write_text("no image"), "a.jpg", "cannot be read as an image"),
    "a program": (lambda place: place.write_text("%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 9 9\n"), "a.png",
                  "cannot be read as an image"),
}  # fmt: skip


@pytest.mark.parametrize("kind", REFUSED)
def test_images_that_are_refused(tmp_path, kind):
    write, name, message = REFUSED[kind]
    write(tmp_path / name)
    path = table(tmp_path, [f"{name},x"] * 6)
    with pytest.raises(ValueError, match=f"^{name} {message}") as refused:
        ImageTable(path).load()
    assert str(tmp_path) not in str(refused.value)


def test_images_of_two_sizes(tmp_path):
    root = folder(tmp_path / "pets")
    drawn(height=7).save(tmp_path / "pets/dog/0.png")
    with pytest.raises(ValueError, match=r"pets/dog/0\.png has 7 x 6 pixels, and pets/cat/0\.png 6 x 6\. Set size"):
        ImageFolder(root).load()
    assert ImageFolder(root, size=6).load()[0].shape == (3, 6, 6)


@pytest.mark.parametrize(
    ("ceiling", "message"),
    [
        ({"most_images": 9}, r"more than 9 images"),
        ({"most_pixels": 35}, r"pets/cat/0\.png has 6 x 6 pixels, and at most 35 are decoded"),
        ({"most_bytes": 50}, r"pets/cat/0\.png has \d+ bytes, and at most 50 are read"),
    ],
)
def test_ceilings(tmp_path, ceiling, message):
    source = ImageFolder(folder(tmp_path / "pets"))
    with pytest.raises(InfeasibleError, match=message):
        replace(source, **ceiling).load()


@pytest.mark.parametrize("kind", ["folder", "table"])
def test_no_file_is_opened_before_all_are_counted(tmp_path, monkeypatch, kind):
    path, most = folder(tmp_path / "pets"), 10_000
    with (tmp_path / "pets/dog/4.png").open("r+b") as last:
        last.truncate(most + 1)
    if kind == "table":
        path = table(tmp_path, [f"pets/{name}/{i}.png,{name}" for name in ("cat", "dog") for i in range(5)])
    source = (ImageFolder if kind == "folder" else ImageTable)(path, most_bytes=most)
    monkeypatch.setattr("phalanx.data.images.file_digest", lambda _: pytest.fail("it was read"))
    monkeypatch.setattr(Image, "open", lambda *_, **__: pytest.fail("it was opened"))
    assert source.file_digests == {}
    with pytest.raises(InfeasibleError, match=r"pets/dog/4\.png has 10,001 bytes, and at most 10,000 are read"):
        source.load()


def test_contents_are_hashed_in_pieces(tmp_path, monkeypatch):
    source = ImageFolder(folder(tmp_path / "pets"), test=folder(tmp_path / "tests"))
    monkeypatch.setattr(Path, "read_bytes", lambda _: pytest.fail("it was read whole"))
    assert {*source.file_digests} == {"path", "test"}
    source.load()


def test_images_of_a_table_are_counted_while_it_is_read(tmp_path):
    drawn().save(tmp_path / "a.png")
    path = table(tmp_path, ["a.png,x"] * 4 + ["nothing.png,x"])
    with pytest.raises(InfeasibleError, match=r"images\.csv has more than 3 images, the most that are read"):
        ImageTable(path, most_images=3).load()
    with pytest.raises(ValueError, match=r"line 6 names no image"):
        ImageTable(path, most_images=4).load()


def test_pixels_are_counted_before_they_are_decoded(tmp_path, monkeypatch):
    path = six(tmp_path / "i", Image.new("1", (20_000, 3_000)))  # 60 million pixels in a few kilobytes
    monkeypatch.setattr(Image.Image, "convert", lambda *_: pytest.fail("it was decoded"))
    with pytest.raises(InfeasibleError, match=r"20,000 x 3,000 pixels, and at most 50,000,000 are decoded"):
        ImageTable(path, size=8).load()


def test_numbers_in_memory_have_a_ceiling(tmp_path, monkeypatch):
    monkeypatch.setattr("phalanx.data.images.MOST_NUMBERS", 1000)
    with pytest.raises(InfeasibleError, match=r"10 images of shape \(3, 6, 6\) have more than 1,000 numbers"):
        ImageFolder(folder(tmp_path / "pets")).load()


def test_pixels_of_all_images_have_a_ceiling(tmp_path, monkeypatch):
    """Of which a small file can have any number."""
    path = folder(tmp_path / "pets")
    size = (tmp_path / "pets/cat/0.png").stat().st_size
    monkeypatch.setattr("phalanx.data.images.MOST_DECODED", 6 * 36 - 1)
    monkeypatch.setattr("phalanx.data.images.PER_BYTE", 0)
    with pytest.raises(InfeasibleError, match=r"Up to pets/dog/0\.png, images have more than 215 pixels"):
        ImageFolder(path).load()
    monkeypatch.setattr("phalanx.data.images.PER_BYTE", -(-36 // size))
    ImageFolder(path).load()


def test_an_image_that_is_named_often_is_decoded_once(tmp_path, monkeypatch):
    drawn().save(tmp_path / "a.png")
    drawn().save(tmp_path / "b.png")
    path, opened, real = table(tmp_path, ["a.png,x", "b.png,y"] * 50), [], Image.open
    monkeypatch.setattr(Image, "open", lambda *a, **k: opened.append(a) or real(*a, **k))
    train, test = ImageTable(path).load()
    assert len(opened) == 2
    for part in (train, test):
        assert [part.x[part.y == label].unique(dim=0).shape[0] for label in (0, 1)] == [1, 1]


def test_moments_of_many_images_are_those_of_all_at_once(tmp_path, monkeypatch):
    source = ImageFolder(folder(tmp_path / "pets"), standardize=True)
    whole = source.load()[0].x
    monkeypatch.setattr("phalanx.data.images.AT_ONCE", 3 * 36 * 3)
    parts = source.load()[0].x
    assert torch.allclose(whole, parts, atol=1e-6)
    assert parts.mean().abs() < 1e-5


@pytest.mark.parametrize("name", ["../secret.png", "/etc/hostname.png", "link.png", "sub/../../secret.png"])
def test_a_table_names_no_image_outside_its_folder(tmp_path, name):
    drawn().save(tmp_path / "secret.png")
    path = table(tmp_path / "inside", [f"{name},x", f"{name},y"])
    (tmp_path / "inside/link.png").symlink_to(tmp_path / "secret.png")
    with pytest.raises(ValueError, match=r"images\.csv, line 2 names an image outside the folder of images\.csv"):
        ImageTable(path).load()


def test_links_and_other_files_are_left_out_with_a_remark(tmp_path):
    root = folder(tmp_path / "pets")
    drawn().save(tmp_path / "secret.png")
    (tmp_path / "pets/cat/link.png").symlink_to(tmp_path / "secret.png")
    (tmp_path / "pets/cat/notes.txt").write_text("")
    (tmp_path / "pets/.hidden").write_text("")
    train, test = ImageFolder(root).load()
    assert len(train) + len(test) == 10
    (found,) = train.findings
    assert (found.code, found.error) == ("files", False)
    assert "2 items in" in found.sentence


def test_a_linked_class_is_left_out_with_a_remark(tmp_path):
    root = folder(tmp_path / "pets", classes=("cat", "dog", "eel"))
    os.rename(tmp_path / "pets/eel", tmp_path / "eel")
    (tmp_path / "pets/eel").symlink_to(tmp_path / "eel")
    train, _ = ImageFolder(root).load()
    assert train.reading.labels == ("cat", "dog")
    (found,) = train.findings
    assert "1 item in" in found.sentence
    assert "is left out (the first: pets/eel)" in found.sentence
    assert "no link is followed" in found.sentence


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="needs named pipes")
def test_only_regular_files_are_opened(tmp_path):
    root = folder(tmp_path / "pets")
    os.mkfifo(tmp_path / "pets/cat/z.png")
    source = ImageFolder(root)
    assert all(image.file.is_file() for image in source.listed(root, None)[0])  # before one is waited for
    train, test = source.load()
    assert (len(train) + len(test), len(source.file_digests)) == (10, 1)
    assert "the first: pets/cat/z.png" in train.findings[0].sentence
    with pytest.raises(ValueError, match=r"line 2 names no image that is there: pets/cat/z\.png"):
        ImageTable(table(tmp_path, ["pets/cat/z.png,cat"])).load()


@pytest.mark.parametrize(
    ("rows", "header", "message"),
    [
        (["a.png,x,1"], "image,label", r"images\.csv, line 2 has 3 cells, and the first line 2"),
        (["a.png,"], "image,label", r"images\.csv, line 2 has an empty cell"),
        (["b.png,x"], "image,label", r"images\.csv, line 2 names no image that is there: b\.png"),
        (["a.png,x"], "file,label", r"images\.csv has no single column 'image'; the columns are .*file"),
        (["a.png,x,y"], "image,label,label", r"images\.csv has no single column 'label'"),
        ([], "image,label", r"names no image"),
        (["a.png,x", f"a.png,{'x' * 200_000}"], "image,label", r"images\.csv, line 3 has a cell of more than"),
        (["a.png,x", '"a.png,x'] + ["a.png,x"] * 20_000, "image,label", r"line 3 has a cell .* Close its quotation"),
        ([], f"image,label,{'x' * 200_000}", r"images\.csv, line 1 has a cell of more than"),
        (["a.png,x", "a\0.png,x"], "image,label", r"images\.csv, line 3 holds a NUL character"),
        (["a.png,x\0"], "image,label", r"images\.csv, line 2 holds a NUL character"),
        (["a.png,x"], "image,label,\0", r"images\.csv, line 1 holds a NUL character"),
        ([f"{'a' * 300}.png,x"], "image,label", r"images\.csv, line 2 names no image that is there: aaa.*…"),
        ([f"{'a/' * 3000}a.png,x"], "image,label", r"images\.csv, line 2 names no image that is there: a/a.*…"),
        (["circle.png,x"], "image,label", r"images\.csv, line 2 names no image that is there: circle\.png"),
        (["a.png,x", "", '"a.png",x,"'], "image,label", r"images\.csv, line 4 has 3 cells"),
        (
            ["a.png,x", "./a.png,x", "b/../a.png,y"],
            "image,label",
            r"line 4 says that a\.png is 'y', and images\.csv, line 2 that it is 'x'\. Correct one",
        ),
    ],
)
def test_tables_of_images_that_are_refused(tmp_path, rows, header, message):
    drawn().save(tmp_path / "a.png")
    (tmp_path / "circle.png").symlink_to(tmp_path / "circle.png")
    with pytest.raises(ValueError, match=message):
        ImageTable(table(tmp_path, rows, header)).load()


def test_lines_of_a_table_are_those_of_csv(tmp_path):
    folder(tmp_path / "pets")
    rows = [f'pets/cat/{i}.png,"cat\u2028or\x85\x0cnot","two\nlines"' for i in range(5)]
    rows += [f"pets/dog/{i}.png,dog," for i in range(5)]
    train, test = ImageTable(table(tmp_path, rows, "image,label,about")).load()
    assert (train.reading.labels, len(train) + len(test)) == (("cat\u2028or\x85\x0cnot", "dog"), 10)
    (tmp_path / "images.csv").write_bytes((tmp_path / "images.csv").read_bytes().replace(b"\n", b"\r\n"))
    assert len(ImageTable(str(tmp_path / "images.csv")).load()[0]) == len(train)
    with pytest.raises(ValueError, match=r"images\.csv, line 4 has 2 cells, and the first line 3"):
        ImageTable(table(tmp_path, [rows[0], "pets/cat/1.png,cat"], "image,label,about")).load()


def test_files_of_two_owners_do_not_disagree_on_an_image(tmp_path):
    drawn().save(tmp_path / "a.png")
    for name, label in (("bern", "cat"), ("oslo", "dog")):
        (tmp_path / f"{name}.csv").write_text(f"image,label\na.png,{label}\n")
    with pytest.raises(ValueError, match=r"oslo\.csv, line 2 says that a\.png is 'dog', and bern\.csv, line 2 that it"):
        ImageTable(str(tmp_path / "*.csv")).load()


def test_images_of_both_parts_are_a_remark(tmp_path):
    source = ImageFolder(folder(tmp_path / "pets"), test=folder(tmp_path / "tests", each=2))
    train, test = source.load()
    assert (len(train), len(test), train.findings) == (10, 4, ())
    (tmp_path / "tests/cat/0.png").write_bytes((tmp_path / "pets/dog/3.png").read_bytes())
    (found,) = source.load()[0].findings
    assert (found.code, found.error) == ("twice", False)
    assert "the first: tests/cat/0.png" in found.sentence


def test_a_run_is_identified_by_its_images(tmp_path, monkeypatch):
    folder(tmp_path / "a/pets")
    (tmp_path / "b").mkdir()
    os.rename(tmp_path / "a/pets", tmp_path / "b/pets")
    monkeypatch.chdir(tmp_path / "b")
    here = Run(data=ImageFolder("pets"), clients=2).identity
    monkeypatch.chdir(tmp_path)
    assert Run(data=ImageFolder("b/pets"), clients=2).identity == here
    drawn().save(tmp_path / "b/pets/cat/0.png")
    assert Run(data=ImageFolder("b/pets"), clients=2).identity != here


@pytest.mark.parametrize("source", [ImageFolder("none"), ImageTable("none.csv"), ImageFolder("none/*")])
def test_no_images_at_the_path(source, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(FileNotFoundError, match=rf"{type(source).__name__} finds no .* none.*Correct the path"):
        source.load()


def test_tables_of_one_name_have_the_owners_of_their_folders(tmp_path):
    pytest.importorskip("pandas", reason="pandas is not installed")
    for name in ("bern", "oslo"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "train.csv").write_text("age,ill\n" + "".join(f"{i},{i % 2}\n" for i in range(10)))
    train, _ = CSV(f"{tmp_path}/*/train.csv", "ill").load()
    assert (train.reading.owners, train.owners.bincount().tolist()) == (("bern", "oslo"), [8, 8])
