"""SceneEval of models: right and wrong painters, batches, budgets, and what the command prints and refuses."""

import json
import shutil
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from PIL import Image

import rti
from rti.cli import main
from rti.lab import scenes
from rti.lab.evaluation.scenes import evaluate_scenes, picture_generator
from rti.text.words import WordEncoder
from tiny import CORE, DATA, assert_same_state, make_backbone, randomise_trainable, refused, save_scenes_model, snapshot

TEXT = dict(prompt_length=12, txt_input_size=12, noise_scale=1.0, guidance_scale=1.0)
QUICK = dict(images=18, seed=3, steps=2, progress=False)
CONFIG = rti.RegionConfig(core=CORE, cuts="merge", cuts_from="estimate", lora_rank=2, lora_alpha=2)


def spell(prompts, length):
    """A text encoder whose states are the word ids themselves, so that a painter can read its caption."""
    ids = torch.stack([torch.from_numpy(scenes.encode(prompt, length)) for prompt in prompts])
    return ids[:, :, None].float().expand(-1, -1, 12), ids != 0


class Painter:
    """Draws what a caption asks for, or leaves the picture empty for some tasks, at every step."""

    def __init__(self, prompts, size=32):
        pictures = torch.from_numpy(scenes.render(prompts, np.random.default_rng(0), size))
        self.pictures = {scene.caption: picture for scene, picture in zip(prompts, pictures, strict=True)}
        self.tasks = {scene.caption: scene.task for scene in prompts}
        self.calls = []

    def paint(self, wrong=(), budget=None):
        def forward(_, x, t, condition, budget=budget, estimate=None):
            self.calls.append(SimpleNamespace(count=len(x), budget=budget, wrong=wrong))
            captions = [scenes.decode(ids.long().numpy()) for ids in condition.states[:, :, 0]]
            empty = torch.zeros(3, *x.shape[2:])
            return torch.stack([empty if self.tasks[text] in wrong else self.pictures[text] for text in captions])

        return forward


@pytest.fixture
def painter():
    return Painter(scenes.prompts(18, 3) + scenes.prompts(18, 3, "held-out"))


@pytest.fixture
def backbone():
    return make_backbone("minit2i", **TEXT)


@pytest.fixture(scope="module")
def release(tmp_path_factory):
    """A text-to-image model of the scenes world, in the release's layout, untrained."""
    return save_scenes_model(tmp_path_factory.mktemp("release"), **TEXT | dict(guidance_scale=2.0))


@pytest.fixture(scope="module")
def adapter(release, tmp_path_factory):
    folder = tmp_path_factory.mktemp("adapter")
    randomise_trainable(rti.attach(rti.load_backbone(release), CONFIG)).save_pretrained(folder)
    return folder


# The score.


@pytest.mark.parametrize("split", ["train", "held-out"])
def test_a_model_that_paints_what_is_asked_for_is_all_right(backbone, painter, monkeypatch, split):
    monkeypatch.setattr(rti.Backbone, "forward", painter.paint())
    [result] = evaluate_scenes(backbone, spell, **QUICK, split=split)
    assert result.score.overall == 1.0
    assert result.score.tasks == dict.fromkeys(scenes.TASKS, 1.0)
    assert result.score.interval == pytest.approx((0.824, 1.0), abs=1e-3)  # 18 of 18
    assert result.score.scenes == tuple(scenes.prompts(18, 3, split))
    assert result.difference is None


def test_a_model_that_paints_nothing_is_all_wrong(backbone, painter, monkeypatch):
    monkeypatch.setattr(rti.Backbone, "forward", painter.paint(wrong=scenes.TASKS))
    [result] = evaluate_scenes(backbone, spell, **QUICK)
    assert result.score.overall == 0.0
    assert result.score.tasks == dict.fromkeys(scenes.TASKS, 0.0)


@pytest.mark.parametrize("wrong", scenes.TASKS)
def test_a_model_that_cannot_do_one_task_is_wrong_in_that_task_alone(backbone, painter, monkeypatch, wrong):
    monkeypatch.setattr(rti.Backbone, "forward", painter.paint(wrong=[wrong]))
    [result] = evaluate_scenes(backbone, spell, **QUICK)
    assert result.score.tasks == {task: float(task != wrong) for task in scenes.TASKS}
    assert result.score.overall == pytest.approx(5 / 6)


