"""Generation at scale: layouts, seeds, manifests, refusals; and runs that are killed and resumed, byte by byte."""

import json
import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

import rti
from forks import Forked
from rti.checkpoint import weights_digest
from rti.cli import main, options
from rti.flow import picture_generator, picture_seed
from rti.images import to_pil
from rti.lab.pictures.folder import PictureFolder, images_per_second, is_whole, tidy, write_shared
from rti.lab.pictures.generation import Generation, GenerationSettings, Shard
from rti.lab.pictures.prompts import open_prompts
from rti.text.encoder import load_text_encoder
from rti.text.words import WordEncoder
from scorer_models import LINES, write_lines
from test_pipeline import save_text_encoder
from tiny import CORE, DATA, randomise_trainable, refused, save_scenes_model

TEXT = dict(prompt_length=12, txt_input_size=12, noise_scale=1.0, guidance_scale=2.0)
CONFIG = rti.RegionConfig(core=CORE, cuts="merge", cuts_from="estimate", lora_rank=2, lora_alpha=2)
QUICK = GenerationSettings(steps=2, seed=5)


@pytest.fixture(scope="module")
def release(tmp_path_factory):
    """A small text-to-image model of the scenes world, untrained."""
    return save_scenes_model(tmp_path_factory.mktemp("release"), **TEXT)


@pytest.fixture(scope="module")
def adapter(release, tmp_path_factory):
    folder = tmp_path_factory.mktemp("adapter")
    randomise_trainable(rti.attach(rti.load_backbone(release), CONFIG)).save_pretrained(folder)
    return folder


@pytest.fixture
def pipe(adapter):
    return rti.Pipeline.from_pretrained(adapter, fuse=False)


def settings(**changes):
    return GenerationSettings(**vars(QUICK) | changes)


def contents(folder):
    """All files of a folder but the times, by name."""
    files = (path for path in Path(folder).rglob("*") if path.is_file() and path.name != "timing.jsonl")
    return {path.relative_to(folder).as_posix(): path.read_bytes() for path in files}


def pixels(path):
    with Image.open(path) as picture:
        return np.asarray(picture)


# Pictures and seeds.


def test_pictures_are_those_of_the_pipeline_with_their_own_seeds(pipe, tmp_path):
    prompts = open_prompts("scenes", 3, seed=5)
    Generation(pipe, prompts, tmp_path, settings(budget=16, images=2)).run(batch=4, progress=False)
    for prompt in prompts.prompts:
        for number in range(2):
            expected = pipe(
                prompt.prompt,
                generator=torch.Generator().manual_seed(picture_seed(5, prompt.index, number)),
                budget=16,
                num_inference_steps=2,
                output_type="pt",
                progress=False,
            ).images
            found = pixels(tmp_path / f"{prompt.index:05d}/samples/{number:04d}.png").astype(int)
            difference = np.abs(found - np.asarray(to_pil(2 * expected - 1)[0]).astype(int))
            assert difference.max() <= 1 and (difference > 0).mean() < 0.01


def test_seeds_are_one_per_picture():
    seeds = {picture_seed(seed, index, number) for seed in range(4) for index in range(60) for number in range(4)}
    assert len(seeds) == 4 * 60 * 4
    assert picture_seed(7, 3) == picture_generator(7, 3).initial_seed()
    assert picture_seed(7, 3, 1) != picture_seed(7, 4, 0)


def test_neither_batch_nor_processes_nor_other_prompts_change_a_picture(pipe, tmp_path):
    prompts = open_prompts("scenes", 9, seed=5)
    Generation(pipe, prompts, tmp_path / "one", QUICK).run(batch=4, shard=Shard(), progress=False)
    for rank in (1, 0, 2):
        Generation(pipe, prompts, tmp_path / "three", QUICK).run(batch=4, shard=Shard(rank, 3), progress=False)
    assert contents(tmp_path / "one") == contents(tmp_path / "three")
    Generation(pipe, prompts, tmp_path / "single", QUICK).run(batch=1, progress=False)
    some = open_prompts("scenes", 5, seed=5)
    Generation(pipe, some, tmp_path / "some", QUICK).run(batch=4, progress=False)
    for index in range(9):
        name = f"{index:05d}/samples/0000.png"
        whole = pixels(tmp_path / "one" / name).astype(int)
        for other in ("single", "some") if index < 5 else ("single",):
            assert np.abs(pixels(tmp_path / other / name) - whole).max() <= 1  # rounding alone


