"""The studio behind the page: the pipeline's pictures, previews, times, stops, one sentence for what is refused."""

import json
import threading
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
import torch

from rti import shipped
from rti.images import draw_regions, enlarge
from rti.pipeline import Pipeline
from rti.web.studio import LONGEST_PROMPT, Request, Stopped, Studio
from rti.web.study import read_results, study_curves
from test_probes import make_pipe
from test_shipped import made as made  # the fixture
from tiny import make_backbone, refused, study_values

PROMPT = "a red star left of a blue circle"


@pytest.fixture(scope="module")
def studio(made):
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(shipped, "MODELS", made)
        return Studio(Pipeline.from_pretrained("scenes", fuse=False))


def frames_of(studio: Studio, request: Request) -> list:
    return list(studio.draw(request, threading.Event()))


def test_both_pictures_are_those_of_the_pipeline_from_the_same_noise(studio):
    last = frames_of(studio, Request(PROMPT, seed=5, steps=3, guidance=2.0, budget=10))[-1]
    settings = dict(num_inference_steps=3, guidance_scale=2.0, progress=False)
    dense = studio.pipe(PROMPT, dense=True, generator=torch.Generator().manual_seed(5), **settings).images[0]
    noise = torch.Generator().manual_seed(5)
    drawn = studio.pipe(PROMPT, budget=10, return_regions=True, generator=noise, **settings)
    assert np.array_equal(last.dense, enlarge(dense, 512))
    assert np.array_equal(last.region, enlarge(drawn.images[0], 512))
    assert last.overlay.size == last.region.size
    assert not np.array_equal(last.overlay, last.region)
    assert last.speedup == last.dense_seconds / last.region_seconds
    assert last.message.startswith("Done, with 10 regions: ")
    assert f"{last.speedup:.2f} times as fast" in last.message


def test_the_overlay_shows_the_regions_of_the_last_step(studio):
    for steps in (1, 2):
        last = frames_of(studio, Request(PROMPT, seed=5, steps=steps, budget=10))[-1]
        noise = torch.Generator().manual_seed(5)
        settings = dict(num_inference_steps=steps, guidance_scale=1.0, generator=noise, progress=False)
        drawn = studio.pipe(PROMPT, budget=10, return_regions=True, **settings)
        expected = draw_regions(drawn.images[0], drawn.regions[0], studio.backbone.grid)
        assert np.array_equal(last.overlay, expected)
    assert "regions" not in vars(studio.elastic.reduction)


def test_previews_come_before_the_end_and_name_their_step(studio):
    frames = frames_of(studio, Request(PROMPT, steps=4, budget=10))
    assert frames[0].message == "Drawing dense: step 1 of 4."
    assert frames[0].region is None
    assert any(frame.message.startswith("Drawing 10 regions: step 1") for frame in frames)
    assert [frame.speedup is None for frame in frames] == [True] * (len(frames) - 1) + [False]


def test_times_are_taken_when_the_device_is_done(studio, monkeypatch):
    asked = []
    monkeypatch.setattr("rti.web.studio.clock", lambda device: asked.append(device) or len(asked) ** 2)
    last = frames_of(studio, Request(PROMPT, steps=2, budget=10))[-1]
    assert asked == [studio.backbone.device] * 6  # before the first step and after each, twice
    assert (last.dense_seconds, last.region_seconds) == (3**2 - 1**2, 6**2 - 4**2)


def test_a_run_that_is_stopped_ends_after_its_step_and_the_next_one_runs(studio):
    stop, seen = threading.Event(), []
    with pytest.raises(Stopped):
        for frame in studio.draw(Request(PROMPT, steps=100, budget=10), stop):
            seen.append(frame)
            stop.set()
    assert len(seen) < 10
    assert frames_of(studio, Request(PROMPT, steps=1, budget=10))[-1].region is not None


