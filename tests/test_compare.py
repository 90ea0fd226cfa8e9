"""Comparing runs: paired intervals and their coverage, refusals, the table; and the whole chain of commands."""

import json

import numpy as np
import pytest

from rti.cli import main
from rti.lab import scenes
from rti.lab.intervals import stratified_summary
from rti.lab.pictures.compare import check_pair, compare_folders, open_row, paired_summary
from rti.lab.pictures.folder import Entry, PictureFolder, entries_text
from rti.lab.pictures.scorers.fid import pictures_in, read_features
from rti.lab.pictures.scorers.results import Score, score_path, strata, summary
from scorer_models import SMALL_VISION, save_bert_tokenizer, save_clip, save_image_reward, save_mask2former, write_lines
from tiny import refused

TASKS = scenes.TASKS
MANIFEST = dict(model="minit2i-b16", adapter=None, budget="dense", reduction=None, patches=1024, steps=25, seed=0)
MANIFEST |= dict(guidance=5.0, images_per_prompt=4, prompts=dict(source="geneval", count=12), weights="w")
MANIFEST |= dict(text_budget=None, versions=dict(torch="2"))


# Intervals.


def test_paired_intervals_cover_the_truth_95_of_100_times():
    """GenEval's shape: six tasks of unequal difficulty, four pictures a prompt, two runs that find the same ones hard.

    A prompt has a chance of its own in each run; the truth is the mean difference of the tasks' mean chances.
    """
    rng = np.random.default_rng(0)
    labels = [task for task, size in zip(TASKS, (24, 30, 24, 28, 30, 30), strict=True) for _ in range(size)]
    level = np.array([dict(zip(TASKS, (2.5, 1.5, 0.5, 2.0, 1.0, 0.5), strict=True))[label] for label in labels])
    # The population of each task is large; its mean difference is found from many prompts.
    many = rng.normal(size=200_000)
    gains = {task: 0.2 + 0.1 * index for index, task in enumerate(TASKS)}

    def chances(ease, task_level, gain):
        return 1 / (1 + np.exp(-task_level - ease)), 1 / (1 + np.exp(-task_level - ease + gain))

    truth = np.mean(
        [np.subtract(*chances(many, level[labels.index(task)], gains[task])[::-1]).mean() for task in TASKS]
    )
    gain = np.array([gains[label] for label in labels])
    covered, task_covered, widths = 0, 0, []
    runs = 1000
    first_task = np.subtract(*chances(many, level[0], gains[TASKS[0]])[::-1]).mean()
    for run in range(runs):
        dense, reduced = chances(rng.normal(size=len(labels)), level, gain)
        change = rng.binomial(4, reduced) / 4 - rng.binomial(4, dense) / 4
        found = stratified_summary(change, labels, resamples=1000, seed=run)
        covered += found.interval[0] <= truth <= found.interval[1]
        low, high = found.intervals[TASKS[0]]
        task_covered += low <= first_task <= high
        widths.append(found.interval[1] - found.interval[0])
    print(f"covered {covered / runs:.3f}, a task of 24 prompts {task_covered / runs:.3f}, width {np.mean(widths):.3f}")
    assert 0.93 <= covered / runs <= 0.97
    assert task_covered / runs > 0.9  # few prompts: a percentile interval is a little too narrow there
    assert 0.02 < np.mean(widths) < 0.2


