"""The probes: hooks that change nothing, and values that a direct computation gives too."""

import json
from dataclasses import replace

import pytest
import torch

import rti
from rti.flow import draw_noise, picture_generator
from rti.lab.probes import measures
from rti.lab.probes.groupings import Row, grouping_rows, order_rows, probe_groupings
from rti.lab.probes.photograph import cut_photograph, load_photograph
from rti.lab.probes.records import read_data, rounded
from rti.lab.probes.redundancy import KINDS, probe_redundancy, propose_core
from rti.lab.probes.routing import probe_routing
from rti.lab.probes.subjects import spread_labels, subjects_of, template_prompts
from rti.lab.probes.trajectory import Run, spread_steps
from rti.method.order import order
from rti.method.partition import partition
from rti.method.reductions import Reduction
from rti.pipeline import Pipeline
from rti.sampling import sample
from test_cli import DATA, photograph, run_json  # noqa: F401 (photograph is a fixture)
from test_cli import run as run_command
from tiny import CORE, make_backbone, randomise_trainable, refused

TIMES_OF_THE_PAPER = [0.03, 0.17, 0.30, 0.43, 0.53, 0.67, 0.80, 0.93]


class Words:
    """A text encoder that knows every prompt: its states are drawn from it."""

    def __init__(self, width: int):
        self.width = width

    def __call__(self, prompts, length):
        states = [
            torch.randn(length, self.width, generator=torch.Generator().manual_seed(sum(map(ord, text))))
            for text in prompts
        ]
        return torch.stack(states), torch.ones(len(prompts), length, dtype=torch.bool)


def make_pipe(family: str, **settings) -> Pipeline:
    backbone = make_backbone(family)
    model = rti.attach(backbone, rti.RegionConfig(core=CORE, lora_rank=2, **settings)) if settings else backbone
    return Pipeline(randomise_trainable(model) if settings else model, Words(12) if family == "minit2i" else None)


def subjects(family: str, count: int = 3) -> list:
    return [f"prompt {index}" for index in range(count)] if family == "minit2i" else list(range(count))


def make_run(pipe: Pipeline, count: int = 3, **settings) -> Run:
    values = dict(steps=5, watched=3, batch=2, progress=False) | settings
    return Run(pipe, subjects(pipe.backbone.family, count), **values)


# Steps and hooks.


def test_the_watched_steps_are_the_papers():
    steps = spread_steps(30, 8)
    assert [round(step / 30, 2) for step in steps] == TIMES_OF_THE_PAPER
    assert spread_steps(30, 1) == [14]
    assert spread_steps(2, 8) == [1]
    assert spread_steps(1, 3) == [0]
    assert spread_steps(5, 99) == [1, 2, 3]
    assert make_run(make_pipe("jit"), steps=10, watched=4).times == [0.1, 0.3, 0.6, 0.8]
    assert make_run(make_pipe("jit"), steps=10, watched=4).middle == 2


@torch.no_grad()
def test_a_hook_changes_no_picture_and_leaves_no_trace(family):
    """Block by block is the same as all at once, also for Heun, which evaluates twice a step."""
    pipe = make_pipe(family)
    run, seen = make_run(pipe), []
    drawn = run.follow([0, 1], seen.append)
    noise, condition = run.inputs([0, 1])
    assert torch.equal(drawn, sample(pipe.backbone, noise, condition, steps=5).clamp(-1, 1))
    assert [moment.place for moment in seen] == [0, 1, 2]
    assert "run" not in vars(pipe.backbone)
    for moment in seen:
        assert len(moment.seen) == pipe.backbone.depth + 1
        assert moment.seen[0].image.shape[0] in (2, 4)  # with guidance two branches


@torch.no_grad()
def test_what_the_hook_sees_is_what_the_blocks_compute(family):
    """The first watched step of one unguided Euler run: from noise to every block's output by hand."""
    pipe = make_pipe(family)
    backbone, seen = pipe.backbone, []
    run = make_run(pipe, 2, steps=1, watched=1, guidance=1.0)
    run.follow([0, 1], seen.append)
    generators = [picture_generator(7, 0), picture_generator(7, 1)]
    noise = draw_noise((3, *backbone.image_size), generators, backbone.flow.noise_scale)
    _, condition = run.inputs([0, 1])
    tokens = backbone.embed(*backbone.check(noise, 0.0, condition), condition)
    for block, found in enumerate(seen[0].seen):
        expected = backbone.run(tokens, 0, block).image
        assert torch.allclose(found.image, expected, atol=1e-5)
    assert seen[0].before is None
    assert torch.allclose(seen[0].estimate, backbone(noise, 0.0, condition), atol=1e-5)


