"""The networks against the authors' own outputs, and against a plain float64 reference of other sizes."""

import math
from dataclasses import asdict
from functools import lru_cache

import numpy as np
import pytest
import torch

import rti
from close import EPSILON, assert_close
from rti.backbones.layers import RMSNorm, TimeEmbed
from rti.flow import velocity
from tiny import DATA, SIZES, make_backbone, make_inputs


class Golden:
    """One of the authors' checkpoints with the arrays that their code gave for it, and the same network in float64."""

    def __init__(self, name: str):
        arrays = np.load(DATA / name / "golden.npz")
        self.arrays = {key: torch.from_numpy(arrays[key]) for key in arrays}
        self.backbone = rti.load_backbone(DATA / name)
        self.exact = REFERENCES[self.backbone.family](self.backbone, asdict(self.backbone.config))

    def condition(self, labels: str = "y"):
        if self.backbone.family == "jit":
            return self.backbone.condition(labels=self.arrays[labels])
        return self.backbone.condition(text=self.arrays["text"], mask=self.arrays["mask"])

    @property
    def inputs(self):
        return self.arrays["x"], self.arrays["t"], self.condition()


golden = lru_cache(Golden)


def assert_authors(ours: torch.Tensor, authors: torch.Tensor, exact: torch.Tensor, gain: float = 1.0) -> None:
    """The authors' array is float32 too: it must be the float64 result but for rounding, and ours may be as far from it
    as rounding takes us and as it is from float64."""
    assert_close(authors, exact, gain=gain)
    assert_close(ours, authors, gain=gain, apart=(authors - exact).abs().max().item())


@pytest.mark.parametrize("name", ["minit2i-tiny", "jit-tiny"])
@torch.no_grad()
def test_the_clean_image_is_the_authors_also_of_an_attached_model_at_full_budget(name):
    case = golden(name)
    exact, authors = case.exact(*case.inputs), case.arrays["x0"]
    assert_authors(case.backbone(*case.inputs), authors, exact)
    with rti.attach(case.backbone, rti.RegionConfig(core=(1, 3))) as model:
        assert_authors(model(*case.inputs, budget=case.backbone.patches), authors, exact)


@torch.no_grad()
def test_the_velocity_is_the_authors():
    """v = (x0 - x_t) / max(1 - t, 0.05) divides the rounding error of x0 by as little as 0.05, so it is compared times
    that divisor. Guidance at scale 5 multiplies the error by up to 9."""
    case = golden("minit2i-tiny")
    x, t, condition = case.inputs
    conditions = (condition, case.backbone.unconditional(condition))
    remaining = (1 - t).clamp_min(0.05).view(-1, 1, 1, 1)
    floor = case.backbone.flow.time_floor
    v, v_unguided = (velocity(case.backbone(x, t, one), x, t, floor) * remaining for one in conditions)
    exact, unguided = (case.exact(x, t, one) - x for one in conditions)
    assert_authors(v, case.arrays["v"] * remaining, exact)
    guided = unguided + 5 * (exact - unguided)
    assert_authors(v_unguided + 5 * (v - v_unguided), case.arrays["v_cfg5"] * remaining, guided, gain=9)


@torch.no_grad()
def exact_sample(network, x, conditions, steps: int, guidance_scale: float, guided_from: float, heun: bool):
    """The sampling loop in float64. `conditions`: with the prompt or class, and without."""

    def slope(x: torch.Tensor, t: float) -> torch.Tensor:
        clean, blank = (network(x, torch.full((len(x),), t, dtype=torch.float64), one) for one in conditions)
        if t >= guided_from:
            clean = blank + guidance_scale * (clean - blank)
        return (clean - x) / max(1 - t, 0.05)

    for step in range(steps):
        t, length = step / steps, 1 / steps
        first = slope(x, t)
        if heun and step < steps - 1:
            first = (first + slope(x + length * first, t + length)) / 2
        x = x + length * first
    return x


