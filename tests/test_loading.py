"""Finding and reading checkpoints, and refusing what does not fit."""

import argparse
import json
import os
import pickle
import shutil
import zipfile
from dataclasses import asdict
from pathlib import Path

import huggingface_hub
import huggingface_hub.constants
import numpy as np
import pytest
import torch
from huggingface_hub.utils import filter_repo_objects
from safetensors.torch import load_file, save_file

import rti
from rti.backbones.layers import FloatTable
from rti.files import read_json
from rti.loading import FAMILIES, build
from rti.presets import PRESETS
from tiny import (
    SAVE,
    SIZES,
    assert_same_state,
    make_backbone,
    make_inputs,
    make_state,
    preset_sizes,
    refused,
    save_jit,
    save_minit2i,
    shapes_of,
    snapshot,
)

WEIGHTS = {"minit2i": "diffusion_pytorch_model.safetensors", "jit": "checkpoint-last.pth"}
LFS_POINTER = (
    "version https://git-lfs.github.com/spec/v1\noid sha256:4d7a214614ab2935c943f9e0ff69d22eadbb8f32b1\nsize 12\n"
)


def assert_loaded(backbone: rti.Backbone, family: str, seed: int = 0, **changes) -> None:
    """The backbone is the tiny one of this family and seed."""
    assert type(backbone) is FAMILIES[family]
    assert not backbone.training
    assert_same_state(backbone, snapshot(make_backbone(family, seed, **changes)))


# Where a checkpoint may lie.


@pytest.mark.parametrize("inner", ["", "transformer"])
@pytest.mark.parametrize("as_text", [False, True])
def test_a_folder_or_its_transformer_folder_is_loaded(tmp_path, family, inner, as_text):
    SAVE[family](tmp_path / inner)
    backbone = rti.load_backbone(str(tmp_path) if as_text else tmp_path)
    assert_loaded(backbone, family)
    assert backbone.source == {"source": str(tmp_path)}


def test_a_home_folder_may_be_abbreviated(tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path))
    save_jit(tmp_path / "jit")
    assert_loaded(rti.load_backbone("~/jit"), "jit")


def save_release(folder: Path) -> Path:
    """Several sizes in one folder, as on the hub."""
    for name in ("minit2i-b-16", "minit2i-l-16"):
        save_minit2i(folder / name / "transformer", shards=2, **preset_sizes(name.replace("-16", "16")))
    return folder


@pytest.mark.parametrize(
    ("size", "name"),
    [
        ("b16", "minit2i-b16"),
        ("base", "minit2i-b16"),
        ("B/16", "minit2i-b16"),
        ("l16", "minit2i-l16"),
        ("large", "minit2i-l16"),
        ("minit2i-l-16", "minit2i-l16"),
    ],
)
def test_size_chooses_among_several_in_a_folder(tmp_path, small_presets, size, name):
    (save_release(tmp_path) / "assets").mkdir()
    backbone = rti.load_backbone(tmp_path, size=size)
    assert_loaded(backbone, "minit2i", **preset_sizes(name))
    assert_loaded(rti.load_backbone(**backbone.source), "minit2i", **preset_sizes(name))  # what it remembers finds it


def test_several_sizes_without_a_choice_are_refused(tmp_path):
    save_release(tmp_path)
    with refused(tmp_path, "minit2i-b16", "minit2i-l16", "size="):
        rti.load_backbone(tmp_path)
    with refused(tmp_path, "xxl"):
        rti.load_backbone(tmp_path, size="xxl")


def test_a_folder_named_after_a_family_does_not_disturb_the_sizes_beside_it(tmp_path):
    save_minit2i(tmp_path / "minit2i-b-16" / "transformer", seed=1)
    (tmp_path / "minit2i").mkdir()
    assert_loaded(rti.load_backbone(tmp_path), "minit2i", 1)


def test_a_single_file_finds_the_config_beside_it(tmp_path, family):
    SAVE[family](tmp_path)
    assert_loaded(rti.load_backbone(tmp_path / WEIGHTS[family]), family)


@pytest.mark.parametrize("weights", ["diffusion_pytorch_model", "model"])
@pytest.mark.parametrize("shards", [1, 3])
def test_weights_may_be_in_shards_with_an_index(tmp_path, weights, shards):
    save_minit2i(tmp_path, shards=shards, weights=weights)
    assert_loaded(rti.load_backbone(tmp_path), "minit2i")


def test_a_missing_shard_is_named(tmp_path):
    save_minit2i(tmp_path, shards=3)
    (tmp_path / "diffusion_pytorch_model-00002-of-00003.safetensors").unlink()
    with refused("diffusion_pytorch_model-00002-of-00003.safetensors", "does not exist"):
        rti.load_backbone(tmp_path)


