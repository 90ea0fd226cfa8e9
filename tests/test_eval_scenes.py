"""SceneEval of models: right and wrong painters, batches, budgets, and what the command prints and refuses."""

import json
import shutil
import sys
from types import SimpleNamespace

import numpy as np
import pytest
import torch

import rti
from rti.cli import main
from rti.flow import picture_generator
from rti.images import open_image, to_tensor
from rti.lab import scenes
from rti.lab.evaluation.scenes import evaluate_scenes
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
def pipe():
    return rti.Pipeline(make_backbone("minit2i", **TEXT), spell)


@pytest.fixture(scope="module")
def release(tmp_path_factory):
    """A text-to-image model of the scenes world, in the release's layout, untrained."""
    return save_scenes_model(tmp_path_factory.mktemp("release"), **TEXT | dict(guidance_scale=2.0))


@pytest.fixture(scope="module")
def adapter(release, tmp_path_factory):
    folder = tmp_path_factory.mktemp("adapter")
    randomise_trainable(rti.attach(rti.load_backbone(release), CONFIG)).save_pretrained(folder)
    return folder


def pictures_of(result):
    """(n, 3, size, size) in [-1, 1], of a result with an output."""
    return torch.cat([to_tensor(open_image(result.folder.file(*picture))) for picture in result.folder.pictures])


STEP = 2 / 255 + 1e-6  # of a picture's 256 values, where rounding fell to the other side


# The score.


@pytest.mark.parametrize("split", ["train", "held-out"])
def test_a_model_that_paints_what_is_asked_for_is_all_right(pipe, painter, monkeypatch, split):
    monkeypatch.setattr(rti.Backbone, "forward", painter.paint())
    [result] = evaluate_scenes(pipe, **QUICK, split=split)
    assert result.row["overall"] == 1.0
    assert result.row["tasks"] == dict.fromkeys(scenes.TASKS, 1.0)
    assert result.row["interval"] == pytest.approx((0.824, 1.0), abs=1e-3)  # 18 of 18
    assert [entry.prompt for entry in result.folder.entries] == [one.caption for one in scenes.prompts(18, 3, split)]
    assert "difference_to_dense" not in result.row


@pytest.mark.parametrize("wrong", [scenes.TASKS, *([task] for task in scenes.TASKS)])
def test_a_model_that_cannot_do_some_tasks_is_wrong_in_those_alone(pipe, painter, monkeypatch, wrong):
    monkeypatch.setattr(rti.Backbone, "forward", painter.paint(wrong=wrong))
    [result] = evaluate_scenes(pipe, **QUICK)
    assert result.row["tasks"] == {task: float(task not in wrong) for task in scenes.TASKS}
    assert result.row["overall"] == pytest.approx(1 - len(wrong) / 6)


def test_a_model_that_paints_another_prompts_picture_is_wrong(pipe, monkeypatch):
    prompts = scenes.prompts(18, 3)
    painter = Painter(prompts)
    shifted = {scene.caption: painter.pictures[prompts[i - 5].caption] for i, scene in enumerate(prompts)}
    painter.pictures = shifted
    monkeypatch.setattr(rti.Backbone, "forward", painter.paint())
    [result] = evaluate_scenes(pipe, **QUICK)
    assert result.row["overall"] < 0.3


def test_a_point_lies_in_its_interval(pipe, monkeypatch):
    """The fourth picture of every task is empty, which no task can do without."""
    prompts = scenes.prompts(60, 3)
    painter = Painter(prompts)
    for scene in prompts[18:24]:
        painter.pictures[scene.caption] = torch.zeros(3, 32, 32)
    monkeypatch.setattr(rti.Backbone, "forward", painter.paint())
    [result] = evaluate_scenes(pipe, **QUICK | dict(images=60))
    low, high = result.row["interval"]
    assert 0.5 < low < result.row["overall"] < high < 1.0
    for task, (low, high) in result.row["task_intervals"].items():
        assert 0 < low < result.row["tasks"][task] < high <= 1


# Prompts, noise and batches.


def test_the_batch_never_changes_a_picture(adapter, tmp_path):
    pipe = rti.Pipeline.from_pretrained(adapter)
    options = QUICK | dict(images=7, budgets=[8])
    [together] = evaluate_scenes(pipe, **options, output=tmp_path / "together")
    for batch in (1, 3):
        [apart] = evaluate_scenes(pipe, **options, batch=batch, output=tmp_path / str(batch))
        torch.testing.assert_close(pictures_of(apart), pictures_of(together), atol=STEP, rtol=0)
        assert apart.score.pictures == together.score.pictures


