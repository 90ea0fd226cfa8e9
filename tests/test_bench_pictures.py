"""Seconds of a picture: what is drawn and how, that the released way is not ours, and that the figures fit together."""

from collections import Counter

import pytest
import torch
import torch.nn.functional as F

import rti
from close import assert_close
from rti.dials import Dials, Preset, usual_presets
from rti.lab.bench import pictures
from rti.lab.bench.benchmark import twin
from rti.lab.bench.pictures import count_evaluations, time_pictures, written_out
from test_cli import run, run_json
from tiny import CORE, SAVE, make_backbone, make_inputs

FUSED = F.scaled_dot_product_attention
QUICK = {"quick": Preset(Dials(3, "multistep", budget=0.25))}


@pytest.fixture
def short_release(monkeypatch):
    """Two steps in place of the release's hundred."""

    def build(family, sizes):
        assert sizes == {}  # the release's own, and not this model's
        return make_backbone(family, **({"n_T": 2} if family == "minit2i" else {"num_sampling_steps": 2}))

    monkeypatch.setattr(pictures, "build", build)


def attached(family: str, **settings) -> tuple[rti.Backbone, rti.ElasticModel]:
    dense = make_backbone(family)
    return dense, rti.attach(twin(dense), rti.RegionConfig(core=CORE, **settings)).fuse(keep=False).eval()


def drawn(dense, model, presets=QUICK, **options) -> dict[str, dict]:
    return {row["setting"]: row for row in time_pictures(dense, model, presets, progress=False, **options)}


# Attention, written out.


@torch.no_grad()
@pytest.mark.parametrize("family", ["minit2i", "jit"])
def test_attention_written_out_gives_the_same_picture_and_fuses_nothing(family):
    backbone = make_backbone(family)
    inputs = make_inputs(backbone)
    expected = backbone(*inputs)
    with torch.profiler.profile() as fused:
        backbone(*inputs)
    with written_out(), torch.profiler.profile() as plain:
        found = backbone(*inputs)
    assert_close(found, expected)
    assert F.scaled_dot_product_attention is FUSED
    seen = [{event.key for event in profile.key_averages()} for profile in (fused, plain)]
    attentions = [{name for name in names if "attention" in name} for names in seen]
    assert attentions[0] and not attentions[1]
    assert "aten::softmax" in seen[1] - seen[0]


def test_only_the_release_has_its_attention_written_out(short_release):
    dense, model = attached("jit")
    plain, seen = twin(dense), set()

    def watch(name: str, module: torch.nn.Module) -> None:
        module.register_forward_pre_hook(lambda *_: seen.add((name, F.scaled_dot_product_attention is FUSED)))

    for name, module in (("plain", plain), ("dense", dense), ("model", model)):
        watch(name, module)
    drawn(dense, model, plain=plain)
    assert seen == {("plain", False), ("dense", True), ("model", True)}


# What is drawn.


@pytest.mark.parametrize(
    ("family", "steps", "solver", "interval"),
    [("minit2i", 100, "euler", (0.0, 1.0)), ("jit", 50, "heun", (0.1, 1.0))],
)
def test_the_released_way_is_that_of_the_family_and_not_of_a_small_models_config(
    monkeypatch, family, steps, solver, interval
):
    own = {"minit2i": {"n_T": 7, "cfg_interval": [0.3, 0.6]}, "jit": {"num_sampling_steps": 7}}[family]
    dense = make_backbone(family, **own)
    calls = {}

    def note(model, noise, condition, steps, **how):
        calls[len(calls)] = {"steps": steps} | how
        return noise

    monkeypatch.setattr(pictures, "sample", note)
    monkeypatch.setattr(pictures.random, "Random", lambda turn: InOrder())
    rows = time_pictures(dense, dense, {"own": Preset(Dials())}, warmup=0, progress=False)
    for call in (calls[0], calls[1]):
        assert (call["steps"], call["solver"], call["guidance_interval"]) == (steps, solver, interval)
    assert [call["finish"] for call in calls.values()] == ["state", None, None]
    assert (calls[2]["steps"], rows[2]["steps"]) == (7, 7)  # a preset that says nothing is the model's own way
    assert {call["guidance_scale"] for call in calls.values()} == {dense.flow.guidance_scale}


