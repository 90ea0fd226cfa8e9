"""The table of released models: names, sizes and the counts that the paper and the releases state."""

import pytest
import torch

import rti
from rti.loading import build
from rti.presets import PRESETS, find_preset, get_preset
from tiny import refused

# Parameters of the releases; JiT with its frozen position table.
PARAMETERS = {
    "minit2i-b16": 258_122_880,
    "minit2i-l16": 911_766_696,
    "jit-b16": 131_320_320,
    "jit-l16": 459_139_808,
    "jit-b32": 133_387_008,
    "jit-l32": 461_796_320,
    "jit-h32": 956_383_296,
}
# The paper's trainable parameters, and their share of backbone and adapter together.
TRAINABLE = {"minit2i-b16": (16_279_296, 5.93), "minit2i-l16": (36_004_704, 3.80), "jit-b16": (6_029_568, 4.39)}

# noise scale, sampler, steps, guidance scale, guidance interval
MINIT2I = (2.0, "euler", 100, 5.0, (0.0, 1.0))
JIT_256, JIT_512 = (1.0, "heun", 50, 3.0, (0.1, 1.0)), (2.0, "heun", 50, 3.0, (0.1, 1.0))


def count(parameters) -> int:
    return sum(parameter.numel() for parameter in parameters)


@pytest.mark.parametrize("name", PARAMETERS)
def test_parameters_are_those_of_the_release(name):
    backbone = build(PRESETS[name].family, PRESETS[name].sizes)
    assert count(backbone.parameters()) == PARAMETERS[name]
    assert {parameter.device.type for parameter in backbone.parameters()} == {"meta"}


@pytest.mark.parametrize("name", TRAINABLE)
def test_trainable_parameters_are_the_papers(name):
    preset = PRESETS[name]
    with rti.attach(build(preset.family, preset.sizes), rti.RegionConfig(core=preset.core)) as model:
        trainable, share = TRAINABLE[name]
        assert count(model.trainable_parameters().values()) == trainable
        assert round(100 * trainable / (trainable + PARAMETERS[name]), 2) == share
        assert round(trainable / 1e6, 1) == preset.trainable_millions


@pytest.mark.parametrize(
    ("name", "image", "grid", "heads", "depth", "in_context", "flow"),
    [
        ("minit2i-b16", 512, 32, (12, 64), 17, None, MINIT2I),
        ("minit2i-l16", 512, 32, (24, 52), 23, None, MINIT2I),
        ("minit2i-b32", 512, 16, (12, 64), 17, None, MINIT2I),
        ("jit-b16", 256, 16, (12, 64), 12, (32, 4), JIT_256),
        ("jit-l16", 256, 16, (16, 64), 24, (32, 8), JIT_256),
        ("jit-h16", 256, 16, (16, 80), 32, (32, 10), JIT_256),
        ("jit-b32", 512, 16, (12, 64), 12, (32, 4), JIT_512),
        ("jit-l32", 512, 16, (16, 64), 24, (32, 8), JIT_512),
        ("jit-h32", 512, 16, (16, 80), 32, (32, 10), JIT_512),
    ],
)
def test_each_preset_has_the_sizes_and_the_sampling_of_its_release(name, image, grid, heads, depth, in_context, flow):
    backbone = build(PRESETS[name].family, PRESETS[name].sizes)
    config = backbone.config
    assert (backbone.image_size, backbone.grid) == ((image, image), (grid, grid))
    assert (config.num_heads, config.head_dim) == heads
    assert backbone.depth == depth
    if in_context is not None:
        assert (config.in_context_len, config.in_context_start) == in_context
    settings = backbone.flow
    assert (settings.noise_scale, settings.sampler, settings.steps) == flow[:3]
    assert (settings.guidance_scale, settings.guidance_interval) == flow[3:]
    assert settings.time_floor == 0.05


@pytest.mark.parametrize("name", PRESETS)
def test_the_core_and_the_budgets_of_each_preset_fit_its_model(name):
    preset = PRESETS[name]
    backbone = build(preset.family, preset.sizes)
    rti.RegionConfig(core=preset.core).check_fits(backbone.depth)
    assert preset.core[0] > 0  # a prelude and a coda
    assert preset.core[1] < backbone.depth - 1
    assert all(0 < budget < backbone.patches for budget in preset.budgets)


@pytest.mark.parametrize(
    ("name", "core"), [("minit2i-b16", (3, 13)), ("minit2i-l16", (3, 19)), ("jit-b16", (4, 9)), ("jit-l16", (8, 19))]
)
def test_the_core_is_the_papers(name, core):
    assert PRESETS[name].core == core


def test_every_model_of_the_two_families_has_a_preset():
    jit = {f"jit-{letter}{patch}" for letter in "blh" for patch in (16, 32)}
    assert set(PRESETS) == jit | {"minit2i-b16", "minit2i-l16", "minit2i-b32"}
    assert all(preset.name == name for name, preset in PRESETS.items())


@pytest.mark.parametrize(
    ("name", "size", "expected"),
    [
        ("minit2i-b16", None, "minit2i-b16"),
        ("MiniT2I-B/16", None, "minit2i-b16"),
        ("minit2i-b-16", None, "minit2i-b16"),
        ("minit2i_l_16", None, "minit2i-l16"),
        ("JiT-H/32", None, "jit-h32"),
        ("jit", "JiT-H/32", "jit-h32"),
        ("jit", "huge", "jit-h16"),
        ("jit", "B/32", "jit-b32"),
        ("minit2i", "b", "minit2i-b16"),
        ("minit2i", "b16", "minit2i-b16"),
        ("minit2i", "base", "minit2i-b16"),
        ("minit2i", "l", "minit2i-l16"),
        ("minit2i", "l16", "minit2i-l16"),
        ("minit2i", "large", "minit2i-l16"),
        ("jit-b16", "B/16", "jit-b16"),
        ("jit-b16", "l16", None),
        ("jit-b17", None, None),
        ("jit", "b17", None),
        ("minit2i-h16", None, None),
        ("", None, None),
    ],
)
def test_common_spellings_find_a_preset(name, size, expected):
    found = find_preset(name, size)
    assert (found.name if found else None) == expected


def test_a_family_alone_and_an_unknown_size_are_refused():
    with refused("'JiT'", "b16", "h32"):
        get_preset("JiT", None)
    assert find_preset("JiT") is None
    with refused("'xxl'", "minit2i", "b16", "l16", "b32"):
        get_preset("minit2i", "xxl")
    with refused("'midjourney'", "minit2i-b16", "jit-h32"):
        get_preset("midjourney", None)


def test_a_model_can_be_measured_without_memory():
    """`build` makes no weights, and attaching to it makes none either."""
    model = rti.attach(build("jit", PRESETS["jit-h16"].sizes), rti.RegionConfig(core=(10, 25)))
    assert all(p.device.type == "meta" for p in model.parameters())
    assert isinstance(model.detach(), torch.nn.Module)
