"""The cache of text states: it answers as the encoder would, survives what can happen while it is written, and
refuses what it does not hold."""

import hashlib
import json
import multiprocessing
import os
import pickle
import signal
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

import rti
from rti.data import open_data
from rti.data.source import PictureSource
from rti.text import cache as text_cache
from rti.text.cache import CacheWriter, TextCache, caption_key, fingerprint
from rti.text.encoder import T5TextEncoder, load_text_encoder
from rti.text.words import WordEncoder
from test_cli import run, run_json
from test_data_folder import put
from test_data_source import plain, write_tar
from test_pipeline import save_text_encoder
from tiny import CORE, refused, save_jit, save_minit2i

LENGTH = 6
CAPTIONS = [
    "a red cube",
    "ein Bär — 図 🖼",
    "ball",
    "a red cube on the table left of a blue ball",
    "a\nblue\tball",
    "naïve",
]
SCENES = ["a red circle", "two blue squares", "a green star left of a pink ring"]


@pytest.fixture(scope="module")
def release(tmp_path_factory) -> Path:
    """A MiniT2I with its T5, in the layout of diffusers."""
    folder = tmp_path_factory.mktemp("release")
    save_minit2i(folder / "transformer")
    save_text_encoder(folder)
    return folder


@pytest.fixture(scope="module")
def t5(release) -> T5TextEncoder:
    return load_text_encoder(release)


@pytest.fixture
def photos(tmp_path) -> Path:
    """Pictures with captions: two alike, one picture broken, one caption missing and one that is no text."""
    files = {}
    for number, caption in enumerate([*CAPTIONS[:4], CAPTIONS[0]]):
        files |= {f"{number}.png": plain(), f"{number}.txt": caption}
    files |= {"broken.png": b"no picture", "broken.txt": "right", "mute.png": plain(), "latin.png": plain()}
    put(tmp_path / "photos", files | {"latin.txt": "café".encode("latin-1")})
    return tmp_path / "photos"


def words(seed: int = 0, width: int = 5) -> WordEncoder:
    torch.manual_seed(seed)
    return WordEncoder(width).eval().requires_grad_(False)


class Counting:
    """An encoder that notes what it is asked."""

    def __init__(self, encoder):
        self.inner, self.asked = encoder, []

    def __call__(self, prompts, length):
        self.asked += prompts
        return self.inner(prompts, length)


def fill(folder, encoder, captions=CAPTIONS, batch=2, length=LENGTH, dtype="float32", stop_after=None) -> list[str]:
    """Write captions to a cache as the command does; returns what had to be encoded."""
    with CacheWriter(folder, encoder, "tiny", length, dtype) as writer:
        writer.encoder = counting = Counting(encoder)
        for number, _ in enumerate(writer.encode(writer.missing(captions), batch), 1):
            if number == stop_after:
                break
    return counting.asked


def padded_with_zeros(encoder, captions, length=LENGTH):
    states, mask = encoder(captions, length)
    return torch.where(mask[..., None], states, 0.0), mask


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


# What comes out is what the encoder says.


@pytest.mark.parametrize("kind", ["t5", "words"])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16"])
def test_cached_states_are_the_encoders(tmp_path, t5, kind, dtype):
    encoder, captions, length = (t5, CAPTIONS, LENGTH) if kind == "t5" else (words(), SCENES, 9)
    fill(tmp_path / "cache", encoder, captions, batch=len(captions), length=length, dtype=dtype)
    cache = TextCache(tmp_path / "cache")
    states, mask = cache(captions, length)
    expected, expected_mask = padded_with_zeros(encoder, captions, length)
    assert states.dtype == torch.float32
    assert mask.dtype == torch.bool
    assert torch.equal(mask, expected_mask)
    assert not mask.all() and mask[:, 0].all()  # there is padding to get wrong
    assert torch.equal(states, expected.to(getattr(torch, dtype)).float())
    assert (len(cache), cache.width, cache.length) == (len(captions), expected.shape[-1], length)
    again = cache(captions[::-1] + captions[:1], length)[0]  # in any order, any number of times
    assert torch.equal(again, torch.cat([states.flip(0), states[:1]]))


