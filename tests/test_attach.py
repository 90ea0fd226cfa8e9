"""Attaching a reduction: identity when fresh, no trace when detached, and at home with other adapters."""

import itertools

import peft
import pytest
import torch
from torch import nn

import rti
from close import assert_close
from rti.method.budgets import resolve_budget
from rti.method.config import CUT_NAMES, CUT_SOURCES, ORDER_NAMES
from rti.method.reductions.region import RegionReduction
from tiny import (
    CORE,
    assert_same_state,
    make_backbone,
    make_condition,
    make_inputs,
    randomise_trainable,
    refused,
    snapshot,
)


def fresh(backbone, **options) -> rti.ElasticModel:
    return rti.attach(backbone, rti.RegionConfig(**{"core": CORE, "lora_rank": 4, "lora_alpha": 4} | options))


def trained(backbone, **options) -> rti.ElasticModel:
    """A model as training would leave it: nothing is the identity."""
    return randomise_trainable(fresh(backbone, **options)).eval()


@pytest.fixture
def inputs(backbone):
    return make_inputs(backbone, batch=3)


# Fresh parameters: the frozen model.


@pytest.mark.parametrize("order", ORDER_NAMES)
@torch.no_grad()
def test_a_fresh_model_at_full_budget_is_the_frozen_backbone(backbone, inputs, order):
    frozen, patches, depth = backbone(*inputs), backbone.patches, backbone.depth
    estimate = torch.randn_like(inputs[0])
    for cuts, source in itertools.product(CUT_NAMES, CUT_SOURCES):
        with fresh(backbone, core=(0, depth - 1), order=order, cuts=cuts, cuts_from=source) as model:
            assert_close(model(*inputs, budget=patches), frozen)
            assert_close(model(*inputs, budget=None, estimate=estimate), frozen)


@torch.no_grad()
def test_a_fresh_model_is_the_frozen_backbone_wherever_its_core_is(backbone, inputs):
    """Every core of the trunk, so also those that end before, start at and start after JiT's block 2, at which the
    class tokens join."""
    frozen = backbone(*inputs)
    for core in itertools.combinations_with_replacement(range(backbone.depth), 2):
        with fresh(backbone, core=core) as model:
            assert_close(model(*inputs, budget=backbone.patches), frozen)


@pytest.mark.parametrize(
    ("family", "changes"), [("minit2i", dict(image_size=[20, 28])), ("jit", dict(input_size=[36, 4]))]
)
@torch.no_grad()
def test_a_fresh_model_is_the_frozen_backbone_on_a_grid_that_is_not_square(family, changes):
    backbone = make_backbone(family, **changes)
    inputs = make_inputs(backbone)
    frozen = backbone(*inputs)
    for order in ORDER_NAMES:
        with fresh(backbone, order=order) as model:
            assert_close(model(*inputs, budget=backbone.patches), frozen)
            assert model(*inputs, budget=1).shape == frozen.shape


@torch.no_grad()
def test_a_smaller_budget_changes_the_answer(backbone, inputs):
    model = fresh(backbone)
    dense = model(*inputs)
    errors = [(model(*inputs, budget=budget) - dense).square().mean().item() for budget in (2, 16, 48, 64)]
    assert errors[0] > errors[1] > errors[2] > 1e-4 > errors[3]


@torch.no_grad()
def test_bfloat16_runs_and_stays_close(backbone, inputs):
    expected = trained(backbone)(*inputs, budget=24)
    half = make_backbone(backbone.family).to(torch.bfloat16)
    model = trained(half)
    assert {p.dtype for p in model.parameters()} == {torch.bfloat16}
    result = model(*inputs, budget=24)
    assert result.dtype == torch.float32
    assert ((result - expected).square().mean() / expected.square().mean()).sqrt() < 0.2  # some cuts differ


# Detaching.