def test_every_process_draws_its_share_and_no_more(pipe, tmp_path):
    prompts = open_prompts("scenes", 10, seed=5)
    drawn = [
        Generation(pipe, prompts, tmp_path, QUICK).run(batch=2, shard=Shard(rank, 2), progress=False) for rank in (0, 1)
    ]
    assert [(result["drawn"], result["there_before"]) for result in drawn] == [(6, 0), (4, 0)]
    again = Generation(pipe, prompts, tmp_path, QUICK).run(batch=2, shard=Shard(0, 2), progress=False)
    assert (again["drawn"], again["there_before"]) == (0, 6)


def test_the_lora_is_folded_in_for_a_budget_and_left_out_of_dense(pipe, release, tmp_path):
    prompts = open_prompts("scenes", 4, seed=5)
    dense = Generation(pipe, prompts, tmp_path / "dense", QUICK)
    dense.run(progress=False)
    Generation(pipe, prompts, tmp_path / "full", settings(budget=64)).run(progress=False)
    assert not pipe.elastic.fused
    plain = rti.Pipeline.from_pretrained(release)
    Generation(plain, prompts, tmp_path / "plain", QUICK).run(progress=False)
    for index in range(4):
        name = f"{index:05d}/samples/0000.png"
        frozen = pixels(tmp_path / "plain" / name).astype(int)
        assert np.abs(pixels(tmp_path / "dense" / name) - frozen).max() <= 1
        assert np.abs(pixels(tmp_path / "full" / name) - frozen).mean() > 1


# Layouts and what lies beside the pictures.


def test_a_geneval_folder_is_as_its_own_evaluation_expects_it(pipe, tmp_path):
    prompts = open_prompts(str(write_lines(tmp_path / "lines.jsonl")))
    folder = tmp_path / "out"
    Generation(pipe, prompts, folder, settings(lenient=True)).run(progress=False)
    for index, line in enumerate(LINES):
        assert json.loads((folder / f"{index:05d}" / "metadata.jsonl").read_text()) == line
        samples = sorted(path.name for path in (folder / f"{index:05d}" / "samples").iterdir())
        assert samples == ["0000.png", "0001.png", "0002.png", "0003.png"]
    opened = PictureFolder.open(folder)
    assert [entry.metadata for entry in opened.entries] == LINES
    (folder / "manifest.json").unlink()
    with refused("manifest.json", "rti generate"):
        PictureFolder.open(folder)


def test_class_labels_are_drawn_by_a_class_conditional_model(tmp_path):
    pipe = rti.Pipeline.from_pretrained(DATA / "jit-tiny")
    prompts = open_prompts("classes", 7, classes=pipe.backbone.config.num_classes)
    Generation(pipe, prompts, tmp_path, GenerationSettings(steps=1)).run(progress=False)
    names = sorted(path.name for path in tmp_path.glob("*.png"))
    assert names == [f"{index:05d}.png" for index in range(7)]
    labels = [entry.prompt for entry in PictureFolder.open(tmp_path).entries]
    assert labels == [index % pipe.backbone.config.num_classes for index in range(7)]