def test_a_model_sees_no_difference(tmp_path, release, t5):
    """Identity case: states of padding, which the cache does not keep, reach no output."""
    fill(tmp_path / "cache", t5, batch=len(CAPTIONS))
    backbone = rti.load_backbone(release)
    x, t = torch.randn(len(CAPTIONS), 3, 32, 32), torch.full((len(CAPTIONS),), 0.5)
    outputs = []
    for encoder in (t5, TextCache(tmp_path / "cache")):
        states, mask = encoder(CAPTIONS, LENGTH)
        with torch.no_grad():
            outputs.append(backbone(x, t, backbone.condition(text=states, mask=mask)))
    assert torch.equal(*outputs)


def test_only_tokens_are_kept_and_large_shards_are_split(tmp_path, t5, monkeypatch):
    monkeypatch.setattr(text_cache, "SHARD_BYTES", 4 * 12 * 4 + 1)  # more than a caption of four tokens
    fill(tmp_path, t5, ["a red cube", "ball", "the table", "on the left"])
    assert names(tmp_path) == ["cache.json", "states-00000.safetensors", "states-00001.safetensors"]
    first = load_file(tmp_path / "states-00000.safetensors")
    shapes = {caption_key("a red cube"): (4, 12), caption_key("ball"): (2, 12)}
    assert {key: tuple(states.shape) for key, states in first.items()} == shapes
    assert caption_key("Bär 図") == hashlib.sha256("Bär 図".encode()).hexdigest()


def test_a_cache_can_be_pickled(tmp_path, t5):
    fill(tmp_path, t5)
    cache = TextCache(tmp_path)
    copy = pickle.loads(pickle.dumps(cache))
    assert torch.equal(copy(CAPTIONS, LENGTH)[0], cache(CAPTIONS, LENGTH)[0])


# Writing: nothing twice, nothing lost but the current shard.


def test_each_caption_is_encoded_once_and_only_once(tmp_path, t5):
    assert fill(tmp_path, t5, CAPTIONS[:3] + CAPTIONS[:2]) == CAPTIONS[:3]
    assert fill(tmp_path, t5, CAPTIONS) == CAPTIONS[3:]
    assert fill(tmp_path, t5, CAPTIONS) == []
    assert names(tmp_path) == ["cache.json", "states-00000.safetensors", "states-00001.safetensors"]
    assert TextCache(tmp_path)(CAPTIONS, LENGTH)[1][:, 0].all()


def test_a_run_that_is_stopped_or_fails_goes_on_where_it_was(tmp_path, t5):
    assert fill(tmp_path, t5, stop_after=1) == CAPTIONS[:2]

    def failing(prompts, length):
        if CAPTIONS[4] in prompts:
            raise RuntimeError("out of memory")
        return t5(prompts, length)

    with (
        pytest.raises(RuntimeError, match="out of memory"),
        CacheWriter(tmp_path, t5, "tiny", LENGTH, "float32") as writer,
    ):
        writer.encoder = failing
        list(writer.encode(writer.missing(CAPTIONS), 2))
    assert fill(tmp_path, t5) == CAPTIONS[4:]


@pytest.mark.parametrize("damage", [lambda data: data[:-7], lambda data: data[:40], lambda data: b"", bytes.swapcase])
def test_a_broken_shard_is_named_and_encoded_again_once_it_is_gone(tmp_path, t5, monkeypatch, damage):
    monkeypatch.setattr(text_cache, "SHARD_CAPTIONS", 2)
    fill(tmp_path, t5)
    expected = TextCache(tmp_path)(CAPTIONS, LENGTH)[0].clone()
    shard = tmp_path / "states-00001.safetensors"
    before = names(tmp_path)
    shard.write_bytes(damage(shard.read_bytes()))
    for use in (TextCache, lambda folder: fill(folder, t5)):
        with refused(shard, "delete it", "rti encode"):
            use(tmp_path)
    shard.unlink()
    with refused("is not in", "rti encode"):
        TextCache(tmp_path)(CAPTIONS[2:3], LENGTH)
    assert fill(tmp_path, t5) == CAPTIONS[2:4]
    assert names(tmp_path) == before
    assert torch.equal(TextCache(tmp_path)(CAPTIONS, LENGTH)[0], expected)