def test_an_index_may_not_leave_its_folder(tmp_path):
    save_minit2i(tmp_path / "in", shards=2)
    index = tmp_path / "in" / "diffusion_pytorch_model.safetensors.index.json"
    save_file({"a": torch.zeros(1)}, tmp_path / "outside.safetensors")
    index.write_text(json.dumps({"weight_map": {"a": "../outside.safetensors"}}))
    with refused(index, "../outside.safetensors"):
        rti.load_backbone(tmp_path / "in")


@pytest.mark.parametrize("prefix", ["", "net.", "module.net.", "model."])
def test_the_wrappers_prefix_does_not_matter(tmp_path, prefix):
    save_minit2i(tmp_path)
    state = make_state("minit2i", SIZES["minit2i"])
    save_file({prefix + name: value for name, value in state.items()}, tmp_path / WEIGHTS["minit2i"])
    assert_loaded(rti.load_backbone(tmp_path), "minit2i")


def test_jit_takes_the_averaged_weights(tmp_path):
    """model_ema1, and not model or model_ema2, which hold other weights here."""
    save_jit(tmp_path, seed=4)
    assert_loaded(rti.load_backbone(tmp_path), "jit", seed=4)


def test_a_file_of_the_old_torch_format_is_refused(tmp_path):
    save_jit(tmp_path)
    state = make_state("jit", SIZES["jit"], seed=1)
    torch.save({"model": state}, tmp_path / "checkpoint-last.pth", _use_new_zipfile_serialization=False)
    with refused("checkpoint-last.pth", "since 1.6"):
        rti.load_backbone(tmp_path)


def test_loading_leaves_nothing_allowed_in_torchs_unpickler(tmp_path):
    save_jit(tmp_path)
    rti.load_backbone(tmp_path)
    assert argparse.Namespace not in torch.serialization.get_safe_globals()


# Files without a config.


@pytest.mark.parametrize(
    ("size", "args"),
    [
        ("b16", {}),
        ("JiT-B/16", {}),
        (None, {"model": "JiT-B/16"}),
        ("b16", {"model": "JiT-L/16"}),  # what the user says goes
        (None, {}),  # by the shapes
        (None, {"model": "my-own"}),
    ],
)
def test_a_file_without_config_gets_its_size_from_the_user_the_file_or_the_shapes(tmp_path, small_presets, size, args):
    sizes = preset_sizes("jit-b16")
    save_jit(tmp_path, config=False, args=args, **sizes)
    for source in (tmp_path, tmp_path / "checkpoint-last.pth"):
        assert_loaded(rti.load_backbone(source, size=size), "jit", **sizes)


def test_a_file_without_config_tells_its_classes_image_size_and_noise(tmp_path, small_presets):
    sizes = preset_sizes("jit-b16") | dict(input_size=48, num_classes=4)
    args = {"model": "JiT-B/16", "img_size": 48, "noise_scale": 1.5, "t_eps": 0.02, "class_num": 4}
    save_jit(tmp_path, config=False, args=args, **sizes)
    backbone = rti.load_backbone(tmp_path)
    assert backbone.image_size == (48, 48)
    assert backbone.config.num_classes == 4
    assert (backbone.flow.noise_scale, backbone.flow.time_floor) == (1.5, 0.02)


@pytest.mark.parametrize("name", ["jit-b16", "jit-l32", "jit-h16", "minit2i-b16", "minit2i-l16", "minit2i-b32"])
def test_a_real_size_is_recognised_by_its_shapes(tmp_path, name):
    """The weights are one number each, repeated without memory, so that a file of a gigabyte is small."""
    preset = PRESETS[name]
    shapes = shapes_of(preset.family, asdict(FAMILIES[preset.family].config_type()) | preset.sizes)
    state = {key: torch.ones(1).expand(shape) for key, shape in shapes.items()}
    torch.save({"model_ema1": state}, tmp_path / "checkpoint-last.pth")
    backbone = rti.load_backbone(tmp_path)
    assert backbone.config == build(preset.family, preset.sizes).config


def test_a_safetensors_file_without_config_is_recognised_by_its_shapes(tmp_path, small_presets):
    save_minit2i(tmp_path, **preset_sizes("minit2i-l16"))
    (tmp_path / "config.json").unlink()
    backbone = rti.load_backbone(tmp_path / WEIGHTS["minit2i"])
    assert_loaded(backbone, "minit2i", **preset_sizes("minit2i-l16"))


