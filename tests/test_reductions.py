"""The baselines and the ablations: what defines each of them, and that they keep the contract."""

import math

import pytest
import torch

import rti
from close import assert_close, bound
from rti import cost
from rti.loading import build
from rti.method.order import hilbert_order, order
from rti.method.read import MeanRead, centre_phasors, membership
from rti.method.reductions import REDUCTIONS, Span, config_from_dict, make_reduction
from rti.method.reductions.latents import spread_out
from rti.method.reductions.similarity import anchor_positions
from rti.method.write import Broadcast, Write
from rti.presets import PRESETS
from rti.training.draws import Dial, DrawSettings, draw
from rti.training.objectives import ElasticObjective
from tiny import CORE, make_backbone, make_condition, make_inputs, randomise_trainable, refused

FAMILIES = ("minit2i", "jit")
ABLATIONS = {
    "mean": {"interface": "mean"},
    "centre": {"position": "centre"},
    "no-sizes": {"size_embedding": False},
    "sized": {"sized_write": True, "sized_attention": True},
    "raster": {"order": "raster"},
    "morton": {"order": "morton"},
    "longer": {"core": (0, 3)},
}
EVERY = [(name, {}) for name in REDUCTIONS] + [("region", changes) for changes in ABLATIONS.values()]
EVERY.append(("feature-similarity", {"order": "hilbert"}))


def make_model(family: str, name: str, **changes) -> rti.ElasticModel:
    config = REDUCTIONS[name][0](**({"core": CORE} | changes))
    torch.manual_seed(0)
    return rti.attach(make_backbone(family), config).eval()


def entering(model: rti.ElasticModel, batch: int = 2):
    """The tokens that enter the core."""
    x, t, condition = make_inputs(model.backbone, batch)
    with torch.no_grad():
        tokens = model.backbone.embed(x, t, model.prepare(condition))
        return model.backbone.run(tokens, 0, model.config.core[0])


# All of them.


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize(("name", "changes"), EVERY)
@torch.no_grad()
def test_a_model_runs_at_any_budget_and_comes_back_as_it_was_saved(tmp_path, family, name, changes):
    model = randomise_trainable(make_model(family, name, **changes))
    x, t, condition = make_inputs(model.backbone)
    before = {budget: model(x, t, condition, budget=budget) for budget in (1, 7, 64)}
    assert all(clean.shape == x.shape and clean.isfinite().all() for clean in before.values())
    assert model.reduction.elastic == (not torch.equal(before[7], before[64]))
    model.save_pretrained(tmp_path)
    loaded = rti.load(tmp_path, make_backbone(family))
    assert loaded.config == model.config == config_from_dict(model.config.to_dict())
    for budget, clean in before.items():
        assert torch.equal(loaded(x, t, condition, budget=budget), clean)


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize(("name", "changes"), EVERY)
@torch.no_grad()
def test_a_picture_does_not_depend_on_its_batch(family, name, changes):
    model = randomise_trainable(make_model(family, name, **changes))
    x, t, condition = make_inputs(model.backbone, 3)
    together = model(x, t, condition, budget=9)
    for row in range(3):
        alone = model(x[row : row + 1], t[row : row + 1], condition[row : row + 1], budget=9)
        assert_close(together[row], alone[0])


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize(
    ("name", "changes"), [("region", {}), ("feature-similarity", {}), ("dense", {}), *EVERY[len(REDUCTIONS) :]]
)
@torch.no_grad()
def test_at_all_patches_with_fresh_parameters_nothing_has_changed(family, name, changes):
    backbone = make_backbone(family)
    x, t, condition = make_inputs(backbone)
    expected = backbone(x, t, condition)
    model = make_model(family, name, **changes)
    assert_close(model(x, t, condition), expected)


