"""Token skip with its saving returned as depth, and its own span of blocks."""

import pytest
import torch

import rti
from rti import cost
from rti.loading import build
from rti.method.reductions import REDUCTIONS, Span, config_from_dict, make_reduction
from rti.presets import PRESETS
from rti.training.draws import Dial, DrawSettings, draw
from rti.training.objectives import ElasticObjective
from rti.training.settings import read_settings
from test_cli import run, run_json
from tiny import make_backbone, make_condition, make_inputs, randomise_trainable, refused, save_jit

SkipConfig = REDUCTIONS["token-skip"][0]
LONG = {"minit2i": dict(depth_double=7), "jit": dict(depth=7, in_context_start=3)}
SPAN = (1, 5)  # two groups and a block without a partner


def make_model(family: str, **changes) -> rti.ElasticModel:
    torch.manual_seed(0)
    return rti.attach(make_backbone(family, **LONG[family]), SkipConfig(**({"core": SPAN} | changes))).eval()


def described(preset: str, extra_groups: int = 0):
    """A released model and its token skip, by shape alone."""
    known = PRESETS[preset]
    backbone = build(known.family, known.sizes)
    config = SkipConfig(SkipConfig.own_core(known.core), extra_groups=extra_groups)
    with torch.device("meta"):
        return backbone, make_reduction(config, backbone)


# What the paper says of it.


def test_its_span_is_the_papers_where_the_paper_gives_one():
    assert SkipConfig.own_core(PRESETS["minit2i-b16"].core) == (2, 13)
    _, reduction = described("minit2i-b16")
    assert sum(reduction.core_tokens(1)) / len(reduction.core_tokens(1)) == 576
    assert SkipConfig.own_core((1, 4)) == (1, 4)  # never later than where region tokens start
    assert rti.RegionConfig.own_core((3, 13)) == (3, 13)


def test_the_token_compute_of_jit_is_the_papers_as_trained_and_with_three_extra_groups():
    """71 % of dense, and dense again; a fourth group would be more than the saving."""
    shares = []
    for extra in range(5):
        backbone, reduction = described("jit-b16", extra)
        shares.append(sum(cost.tokens_per_block(backbone, reduction, 1)) / (backbone.depth * backbone.patches))
    assert round(shares[0], 2) == 0.71
    assert round(shares[3], 2) == 0.99
    assert shares[4] > 1
    ours = make_reduction(rti.RegionConfig(PRESETS["jit-b16"].core), backbone)
    at_130 = sum(cost.tokens_per_block(backbone, ours, 130)) / (backbone.depth * backbone.patches)
    assert at_130 / shares[3] == pytest.approx(0.75, abs=0.02)  # "three quarters of that variant's token compute"


# What it does.


def runs_of(model: rti.ElasticModel) -> list[tuple[int, int]]:
    """The blocks of the trunk as they run in a forward pass, and their image tokens."""
    seen, inner = [], model.backbone.run

    def watched(tokens, start, stop):
        seen.extend((block, tokens.image.shape[1]) for block in range(start, stop))
        return inner(tokens, start, stop)

    model.backbone.run = watched
    with torch.no_grad():
        model(*make_inputs(model.backbone), budget=7)
    del model.backbone.run
    return seen


@pytest.mark.parametrize("family", LONG)
@pytest.mark.parametrize(
    ("extra", "blocks"),
    [(0, [1, 2, 3, 4, 5]), (1, [1, 2, 3, 4, 3, 4, 5]), (2, [1, 2, 1, 2, 3, 4, 3, 4, 5])],
)
def test_the_last_groups_run_again_and_the_cost_counts_every_run(family, extra, blocks):
    model = make_model(family, extra_groups=extra)
    tokens = [{1: 64, 2: 8, 3: 64, 4: 8, 5: 64}[block] for block in blocks]
    expected = [(0, 64), *zip(blocks, tokens, strict=True), (6, 64)]
    assert runs_of(model) == expected
    backbone, reduction = model.backbone, model.reduction
    assert cost.blocks_run(backbone, reduction) == [block for block, _ in expected]
    assert cost.tokens_per_block(backbone, reduction, 7) == [count for _, count in expected]
    by_hand = sum(backbone.block_flops(block, count) for block, count in expected)
    assert cost.reduced_flops(backbone, reduction, 7) == by_hand


@pytest.mark.parametrize("family", LONG)
@torch.no_grad()
def test_it_starts_as_token_skip_and_full_capacity_as_the_frozen_model(family):
    backbone = make_backbone(family, **LONG[family])
    x, t, condition = make_inputs(backbone)
    frozen = backbone(x, t, condition)
    plain, deep = make_model(family), make_model(family, extra_groups=2)
    for mine, theirs in zip(deep.reduction.routers, plain.reduction.routers, strict=False):
        mine.copy_(theirs)
    torch.testing.assert_close(deep(x, t, condition), plain(x, t, condition))
    full = make_model(family, extra_groups=2, capacity=1.0)
    for router in full.reduction.routers:
        router.zero_()
    torch.testing.assert_close(full(x, t, condition), frozen, atol=2e-5, rtol=1e-4)