def test_the_manifest_says_how_the_pictures_were_made(pipe, adapter, tmp_path):
    prompts = open_prompts("scenes", 2, seed=9)
    wanted = settings(budget=0.25, guidance=1.5, images=2, seed=9)
    Generation(pipe, prompts, tmp_path, wanted, {"model": "mine", "adapter": "yours"}).run(progress=False)
    manifest = json.loads((tmp_path / "manifest.json").read_text())
    expected = dict(model="mine", adapter="yours", budget=16, text_budget=None, steps=2)
    expected |= dict(guidance=1.5, images_per_prompt=2, seed=9, dtype="float32", size=[32, 32], patches=64)
    assert {name: manifest[name] for name in expected} == expected
    assert manifest["prompts"]["source"] == "scenes" and manifest["prompts"]["count"] == 2
    assert manifest["reduction"]["cuts"] == "merge"
    assert manifest["versions"]["torch"] == torch.__version__
    assert {"rti", "numpy", "pillow"} <= manifest["versions"].keys()
    entries = [json.loads(line) for line in (tmp_path / "prompts.jsonl").read_text().splitlines()]
    assert entries[1]["seeds"] == [picture_seed(9, 1, 0), picture_seed(9, 1, 1)]
    assert entries[1]["files"] == ["00001/samples/0000.png", "00001/samples/0001.png"]


def test_batches_are_timed_and_a_line_cut_short_does_not_matter(pipe, tmp_path):
    Generation(pipe, open_prompts("scenes", 5, seed=5), tmp_path, QUICK).run(batch=2, progress=False)
    lines = [json.loads(line) for line in (tmp_path / "timing.jsonl").read_text().splitlines()]
    assert [line["pictures"] for line in lines] == [2, 2, 1]
    rates = sorted(line["pictures"] / line["seconds"] for line in lines)
    with open(tmp_path / "timing.jsonl", "a") as file:
        file.write('{"pictures": 2, "sec')
    assert images_per_second(tmp_path) == pytest.approx(rates[1])
    assert images_per_second(tmp_path / "nowhere") is None


# Going on, and refusing to.


def test_what_is_missing_or_broken_is_drawn_again_and_the_rest_is_left(pipe, tmp_path):
    prompts = open_prompts("scenes", 6, seed=5)
    Generation(pipe, prompts, tmp_path, QUICK).run(batch=4, progress=False)
    before = contents(tmp_path)
    names = [f"{index:05d}/samples/0000.png" for index in range(6)]
    (tmp_path / names[1]).unlink()
    (tmp_path / names[2]).write_bytes(before[names[2]][:-5])
    (tmp_path / names[3]).write_bytes(b"")
    Image.new("RGB", (8, 8)).save(tmp_path / names[5])
    (tmp_path / "00001" / "metadata.jsonl").unlink()
    (tmp_path / "prompts.jsonl").unlink()
    kept = (tmp_path / names[0]).stat().st_mtime_ns
    result = Generation(pipe, prompts, tmp_path, QUICK).run(batch=4, progress=False)
    assert (result["drawn"], result["there_before"]) == (4, 2)
    assert contents(tmp_path) == before
    assert (tmp_path / names[0]).stat().st_mtime_ns == kept


def test_what_killed_processes_left_unfinished_is_gone_after_the_next_run(pipe, tmp_path):
    prompts = open_prompts("scenes", 3, seed=5)
    tmp_path.joinpath(".manifest.json.77.part").write_text("{")  # killed before anything else was there
    Generation(pipe, prompts, tmp_path, QUICK).run(progress=False)
    before = contents(tmp_path)
    assert not any(Path(name).name.startswith(".") for name in before)
    for name in ("00001/metadata.jsonl", "00001/samples/0000.png", "prompts.jsonl"):
        (tmp_path / name).unlink()
    for name in (".prompts.jsonl.78.part", "00001/.metadata.jsonl.part", "00001/samples/.0000.png.part"):
        (tmp_path / name).write_text("half of")
    Generation(pipe, prompts, tmp_path, QUICK).run(progress=False)
    assert contents(tmp_path) == before


