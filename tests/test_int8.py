"""Linear layers in int8: close, undone bit by bit, and refused where they cannot be."""

import pytest
import torch
from torch import nn

import rti
from rti.int8 import quantise
from tiny import CORE, assert_same_state, make_backbone, make_inputs, refused, snapshot

pytestmark = pytest.mark.skipif("x86" not in torch.backends.quantized.supported_engines, reason="no int8 on this CPU")


@pytest.mark.parametrize("family", ["minit2i", "jit"])
@torch.no_grad()
def test_a_model_in_int8_is_close_and_can_be_undone(family):
    backbone = make_backbone(family)
    inputs, before = make_inputs(backbone), snapshot(backbone)
    expected = backbone(*inputs)
    with quantise(backbone) as handle:
        blocks = backbone.repeated_blocks()
        assert not [m for block in blocks for m in block.modules() if type(m) is nn.Linear]
        close = backbone(*inputs)
        error = (close - expected).norm() / expected.norm()
        assert 1e-5 < error < 0.1
        with refused("int8 already"):
            quantise(backbone)
    assert handle.originals == []
    assert_same_state(backbone, before)
    assert torch.equal(backbone(*inputs), expected)


@torch.no_grad()
def test_an_attached_model_runs_in_int8_once_its_lora_is_folded_in():
    model = rti.attach(make_backbone("minit2i"), rti.RegionConfig(core=CORE)).eval()
    inputs = make_inputs(model.backbone)
    with refused("LoRA", "merge()"):
        quantise(model.backbone)
    expected = model.merge()(*inputs, budget=16)
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
    torch.testing.assert_close(beside_loud, beside_others, atol=1e-5, rtol=1e-5)


def test_half_precision_is_refused():
    with refused("float32", "bfloat16"):
        quantise(make_backbone("jit").to(torch.bfloat16))