def test_a_checkpoint_of_another_size_than_the_one_asked_for_is_refused(tmp_path, small_presets):
    save_jit(tmp_path, **preset_sizes("jit-l16"))
    assert_loaded(rti.load_backbone(tmp_path, size="l16"), "jit", **preset_sizes("jit-l16"))
    with refused(tmp_path, "jit-l16", "jit-b16"):
        rti.load_backbone(tmp_path, size="b16")
    with refused("'xxl'", "b16"):
        rti.load_backbone(tmp_path, size="xxl")


def test_a_size_of_the_users_own_may_stand_under_a_released_name(tmp_path):
    """A small model in the release's layout, as one trains for a test."""
    save_minit2i(tmp_path / "minit2i-b-16" / "transformer", seed=1)
    save_minit2i(tmp_path / "minit2i-l-16" / "transformer", seed=2)
    for size, seed in (("b16", 1), ("base", 1), ("large", 2)):
        assert_loaded(rti.load_backbone(tmp_path, size=size), "minit2i", seed)


def test_a_device_that_is_not_there_is_refused(tmp_path):
    for device in ("nowhere", torch.float16, None, []):
        with refused(f"device {str(device)!r}"):
            rti.load_backbone(save_jit(tmp_path), device=device)


@pytest.mark.parametrize(
    ("wrong", "named"),
    [
        (dict(dtype="cuda"), ("'cuda'", "torch.float32")),
        (dict(dtype=torch.int8), ("torch.int8", "torch.bfloat16")),
        (dict(size=torch.int8), ("torch.int8", "'b16'")),
        (dict(source="jit-b16", init="random", seed="x"), ("seed", "'x'")),
    ],
)
def test_options_of_another_kind_are_refused(tmp_path, wrong, named):
    with refused(*named):
        rti.load_backbone(**{"source": save_jit(tmp_path)} | wrong)


def test_a_file_of_unknown_size_is_refused(tmp_path):
    save_jit(tmp_path, config=False)
    with refused(tmp_path / "checkpoint-last.pth", "size="):
        rti.load_backbone(tmp_path)
    with refused("'b17'", "b16", "h32"):
        rti.load_backbone(tmp_path, size="b17")
    with refused("missing blocks.5."):
        rti.load_backbone(tmp_path, size="b16")


# The hub.

COMMIT = "0123456789abcdef0123456789abcdef01234567"


@pytest.fixture
def hub_cache(tmp_path, monkeypatch):
    """An empty cache of the hub, and no way to the hub itself."""
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_CACHE", str(tmp_path / "hub"))
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", True)
    return tmp_path / "hub"


def cached_repository(cache, name: str):
    folder = cache / f"models--{name.replace('/', '--')}"
    (folder / "refs").mkdir(parents=True)
    (folder / "refs" / "main").write_text(COMMIT)
    return folder / "snapshots" / COMMIT


@pytest.mark.parametrize(
    ("source", "size", "name"),
    [
        ("minit2i-b16", None, "minit2i-b16"),
        ("MiniT2I-B/16", None, "minit2i-b16"),
        ("minit2i", "b", "minit2i-b16"),
        ("MiniT2I/MiniT2I", "base", "minit2i-b16"),
        ("minit2i-l16", None, "minit2i-l16"),
        ("MiniT2I/MiniT2I", "l16", "minit2i-l16"),
        ("minit2i", "large", "minit2i-l16"),
    ],
)
def test_the_release_is_found_on_the_hub_by_any_of_its_names(hub_cache, small_presets, source, size, name):
    save_release(cached_repository(hub_cache, "MiniT2I/MiniT2I"))
    backbone = rti.load_backbone(source, size=size)
    assert_loaded(backbone, "minit2i", **preset_sizes(name))
    assert_loaded(rti.load_backbone(**backbone.source), "minit2i", **preset_sizes(name))


def test_another_repository_on_the_hub_is_loaded(hub_cache, family):
    SAVE[family](cached_repository(hub_cache, "someone/a-model"), seed=3)
    backbone = rti.load_backbone("someone/a-model")
    assert_loaded(backbone, family, seed=3)
    assert backbone.source == {"source": "someone/a-model"}


def test_hub_errors_say_what_was_looked_for(hub_cache):
    with refused("MiniT2I/MiniT2I", "b16", "l16", "size="):
        rti.load_backbone("MiniT2I/MiniT2I")
    with refused("cannot fetch MiniT2I/MiniT2I"):
        rti.load_backbone("minit2i-b16")
    with refused("cannot fetch someone/else"):
        rti.load_backbone("someone/else")
    with refused("'xxl'", "b16"):
        rti.load_backbone("MiniT2I/MiniT2I", size="xxl")
    cached_repository(hub_cache, "MiniT2I/MiniT2I").mkdir(parents=True)
    with refused("minit2i-b-32", "MiniT2I/MiniT2I"):
        rti.load_backbone("minit2i-b32")