def test_a_model_that_paints_another_prompts_picture_is_wrong(backbone, monkeypatch):
    prompts = scenes.prompts(18, 3)
    painter = Painter(prompts)
    shifted = {scene.caption: painter.pictures[prompts[i - 5].caption] for i, scene in enumerate(prompts)}
    painter.pictures = shifted
    monkeypatch.setattr(rti.Backbone, "forward", painter.paint())
    [result] = evaluate_scenes(backbone, spell, **QUICK)
    assert result.score.overall < 0.3


def test_a_point_lies_in_its_interval(backbone, monkeypatch):
    """The fourth picture of every task is empty, which no task can do without."""
    prompts = scenes.prompts(60, 3)
    painter = Painter(prompts)
    for scene in prompts[18:24]:
        painter.pictures[scene.caption] = torch.zeros(3, 32, 32)
    monkeypatch.setattr(rti.Backbone, "forward", painter.paint())
    [result] = evaluate_scenes(backbone, spell, **QUICK | dict(images=60))
    low, high = result.score.interval
    assert 0.5 < low < result.score.overall < high < 1.0
    for task, (low, high) in result.score.task_intervals.items():
        assert 0 < low < result.score.tasks[task] < high <= 1


# Prompts, noise and batches.


def test_the_batch_never_changes_a_picture(release, adapter):
    pipe = rti.Pipeline.from_pretrained(adapter)
    options = QUICK | dict(images=7, budgets=[8])
    [together] = evaluate_scenes(pipe, **options)
    for batch in (1, 3, 7):
        [apart] = evaluate_scenes(pipe, **options, batch=batch)
        torch.testing.assert_close(apart.images, together.images, atol=1e-4, rtol=0)
        assert apart.score.correct.tolist() == together.score.correct.tolist()


def test_fewer_pictures_are_the_first_of_more(release):
    pipe = rti.Pipeline.from_pretrained(release)
    [more] = evaluate_scenes(pipe, **QUICK | dict(images=9))
    [fewer] = evaluate_scenes(pipe, **QUICK | dict(images=6))
    torch.testing.assert_close(fewer.images, more.images[:6], atol=1e-4, rtol=0)
    assert fewer.score.scenes == more.score.scenes[:6]


def test_pictures_are_those_of_the_pipeline_and_another_seed_gives_others(release):
    pipe = rti.Pipeline.from_pretrained(release)
    [result] = evaluate_scenes(pipe, **QUICK, guidance=1.5)
    expected = pipe(
        result.score.scenes[4].caption,
        generator=picture_generator(3, 4),
        num_inference_steps=2,
        guidance_scale=1.5,
        output_type="pt",
        progress=False,
    ).images
    torch.testing.assert_close(result.images[4:5], 2 * expected - 1, atol=1e-4, rtol=0)
    [other] = evaluate_scenes(pipe, **QUICK | dict(seed=4, guidance=1.5))
    assert other.score.scenes != result.score.scenes
    assert (other.images - result.images).abs().mean() > 0.05


def test_no_two_pictures_share_their_noise():
    """Not within a seed, and not between the seeds next to each other."""
    draws = [torch.randn(2, generator=picture_generator(seed, index)) for seed in range(3) for index in range(40)]
    assert len({tuple(draw.tolist()) for draw in draws}) == 120


# Budgets.


