"""Tar shards as they are found in the wild: whole, broken, torn and hostile."""

import io
import json
import pickle
import tarfile

import numpy as np
import pytest
import torch
from torch.utils.data import DataLoader

from rti.data import BrokenExample, Tolerant, open_data
from rti.data.opening import expand_braces
from rti.data.shards import PICTURE
from rti.errors import InputError
from test_data_source import BROKEN, FORMS, colour_of, encode_picture, noise, plain, write_tar


def captioned(count: int, start: int = 0) -> list[tuple[str, bytes]]:
    """Members of `count` examples of noise with captions."""
    members = []
    for number in range(start, start + count):
        members += [(f"{number:04d}.jpg", encode_picture(noise(number), "jpeg"))]
        members += [(f"{number:04d}.txt", f"Bild Nr. {number} — 図 🖼".encode())]
    return members


def open_shard(path, size, **options):
    return open_data(str(path), size, **options)


def same(one, two) -> bool:
    return torch.equal(one.image, two.image) and one[1:] == two[1:]


def test_captions_and_pictures_in_order(tmp_path):
    source = open_shard(write_tar(tmp_path / "a.tar", captioned(5)), (16, 24))
    assert len(source) == 5 and source.kind == "text" and "5 pictures with captions" in source.describe()
    assert [source[index].caption for index in range(5)] == [f"Bild Nr. {number} — 図 🖼" for number in range(5)]
    assert source[0].image.shape == (3, 16, 24) and source[0].label is None
    for index in (-1, 5):
        with pytest.raises(IndexError):
            source[index]


def test_random_access_equals_webdataset_reading_in_sequence(tmp_path):
    webdataset = pytest.importorskip("webdataset")
    for number in range(3):
        write_tar(tmp_path / f"{number:03d}.tar", captioned(4, start=10 * number))
    source = open_data(str(tmp_path / "{000..002}.tar"), 30)
    urls = [str(tmp_path / f"{number:03d}.tar") for number in range(3)]
    expected = list(webdataset.WebDataset(urls, shardshuffle=False, empty_check=False))
    assert len(source) == len(expected) == 12
    for index in reversed(range(12)):
        assert (source.picture(index)[0], source.answer(index)) == (
            expected[index]["jpg"],
            expected[index]["txt"].decode(),
        )


def test_every_form_of_picture_in_a_shard(tmp_path):
    members = []
    for number, (data, _) in enumerate(FORMS.values()):
        members += [(f"{number}.png", data), (f"{number}.txt", b"x")]
    source = open_shard(write_tar(tmp_path / "a.tar", members), 8)
    for index, (form, (_, colour)) in enumerate(FORMS.items()):
        difference = torch.tensor(colour_of(source[index].image)) - torch.tensor(colour)
        assert difference.abs().max() <= 1, form


def test_broken_members_are_skipped_and_counted(tmp_path):
    members = [("whole.jpg", plain()), ("whole.txt", b"whole")]
    for number, data in enumerate(BROKEN.values()):
        members += [(f"broken{number}.jpg", data), (f"broken{number}.txt", b"broken")]
    members += [("no-caption.jpg", plain())]
    members += [("empty-caption.jpg", plain()), ("empty-caption.txt", b" \n")]
    members += [("latin.jpg", plain()), ("latin.txt", "café".encode("latin-1"))]
    members += [("bad-json.jpg", plain()), ("bad-json.json", b"{caption: 1}")]
    members += [("list.jpg", plain()), ("list.json", b"[1]")]
    members += [("no-key.jpg", plain()), ("no-key.json", b'{"url": "x"}')]
    members += [("nested.jpg", plain()), ("nested.json", b"[" * 100_000)]
    members += [("words-only.txt", b"no picture, hence no example")]
    source = open_shard(write_tar(tmp_path / "a.tar", members), 8)
    broken = len(BROKEN) + 7
    assert len(source) == broken + 1
    for index in range(1, len(source)):
        with pytest.raises(BrokenExample, match=r"a\.tar: [a-z0-9-]+\.jpg ") as caught:
            source[index]
        assert "\n" not in str(caught.value)
    drawn = Tolerant(source)[1]
    assert (drawn.example.caption, drawn.skipped) == ("whole", broken)
    with pytest.raises(InputError, match=r"6 broken examples in a row in .*a\.tar"):
        Tolerant(source, limit=5)[1]