@pytest.fixture
def hub(tmp_path, monkeypatch):
    """A hub in a folder; `hub.fetched` is what was downloaded from it."""

    class Hub:
        root, fetched = tmp_path / "remote", []

        def snapshot_download(self, repository, allow_patterns=None, **_):
            folder = self.root / repository
            files = [str(file.relative_to(folder)) for file in sorted(folder.rglob("*")) if file.is_file()]
            for file in filter_repo_objects(files, allow_patterns=allow_patterns):
                self.fetched.append(file)
                target = tmp_path / "local" / repository / file
                target.parent.mkdir(parents=True, exist_ok=True)
                shutil.copy(folder / file, target)
            return str(tmp_path / "local" / repository)

    hub = Hub()
    monkeypatch.setattr(huggingface_hub, "snapshot_download", hub.snapshot_download)
    return hub


def test_only_the_wanted_size_is_downloaded(hub, small_presets):
    release = save_release(hub.root / "MiniT2I" / "MiniT2I")
    (release / "minit2i-b-16" / "transformer" / "sample.png").write_bytes(b"")
    assert_loaded(rti.load_backbone("minit2i-b16"), "minit2i", **preset_sizes("minit2i-b16"))
    files = ["config.json", "diffusion_pytorch_model-00001-of-00002.safetensors"]
    files += ["diffusion_pytorch_model-00002-of-00002.safetensors", "diffusion_pytorch_model.safetensors.index.json"]
    assert sorted(hub.fetched) == [f"minit2i-b-16/transformer/{name}" for name in files]


# Numbers.


def test_weights_are_float32_unless_asked(tmp_path, family):
    SAVE[family](tmp_path)
    assert {p.dtype for p in rti.load_backbone(tmp_path).parameters()} == {torch.float32}


@torch.no_grad()
def test_bfloat16_weights_give_a_float32_image_close_to_the_float32_one(tmp_path, family):
    SAVE[family](tmp_path)
    half = rti.load_backbone(tmp_path, dtype=torch.bfloat16)
    assert {p.dtype for p in half.parameters()} == {torch.bfloat16}
    assert {table.values.dtype for table in half.modules() if isinstance(table, FloatTable)} == {torch.float32}
    full = make_backbone(family)
    inputs = make_inputs(full)
    result, expected = half(*inputs), full(*inputs)
    assert result.dtype == torch.float32
    assert ((result - expected).square().mean() / expected.square().mean()).sqrt() < 0.03
    half.to(torch.float32)  # widening again must not leave rounded tables behind
    tables = dict(full.named_buffers())
    assert tables
    for name, table in half.named_buffers():
        assert torch.equal(table, tables[name]), name


def test_weights_of_another_dtype_are_converted(tmp_path):
    save_minit2i(tmp_path)
    file = tmp_path / WEIGHTS["minit2i"]
    save_file({key: value.bfloat16() for key, value in load_file(file).items()}, file)
    assert {p.dtype for p in rti.load_backbone(tmp_path).parameters()} == {torch.float32}


def test_what_the_release_trains_stays_trainable(tmp_path, family):
    SAVE[family](tmp_path)
    frozen = {name for name, p in rti.load_backbone(tmp_path).named_parameters() if not p.requires_grad}
    assert frozen == ({"pos_embed"} if family == "jit" else set())


# Keys that do not fit.


def change_state(folder, family, change):
    """Rewrite the weights of a checkpoint."""
    file = folder / WEIGHTS[family]
    if family == "minit2i":
        state = load_file(file)
        change(state, "model.net.")
        save_file(state, file)
    else:
        with torch.serialization.safe_globals([argparse.Namespace]):
            content = torch.load(file)
        change(content["model_ema1"], "net.")
        torch.save(content, file)


def test_missing_extra_and_misshapen_keys_are_listed(tmp_path, family):
    def spoil(state, prefix):
        del state[f"{prefix}final_layer.linear.bias"]
        state[f"{prefix}blocks.77.extra"] = torch.zeros(1)
        state[f"{prefix}final_layer.norm_final.weight"] = torch.zeros(7)

    SAVE[family](tmp_path)
    change_state(tmp_path, family, spoil)
    with refused(
        tmp_path / WEIGHTS[family],
        "missing final_layer.linear.bias",
        "extra blocks.77.extra",
        "final_layer.norm_final.weight is (7,), expected (32,)",
    ):
        rti.load_backbone(tmp_path)


