"""The scenes world as shards, and the command that writes them."""

import json
import os
import tarfile

import numpy as np
import pytest
import torch
import typer

from rti.cli import main
from rti.cli.scenes import scenes
from rti.data import open_data
from rti.images import to_uint8
from rti.lab.scenes.classes import CLASSES, class_example
from rti.lab.scenes.render import batch
from rti.lab.scenes.shards import write_shards
from rti.lab.scenes.source import ScenesSource


@pytest.fixture
def run(capsys, monkeypatch):
    """`rti scenes ARGUMENTS` -> exit code, standard output, standard error."""
    app = typer.Typer()
    app.command()(scenes)
    app.callback()(lambda: None)
    monkeypatch.setattr("rti.cli.app", app)

    def run(*arguments: object) -> tuple[int, str, str]:
        with pytest.raises(SystemExit) as stop:
            main(["scenes", *map(str, arguments)])
        captured = capsys.readouterr()
        return stop.value.code, captured.out, captured.err

    return run


def files(folder) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in sorted(folder.iterdir())}


def rounded(image: torch.Tensor) -> torch.Tensor:
    return to_uint8(image[None])


def test_shards_hold_what_the_source_gives(run, tmp_path):
    code, out, err = run("--count", 23, "--output", tmp_path / "new" / "a", "--seed", 3, "--shard-size", 10, "--json")
    assert code == 0, err
    values = json.loads(out.splitlines()[-1])
    assert (values["written"], values["skipped"], values["seed"], values["labels"]) == (3, 0, 3, False)
    folder = tmp_path / "new" / "a"
    assert sorted(files(folder)) == ["000000.tar", "000001.tar", "000002.tar", "scenes.json"]
    assert values["bytes"] == sum(len(data) for name, data in files(folder).items() if name.endswith("tar"))
    source, world = open_data(str(folder), 64), open_data("scenes", 64, seed=3)
    assert len(source) == 23 and source.kind == "text" and source.cut_short == 0
    for index in range(23):
        assert source[index].caption == world[index].caption
        assert torch.equal(rounded(source[index].image), rounded(world[index].image))


def test_shards_with_labels(run, tmp_path):
    code, _, err = run("--count", 60, "--output", tmp_path / "a", "--labels", "--size", 32, "--seed", 1)
    assert code == 0, err
    source, world = open_data(str(tmp_path / "a"), 32), open_data("scenes", 32, seed=1, kind="labels")
    assert len(source) == 60 and source.kind == "labels"
    for index in range(60):
        assert source[index].label == world[index].label
        assert torch.equal(rounded(source[index].image), rounded(world[index].image))
    with tarfile.open(tmp_path / "a" / "000000.tar") as tar:
        record = json.load(tar.extractfile("000000007.json"))
    (thing,) = record["objects"]
    assert f"{thing['colour']} {thing['shape']}" == CLASSES[source[7].label]


def test_webdataset_reads_them(tmp_path):
    webdataset = pytest.importorskip("webdataset")
    assert write_shards(tmp_path, ScenesSource(64, length=7, split="held-out"), 4) == 2
    urls = [str(tmp_path / f"{shard:06d}.tar") for shard in range(2)]
    examples = list(webdataset.WebDataset(urls, shardshuffle=False, empty_check=False).decode("rgb8"))
    assert [example["__key__"] for example in examples] == [f"{number:09d}" for number in range(7)]
    for number, example in enumerate(examples):
        drawn = batch(0, number, 1, "held-out")
        scene = drawn.scenes[0]
        assert np.array_equal(example["png"], rounded(torch.from_numpy(drawn.images[0]))[0].numpy())
        assert example["txt"] == scene.caption == example["json"]["prompt"]
        assert example["json"]["task"] == scene.task and example["json"]["relation"] == scene.relation
        assert [one["texture"] for one in example["json"]["objects"]] == [thing.texture for thing in scene.objects]
        assert example["json"]["include"] == scene.metadata()["include"]


def test_the_bytes_do_not_tell_who_wrote_them(tmp_path, monkeypatch):
    """Neither the user, the clock nor the umask show."""
    write_shards(tmp_path / "a", ScenesSource(64, length=12), 5)
    monkeypatch.setattr("time.time", lambda: 1e9)
    monkeypatch.setattr("os.getuid", lambda: 1234)
    previous = os.umask(0o077)
    try:
        write_shards(tmp_path / "b", ScenesSource(64, length=12), 5)
    finally:
        os.umask(previous)
    assert files(tmp_path / "a") == files(tmp_path / "b")
    with tarfile.open(tmp_path / "a" / "000001.tar") as tar:
        fields = {(one.mtime, one.uid, one.gid, one.uname, one.gname, one.mode) for one in tar}
    assert fields == {(0, 0, 0, "", "", 0o644)}
    write_shards(tmp_path / "c", ScenesSource(64, seed=1, length=12), 5)
    assert files(tmp_path / "a")["000001.tar"] != files(tmp_path / "c")["000001.tar"]