def traces(module: nn.Module) -> dict:
    """All that attaching could leave behind, apart from the values of the weights."""
    return {
        "classes": {name: type(part) for name, part in module.named_modules()},
        "attributes": {name: sorted(vars(part)) for name, part in module.named_modules()},
        "grad": {name: parameter.requires_grad for name, parameter in module.named_parameters()},
        "hooks": {
            name: len(part._forward_hooks) + len(part._forward_pre_hooks) for name, part in module.named_modules()
        },
        "training": {name: part.training for name, part in module.named_modules()},
        "identity": {name: id(parameter) for name, parameter in module.named_parameters()},
    }


def train(model: rti.ElasticModel, inputs) -> None:
    """One step of gradient descent."""
    optimiser = torch.optim.SGD(model.trainable_parameters().values(), lr=0.1)
    model(*inputs, budget=8).square().mean().backward()
    optimiser.step()


def train_and_merge(model: rti.ElasticModel, inputs) -> None:
    train(model, inputs)
    model.fuse()


USES = [lambda model, inputs: None, lambda model, inputs: model.fuse(), train, train_and_merge]


@pytest.mark.parametrize("use", USES, ids=["unused", "merged", "trained", "trained and merged"])
def test_detaching_leaves_no_trace(backbone, inputs, use):
    backbone.depth_before = None  # an attribute of the user's own stays
    next(backbone.parameters()).requires_grad_(False)  # so does the user's choice of what trains
    before, state = traces(backbone), snapshot(backbone)
    with torch.no_grad():
        expected = backbone(*inputs)
    model = trained(backbone)
    use(model, inputs)
    with torch.no_grad():
        assert not torch.equal(model(*inputs, budget=8), expected)
    returned = model.detach()
    assert returned is backbone
    after = traces(backbone)
    after["attributes"][""] = [name for name in after["attributes"][""] if name != "attached"]
    before["attributes"][""] = [name for name in before["attributes"][""] if name != "attached"]
    assert after == before
    assert not backbone.attached
    assert not hasattr(backbone, "peft_config")
    assert all(parameter.grad is None for parameter in backbone.parameters())
    assert_same_state(backbone, state)
    with torch.no_grad():
        assert torch.equal(backbone(*inputs), expected)


@torch.no_grad()
def test_attaching_again_after_detaching_works(backbone, inputs):
    first = trained(backbone)
    expected = first(*inputs, budget=8)
    fresh(first.detach(), core=(0, 0)).detach()
    assert torch.equal(trained(backbone)(*inputs, budget=8), expected)


def test_a_with_block_detaches_at_its_end_and_after_an_exception(backbone, inputs):
    before, state = traces(backbone)["classes"], snapshot(backbone)
    with fresh(backbone) as model:
        assert backbone.attached
        assert isinstance(model, rti.ElasticModel)
    assert traces(backbone)["classes"] == before
    with pytest.raises(ZeroDivisionError), fresh(backbone) as model:
        model.fuse()
        raise ZeroDivisionError
    assert traces(backbone)["classes"] == before
    assert_same_state(backbone, state)
    with fresh(backbone) as model:
        model.detach()  # by hand, before the block ends
    assert not backbone.attached


def test_detaching_twice_is_refused(backbone):
    model = fresh(backbone)
    model.detach()
    with refused("detached", "rti.attach"):
        model.detach()


def test_a_detached_model_says_so_when_it_is_used(backbone, inputs, tmp_path):
    model = fresh(backbone)
    model.detach()
    for use in (
        lambda: model(*inputs, budget=8),
        lambda: model.regions(*inputs, budget=8),
        lambda: model.fuse(),
        lambda: model.save_pretrained(tmp_path),
    ):
        with refused("detached"):
            use()
    assert list(tmp_path.iterdir()) == []


# What cannot be attached.


def test_attaching_twice_is_refused(backbone, inputs):
    model = fresh(backbone)
    expected = model(*inputs, budget=8)
    with refused("already", "detach"):
        fresh(backbone)
    with refused("already", "detach"):
        fresh(model)
    assert torch.equal(model(*inputs, budget=8), expected)