def test_many_wrong_keys_are_counted(tmp_path):
    save_jit(tmp_path)
    change_state(
        tmp_path, "jit", lambda state, prefix: state.update({f"{prefix}x{i}": torch.zeros(1) for i in range(20)})
    )
    with refused("extra x7;", "and 12 more"):
        rti.load_backbone(tmp_path)


@pytest.mark.parametrize(
    ("family", "changes", "fragments"),
    [
        ("jit", dict(input_size=40), ("pos_embed is (1, 64, 32), expected (1, 100, 32)",)),
        ("jit", dict(depth=6), ("missing blocks.5.",)),
        ("minit2i", dict(depth_double=3), ("extra double_blocks.3.",)),
        ("minit2i", dict(hidden_size=48, txt_hidden_size=48), ("expected (48",)),
        ("minit2i", dict(image_size=33), ("33 x 33", "4 x 4")),
        ("minit2i", dict(image_size=[32, 34]), ("32 x 34", "4 x 4")),
        ("jit", dict(input_size=33), ("33 x 33", "4 x 4")),
        ("jit", dict(patch_size=0), ("patch_size", "got 0")),
        ("minit2i", dict(prediction="v"), ("'v'", "'x'")),
        ("minit2i", dict(head_dim=6), ("head_dim 6",)),
        ("minit2i", dict(txt_hidden_size=48), ("txt_hidden_size 48",)),
        ("minit2i", dict(cfg_channels=2), ("cfg_channels 2",)),
        ("minit2i", dict(patch_spacing=0), ("patch_spacing", "0")),
        ("jit", dict(patch_spacing=-3.0), ("patch_spacing", "-3.0")),
        ("jit", dict(num_heads=5), ("5 heads",)),
        ("jit", dict(in_context_start=-1), ("in_context_start", "-1")),
        ("jit", dict(hidden_size="wide"), ("config.json",)),
        ("jit", dict(num_heads=0), ()),
        ("jit", dict(bottleneck_dim=-4), ()),
        ("jit", dict(input_size=[32, 32, 3]), ()),
        ("jit", dict(input_size=10**9), ("1000000000",)),
        ("jit", dict(depth=10**6), ("depth", "1000000")),
        ("jit", dict(in_context_len=10**9), ("in_context_len",)),
        ("jit", dict(num_sampling_steps="many"), ("steps", "'many'")),
        ("jit", dict(cfg=[3.0]), ("guidance_scale", "(3.0,)")),
        ("jit", dict(cfg_interval=3), ()),
        ("minit2i", dict(image_size=10**6), ("patches",)),
        ("minit2i", dict(image_size=2**18), ("patches",)),
        ("minit2i", dict(depth_double=10**6), ("depth_double", "1000000")),
        ("minit2i", dict(prompt_length=10**9), ("prompt_length", "1000000000")),
        ("minit2i", dict(sampler="magic"), ("'magic'", "euler")),
        ("minit2i", dict(prompt_length="long"), ()),
    ],
)
def test_a_config_that_does_not_fit_is_refused(tmp_path, family, changes, fragments):
    SAVE[family](tmp_path)
    (tmp_path / "config.json").write_text(json.dumps(SIZES[family] | changes))
    with refused(*fragments):
        rti.load_backbone(tmp_path)


def test_a_config_of_the_other_family_is_refused(tmp_path):
    save_minit2i(tmp_path)
    (tmp_path / "config.json").write_text(json.dumps(SIZES["jit"]))
    with refused(tmp_path / "config.json", "jit", "minit2i"):
        rti.load_backbone(tmp_path)


# Files that are broken, foreign or hostile.