def test_json_captions(tmp_path):
    records = [{"caption": "eins"}, {"text": "zwei"}, {"prompt": "三"}, {"caption": "", "text": "vier"}]
    members = []
    for number, record in enumerate(records):
        members += [(f"{number}.png", plain()), (f"{number}.json", json.dumps(record).encode())]
    source = open_shard(write_tar(tmp_path / "a.tar", members), 8)
    assert [example.caption for example in map(source.__getitem__, range(4))] == ["eins", "zwei", "三", "vier"]


def test_txt_is_preferred_to_json(tmp_path):
    """img2dataset writes both; the json holds the address, the licence and more."""
    members = [("0.jpg", plain()), ("0.json", b'{"caption": "json"}'), ("0.txt", b"txt")]
    assert open_shard(write_tar(tmp_path / "a.tar", members), 8)[0].caption == "txt"


def test_classes(tmp_path):
    members = []
    for number, label in enumerate([b"7", b"999\n", b"-1", b"dog", b""]):
        # ImageNet's shards hold a json as well, which is no caption.
        members += [(f"{number}.jpg", plain()), (f"{number}.cls", label), (f"{number}.json", b'{"filename": "x"}')]
    source = open_shard(write_tar(tmp_path / "a.tar", members), 8)
    assert source.kind == "labels" and [source[0].label, source[1].label] == [7, 999]
    assert source[0].caption is None
    for index in (2, 3, 4):
        with pytest.raises(BrokenExample, match="no number"):
            source[index]


def test_kind_can_be_chosen_where_both_are_there(tmp_path):
    path = str(write_tar(tmp_path / "a.tar", [("0.jpg", plain()), ("0.cls", b"3"), ("0.txt", b"three")]))
    assert open_data(path, 8)[0][1:] == ("three", None)
    assert open_data(path, 8, kind="labels")[0][1:] == (None, 3)
    only_text = str(write_tar(tmp_path / "b.tar", [("0.jpg", plain()), ("0.txt", b"three")]))
    with pytest.raises(InputError, match=r"b\.tar holds pictures without classes"):
        open_data(only_text, 8, kind="labels")


def test_grouping(tmp_path):
    """Names end at the first dot of the file name; folders count; order does not; endings in capitals do."""
    members = [
        ("x/a.jpg", plain((255, 0, 0))),
        ("y/a.JPG", plain((0, 255, 0))),
        ("a.b/c.jpeg", plain((0, 0, 255))),
        ("x/a.txt", b"red"),
        ("a.b/c.txt", b"blue"),
        ("y/a.txt", b"green"),
        ("y/a.mask.png", plain((9, 9, 9))),
        ("y/._a.jpg", b"what a Mac leaves"),
        ("x/a.jpg", plain((0, 0, 0))),
        ("x/a.txt", b"black, under a name that was there before"),
    ]
    source = open_shard(write_tar(tmp_path / "a.tar", members), 8)
    found = [(example.caption.split(",")[0], colour_of(example.image)) for example in map(source.__getitem__, range(4))]
    assert len(source) == 4
    expected = [("red", [255, 0, 0]), ("green", [0, 255, 0]), ("blue", [0, 0, 255]), ("black", [0, 0, 0])]
    assert found == expected


def test_the_same_names_in_several_shards_are_different_examples(tmp_path):
    for number in range(3):
        write_tar(tmp_path / f"{number}.tar", [("0.png", plain((number, 0, 0))), ("0.txt", f"{number}".encode())])
    source = open_data(str(tmp_path), 8)
    assert [(source[index].caption, colour_of(source[index].image)[0]) for index in range(3)] == [
        ("0", 0),
        ("1", 1),
        ("2", 2),
    ]


@pytest.mark.parametrize("form", [tarfile.USTAR_FORMAT, tarfile.GNU_FORMAT, tarfile.PAX_FORMAT])
def test_long_names_in_every_tar_format(tmp_path, form):
    folder = "/".join(["d" * 40] * 3)  # beyond the 100 characters of a plain header
    with tarfile.open(tmp_path / "a.tar", "w", format=form) as tar:
        for ending, data in (("png", plain((0, 255, 0))), ("txt", b"green")):
            member = tarfile.TarInfo(f"{folder}/bild.{ending}")
            member.size = len(data)
            tar.addfile(member, io.BytesIO(data))
    example = open_shard(tmp_path / "a.tar", 8)[0]
    assert example.caption == "green" and colour_of(example.image) == [0, 255, 0]