def make_run(path, scores, metric="geneval", scorer=None, **changes):
    """A folder as `rti generate` and `rti score` leave it, but with empty pictures. `scores` (prompts, images)."""
    path.mkdir(parents=True, exist_ok=True)
    manifest = MANIFEST | changes
    (path / "manifest.json").write_text(json.dumps(manifest))
    entries = []
    for index, row in enumerate(scores):
        files = tuple(f"{index}-{number}.png" for number in range(len(row)))
        for file in files:
            (path / file).write_bytes(b"")
        seeds = tuple(1000 * manifest["seed"] + 10 * index + number for number in range(len(row)))
        entries.append(Entry(index, f"prompt {index}", TASKS[index % 6], files, seeds))
    (path / "prompts.jsonl").write_text(entries_text(tuple(entries)))
    rows = [
        {"file": entry.files[number], "prompt": entry.index, "number": number, "score": float(value)}
        for entry, row in zip(entries, scores, strict=True)
        for number, value in enumerate(row)
    ]
    found = summary(entries, rows, by_group=metric == "geneval")
    Score(metric, scorer or {"model": "m"}, found, rows, PictureFolder(path, manifest, ()).digest).write(path)
    return path


def test_a_paired_difference_equals_a_plain_reference(tmp_path):
    rng = np.random.default_rng(1)
    first, second = rng.integers(0, 2, (18, 4)), rng.integers(0, 2, (18, 4))
    make_run(tmp_path / "a", first)
    make_run(tmp_path / "b", second, budget=64)
    one, two = (PictureFolder.open(tmp_path / name) for name in "ab")
    found = paired_summary(two, *(Score.read(score_path(folder.path, "geneval")) for folder in (two, one)), 400, seed=3)
    change = second.mean(axis=1) - first.mean(axis=1)
    draws, means = np.random.default_rng(3), []
    for task in range(6):
        members = [float(change[index]) for index in range(18) if index % 6 == task]
        assert found.means[TASKS[task]] == pytest.approx(sum(members) / 3)
        rows = draws.integers(3, size=(400, 3))
        means.append([sum(members[i] for i in row) / 3 for row in rows])
    overall = sorted(sum(column) / 6 for column in zip(*means, strict=True))
    expected = []
    for share in (0.025, 0.975):
        place = share * 399
        low = int(place)
        expected.append(overall[low] + (place - low) * (overall[low + 1] - overall[low]))
    assert found.interval == pytest.approx(expected)
    assert found.overall == pytest.approx(np.mean([change[task::6].mean() for task in range(6)]))


def test_only_geneval_is_stratified_by_its_groups():
    entries = [Entry(index, "p", group, (), ()) for index, group in enumerate("aab")]
    assert strata(entries, by_group=True) == ["a", "a", "b"]
    assert strata(entries, by_group=False) == ["all"] * 3


def test_what_both_runs_find_hard_cancels_out(tmp_path):
    """Prompts differ wildly, the runs by exactly a tenth: the paired interval is that tenth alone."""
    values = np.linspace(-3, 3, 24)[:, None]
    make_run(tmp_path / "a", values, "imagereward")
    make_run(tmp_path / "b", values - 0.1, "imagereward", budget=64)
    dense, reduced = compare_folders([tmp_path / "a", tmp_path / "b"])
    change = reduced["differences"]["imagereward"]
    assert (change["value"], change["interval"]) == (pytest.approx(-0.1), None)  # what never varies has no interval
    low, high = dense["scores"]["imagereward"]["interval"]
    assert high - low > 1
    [_, same] = compare_folders([tmp_path / "a", tmp_path / "a"])
    assert (same["differences"]["imagereward"]["value"], same["differences"]["imagereward"]["interval"]) == (0, None)
    make_run(tmp_path / "c", values - 0.1 + 0.01 * np.sin(40 * values), "imagereward", budget=64)
    [_, other] = compare_folders([tmp_path / "a", tmp_path / "c"])
    assert np.ptp(other["differences"]["imagereward"]["interval"]) < 0.01 < 1 < high - low


# Refusals.


@pytest.fixture
def pair(tmp_path):
    scores = np.random.default_rng(0).integers(0, 2, (12, 4))
    return make_run(tmp_path / "dense", scores), make_run(tmp_path / "r64", scores, budget=64)