def test_pictures_are_those_of_the_pipeline_fewer_are_the_first_of_more_and_another_seed_gives_others(
    release, tmp_path
):
    pipe = rti.Pipeline.from_pretrained(release)
    [result] = evaluate_scenes(pipe, **QUICK, guidance=1.5, output=tmp_path / "a")
    expected = pipe(
        result.folder.entries[4].prompt,
        generator=picture_generator(3, 4),
        num_inference_steps=2,
        guidance_scale=1.5,
        output_type="pt",
        progress=False,
    ).images
    pictures = pictures_of(result)
    torch.testing.assert_close(pictures[4:5], 2 * expected - 1, atol=STEP, rtol=0)
    [fewer] = evaluate_scenes(pipe, **QUICK | dict(images=6), guidance=1.5, output=tmp_path / "b")
    torch.testing.assert_close(pictures_of(fewer), pictures[:6], atol=STEP, rtol=0)
    assert fewer.folder.entries == result.folder.entries[:6]
    [other] = evaluate_scenes(pipe, **QUICK | dict(seed=4), guidance=1.5, output=tmp_path / "c")
    assert other.folder.entries != result.folder.entries
    assert (pictures_of(other) - pictures).abs().mean() > 0.05


def test_no_two_pictures_share_their_noise():
    """Not within a seed, and not between the seeds next to each other."""
    draws = [torch.randn(2, generator=picture_generator(seed, index)) for seed in range(3) for index in range(40)]
    assert len({tuple(draw.tolist()) for draw in draws}) == 120


# Budgets.


def test_budgets_share_prompts_and_noise_and_are_compared_with_dense_in_pairs(pipe, painter, monkeypatch):
    pipe = rti.Pipeline(rti.attach(pipe.backbone, CONFIG), spell)
    seen = []
    elastic = painter.paint(wrong=["position"])
    monkeypatch.setattr(rti.Backbone, "forward", painter.paint(wrong=["counting"]))
    monkeypatch.setattr(
        rti.ElasticModel,
        "forward",
        lambda self, x, *args, **kw: seen.append((x, self.fused)) or elastic(self, x, *args, **kw),
    )
    results = evaluate_scenes(pipe, [16, None, 0.5, 0.25], **QUICK, batch=18)
    assert [result.name for result in results] == [16, "dense", 32]  # one given in two ways is drawn once
    assert [call.budget for call in painter.calls] == [16, 16, None, None, 32, 32]  # as asked for, two steps each
    assert torch.equal(seen[0][0], seen[2][0])
    assert all(merged for _, merged in seen)  # for speed
    dense = results[1]
    assert dense.row["tasks"]["counting"] == 0.0
    assert "difference_to_dense" not in dense.row
    for result in (results[0], results[2]):
        assert result.folder.entries == dense.folder.entries
        difference = result.row["difference_to_dense"]
        assert difference["tasks"] == dict.fromkeys(scenes.TASKS, 0.0) | {"position": -1.0, "counting": 1.0}
        assert difference["overall"] == 0.0
        assert difference["interval"] is None  # within a task no two pictures differ
    assert "difference_to_dense" not in evaluate_scenes(pipe, [16], **QUICK)[0].row


def test_dense_is_the_frozen_backbone_without_the_adapter(release, adapter, tmp_path):
    [plain] = evaluate_scenes(rti.Pipeline.from_pretrained(release), **QUICK, output=tmp_path / "a")
    full, dense = evaluate_scenes(rti.Pipeline.from_pretrained(adapter), [64, None], **QUICK, output=tmp_path / "b")
    torch.testing.assert_close(pictures_of(dense), pictures_of(plain), atol=STEP, rtol=0)
    # Every patch a region, but the LoRA at work.
    assert (pictures_of(full) - pictures_of(plain)).abs().mean() > 1e-3


@pytest.mark.parametrize("merged", [False, True])
def test_a_model_is_left_as_it_was(adapter, merged):
    pipe = rti.Pipeline.from_pretrained(adapter, fuse=merged)
    before = snapshot(pipe.model)
    evaluate_scenes(pipe, [8, None], **QUICK | dict(images=6))
    assert pipe.elastic.fused == merged
    assert_same_state(pipe.model, before)


def test_what_cannot_be_evaluated_is_refused_before_the_first_picture(pipe, monkeypatch):
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
            evaluate_scenes(pipe, **QUICK | change)
    with refused("100", "64"):
        evaluate_scenes(rti.Pipeline(rti.attach(pipe.backbone, CONFIG), spell), [None, 100], **QUICK)
    with refused("text encoder"):
        evaluate_scenes(rti.Pipeline(make_backbone("minit2i", **TEXT)), **QUICK)
    with refused("56 classes", "10"):
        evaluate_scenes(rti.Pipeline(make_backbone("jit")), **QUICK)
    with refused("32 x 64"):
        evaluate_scenes(rti.Pipeline(make_backbone("minit2i", **TEXT, image_size=[32, 64]), spell), **QUICK)