@pytest.mark.parametrize("module", [nn.Linear(2, 2), nn.Sequential(nn.Linear(2, 2)), None, "minit2i-b16"])
def test_an_unknown_module_is_refused(module):
    with refused(type(module).__name__, "JiT", "MiniT2I", error=TypeError):
        fresh(module)


@pytest.mark.parametrize("config", [None, {"core": (1, 2)}, rti.RegionConfig, (1, 2)])
def test_what_is_no_config_is_refused(backbone, config):
    with refused("RegionConfig", type(config).__name__):
        rti.attach(backbone, config)
    assert not backbone.attached


@pytest.mark.parametrize("core", [(-1, 2), (2, 1), (1,), (1, 2, 3), "12", None, (1.0, 2.0), (True, True), 3])
def test_a_core_that_is_none_is_refused(core):
    with refused(repr(core), "first <= last"):
        rti.RegionConfig(core=core)


def test_a_core_outside_the_trunk_is_refused(backbone):
    before = traces(backbone)
    for core in ((0, backbone.depth), (99, 99)):
        with refused(core, f"0 to {backbone.depth - 1}"):
            fresh(backbone, core=core)
    assert traces(backbone) == before


def test_a_budget_that_is_none_is_refused(backbone, inputs):
    model = fresh(backbone)
    for budget in (0, -1, 65, 0.0, -0.5, 1.5, float("nan"), float("inf"), True, b"8", [8]):
        for call in (model, model.regions):
            with refused(repr(budget), "1 to 64", "(0, 1]"):
                call(*inputs, budget=budget)


@pytest.mark.parametrize(
    ("budget", "regions"), [(None, 64), (1, 1), (64, 64), (1.0, 64), (0.25, 16), (1e-9, 1), (0.5, 32)]
)
def test_a_budget_is_a_number_a_share_or_all(budget, regions):
    assert resolve_budget(budget, 64) == regions


# Independence: of the batch, of calls before, of the branch.


@pytest.mark.parametrize("cuts", CUT_NAMES)
@pytest.mark.parametrize("source", CUT_SOURCES)
@torch.no_grad()
def test_a_batch_of_five_equals_five_singles(backbone, cuts, source):
    model = trained(backbone, cuts=cuts, cuts_from=source)
    x, t, condition = make_inputs(backbone, batch=5)
    estimate = torch.randn_like(x)
    for budget in (1, 7, 63):
        together = model(x, t, condition, budget=budget, estimate=estimate)
        for i in range(5):
            one = slice(i, i + 1)
            alone = model(x[one], t[one], condition[one], budget=budget, estimate=estimate[one])
            assert_close(alone, together[one])


@torch.no_grad()
def test_nothing_survives_a_forward_pass(backbone, inputs):
    model = trained(backbone, cuts="merge", cuts_from="estimate")
    estimate = torch.randn_like(inputs[0])
    state, attributes = snapshot(model), traces(model)["attributes"]
    first = model(*inputs, budget=12, estimate=estimate)
    model(*make_inputs(backbone, batch=5, seed=9), budget=40)
    model.regions(*make_inputs(backbone, batch=1, seed=8), budget=3, estimate=-estimate[:1])
    backbone(*inputs)
    assert torch.equal(model(*inputs, budget=12, estimate=estimate), first)
    assert_same_state(model, state)
    assert traces(model)["attributes"] == attributes


# Regions.


def is_connected(ids: torch.Tensor, region: int) -> bool:
    """Flood fill over neighbours up, down, left and right."""
    cells = {tuple(cell) for cell in (ids == region).nonzero().tolist()}
    waiting = [next(iter(cells))]
    seen = set(waiting)
    while waiting:
        row, column = waiting.pop()
        around = {(row - 1, column), (row + 1, column), (row, column - 1), (row, column + 1)}
        waiting += (around & cells) - seen
        seen |= around & cells
    return seen == cells