def test_a_shard_of_another_cache_is_not_taken_for_one_of_this(tmp_path):
    fill(tmp_path / "one", words(0), SCENES, length=9)
    fill(tmp_path / "two", words(1), SCENES[:1], length=9)
    shard = tmp_path / "two" / "states-00007.safetensors"
    shard.write_bytes((tmp_path / "one" / "states-00000.safetensors").read_bytes())
    with refused(shard, "not of this cache"):
        TextCache(tmp_path / "two")


def fill_until_killed(folder: Path, captions: list[str], sync: int) -> None:
    """In a process of its own: write shards of two captions, and die at a call of fsync."""
    text_cache.SHARD_CAPTIONS = 2
    original, calls = os.fsync, []

    def kill_at(descriptor):
        calls.append(descriptor)
        if len(calls) == sync:
            os.kill(os.getpid(), signal.SIGKILL)
        original(descriptor)

    os.fsync = kill_at
    fill(folder, words(), captions, length=9)


@pytest.mark.parametrize(("sync", "kept"), [(1, None), (3, 0), (4, 2), (5, 2)])
def test_a_process_that_is_killed_leaves_a_readable_cache(tmp_path, sync, kept):
    """Each file is synced under its temporary name, then its folder: calls 1 and 2 are cache.json's, 3 and 4 those of
    the first shard, 5 comes in the middle of the second."""
    captions = [*SCENES, "a red moon", "a blue moon"]
    process = multiprocessing.get_context("fork").Process(target=fill_until_killed, args=(tmp_path, captions, sync))
    process.start()
    process.join()
    assert process.exitcode == -signal.SIGKILL
    assert any(name.endswith(".part") for name in names(tmp_path)) == (sync != 4)
    if kept is not None:
        cache = TextCache(tmp_path)
        assert len(cache) == kept
        assert torch.equal(cache(captions[:kept], 9)[0], padded_with_zeros(words(), captions, 9)[0][:kept])
    assert fill(tmp_path, words(), captions, length=9) == captions[kept or 0 :]
    assert not any(name.endswith(".part") for name in names(tmp_path))
    assert torch.equal(TextCache(tmp_path)(captions, 9)[0], padded_with_zeros(words(), captions, 9)[0])


def test_a_full_disk_is_one_line_and_leaves_what_was_there(tmp_path, t5, monkeypatch):
    fill(tmp_path, t5, CAPTIONS[:2])
    before = names(tmp_path)

    def full(descriptor):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with refused(tmp_path, "No space left"):
        fill(tmp_path, t5)
    assert names(tmp_path) == before
    with refused("No space left"):
        fill(tmp_path / "new", t5)
    assert list((tmp_path / "new").iterdir()) == []


def test_two_writers_at_once_do_no_harm(tmp_path, t5):
    with CacheWriter(tmp_path / "cache", t5, "tiny", LENGTH, "float32") as late:
        missing = late.missing(CAPTIONS)
        list(late.encode(missing[:2], 2))
        assert fill(tmp_path / "cache", t5) == CAPTIONS
    assert names(tmp_path / "cache") == ["cache.json", "states-00000.safetensors", "states-00001.safetensors"]
    assert fill(tmp_path / "cache", t5) == []


# What is refused.


def test_states_of_another_kind_are_not_added(tmp_path, t5):
    fill(tmp_path, t5)
    before = {path: path.read_bytes() for path in tmp_path.iterdir()}
    with refused("length 6", 7, tmp_path):
        fill(tmp_path, t5, ["new"], length=7)
    with refused("float32", "bfloat16", tmp_path):
        fill(tmp_path, t5, ["new"], dtype="bfloat16")
    with refused(fingerprint(t5), fingerprint(words())):
        fill(tmp_path, words(), SCENES)
    assert {path: path.read_bytes() for path in tmp_path.iterdir()} == before


def test_the_fingerprint_is_of_the_weights_and_the_tokens(release, t5, tmp_path):
    copy = load_text_encoder(release)
    assert fingerprint(copy) == fingerprint(t5)
    assert fingerprint(words(0)) == fingerprint(words(0)) != fingerprint(words(1))
    tokens = copy.tokenizer
    copy.tokenizer = lambda text: type(tokens(text))({"input_ids": tokens(text).input_ids[::-1]})
    assert fingerprint(copy) != fingerprint(t5)
    copy.tokenizer = tokens
    with torch.no_grad():
        next(copy.encoder.parameters())[0, 0] += 1e-3
    assert fingerprint(copy) != fingerprint(t5)