def test_budgets_share_prompts_and_noise_and_are_compared_with_dense_in_pairs(backbone, painter, monkeypatch):
    model = rti.attach(backbone, CONFIG)
    seen = []
    elastic = painter.paint(wrong=["position"])
    monkeypatch.setattr(rti.Backbone, "forward", painter.paint(wrong=["counting"]))
    monkeypatch.setattr(
        rti.ElasticModel,
        "forward",
        lambda self, x, *args, **kw: seen.append((x, self.fused)) or elastic(self, x, *args, **kw),
    )
    results = evaluate_scenes(model, spell, budgets=[16, None, 0.5], **QUICK, batch=18)
    assert [result.budget for result in results] == [16, None, 32]
    assert [result.name for result in results] == [16, "dense", 32]
    assert [call.budget for call in painter.calls] == [16, 16, None, None, 32, 32]  # as asked for, two steps each
    assert torch.equal(seen[0][0], seen[2][0])
    assert all(merged for _, merged in seen)  # for speed
    dense = results[1]
    assert dense.score.tasks["counting"] == 0.0
    assert dense.difference is None
    for result in (results[0], results[2]):
        assert result.score.scenes == dense.score.scenes
        assert result.difference.tasks == dict.fromkeys(scenes.TASKS, 0.0) | {"position": -1.0, "counting": 1.0}
        assert result.difference.overall == 0.0
        assert result.difference.interval is None  # within a task no two pictures differ
    assert evaluate_scenes(model, spell, budgets=[16], **QUICK)[0].difference is None


def test_dense_is_the_frozen_backbone_without_the_adapter(release, adapter):
    [plain] = evaluate_scenes(rti.Pipeline.from_pretrained(release), **QUICK)
    full, dense = evaluate_scenes(rti.Pipeline.from_pretrained(adapter), budgets=[64, None], **QUICK)
    torch.testing.assert_close(dense.images, plain.images, atol=1e-4, rtol=0)
    assert (full.images - plain.images).abs().mean() > 1e-3  # every patch a region, but the LoRA at work


@pytest.mark.parametrize("merged", [False, True])
def test_a_model_is_left_as_it_was(adapter, merged):
    model = rti.load(adapter)
    if merged:
        model.fuse()
    before = snapshot(model)
    with torch.no_grad():
        encoder = WordEncoder(12)
    evaluate_scenes(model, encoder, budgets=[8, None], **QUICK | dict(images=6))
    assert model.fused == merged
    assert_same_state(model, before)


def test_one_budget_given_in_two_ways_is_drawn_once(adapter):
    results = evaluate_scenes(rti.Pipeline.from_pretrained(adapter), budgets=[16, 0.25], **QUICK | dict(images=6))
    assert [result.budget for result in results] == [16]


def test_what_cannot_be_evaluated_is_refused_before_the_first_picture(backbone, monkeypatch):
    monkeypatch.setattr(rti.Backbone, "forward", lambda *_: pytest.fail("it drew before it looked"))
    for change, fragments in (
        (dict(budgets=[16]), ("16", "adapter")),
        (dict(budgets=[]), ("budget",)),
        (dict(images=5), ("images", "6", "5")),
        (dict(batch=0), ("batch", "0")),
        (dict(seed=-1), ("seed", "-1")),
        (dict(steps=0), ("steps", "0")),
        (dict(split="test"), ("split", "test", "held-out")),
    ):
        with refused(*fragments):
            evaluate_scenes(backbone, spell, **QUICK | change)
    with refused("100", "64"):
        evaluate_scenes(rti.attach(backbone, CONFIG), spell, **QUICK, budgets=[100])
    with refused("text encoder"):
        evaluate_scenes(make_backbone("minit2i", **TEXT), **QUICK)
    with refused("text_encoder", "pipeline"):
        evaluate_scenes(rti.Pipeline(make_backbone("minit2i", **TEXT), spell), spell, **QUICK)
    with refused("56 classes", "10"):
        evaluate_scenes(make_backbone("jit"), **QUICK)
    with refused("32 x 64"):
        evaluate_scenes(make_backbone("minit2i", **TEXT, image_size=[32, 64]), spell, **QUICK)


def test_a_class_conditional_model_draws_the_classes(monkeypatch):
    backbone = make_backbone("jit", num_classes=56)

    def paint(_, x, t, condition, budget=None, estimate=None):
        wanted = [scenes.class_scene(int(label)) for label in condition.labels]
        wanted = [scenes.class_scene(0) if scene.objects[0].shape == "moon" else scene for scene in wanted]
        return torch.from_numpy(scenes.render(wanted, np.random.default_rng(0), 32))

    monkeypatch.setattr(rti.Backbone, "forward", paint)
    [result] = evaluate_scenes(backbone, **QUICK | {"images": 56}, guidance=1.0)
    assert result.score.tasks == {"colors": pytest.approx(48 / 56)}  # all but the moons
    assert result.score.overall == pytest.approx(48 / 56)


