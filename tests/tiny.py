"""Small checkpoints in the releases' layouts, and what tests do with them.

The key names, shapes and file layouts are written down here a second time, from `backbones.md` and not from the
package, so that a checkpoint made here is one the release could have made.
"""

import argparse
import json
from contextlib import contextmanager
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

import rti
from rti.checkpoint import fill
from rti.loading import build
from rti.presets import PRESETS
from rti.text.words import WordEncoder

DATA = Path(__file__).parent / "data"

# As small as they can be and still have an 8 x 8 grid, blocks before, in and after a core, and every kind of weight.
SIZES = {
    "minit2i": dict(
        image_size=32,
        patch_size=4,
        in_channels=3,
        txt_input_size=12,
        hidden_size=32,
        txt_hidden_size=32,
        cond_vec_size=32,
        depth_double=4,
        txt_preamble_depth=2,
        num_heads=2,
        head_dim=16,
        mlp_ratio=2.6667,
        pca_channels=8,
        prompt_length=6,
        n_T=100,
        prediction="x",
        sampler="euler",
        cfg_channels=3,
        cfg_interval=[0.0, 1.0],
        llm="google/flan-t5-large",
        _class_name="MiniT2IMMJiTModel",
    ),
    "jit": dict(
        input_size=32,
        patch_size=4,
        hidden_size=32,
        depth=5,
        num_heads=2,
        bottleneck_dim=8,
        in_context_len=3,
        in_context_start=2,
        num_classes=10,
        noise_scale=1.0,
        t_eps=0.05,
    ),
}
CORE = (1, 2)  # inside the trunk of both


def preset_sizes(name: str) -> dict:
    """What tells the tiny model of a preset from those of the others: its width."""
    width = 32 + 16 * list(PRESETS).index(name)
    return {"hidden_size": width} | ({"txt_hidden_size": width} if name.startswith("minit2i") else {})