def test_reading_refuses_what_is_not_there(tmp_path, t5):
    fill(tmp_path / "cache", t5)
    cache = TextCache(tmp_path / "cache")
    with refused("'a blue cube'", "rti encode", tmp_path):
        cache(["ball", "a blue cube"], LENGTH)
    with refused("aaaa… (5002 characters)"):
        cache(["a" * 5000], LENGTH)
    for length in (LENGTH - 1, LENGTH + 1):
        with refused(f"length {LENGTH}", f"length {length}"):
            cache(["ball"], length)
    with refused(tmp_path, "cache.json", "rti encode"):
        TextCache(tmp_path)


@pytest.mark.parametrize(
    ("change", "named"),
    [({"format": 2}, "'format': 2"), ({"width": None}, "'width': None"), ({"length": "6"}, "'6'")],
)
def test_a_cache_json_that_is_none_is_refused(tmp_path, t5, change, named):
    fill(tmp_path, t5)
    config = tmp_path / "cache.json"
    config.write_text(json.dumps(json.loads(config.read_text()) | change))
    with refused(config, named):
        TextCache(tmp_path)
    config.write_text("{")
    with refused(config):
        TextCache(tmp_path)


def test_states_that_cannot_be_kept_are_refused(tmp_path, t5):
    def large(prompts, length):
        states, mask = t5(prompts, length)
        return states + 1e6, mask

    def padded_before(prompts, length):
        states, mask = t5(prompts, length)
        return states.flip(1), mask.flip(1)

    for encoder, named in ((large, "float16"), (padded_before, "pads before")):
        with refused(named), CacheWriter(tmp_path / "cache", t5, "tiny", LENGTH, "float16") as writer:
            writer.encoder = encoder
            list(writer.encode(["ball"], 1))
    assert list(tmp_path.iterdir()) == []


# Captions of every kind of data.


def test_captions_are_read_without_pictures(tmp_path, photos, monkeypatch):
    expected = [*CAPTIONS[:4], CAPTIONS[0], "right"]
    rows = [{"file_name": "gone.png", "text": " 図 "}, {"file_name": "b.png"}, {"file_name": "c.png", "text": "c"}]
    lines = "\n".join([json.dumps(row) for row in rows] + ["{", '{"file_name": "d.png", "text": "half \\ud83d"}'])
    put(tmp_path / "listed", {"metadata.jsonl": lines})
    members = [("0.png", plain()), ("0.txt", b"zero"), ("1.png", b""), ("1.json", b'{"prompt": "one"}')]
    members += [("2.png", plain()), ("3.png", plain()), ("3.txt", b"\xff"), ("4.png", plain()), ("4.txt", b"zero")]
    write_tar(tmp_path / "a.tar", members)
    monkeypatch.setattr("rti.data.source.decode_picture", lambda *_: pytest.fail("decoded a picture"))
    monkeypatch.setattr(PictureSource, "__getitem__", lambda *_: pytest.fail("read an example"))
    read = {name: list(open_data(str(tmp_path / name), 8, flip=True).captions()) for name in ("photos", "a.tar")}
    assert read == {"photos": expected, "a.tar": ["zero", "one", "zero"]}
    assert list(open_data(str(tmp_path / "listed"), 8).captions()) == ["図", "c"]
    mixed = open_data(f"{tmp_path / 'a.tar'}@0.001,{tmp_path / 'listed'}@9", 8)
    assert list(mixed.captions()) == ["zero", "one", "zero", "図", "c"]


def test_captions_of_a_hub_data_set(monkeypatch):
    datasets = pytest.importorskip("datasets")
    from rti.data.hub import HubSource

    features = datasets.Features({"image": datasets.Image(), "text": datasets.Value("string")})
    rows = {"image": [{"bytes": plain(), "path": None}] * 3, "text": [" a", None, "b"]}
    source = HubSource(datasets.Dataset.from_dict(rows, features=features), "hf:x", 8)
    monkeypatch.setattr(HubSource, "picture", lambda *_: pytest.fail("read a picture"))
    assert list(source.captions()) == ["a", "b"]


