"""torch.compile: one graph for all budgets, and the answers of the model that is not compiled.

The models are the smallest there can be, since compiling takes many seconds; where only compilations are counted, the
graph is run as it was traced ("eager").
"""

import logging
import shutil
import time

import pytest
import torch
from PIL import Image
from torch._dynamo.testing import CompileCounterWithBackend

import rti
from close import assert_close
from rti.images import to_tensor
from test_cli import run_json
from test_trainer import make_trainer
from tiny import CORE, make_backbone, make_inputs, randomise_trainable, save_jit

FEW_BLOCKS = {"minit2i": dict(depth_double=2, txt_preamble_depth=1), "jit": dict(depth=2, in_context_start=1)}
ONE_BLOCK = {"minit2i": dict(depth_double=1, txt_preamble_depth=0), "jit": dict(depth=1, in_context_start=0)}


@pytest.fixture(autouse=True)
def nothing_compiled_before():
    torch._dynamo.reset()
    logging.getLogger("torch.__trace").setLevel(logging.ERROR)  # pytest would keep thousands of lines of it


def small_model(family: str, sizes: dict, **options) -> rti.ElasticModel:
    config = rti.RegionConfig(core=(0, 0), lora_rank=2, lora_alpha=2, **options)
    return randomise_trainable(rti.attach(make_backbone(family, **sizes[family]), config)).eval()


@torch.no_grad()
def assert_compiles(model, budgets, recompilations, backend="eager", **options):
    """Run at each budget, compare with the plain model, and count compilations."""
    counter = CompileCounterWithBackend(backend)
    compiled = torch.compile(model, fullgraph=True, dynamic=True, backend=counter)
    inputs = make_inputs(model.backbone)
    for budget in budgets:
        expected = model(*inputs, budget=budget, **options)
        assert_close(compiled(*inputs, budget=budget, **options), expected)
    assert counter.frame_count <= 1 + recompilations
    return compiled, inputs


def test_gaps_compile_once_for_many_budgets_and_a_share_is_refused_at_once():
    model = small_model("minit2i", FEW_BLOCKS).fuse()  # as a pipeline runs it
    compiled, inputs = assert_compiles(model, (16, 7, 33, 24, 63), recompilations=0)
    start = time.perf_counter()
    with pytest.raises(Exception, match="a budget is a whole number"), torch.no_grad():
        compiled(*inputs, budget=0.5)
    assert time.perf_counter() - start < 2  # compiling takes longer


def test_gaps_recompile_at_most_twice_for_the_smallest_and_the_largest_budgets():
    """0 and 1 are special to the compiler wherever they are the size of something, and so is the number of patches."""
    assert_compiles(small_model("jit", FEW_BLOCKS), (33, 1, 2, 3, 64), recompilations=2)


def test_merge_from_an_estimate_compiles_around_its_tree():
    model = small_model("jit", ONE_BLOCK, cuts="merge", cuts_from="estimate")
    estimate = torch.randn(2, 3, 32, 32, generator=torch.Generator().manual_seed(0))
    assert_compiles(model, (16, 7, 33, 2, 64), recompilations=2, estimate=estimate)


@pytest.mark.skipif(shutil.which("g++") is None, reason="torch compiles for the CPU with g++")
def test_the_compiled_code_gives_the_same_images():
    """frame_count is not the number of compilations here: inductor's first one may trace twice."""
    assert_compiles(small_model("jit", ONE_BLOCK).fuse(), (16, 7, 33), recompilations=1, backend="inductor")


@torch.no_grad()
def test_compiled_blocks_share_their_graphs_at_every_budget():
    backbone = make_backbone("minit2i")
    model = randomise_trainable(rti.attach(backbone, rti.RegionConfig(core=CORE, lora_rank=2))).eval().fuse()
    inputs, budgets = make_inputs(backbone), (16, 7, 33, 24)
    expected = [model(*inputs, budget=budget) for budget in budgets]
    counter = CompileCounterWithBackend("eager")
    backbone.compile_repeated_blocks(dynamic=True, backend=counter)
    for budget, images in zip(budgets, expected, strict=True):
        assert_close(model(*inputs, budget=budget), images)
    assert counter.frame_count <= 3  # for two blocks of the text, four of the trunk and five numbers of tokens


@pytest.fixture
def compiled_blocks(monkeypatch):
    """The blocks compiled by now; their graphs run as traced, which is much sooner ready."""
    compiled, plain = [], rti.Backbone.compile_repeated_blocks

    def as_traced(backbone, **options):
        compiled.extend(backbone.repeated_blocks())
        plain(backbone, backend="eager", **options)

    monkeypatch.setattr(rti.Backbone, "compile_repeated_blocks", as_traced)
    return compiled


def test_a_compiled_step_of_training_is_the_same_step(tmp_path, compiled_blocks):
    plain, compiled = (
        make_trainer(tmp_path / name, backbone=make_backbone("jit", depth=3), compile=name == "compiled")
        for name in ("plain", "compiled")
    )
    assert len(compiled_blocks) == compiled.task.backbone.depth
    for _ in range(3):
        assert compiled.train_step() == pytest.approx(plain.train_step(), rel=1e-4)


def test_compiling_does_not_change_what_is_measured(tmp_path, capsys, compiled_blocks):
    save_jit(tmp_path / "model", num_classes=56)
    config = rti.RegionConfig(core=CORE, lora_rank=2, cuts="merge", cuts_from="estimate")
    rti.attach(rti.load_backbone(tmp_path / "model"), config).save_pretrained(tmp_path / "adapter")
    command = ("eval", "scenes", tmp_path / "adapter", "--budget", "dense,8", "--images", 8, "--batch", 5)
    for options in ((), ("--compile",)):
        run_json(capsys, *command, "--steps", 2, "--output", tmp_path / f"pictures{len(options)}", *options)
    assert len(compiled_blocks) == 5
    pictures = sorted((tmp_path / "pictures0").rglob("*.png"))
    assert len(pictures) == 16
    for path in pictures:
        same = tmp_path / "pictures1" / path.relative_to(tmp_path / "pictures0")
        plain, compiled = (to_tensor(Image.open(picture)) for picture in (path, same))
        torch.testing.assert_close(compiled, plain, atol=2 / 255, rtol=0)