def test_a_file_that_several_processes_write_survives_their_tidying(tmp_path, monkeypatch):
    """Another process removes our temporary name just before we rename it: once with the file written, once without."""
    replace, path, calls = os.replace, tmp_path / "manifest.json", []

    def tidied(source, target):
        calls.append(source)
        if len(calls) == 1:
            tidy(tmp_path)
        replace(source, target)

    monkeypatch.setattr(os, "replace", tidied)
    write_shared(path, "all of it")
    assert (path.read_text(), len(calls)) == ("all of it", 2)
    calls.clear()
    write_shared(path, "all of it")  # whoever was first
    assert (path.read_text(), len(calls)) == ("all of it", 0)
    assert list(tmp_path.iterdir()) == [path]
    with refused("x.json"):
        write_shared(path / "x.json", "below a file")


def test_a_picture_is_whole_with_its_beginning_its_end_and_its_size(tmp_path):
    path = tmp_path / "x.png"
    Image.fromarray(np.random.default_rng(0).integers(0, 255, (12, 20, 3)).astype(np.uint8)).save(path)
    data = path.read_bytes()
    assert is_whole(path, (12, 20))
    assert not is_whole(path, (20, 12))
    for broken in (b"", data[:5], data[:-1], data + b"x", b"x" + data[1:]):
        path.write_bytes(broken)
        assert not is_whole(path, (12, 20))
    assert not is_whole(tmp_path / "nowhere.png", (12, 20))


CHANGES = {
    "budget": (dict(budget=8), ("budget dense there, 8 now",)),
    "steps": (dict(steps=1), ("steps 2 there, 1 now",)),
    "guidance": (dict(guidance=1.0), ("guidance 2.0 there, 1.0 now",)),
    "seed": (dict(seed=6), ("seed 5 there, 6 now",)),
    "pictures per prompt": (dict(images=3), ("images_per_prompt 1 there, 3 now",)),
    "several": (dict(steps=1, seed=6), ("steps 2 there, 1 now", "seed 5 there, 6 now")),
}


@pytest.mark.parametrize(("change", "named"), CHANGES.values(), ids=CHANGES)
def test_a_folder_of_other_settings_is_refused_with_what_differs(pipe, tmp_path, change, named):
    prompts = open_prompts("scenes", 2, seed=5)
    Generation(pipe, prompts, tmp_path, QUICK).run(progress=False)
    before = contents(tmp_path)
    with refused(tmp_path, *named):
        Generation(pipe, prompts, tmp_path, settings(**change))
    assert contents(tmp_path) == before


def test_other_prompts_or_weights_are_refused_and_other_versions_are_warned_of(pipe, release, adapter, tmp_path):
    prompts = open_prompts("scenes", 2, seed=5)
    Generation(pipe, prompts, tmp_path, QUICK).run(progress=False)
    with refused("prompts.count 2 there, 3 now", "prompts.sha256"):
        Generation(pipe, open_prompts("scenes", 3, seed=5), tmp_path, QUICK)
    at_16, quick_16 = tmp_path / "16", settings(budget=16)
    Generation(pipe, prompts, at_16, quick_16).run(progress=False)
    randomise_trainable(pipe.elastic, seed=1)
    Generation(pipe, prompts, tmp_path, QUICK)  # dense: the adapter has no part in it
    with refused("adapter_weights"):
        Generation(pipe, prompts, at_16, quick_16)
    fresh = rti.Pipeline.from_pretrained(adapter, fuse=True)  # folded in or not, they are the same weights
    Generation(fresh, prompts, tmp_path, QUICK)
    Generation(fresh, prompts, at_16, quick_16)
    alone = rti.Pipeline.from_pretrained(release)
    assert Generation(alone, prompts, tmp_path, QUICK, {"adapter": "any"}).missing() == 0
    with torch.no_grad():
        alone.backbone.img_embedder.proj1.weight.mul_(1.1)
    with refused("weights"):
        Generation(alone, prompts, tmp_path, QUICK)
    manifest = json.loads((tmp_path / "manifest.json").read_text())
    manifest["versions"]["torch"] = "1.0"
    del manifest["config"]  # as it was before 0.2
    (tmp_path / "manifest.json").write_text(json.dumps(manifest))
    with pytest.warns(UserWarning, match="torch 1.0 there"):
        assert Generation(fresh, prompts, tmp_path, QUICK).run(progress=False)["drawn"] == 0
    assert json.loads((tmp_path / "manifest.json").read_text()) == manifest  # it says what the folder was begun with


