"""Presets in a pipeline, and `rti tune`: the search, what it costs, the run in its folder."""

import json
from dataclasses import replace

import numpy as np
import pytest
import torch

import rti
from rti.dials import Dials, Preset, read_presets, within, write_presets
from rti.lab.pictures.folder import Entry
from rti.lab.tuning import tuning
from rti.lab.tuning.costs import Costs, Ranges
from rti.lab.tuning.search import Trial, frontier, halve, rungs, work
from rti.lab.tuning.tuning import Tuning
from test_cli import run, run_json
from tiny import CORE, make_backbone, randomise_trainable, refused, save_jit

FAST = Dials(3, "multistep", guidance_interval=(0.0, 0.8), budget=16)
QUICK = dict(output_type="pt", progress=False)


@pytest.fixture(scope="module")
def pipe():
    """A class-conditional model with an adapter that does something."""
    model = rti.attach(make_backbone("jit"), rti.RegionConfig(core=CORE, lora_rank=2, lora_alpha=2))
    randomise_trainable(model)
    return rti.Pipeline(model.eval())


def draw(pipe, **how):
    return pipe(label=[1, 2], generator=[torch.Generator().manual_seed(s) for s in (0, 1)], **QUICK, **how).images


def test_a_preset_is_its_dials(pipe, monkeypatch):
    monkeypatch.setattr(pipe, "_presets", {"fast": Preset(FAST)})
    assert torch.equal(draw(pipe, preset="fast"), draw(pipe, **FAST.given()))
    assert torch.equal(draw(pipe, preset="fast", budget=32), draw(pipe, **FAST.given() | {"budget": 32}))
    dense = {name: value for name, value in FAST.given().items() if name != "budget"}
    assert torch.equal(draw(pipe, preset="fast", dense=True), draw(pipe, **dense))
    with refused("preset", "fats", "fast"):
        draw(pipe, preset="fats")
    with refused("one of them"):
        draw(pipe, preset="fast", seconds=1)
    with refused("frozen backbone"):
        draw(pipe, preset="fast", dense=True, budget=16)


def test_the_usual_presets_fit_the_model(pipe):
    assert {preset.dials.text_budget for preset in pipe.presets.values()} == {None}  # no text regions
    assert draw(pipe, preset="fast").shape == (2, 3, 32, 32)
    alone = rti.Pipeline(make_backbone("jit"))
    assert {preset.dials.budget for preset in alone.presets.values()} == {None}
    assert draw(alone, preset="fast").shape == (2, 3, 32, 32)


def test_seconds_choose_the_slowest_preset_that_fits_this_machine(pipe, monkeypatch):
    slow = replace(FAST, num_inference_steps=4)
    presets = {"slow": Preset(slow, seconds=2.0, pace=0.1), "fast": Preset(FAST, seconds=1.0, pace=0.1)}
    monkeypatch.setattr(pipe, "_presets", presets)
    monkeypatch.setattr(pipe, "_pace", 0.1)
    assert torch.equal(draw(pipe, seconds=2.5), draw(pipe, preset="slow"))
    monkeypatch.setattr(pipe, "_pace", 0.2)  # a machine of half the speed
    assert torch.equal(draw(pipe, seconds=2.5), draw(pipe, preset="fast"))
    with refused("fastest takes about 2"):
        draw(pipe, seconds=1.5)
    with refused("seconds"):
        draw(pipe, seconds=-1)
    monkeypatch.setattr(pipe, "_presets", None)
    with refused("rti tune"):
        draw(pipe, seconds=1)


def test_the_pace_of_a_machine_is_measured_once(pipe, monkeypatch):
    monkeypatch.setattr(pipe, "_presets", {"fast": Preset(FAST, seconds=1e-9, pace=1.0)})
    monkeypatch.setattr(pipe, "_pace", None)
    draw(pipe, seconds=60)
    before = pipe._pace
    assert before > 0
    draw(pipe, seconds=60)
    assert pipe._pace == before