@pytest.mark.parametrize("cuts", CUT_NAMES)
@pytest.mark.parametrize("source", CUT_SOURCES)
@torch.no_grad()
def test_regions_are_what_a_forward_pass_uses(backbone, inputs, monkeypatch, cuts, source):
    model = trained(backbone, cuts=cuts, cuts_from=source)
    estimate = torch.randn_like(inputs[0])
    used, original = [], RegionReduction.regions

    def spy(self, *arguments):
        used.append(original(self, *arguments))
        return used[-1]

    for budget in (1, 9, 33, 64):
        ids = model.regions(*inputs, budget=budget, estimate=estimate)
        with monkeypatch.context() as patch:
            patch.setattr(RegionReduction, "regions", spy)
            model(*inputs, budget=budget, estimate=estimate)
        assert torch.equal(used[-1], ids)
        assert ids.shape == (3, 64)
        assert ids.dtype == torch.int64
        for image in ids:
            assert sorted(set(image.tolist())) == list(range(budget))
            assert all(is_connected(image.view(8, 8), region) for region in range(budget))


@torch.no_grad()
def test_regions_are_counted_along_the_walk_over_row_major_patches(backbone, inputs):
    for order in ORDER_NAMES:
        walk, _ = rti.order(order, *backbone.grid)
        with fresh(backbone, order=order) as model:
            along = model.regions(*inputs, budget=20)[:, walk]
        steps = along[:, 1:] - along[:, :-1]
        assert (along[:, 0] == 0).all()
        assert set(steps.unique().tolist()) == {0, 1}


@torch.no_grad()
def test_cuts_follow_the_estimate_where_they_come_from_it(backbone, inputs):
    """Halves of one colour each: two regions are the two halves, whatever the noisy image says."""
    estimate = torch.full_like(inputs[0], -1.0)
    estimate[:, :, :, 16:] = 1.0  # the curve visits the left half first
    for cuts in ("gaps", "merge"):
        with fresh(backbone, cuts=cuts, cuts_from="estimate") as model:
            ids = model.regions(*inputs, budget=2, estimate=estimate).view(3, 8, 8)
        assert (ids[:, :, :4] == 0).all()
        assert (ids[:, :, 4:] == 1).all()


@torch.no_grad()
def test_an_estimate_is_ignored_where_cuts_come_from_the_features(backbone, inputs):
    model = trained(backbone)
    ids = model.regions(*inputs, budget=12)
    assert torch.equal(model.regions(*inputs, budget=12, estimate=torch.randn_like(inputs[0])), ids)
    assert len({tuple(image) for image in ids.tolist()}) == 3  # each image has cuts of its own


@torch.no_grad()
def test_without_an_estimate_the_cuts_are_fixed(backbone, inputs):
    with fresh(backbone, cuts="fixed") as model:
        expected = model.regions(*inputs, budget=13)
        result = model(*inputs, budget=13)
    for cuts in CUT_NAMES:
        with fresh(backbone, cuts=cuts, cuts_from="estimate") as model:
            assert torch.equal(model.regions(*inputs, budget=13), expected)
            assert_close(model(*inputs, budget=13), result)


@torch.no_grad()
def test_one_estimate_serves_both_guidance_branches(backbone, inputs):
    x, t, condition = inputs
    estimate = torch.randn_like(x)
    model = trained(backbone, cuts="merge", cuts_from="estimate")
    both = type(condition).cat([condition, model.unconditional(condition)])
    doubled = (torch.cat([x, x]), torch.cat([t, t]), both)
    once = model(*doubled, budget=11, estimate=estimate)
    assert torch.equal(once, model(*doubled, budget=11, estimate=torch.cat([estimate, estimate])))
    ids = model.regions(*doubled, budget=11, estimate=estimate)
    assert torch.equal(ids[:3], ids[3:])
    assert torch.equal(ids[:3], model.regions(*inputs, budget=11, estimate=estimate))


def test_an_estimate_of_another_shape_is_refused(backbone, inputs):
    model = fresh(backbone, cuts_from="estimate")
    for shape in ((2, 3, 32, 32), (3, 3, 32, 28), (3, 3, 32), (0, 3, 32, 32), (6, 3, 32, 32), (3, 32, 32)):
        with refused(shape, "batch of 3"):
            model(*inputs, budget=8, estimate=torch.zeros(shape))


