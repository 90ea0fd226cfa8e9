"""What every test file shares: one thread, no network, and the two families."""

import os

os.environ["OMP_NUM_THREADS"] = "1"  # of the processes that tests start too, and of NumPy; workers share the cores
os.environ["HF_HUB_OFFLINE"] = "1"  # before huggingface_hub is imported; a test that needs a hub brings its own cache

from dataclasses import replace

import pytest
import torch

from rti.presets import PRESETS
from tiny import SIZES, make_backbone, preset_sizes

torch.set_num_threads(1)


@pytest.fixture(params=sorted(SIZES))
def family(request) -> str:
    return request.param


@pytest.fixture
def backbone(family):
    """A small backbone of each family, with random weights."""
    return make_backbone(family)


@pytest.fixture
def small_presets(monkeypatch):
    """The presets with tiny models, each of a width of its own."""
    for name, preset in PRESETS.items():
        monkeypatch.setitem(PRESETS, name, replace(preset, sizes=SIZES[preset.family] | preset_sizes(name)))
    return PRESETS