@pytest.mark.parametrize("wrong", [dict(images=[]), dict(images=0), dict(guidance="much"), dict(seed=1.5)])
def test_settings_that_cannot_be_are_refused(wrong):
    with refused(*wrong, *map(repr, wrong.values())):
        settings(**wrong)


def test_what_cannot_be_drawn_is_refused_and_nothing_is_written(pipe, release, tmp_path):
    out = tmp_path / "out"
    prompts = open_prompts("scenes", 2)
    with refused("100", "64"):
        Generation(pipe, prompts, out, settings(budget=100))
    with refused("budget 8", "adapter"):
        Generation(rti.Pipeline.from_pretrained(release), prompts, out, settings(budget=8))
    with refused("steps"):
        Generation(pipe, prompts, out, settings(steps=0))
    with refused("class labels", "prompts"):
        Generation(pipe, open_prompts("classes", 2, classes=10), out, QUICK)
    with refused("prompts", "class labels"):
        Generation(rti.Pipeline.from_pretrained(DATA / "jit-tiny"), prompts, out, QUICK)
    with refused("seed", "-1"):
        settings(seed=-1)
    with refused("frozen backbone"):
        settings(text_budget=4)
    with refused("images", "0"):
        settings(images=0)
    with refused("batch", "0"):
        Generation(pipe, prompts, out, QUICK).run(batch=0)
    lines = open_prompts(str(write_lines(tmp_path / "lines.jsonl")))
    with refused("dog"):  # a word the model does not know: found out by the first batch
        Generation(pipe, lines, out, QUICK).run(progress=False)
    assert not out.exists()
    out.mkdir()
    (out / "holiday.png").write_bytes(b"")
    with refused("holiday.png", "manifest.json"):
        Generation(pipe, prompts, out, QUICK)
    with refused("holiday.png"):
        Generation(pipe, prompts, out / "holiday.png", QUICK)


@pytest.mark.parametrize(("rank", "world"), [("2", "2"), ("-1", "2"), ("x", "2"), ("0", "0")])
def test_a_process_number_that_makes_no_sense_is_refused(monkeypatch, rank, world):
    monkeypatch.setenv("RANK", rank)
    monkeypatch.setenv("WORLD_SIZE", world)
    with refused("RANK", "WORLD_SIZE"):
        Shard.of_environment()


# The command.


def run(capsys, *arguments):
    with pytest.raises(SystemExit) as stop:
        main(["generate", *map(str, arguments)])
    captured = capsys.readouterr()
    return stop.value.code, captured.out, captured.err


def test_the_command_draws_tells_and_goes_on(capsys, adapter, tmp_path):
    arguments = (adapter, "--prompts", "scenes", "--count", 6, "--steps", 1, "--budget", "25%", "-o", tmp_path / "out")
    code, out, err = run(capsys, *arguments, "--json")
    assert code == 0, err
    values = json.loads(out.splitlines()[-1])
    assert (values["drawn"], values["there_before"], values["missing"], values["pictures"]) == (6, 0, 0, 6)
    assert values["images_per_second"] > 0
    assert values["manifest"]["budget"] == 16 and values["manifest"]["model"] == str(adapter)
    assert "6/6" in err and "R = 16" in err  # the bar
    before = contents(tmp_path / "out")
    (tmp_path / "out" / "00003" / "samples" / "0000.png").unlink()
    code, out, err = run(capsys, *arguments, "--json")
    values = json.loads(out.splitlines()[-1])
    assert (values["drawn"], values["there_before"]) == (1, 5)
    assert "5/6" in err  # what was there counts as done from the start
    assert contents(tmp_path / "out") == before