def test_a_hook_is_gone_after_an_error(family):
    pipe = make_pipe(family)

    def fail(moment):
        raise RuntimeError("stop")

    with pytest.raises(RuntimeError):
        make_run(pipe).follow([0], fail)
    assert "run" not in vars(pipe.backbone)


@torch.no_grad()
def test_the_regions_seen_are_those_the_model_used(family):
    pipe = make_pipe(family, cuts="merge", cuts_from="estimate")
    run, seen = make_run(pipe, steps=4, watched=4), []
    run.follow([0, 1], seen.append, budget=10)
    assert all(moment.seen[:2].unique().numel() == 10 for moment in seen)
    last, reduction = seen[-1], pipe.elastic.reduction
    _, position = order("hilbert", *pipe.backbone.grid)
    expected = partition(reduction._patches(last.before, 2), 10, "merge", 0.5)[:, position]
    assert torch.equal(last.seen[:2], expected)


def test_a_run_refuses_what_it_cannot_do(family):
    pipe = make_pipe(family)
    for name in ("steps", "watched", "batch"):
        with refused(name, 0):
            make_run(pipe, **{name: 0})
    with refused("seed", -1):
        make_run(pipe, seed=-1)
    with refused("prompt"):
        Run(pipe, [])


# Redundancy.


@torch.no_grad()
def test_redundancy_is_what_a_direct_computation_gives(family, tmp_path):
    """One prompt, one step, no guidance: EV of every block from the blocks themselves."""
    pipe = make_pipe(family)
    backbone = pipe.backbone
    run = make_run(pipe, 1, steps=1, watched=1, guidance=1.0)
    values = probe_redundancy(run, tmp_path, CORE, budget=16)
    noise, condition = run.inputs([0])
    tokens = backbone.embed(*backbone.check(noise, 0.0, condition), condition)
    walk, position = order("hilbert", *backbone.grid)

    def cut(block, rule):
        return partition(backbone.run(tokens, 0, block).image[:, walk], 16, rule)[:, position]

    for block in range(backbone.depth):
        after = backbone.run(tokens, 0, block + 1).image
        expected = {
            "adaptive": measures.explained_variance(after, cut(CORE[0], "gaps")),
            "anew": measures.explained_variance(after, cut(block, "gaps")),
            "fixed": measures.explained_variance(after, cut(0, "fixed")),
            "skip": measures.skip_variance(after, 16),
        }
        for kind, value in expected.items():
            assert values["by_block"][kind][block] == pytest.approx(value.item(), abs=1e-4), (kind, block)
    picture = sample(backbone, noise, condition, steps=1, guidance_scale=1.0).clamp(-1, 1)
    curve = measures.lorenz(measures.detail(picture, backbone.patch_size))[0]
    assert values["lorenz"]["in_top_half"] == pytest.approx(measures.share_in_top(curve, 0.5), abs=1e-3)
    assert values == read_data(tmp_path, "redundancy")


def test_as_many_groups_as_patches_retain_everything(family, tmp_path):
    values = probe_redundancy(make_run(make_pipe(family), 1), tmp_path, CORE, budget=1.0)
    for kind in KINDS:
        assert values["by_block"][kind] == [1.0] * values_depth(values)


def values_depth(values) -> int:
    return len(values["by_block"]["fixed"])


def test_the_batch_does_not_change_the_result(family, tmp_path):
    pipe = make_pipe(family)
    whole, parts = (probe_redundancy(make_run(pipe, 3, batch=batch), tmp_path, CORE) for batch in (3, 2))
    assert parts.keys() == whole.keys()
    assert parts["prompts"] == 3
    for kind in KINDS:
        assert parts["by_block"][kind] == pytest.approx(whole["by_block"][kind], abs=1e-5)
        assert parts["by_step"][kind] == pytest.approx(whole["by_step"][kind], abs=1e-5)
    assert [path.name for path in tmp_path.iterdir()] == ["redundancy.json"]


