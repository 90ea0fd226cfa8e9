"""The networks against the authors' own outputs, and against a plain float64 reference of other sizes."""

import math
from functools import lru_cache

import numpy as np
import pytest
import torch

import rti
from rti.flow import velocity
from tiny import DATA, SIZES, make_backbone, make_inputs

TOLERANCE = 2e-5


@lru_cache
def golden(name: str) -> tuple[rti.Backbone, dict[str, torch.Tensor]]:
    arrays = np.load(DATA / name / "golden.npz")
    return rti.load_backbone(DATA / name), {key: torch.from_numpy(arrays[key]) for key in arrays}


def golden_condition(backbone: rti.Backbone, arrays: dict[str, torch.Tensor], labels: str = "y"):
    if backbone.family == "jit":
        return backbone.condition(labels=arrays[labels])
    return backbone.condition(text=arrays["text"], mask=arrays["mask"])


def assert_close(actual: torch.Tensor, expected: torch.Tensor, tolerance: float = TOLERANCE) -> None:
    assert actual.dtype == torch.float32
    torch.testing.assert_close(actual, expected, atol=tolerance, rtol=0, check_dtype=False)


@pytest.mark.parametrize("name", ["minit2i-tiny", "jit-tiny"])
@torch.no_grad()
def test_the_clean_image_is_the_authors(name):
    backbone, arrays = golden(name)
    assert_close(backbone(arrays["x"], arrays["t"], golden_condition(backbone, arrays)), arrays["x0"])


@pytest.mark.parametrize("name", ["minit2i-tiny", "jit-tiny"])
@torch.no_grad()
def test_an_attached_model_at_full_budget_gives_the_authors_clean_image(name):
    backbone, arrays = golden(name)
    with rti.attach(backbone, rti.RegionConfig(core=(1, 3))) as model:
        x0 = model(arrays["x"], arrays["t"], golden_condition(backbone, arrays), budget=backbone.patches)
    assert_close(x0, arrays["x0"])


@torch.no_grad()
def test_the_velocity_is_the_authors():
    """v = (x0 - x_t) / max(1 - t, 0.05) divides the rounding error of x0 by as little as 0.05, and guidance at scale s
    multiplies it by up to 2 s - 1 = 9. The authors' own float32 arrays are further than 2e-5 from a float64 run of the
    same network there, so x0's tolerance is applied to the velocity times that divisor."""
    backbone, arrays = golden("minit2i-tiny")
    x, t, condition = arrays["x"], arrays["t"], golden_condition(backbone, arrays)
    remaining = (1 - t).clamp_min(0.05).view(-1, 1, 1, 1)
    v = velocity(backbone(x, t, condition), x, t, backbone.flow.time_floor)
    v_unguided = velocity(backbone(x, t, backbone.unconditional(condition)), x, t, backbone.flow.time_floor)
    v_guided = v_unguided + 5 * (v - v_unguided)
    assert_close(v * remaining, arrays["v"] * remaining)
    assert_close(v_guided * remaining, arrays["v_cfg5"] * remaining, 9 * TOLERANCE)


@pytest.mark.parametrize(
    ("name", "result", "options"),
    [
        ("minit2i-tiny", "euler4_cfg5", dict(steps=4, guidance_scale=5.0)),
        ("jit-tiny", "heun5_cfg3_0p1_1p0", dict(steps=5, guidance_scale=3.0, guidance_interval=(0.1, 1.0))),
    ],
)
def test_sampling_gives_the_authors_images(name, result, options):
    backbone, arrays = golden(name)
    noise = backbone.flow.noise_scale * arrays["unit_noise"]
    condition = golden_condition(backbone, arrays, "labels")
    assert_close(rti.sample(backbone, noise, condition, **options), arrays[result])


# An independent reference, written from backbones.md: float64, explicit heads, positions and angles.