def test_captions_that_cannot_be_read_ahead(tmp_path, photos):
    with refused("scenes are endless", "while training"):
        open_data("scenes", 64).captions()
    with refused("scenes are endless"):
        open_data(f"scenes@1,{photos}@1", 64).captions()
    put(tmp_path / "classes", {"cat/0.png": plain(), "dog/0.png": plain()})
    assert list(open_data(str(tmp_path / "classes"), 8).captions()) == []


# The command.


def test_the_command_encodes_a_folder_for_a_model(capsys, tmp_path, release, photos, t5):
    arguments = ("encode", "--data", photos, "--output", tmp_path / "new" / "cache", "--model", release, "--batch", 2)
    values = run_json(capsys, *arguments)
    counts = {"captions": 6, "distinct": 5, "already_there": 0, "encoded": 5, "shards": 1}
    assert {name: values[name] for name in counts} == counts
    assert (values["width"], values["length"], values["dtype"]) == (12, LENGTH, "bfloat16")
    assert values["megabytes"] == round((tmp_path / "new/cache/states-00000.safetensors").stat().st_size / 1e6, 3) > 0
    cache = TextCache(tmp_path / "new" / "cache")
    expected, mask = padded_with_zeros(t5, CAPTIONS[:4])
    torch.testing.assert_close(cache(CAPTIONS[:4], LENGTH)[0], expected, rtol=2**-8, atol=0)
    assert torch.equal(cache(CAPTIONS[:4], LENGTH)[1], mask)

    put(photos, {"new.png": plain(), "new.txt": "a new one"})
    code, out, _ = run(capsys, *arguments)
    assert code == 0
    assert [line.split()[-1] for line in out.splitlines() if line.strip()][-6:-1] == ["7", "6", "5", "1", "2"]


def test_training_data_finds_every_caption_in_the_cache(capsys, tmp_path, release, photos):
    """The captions that training draws are those that were encoded, also where few pictures have one."""
    put(photos, {f"quiet{number}.png": plain() for number in range(9)})
    write_tar(tmp_path / "a.tar", [("0.png", plain()), ("0.txt", b" the table \n"), ("1.png", b""), ("1.txt", b"of")])
    mixture = f"{photos}@1,{tmp_path / 'a.tar'}@2"
    run_json(capsys, "encode", "--data", mixture, "-o", tmp_path / "cache", "--text-encoder", release, "--length", 9)
    cache, source = TextCache(tmp_path / "cache"), rti.data.Tolerant(open_data(mixture, 8, kind="text"))
    drawn = {source[index].example.caption for index in range(120)}
    assert drawn == {*CAPTIONS[:4], "the table"}
    assert cache(sorted(drawn), 9)[1].any(dim=1).all()


def test_an_adapter_names_the_text_encoder_of_its_backbone(capsys, tmp_path, release, photos):
    rti.attach(rti.load_backbone(release), rti.RegionConfig(core=CORE)).save_pretrained(tmp_path / "adapter")
    values = run_json(capsys, "encode", "--data", photos, "-o", tmp_path / "cache", "--model", tmp_path / "adapter")
    assert (values["encoder"], values["length"]) == (str(release), LENGTH)


def test_a_preset_names_its_text_encoder_without_its_weights(capsys, tmp_path, photos, release, monkeypatch):
    asked = []
    monkeypatch.setattr(
        "rti.text.encoder.load_text_encoder", lambda *given: asked.append(given) or load_text_encoder(release)
    )
    monkeypatch.setattr("rti.resolve.load_backbone", lambda *_, **__: pytest.fail("loaded the weights"))
    values = run_json(capsys, "encode", "--data", photos, "-o", tmp_path / "cache", "--model", "minit2i-b16")
    assert asked == [("google/flan-t5-large", torch.float32, "cpu")]
    assert (values["length"], values["encoded"]) == (256, 5)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_keeps_what_was_done_and_the_next_run_goes_on(capsys, tmp_path, release, photos, monkeypatch, number):
    original, asked = T5TextEncoder.__call__, []

    def interrupted(self, prompts, length):
        asked.extend(prompts)
        if len(asked) == 2:
            os.kill(os.getpid(), number)
        return original(self, prompts, length)

    monkeypatch.setattr(T5TextEncoder, "__call__", interrupted)
    arguments = ("encode", "--data", photos, "-o", tmp_path / "cache", "--text-encoder", release, "--batch", 1)
    code, _, err = run(capsys, *arguments)
    assert (code, "3 captions to go" in err) == (130, True)
    assert len(TextCache(tmp_path / "cache")) == 2
    values = run_json(capsys, *arguments)
    assert (values["already_there"], values["encoded"]) == (2, 3)
    assert len(asked) == len(set(asked)) == 5


