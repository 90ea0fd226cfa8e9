"""Names of 0.1 still work, with a warning that names the new one."""

import importlib
import sys

import pytest

import rti
from rti.moved import MOVED
from tiny import CORE, make_backbone


@pytest.mark.parametrize("old", [*MOVED, "rti.reductions.grouped", "rti.scenes.world"])
def test_a_module_is_found_under_its_old_name(old, monkeypatch):
    monkeypatch.delitem(sys.modules, old, raising=False)
    new = next(old.replace(a, b, 1) for a, b in MOVED.items() if old == a or old.startswith(f"{a}."))
    with pytest.warns(FutureWarning, match=f"{old} is now {new}"):
        module = importlib.import_module(old)
    assert module is importlib.import_module(new)
    assert (module.__name__, module.__spec__.name) == (new, new)


def test_what_never_was_is_still_missing():
    with pytest.raises(ModuleNotFoundError):
        importlib.import_module("rti.regions_of_any_shape")


def test_merging_a_lora_is_now_fusing_it():
    with rti.attach(make_backbone("jit"), rti.RegionConfig(core=CORE)) as model:
        with pytest.warns(FutureWarning, match="fuse"):
            assert model.merge() is model and model.fused
        with pytest.warns(FutureWarning, match="unfuse"):
            assert not model.unmerge().fused


def test_a_pipeline_fuses_under_the_old_name_too():
    with pytest.warns(FutureWarning, match="fuse="):
        assert not rti.Pipeline.from_pretrained("scenes", merge=False).elastic.fused