# Training.


def test_only_the_lora_and_the_interface_train(backbone, inputs):
    state = snapshot(backbone)
    model = fresh(backbone)
    train(model, inputs)
    train(model, inputs)  # LoRA's A moves only once B has left zero
    last = f"backbone.double_blocks.{backbone.depth - 1}.txt_"  # MiniT2I: nothing reads the text after the last block
    unread = (f"{last}attn_proj.", f"{last}mlp.")
    for name, parameter in model.named_parameters():
        ours = name.startswith("reduction.") or ".lora_A.rti." in name or ".lora_B.rti." in name
        assert parameter.requires_grad == ours, name
        assert (parameter.grad is not None and parameter.grad.any()) == (ours and not name.startswith(unread)), name
    assert_same_state(model.detach(), state)


def test_the_set_of_trainable_names_is_exact(family):
    backbone = make_backbone(family)
    if family == "minit2i":
        block = ["qkv", "attn_proj", "mlp.w1", "mlp.w2", "mlp.w3"]
        layers = [f"txt_preamble_blocks.{i}.{layer}" for i in range(2) for layer in block]
        layers += [
            f"double_blocks.{i}.{stream}_{layer}" for i in range(4) for stream in ("img", "txt") for layer in block
        ]
    else:
        block = ["attn.qkv", "attn.proj", "mlp.w12", "mlp.w3"]
        layers = [f"blocks.{i}.{layer}" for i in range(5) for layer in block] + ["final_layer.adaLN_modulation.1"]
    expected = {
        f"backbone.{layer}.lora_{matrix}.rti.weight" for layer in [*layers, "final_layer.linear"] for matrix in "AB"
    }
    interface = ("read.score", "read.size_embedding", "write.g.weight", "write.g.bias")
    expected |= {f"reduction.{name}" for name in interface}
    assert set(fresh(backbone).trainable_parameters()) == expected


def test_the_rank_and_alpha_of_the_config_are_those_of_the_lora(backbone, inputs):
    model = trained(backbone, lora_rank=3, lora_alpha=6)
    shapes = {p.shape[0] for name, p in model.named_parameters() if "lora_A" in name}
    assert shapes == {3}
    layers = [m for m in backbone.modules() if isinstance(m, peft.tuners.lora.LoraLayer)]
    assert {layer.scaling["rti"] for layer in layers} == {2.0}


# Merging.


@torch.no_grad()
def test_merging_changes_nothing_but_the_speed_and_unmerging_is_exact(backbone, inputs):
    model = trained(backbone)
    state, expected = snapshot(model), model(*inputs, budget=20)
    assert model.fuse() is model
    assert model.fused
    once = snapshot(model)
    folded = {name.replace(".base_layer", ""): value for name, value in state.items() if ".base_layer" in name}
    assert any(not torch.equal(once[name], value) for name, value in folded.items())
    assert not [name for name in once if "lora_" in name]  # nothing of PEFT is left in the way
    assert_close(model(*inputs, budget=20), expected)
    model.fuse()
    assert_same_state(model, once)  # twice is once
    assert model.unfuse() is model
    assert not model.fused
    model.unfuse()
    assert_same_state(model, state)
    assert torch.equal(model(*inputs, budget=20), expected)


@pytest.mark.parametrize("merged", [False, True])
@torch.no_grad()
def test_the_dense_backbone_is_at_hand(backbone, inputs, merged):
    frozen = backbone.requires_grad_(False)(*inputs)  # torch multiplies weights that train in another order
    model = trained(backbone)
    if merged:
        model.fuse()
    state, expected = snapshot(model), model(*inputs, budget=20)
    with model.dense() as dense:
        assert torch.equal(dense(*inputs), frozen)
    assert model.fused == merged
    assert_same_state(model, state)
    assert torch.equal(model(*inputs, budget=20), expected)
    with pytest.raises(ZeroDivisionError), model.dense():
        raise ZeroDivisionError
    assert model.fused == merged
    assert torch.equal(model(*inputs, budget=20), expected)