@pytest.mark.parametrize(("name", "changes"), EVERY)
def test_every_parameter_learns(name, changes):
    """One step from parameters away from their start gives each of them a gradient."""
    model = randomise_trainable(make_model("jit", name, **changes))
    objective = ElasticObjective(model, 8)
    draws = draw((3, 32, 32), 0, 0, range(4), DrawSettings(drop=0.0))
    images = torch.rand(4, 3, 32, 32, generator=torch.Generator().manual_seed(0)) * 2 - 1
    for budget in (64, 13):  # all latents are used at the largest budget only
        objective(images, make_condition(model.backbone, 4), draws, Dial(budget, False)).mean().backward()
    for parameter_name, parameter in model.trainable_parameters().items():
        if "size_embedding" in parameter_name:
            continue  # sizes that no region has
        assert parameter.grad is not None, parameter_name
        assert parameter.grad.abs().sum() > 0, parameter_name


@pytest.mark.parametrize("name", REDUCTIONS)
def test_the_tokens_of_each_block_are_as_many_as_the_reduction_says(name):
    model = make_model("minit2i", name)
    x, t, condition = make_inputs(model.backbone)
    seen = []
    for block in model.backbone.double_blocks:
        block.register_forward_hook(lambda _, inputs, output: seen.append(inputs[1].shape[1]))
    with torch.no_grad():
        model(x, t, condition, budget=11)
    assert seen == cost.tokens_per_block(model.backbone, model.reduction, 11)


# Feature similarity.


@pytest.mark.parametrize("walk", ["raster", "hilbert"])
@pytest.mark.parametrize("budget", [1, 2, 5, 13, 63, 64])
def test_groups_are_those_of_a_brute_force_search(budget, walk):
    model = make_model("jit", "feature-similarity", order=walk)
    tokens = entering(model)
    groups = model.reduction.regions(tokens, budget)
    anchors = order(walk, 8, 8)[0][anchor_positions(64, budget)].tolist()
    assert len(set(anchors)) == budget
    for features, found in zip(tokens.image, groups.tolist(), strict=True):
        for patch in range(64):
            if patch in anchors:
                assert found[patch] == anchors.index(patch)
                continue
            cosines = [
                float(torch.nn.functional.cosine_similarity(features[patch], features[a], dim=0)) for a in anchors
            ]
            assert cosines[found[patch]] == pytest.approx(max(cosines), abs=bound(torch.ones(1)))


def test_anchors_are_evenly_spaced():
    assert anchor_positions(1024, 256)[:4].tolist() == [2, 6, 10, 14]
    assert anchor_positions(64, 64).tolist() == list(range(64))
    gaps = anchor_positions(1000, 7).diff()
    assert int(gaps.max() - gaps.min()) <= 1