# The command.


def run(capsys, *arguments):
    """Exit code, standard output and standard error of `rti eval scenes ARGUMENTS`."""
    with pytest.raises(SystemExit) as stop:
        main(["eval", "scenes", *map(str, arguments)])
    captured = capsys.readouterr()
    return stop.value.code, captured.out, captured.err


def run_json(capsys, *arguments):
    code, out, err = run(capsys, *arguments, "--json")
    assert code == 0, err
    return json.loads(out.strip().splitlines()[-1])


SMALL = ("--images", 12, "--steps", 1)


def test_the_line_has_what_the_contract_says(capsys, adapter):
    values = run_json(capsys, adapter, "--budget", 16, *SMALL, "--seed", 5)
    assert list(values["tasks"]) == list(scenes.TASKS)
    assert list(values["task_intervals"]) == list(scenes.TASKS)
    assert values["overall"] == pytest.approx(np.mean(list(values["tasks"].values())))
    low, high = values["interval"]
    assert 0 <= low <= values["overall"] <= high <= 1
    expected = dict(budget=16, images=12, seed=5, steps=1, guidance=2.0, split="train", model=str(adapter))
    assert {key: values[key] for key in expected} == expected
    assert values["seconds"] > 0
    assert len(values["rows"]) == 1
    assert "difference_to_dense" not in values


def test_several_budgets_are_rows_and_the_first_is_on_top(capsys, release, adapter):
    arguments = (release, "--adapter", adapter, "--budget", "16,dense,50%", *SMALL, "--guidance", 1.5)
    values = run_json(capsys, *arguments, "--held-out")
    assert [row["budget"] for row in values["rows"]] == [16, "dense", 32]
    assert ["difference_to_dense" in row for row in values["rows"]] == [True, False, True]
    difference = values["rows"][0]["difference_to_dense"]
    assert (difference["overall"], difference["interval"]) == (0, None)  # a model that learned nothing is never right
    assert list(difference["tasks"]) == list(scenes.TASKS)
    assert {key: values[key] for key in values["rows"][0]} == values["rows"][0]
    assert (values["split"], values["guidance"]) == ("held-out", 1.5)
    code, out, err = run(capsys, *arguments)
    assert code == 0
    for text in ("16", "dense", "32", "single", "counting", "Overall minus dense"):
        assert text in out
    assert "36/36" in err  # the bar counts pictures, all budgets together


def test_the_default_budgets_are_dense_and_with_an_adapter_a_quarter(capsys, release, adapter):
    assert [row["budget"] for row in run_json(capsys, release, *SMALL)["rows"]] == ["dense"]
    assert [row["budget"] for row in run_json(capsys, adapter, *SMALL)["rows"]] == ["dense", 16]


def test_pictures_and_verdicts_are_written(capsys, release, painter, tmp_path, monkeypatch):
    monkeypatch.setattr(rti.Pipeline, "text_encoder", property(lambda self: spell))
    monkeypatch.setattr(rti.Backbone, "forward", painter.paint(wrong=["colors"]))
    values = run_json(
        capsys, release, "--images", 18, "--seed", 3, "--steps", 1, "--guidance", 1, "-o", tmp_path / "new"
    )
    assert sorted(path.name for path in (tmp_path / "new").iterdir()) == ["dense.png", "results.json"]
    results = json.loads((tmp_path / "new" / "results.json").read_text())
    assert {key: results[key] for key in values} == values
    pictures = results["pictures"]
    assert [entry["caption"] for entry in pictures] == [scene.caption for scene in scenes.prompts(18, 3)]
    assert [entry["correct"]["dense"] for entry in pictures] == [entry["task"] != "colors" for entry in pictures]
    assert all(bool(entry["reason"]["dense"]) == (entry["task"] == "colors") for entry in pictures)
    with Image.open(tmp_path / "new" / "dense.png") as sheet:
        assert sheet.width > 12 * 128
        colours = {colour for _, colour in sheet.getcolors(sheet.width * sheet.height)}
    assert {(0, 128, 60), (200, 30, 30)} <= colours