class InOrder:
    def sample(self, rows: list, count: int) -> list:
        return rows


def test_a_preset_is_drawn_by_all_of_its_dials(monkeypatch, short_release):
    dense, model = attached("minit2i", text_regions=True)
    dials = Dials(3, "multistep", 2.0, "state", (0.2, 0.8), 2, 0.25, 0.5)
    calls, real = [], pictures.sample
    monkeypatch.setattr(pictures, "sample", lambda *given, **how: calls.append((given, how)) or real(*given, **how))
    row = drawn(dense, model, {"mine": Preset(dials)})["mine"]
    (given, how) = next(call for call in calls if call[0][0] is model)
    assert given[3] == 3
    assert [how[name] for name in ("solver", "shift", "finish", "guidance_interval")] == [
        "multistep",
        2,
        "state",
        (0.2, 0.8),
    ]
    assert (how["budget"].image, how["budget"].text, how["budget"].passes) == (0.25, 0.5, 2)
    assert (row["budget"], row["text_budget"]) == (16, 3)  # of 64 patches and 6 text tokens


@pytest.mark.parametrize("budget", [None, "dense"])
def test_a_preset_without_a_budget_is_the_backbone_alone(short_release, budget):
    dense, model = attached("jit")
    model.register_forward_pre_hook(lambda *_: pytest.fail("not this one"))
    row = drawn(dense, model, {"slow": Preset(Dials(2, budget=budget))})["slow"]
    assert (row["budget"], row["text_budget"], row["solver"]) == ("dense", None, "heun")


def test_every_pass_draws_every_row_with_a_single_pass_of_each_kind_on_both_sides(short_release, monkeypatch):
    dense, model = attached("jit")
    order = []
    monkeypatch.setattr(pictures, "time_of", lambda work, device: order.append(work) or float(len(order)))
    drawn(dense, model, passes=3, warmup=2)
    assert len(order) == 3 * 3 * 5  # JiT's first steps are unguided, so there are two kinds of pass
    assert sorted(Counter(order).values()) == [3] * 3 + [6] * 6


# The figures.


@pytest.mark.parametrize(
    ("dials", "scale", "expected"),
    [
        (Dials(10, "euler", guidance_interval=(0.0, 1.0)), 3.0, {"guided": 10}),
        (Dials(10, "multistep", guidance_interval=(0.15, 0.75)), 3.0, {"guided": 6, "unguided": 4}),  # at 0.2 to 0.7
        (Dials(10, "euler", guidance_interval=(0.0, 1.0)), 1.0, {"unguided": 10}),
        (Dials(50, "heun", guidance_interval=(0.1, 1.0)), 3.0, {"guided": 88, "unguided": 11}),
    ],
)
def test_evaluations_are_counted_inside_and_outside_of_the_interval(dials, scale, expected):
    """Heun's, by hand: 99 in all, two of each step but the last. Steps 0 to 4 begin and end at or below 0.1, and step 5
    begins there; the interval is open."""
    assert count_evaluations(dials, scale) == expected


@pytest.mark.parametrize("solver", ["euler", "heun", "multistep"])
def test_the_count_is_of_what_the_sampler_really_asks(solver):
    backbone, asked = make_backbone("jit"), []
    backbone.register_forward_pre_hook(lambda _, inputs: asked.append(len(inputs[0])))
    noise, _, condition = make_inputs(backbone, batch=1)
    rti.sample(
        backbone, noise, condition, 6, guidance_interval=(0.2, 0.7), guidance_scale=3.0, solver=solver, shift=1.5
    )
    counts = count_evaluations(Dials(6, solver, 1.5, guidance_interval=(0.2, 0.7)), 3.0)
    assert counts == {"guided": asked.count(2), "unguided": asked.count(1)}