def test_a_file_of_presets(tmp_path):
    path = tmp_path / "presets.json"
    presets = {"fast": Preset(FAST, 1.0, 0.5, {"score": 3.0}), "slow": Preset(Dials(9), 2.0, 0.5, {"score": 4.0})}
    write_presets(path, {"fast": presets["fast"]})
    write_presets(path, {"slow": presets["slow"]})  # beside the other
    assert read_presets(path) == presets
    assert list(read_presets(path)) == ["slow", "fast"]
    stored = json.loads(path.read_text())
    stored["presets"]["fast"]["dials"]["stepps"] = 3
    path.write_text(json.dumps(stored))
    with refused("fast", "num_inference_steps"):
        read_presets(path)
    for wrong in ({"solver": 3}, {"guidance_interval": 0.5}, {"shift": "wide"}, {"num_inference_steps": 2.5}, [1]):
        stored["presets"] = {"fast": {"dials": wrong}}
        path.write_text(json.dumps(stored))
        with refused("fast", "presets.json"):
            read_presets(path)
    path.write_text("{}")
    with refused("rti tune"):
        read_presets(path)
    with refused("rti tune"):
        within({"fast": Preset(FAST)}, 1.0, lambda: 1.0)


def test_an_adapter_brings_its_presets(tmp_path):
    model, adapter, other = save_jit(tmp_path / "model", config=True), tmp_path / "adapter", tmp_path / "other.json"
    rti.attach(rti.load_backbone(model), rti.RegionConfig(core=CORE)).save_pretrained(adapter)
    write_presets(adapter / "presets.json", {"mine": Preset(FAST, 1.0, 0.5)})
    assert list(rti.Pipeline.from_pretrained(adapter).presets) == ["careful", "balanced", "fast", "mine"]
    assert "mine" in rti.Pipeline.from_pretrained(model, adapter=adapter).presets
    write_presets(other, {"yours": Preset(FAST, 1.0, 0.5)})
    pipe = rti.Pipeline.from_pretrained(adapter, presets=other)
    assert "yours" in pipe.presets
    assert "mine" not in pipe.presets
    assert pipe.adapter_folder == adapter


RANGES = Ranges(("multistep", "euler"), (1.0, 2.0), (None, 32), (None, 3), (None, (0.0, 0.5)))


def known_costs(pipe, ranges=RANGES, scale=2.0, dense=1.0, reduced=0.5):
    """Costs of which every guided pass takes so long, and an unguided one half of it."""
    costs = Costs(pipe, ranges, scale)
    for one in ranges.settings():
        seconds = dense if one.budget is None else reduced
        costs.passes |= {(one.budget, one.text_budget, "guided"): seconds}
        costs.passes |= {(one.budget, one.text_budget, "unguided"): seconds / 2}
    return costs


def test_candidates_spend_the_time(pipe):
    costs = known_costs(pipe)
    found = costs.candidates(10.2)
    assert len(found) == 2 * 2 * (1 + 2) * 2  # dense has no text budget
    for dials, seconds in found.items():
        assert seconds == costs.seconds(dials) <= 10.2
        assert costs.seconds(replace(dials, num_inference_steps=dials.num_inference_steps + 1)) > 10.2
    assert max(one.num_inference_steps for one in found if one.budget is None and not one.guidance_interval) <= 11
    assert not costs.candidates(0.1)  # too few steps to be worth it
    assert costs.least() == min(costs.seconds(replace(one, num_inference_steps=4)) for one in RANGES.settings())


def test_settings_that_come_to_the_same_are_tried_once(pipe):
    spans = Ranges(("euler",), (1.0,), (None,), (None,), ((0.0, 0.8), (0.0, 0.81), (0.0, 0.2)))
    assert len(known_costs(pipe, spans).candidates(10.0)) == 2
    unguided = known_costs(pipe, spans, scale=1.0)
    assert len(unguided.candidates(10.0)) == 1


def test_cost_counts_guided_and_unguided_passes(pipe):
    costs = Costs(pipe, RANGES, scale=2.0)
    costs.before = 0.25
    costs.passes = {(16, None, "guided"): 10.0, (16, None, "unguided"): 1.0, (None, None, "guided"): 100.0}
    assert pipe.backbone.flow.guidance_interval == (0.1, 1.0)
    assert costs.seconds(Dials(10, "euler", budget=16)) == 0.25 + 8 * 10 + 2 * 1  # t = 0 and 0.1 are outside
    assert costs.seconds(Dials(10, "euler", budget=16, guidance_interval=(0.0, 0.45))) == 0.25 + 5 * 10 + 5 * 1
    assert costs.seconds(Dials(5, "heun", guidance_interval=(0.0, 1.0))) == 0.25 + 9 * 100.0


def test_every_pass_is_measured(pipe):
    ranges = Ranges(("euler",), (1.0,), (None, 16), (None,), (None,))
    costs, encoded = Costs(pipe, ranges, 2.0), []
    costs.measure(lambda: encoded.append(1))
    assert set(costs.passes) == {(b, None, kind) for b in (None, 16) for kind in ("guided", "unguided")}
    assert min(costs.passes.values()) > 0
    assert encoded
    assert not pipe.elastic.fused
    alone = Costs(pipe, ranges, 1.0)
    alone.measure(lambda: None)
    assert {kind for _, _, kind in alone.passes} == {"unguided"}