BAD = {
    "no encoder": ((), "--model"),
    "an encoder that is not there": (("--text-encoder", "no/where"), "no/where"),
    "a folder that is no encoder": (("--text-encoder", "photos"), "photos"),
    "a model that is none": (("--model", "photos"), "photos"),
    "a model of classes": (("--model", "jit"), "class labels"),
    "a preset of classes": (("--model", "jit-b16"), "class labels"),
    "another length than the model's": (("--model", "release", "--length", 7), "7"),
    "no length": (("--text-encoder", "release", "--length", 0), "length must be from 1"),
    "no batch": (("--text-encoder", "release", "--batch", -1), "batch must be from 1"),
    "an unknown dtype": (("--text-encoder", "release", "--dtype", "int8"), "int8"),
    "a device that is not there": (("--text-encoder", "release", "--device", "quantum"), "quantum"),
    "no data": (("--text-encoder", "release", "--data", "nowhere"), "nowhere"),
    "scenes": (("--text-encoder", "release", "--data", "scenes"), "endless"),
    "data without captions": (("--text-encoder", "release", "--data", "classes"), "caption"),
    "a file as output": (("--text-encoder", "release", "--output", "photos/0.txt"), "0.txt"),
    "a file on the way to the output": (("--text-encoder", "release", "--output", "photos/0.txt/cache"), "0.txt"),
    "something else as output": (("--text-encoder", "release", "--output", "photos"), "0.png"),
    "words the encoder does not know": (("--text-encoder", "worded"), "unknown words"),
}


@pytest.mark.parametrize(("arguments", "named"), BAD.values(), ids=BAD)
def test_bad_input_is_one_line_and_nothing_is_written(capsys, tmp_path, monkeypatch, release, photos, arguments, named):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "release").symlink_to(release)
    put(tmp_path / "classes", {"cat/0.png": plain(), "dog/0.png": plain()})
    save_jit(tmp_path / "jit")
    words().save_pretrained(tmp_path / "worded" / "text_encoder")
    before = sorted(tmp_path.rglob("*"))
    code, out, err = run(capsys, "encode", "--data", "photos", "--output", "cache", *arguments)
    assert (code, out) == (2, "")
    assert err.startswith("rti: error: ")
    assert err.count("\n") == 1
    assert named in err
    assert sorted(tmp_path.rglob("*")) == before


def test_another_encoder_is_refused_by_the_command(capsys, tmp_path, release, photos):
    save_text_encoder(tmp_path / "other")
    weights = tmp_path / "other" / "text_encoder" / "model.safetensors"
    save_file({key: value + 0.5 for key, value in load_file(weights).items()}, weights, metadata={"format": "pt"})
    arguments = ("encode", "--data", photos, "--output", tmp_path / "cache", "--text-encoder")
    run_json(capsys, *arguments, release)
    code, out, err = run(capsys, *arguments, tmp_path / "other")
    assert (code, out) == (2, "")
    message = err.splitlines()[-1]  # before it, transformers has shown that it loads the weights
    assert message.startswith("rti: error: ") and str(release) in message and str(tmp_path / "other") in message


def test_a_shard_that_is_a_pipe_is_refused(tmp_path, t5):
    fill(tmp_path / "cache", t5, ["ball"])
    os.mkfifo(tmp_path / "cache" / "states-00001.safetensors")
    with refused("states-00001.safetensors", "no regular file"):
        TextCache(tmp_path / "cache")