def truncated(file):
    file.write_bytes(file.read_bytes()[: file.stat().st_size // 2])


def empty(file):
    file.write_bytes(b"")


def text_instead(file):
    file.write_text("Not the weights you are looking for.\n" * 50)


def lfs_pointer(file):
    file.write_text(LFS_POINTER)


def zeros(file):
    file.write_bytes(bytes(4096))


def middle_damaged(file):
    """Keeps the beginning and the end, which is where both formats have their tables of contents."""
    content = bytearray(file.read_bytes())
    content[8:400] = b"\xff" * 392
    file.write_bytes(bytes(content))


@pytest.mark.parametrize("spoil", [truncated, empty, text_instead, lfs_pointer, zeros, middle_damaged])
def test_a_broken_file_is_refused(tmp_path, family, spoil):
    SAVE[family](tmp_path)
    spoil(tmp_path / WEIGHTS[family])
    with refused(tmp_path / WEIGHTS[family]):
        rti.load_backbone(tmp_path)


@pytest.mark.parametrize("old_format", [False, True])
def test_a_pytorch_file_that_ends_anywhere_is_refused(tmp_path, old_format):
    """The old format is one pickle after another, and its reader fails in many ways."""
    save_jit(tmp_path)
    file = tmp_path / "checkpoint-last.pth"
    content = {"model": {"pos_embed": torch.zeros(4)}, "epoch": 70_000}
    torch.save(content, file, _use_new_zipfile_serialization=not old_format)
    whole = file.read_bytes()
    for end in range(0, len(whole), max(1, len(whole) // 100)):
        file.write_bytes(whole[:end])
        with refused(file):
            rti.load_backbone(file)


NESTED = '{"a": ' * 50_000 + "1" + "}" * 50_000


def test_json_with_half_a_character_is_refused(tmp_path):
    (tmp_path / "half.json").write_text('{"title": "\\ud83d"}')
    (tmp_path / "whole.json").write_text('{"title": "\\ud83d\\ude00"}')
    with refused("half.json", "not readable JSON"):
        read_json(tmp_path / "half.json")
    assert read_json(tmp_path / "whole.json") == {"title": "\N{GRINNING FACE}"}


@pytest.mark.parametrize("text", ["", "{", "[]", '{"a": 1}', "\udcff", NESTED, '{"a": ' + "9" * 5000 + "}"])
def test_a_broken_or_foreign_config_is_refused(tmp_path, family, text):
    SAVE[family](tmp_path)
    (tmp_path / "config.json").write_text(text, errors="surrogateescape")
    with refused(tmp_path / "config.json"):
        rti.load_backbone(tmp_path)


def test_a_file_that_is_no_regular_one_is_refused(tmp_path, family):
    """A pipe may never begin, and a device never end."""
    SAVE[family](tmp_path)
    for name in ("config.json", WEIGHTS[family]):
        content = (tmp_path / name).read_bytes()
        (tmp_path / name).unlink()
        os.mkfifo(tmp_path / name)
        with refused("no regular file" if name != "config.json" else ""):
            rti.load_backbone(tmp_path / WEIGHTS[family])
        (tmp_path / name).unlink()
        (tmp_path / name).write_bytes(content)


def test_a_json_file_that_is_too_large_is_refused(tmp_path):
    with open(tmp_path / "large.json", "wb") as file:
        file.truncate(2**30)
    with refused("large.json", "1,073,741,824"):
        read_json(tmp_path / "large.json")


def test_packed_entries_are_refused_before_they_are_unpacked(tmp_path, monkeypatch):
    """A hundred kilobytes of them take gigabytes."""
    save_jit(tmp_path)
    file = tmp_path / "checkpoint-last.pth"
    with zipfile.ZipFile(file) as archive:
        entries = {name: archive.read(name) for name in archive.namelist()}
    with zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, content in entries.items():
            archive.writestr(name, content)
    monkeypatch.setattr(torch, "load", lambda *_, **__: pytest.fail("it was read"))
    with refused(file, "packed"):
        rti.load_backbone(tmp_path)


class Zeros:
    """Becomes an array of zeros when it is unpickled, which torch's unpickler allows."""

    def __reduce__(self):
        return bytearray, (10**9,)


def test_an_array_of_zeros_is_refused_before_it_is_made(tmp_path, monkeypatch):
    file = tmp_path / "checkpoint-last.pth"
    torch.save({"model": {}, "zeros": Zeros()}, file)
    monkeypatch.setattr(torch, "load", lambda *_, **__: pytest.fail("it was read"))
    with refused(file, "bytearray"):
        rti.load_backbone(file)


def test_more_tensors_than_any_model_has_are_refused(tmp_path):
    names = {f"{number}": {"dtype": "F32", "shape": [0], "data_offsets": [0, 0]} for number in range(30_000)}
    header = json.dumps(names).encode()
    file = tmp_path / "model.safetensors"
    file.write_bytes(len(header).to_bytes(8, "little") + header)
    with refused(file, "30,000 tensors"):
        rti.load_backbone(file)


@pytest.mark.parametrize("weight_map", [[], {"a": 3}, {"a": None}, "text"])
def test_an_index_of_another_kind_is_refused(tmp_path, weight_map):
    index = save_minit2i(tmp_path, shards=2) / "diffusion_pytorch_model.safetensors.index.json"
    index.write_text(json.dumps({"weight_map": weight_map}))
    with refused(tmp_path):
        rti.load_backbone(tmp_path)


def test_a_foreign_safetensors_file_is_refused(tmp_path):
    save_file({"encoder.layer.0.weight": torch.zeros(2, 2)}, tmp_path / "model.safetensors")
    with refused(tmp_path / "model.safetensors", "minit2i", "jit", error=TypeError):
        rti.load_backbone(tmp_path / "model.safetensors")


@pytest.mark.parametrize(
    "content",
    [
        [torch.zeros(1)],
        {"model": {3: torch.zeros(1)}},
        {"model": {"a": torch.zeros(2).to_sparse()}},
        {"model": 3},
        {"epoch": 1},
        {"model": {"a": "text"}},
        torch.zeros(3),
        {},
    ],
)
def test_a_foreign_pytorch_file_is_refused(tmp_path, content):
    torch.save(content, tmp_path / "checkpoint-last.pth")
    with refused(tmp_path / "checkpoint-last.pth"):
        rti.load_backbone(tmp_path)


def test_other_files_and_empty_folders_are_refused(tmp_path):
    (tmp_path / "weights.npz").write_bytes(b"")
    with refused("weights.npz", ".safetensors", ".pth"):
        rti.load_backbone(tmp_path / "weights.npz")
    with refused(tmp_path, "checkpoint-last.pth"):
        rti.load_backbone(tmp_path)
    (tmp_path / "config.json").write_text(json.dumps(SIZES["jit"]))
    with refused(tmp_path, "no weights"):
        rti.load_backbone(tmp_path)


class Evil:
    """Runs a command when it is unpickled."""

    def __init__(self, marker):
        self.command = f"touch '{marker}'"

    def __reduce__(self):
        return os.system, (self.command,)


def hostile(hide):
    def write(file, evil):
        torch.save(hide(evil), file)

    return write


def plain_pickle(file, evil):
    file.write_bytes(pickle.dumps(evil))


@pytest.mark.parametrize(
    "write",
    [
        hostile(lambda evil: evil),
        hostile(lambda evil: {"model_ema1": make_state("jit", SIZES["jit"]), "args": evil}),
        hostile(lambda evil: {"model_ema1": {}, "args": argparse.Namespace(model="JiT-B/16", hidden=evil)}),
        hostile(lambda evil: {"model_ema1": {}, "args": argparse.Namespace(hidden=[{"deep": evil}])}),
        hostile(lambda evil: {"model_ema1": {"net.pos_embed": evil}}),
        plain_pickle,
    ],
)
def test_a_file_that_wants_to_run_code_is_refused_and_runs_none(tmp_path, write):
    marker, file = tmp_path / "marker", tmp_path / "checkpoint-last.pth"
    write(file, Evil(marker))
    with refused(file, "since 1.6" if write is plain_pickle else "code"):
        rti.load_backbone(file)
    assert not marker.exists()
    if write is plain_pickle:
        pickle.loads(file.read_bytes())
    else:
        torch.load(file, weights_only=False)
    assert marker.exists()  # so the file was a real danger


# Random weights.


def test_random_weights_come_from_the_seed_and_none_is_zero(small_presets, family):
    name = f"{family}-b16"
    first, again, other = (rti.load_backbone(name, init="random", seed=seed) for seed in (0, 0, 1))
    assert first.source == {"source": name, "init": "random", "seed": 0}
    assert_same_state(again, snapshot(first))
    for (key, parameter), different in zip(first.named_parameters(), other.parameters(), strict=True):
        assert parameter.isfinite().all(), key
        assert parameter.abs().max() > 0, key
        assert not torch.equal(parameter, different), key


@torch.no_grad()
def test_a_model_with_random_weights_is_a_whole_model(small_presets, family):
    """Its constant tables are those of a loaded one, and the seed alone decides what it answers."""
    preset = small_presets[f"{family}-b16"]
    first, again = (rti.load_backbone(preset.name, init="random") for _ in range(2))
    tables = dict(build(family, preset.sizes).named_buffers())
    assert tables
    for name, table in first.named_buffers():
        assert torch.equal(table, tables[name]), name
    inputs = make_inputs(first)
    assert torch.equal(first(*inputs), again(*inputs))
    assert 0.01 < first(*inputs).std() < 100


def test_random_weights_in_bfloat16(small_presets, family):
    backbone = rti.load_backbone(f"{family}-b16", init="random", dtype=torch.bfloat16)
    assert {p.dtype for p in backbone.parameters()} == {torch.bfloat16}
    assert all(parameter.abs().max() > 0 for parameter in backbone.parameters())


# Names.


@pytest.mark.parametrize(
    ("arguments", "fragments"),
    [
        (dict(source="minit3i-b16"), ("minit3i-b16", "minit2i-b16", "jit-h32")),
        (dict(source="no/such/file.pth"), ("no/such/file.pth",)),
        (dict(source="some/file.safetensors"), ("some/file.safetensors",)),
        (dict(source="./nowhere"), ("./nowhere",)),
        (dict(source="jit-b16"), ("jit-b16", "checkpoint-last.pth", "b16")),
        (dict(source="jit", size="h32"), ("jit-h32", "checkpoint-last.pth")),
        (dict(source="jit"), ("jit", "b16", "h32")),
        (dict(source="minit2i", init="random"), ("minit2i", "b16", "l16", "b32")),
        (dict(source="minit2i", size="xxl", init="random"), ("xxl",)),
        (dict(source="jit", size="xxl"), ("xxl", "b16")),
        (dict(source="minit3i-b16", init="random"), ("minit3i-b16", "jit-b16")),
        (dict(source="jit-b16", init="foo"), ("'foo'", "allowed: random")),
    ],
)
def test_unknown_names_are_refused(arguments, fragments, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with refused(*fragments):
        rti.load_backbone(**arguments)


def test_a_preset_may_be_named_together_with_its_own_size(small_presets):
    backbone = rti.load_backbone("minit2i-b16", size="b16", init="random")
    assert backbone.config.hidden_size == small_presets["minit2i-b16"].sizes["hidden_size"]


# What a backbone is called with.


@pytest.mark.parametrize(
    ("change", "fragments"),
    [
        (lambda x, t, c: (x[0], t, c), ("(3, 32, 32)", "(batch, 3, 32, 32)")),
        (lambda x, t, c: ([1], t, c), ("list", "tensor")),
        (lambda x, t, c: (x.long(), t, c), ("int64", "floating")),
        (lambda x, t, c: (x, "noon", c), ("time", "str")),
        (lambda x, t, c: (x, {}, c), ("time", "dict")),
        (lambda x, t, c: (x[:, :1], t, c), ("(2, 1, 32, 32)",)),
        (lambda x, t, c: (x[..., :28], t, c), ("(2, 3, 32, 28)", "(batch, 3, 32, 32)")),
        (lambda x, t, c: (x[:1], t[:1], c), ("1 images but 2 conditions",)),
        (lambda x, t, c: (x, t[:1].expand(3), c), ("(3,)", "2 images")),
        (lambda x, t, c: (x, t[:, None], c), ("(2, 1)", "2 images")),
    ],
)
def test_a_call_that_does_not_fit_is_refused(backbone, change, fragments):
    with refused(*fragments):
        backbone(*change(*make_inputs(backbone)))
    with (
        rti.attach(backbone, rti.RegionConfig(core=(1, 2))) as model,
        refused(*fragments),
    ):
        model(*change(*make_inputs(backbone)), budget=8)


def test_a_backbone_alone_has_no_budget(backbone):
    with refused("budget 8", "rti.attach"):
        backbone(*make_inputs(backbone), budget=8)


@pytest.mark.parametrize(
    ("labels", "fragments"),
    [
        ([3, 11], ("label 11", "0 to 9", "10")),
        ([-1], ("label -1",)),
        (torch.tensor([1.0]), ("float32",)),
        ([True], ("bool",)),
        ([[1]], ("(1, 1)",)),
        (torch.tensor(3), ("()",)),
        (["cat"], ("cat",)),
    ],
)
def test_labels_that_are_none_are_refused(labels, fragments):
    with refused(*fragments):
        make_backbone("jit").condition(labels=labels)


@pytest.mark.parametrize("labels", [[0, 9, 10], torch.tensor([0, 9, 10], dtype=torch.int32), np.array([0, 9, 10])])
def test_labels_may_be_a_list_or_any_whole_tensor(labels):
    condition = make_backbone("jit").condition(labels=labels)
    assert condition.labels.dtype == torch.int64
    assert condition.labels.tolist() == [0, 9, 10]


@pytest.mark.parametrize(
    ("text", "mask", "fragments"),
    [
        (torch.zeros(2, 6, 13), None, ("(2, 6, 13)", "12")),
        (torch.zeros(2, 12), None, ("(2, 12)", "12")),
        (torch.zeros(2, 7, 12), None, ("7 text tokens", "6")),
        (torch.zeros(2, 6, 12), torch.ones(2, 5), ("(2, 5)", "(2, 6, 12)")),
        ("a cube", None, ("text states", "str")),
        (torch.zeros(2, 6, 12), [[1] * 6] * 2, ("mask", "list")),
    ],
)
def test_text_that_does_not_fit_is_refused(text, mask, fragments):
    with refused(*fragments):
        make_backbone("minit2i").condition(text=text, mask=mask)


def test_the_condition_of_the_other_family_is_refused(family):
    other = make_backbone("jit" if family == "minit2i" else "minit2i")
    x, t, condition = make_inputs(other)
    with refused("Condition"):
        make_backbone(family)(x, t, condition)