def test_halving_finds_the_best_and_draws_what_it_said():
    noise = np.random.default_rng(0).normal(size=27)
    drawn = []

    def score(trial, count):
        drawn.append((count - len(trial.scores)) * trial.cost)
        trial.scores += [trial.dials.num_inference_steps + noise[at] for at in range(len(trial.scores), count)]

    trials = [Trial(Dials(steps), 1.0) for steps in range(4, 31)]
    every = rungs(27, 27)
    best = halve(trials, every, score)
    assert [trial.dials.num_inference_steps for trial in best] == [30, 29, 28]
    assert all(len(trial.scores) == 27 for trial in best)
    assert every == [3, 9, 27]
    assert sum(drawn) == work([1.0] * 27, every) == 27 * 3 + 9 * 6 + 3 * 18
    assert rungs(5, 1) == [5]
    assert rungs(48, 81, least=8) == [8, 8, 16, 48]


def test_halving_with_one_picture_still_halves():
    def score(trial, count):
        trial.scores = [float(trial.dials.num_inference_steps)] * count

    best = halve([Trial(Dials(steps)) for steps in range(4, 31)], rungs(1, 27), score)
    assert [trial.dials.num_inference_steps for trial in best] == [30, 29, 28]


def test_of_settings_as_good_the_faster_goes_on():
    trials = [Trial(Dials(4), 2.0, scores=[1.0]), Trial(Dials(5), 1.0, scores=[1.0])]
    assert halve(trials, [1], lambda *_: None)[0].dials.num_inference_steps == 5


def test_the_frontier_is_what_nothing_beats():
    points = {(1.0, 1.0), (2.0, 3.0), (3.0, 2.0), (4.0, 4.0), (2.0, 2.5)}
    trials = [Trial(Dials(), timed=seconds, scores=[score, 99.0]) for seconds, score in sorted(points)]
    assert [(one.seconds, one.score(1)) for one in frontier(trials, 1)] == [(4.0, 4.0), (2.0, 3.0), (1.0, 1.0)]


@pytest.fixture
def start(pipe, tmp_path):
    entries = [Entry(index, index % 10) for index in range(6)]
    ranges = Ranges(("multistep",), (1.0,), (None, 16), (None,), (None,))

    def begin(**more):
        run = Tuning(pipe, entries, ranges, tmp_path, 4, **more)
        run.costs.passes = known_costs(pipe, ranges).passes
        run.begin()
        return run

    return begin


@pytest.fixture(autouse=True)
def short(monkeypatch):
    monkeypatch.setattr(tuning, "CAREFUL", Dials(6, "multistep"))
    monkeypatch.setattr(tuning, "TOGETHER", 2)


def test_a_run_writes_presets_and_goes_on(start, tmp_path, monkeypatch):
    first = start()
    found = first.search(6.0, most=9)
    assert {trial.dials.budget for trial in found} == {None, 16}
    assert all(len(trial.scores) == 4 for trial in found)
    first.time(found)
    first.write({"tuned": found[0]}, [tmp_path])
    preset = read_presets(tmp_path / "presets.json")["tuned"]
    assert preset.dials == found[0].dials
    assert preset.measured["pictures"] == 4
    assert preset.seconds == round(found[0].seconds, 5)
    monkeypatch.setattr(Tuning, "draw", lambda *_, **__: pytest.fail("drawn again"))
    again = start()
    assert again.costs.passes == first.costs.passes
    same = again.search(6.0, most=9)
    assert [(one.dials, one.seconds) for one in same] == [(one.dials, one.seconds) for one in found]
    with refused("another seed"):
        start(seed=5)
    with refused("cannot be had"):
        again.search(1e-9, 9)
    (tmp_path / "tried.json").write_text('{"told": {}}')
    with refused("tried.json", "damaged"):
        start()


def test_seconds_of_another_machine_do_not_count(start):
    first = start()
    found = first.search(6.0, most=9)
    first.time(found)
    again = start(batch=2)
    assert {trial.timed for trial in again.trials.values()} == {None}
    assert all(len(again.trials[one.dials].scores) == 4 for one in found)


def test_careful_pictures_are_kept_before_anything_is_tried(start, monkeypatch):
    with pytest.raises(ZeroDivisionError):
        monkeypatch.setattr(Tuning, "score", lambda *_: 1 / 0)
        start().search(6.0, 9)
    monkeypatch.setattr(Tuning, "draw", lambda *_, **__: pytest.fail("drawn again"))
    assert len(start().references) == 4