def test_the_command_is_interrupted_with_a_word_on_how_to_go_on(capsys, adapter, tmp_path, monkeypatch):
    calls = []
    draw = Generation._draw

    def interrupted(self, *arguments):
        calls.append(arguments)
        if len(calls) == 3:
            raise KeyboardInterrupt
        draw(self, *arguments)

    monkeypatch.setattr(Generation, "_draw", interrupted)
    arguments = (adapter, "--prompts", "scenes", "--count", 6, "--steps", 1, "--batch", 1, "-o", tmp_path / "out")
    code, _, err = run(capsys, *arguments)
    assert code == 130
    assert "interrupted with 4 pictures to go; run the same command again" in err


BAD_INPUT = {
    "no prompts": (("MODEL",), "--prompts"),
    "unknown prompts": (("MODEL", "--prompts", "coco"), "geneval"),
    "a model that is not there": (("nowhere", "--prompts", "scenes"), "nowhere"),
    "labels for a text model": (("MODEL", "--prompts", "classes"), "class-conditional"),
    "prompts for a class-conditional model": ((DATA / "jit-tiny", "--prompts", "scenes"), "class labels"),
    "a budget above N": (("MODEL", "--prompts", "scenes", "--budget", "65"), "65"),
    "a text budget without a budget": (("MODEL", "--prompts", "scenes", "--text-budget", "4"), "budget"),
    "an unknown split": (("MODEL", "--prompts", "scenes", "--split", "test"), "held-out"),
    "a negative seed": (("MODEL", "--prompts", "scenes", "--seed", "-3"), "-3"),
    "no pictures": (("MODEL", "--prompts", "scenes", "--images", "0"), "images"),
    "an unknown dtype": (("MODEL", "--prompts", "scenes", "--dtype", "int8"), "int8"),
}


@pytest.mark.parametrize(("arguments", "named"), BAD_INPUT.values(), ids=BAD_INPUT)
def test_bad_input_is_one_line_and_nothing_is_written(capsys, adapter, tmp_path, monkeypatch, arguments, named):
    monkeypatch.chdir(tmp_path)
    arguments = [adapter if argument == "MODEL" else argument for argument in arguments]
    code, out, err = run(capsys, *arguments, "-o", "folder")
    assert (code, out) == (2, "")
    assert err.startswith("rti: error: ") and err.count("\n") == 1
    assert named in err
    assert list(tmp_path.iterdir()) == []


def test_accelerate_launch_shares_the_work_of_one_process(tmp_path):
    """By the launcher itself, two processes on the CPU; the same bytes as in this one."""
    arguments = [str(DATA / "jit-tiny"), "--prompts", "classes", "--count", "10", "--steps", "1", "--batch", "2"]
    with pytest.raises(SystemExit) as stop:
        main(["generate", *arguments, "-o", str(tmp_path / "one")])
    assert stop.value.code == 0
    launch = [sys.executable, "-m", "accelerate.commands.launch", "--cpu", "--num_processes", "2", "-m", "rti"]
    environment = os.environ | {"OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1"}
    finished = subprocess.run(
        [*launch, "generate", *arguments, "-o", str(tmp_path / "two")],
        capture_output=True,
        text=True,
        env=environment,
        timeout=600,
    )
    assert finished.returncode == 0, finished.stderr[-2000:]
    assert finished.stdout.count("processes") == 1  # one process tells for both
    assert contents(tmp_path / "one") == contents(tmp_path / "two")
    batches = [json.loads(line) for line in (tmp_path / "two" / "timing.jsonl").read_text().splitlines()]
    assert len(batches) == 5


# Killed.