# The user's own LoRA.


def give_lora(backbone, wrap: bool, name: str = "theirs", seed: int = 5):
    """A LoRA of the user's, with weights that matter; by PEFT's function or its wrapper."""
    shared, theirs_alone = (
        ("img_qkv", "txt_embedder") if backbone.family == "minit2i" else ("attn.qkv", "t_embedder.mlp.2")
    )
    targets = [shared, theirs_alone]  # one kind of layer that gets our LoRA too, and one that does not
    config = peft.LoraConfig(r=2, lora_alpha=4, target_modules=targets)
    user = (
        peft.get_peft_model(backbone, config, adapter_name=name)
        if wrap
        else peft.inject_adapter_in_model(config, backbone, adapter_name=name)
    )
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for key, parameter in backbone.named_parameters():
            if f"lora_B.{name}" in key:
                parameter += 0.2 * torch.randn(parameter.shape, generator=generator)
    return user.eval()


@pytest.mark.parametrize("wrap", [False, True])
@torch.no_grad()
def test_a_users_lora_stays_active(backbone, inputs, wrap):
    plain = backbone(*inputs)
    user = give_lora(backbone, wrap)
    theirs, before, state = backbone(*inputs), traces(user), snapshot(user)
    assert (theirs - plain).abs().max() > 1e-2

    model = fresh(user)
    assert_close(model(*inputs, budget=64), theirs)
    model.fuse()
    assert_close(model(*inputs, budget=64), theirs)
    model.unfuse()

    randomise_trainable(model)
    with model.dense() as dense:
        assert_close(dense(*inputs), theirs)
    model.fuse()
    with model.dense() as dense:
        assert_close(dense(*inputs), theirs)

    assert model.detach() is backbone
    assert torch.equal(backbone(*inputs), theirs)
    assert_same_state(user, state)
    after = traces(user)
    assert after["classes"] == before["classes"]
    assert after["grad"] == before["grad"]
    assert list(backbone.peft_config) == ["theirs"]
    if wrap:
        user.merge_and_unload()
        assert_close(backbone(*inputs), theirs)


@torch.no_grad()
def test_a_users_lora_and_ours_add_up(backbone, inputs):
    """Merging all by hand gives the same: W + theirs + ours."""
    give_lora(backbone, wrap=False)
    model = trained(backbone)
    expected = model(*inputs, budget=64)
    for layer in backbone.modules():
        if isinstance(layer, peft.tuners.lora.LoraLayer):
            layer.get_base_layer().weight += sum(layer.get_delta_weight(name) for name in layer.lora_A)
            for matrix in layer.lora_B.values():
                matrix.weight.zero_()
    assert_close(model(*inputs, budget=64), expected)


KINDS = {
    "a LoRA on the patch embedding": peft.LoraConfig(r=2, target_modules=["proj1", "proj2"]),
    "a LoRA on the class embedding": peft.LoraConfig(r=2, target_modules=["embedding_table", "attn.proj"]),
    "a LoRA with biases": peft.LoraConfig(r=2, target_modules=["attn.qkv"], lora_bias=True, bias="all"),
    "a DoRA": peft.LoraConfig(r=2, target_modules=["attn.qkv"], use_dora=True),
}
REFUSED_KINDS = {
    "whole layers": peft.LoraConfig(r=2, target_modules=["attn.qkv"], modules_to_save=["x_embedder"]),
    "our head": peft.LoraConfig(r=2, target_modules=["attn.qkv"], modules_to_save=["final_layer.linear"]),
    "an IA3": peft.IA3Config(target_modules=["attn.qkv", "t_embedder.mlp.0"], feedforward_modules=[]),
}