def test_what_takes_longer_than_its_passes_makes_room(start, monkeypatch):
    """Whole pictures take twice as long as their passes say."""

    def time(self, trials):
        for trial in trials:
            trial.timed = 2 * trial.cost

    monkeypatch.setattr(Tuning, "time", time)
    best = start().best(6.0, most=9)
    assert best.seconds <= 1.05 * 6.0
    with pytest.warns(UserWarning, match="fastest found"):
        start().best(2.1, most=9)


def test_scores_are_of_the_same_noise(start):
    one = start()
    trial = Trial(Dials(6, "multistep"))
    one.score(trial, 4)
    assert min(trial.scores) > 55  # the careful pictures themselves, in half precision
    one.scorer = lambda pictures, entries: [{"score": entry.prompt} for entry in entries]
    trial = Trial(Dials(2, "euler"))
    one.score(trial, 3)
    assert trial.scores == [0.0, 1.0, 2.0]


# The commands.


@pytest.fixture
def stored(tmp_path):
    """A model's folder, and an adapter's for it."""
    model = save_jit(tmp_path / "model", config=True)
    rti.attach(rti.load_backbone(model), rti.RegionConfig(core=CORE)).save_pretrained(tmp_path / "adapter")
    return model, tmp_path / "adapter"


def test_rti_tune_leaves_presets_that_rti_sample_draws_with(capsys, stored, tmp_path):
    model, adapter = stored
    how = ("--adapter", adapter, "--pictures", 2, "--most", 3, "--output", tmp_path / "run", "--budgets", "dense,16")
    found = run_json(capsys, "tune", model, "--seconds", 100, *how)
    tuned = found["presets"]["tuned"]
    assert (tuned["pictures"], tuned["by"]) == (2, "psnr")
    assert tuned["seconds"] > 0
    assert found["frontier"]
    assert (tmp_path / "run" / "frontier.png").is_file()
    assert read_presets(adapter / "presets.json")["tuned"].seconds == tuned["seconds"]
    where = ("--output", tmp_path / "one.png")
    sample = ("sample", "--model", model, "--adapter", adapter, "--labels", "1", "--preset", "tuned")
    drawn = run_json(capsys, *sample, *where)
    budget = tuned["dials"].get("budget", "dense")
    assert [(row["preset"], row["budget"]) for row in drawn["rows"]] == [("tuned", budget)]
    code, _, error = run(capsys, "tune", model, "--seconds", 1, "--db", 3)
    assert code == 2
    assert "one of them" in error


def test_rti_tune_by_decibels_takes_the_fastest_that_are_as_near(capsys, stored, tmp_path):
    model, adapter = stored
    how = ("--adapter", adapter, "--pictures", 2, "--most", 3, "--output", tmp_path / "run", "--budgets", "dense")
    found = run_json(capsys, "tune", model, "--db", 1, *how)
    assert found["presets"]["tuned"]["score"] >= 1
    assert found["presets"]["tuned"]["dials"]["num_inference_steps"] <= 8  # a few are as near as that
    code, _, error = run(capsys, "tune", model, "--db", 99, *how)
    assert code == 2
    assert "as good as that" in error


def test_rti_tune_without_a_goal_finds_several(capsys, stored, tmp_path):
    model, _ = stored
    found = run_json(capsys, "tune", model, "--pictures", 2, "--most", 3, "--output", tmp_path / "run")
    assert {"careful", "balanced"} <= set(found["presets"])
    assert read_presets(tmp_path / "run" / "presets.json").keys() == found["presets"].keys()
    assert not (stored[1] / "presets.json").exists()
    for more, told in ((("--budget", "32"), "no adapter"), (("--by", "clip"), "labels"), (("--loss", "1"), "clip")):
        code, _, error = run(capsys, "tune", model, *more)
        assert code == 2
        assert told in error


def test_rti_sample_refuses_a_preset_beside_a_budget(capsys, stored):
    model, adapter = stored
    base = ("sample", "--model", model, "--adapter", adapter, "--labels", "1")
    for more, told in (
        (("--preset", "fast", "--budget", "16"), "one of them"),
        (("--preset", "fast", "--seconds", "1"), "one of them"),
        (("--preset", "quick"), "careful"),
        (("--seconds", "1"), "rti tune"),
    ):
        code, _, error = run(capsys, *base, *more)
        assert code == 2
        assert told in error
