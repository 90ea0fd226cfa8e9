"""Folders: captions beside pictures, metadata files, class trees, and what is neither."""

import json
import os
import pickle

import pytest

from rti.data import BrokenExample, Tolerant, open_data
from rti.errors import InputError
from test_data_source import colour_of, plain

RED, GREEN, BLUE = (255, 0, 0), (0, 255, 0), (0, 0, 255)


def put(folder, files: dict[str, bytes | str]):
    for name, data in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data.encode() if isinstance(data, str) else data)
    return str(folder)


def contents(source) -> list[tuple]:
    return [(example.caption, example.label, colour_of(example.image)) for example in source]


def test_captions_beside_pictures(tmp_path):
    files = {"b.png": plain(RED), "b.txt": "\ufeffein Bär\n", "sub/dir/a.PNG": plain(GREEN), "sub/dir/a.txt": "緑"}
    files |= {".hidden/x.png": plain(), "._b.png": b"what a Mac leaves", "readme.md": "x"}
    source = open_data(put(tmp_path, files), 8)
    assert source.kind == "text" and len(source) == 2 and "2 pictures with captions" in source.describe()
    assert contents(source) == [("ein Bär", None, [255, 0, 0]), ("緑", None, [0, 255, 0])]
    assert contents(pickle.loads(pickle.dumps(source))) == contents(source)


def test_missing_captions_and_broken_pictures_are_counted(tmp_path):
    files = {"a.png": plain(), "a.txt": "a", "b.png": b"", "b.txt": "b", "c.png": plain(), "d.png": plain()}
    source = open_data(put(tmp_path, files | {"d.txt": ""}), 8)
    for index in (1, 2, 3):
        with pytest.raises(BrokenExample, match=r"[bcd]\.(png|txt)"):
            source[index]
    assert Tolerant(source)[1].skipped == 3


def test_metadata_jsonl(tmp_path):
    rows = [{"file_name": "x/a.png", "text": "a \u2028 b"}, {"file_name": "b.png", "caption": "Ünï"}]
    lines = [json.dumps(row, ensure_ascii=False) for row in rows]
    lines += ["{broken", "", '{"file_name": "gone.png", "text": "t"}', '{"text": "t"}', '{"file_name": "b.png"}', "[1]"]
    files = {"metadata.jsonl": "\n".join(lines) + "\n", "x/a.png": plain(RED), "b.png": plain(BLUE), "b.txt": "not me"}
    source = open_data(put(tmp_path, files), 8)
    assert len(source) == 7
    assert [source[index].caption for index in (0, 1)] == ["a \u2028 b", "Ünï"]
    assert colour_of(source[1].image) == [0, 0, 255]
    for index, message in {2: "line 3", 3: "gone.png", 4: "line 6", 5: "b.png has no caption", 6: "line 8"}.items():
        with pytest.raises(BrokenExample, match=message):
            source[index]


def test_metadata_csv_also_in_subfolders(tmp_path):
    table = 'file_name,text\r\na.png,"one, two\nthree"\r\nb.png,vier\r\nc.png\r\n'
    files = {"train/metadata.csv": table, "train/a.png": plain(RED), "train/b.png": plain(GREEN)}
    files["train/c.png"] = plain(BLUE)
    source = open_data(put(tmp_path, files), 8)
    assert contents([source[0], source[1]]) == [
        ("one, two\nthree", None, [255, 0, 0]),
        ("vier", None, [0, 255, 0]),
    ]
    assert len(source) == 3
    with pytest.raises(BrokenExample, match=r"c\.png has no caption"):
        source[2]


def test_class_tree(tmp_path):
    files = {"n02/x.png": plain(GREEN), "n01/deep/y.png": plain(RED), "n01/z.png": plain(BLUE), "n10/a.png": plain(RED)}
    source = open_data(put(tmp_path, files | {"classes.txt": "notes", ".cache/q.png": plain()}), 8)
    assert source.kind == "labels" and source.classes == ["n01", "n02", "n10"]
    assert contents(source) == [
        (None, 0, [0, 0, 255]),
        (None, 0, [255, 0, 0]),
        (None, 1, [0, 255, 0]),
        (None, 2, [255, 0, 0]),
    ]
    assert len(source.classes) == 3