def rms_norm(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    return x / (x.square().mean(-1, keepdim=True) + 1e-6).sqrt() * weight


def silu(x: torch.Tensor) -> torch.Tensor:
    return x / (1 + torch.exp(-x))


class Reference:
    """What both families share. `state` is the checkpoint in float64, `sizes` its config."""

    def __init__(self, backbone: rti.Backbone, sizes: dict):
        self.state = {name: value.double() for name, value in backbone.state_dict().items()}
        self.sizes, self.grid, self.patch = sizes, backbone.grid, sizes["patch_size"]
        self.heads = sizes["num_heads"]

    def linear(self, name: str, x: torch.Tensor) -> torch.Tensor:
        result = torch.einsum("...i,oi->...o", x, self.state[f"{name}.weight"])
        return result + self.state[f"{name}.bias"] if f"{name}.bias" in self.state else result

    def norm(self, name: str, x: torch.Tensor) -> torch.Tensor:
        return rms_norm(x, self.state[f"{name}.weight"])

    def embed_patches(self, name: str, x: torch.Tensor) -> torch.Tensor:
        narrow, wide = self.state[f"{name}.proj1.weight"], self.state[f"{name}.proj2.weight"][:, :, 0, 0]
        tokens = []
        for row in range(self.grid[0]):
            for column in range(self.grid[1]):
                top, left = row * self.patch, column * self.patch
                pixels = x[:, :, top : top + self.patch, left : left + self.patch]
                tokens.append(torch.einsum("bchw,ochw->bo", pixels, narrow))
        return torch.einsum("bni,oi->bno", torch.stack(tokens, 1), wide) + self.state[f"{name}.proj2.bias"]

    def image_of(self, tokens: torch.Tensor) -> torch.Tensor:
        rows, columns = self.grid
        image = torch.zeros(len(tokens), 3, rows * self.patch, columns * self.patch, dtype=torch.float64)
        for index in range(rows * columns):
            top, left = index // columns * self.patch, index % columns * self.patch
            pixels = tokens[:, index].reshape(-1, self.patch, self.patch, 3)
            image[:, :, top : top + self.patch, left : left + self.patch] = pixels.permute(0, 3, 1, 2)
        return image

    def image_angles(self, head_dim: int) -> list[list[float]]:
        """One list per patch: the angles of its row, then those of its column, hd/4 each."""
        rates = [10000.0 ** (-2 * i / (head_dim / 2)) for i in range(head_dim // 4)]
        return [[row * f for f in rates] + [column * f for f in rates] for row, column in self.places()]

    def places(self) -> list[tuple[float, float]]:
        """Row and column of each patch; where patches are two apart, in the middle of the two they stand for."""
        spacing = self.sizes.get("patch_spacing", 1)
        rows, columns = ([spacing * i + (spacing - 1) / 2 for i in range(side)] for side in self.grid)
        return [(row, column) for row in rows for column in columns]

    def attend(self, qkv: torch.Tensor, norms: str, angles: torch.Tensor) -> torch.Tensor:
        """qkv packs as (3, heads, head dim); one head at a time. (B, L, 3 inner) -> (B, L, inner)."""
        inner = qkv.shape[-1] // 3
        size = inner // self.heads
        results = []
        for head in range(self.heads):
            q, k, v = (qkv[..., part * inner + head * size : part * inner + (head + 1) * size] for part in range(3))
            q = self.rotate(self.norm(f"{norms}q_norm", q), angles)
            k = self.rotate(self.norm(f"{norms}k_norm", k), angles)
            weights = (torch.einsum("bqd,bkd->bqk", q, k) / math.sqrt(size)).softmax(-1)
            results.append(torch.einsum("bqk,bkd->bqd", weights, v))
        return torch.cat(results, -1)


class MiniT2IReference(Reference):
    def rotate(self, x, angles):
        """Half rotation: the angles fill the head dim twice, and the halves of x pair up."""
        full = torch.cat([angles, angles], -1)
        first, second = x.chunk(2, -1)
        return x * full.cos() + torch.cat([-second, first], -1) * full.sin()

    def position(self, row: float, column: float) -> list[float]:
        quarter = self.sizes["hidden_size"] // 4
        angles = [[place * 10000.0 ** (-i / quarter) for i in range(quarter)] for place in (column, row)]
        return [function(a) for place in angles for function in (math.sin, math.cos) for a in place]

    def mlp(self, name, x):
        return self.linear(f"{name}.w2", silu(self.linear(f"{name}.w1", x)) * self.linear(f"{name}.w3", x))

    def __call__(self, x, t, condition):
        size = self.sizes["head_dim"]
        positions = torch.tensor([self.position(*place) for place in self.places()], dtype=torch.float64)
        image = self.embed_patches("img_embedder", x.double()) + positions
        words = torch.where(condition.mask[..., None], condition.states.double(), self.state["mask_token"])
        text = self.linear("txt_embedder", words)
        rates = [10000.0 ** (-2 * i / size) for i in range(size // 2)]
        text_angles = [[place * rate for rate in rates] for place in range(text.shape[1])]
        joint = torch.tensor(text_angles + self.image_angles(size), dtype=torch.float64)
        alone = joint[: text.shape[1]]
        for i in range(self.sizes["txt_preamble_depth"]):
            block = f"txt_preamble_blocks.{i}."
            mixed = self.attend(self.linear(f"{block}qkv", self.norm(f"{block}norm1", text)), block, alone)
            text = text + self.linear(f"{block}attn_proj", mixed)
            text = text + self.mlp(f"{block}mlp", self.norm(f"{block}norm2", text))
        for i in range(self.sizes["depth_double"]):
            block = f"double_blocks.{i}."
            streams = {"txt": text, "img": image}
            qkv = [self.linear(f"{block}{s}_qkv", self.norm(f"{block}{s}_norm1", x)) for s, x in streams.items()]
            mixed = self.attend(torch.cat(qkv, 1), block, joint)
            parts = {"txt": mixed[:, : text.shape[1]], "img": mixed[:, text.shape[1] :]}
            for s in streams:
                after = streams[s] + self.linear(f"{block}{s}_attn_proj", parts[s])
                streams[s] = after + self.mlp(f"{block}{s}_mlp", self.norm(f"{block}{s}_norm2", after))
            text, image = streams["txt"], streams["img"]
        return self.image_of(self.linear("final_layer.linear", self.norm("final_layer.norm_final", image)))


class JiTReference(Reference):
    def rotate(self, x, angles):
        """Interleaved rotation: each angle is repeated twice in place, for the elements 2i and 2i + 1."""
        full = angles.repeat_interleave(2, -1)
        turned = torch.empty_like(x)
        turned[..., 0::2], turned[..., 1::2] = -x[..., 1::2], x[..., 0::2]
        return x * full.cos() + turned * full.sin()

    def modulation(self, name, c, parts):
        return self.linear(f"{name}.adaLN_modulation.1", silu(c))[:, None].chunk(parts, -1)

    def __call__(self, x, t, condition):
        sizes, state = self.sizes, self.state
        rates = torch.tensor([10000.0 ** (-i / 128) for i in range(128)], dtype=torch.float64)
        angles = t.double()[:, None] * rates
        hidden = silu(self.linear("t_embedder.mlp.0", torch.cat([angles.cos(), angles.sin()], -1)))
        label = state["y_embedder.embedding_table.weight"][condition.labels]
        c = self.linear("t_embedder.mlp.2", hidden) + label

        tokens = self.embed_patches("x_embedder", x.double()) + state["pos_embed"]
        angles = torch.tensor(self.image_angles(sizes["hidden_size"] // self.heads), dtype=torch.float64)
        extra = 0
        for i in range(sizes["depth"]):
            if i == sizes["in_context_start"] and sizes["in_context_len"]:
                extra = sizes["in_context_len"]
                tokens = torch.cat([label[:, None] + state["in_context_posemb"], tokens], 1)
                angles = torch.cat([torch.zeros(extra, angles.shape[1], dtype=torch.float64), angles])
            block = f"blocks.{i}"
            shift1, scale1, gate1, shift2, scale2, gate2 = self.modulation(block, c, 6)
            qkv = self.linear(f"{block}.attn.qkv", self.norm(f"{block}.norm1", tokens) * (1 + scale1) + shift1)
            mixed = self.attend(qkv, f"{block}.attn.", angles)
            tokens = tokens + gate1 * self.linear(f"{block}.attn.proj", mixed)
            both = self.linear(f"{block}.mlp.w12", self.norm(f"{block}.norm2", tokens) * (1 + scale2) + shift2)
            gate, value = both.chunk(2, -1)
            tokens = tokens + gate2 * self.linear(f"{block}.mlp.w3", silu(gate) * value)
        shift, scale = self.modulation("final_layer", c, 2)
        tokens = self.norm("final_layer.norm_final", tokens[:, extra:]) * (1 + scale) + shift
        return self.image_of(self.linear("final_layer.linear", tokens))


REFERENCES = {"minit2i": MiniT2IReference, "jit": JiTReference}


@pytest.mark.parametrize(
    ("family", "changes"),
    [
        ("minit2i", {}),
        ("minit2i", dict(hidden_size=104, txt_hidden_size=104, cond_vec_size=104, head_dim=52, mlp_ratio=2.7)),
        ("minit2i", dict(image_size=[48, 96], patch_size=16, head_dim=12, num_heads=3, txt_preamble_depth=0)),
        ("minit2i", dict(image_size=[40, 56], patch_size=8, head_dim=20, depth_double=2, txt_preamble_depth=3)),
        (
            "minit2i",
            dict(image_size=[36, 12], head_dim=4, num_heads=5, cond_vec_size=20, depth_double=1, prompt_length=1),
        ),
        ("minit2i", dict(image_size=[16, 24], patch_spacing=2.0)),
        ("jit", {}),
        ("jit", dict(input_size=[16, 24], patch_spacing=2.0)),
        ("jit", dict(in_context_len=0)),
        ("jit", dict(hidden_size=104, num_heads=2, in_context_start=0, in_context_len=1)),
        ("jit", dict(input_size=[48, 96], patch_size=16, hidden_size=36, num_heads=3, in_context_start=4)),
        ("jit", dict(input_size=[40, 56], patch_size=8, hidden_size=60, num_heads=3, depth=3, in_context_start=3)),
        ("jit", dict(input_size=[36, 12], hidden_size=20, num_heads=5, depth=1, in_context_start=9, num_classes=1)),
    ],
)
@torch.no_grad()
def test_other_sizes_agree_with_a_plain_float64_reference(family, changes):
    backbone = make_backbone(family, seed=3, **changes)
    x, t, condition = make_inputs(backbone, batch=2, seed=5)
    expected = REFERENCES[family](backbone, SIZES[family] | changes)(x, t, condition)
    assert_close(backbone(x, t, condition), expected)
    one_time = REFERENCES[family](backbone, SIZES[family] | changes)(x, torch.full((2,), 0.3), condition)
    assert_close(backbone(x, 0.3, condition), one_time)


@torch.no_grad()
def test_text_shorter_than_the_limit_keeps_its_positions():
    backbone = make_backbone("minit2i")
    x, t, _ = make_inputs(backbone)
    condition = backbone.condition(text=torch.randn(2, 4, 12, generator=torch.Generator().manual_seed(0)))
    assert_close(backbone(x, t, condition), MiniT2IReference(backbone, SIZES["minit2i"])(x, t, condition))
    assert_close(backbone(x, t, backbone.prepare(condition)), backbone(x, t, condition), 0.0)


@torch.no_grad()
def test_without_a_prompt_every_word_is_the_mask_token():
    backbone = make_backbone("minit2i")
    x, t, condition = make_inputs(backbone)
    blank = backbone.unconditional(condition)
    assert not blank.mask.any()
    assert_close(backbone(x, t, blank), MiniT2IReference(backbone, SIZES["minit2i"])(x, t, blank))
    other_words = backbone.condition(text=torch.ones_like(condition.states), mask=torch.zeros(2, 6))
    assert_close(backbone(x, t, other_words), backbone(x, t, blank), 0.0)


@torch.no_grad()
def test_without_a_class_the_label_is_the_null_class():
    backbone = make_backbone("jit")
    x, t, condition = make_inputs(backbone)
    blank = backbone.unconditional(condition)
    assert blank.labels.tolist() == [10, 10]
    assert_close(backbone(x, t, blank), JiTReference(backbone, SIZES["jit"])(x, t, blank))