def test_a_folder_that_cannot_be_is_refused_before_anything_is_measured(tmp_path, monkeypatch):
    monkeypatch.setattr(Run, "follow", lambda *_, **__: pytest.fail("it measured before it looked"))
    (tmp_path / "file").write_text("")
    with refused("cannot write to", "file"):
        probe_redundancy(make_run(make_pipe("jit")), tmp_path / "file", CORE)


def test_an_adapter_is_left_out_of_a_frozen_probe(family, tmp_path):
    """Its LoRA and its Read and Write change the model's pictures, and nothing here."""
    frozen = probe_redundancy(make_run(make_pipe(family)), tmp_path / "frozen", CORE)
    attached = probe_redundancy(make_run(make_pipe(family, cuts="gaps")), tmp_path / "attached", CORE)
    assert attached["by_block"] == frozen["by_block"]


PAPER_B16 = [
    *(0.614, 0.675, 0.713, 0.729, 0.735, 0.739, 0.740, 0.741, 0.749, 0.747, 0.740, 0.732, 0.723, 0.721, 0.717, 0.688),
    0.719,
]


def test_on_the_papers_profile_the_proposed_core_is_the_papers():
    core = propose_core(PAPER_B16)
    assert core.span == (3, 13)
    for reason in ("block 8", "0.749", "block 2 keeps 0.713", "block 14 keeps 0.717"):
        assert reason in core.why
    assert "shallow" not in core.why


def test_a_flat_profile_leaves_the_core_free_and_the_ends_out():
    core = propose_core([0.72, 0.73, 0.73, 0.74, 0.73])
    assert core.span == (1, 3)
    assert "shallow" in core.why
    assert "end of the trunk" in core.why
    assert propose_core([0.5, 0.9]).span == (1, 1)
    assert propose_core([0.2, 0.5, 0.9, 0.5, 0.99]).span == (2, 2)  # never the last block, however high


# Groupings and orders.


@torch.no_grad()
def test_groupings_are_what_a_direct_computation_gives(family, tmp_path):
    pipe = make_pipe(family)
    backbone = pipe.backbone
    run = make_run(pipe, 1, steps=1, watched=1, guidance=1.0)
    rows = grouping_rows(backbone, CORE)
    values = probe_groupings(run, tmp_path, rows, CORE, budget=16)
    noise, condition = run.inputs([0])
    tokens = backbone.embed(*backbone.check(noise, 0.0, condition), condition)
    features = backbone.run(tokens, 0, CORE[0]).image
    walk, position = order("hilbert", *backbone.grid)
    detail = measures.detail(backbone(noise, 0.0, condition), backbone.patch_size)
    blocks = [backbone.run(tokens, 0, block + 1).image for block in range(CORE[0], CORE[1] + 1)]
    for name, rule in (("gaps of the features (paper)", "gaps"), ("merge on the features", "merge")):
        groups = partition(features[:, walk], 16, rule)[:, position]
        row = next(row for row in values["rows"] if row["name"] == name)
        retained = sum(measures.explained_variance(block, groups).item() for block in blocks) / len(blocks)
        assert row["retained"] == pytest.approx(retained, abs=1e-4)
        assert row["spread"] == pytest.approx(measures.spread(groups, backbone.grid).item(), abs=1e-4)
        assert row["size_detail"] == pytest.approx(measures.size_detail(groups, detail).item(), abs=1e-3)


def test_fixed_boundaries_are_two_by_two_cells_and_follow_nothing(family, tmp_path):
    values = probe_groupings(make_run(make_pipe(family)), tmp_path, grouping_rows(make_backbone(family), CORE), CORE)
    row = next(row for row in values["rows"] if row["name"] == "fixed boundaries")
    assert (row["spread"], row["size_detail"]) == (pytest.approx(0.5**0.5, abs=1e-5), 0.0)
    assert row["spread_error"] == 0.0


def test_every_reduction_has_a_row_without_a_word_here():
    """Whatever joins the table of reductions is measured, under its own name; the control reduces nothing."""
    rows = {row.name: row for row in grouping_rows(make_backbone("jit"), CORE)}
    assert {"feature similarity", "latent array", "token skip"} < set(rows)
    assert "dense" not in rows
    assert rows["token skip"].groups(None, 4, None) is None


class Soft(Reduction):
    """Every token reads all of the image, evenly."""

    def weights(self, tokens, budget, estimate=None):
        return torch.ones(len(tokens.image), budget, tokens.image.shape[1])