def test_without_scipy_the_error_says_what_to_install_before_the_first_picture(pipe, monkeypatch):
    monkeypatch.setattr(rti.Backbone, "forward", lambda *_: pytest.fail("it drew before it looked"))
    monkeypatch.setitem(sys.modules, "scipy", None)
    with refused("scipy", "region-tokens[eval]"):
        evaluate_scenes(pipe, **QUICK)


def test_a_class_conditional_model_draws_the_classes(monkeypatch):
    backbone = make_backbone("jit", num_classes=56)

    def paint(_, x, t, condition, budget=None, estimate=None):
        wanted = [scenes.class_scene(int(label)) for label in condition.labels]
        wanted = [scenes.class_scene(0) if scene.objects[0].shape == "moon" else scene for scene in wanted]
        return torch.from_numpy(scenes.render(wanted, np.random.default_rng(0), 32))

    monkeypatch.setattr(rti.Backbone, "forward", paint)
    [result] = evaluate_scenes(rti.Pipeline(backbone), **QUICK | {"images": 56}, guidance=1.0)
    assert result.row["tasks"] == {"colors": pytest.approx(48 / 56)}  # all but the moons
    assert result.row["overall"] == pytest.approx(48 / 56)


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
    values = run_json(capsys, *arguments, "--split", "held-out")
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
    assert all(f"{title}: 100%" in err for title in ("R = 16", "dense", "R = 32"))


def test_the_default_budgets_are_dense_and_with_an_adapter_a_quarter(capsys, release, adapter):
    assert [row["budget"] for row in run_json(capsys, release, *SMALL)["rows"]] == ["dense"]
    assert [row["budget"] for row in run_json(capsys, adapter, *SMALL)["rows"]] == ["dense", 16]


def test_pictures_and_verdicts_are_written(capsys, release, painter, tmp_path, monkeypatch):
    monkeypatch.setattr(rti.Pipeline, "text_encoder", property(lambda self: spell))
    monkeypatch.setattr(rti.Backbone, "forward", painter.paint(wrong=["colors"]))
    values = run_json(
        capsys, release, "--images", 18, "--seed", 3, "--steps", 1, "--guidance", 1, "-o", tmp_path / "new"
    )
    assert sorted(path.name for path in (tmp_path / "new").iterdir()) == ["dense", "results.json"]
    results = json.loads((tmp_path / "new" / "results.json").read_text())
    assert {key: results[key] for key in values} == values
    pictures = results["pictures"]
    assert [entry["caption"] for entry in pictures] == [scene.caption for scene in scenes.prompts(18, 3)]
    assert [entry["correct"]["dense"] for entry in pictures] == [entry["task"] != "colors" for entry in pictures]
    assert all(bool(entry["reason"]["dense"]) == (entry["task"] == "colors") for entry in pictures)


@pytest.fixture
def drawn(monkeypatch):
    """A list with an entry for every batch that is drawn."""
    plain, batches = rti.pipeline.sample, []
    monkeypatch.setattr("rti.pipeline.sample", lambda *given, **named: batches.append(1) or plain(*given, **named))
    return batches


def alike(rows):
    return [row | {"seconds": 0} for row in rows]


def test_budgets_drawn_apart_are_put_together_without_drawing_again(capsys, release, adapter, tmp_path, drawn):
    arguments = (release, "--adapter", adapter, "--seed", 5, *SMALL)
    together = run_json(capsys, *arguments, "--budget", "dense,16")
    run(capsys, *arguments, "--budget", "dense", "-o", tmp_path / "out")
    with pytest.raises(SystemExit):  # the same folder, by rti generate
        generate = ("generate", release, "--adapter", adapter, "--prompts", "scenes", "--count", 12, "--seed", 5)
        main([*map(str, generate), "--steps", "1", "--budget", "16", "-o", str(tmp_path / "out" / "16")])
    drawn.clear()
    values = run_json(capsys, *arguments, "--budget", "dense,16", "-o", tmp_path / "out")
    assert not drawn
    assert alike(values["rows"]) == alike(together["rows"])
    assert all(row["seconds"] > 0 for row in values["rows"])
    # What was drawn in another way, or with other weights, is no part of it.
    changes = {("--seed", 6): "seed 5 there, 6 now", ("--steps", 2): "steps 1 there, 2 now"}
    changes |= {
        ("--guidance", 1.5): "guidance",
        ("--split", "held-out"): "prompts.sha256",
        ("--images", 24): "prompts.count",
    }
    for change, said in changes.items():
        code, _, err = run(capsys, *arguments, "--budget", "dense", *change, "-o", tmp_path / "out")
        assert (code, said in err, err.count("\n")) == (2, True, 1)
    other = shutil.copytree(adapter, tmp_path / "other")
    config = json.loads((other / "rti_config.json").read_text())
    (other / "rti_config.json").write_text(json.dumps(config | {"size_prior": config["size_prior"] + 1}))
    arguments = (release, "--adapter", other, *arguments[3:])
    code, _, err = run(capsys, *arguments, "--budget", "16", "-o", tmp_path / "out")
    assert (code, "reduction.size_prior" in err) == (2, True)
    assert not drawn