def test_rows_drawn_apart_are_put_together_without_drawing_again(capsys, release, adapter, tmp_path, monkeypatch):
    arguments = (release, "--adapter", adapter, "--seed", 5, *SMALL)
    together = run_json(capsys, *arguments, "--budget", "dense,16")
    # Dense has no adapter; more pictures begin with the fewer.
    run(capsys, release, "--seed", 5, "--images", 18, "--steps", 1, "--budget", "dense", "-o", tmp_path / "dense")
    run(capsys, *arguments, "--budget", "16", "-o", tmp_path / "16")
    folders = ("--reuse", tmp_path / "dense", "--reuse", tmp_path / "16")
    drawn = []
    plain = rti.pipeline.sample
    monkeypatch.setattr("rti.pipeline.sample", lambda *given, **named: drawn.append(1) or plain(*given, **named))
    values = run_json(capsys, *arguments, "--budget", "dense,16", *folders, "-o", tmp_path / "both")
    assert not drawn
    for row, expected in zip(values["rows"], together["rows"], strict=True):
        assert row | {"seconds": 0} == expected | {"seconds": 0, "reused": True}
    assert [path.name for path in (tmp_path / "both").iterdir()] == ["results.json"]
    # What was drawn in another way is drawn again, and so are the pictures of other weights.
    changes = {("--seed", 6): "seed is 5 there and 6 here", ("--steps", 2): "steps is 1 there and 2 here"}
    changes |= {("--guidance", 1.5): "guidance", ("--held-out",): "split", ("--images", 24): "18 pictures"}
    for change, said in changes.items():
        drawn.clear()
        _, _, err = run(capsys, *arguments, "--budget", "dense", *change, *folders)
        assert drawn
        assert f"nothing of {tmp_path / 'dense'} was reused" in err
        assert said in err
        assert f"nothing of {tmp_path / '16'} was reused: it has none of these budgets" in err
    for number, different in enumerate(({"seed": 1}, {"noise_scale": 1.5}, {"cfg_interval": (0.5, 1.0)})):
        drawn.clear()
        other = save_scenes_model(tmp_path / f"other{number}", **TEXT | dict(guidance_scale=2.0) | different)
        _, _, err = run(capsys, other, "--seed", 5, *SMALL, "--budget", "dense", "--reuse", tmp_path / "dense")
        assert drawn
        assert "of another model" in err


def test_an_interrupted_evaluation_goes_on_where_it_stopped(capsys, release, adapter, tmp_path, monkeypatch):
    arguments = (release, "--adapter", adapter, "--seed", 5, *SMALL, "--batch", 4, "--budget", "dense,16")
    whole = run_json(capsys, *arguments, "-o", tmp_path / "whole")
    drawn, plain = [], rti.pipeline.sample

    def sample(*given, **named):
        if len(drawn) == 4:
            raise KeyboardInterrupt
        drawn.append(1)
        return plain(*given, **named)

    monkeypatch.setattr("rti.pipeline.sample", sample)
    code, _, _ = run(capsys, *arguments, "-o", tmp_path / "out")
    assert code == 130
    assert len(list((tmp_path / "out" / ".unfinished").iterdir())) == 4
    monkeypatch.setattr("rti.pipeline.sample", lambda *given, **named: drawn.append(1) or plain(*given, **named))
    shutil.copytree(tmp_path / "out", tmp_path / "other")
    run(capsys, *arguments, "--guidance", 1.5, "-o", tmp_path / "other")
    assert len(drawn) == 4 + 6  # in another way: nothing of it is taken
    damaged = sorted((tmp_path / "out" / ".unfinished").iterdir())[0]
    damaged.write_bytes(damaged.read_bytes()[:100])
    values = run_json(capsys, *arguments, "-o", tmp_path / "out")
    assert len(drawn) == 4 + 6 + 3  # the two that were missing, and the damaged one
    assert [row | {"seconds": 0} for row in values["rows"]] == [row | {"seconds": 0} for row in whole["rows"]]
    assert sorted(path.name for path in (tmp_path / "out").iterdir()) == ["16.png", "dense.png", "results.json"]
    for name in ("16.png", "dense.png"):
        assert (tmp_path / "out" / name).read_bytes() == (tmp_path / "whole" / name).read_bytes()