class Skip(Reduction):
    """Forms no groups."""

    def regions(self, tokens, budget, estimate=None):
        raise rti.InputError("no groups")


def test_a_reduction_is_measured_by_what_it_offers(family, tmp_path):
    """Soft weights where there are any; nothing but what is retained where there are no groups."""
    config = rti.RegionConfig(core=CORE)
    rows = [Row("soft", Soft(config)), Row("skip", Skip(config))]
    pipe = make_pipe(family)
    soft, skip = probe_groupings(make_run(pipe), tmp_path, rows, CORE, budget=16)["rows"]
    whole = measures.spread(torch.zeros(1, 64, dtype=torch.int64), (8, 8)).item()
    assert (soft["spread"], soft["size_detail"]) == (pytest.approx(whole, abs=1e-5), 0.0)
    assert soft["retained"] == pytest.approx(0.0, abs=1e-6)
    assert soft["spread_per_patch"] is None
    assert [skip[name] for name in ("spread", "size_detail", "spread_per_patch")] == [None] * 3
    profile = probe_redundancy(make_run(pipe), tmp_path, CORE, budget=16)["by_block"]["skip"]
    assert skip["retained"] == pytest.approx(sum(profile[CORE[0] : CORE[1] + 1]) / 2, abs=1e-5)


def test_the_orders_differ_in_how_compact_their_regions_are(family, tmp_path):
    pipe = make_pipe(family)
    values = probe_groupings(make_run(pipe), tmp_path, order_rows(pipe.backbone, CORE, "fixed"), CORE, name="orders")
    by_name = {row["name"]: row for row in values["rows"]}
    assert by_name["hilbert"]["spread_per_patch"] == by_name["morton"]["spread_per_patch"]  # the same 2 x 2 cells
    # A run of four in a row: 1.5 and 0.5 cells from its centre.
    assert by_name["raster"]["spread_per_patch"] == pytest.approx(1.0, abs=1e-5)
    assert read_data(tmp_path, "orders") == values


def test_a_trained_reduction_is_a_row_of_its_own(tmp_path):
    model = rti.attach(rti.load_backbone(DATA / "jit-tiny"), rti.RegionConfig(core=(2, 3), cuts="fixed"))
    randomise_trainable(model).save_pretrained(tmp_path / "adapter")
    backbone = rti.load_backbone(DATA / "jit-tiny")
    row = grouping_rows(backbone, (2, 3), {"mine": tmp_path / "adapter"})[-1]
    assert (row.name, row.trained) == ("mine", True)
    assert torch.equal(row.reduction.read.score, model.reduction.read.score)
    names = [row.name for row in grouping_rows(backbone, (2, 3), {"fixed boundaries": tmp_path / "adapter"})]
    assert len(names) == len(set(names)) == len(grouping_rows(backbone, (2, 3)))
    # The data tells which trained weights it is of.
    run, told = make_run(make_pipe("jit"), 1), []
    row = replace(row, reduction=Soft(row.reduction.config))
    row.reduction.register_parameter("weight", torch.nn.Parameter(torch.zeros(3)))
    for value in (0.0, 1.0):
        torch.nn.init.constant_(row.reduction.weight, value)
        told.append(probe_groupings(run, tmp_path, [row], CORE, budget=16)["reductions"]["mine"]["trained"])
    assert told[0] != told[1]
    with refused("(1, 3)", "(2, 3)"):
        grouping_rows(backbone, (1, 3), {"mine": tmp_path / "adapter"})
    with refused(str(tmp_path)):
        grouping_rows(backbone, (2, 3), {"mine": tmp_path})


# Routing.


@torch.no_grad()
def test_routing_is_what_the_regions_say(family, tmp_path):
    pipe = make_pipe(family, cuts="gaps")
    run = make_run(pipe, 2, steps=3, watched=1)
    values = probe_routing(run, tmp_path, [0.25, 10])
    assert [row["budget"] for row in values["rows"]] == [16, 10]
    seen = []
    run.follow([0, 1], seen.append, budget=10)
    regions, detail = seen[0].seen[:2], measures.detail(seen[0].estimate, pipe.backbone.patch_size)
    row = values["rows"][1]
    assert row["entropy"] == pytest.approx([measures.size_entropy(regions).mean().item()], rel=1e-4)
    assert row["size_detail_middle"] == pytest.approx(measures.size_detail(regions, detail).mean().item(), rel=1e-3)
    assert row["detail_ratio"] == [
        pytest.approx(measures.detail_ratio(measures.fine_and_coarse(regions, detail)), rel=1e-3)
    ]
    assert row["detail_ratio"] != [None]
    assert read_data(tmp_path, "routing") == values