def test_an_empty_class_folder_would_shift_the_labels(tmp_path):
    put(tmp_path, {"a/x.png": plain(), "c/x.png": plain()})
    (tmp_path / "b").mkdir()
    with pytest.raises(InputError, match=r"class folder .*b has no pictures"):
        open_data(str(tmp_path), 8)


def test_flip_and_kind(tmp_path):
    folder = put(tmp_path, {"a/x.png": plain(), "a/x.txt": "x"})
    assert open_data(folder, 8).kind == "text"
    assert open_data(folder, 8, kind="labels")[0].label == 0
    assert len(open_data(folder, 8, flip=True)) == 2


def test_links_to_parents_end(tmp_path):
    put(tmp_path, {"a/x.png": plain(), "a/x.txt": "x"})
    (tmp_path / "a" / "loop").symlink_to(tmp_path)
    assert len(open_data(str(tmp_path), 8)) == 1


def test_linked_class_folders_are_read(tmp_path):
    put(tmp_path / "elsewhere", {"x.png": plain()})
    (tmp_path / "tree").mkdir()
    (tmp_path / "tree" / "cat").symlink_to(tmp_path / "elsewhere")
    assert open_data(str(tmp_path / "tree"), 8).classes == ["cat"]


MIXED = {
    "empty": ({}, "is empty"),
    "no pictures": ({"a/readme.txt": "x"}, "is empty"),
    "loose pictures without captions": ({"a.png": plain(), "c/b.png": plain()}, "cannot tell what"),
    "few captions": ({"c/a.png": plain(), "c/a.txt": "a", "c/b.png": plain(), "c/d.png": plain()}, "1 of 3 pictures"),
    "shards and pictures": ({"a.tar": b"", "b.png": plain()}, "mixes 1 .tar shards with 1 pictures"),
    "empty metadata": ({"metadata.jsonl": "", "a.png": plain()}, "is empty"),
    "csv that is none": ({"metadata.csv": 'file_name,text\n"' + "x" * 200_000, "a.png": plain()}, "not readable"),
}


@pytest.mark.parametrize("case", MIXED)
def test_folders_that_are_refused(tmp_path, case):
    files, message = MIXED[case]
    with pytest.raises(InputError, match=message) as caught:
        open_data(put(tmp_path, files), 8)
    assert "\n" not in str(caught.value)


def test_metadata_reads_nothing_outside_of_its_folder(tmp_path):
    (tmp_path / "secret.png").write_bytes(plain(RED))
    (tmp_path / "elsewhere.png").write_bytes(plain(GREEN))
    names = ["../secret.png", str(tmp_path / "secret.png"), "sub/../../secret.png", "sub/../..secret.png", "link.png"]
    rows = [json.dumps({"file_name": name, "text": "x"}) for name in names]
    folder = tmp_path / "folder"
    source = open_data(put(folder, {"metadata.jsonl": "\n".join(rows), "..secret.png": plain(BLUE)}), 8)
    (folder / "link.png").symlink_to(tmp_path / "elsewhere.png")
    for index in range(3):
        with pytest.raises(BrokenExample, match="is not in"):
            source[index]
    assert colour_of(source[3].image) == [0, 0, 255]
    assert colour_of(source[4].image) == [0, 255, 0]  # a link that the folder's owner made


@pytest.mark.parametrize("kind", ["pipe", "device", "sparse"])
def test_what_is_no_file_or_has_no_end_is_a_broken_example(tmp_path, kind):
    source = open_data(put(tmp_path, {"a.png": plain(), "a.txt": "a", "b.png": plain(), "b.txt": "b"}), 8)
    picture = tmp_path / "b.png"
    picture.unlink()
    if kind == "pipe":
        os.mkfifo(picture)
    elif kind == "device":
        picture.symlink_to("/dev/null")  # /dev/zero would fill the memory
    else:
        with picture.open("wb") as file:
            file.truncate((1 << 28) + 1)
    with pytest.raises(BrokenExample, match=r"b\.png \((.* is no regular file|.* bytes, more than)"):
        source[1]


def test_metadata_and_shards_that_are_pipes_are_refused(tmp_path):
    put(tmp_path / "folder", {"a.png": plain()})
    os.mkfifo(tmp_path / "folder" / "metadata.jsonl")
    os.mkfifo(tmp_path / "x.tar")
    for data in (tmp_path / "folder", tmp_path / "x.tar"):
        with pytest.raises(InputError, match="regular file"):
            open_data(str(data), 8)