@pytest.mark.parametrize("kind", KINDS)
@torch.no_grad()
def test_a_users_adapter_of_any_kind_stays_active_and_stays_whole(kind):
    backbone = make_backbone("jit")
    inputs = make_inputs(backbone)
    plain = backbone(*inputs)
    peft.inject_adapter_in_model(KINDS[kind], backbone, adapter_name="theirs").eval()
    generator = torch.Generator().manual_seed(0)
    for name, parameter in backbone.named_parameters():
        if "theirs" in name:
            parameter += 0.1 * torch.randn(parameter.shape, generator=generator)
    theirs, before, state = backbone(*inputs), traces(backbone), snapshot(backbone)
    assert (theirs - plain).abs().max() > 1e-2
    model = fresh(backbone)
    assert_close(model(*inputs, budget=64), theirs)
    assert_close(model.fuse()(*inputs, budget=64), theirs)
    with model.dense() as dense:
        assert torch.equal(dense(*inputs), theirs)
    model.detach()
    assert torch.equal(backbone(*inputs), theirs)
    assert_same_state(backbone, state)
    after = traces(backbone)
    assert (after["classes"], after["grad"]) == (before["classes"], before["grad"])


@pytest.mark.parametrize("kind", REFUSED_KINDS)
def test_an_adapter_that_is_no_lora_is_refused_and_left_alone(kind):
    backbone = make_backbone("jit")
    peft.inject_adapter_in_model(REFUSED_KINDS[kind], backbone, adapter_name="theirs").eval()
    before, state = traces(backbone), snapshot(backbone)
    with refused("only LoRA"):
        fresh(backbone)
    assert traces(backbone) == before
    assert_same_state(backbone, state)


def test_only_our_adapter_trains_beside_a_users(backbone, inputs):
    give_lora(backbone, wrap=False)
    model = fresh(backbone)
    assert not [name for name in model.trainable_parameters() if "theirs" in name]
    train(model, inputs)
    assert all(parameter.grad is None for name, parameter in model.named_parameters() if "theirs" in name)


@torch.no_grad()
def test_a_users_inactive_adapters_stay_inactive(backbone, inputs):
    give_lora(backbone, wrap=False)
    theirs = backbone(*inputs)
    second = give_lora(backbone, wrap=False, name="second", seed=6)
    for layer in second.modules():
        if isinstance(layer, peft.tuners.lora.LoraLayer):
            layer.set_adapter("theirs")
    assert torch.equal(backbone(*inputs), theirs)
    model = fresh(backbone)
    assert_close(model(*inputs, budget=64), theirs)
    assert torch.equal(model.detach()(*inputs), theirs)
    assert set(backbone.peft_config) == {"theirs", "second"}


@torch.no_grad()
def test_a_merged_lora_of_the_user_is_refused(backbone, inputs):
    user = give_lora(backbone, wrap=True)
    user.merge_adapter()
    expected, before, state = backbone(*inputs), traces(user), snapshot(user)
    with refused("merged LoRA", "unmerge"):
        fresh(user)
    assert traces(user) == before
    assert_same_state(user, state)
    assert torch.equal(backbone(*inputs), expected)
    user.unmerge_adapter()
    fresh(user).detach()


def test_a_users_adapter_of_our_name_is_refused(backbone):
    user = give_lora(backbone, wrap=False, name="rti")
    state = snapshot(user)
    with refused("rti"):
        fresh(user)
    assert_same_state(user, state)


# Where things are.


def test_a_model_moves_as_one(backbone, inputs):
    model = trained(backbone)
    model.to("meta")
    devices = {tensor.device.type for tensor in (*model.parameters(), *model.buffers())}
    assert devices == {"meta"}
    x, t, condition = inputs
    with torch.no_grad():
        result = model(x.to("meta"), t.to("meta"), condition.to("meta"), budget=8)
    assert result.shape == x.shape


def test_a_model_conditions_as_its_backbone_does(backbone):
    model = fresh(backbone)
    condition = make_condition(backbone, 2)
    name = "labels" if backbone.family == "jit" else "states"
    value = getattr(condition, name)
    inputs = {"labels": value} if name == "labels" else {"text": value, "mask": condition.mask}
    assert torch.equal(getattr(model.condition(**inputs), name), value)
    assert len(model.unconditional(condition)) == 2