def test_fixed_regions_have_no_variety(family, tmp_path):
    row = probe_routing(make_run(make_pipe(family, cuts="fixed"), 1), tmp_path, [16])["rows"][0]
    assert row["entropy"] == [0.0, 0.0, 0.0]
    assert row["size_detail"] == [0.0, 0.0, 0.0]
    assert row["detail_ratio"] == [None, None, None]


def test_routing_needs_an_adapter(tmp_path):
    with refused("adapter"):
        probe_routing(make_run(make_pipe("jit")), tmp_path, [16])
    assert list(tmp_path.iterdir()) == []


# A photograph, prompts, and the command.


def test_as_many_regions_as_patches_retain_a_photograph(photograph):  # noqa: F811
    picture, grid = load_photograph(photograph, 160, 8)
    assert cut_photograph(picture, grid, 8, 240, "gaps", "hilbert")[1]["retained"] == 1.0


def test_fewer_subjects_are_the_first_of_more(tmp_path):
    assert template_prompts(5, 3) == template_prompts(50, 3)[:5]
    assert len(set(template_prompts(400))) == 400
    with refused("10000"):
        template_prompts(10000)
    assert sorted(spread_labels(10, 10)) == list(range(10))
    assert spread_labels(3, 1000) == spread_labels(64, 1000)[:3]
    file = tmp_path / "prompts.txt"
    file.write_text("one\n\n two \nthree\n")
    pipe = make_pipe("minit2i")
    assert subjects_of(pipe, 2, file=file) == ["one", "two"]
    with refused("4", "3"):
        subjects_of(pipe, 4, file=file)
    with refused("nowhere"):
        subjects_of(pipe, 1, file=tmp_path / "nowhere")
    file.write_text("\n\n")
    with refused("prompts.txt", "no prompt"):
        subjects_of(pipe, 1, file=file)
    with refused("labels"):
        subjects_of(make_pipe("jit"), 2, file=file)
    assert subjects_of(pipe, 2) == template_prompts(2)


def test_rounding_keeps_six_digits_of_small_numbers_too():
    assert rounded([1.23456789e-9, 0.5]) == [1.23457e-9, 0.5]
    assert rounded(torch.tensor(2.0)) == 2.0


def test_the_commands_measure_and_print(capsys, tmp_path):
    model = rti.attach(rti.load_backbone(DATA / "jit-tiny"), rti.RegionConfig(core=(2, 3)))
    randomise_trainable(model).save_pretrained(tmp_path / "adapter")
    common = ("--prompts", 2, "--steps", 3, "--watched", 2, "--batch", 2, "-o", tmp_path / "out")
    for name, options in (("redundancy", ()), ("groupings", ()), ("orders", ()), ("routing", ("--budgets", "16,8"))):
        values = run_json(capsys, "probe", name, tmp_path / "adapter", *common, *options)
        assert values["prompts"] == 2
        assert json.loads((tmp_path / "out" / f"{name}.json").read_text()) == values
        if name != "routing":
            assert values["core"] == [2, 3]
    _, out, _ = run_command(capsys, "probe", "redundancy", tmp_path / "adapter", *common)
    assert "Proposed core: blocks" in out
    assert "rti figure redundancy" in out


@pytest.mark.parametrize(
    ("words", "named"),
    [
        (("redundancy", "--cuts", "random"), "random"),
        (("redundancy", "--budget", "0"), "budget 0"),
        (("redundancy", "--core", "3,9"), "(3, 9)"),
        (("redundancy", "--prompts", "0"), "prompts"),
        (("redundancy", "--steps", "0"), "steps"),
        (("groupings", "--trained", "mine"), "mine"),
        (("orders", "--cuts", "random"), "random"),
        (("routing",), "adapter"),
    ],
)
def test_bad_input_is_refused_before_anything_is_written(capsys, tmp_path, monkeypatch, words, named):
    monkeypatch.chdir(tmp_path)
    code, _, err = run_command(capsys, "probe", words[0], DATA / "jit-tiny", *words[1:])
    assert (code, err.count("\n"), named in err) == (2, 1, True)
    assert list(tmp_path.iterdir()) == []