def test_an_adapter_with_another_setting_is_another_model(capsys, release, adapter, tmp_path):
    arguments = (release, "--seed", 5, *SMALL, "--budget", "16")
    run(capsys, *arguments, "--adapter", adapter, "-o", tmp_path / "16")
    other = shutil.copytree(adapter, tmp_path / "other")
    config = json.loads((other / "rti_config.json").read_text())
    (other / "rti_config.json").write_text(json.dumps(config | {"size_prior": config["size_prior"] + 1}))
    row = run_json(capsys, *arguments, "--adapter", adapter, "--reuse", tmp_path / "16")["rows"][0]
    assert row["reused"]
    row = run_json(capsys, *arguments, "--adapter", other, "--reuse", tmp_path / "16")["rows"][0]
    assert "reused" not in row


def test_a_model_merged_for_good_can_be_evaluated(release, adapter):
    pipe = rti.Pipeline.from_pretrained(release, adapter=adapter)
    pipe.elastic.fuse(keep=False)
    assert len(evaluate_scenes(pipe, budgets=[16], images=6, steps=1, progress=False)) == 1


@pytest.mark.parametrize("values", [{"rows": [{}], "pictures": []}, {"rows": []}, [], {"rows": 3, "pictures": 4}])
def test_results_that_are_none_are_refused_before_the_model_is_loaded(capsys, tmp_path, values):
    (tmp_path / "results.json").write_text(json.dumps(values))
    code, _, err = run(capsys, "nowhere", "--reuse", tmp_path)
    assert (code, err.count("\n")) == (2, 1)
    assert "holds no results" in err


BAD_INPUT = {
    "a model that is not there": (("nowhere",), "nowhere"),
    "a model of other classes": ((DATA / "jit-tiny",), "56 classes"),
    "a budget without an adapter": (("RELEASE", "--budget", "16"), "adapter"),
    "a budget above N": (("RELEASE", "--budget", "dense,65"), "65"),
    "a budget in words": (("RELEASE", "--budget", "many"), "many"),
    "too few pictures": (("RELEASE", "--images", "3"), "images"),
    "no steps": (("RELEASE", "--steps", "0"), "steps"),
    "an unknown split": (("RELEASE", "--split", "test"), "held-out"),
    "two splits": (("RELEASE", "--split", "train", "--held-out"), "train"),
    "an unknown dtype": (("RELEASE", "--dtype", "int8"), "int8"),
    "an unknown device": (("RELEASE", "--device", "quantum"), "quantum"),
    "an adapter that is none": (("RELEASE", "--adapter", DATA), "rti_config.json"),
    "an output in the way": (("RELEASE", "--output", DATA / "jit-tiny" / "config.json"), "config.json"),
    "nothing to reuse": (("RELEASE", "--reuse", "elsewhere"), "elsewhere"),
    "no model": ((), "model"),
}


@pytest.mark.parametrize(("arguments", "named"), BAD_INPUT.values(), ids=BAD_INPUT)
def test_bad_input_is_one_line_and_nothing_is_written(capsys, release, tmp_path, monkeypatch, arguments, named):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("rti.pipeline.sample", lambda *_, **__: pytest.fail("it drew before it looked"))
    arguments = [release if argument == "RELEASE" else argument for argument in arguments]
    code, out, err = run(capsys, *(arguments if "--output" in arguments else [*arguments, "--output", "folder"]))
    assert (code, out) == (2, "")
    assert err.startswith("rti: error: ")
    assert err.count("\n") == 1
    assert named.lower() in err.lower()
    assert list(tmp_path.iterdir()) == []


def test_the_help_teaches(capsys):
    code, out, _ = run(capsys, "--help")
    assert code == 0
    for option in ("--budget", "--held-out", "--adapter", "--json", "dense", "95 %"):
        assert option in out