@pytest.mark.parametrize(
    ("different", "said"),
    [
        ({"seed": 1}, "weights"),
        ({"noise_scale": 1.5}, "noise_scale 1.0 there, 1.5 now"),
        ({"cfg_interval": (0.5, 1.0)}, "cfg_interval"),
    ],
)
def test_another_model_of_the_same_name_is_refused(capsys, tmp_path, different, said):
    model = tmp_path / "model"
    save_scenes_model(model, **TEXT)
    assert run(capsys, model, *SMALL, "-o", tmp_path / "out")[0] == 0
    shutil.rmtree(model)
    save_scenes_model(model, **TEXT | different)
    code, _, err = run(capsys, model, *SMALL, "-o", tmp_path / "out")
    assert (code, said in err) == (2, True)


def test_an_interrupted_evaluation_goes_on_where_it_stopped(capsys, release, adapter, tmp_path, drawn, monkeypatch):
    arguments = (release, "--adapter", adapter, "--seed", 5, *SMALL, "--batch", 4, "--budget", "dense,16")
    whole = run_json(capsys, *arguments, "-o", tmp_path / "whole")
    drawn.clear()
    counted = rti.pipeline.sample

    def sample(*given, **named):
        if len(drawn) == 4:
            raise KeyboardInterrupt
        return counted(*given, **named)

    with monkeypatch.context() as patch:
        patch.setattr("rti.pipeline.sample", sample)
        assert run(capsys, *arguments, "-o", tmp_path / "out")[0] == 130
    damaged = tmp_path / "out" / "dense" / "00002" / "samples" / "0000.png"
    damaged.write_bytes(damaged.read_bytes()[:100])
    values = run_json(capsys, *arguments, "-o", tmp_path / "out")
    assert len(drawn) == 4 + 3  # the two that were missing, and the damaged one
    assert alike(values["rows"]) == alike(whole["rows"])
    pictures = sorted(path.relative_to(tmp_path / "whole") for path in (tmp_path / "whole").glob("*/*/samples/*.png"))
    assert len(pictures) == 24
    for name in pictures:
        assert (tmp_path / "out" / name).read_bytes() == (tmp_path / "whole" / name).read_bytes()


def test_what_is_gone_says_what_takes_its_place(capsys, release, tmp_path):
    code, _, err = run(capsys, release, *SMALL, "--reuse", tmp_path)
    assert code == 0
    assert "warning: --reuse is gone: the same --output goes on" in err


def test_a_model_merged_for_good_can_be_evaluated(release, adapter):
    pipe = rti.Pipeline.from_pretrained(release, adapter=adapter)
    pipe.elastic.fuse(keep=False)
    assert len(evaluate_scenes(pipe, [16], images=6, steps=1, progress=False)) == 1


BAD_INPUT = {
    "a model that is not there": (("nowhere",), "nowhere"),
    "a model of other classes": ((DATA / "jit-tiny",), "56 classes"),
    "a budget without an adapter": (("RELEASE", "--budget", "16"), "adapter"),
    "a budget above N": (("RELEASE", "--budget", "dense,65"), "65"),
    "a budget in words": (("RELEASE", "--budget", "many"), "many"),
    "too few pictures": (("RELEASE", "--images", "3"), "images"),
    "no steps": (("RELEASE", "--steps", "0"), "steps"),
    "an unknown split": (("RELEASE", "--split", "test"), "held-out"),
    "an unknown dtype": (("RELEASE", "--dtype", "int8"), "int8"),
    "an unknown device": (("RELEASE", "--device", "quantum"), "quantum"),
    "an adapter that is none": (("RELEASE", "--adapter", DATA), "rti_config.json"),
    "an output in the way": (("RELEASE", "--output", DATA / "jit-tiny" / "config.json"), "config.json"),
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
    for option in ("--budget", "--split", "--adapter", "--json", "dense", "95 %"):
        assert option in out