def test_a_visitor_who_leaves_stops_the_run(studio):
    frames, threads = studio.draw(Request(PROMPT, steps=100, budget=10), threading.Event()), threading.active_count()
    next(frames)
    frames.close()
    assert threading.active_count() == threads


def test_a_stop_before_the_turn_begins_draws_nothing(studio):
    stop = threading.Event()
    stop.set()
    with pytest.raises(Stopped):
        list(studio.draw(Request(PROMPT, budget=10), stop))


def test_two_runs_at_once_draw_one_after_the_other(studio):
    """As when a run that was stopped is still in its step: the model is dense or not for one of them at a time."""
    request = Request(PROMPT, seed=5, steps=3, budget=10)
    alone = frames_of(studio, request)[-1]
    with ThreadPoolExecutor(2) as pool:
        for frames in pool.map(lambda _: frames_of(studio, request), range(2)):
            assert np.array_equal(frames[-1].dense, alone.dense)
            assert np.array_equal(frames[-1].region, alone.region)


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        ({"subject": " "}, "prompt"),
        ({"subject": None}, "prompt"),
        ({"subject": "a" * (LONGEST_PROMPT + 1)}, "1,001 characters"),
        ({"seed": -1}, "seed"),
        ({"seed": None}, "seed"),
        ({"steps": 0}, "steps"),
        ({"steps": 1.5}, "steps"),
        ({"budget": 65}, "64"),
        ({"guidance": None}, "guidance"),
        ({"guidance": float("nan")}, "guidance"),
    ],
)
def test_what_cannot_be_drawn_is_refused_in_a_sentence(studio, changes, named):
    with refused(named):
        studio.draw(Request(**{"subject": PROMPT, "budget": 10, **changes}), threading.Event()).__next__()


def test_unknown_words_are_told_to_the_visitor(studio):
    with refused("zebra"):
        frames_of(studio, Request("a zebra", steps=1, budget=10))
    assert frames_of(studio, Request(PROMPT, steps=1, budget=10))


def test_a_model_of_labels_takes_labels():
    studio = Studio(make_pipe("jit", cuts="gaps"))
    assert frames_of(studio, Request(3, steps=1, budget=8))[-1].speedup
    assert studio.text_tokens is None
    for label in (10, -1, "cat", None):
        with refused("0 to 9"):
            frames_of(studio, Request(label, steps=1, budget=8))


def test_text_can_be_turned_down_where_the_adapter_allows_it():
    pipe = make_pipe("minit2i", cuts="gaps", text_regions=True)
    studio = Studio(pipe)
    assert studio.text_tokens == 6
    whole, short = (
        frames_of(studio, Request("a cat", steps=1, budget=8, text_budget=text))[-1].region for text in (None, 2)
    )
    assert not np.array_equal(whole, short)


def test_a_model_without_an_adapter_is_refused():
    with refused("adapter"):
        Studio(Pipeline(make_backbone("jit")))


# The study.


def test_the_study_shows_what_is_there(tmp_path):
    assert read_results(None) is None
    for missing in (tmp_path, tmp_path / "nowhere"):
        with refused("results.json", "rti study"):
            read_results(missing)
    pyplot = pytest.importorskip("matplotlib.pyplot")
    (tmp_path / "results.json").write_text(json.dumps(study_values()))
    curves = dict(study_curves(read_results(tmp_path)))
    assert set(curves) == {"quality against budget", "quality against speed"}
    axes = curves["quality against budget"].axes[0]
    lines = [line.get_xydata().tolist() for line in axes.lines]
    rounded = [[[x, round(y, 6)] for x, y in line] for line in lines]
    assert [[32.0, -20.0], [64.0, -5.0]] in rounded  # ours, in points minus dense
    assert [[32.0, -35.0], [64.0, -15.0]] in rounded  # the other
    pyplot.close("all")
    for bad in ("{", "[]", '{"rows": 3, "dense": []}'):
        (tmp_path / "results.json").write_text(bad)
        with refused("results.json", "--report"):
            read_results(tmp_path)
