"""The studio behind the page: the pipeline's pictures, previews, times, stops, one sentence for what is refused."""

import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest
import torch

import rti
from rti import shipped
from rti.images import draw_regions, enlarge
from rti.lab.scenes import encode
from rti.method.reductions.skip import SkipConfig
from rti.pipeline import Pipeline
from rti.web.studio import LONGEST_PROMPT, PROMPTS, Studio
from test_probes import make_pipe
from test_shipped import made as made  # the fixture
from tiny import CORE, make_backbone, randomise_trainable, refused

PROMPT = "a red star left of a blue circle"


@pytest.fixture(scope="module")
def studio(made):
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(shipped, "MODELS", made)
        return Studio(Pipeline.from_pretrained("scenes", fuse=False))


def last_of(studio: Studio, *values, **options):
    return list(studio.draw(*values, **options))[-1]


def test_the_prompts_are_in_the_vocabulary_and_those_of_make_demo():
    makefile = (Path(__file__).parents[1] / "Makefile").read_text()
    for prompt in PROMPTS:
        encode(prompt, 64)
        assert f"'{prompt}'" in makefile


def test_both_pictures_are_those_of_the_pipeline_from_the_same_noise(studio):
    last = last_of(studio, PROMPT, 10, 5, 2.0, 3)
    settings = dict(num_inference_steps=3, guidance_scale=2.0, progress=False)
    dense = studio.pipe(PROMPT, dense=True, generator=torch.Generator().manual_seed(5), **settings).images[0]
    drawn = studio.pipe(PROMPT, budget=10, generator=torch.Generator().manual_seed(5), **settings).images[0]
    assert np.array_equal(last.dense, enlarge(dense, 512))
    assert np.array_equal(last.region, enlarge(drawn, 512))
    assert last.message.startswith("Done, with 10 regions: ")


@pytest.mark.parametrize("steps", [1, 2])
def test_the_overlay_shows_the_regions_of_the_last_step(studio, steps):
    last = last_of(studio, PROMPT, 10, 5, 1.0, steps)
    noise = torch.Generator().manual_seed(5)
    settings = dict(num_inference_steps=steps, guidance_scale=1.0, generator=noise, progress=False)
    drawn = studio.pipe(PROMPT, budget=10, return_regions=True, **settings)
    expected = draw_regions(drawn.images[0], drawn.regions[0], studio.backbone.grid)
    assert np.array_equal(last.overlay, expected)
    assert "regions" not in vars(studio.elastic.reduction)


def test_previews_come_before_the_end_and_name_their_step(studio):
    frames = list(studio.draw(PROMPT, 10, steps=4))
    assert frames[0].message == "Drawing dense: step 1 of 4."
    assert frames[0].region is None
    preview = next(frame for frame in frames if frame.message.startswith("Drawing 10 regions: step 1"))
    assert None not in (preview.dense, preview.region)
    assert ["times as fast" in frame.message for frame in frames] == [False] * (len(frames) - 1) + [True]


def test_times_are_those_of_the_steps_when_the_device_is_done(studio, monkeypatch):
    """The clock is asked before and after each step, and what is shown in between does not count."""
    asked, times = [], iter([0, 1, 5, 8, 9, 10, 12, 20, 23, 30])
    monkeypatch.setattr("rti.web.studio.clock", lambda device: asked.append(device) or next(times))
    message = last_of(studio, PROMPT, 10, steps=2).message
    assert asked == [studio.backbone.device] * 10
    assert "dense 4.00 s, regions 5.00 s, **0.80 times as fast**" in message


def test_a_visitor_who_leaves_stops_the_run_and_the_next_one_runs(studio, monkeypatch):
    head, calls = studio.backbone.head, []
    monkeypatch.setattr(studio.backbone, "head", lambda tokens: calls.append(time.sleep(0.02)) or head(tokens))
    frames = studio.draw(PROMPT, 10, steps=100)
    next(frames)
    frames.close()
    with studio.turn:
        assert 0 < len(calls) < 50
    assert last_of(studio, PROMPT, 10, steps=1).region is not None


def test_two_runs_at_once_draw_one_after_the_other(studio):
    """As when a run that was stopped is still in its step: the model is dense or not for one of them at a time."""
    alone = last_of(studio, PROMPT, 10, steps=3)
    with ThreadPoolExecutor(2) as pool:
        for last in pool.map(lambda _: last_of(studio, PROMPT, 10, steps=3), range(2)):
            assert np.array_equal(last.dense, alone.dense)
            assert np.array_equal(last.region, alone.region)


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        ({"subject": " "}, "prompt"),
        ({"subject": None}, "prompt"),
        ({"subject": "a" * (LONGEST_PROMPT + 1)}, "1,001"),
        ({"seed": -1}, "seed"),
        ({"seed": None}, "seed"),
        ({"steps": 0}, "steps"),
        ({"steps": 1.5}, "steps"),
        ({"budget": 65}, "64"),
        ({"guidance": float("nan")}, "guidance"),
    ],
)
def test_what_cannot_be_drawn_is_refused_in_a_sentence(studio, changes, named):
    with refused(named):
        next(studio.draw(**{"subject": PROMPT, "budget": 10, **changes}))


def test_unknown_words_are_told_to_the_visitor(studio):
    with refused("zebra"):
        last_of(studio, "a zebra", 10, steps=1)
    assert last_of(studio, PROMPT, 10, steps=1).region is not None


def test_a_model_of_labels_takes_labels():
    studio = Studio(make_pipe("jit", cuts="gaps"))
    assert "times as fast" in last_of(studio, 3, 8, steps=1).message
    assert studio.text_tokens is None
    for label in (10, -1, "cat", None):
        with refused("0 to 9"):
            last_of(studio, label, 8, steps=1)


def test_text_can_be_turned_down_where_the_adapter_allows_it():
    pipe = make_pipe("minit2i", cuts="gaps", text_regions=True)
    studio = Studio(pipe)
    assert studio.text_tokens == 6
    whole, same, short = (last_of(studio, "a cat", 8, steps=1, text_budget=text).region for text in (None, 6, 2))
    assert np.array_equal(whole, same)
    assert not np.array_equal(whole, short)


def test_a_reduction_without_regions_shows_none():
    model = rti.attach(make_backbone("jit"), SkipConfig(core=CORE, lora_rank=2, extra_groups=0))
    last = last_of(Studio(Pipeline(randomise_trainable(model))), 3, 8, steps=1)
    assert last.overlay is None
    assert last.region is not None


def test_a_model_without_an_adapter_is_refused():
    with refused("adapter"):
        Studio(Pipeline(make_backbone("jit")))