def test_speed_ups_and_products_by_hand(monkeypatch, short_release):
    """A picture of 20 s by the release and of 4 s by the preset, whose passes take 2 s guided and 1 s unguided."""
    dense, model = attached("jit")
    seconds = {"picture": {"release": 20.0, "dense": 10.0, "quick": 4.0}, "guided": 2.0, "unguided": 1.0}

    real = pictures._rows

    def rows(*given):
        found = real(*given)
        for row in found:
            row.times = {part: [seconds[part]] for part in row.evaluations} | {
                "picture": [seconds["picture"][row.setting]]
            }
            row.times = {part: KeptAsTheyAre(times) for part, times in row.times.items()}
        return found

    monkeypatch.setattr(pictures, "_rows", rows)
    found = drawn(dense, model, batch=2)
    assert [row["speedup"] for row in found.values()] == [1, 2, 5]
    assert [row["seconds"] for row in found.values()] == [10, 5, 2]  # of one of the two pictures
    assert found["quick"]["evaluations"] == {"guided": 2, "unguided": 1}  # at 0, 1/3, 2/3
    assert found["quick"]["of_parts"] == 4 / (2 * 2 + 1)
    assert found["quick"]["pass_seconds"] == {"guided": 1, "unguided": 0.5}


class KeptAsTheyAre(list):
    def append(self, value: float) -> None:
        pass


# Presets.


def test_usual_presets_shorten_the_text_only_where_there_are_text_regions():
    for regions, expected in ((True, 0.5), (False, None)):
        presets = usual_presets(True, regions)
        assert list(presets) == ["careful", "balanced", "fast"]
        assert presets["balanced"].dials.text_budget == expected


# The command.


@pytest.mark.parametrize(("family", "text"), [("minit2i", 3), ("jit", None)])
def test_the_command_keeps_its_contract(capsys, tmp_path, short_release, family, text):
    folder = SAVE[family](tmp_path / "backbone")
    values = run_json(capsys, "bench", folder, "--pictures", "--core", "1,2", "--batch", 2, "--warmup", 0)
    assert (values["passes"], values["batch"]) == (1, 2)
    rows = values["rows"]
    assert [row["setting"] for row in rows] == ["release", "dense", "careful", "balanced", "fast"]
    assert [row["budget"] for row in rows] == ["dense", "dense", 32, 16, 16]
    assert [row["text_budget"] for row in rows] == [None, None, None, text, text]
    assert [row["steps"] for row in rows] == [2, 2, 25, 16, 12]
    for row in rows:
        assert row["seconds"] > 0 and row["of_parts"] > 0
        assert row["speedup"] == pytest.approx(rows[0]["seconds"] / row["seconds"], rel=0.01)
        assert row["solver"] in ("euler", "heun", "multistep") and sum(row["evaluations"].values()) >= row["steps"]


def test_an_adapter_is_drawn_with_what_it_has(capsys, tmp_path, short_release):
    backbone = rti.load_backbone(SAVE["minit2i"](tmp_path / "backbone"))
    rti.attach(backbone, rti.RegionConfig(core=CORE, cuts="fixed")).save_pretrained(tmp_path / "adapter")
    code, out, _ = run(capsys, "bench", tmp_path / "adapter", "--pictures", "--warmup", 0)
    said = " ".join(out.split())
    assert code == 0 and "whole pictures" in said
    assert said.count("full") == 5  # it has no text regions


def test_what_is_compiled_is_ours_and_not_the_release(capsys, tmp_path, monkeypatch):
    given = {}

    def note(dense, model, presets, plain=None, **options):
        given.update(dense=dense, region=model.backbone, plain=plain)
        raise rti.InputError("enough")

    monkeypatch.setattr(pictures, "time_pictures", note)
    run(capsys, "bench", SAVE["minit2i"](tmp_path / "backbone"), "--pictures", "--core", "1,2", "--compile")
    changed = {}
    for name, backbone in given.items():
        modules = [module for block in backbone.repeated_blocks() for module in block.modules()]
        changed[name] = any(module._compiled_call_impl is not None for module in modules)
    assert changed == {"dense": True, "region": True, "plain": False}


@pytest.mark.parametrize(
    "option",
    [
        ("--budgets", "8"),
        ("--text-budget", "3"),
        ("--reductions", "region"),
        ("--set", "cuts=merge"),
        ("--steps", "4"),
        ("--plot", "cost.png"),
    ],
)
def test_what_the_presets_decide_is_refused_beside_them(capsys, option):
    code, _, err = run(capsys, "bench", "scenes", "--pictures", *option)
    assert (code, err.count("\n")) == (2, 1)
    assert err.startswith(f"rti: error: {option[0]} given with --pictures") and "allowed beside it: --batch" in err