def test_anchors_along_the_hilbert_curve_lie_over_the_whole_frame():
    """One in each of 16 cells, where row by row all are in two columns."""
    for walk, columns in (("raster", {2, 6}), ("hilbert", set(range(8)))):
        anchors = order(walk, 8, 8)[0][anchor_positions(64, 16)]
        cells = {(int(anchor) // 8 // 2, int(anchor) % 8 // 2) for anchor in anchors}
        assert {int(anchor) % 8 for anchor in anchors} <= columns
        assert (len(cells) == 16) == (walk == "hilbert")
    with refused("order", "raster"):
        REDUCTIONS["feature-similarity"][0](core=CORE, order="spiral")


def test_no_group_is_empty_where_all_patches_are_alike():
    model = make_model("jit", "feature-similarity")
    tokens = entering(model)
    tokens = tokens._replace(image=torch.ones_like(tokens.image))
    for row in model.reduction.regions(tokens, 10):
        assert set(row.tolist()) == set(range(10))


def test_a_group_may_lie_anywhere():
    """Two far corners with the same features, and something else between them."""
    model = make_model("jit", "feature-similarity")
    tokens = entering(model, 1)
    features = torch.randn(1, 64, tokens.image.shape[-1], generator=torch.Generator().manual_seed(3))
    anchors = anchor_positions(64, 4).tolist()
    features[0, 63] = 2 * features[0, anchors[0]]  # as alike as can be, by cosine
    assert model.reduction.regions(tokens._replace(image=features), 4)[0, 63] == 0


# Latent array.


def test_every_latent_reads_the_whole_frame_and_can_learn_to_read_any_of_it():
    model = make_model("minit2i", "latent-array")
    tokens, reduction = entering(model), model.reduction
    weights = reduction.weights(tokens, 16)
    assert weights.shape == (2, 16, 64)
    assert (weights > 0).all()
    assert_close(weights.detach().sum(dim=-1), torch.ones(2, 16))
    least = weights.detach().mean(dim=0).argmin(dim=-1).expand(2, -1)[..., None]  # read by each latent at the start
    assert (weights.gather(-1, least) < 0.01).all()
    optimiser = torch.optim.Adam(reduction.parameters(), lr=0.03)
    for _ in range(100):
        optimiser.zero_grad()
        reduction.weights(tokens, 16).gather(-1, least).log().mean().neg().backward()
        optimiser.step()
    assert (reduction.weights(tokens, 16).gather(-1, least) > 0.4).all()  # one of its two heads, at least


@pytest.mark.parametrize("family", FAMILIES)
@torch.no_grad()
def test_latents_have_no_position_and_leave_the_order_of_the_patches_out(family):
    """The read is a set operation: patches in another order, with their places, give the same latents."""
    model = make_model(family, "latent-array")
    tokens = entering(model)
    seen = []

    def core(given):
        seen.append(given)
        return given

    shuffled = torch.randperm(64, generator=torch.Generator().manual_seed(0))
    model.reduction(tokens, core, 8)
    other = tokens._replace(image=tokens.image[:, shuffled], phasors=tokens.phasors[:, shuffled])
    model.reduction(other, core, 8)
    assert_close(seen[0].image, seen[1].image)
    cos, sin = seen[0].phasors.chunk(2, dim=-1)
    assert (cos == 1).all()
    assert (sin == 0).all()


def test_latents_start_spread_over_the_frame_for_any_budget():
    for grid in ((6, 10), (5, 8), (12, 12), (1, 1)):
        patches = grid[0] * grid[1]
        places = spread_out(*grid)
        assert sorted(places.tolist()) == list(range(patches))
        along = torch.argsort(torch.from_numpy(hilbert_order(*grid)))[places[:4]]  # places on the curve
        assert along.tolist() == [share * patches // 4 for share in (0, 2, 1, 3)][:patches]
    for budget in (4, 16, 64):
        rows, columns = spread_out(16, 16)[:budget] // 16, spread_out(16, 16)[:budget] % 16
        side = 16 // math.isqrt(budget)
        cells = set(zip((rows // side).tolist(), (columns // side).tolist(), strict=True))
        assert len(cells) == budget  # one in each cell of the grid


@pytest.mark.parametrize("family", FAMILIES)
@torch.no_grad()
def test_a_latent_starts_as_a_mean_of_the_patches_around_its_place(family):
    reduction = make_model(family, "latent-array").reduction
    tokens = entering(make_model(family, "latent-array"))
    seen = []
    reduction(tokens, lambda given: seen.append(given) or given, 8)
    low, high = tokens.image.amin(dim=1, keepdim=True), tokens.image.amax(dim=1, keepdim=True)
    read = seen[0].image - reduction.latents[:8]
    assert ((read >= low - bound(tokens.image)) & (read <= high + bound(tokens.image))).all()
    places = spread_out(8, 8)[:8]
    mine = torch.stack([places // 8, places % 8], dim=-1).float()
    away = torch.cdist(mine, torch.cartesian_prod(torch.arange(8.0), torch.arange(8.0)))  # (R, N)
    assert ((reduction.weights(tokens, 8) * away).sum(dim=-1) < away.mean(dim=-1)).all()
    # By place alone a head's score is its sharpness where the latent is, and falls with the distance from there.
    near = torch.einsum("rp,np->rn", reduction.places[:8], tokens.phasors[0]) / (tokens.phasors.shape[-1] // 2)
    assert torch.equal(near.argmax(dim=-1), places)
    assert_close(near.amax(dim=-1), torch.ones(8))
    reduction.read.query.weight.zero_()
    sharpness = torch.linspace(32, 96, reduction.read.heads)
    expected = torch.stack([(one * near).softmax(dim=-1) for one in sharpness]).mean(dim=0)
    assert_close(reduction.weights(tokens, 8), expected.expand(2, -1, -1), gain=96)  # the sharpest head's


@torch.no_grad()
def test_a_patch_moves_as_the_latents_around_it_do():
    """Without a change in the core nothing is written; with one, the more latents, the more of a patch comes back."""
    model = make_model("jit", "latent-array")
    reduction, tokens = model.reduction, entering(model)
    assert torch.equal(reduction(tokens, lambda given: given, 16).image, tokens.image)
    image = torch.randn(tokens.image.shape, generator=torch.Generator().manual_seed(0))

    def alike(budget: int) -> float:
        doubled = reduction(
            tokens._replace(image=image), lambda given: given._replace(image=2 * given.image), budget
        )  # so what a latent has read is its change
        return torch.cosine_similarity(doubled.image - image, image, dim=-1).mean().item()

    assert alike(64) > alike(16) > alike(2) > 0


def test_what_latents_read_and_write_is_learned():
    model = make_model("jit", "latent-array")
    parameters = list(model.trainable_parameters().values())
    optimiser = torch.optim.AdamW(parameters, lr=1e-3, weight_decay=0.0)  # so that only gradients move them
    objective = ElasticObjective(model, 8)
    draws = draw((3, 32, 32), 0, 0, range(2), DrawSettings(drop=0.0))
    images = torch.rand(2, 3, 32, 32, generator=torch.Generator().manual_seed(0)) * 2 - 1
    losses, condition = [], make_condition(model.backbone, 2)
    before = {name: one.detach().clone() for name, one in model.reduction.named_parameters()}
    for _ in range(8):
        optimiser.zero_grad()
        loss = objective(images, condition, draws, Dial(64, False)).mean()
        loss.backward()
        optimiser.step()
        losses.append(loss.item())
    after = dict(model.reduction.named_parameters())
    assert all(not torch.equal(before[name], after[name]) for name in before)
    assert losses[-1] < losses[0]


# Token skip.


def test_the_papers_token_skip_runs_on_576_image_tokens_on_average():
    preset = PRESETS["minit2i-b16"]
    backbone = build(preset.family, preset.sizes)
    with torch.device("meta"):
        reduction = make_reduction(REDUCTIONS["token-skip"][0](core=(2, 13)), backbone)
    tokens = reduction.core_tokens(256)
    assert len(tokens) == 12
    assert set(tokens) == {1024, 128}
    assert sum(tokens) / 12 == 576
    flops = cost.reduced_flops(backbone, reduction, 256)
    assert 1.0 < cost.dense_flops(backbone) / flops < 1.45


@torch.no_grad()
def test_a_sparse_block_moves_the_admitted_tokens_and_no_others():
    model = make_model("minit2i", "token-skip", core=(1, 2))
    reduction, tokens = model.reduction, entering(model)
    first = Span(model.backbone, 1, 2)(tokens)
    out = reduction(tokens, Span(model.backbone, 1, 3), 64)
    moved = (out.image != first.image).any(dim=-1)
    scores = reduction.norms[0](first.image) @ reduction.routers[0]
    for row in range(2):
        best = set(scores[row].topk(8).indices.tolist())
        assert set(moved[row].nonzero().flatten().tolist()) == best
    # By hand, for one admitted token of the first picture: the block sees the admitted ones with their positions.
    chosen = sorted(scores[0].topk(8).indices.tolist())
    some = first._replace(
        image=first.image[:1, chosen], side=first.side[:1], phasors=first.phasors[:, chosen], context=first.context[:1]
    )
    after = Span(model.backbone, 2, 3)(some).image[0, 3]
    before, gate = first.image[0, chosen[3]], 2 * torch.sigmoid(scores[0, chosen[3]])
    assert_close(out.image[0, chosen[3]], before + gate * (after - before))


@pytest.mark.parametrize("family", FAMILIES)
@torch.no_grad()
def test_full_capacity_with_routers_at_zero_is_the_frozen_model(family):
    backbone = make_backbone(family)
    x, t, condition = make_inputs(backbone)
    expected = backbone(x, t, condition)
    model = make_model(family, "token-skip", capacity=1.0)
    for router in model.reduction.routers:
        router.zero_()
    assert_close(model(x, t, condition), expected)


def test_the_router_learns_through_its_gate_and_starts_near_one():
    model = make_model("jit", "token-skip")
    tokens = entering(model)
    reduction = model.reduction
    scores = reduction.norms[0](tokens.image) @ reduction.routers[0]
    assert (2 * scores.sigmoid() - 1).abs().max() < 0.25
    assert scores.std() > 0.02  # and the router does choose
    reduction(tokens, Span(model.backbone, 1, 3), 64).image.square().sum().backward()
    assert reduction.routers[0].grad.abs().sum() > 0


def test_nothing_is_grouped_by_skipping():
    model = make_model("jit", "token-skip")
    with refused("token-skip has no regions"):
        model.regions(*make_inputs(model.backbone), budget=8)
    for capacity in (0, 1.5, -1, True, "some"):
        with refused("capacity", capacity):
            REDUCTIONS["token-skip"][0](core=CORE, capacity=capacity)


# The control.


@pytest.mark.parametrize("family", FAMILIES)
def test_the_control_costs_what_dense_costs(family):
    model = make_model(family, "dense")
    assert cost.reduced_flops(model.backbone, model.reduction, 16) == cost.dense_flops(model.backbone)
    assert {name for name in model.trainable_parameters() if "lora_" not in name} == set()


# What the ablations take away.


@torch.no_grad()
def test_mean_and_broadcast_are_the_fresh_read_and_write_and_learn_nothing():
    model = make_model("minit2i", "region", interface="mean")
    assert isinstance(model.reduction.read, MeanRead)
    assert isinstance(model.reduction.write, Broadcast)
    assert not [name for name in model.trainable_parameters() if name.startswith("reduction")]
    fresh = make_model("minit2i", "region")
    x, t, condition = make_inputs(model.backbone)
    assert_close(model(x, t, condition, budget=9), fresh(x, t, condition, budget=9))
    patches, change = torch.randn(1, 4, 8), torch.randn(1, 2, 8)
    regions = torch.tensor([[0, 0, 1, 1]])
    assert_close(Broadcast()(patches, change, regions), Write(8)(patches, change, regions))


def test_the_centre_is_the_patch_nearest_to_the_mean_place():
    grid, budget = (4, 4), 3
    regions = torch.tensor([[0, 0, 0, 1, 0, 0, 0, 1, 0, 0, 0, 1, 2, 2, 2, 2]])
    phasors = torch.randn(1, 16, 6)
    found = centre_phasors(phasors, membership(regions, budget), grid)
    for region in range(budget):
        places = [(patch // 4, patch % 4) for patch in range(16) if regions[0, patch] == region]
        middle = [sum(place[axis] for place in places) / len(places) for axis in (0, 1)]
        distances = [math.dist(place, middle) for place in places]
        row, column = places[distances.index(min(distances))]
        assert torch.equal(found[0, region], phasors[0, 4 * row + column])


def test_without_size_embedding_regions_do_not_tell_their_size():
    model = make_model("minit2i", "region", size_embedding=False)
    assert "reduction.read.size_embedding" not in model.trainable_parameters()
    assert "reduction.read.score" in model.trainable_parameters()


# What is ours.


@pytest.mark.parametrize("family", FAMILIES)
@torch.no_grad()
def test_with_sized_attention_the_core_sees_a_region_of_like_patches_as_if_it_saw_each_of_them(family):
    """Patches that are alike in everything, their place too: merged or not, nothing can tell."""
    sized, plain = (make_model(family, "region", cuts="fixed", sized_attention=switch) for switch in (True, False))
    tokens, budget = entering(sized), 7  # regions of nine patches or of ten
    regions = sized.reduction.regions(tokens, budget)
    first = torch.stack([(regions == region).int().argmax(dim=1) for region in range(budget)], dim=1)
    alike = first.gather(1, regions)[..., None]
    image = tokens.image.gather(1, alike.expand_as(tokens.image))
    phasors = tokens.phasors.expand(len(alike), -1, -1)
    tokens = tokens._replace(image=image, phasors=phasors.gather(1, alike.expand_as(phasors)))
    last = sized.config.core[1] + 1
    every = sized.backbone.run(tokens, sized.config.core[0], last).image
    assert_close(sized.core(tokens, budget).image, every)
    assert (plain.core(tokens, budget).image - every).abs().max() > 10 * bound(every)