COUNT, KILLS = 100, 10
# The model that ships, one step each: what matters here is how a folder grows, not what it shows.
KILLED = ["generate", "scenes", "--prompts", "scenes", "--count", str(COUNT), "--steps", "1", "--guidance", "1"]
KILLED += ["--budget", "64", "--batch", "4", "--seed", "3"]


@pytest.fixture(scope="module")
def start():
    """The command in a process of its own, forked so that nothing has to be imported or loaded again."""
    shipped = rti.Pipeline.from_pretrained("scenes", fuse=False)

    def start(folder, rank=0, world=1):
        def command():
            options.Runtime.load = lambda *_, **__: shipped
            main([*KILLED, "-o", str(folder)])

        return Forked(command, RANK=str(rank), WORLD_SIZE=str(world)).pid

    return start


def drawn(folder):
    return sum(os.path.exists(f"{folder}/{index:05d}/samples/0000.png") for index in range(COUNT))


def writing(folder):
    return any(os.path.exists(f"{folder}/{index:05d}/samples/.0000.png.part") for index in range(COUNT))


@pytest.fixture(scope="module")
def uninterrupted(start, tmp_path_factory):
    folder = tmp_path_factory.mktemp("uninterrupted") / "run"
    assert os.waitpid(start(folder), 0)[1] == 0
    return contents(folder)


def wait_until(condition, processes, pause):
    while not condition():
        time.sleep(pause)
        assert all(os.waitpid(process, os.WNOHANG) == (0, 0) for process in processes), "it ended before it was killed"


def stop_while_writing(processes, folder):
    """Stop them in the middle of a picture; let them go on where it was whole by then."""
    while True:
        wait_until(lambda: writing(folder), processes, 0.0005)
        for process in processes:
            os.kill(process, signal.SIGSTOP)
        if writing(folder):
            return
        for process in processes:
            os.kill(process, signal.SIGCONT)


@pytest.mark.parametrize("world", [1, 2], ids=["one process", "two processes"])
def test_a_generation_killed_ten_times_ends_with_the_bytes_of_one_that_was_not(tmp_path, start, uninterrupted, world):
    chance, folder, in_the_middle = random.Random(world), tmp_path / "run", 0
    for kill in range(KILLS):
        # The first time before anything is there, then at some picture; every third time while one is being written.
        wanted = drawn(folder) + (chance.randint(1, 7) if kill else 0)
        processes = [start(folder, rank, world) for rank in range(world)]
        wait_until(lambda: drawn(folder) >= wanted, processes, 0.005)  # noqa: B023
        if kill % 3 == 1:
            stop_while_writing(processes, folder)
        for process in processes:
            os.kill(process, signal.SIGKILL)
        for process in processes:
            assert os.waitpid(process, 0)[1] == signal.SIGKILL
        in_the_middle += writing(folder)
    assert 10 < drawn(folder) < COUNT
    assert in_the_middle >= 3
    processes = [start(folder, rank, world) for rank in range(world)]
    assert [os.waitpid(process, 0)[1] for process in processes] == [0] * world
    assert len(uninterrupted) == 2 * COUNT + 2  # pictures, their metadata, the manifest and the prompts
    assert contents(folder).keys() == uninterrupted.keys()
    assert [name for name, data in contents(folder).items() if data != uninterrupted[name]] == []


def test_the_digest_is_of_the_weights_and_of_the_tokens(tmp_path):
    save_text_encoder(tmp_path)
    one, other = load_text_encoder(tmp_path), load_text_encoder(tmp_path)
    assert weights_digest(one) == weights_digest(other)
    torch.manual_seed(0)
    assert weights_digest(WordEncoder(8)) != weights_digest(WordEncoder(8))  # each at random
    tokens = other.tokenizer
    other.tokenizer = lambda text: type(tokens(text))({"input_ids": tokens(text).input_ids[::-1]})
    assert weights_digest(one) != weights_digest(other)
    other.tokenizer = tokens
    with torch.no_grad():
        next(other.encoder.parameters())[0, 0] += 1e-3
    assert weights_digest(one) != weights_digest(other)