@pytest.mark.parametrize(
    ("name", "result", "scale", "steps", "options", "guided_from"),
    [
        ("minit2i-tiny", "euler4_cfg5", 5.0, 4, {}, 0.0),
        ("jit-tiny", "heun5_cfg3_0p1_1p0", 3.0, 5, dict(guidance_interval=(0.1, 1.0)), 0.1),
    ],
)
def test_sampling_gives_the_authors_images(name, result, scale, steps, options, guided_from):
    """The last step ends at its own clean image, so that image's rounding is what is seen, as guidance enlarges it."""
    case = golden(name)
    noise = case.backbone.flow.noise_scale * case.arrays["unit_noise"]
    condition = case.condition("labels")
    conditions = (condition, case.backbone.unconditional(condition))
    exact = exact_sample(case.exact, noise.double(), conditions, steps, scale, guided_from, heun="heun" in result)
    images = rti.sample(case.backbone, noise, condition, steps=steps, guidance_scale=scale, **options)
    assert_authors(images, case.arrays[result], exact, gain=2 * scale - 1)


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
    assert torch.equal(backbone(x, t, backbone.prepare(condition)), backbone(x, t, condition))


@torch.no_grad()
def test_without_a_prompt_every_word_is_the_mask_token():
    backbone = make_backbone("minit2i")
    x, t, condition = make_inputs(backbone)
    blank = backbone.unconditional(condition)
    assert not blank.mask.any()
    assert_close(backbone(x, t, blank), MiniT2IReference(backbone, SIZES["minit2i"])(x, t, blank))
    other_words = backbone.condition(text=torch.ones_like(condition.states), mask=torch.zeros(2, 6))
    assert torch.equal(backbone(x, t, other_words), backbone(x, t, blank))


@torch.no_grad()
def test_without_a_class_the_label_is_the_null_class():
    backbone = make_backbone("jit")
    x, t, condition = make_inputs(backbone)
    blank = backbone.unconditional(condition)
    assert blank.labels.tolist() == [10, 10]
    assert_close(backbone(x, t, blank), JiTReference(backbone, SIZES["jit"])(x, t, blank))


# Constants whose small errors drown in the rounding of a whole network.


def test_the_norm_divides_by_the_root_of_the_mean_square_and_a_millionth():
    """Of values whose mean square is a millionth too, so that the two count alike."""
    x = 1e-3 * torch.randn(4, 16, generator=torch.Generator().manual_seed(0))
    assert_close(RMSNorm(16)(x).detach(), rms_norm(x.double(), torch.ones(16)))


@pytest.mark.parametrize("family", SIZES)
@pytest.mark.parametrize("spacing", [1.0, 2.0])
def test_the_tables_of_positions_are_float64_rounded_once(family, spacing):
    backbone = make_backbone(family, patch_spacing=spacing)
    reference = REFERENCES[family](backbone, SIZES[family] | dict(patch_spacing=spacing))
    angles = torch.tensor(reference.image_angles(16), dtype=torch.float64)
    tables = {backbone.patch_phasors: torch.cat([angles.cos(), angles.sin()], dim=-1)}
    if family == "minit2i":
        positions = [reference.position(*place) for place in reference.places()]
        tables[backbone.patch_table] = torch.tensor(positions, dtype=torch.float64)
    for table, exact in tables.items():
        torch.testing.assert_close(table()[0].double(), exact, atol=EPSILON, rtol=0)


def test_the_sinusoids_of_the_time_are_those_of_128_rates():
    """Angles up to 1, each the product of two rounded numbers."""
    module, seen, t = TimeEmbed(8), [], torch.tensor([0.3, 1.0])
    module.mlp.register_forward_pre_hook(lambda _, inputs: seen.append(inputs[0]))
    module(t)
    rates = torch.tensor([10000.0 ** (-i / 128) for i in range(128)], dtype=torch.float64)
    angles = t.double()[:, None] * rates
    exact = torch.cat([angles.cos(), angles.sin()], dim=-1)
    torch.testing.assert_close(seen[0].double(), exact, atol=4 * EPSILON, rtol=0)