@pytest.mark.parametrize("family", LONG)
@torch.no_grad()
def test_at_full_capacity_and_gates_of_one_a_group_is_simply_run_twice(family):
    """The image and the text or class tokens; the latter join once, also where that is in a group that runs again."""
    model = make_model(family, extra_groups=2, capacity=1.0)
    for router in model.reduction.routers:
        router.zero_()
    model.reduction.gates.fill_(1.0)
    backbone = model.backbone
    x, t, condition = make_inputs(backbone)
    tokens = backbone.embed(x, t, model.prepare(condition))
    for start, stop in ((0, 1), (1, 3), (1, 3), (3, 5), (3, 5), (5, 7)):
        tokens = backbone.run(tokens, start, stop)
    torch.testing.assert_close(model(x, t, condition), backbone.head(tokens), atol=2e-5, rtol=1e-4)
    model.reduction.gates.fill_(0.5)
    before = Span(backbone, 1, 3)(backbone.run(backbone.embed(x, t, model.prepare(condition)), 0, 1))
    again = Span(backbone, 1, 3)(before)
    seen = []
    backbone.run, inner = lambda tokens, *span: seen.append((span, tokens)) or inner(tokens, *span), backbone.run
    model(x, t, condition)
    third = next(tokens for (start, _), tokens in seen if start == 3)
    torch.testing.assert_close(third.image, (before.image + again.image) / 2, atol=2e-5, rtol=1e-4)
    if before.side is not None:
        torch.testing.assert_close(third.side, (before.side + again.side) / 2, atol=2e-5, rtol=1e-4)


@torch.no_grad()
def test_class_tokens_that_have_joined_do_not_join_anew():
    backbone = make_backbone("jit", **LONG["jit"])
    joined = backbone.run(backbone.embed(*make_inputs(backbone)), 0, 4)  # they join at block 3
    again, other = (backbone.run(joined._replace(side=side), 3, 4) for side in (joined.side, 2 * joined.side))
    assert not torch.allclose(again.image, other.image)
    assert not torch.allclose(again.side, joined.side)


def loss_of(model: rti.ElasticModel) -> torch.Tensor:
    draws = draw((3, 32, 32), 0, 0, range(2), DrawSettings(drop=0.0))
    images = torch.rand(2, 3, 32, 32, generator=torch.Generator().manual_seed(0)) * 2 - 1
    return ElasticObjective(model, 8)(images, make_condition(model.backbone, 2), draws, Dial(16, False)).mean()


def test_the_extra_depth_learns():
    fresh = make_model("jit", extra_groups=2)
    for name, parameter in fresh.trainable_parameters().items():  # fresh LoRA has B at zero; the gates move first
        if "lora_B" in name:
            torch.nn.init.normal_(parameter, std=0.02)
    loss_of(fresh).backward()
    assert (fresh.reduction.gates.grad != 0).all()
    moved = randomise_trainable(make_model("jit", extra_groups=2))
    loss_of(moved).backward()
    for name, parameter in moved.trainable_parameters().items():
        assert parameter.grad is not None, name
        assert parameter.grad.abs().sum() > 0, name


@torch.no_grad()
def test_it_comes_back_as_it_was_saved(tmp_path):
    model = randomise_trainable(make_model("jit", extra_groups=1))
    x, t, condition = make_inputs(model.backbone)
    before = model(x, t, condition)
    model.save_pretrained(tmp_path)
    loaded = rti.load(tmp_path, make_backbone("jit", **LONG["jit"]))
    assert loaded.config == model.config == config_from_dict(model.config.to_dict())
    assert torch.equal(loaded(x, t, condition), before)


@pytest.mark.parametrize("extra", [-1, 3, True, 1.0, "1"])
def test_more_groups_than_there_are_cannot_run_again(extra):
    with refused("extra_groups", repr(extra), "0 to 2"):
        SkipConfig(core=SPAN, extra_groups=extra)


# By command.


def test_training_starts_from_its_own_span_unless_told_otherwise():
    given = {"model": "jit-b16", "output": "runs/skip", "data": "pictures"}
    assert read_settings(given | {"extra_groups": "3"}, "token-skip")[1] == SkipConfig((2, 9), extra_groups=3)
    assert read_settings(given | {"core": "4,9"}, "token-skip")[1] == SkipConfig((4, 9))
    assert read_settings(given)[1].core == (4, 9)
    assert read_settings(given | {"model": "minit2i-b16"}, "token-skip")[1].core == (2, 13)


def test_the_commands_know_it(capsys, tmp_path):
    info = run_json(capsys, "info", "jit-b16", "--reduction", "token-skip", "--set", "extra_groups=3")
    assert info["core"] == [2, 9]
    assert info["blocks_run"] == [0, 1, 2, 3, 4, 5, 4, 5, 6, 7, 6, 7, 8, 9, 8, 9, 10, 11]
    assert info["tokens_per_block"][4:8] == [256, 32, 256, 32]
    flops = run_json(
        capsys, "info", "jit-b16", "--reduction", "token-skip", "--set", "extra_groups=3", "--budgets", "64"
    )
    assert flops["rows"][0]["percent_of_image_tokens"] == 99.0
    options = ("--reductions", "token-skip", "--set", "extra_groups=1", "--core", "1,4", "--passes", "1")
    folder = save_jit(tmp_path, **LONG["jit"])
    bench = run_json(capsys, "bench", folder, *options, "--budgets", "8")
    backbone = make_backbone("jit", **LONG["jit"])
    with torch.device("meta"):
        reduction = make_reduction(SkipConfig((1, 4), extra_groups=1), backbone)
    expected = cost.dense_flops(backbone) / cost.reduced_flops(backbone, reduction, 8)
    assert bench["rows"][1]["analytic_speedup"] == pytest.approx(expected, abs=1e-3)
    code, _, err = run(capsys, "info", "jit-b16", "--reduction", "token-skip", "--set", "extra_groups=9")
    assert (code, err.count("\n"), "extra_groups must be a whole number from 0 to 4" in err) == (2, 1, True)
