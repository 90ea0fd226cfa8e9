"""Linear layers in int8: close, undone bit by bit, and refused where they cannot be."""

import json

import numpy as np
import pytest
import torch
from PIL import Image
from torch import nn

import rti
from close import assert_close
from rti.int8 import quantise
from test_cli import run, run_json
from tiny import CORE, DATA, assert_same_state, make_backbone, make_inputs, randomise_trainable, refused, snapshot

pytestmark = pytest.mark.skipif("x86" not in torch.backends.quantized.supported_engines, reason="no int8 on this CPU")


@pytest.mark.parametrize("family", ["minit2i", "jit"])
@torch.no_grad()
def test_a_model_in_int8_is_close_and_can_be_undone(family):
    backbone = make_backbone(family)
    inputs, before = make_inputs(backbone), snapshot(backbone)
    expected = backbone(*inputs)
    with quantise(backbone):
        blocks = backbone.repeated_blocks()
        assert not [m for block in blocks for m in block.modules() if type(m) is nn.Linear]
        close = backbone(*inputs)
        error = (close - expected).norm() / expected.norm()
        assert 1e-5 < error < 0.1
        with refused("int8 already"):
            quantise(backbone)
    assert_same_state(backbone, before)
    assert torch.equal(backbone(*inputs), expected)


@torch.no_grad()
def test_an_attached_model_runs_in_int8_once_its_lora_is_folded_in():
    model = rti.attach(make_backbone("minit2i"), rti.RegionConfig(core=CORE)).eval()
    inputs = make_inputs(model.backbone)
    with refused("LoRA", "fuse()"):
        quantise(model.backbone)
    expected = model.fuse()(*inputs, budget=16)
    with quantise(model.backbone):
        close = model(*inputs, budget=16)
    assert 1e-5 < (close - expected).norm() / expected.norm() < 0.1
    assert torch.equal(model(*inputs, budget=16), expected)


@pytest.mark.parametrize("family", ["minit2i", "jit"])
@torch.no_grad()
def test_a_picture_does_not_depend_on_those_beside_it(family):
    backbone = make_backbone(family)
    x, t, condition = make_inputs(backbone, batch=3)
    loud = torch.cat([x[:1], 50 * x[1:]])  # their activations have another range
    with quantise(backbone):
        beside_others, beside_loud = backbone(x, t, condition)[:1], backbone(loud, t, condition)[:1]
    assert_close(beside_loud, beside_others)


def test_half_precision_is_refused():
    with refused("float32", "bfloat16"):
        quantise(make_backbone("jit").to(torch.bfloat16))


def adapter_in(folder):
    model = rti.attach(rti.load_backbone(DATA / "jit-tiny"), rti.RegionConfig(core=(2, 3)))
    randomise_trainable(model).save_pretrained(folder)
    return folder


def pixels(path):
    with Image.open(path) as picture:
        return np.asarray(picture).astype(int)


def far(one, other):
    return np.abs(one - other).mean()


def test_sample_draws_in_int8_dense_and_with_an_adapter(capsys, tmp_path):
    arguments = ("sample", "--model", adapter_in(tmp_path / "adapter"), "--labels", 3, "--steps", 2, "--device", "cpu")
    for budgets in ("dense", "16"):
        drawn = {}
        for name, more in {"plain": (), "int8": ("--int8",), "another": ("--seed", 1)}.items():
            run_json(capsys, *arguments, "--budget", budgets, "-o", tmp_path / f"{name}.png", *more)
            drawn[name] = pixels(tmp_path / f"{name}.png")
        assert 0 < far(drawn["plain"], drawn["int8"]) < far(drawn["plain"], drawn["another"]) / 2
    code, _, err = run(capsys, *arguments, "--int8", "--dtype", "bfloat16", "-o", tmp_path / "no.png")
    assert (code, "int8 needs a float32 model" in err) == (2, True)
    assert not (tmp_path / "no.png").exists()


def test_generate_draws_in_int8_and_says_so(capsys, tmp_path):
    model = adapter_in(tmp_path / "adapter")
    for budget in ("dense", "16"):
        arguments = ("generate", model, "--prompts", "classes", "--count", 2, "--steps", 2, "--budget", budget)
        arguments += ("--device", "cpu", "-o")
        plain, in_int8 = tmp_path / f"{budget}", tmp_path / f"{budget}-int8"
        run_json(capsys, *arguments, plain)
        run_json(capsys, *arguments, in_int8, "--int8")
        assert json.loads((in_int8 / "manifest.json").read_text())["int8"] is True
        first, second = (pixels(plain / f"0000{index}.png") for index in range(2))
        assert 0 < far(first, pixels(in_int8 / "00000.png")) < far(first, second) / 2
        assert run(capsys, *arguments, in_int8)[0] == 2  # another way of drawing