def shapes_of(family: str, sizes: dict) -> dict[str, tuple[int, ...]]:
    """Every weight of a release's network, by name."""
    hidden, patch = sizes["hidden_size"], sizes["patch_size"]
    shapes: dict[str, tuple[int, ...]] = {}

    def linear(name: str, wide: int, narrow: int, bias: bool = True) -> None:
        shapes[f"{name}.weight"] = (wide, narrow)
        if bias:
            shapes[f"{name}.bias"] = (wide,)

    def norms(prefix: str, size: int, *names: str) -> None:
        shapes.update({f"{prefix}.{name}.weight": (size,) for name in names})

    def time_and_patches(patch_name: str, bottleneck: int, time_width: int) -> None:
        linear("t_embedder.mlp.0", time_width, 256)
        linear("t_embedder.mlp.2", time_width, time_width)
        shapes[f"{patch_name}.proj1.weight"] = (bottleneck, 3, patch, patch)
        shapes[f"{patch_name}.proj2.weight"] = (hidden, bottleneck, 1, 1)
        shapes[f"{patch_name}.proj2.bias"] = (hidden,)

    if family == "minit2i":
        inner, words, width = sizes["num_heads"] * sizes["head_dim"], sizes["txt_input_size"], sizes["cond_vec_size"]
        mlp = int(hidden * sizes["mlp_ratio"])
        mlp += -mlp % 8
        time_and_patches("img_embedder", sizes["pca_channels"], width)
        linear("txt_embedder", hidden, words, bias=False)
        linear("pooled_embedder", width, words, bias=False)
        shapes["mask_token"] = (1, 1, words)
        blocks = [(f"txt_preamble_blocks.{i}", ("",)) for i in range(sizes["txt_preamble_depth"])]
        blocks += [(f"double_blocks.{i}", ("img_", "txt_")) for i in range(sizes["depth_double"])]
        for block, streams in blocks:
            norms(block, sizes["head_dim"], "q_norm", "k_norm")
            for stream in streams:
                norms(block, hidden, f"{stream}norm1", f"{stream}norm2")
                linear(f"{block}.{stream}qkv", 3 * inner, hidden)
                linear(f"{block}.{stream}attn_proj", hidden, inner)
                linear(f"{block}.{stream}mlp.w1", mlp, hidden, bias=False)
                linear(f"{block}.{stream}mlp.w2", hidden, mlp, bias=False)
                linear(f"{block}.{stream}mlp.w3", mlp, hidden, bias=False)
    else:
        mlp = int(4 * hidden * 2 / 3)
        time_and_patches("x_embedder", sizes["bottleneck_dim"], hidden)
        height, width = _sides(sizes["input_size"])
        shapes["pos_embed"] = (1, height // patch * (width // patch), hidden)
        if sizes["in_context_len"]:
            shapes["in_context_posemb"] = (1, sizes["in_context_len"], hidden)
        shapes["y_embedder.embedding_table.weight"] = (sizes["num_classes"] + 1, hidden)
        for block in (f"blocks.{i}" for i in range(sizes["depth"])):
            norms(block, hidden, "norm1", "norm2")
            norms(block, hidden // sizes["num_heads"], "attn.q_norm", "attn.k_norm")
            linear(f"{block}.attn.qkv", 3 * hidden, hidden)
            linear(f"{block}.attn.proj", hidden, hidden)
            linear(f"{block}.mlp.w12", 2 * mlp, hidden)
            linear(f"{block}.mlp.w3", hidden, mlp)
            linear(f"{block}.adaLN_modulation.1", 6 * hidden, hidden)
        linear("final_layer.adaLN_modulation.1", 2 * hidden, hidden)
    norms("final_layer", hidden, "norm_final")
    linear("final_layer.linear", patch * patch * 3, hidden)
    return shapes


def _sides(image_size) -> tuple[int, int]:
    return (image_size, image_size) if isinstance(image_size, int) else tuple(image_size)


def make_state(family: str, sizes: dict, seed: int = 0) -> dict[str, torch.Tensor]:
    """Random weights, none of them zero, that keep the scale of what they act on."""
    generator = torch.Generator().manual_seed(seed)
    state = {}
    for name, shape in shapes_of(family, sizes).items():
        value = torch.randn(shape, generator=generator)
        if "norm" in name:
            value = 1 + 0.2 * value
        elif name.endswith(".bias"):
            value = 0.1 * value
        elif len(shape) in (2, 4) and "embedding_table" not in name:
            value = value / value[0].numel() ** 0.5
        state[name] = value
    return state


def make_backbone(family: str, seed: int = 0, **changes) -> rti.Backbone:
    """A backbone in memory, with the weights that `save_minit2i` and `save_jit` write for the same seed."""
    sizes = SIZES[family] | changes
    backbone = build(family, sizes)
    fill(backbone, make_state(family, sizes, seed), torch.float32, "tiny")
    return backbone.eval()


def make_inputs(backbone: rti.Backbone, batch: int = 2, seed: int = 0):
    """Noisy images, their times, and what they are conditioned on."""
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(batch, 3, *backbone.image_size, generator=generator)
    t = torch.linspace(0.1, 0.9, batch)
    return x, t, make_condition(backbone, batch, generator)


def make_condition(backbone: rti.Backbone, batch: int, generator: torch.Generator | None = None):
    generator = generator or torch.Generator().manual_seed(0)
    config = backbone.config
    if backbone.family == "jit":
        return backbone.condition(labels=torch.arange(batch) % config.num_classes)
    text = torch.randn(batch, config.prompt_length, config.txt_input_size, generator=generator)
    words = 1 + torch.arange(batch) % config.prompt_length  # prompts of different lengths
    return backbone.condition(text=text, mask=torch.arange(config.prompt_length) < words[:, None])


def randomise_trainable(model: rti.ElasticModel, seed: int = 0) -> rti.ElasticModel:
    """Move what training would move away from its identity, the same way each time."""
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for name, parameter in model.trainable_parameters().items():
            value = 0.1 * torch.randn(parameter.shape, generator=generator)
            parameter.copy_(value if "lora_" in name else parameter + value)
    return model


def snapshot(module: torch.nn.Module) -> dict[str, torch.Tensor]:
    """A copy of every weight, to compare with later."""
    return {name: value.clone() for name, value in module.state_dict().items()}


def assert_same_state(module: torch.nn.Module, before: dict[str, torch.Tensor]) -> None:
    after = module.state_dict()
    assert list(after) == list(before)
    for name, value in before.items():
        assert torch.equal(after[name], value), name


# Files, as the releases lay them out.


def save_minit2i(
    folder: Path, seed: int = 0, shards: int = 1, weights: str = "diffusion_pytorch_model", **changes
) -> Path:
    """A folder with config.json and safetensors, in one file or in several with an index."""
    sizes = SIZES["minit2i"] | changes
    state = {f"model.net.{name}": value for name, value in make_state("minit2i", sizes, seed).items()}
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(sizes))
    if shards == 1:
        save_file(state, folder / f"{weights}.safetensors")
        return folder
    names = [f"{weights}-{i + 1:05}-of-{shards:05}.safetensors" for i in range(shards)]
    weight_map = {key: names[i % shards] for i, key in enumerate(state)}
    for name in names:
        save_file({key: value for key, value in state.items() if weight_map[key] == name}, folder / name)
    index = {"metadata": {}, "weight_map": weight_map}
    (folder / f"{weights}.safetensors.index.json").write_text(json.dumps(index))
    return folder


def save_scenes_model(folder: Path, **changes) -> Path:
    """A small text-to-image model of the scenes world with its words, untrained, in the release's layout."""
    save_minit2i(folder / "transformer", **changes)
    torch.manual_seed(0)
    WordEncoder(12).save_pretrained(folder / "text_encoder")
    return folder


def save_jit(folder: Path, seed: int = 0, config: bool = True, args: dict | None = None, **changes) -> Path:
    """A folder with checkpoint-last.pth; the real release has no config.json beside it."""
    sizes = SIZES["jit"] | changes
    folder.mkdir(parents=True, exist_ok=True)
    if config:
        (folder / "config.json").write_text(json.dumps(sizes))
    # Sampling uses model_ema1: only those weights are the ones of this seed.
    states = {"model_ema1": make_state("jit", sizes, seed)}
    states |= {"model": make_state("jit", sizes, seed + 100), "model_ema2": make_state("jit", sizes, seed + 200)}
    content = {key: {f"net.{name}": value for name, value in state.items()} for key, state in states.items()}
    content |= {"epoch": 1, "args": argparse.Namespace(**(args or {"model": "tiny"}))}
    torch.save(content, folder / "checkpoint-last.pth")
    return folder


SAVE = {"minit2i": save_minit2i, "jit": save_jit}


@contextmanager
def refused(*fragments: object, error: type[Exception] = rti.InputError):
    """Expect a one-line error that names what was given."""
    with pytest.raises(error) as caught:
        yield
    message = str(caught.value)
    assert "\n" not in message
    for fragment in fragments:
        assert str(fragment) in message