PICTURES = {  # mean, and the same weighted by a ramp to the right and one down
    "a green square and a yellow circle": (0.070661, -0.000476, 0.006646),
    "three moons": (0.04978, 0.006454, 0.011078),
    "a cyan cross and a green ring": (0.422362, 0.017744, 0.022163),
    "a square": (0.325351, 0.022436, 0.030147),
    "three rings": (0.147709, 0.01245, -0.015209),
    "a purple square and a yellow cross": (0.31393, 0.017239, 0.005699),
    "a cyan moon": (-0.265194, 0.029075, -0.027303),
    "a yellow triangle": (0.02892, 0.010892, 0.005752),
}


def test_the_pictures_do_not_change_with_time():
    """Shards that are published, and runs that resume, depend on what (seed, index) shows."""
    drawn = [batch(0, index, 1) for index in range(6)]
    pictures = {one.scenes[0].caption: one.images[0] for one in drawn}
    pictures |= {scene.caption: image for image, scene in (class_example(0, index) for index in range(2))}
    assert list(pictures) == list(PICTURES)
    ramp = np.linspace(-1, 1, 64)
    for caption, image in pictures.items():
        found = [(image * weight).mean() for weight in (1.0, ramp, ramp[:, None])]
        assert found == pytest.approx(PICTURES[caption], abs=2e-6), caption


def test_an_interrupted_run_resumes(run, tmp_path, monkeypatch):
    arguments = ("--count", 10, "--shard-size", 4, "--size", 16)
    assert run(*arguments, "--output", tmp_path / "whole")[0] == 0
    drawn = []

    def interrupted(source, index):
        drawn.append(index)
        if len(drawn) == 7:
            raise KeyboardInterrupt
        return draw(source, index)

    draw = ScenesSource.draw
    monkeypatch.setattr(ScenesSource, "draw", interrupted)
    assert run(*arguments, "--output", tmp_path / "a")[0] == 130
    # Nothing half: the second shard is not there, under no name.
    assert sorted(files(tmp_path / "a")) == ["000000.tar", "scenes.json"]
    (tmp_path / "a" / ".000001.tar.1.part").write_bytes(b"left by a run that was killed")
    code, out, _ = run(*arguments, "--output", tmp_path / "a", "--json")
    assert code == 0 and drawn[7:] == list(range(4, 10))
    assert json.loads(out.splitlines()[-1])["skipped"] == 1
    (tmp_path / "a" / ".000001.tar.1.part").unlink()
    assert files(tmp_path / "a") == files(tmp_path / "whole")
    assert run(*arguments, "--output", tmp_path / "a")[0] == 0 and len(drawn) == 13


@pytest.mark.parametrize(
    ("change", "values"),
    [
        (("--seed", 1), ("'seed': 0", "'seed': 1")),
        (("--size", 32), ("'size': 16", "'size': 32")),
        (("--count", 11), ("'count': 10", "'count': 11")),
        (("--labels",), ("'labels': False", "'labels': True")),
    ],
)
def test_other_settings_do_not_mix(run, tmp_path, change, values):
    arguments = ("--count", 10, "--shard-size", 4, "--size", 16, "--output", tmp_path / "a")
    assert run(*arguments)[0] == 0
    before = files(tmp_path / "a")
    code, _, err = run(*arguments, *change)
    there, wanted = err.split(", not of ")
    assert code == 2 and values[0] in there and values[1] in wanted and len(err.splitlines()) == 1
    assert files(tmp_path / "a") == before


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--count", 0), "from 1 to 1000000000, got 0"),
        (("--count", "many"), "Invalid value for '--count'"),
        (("--count", 3, "--size", 48), "sides that divide 64 or are a multiple of it, got 48"),
        (("--count", 3, "--size", 0), "size must be from 1 to 16384, got 0"),
        (("--count", 3, "--size", 64 * 1000), "size must be from 1 to 16384, got 64000"),
        (("--count", 3, "--seed", -1), "seed must be from 0 to 4294967295, got -1"),
        (("--count", 3, "--split", "test"), "split 'test' is unknown; allowed: train, held-out, all"),
        (("--count", 3, "--split", "all", "--labels"), "split 'all' is of captions"),
        (("--count", 3, "--shard-size", 0), "shard size must be from 1 to"),
        ((), "Missing option"),
    ],
)
def test_bad_input_is_one_line_and_writes_nothing(run, tmp_path, arguments, message):
    code, out, err = run("--output", tmp_path / "a" / "b", *arguments)
    assert code == 2 and message in err and len(err.splitlines()) == 1 and out == ""
    assert list(tmp_path.iterdir()) == []


def test_places_that_cannot_be_written(run, tmp_path):
    (tmp_path / "file").write_bytes(b"here")
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "thesis.txt").write_bytes(b"precious")
    (tmp_path / "odd").mkdir()
    (tmp_path / "odd" / "scenes.json").write_bytes(b"[1")
    messages = {
        "file": "File exists",
        "file/sub": "Not a directory",
        "other": "holds other files",
        "odd": "scenes.json is not readable JSON",
    }
    for place, message in messages.items():
        code, _, err = run("--count", 3, "--output", tmp_path / place)
        assert code == 2 and message in err and len(err.splitlines()) == 1, err
    assert sorted(path.name for path in tmp_path.rglob("*")) == ["file", "odd", "other", "scenes.json", "thesis.txt"]