def rewrite(folder, change):
    """Change the prompts of a folder behind its back."""
    lines = [json.loads(line) for line in (folder / "prompts.jsonl").read_text().splitlines()]
    change(lines)
    (folder / "prompts.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))


def test_folders_of_other_prompts_are_refused_and_the_first_is_named(pair):
    rewrite(pair[1], lambda lines: lines[7].update(prompt="another"))
    with refused(*pair, "prompt 7", "'prompt 7' and 'another'"):
        compare_folders(pair)


def test_folders_of_other_seeds_are_refused_with_the_seeds_of_both(pair, tmp_path):
    other = make_run(tmp_path / "other", np.ones((12, 4)), seed=8)
    with refused(pair[0], other, "they differ in the seeds of prompt 0", "(0, 1, 2, 3) and (8000, 8001, 8002, 8003)"):
        compare_folders([pair[0], other])


def test_folders_of_other_sizes_are_refused(pair, tmp_path):
    with refused("12 and 11 prompts"):
        compare_folders([pair[0], make_run(tmp_path / "fewer", np.ones((11, 4)))])
    with refused("(0, 1, 2, 3) and (0, 1)"):
        compare_folders([pair[0], make_run(tmp_path / "halves", np.ones((12, 2)))])
    one, two = PictureFolder.open(pair[0]), PictureFolder.open(pair[1])
    check_pair(one, two)


def test_scores_by_another_model_are_not_compared(pair, tmp_path):
    other = make_run(tmp_path / "other", np.ones((12, 4)), scorer={"model": "another"})
    with refused("geneval", "model", "m and another"):
        compare_folders([pair[0], other])


def test_scores_of_other_pictures_are_refused(pair):
    manifest = json.loads((pair[1] / "manifest.json").read_text())
    (pair[1] / "manifest.json").write_text(json.dumps(manifest | {"weights": "others"}))
    with refused(pair[1], "other pictures"):
        compare_folders(pair)


def test_folders_that_cannot_be_rows_are_refused(pair, tmp_path):
    with refused("1 folder"):
        compare_folders(pair[:1])
    with refused("nowhere"):
        compare_folders([pair[0], tmp_path / "nowhere"])
    (pair[0] / "scores" / "geneval.json").unlink()
    with refused(pair[0], "not scored"):
        compare_folders(pair)
    (pair[1] / "3-2.png").unlink()
    with refused("1 of 48 pictures", "3-2.png"):
        compare_folders(pair)


@pytest.mark.parametrize(
    ("file", "change", "said"),
    [
        ("prompts.jsonl", {"files": [3]}, "prompts.jsonl"),
        ("prompts.jsonl", {"files": ["../x.png"]}, "prompts.jsonl"),
        ("prompts.jsonl", {"files": ["x" * 300]}, "missing"),
        ("prompts.jsonl", {"seeds": ["x"]}, "prompts.jsonl"),
        ("prompts.jsonl", {"index": [0]}, "prompts.jsonl"),
        ("prompts.jsonl", {"group": {}}, "prompts.jsonl"),
        ("manifest.json", {"patches": "GONE"}, "no usable patches"),
        ("manifest.json", {"reduction": "x"}, "no usable reduction"),
        ("scores/geneval.json", {"scorer": []}, "no file of rti score"),
        ("scores/geneval.json", {"summary": {}}, "no file of rti score"),
        ("scores/geneval.json", {"summary": {"score": None, "groups": {}}}, "no file of rti score"),
        ("scores/geneval.json", {"pictures": [{}]}, "no file of rti score"),
        ("scores/geneval.json", {"pictures": [{"prompt": 0, "score": "x"}]}, "no file of rti score"),
    ],
)
def test_damaged_folders_are_refused(pair, file, change, said):
    path = pair[1] / file
    first, *rest = path.read_text().splitlines() if file.endswith("jsonl") else [path.read_text()]
    values = {name: value for name, value in (json.loads(first) | change).items() if value != "GONE"}
    path.write_text("\n".join([json.dumps(values), *rest]))
    with refused(said):
        compare_folders(pair)


def test_times_that_are_no_text_are_no_times(pair):
    (pair[1] / "timing.jsonl").write_bytes(b'\xff\xfe{"pictures": 0, "seconds": 1}\n[[[')
    assert compare_folders(pair)[1]["images_per_second"] is None


# Rows of several benchmarks, and the table.


def test_a_row_holds_a_folder_for_each_benchmark(tmp_path):
    rng = np.random.default_rng(2)
    hits, rewards = rng.integers(0, 2, (12, 4)), rng.normal(size=(10, 1))
    for name, budget, loss in (("dense", "dense", 0.0), ("r64", 64, 0.25)):
        prompts = {"prompts": {"source": "parti", "count": 10}, "images_per_prompt": 1}
        make_run(tmp_path / name / "geneval", hits, budget=budget)
        make_run(tmp_path / name / "parti", rewards - loss, "pick", budget=budget, **prompts)
        (tmp_path / name / "notes").mkdir()
    dense, reduced = compare_folders([tmp_path / "dense", tmp_path / "r64"])
    assert set(dense["scores"]) == {"geneval", "pick"}
    assert reduced["differences"]["pick"]["value"] == pytest.approx(-0.25)
    assert reduced["differences"]["geneval"]["value"] == 0
    assert reduced["also"] == []
    make_run(tmp_path / "r64" / "parti", rewards, "pick", budget=32)
    with refused("no single row", "budget 64 and 32"):
        open_row(tmp_path / "r64")
    make_run(tmp_path / "r64" / "parti", hits, budget=64)
    make_run(tmp_path / "r64" / "geneval", hits, budget=64)
    with refused("both have a geneval score"):
        open_row(tmp_path / "r64")


def run(capsys, *arguments):
    with pytest.raises(SystemExit) as stop:
        main([str(argument) for argument in arguments])
    captured = capsys.readouterr()
    return stop.value.code, captured.out, captured.err


def run_json(capsys, *arguments):
    code, out, err = run(capsys, *arguments, "--json")
    assert code == 0, err
    return json.loads(out.splitlines()[-1])


def test_the_table_is_that_of_the_paper(capsys, tmp_path):
    hits = np.ones((24, 4))
    hits[2::6, :2] = 0  # counting half right
    make_run(tmp_path / "dense", hits)
    hits[4::6] = 0  # and no position at all
    make_run(tmp_path / "r64", hits, budget=64, reduction={"reduction": "region"}, steps=10)
    for name, rate in (("dense", 0.4), ("r64", 1.0)):
        line = json.dumps({"pictures": 2, "seconds": 2 / rate}) + "\n"
        (tmp_path / name / "timing.jsonl").write_text(3 * line)
    code, out, err = run(capsys, "compare", tmp_path / "dense", tmp_path / "r64")
    assert code == 0, err
    lines = [line.split() for line in out.splitlines()]
    for expected in (
        "Model R img/s Speed sng two cnt col pos att Ovr.",
        "minit2i-b16 1024 0.40 1.00x 100.0 100.0 50.0 100.0 100.0 100.0 91.7",
        "region 64 1.00 2.50x 100.0 100.0 50.0 100.0 0.0 100.0 75.0",
    ):
        assert expected.split() in lines
    assert [str(tmp_path / "r64"), "GenEval", "-16.7"] in lines  # every prompt of a task is alike: no interval
    assert f"{tmp_path / 'r64'} also differs in steps 25 / 10" in out
    values = run_json(capsys, "compare", tmp_path / "dense", tmp_path / "r64")
    assert values["rows"][1]["differences"]["geneval"]["groups"]["position"] == -1
    assert values["rows"][1]["scores"]["geneval"]["score"] == pytest.approx(0.75)


# The whole chain.


@pytest.fixture(scope="module")
def scorers(tmp_path_factory):
    folder = tmp_path_factory.mktemp("scorers")
    save_clip(folder / "clip"), save_clip(folder / "pick", seed=1), save_mask2former(folder / "detector")
    save_image_reward(folder / "reward"), save_bert_tokenizer(folder / "words")
    return folder


def features_of(folder, width=4):
    """A network of our own: mean colours of the parts of a picture. The order is that of the files."""
    from PIL import Image

    rows = []
    for path in pictures_in(folder):
        with Image.open(path) as picture:
            rows.append(np.asarray(picture.resize((width, width)), dtype=np.float64).flatten() / 255)
    return np.stack(rows)


def test_the_whole_chain_generates_scores_and_compares_dense_and_64_regions(capsys, tmp_path, scorers, monkeypatch):
    """The model that ships, prompts in GenEval's format and of the scenes world, small random scorers."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("rti.lab.pictures.scorers.imagereward.VISION", SMALL_VISION)
    write_lines(tmp_path / "prompts.jsonl")
    for row, budget in (("dense", "dense"), ("r64", "64")):
        draw = ("generate", "scenes", "--budget", budget, "--steps", 1, "--guidance", 1)
        values = run_json(capsys, *draw, "--prompts", "prompts.jsonl", "--images", 2, "--lenient", "-o", f"{row}/lines")
        assert (values["drawn"], values["missing"]) == (12, 0)
        run_json(capsys, *draw, "--prompts", "scenes", "--count", 6, "-o", f"{row}-scenes")
        lines = f"{row}/lines"
        geneval = run_json(
            capsys, "score", "geneval", lines, "--detector", scorers / "detector", "--clip", scorers / "clip"
        )
        assert (geneval["pictures"], geneval["prompts"], list(geneval["groups"])) == (12, 6, list(TASKS))
        clip = run_json(capsys, "score", "clip", lines, "--model", scorers / "clip", "--batch", 5)
        assert 0 < clip["score"] < 100
        run_json(capsys, "score", "pick", lines, "--model", scorers / "pick", "--processor", scorers / "clip")
        run_json(capsys, "score", "imagereward", lines, "--model", scorers / "reward", "--tokenizer", scorers / "words")
        np.savez(f"{row}.npz", features=features_of(tmp_path / lines))
        np.save(f"{row}.npy", 5 * features_of(tmp_path / lines)[:, :10])
        fid = run_json(capsys, "score", "fid", lines, "--features", f"{row}.npz", "--reference", "dense.npz")
        assert (fid["score"] > 1e-3) == (row == "r64")
        score = run_json(capsys, "score", "is", lines, "--features", f"{row}.npy", "--splits", 2)
        assert 1 <= score["score"] < 10
        exact = run_json(capsys, "score", "geneval", f"{row}-scenes")
        assert exact["detector"] == "scenes" and exact["pictures"] == 6
        pictures = json.loads((tmp_path / lines / "scores" / "clip.json").read_text())["pictures"]
        assert len(pictures) == 12 and all(np.isfinite(picture["score"]) for picture in pictures)
    values = run_json(capsys, "compare", "dense", "r64")
    dense, reduced = values["rows"]
    metrics = {"geneval", "clip", "pick", "imagereward", "fid", "is"}
    assert set(dense["scores"]) == set(reduced["differences"]) == metrics
    assert (dense["budget"], reduced["budget"]) == ("dense", 64)
    assert dense["images_per_second"] > 0
    for metric in ("clip", "pick", "imagereward"):
        change = reduced["differences"][metric]
        assert change["value"] == pytest.approx(reduced["scores"][metric]["score"] - dense["scores"][metric]["score"])
        assert change["interval"][0] < change["value"] < change["interval"][1]
    assert reduced["differences"]["fid"]["interval"] is None
    code, out, _ = run(capsys, "compare", "dense", "r64")
    assert code == 0
    for head in ("img/s", "Speed", "Ovr.", "CLIP", "Pick", "IR", "FID", "IS"):
        assert head in out
    run_json(capsys, "compare", "dense-scenes", "r64-scenes")
    code, out, err = run(capsys, "compare", "dense", "r64-scenes")
    assert code == 2 and "they differ in the prompt of prompt 0" in err


BAD_INPUT = {
    "no folder": (("score", "clip", "nowhere"), "nowhere"),
    "a folder of nothing": (("score", "geneval", "."), "manifest.json"),
    "fid without a reference": (("score", "fid", "."), "--reference"),
    "a reference that is not there": (("score", "fid", ".", "--reference", "x.npz"), "x.npz"),
    "an unknown metric": (("score", "beauty", "."), "beauty"),
    "one folder": (("compare", "run"), "reference"),
    "folders that are none": (("compare", "run/scores", "run"), "rti generate"),
    "a device that is not there": (("score", "clip", "run", "--device", "quantum"), "quantum"),
    "a model that is not there": (("score", "clip", "run", "--model", "./nowhere"), "nowhere"),
    "features that are no .npz": (("score", "is", "run", "--save-features", "some.npy"), "must be .npz"),
    "features of too few pictures": (("score", "is", "run", "--features", "some.npy"), "3 pictures"),
}


@pytest.mark.parametrize(("arguments", "named"), BAD_INPUT.values(), ids=BAD_INPUT)
def test_bad_input_is_one_line_and_nothing_is_written(capsys, tmp_path, monkeypatch, arguments, named):
    monkeypatch.chdir(tmp_path)
    make_run(tmp_path / "run", np.ones((12, 4)))
    np.save(tmp_path / "some.npy", np.ones((3, 4)))
    before = sorted(tmp_path.rglob("*"))
    code, out, err = run(capsys, *arguments)
    assert (code, out) == (2, "")
    assert err.startswith("rti: error: ") and err.count("\n") == 1
    assert named in err
    assert sorted(tmp_path.rglob("*")) == before


def test_options_of_before_are_left_out_with_a_warning(capsys, tmp_path):
    make_run(tmp_path / "run", np.ones((12, 4)))
    rows = np.random.default_rng(0).normal(size=(48, 3))
    np.save(tmp_path / "some.npy", rows)
    given = ("--features", tmp_path / "some.npy", "--reference", tmp_path / "some.npy", "--extractor", "clean-fid")
    given += ("--save-features", tmp_path / "new" / "kept.npz", "-o", tmp_path / "fid.json")
    code, _, err = run(capsys, "score", "fid", tmp_path / "run", *given)
    assert (code, err.count("\n")) == (0, 2), err
    assert "warning: --extractor is gone" in err and "--features FILE" in err
    assert "warning: -o is gone" in err and "scores/METRIC.json" in err
    assert (tmp_path / "run" / "scores" / "fid.json").is_file() and not (tmp_path / "fid.json").exists()
    assert np.array_equal(read_features(tmp_path / "new" / "kept.npz"), rows.astype(np.float32))


# The documents.


def test_the_documents_give_commands_and_options_that_exist(capsys):
    import re
    from pathlib import Path

    pages = sorted((Path(__file__).parent.parent / "docs" / "benchmarks").glob("*.md"))
    assert {page.stem for page in pages} >= {"geneval", "partiprompts", "mjhq-30k", "imagenet", "scenes"}
    seen = set()
    for page in pages:
        text = page.read_text(encoding="utf-8").replace("\\\n", " ")
        for command, rest in re.findall(r"^(?:.*-m )?rti ((?:score )?[a-z]+)(.*)$", text, re.MULTILINE):
            _, helped, _ = run(capsys, *command.split(), "--help")
            for option in re.findall(r"--[a-z-]+", rest):
                assert option in helped, f"{page.name}: rti {command} has no {option}"
            seen.add(command)
    assert seen >= {"generate", "compare", *(f"score {name}" for name in ("geneval", "clip", "pick", "fid", "is"))}


def test_the_columns_follow_the_tasks_of_geneval():
    from rti.cli.compare import TASKS as HEADS

    assert tuple(HEADS) == TASKS