def test_a_torn_tar_is_used_as_far_as_it_goes(tmp_path):
    whole = open_shard(write_tar(tmp_path / "a.tar", captioned(6)), 8)
    data = (tmp_path / "a.tar").read_bytes()
    offset, size = whole.members[4, PICTURE]
    torn_picture, torn_header = tmp_path / "b.tar", tmp_path / "c.tar"
    torn_picture.write_bytes(data[: offset + size // 2])
    torn_header.write_bytes(data[: offset - 300])
    source = open_shard(torn_picture, 8)
    assert len(source) == 5
    assert all(same(source[index], whole[index]) for index in range(4))
    with pytest.raises(BrokenExample):
        source[4]
    assert Tolerant(source)[4].skipped == 1
    source = open_shard(torn_header, 8)
    assert len(source) == 4
    assert all(same(source[index], whole[index]) for index in range(4))


def test_a_torn_caption_or_picture_at_the_end_is_broken_not_short(tmp_path):
    data = write_tar(tmp_path / "a.tar", [("0.jpg", plain()), ("0.txt", b"a long caption")]).read_bytes()
    at = data.index(b"a long caption")
    (tmp_path / "a.tar").write_bytes(data[: at + 6])
    with pytest.raises(BrokenExample, match="past the end"):
        open_shard(tmp_path / "a.tar", 8)[0]
    backwards = [("0.txt", b"caption"), ("0.png", plain(size=(300, 300)))]
    data = write_tar(tmp_path / "b.tar", backwards).read_bytes()
    (tmp_path / "b.tar").write_bytes(data[: data.index(b"\x89PNG") + 50])
    with pytest.raises(BrokenExample, match="past the end"):
        open_shard(tmp_path / "b.tar", 8)[0]


def test_a_damaged_header_ends_the_shard(tmp_path):
    whole = open_shard(write_tar(tmp_path / "a.tar", captioned(4)), 8)
    data = bytearray((tmp_path / "a.tar").read_bytes())
    header = int(whole.members[2, PICTURE, 0]) - 512
    data[header : header + 512] = b"\xa5" * 512
    (tmp_path / "a.tar").write_bytes(data)
    source = open_shard(tmp_path / "a.tar", 8)
    assert len(source) == 2


def test_a_shard_that_vanishes_later_is_broken(tmp_path):
    source = open_shard(write_tar(tmp_path / "a.tar", captioned(1)), 8)
    (tmp_path / "a.tar").unlink()
    with pytest.raises(BrokenExample, match=r"cannot read .*a\.tar"):
        source[0]


class Explosive:
    def __reduce__(self):
        return (pytest.fail, ("unpickled",))


def test_nothing_is_unpickled_and_nothing_is_extracted(tmp_path):
    place = tmp_path / "inner" / "deep"
    place.mkdir(parents=True)
    bomb = pickle.dumps(Explosive())
    with pytest.raises(pytest.fail.Exception):
        pickle.loads(bomb)  # the bomb works
    members = [("0.jpg", plain()), ("0.txt", b"zero"), ("0.pyd", bomb), ("0.pickle", bomb), ("0.pth", bomb)]
    members += [("../../evil.jpg", plain((0, 0, 255))), ("../../evil.txt", b"evil")]
    members += [("/absolute.jpg", plain()), ("/absolute.txt", b"absolute")]
    source = open_shard(write_tar(place / "a.tar", members), 8)
    before = sorted(tmp_path.rglob("*"))
    assert [source[index].caption for index in range(3)] == ["zero", "evil", "absolute"]
    assert sorted(tmp_path.rglob("*")) == before


def test_links_in_a_tar_lead_nowhere(tmp_path):
    (tmp_path / "secret.txt").write_text("secret")
    write_tar(tmp_path / "a.tar", [("0.jpg", plain())])
    with tarfile.open(tmp_path / "a.tar", "a") as tar:
        for name, kind in (("0.txt", tarfile.SYMTYPE), ("1.txt", tarfile.LNKTYPE)):
            link = tarfile.TarInfo(name)
            link.type, link.linkname = kind, str(tmp_path / "secret.txt")
            tar.addfile(link)
    with pytest.raises(InputError, match="without captions"):
        open_shard(tmp_path / "a.tar", 8)


def test_flip_adds_the_mirrored_pictures(tmp_path):
    path = write_tar(tmp_path / "a.tar", captioned(3))
    plainly, flipped = open_shard(path, 16), open_shard(path, 16, flip=True)
    assert len(flipped) == 6
    for index in range(3):
        assert same(flipped[index], plainly[index])
        assert torch.equal(flipped[index + 3].image, plainly[index].image.flip(-1))
        assert flipped[index + 3].caption == plainly[index].caption


@pytest.mark.parametrize("method", ["fork", "spawn"])
def test_workers_read_the_same(tmp_path, method):
    for number in range(2):
        write_tar(tmp_path / f"{number}.tar", captioned(6, 10 * number))
    source = open_data(str(tmp_path), 16)
    expected = [source[index] for index in range(12)]  # read here first, so that a shared file position would show
    loader = DataLoader(source, batch_size=2, num_workers=2, multiprocessing_context=method, collate_fn=_as_is)
    found = [example for examples in loader for example in examples]
    assert len(found) == 12 and all(map(same, found, expected))
    copy = pickle.loads(pickle.dumps(source))
    assert all(same(copy[index], expected[index]) for index in range(12))


def _as_is(examples):
    return examples


def test_indexes_of_large_shards_are_kept(tmp_path, monkeypatch):
    monkeypatch.setenv("RTI_CACHE", str(tmp_path / "cache"))
    picture = plain(size=(2, 2))
    members = [
        (f"{number}.{ending}", data) for number in range(1000) for ending, data in (("png", picture), ("txt", b"a"))
    ]
    path = write_tar(tmp_path / "a.tar", members)
    write_tar(tmp_path / "small.tar", members[:20])
    fresh = open_shard(path, 8)
    assert len(open_shard(tmp_path / "small.tar", 8)) == 10
    (kept,) = (tmp_path / "cache" / "indexes").iterdir()  # the small one is not kept, nor a temporary file
    with monkeypatch.context() as patch:
        patch.setattr("rti.data.shards.index_tar", lambda path: pytest.fail("indexed again"))
        again = open_shard(path, 8)
    assert np.array_equal(again.members, fresh.members)
    kept.write_bytes(kept.read_bytes()[:3000])
    assert len(open_shard(path, 8)) == 1000  # a damaged one is made anew
    write_tar(path, [("x.png", picture), ("x.txt", b"other"), *members])
    assert open_shard(path, 8)[0].caption == "other"  # a changed shard is indexed anew


def test_a_cache_that_cannot_be_written_is_done_without(tmp_path, monkeypatch):
    (tmp_path / "file").write_text("in the way")
    monkeypatch.setenv("RTI_CACHE", str(tmp_path / "file"))
    monkeypatch.setattr("rti.data.shards._WORTH_KEEPING", 1)
    assert len(open_shard(write_tar(tmp_path / "a.tar", captioned(2)), 8)) == 2


def test_wrong_shards(tmp_path):
    (tmp_path / "text.tar").write_text("this is not a tar file" * 100)
    (tmp_path / "nothing.tar").write_bytes(b"")
    with tarfile.open(tmp_path / "packed.tar", "w:gz") as tar:
        tar.addfile(tarfile.TarInfo("x"))
    for name in ("text", "nothing", "packed"):
        with pytest.raises(InputError, match=rf"{name}\.tar \(\d+ bytes\) is not an uncompressed tar") as caught:
            open_data(str(tmp_path / f"{name}.tar"), 8)
        assert "\n" not in str(caught.value)
    write_tar(tmp_path / "empty.tar", [])
    with pytest.raises(InputError, match=r"empty\.tar is empty"):
        open_data(str(tmp_path / "empty.tar"), 8)
    write_tar(tmp_path / "bare.tar", [("0.jpg", plain())])
    with pytest.raises(InputError, match=r"bare\.tar holds pictures without captions .* or classes"):
        open_data(str(tmp_path / "bare.tar"), 8)
    write_tar(tmp_path / "00.tar", captioned(1))
    with pytest.raises(InputError, match=r"01\.tar does not exist \(2 of 3 shards"):
        open_data(str(tmp_path / "{00..02}.tar"), 8)


PATTERNS = ["a.tar", "{000..011}.tar", "{8..11}", "{a,b}-{0..2}.tar", "{3..1}", "{00..10..5}", "x{,y}", "{a}", "a{}b"]


@pytest.mark.parametrize("pattern", PATTERNS)
def test_braces_expand_as_in_webdataset(pattern):
    braceexpand = pytest.importorskip("braceexpand")
    assert expand_braces(pattern) == list(braceexpand.braceexpand(pattern))


def test_braces():
    assert expand_braces("{008..010}.tar") == ["008.tar", "009.tar", "010.tar"]
    with pytest.raises(InputError, match="more than 1,000,000"):
        expand_braces("{0..99999999999999}")
    with pytest.raises(InputError, match="more than 1,000,000"):
        expand_braces("{0..9999}{0..9999}")
