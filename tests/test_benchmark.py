"""The benchmark: what it counts, what it times, and that both are about the same runs."""

import json
import sys

import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode

import rti
from rti import cost
from rti.lab.bench.benchmark import Row, as_rows, random_condition, run_benchmark, twin
from rti.lab.bench.stopwatch import clock, parts_of, peak_memory, timed
from rti.method.reductions import REDUCTIONS
from test_cli import run, run_json
from tiny import CORE, SAVE, make_backbone, make_inputs, refused, snapshot


def attached(family: str, reduction: str = "region", **settings) -> tuple[rti.Backbone, rti.ElasticModel]:
    dense = make_backbone(family)
    text = {"text_regions": True} if family == "minit2i" else {}
    config = REDUCTIONS[reduction][0](core=CORE, **text, **settings)
    return dense, rti.attach(twin(dense), config).fuse(keep=False).eval()


# The count.


def sdpa_flops(query, key, value, *args, out_shape=None, **kwargs) -> int:
    """Two products over all pairs of tokens; torch has no formula for a CPU."""
    batch, heads, length, width = query
    return 4 * batch * heads * length * key[2] * width


@pytest.mark.parametrize("reduction", REDUCTIONS)
@pytest.mark.parametrize("family", ["minit2i", "jit"])
@pytest.mark.parametrize(("budget", "text"), [(64, None), (20, None), (7, 3), (64, 2)])
@torch.no_grad()
def test_the_analytic_count_is_that_of_torchs_flop_counter(family, reduction, budget, text):
    """Of the blocks of the trunk, which is what the paper counts."""
    if text is not None and family == "jit":
        pytest.skip("no text")
    _, model = attached(family, reduction)
    model.requires_grad_(False)  # the counter trips over a view of a parameter that could learn
    x, t, condition = make_inputs(model.backbone, batch=3)
    condition = model.prepare(condition, **({} if text is None else {"text_budget": text}))
    formula = {torch.ops.aten._scaled_dot_product_flash_attention_for_cpu: sdpa_flops}
    with FlopCounterMode(display=False, custom_mapping=formula) as counter:
        model(x, t, condition, budget=budget)
    names = {module: name for name, module in model.named_modules()}
    trunk = model.backbone.blocks if family == "jit" else model.backbone.double_blocks
    counts = counter.get_flop_counts()
    total = sum(sum(counts[f"ElasticModel.{names[block]}"].values()) for block in trunk)
    ours = 3 * cost.reduced_flops(model.backbone, model.reduction, budget, text)
    assert ours == pytest.approx(total, rel=0.01)


def test_speed_ups_are_ratios_of_the_medians_and_of_the_counts():
    """Numbers by hand: dense takes 6 s and 12 GFLOP a run, a budget 2 s and 3 GFLOP."""
    dense = Row(flops=12e9, times=[5.0, 6.0, 90.0])
    lean = Row("region", 8, flops=3e9, times=[2.0, 1.0, 9.0])
    first, second = as_rows([dense, lean], batch=4, share=0.5)
    assert (first["speedup"], first["analytic_speedup"], first["efficiency"]) == (1, 1, 1)
    assert (second["speedup"], second["analytic_speedup"], second["efficiency"]) == (3, 4, 0.75)
    assert (first["images_per_second"], second["images_per_second"]) == (round(4 * 0.5 / 6, 5), 1)


@pytest.mark.parametrize(("family", "steps"), [("minit2i", None), ("jit", 3)])
def test_the_analytic_speed_up_is_that_of_torchs_flop_counter(family, steps):
    """Of the whole measured run, guidance and solver included, whatever the paper's count leaves out."""
    dense, model = attached(family)
    counted = {}
    for budget, network in ((None, dense), (8, model)):
        network.requires_grad_(False)
        formula = {torch.ops.aten._scaled_dot_product_flash_attention_for_cpu: sdpa_flops}
        x, t, condition = make_inputs(dense, batch=1)
        with torch.no_grad(), FlopCounterMode(display=False, custom_mapping=formula) as counter:
            network(x, t, network.prepare(condition), budget=budget)
        counted[budget] = counter.get_total_flops()
    result = run_benchmark(dense, {"region": model}, [8], steps=steps, passes=1, warmup=0, progress=False)
    assert [row["budget"] for row in result] == ["dense", 8]
    assert result[1]["analytic_speedup"] == pytest.approx(counted[None] / counted[8], rel=0.1)


def test_the_text_is_counted_at_its_own_budget():
    dense, model = attached("minit2i")
    row = run_benchmark(dense, {"region": model}, [32], (3,), passes=1, warmup=0, progress=False)[1]
    count = cost.reduced_flops(dense, model.reduction, 32, 3)
    assert row["analytic_speedup"] == pytest.approx(cost.dense_flops(dense) / count, abs=1e-3)
    assert row["text_budget"] == 3


@pytest.mark.parametrize(("family", "evaluations"), [("minit2i", 100), ("jit", 99)])
def test_pictures_a_second_follow_from_the_sampler(family, evaluations):
    """A forward pass is one of Euler's 100 evaluations, or of Heun's 2 x 50 - 1."""
    dense, model = attached(family)
    for row in run_benchmark(dense, {"region": model}, [32], batch=2, passes=1, warmup=0, progress=False):
        rounding = 6e-6 * (row["images_per_second"] + row["seconds"])  # both have five digits
        assert row["images_per_second"] * row["seconds"] == pytest.approx(2 / evaluations, abs=rounding)


# The runs.


def test_every_pass_runs_every_row_once_in_an_order_of_its_own():
    dense, model = attached("minit2i")
    calls = []
    for name, module in (("dense", dense), ("region", model)):
        module.register_forward_pre_hook(
            lambda _, inputs, options, name=name: calls.append((name, options["budget"])), with_kwargs=True
        )
    run_benchmark(dense, {"region": model}, [32, 8], passes=8, warmup=1, progress=False)
    rows = {("dense", None), ("region", 32), ("region", 8)}
    assert set(calls[:3]) == rows  # the estimates, before the first turn
    turns = [tuple(calls[start : start + 3]) for start in range(3, 3 + 9 * 3, 3)]
    assert all(set(turn) == rows for turn in turns)
    assert len(set(turns)) > 2  # what runs after what has a price of its own


def test_the_control_stands_beside_the_backbone_alone():
    dense, control = attached("minit2i", "dense")
    calls = []
    for name, module in (("backbone", dense), ("control", control)):
        module.register_forward_pre_hook(lambda *_, name=name: calls.append(name))
    result = run_benchmark(dense, {"dense": control}, [8], passes=3, warmup=0, progress=False)
    assert calls.count("backbone") == calls.count("control") > 3
    assert [row["analytic_speedup"] for row in result] == [1, 1]


def test_dense_as_loaded_takes_its_turn_beside_what_was_made_of_it():
    dense, model = attached("minit2i")
    plain, calls = twin(dense), []
    for name, module in (("dense", dense), ("plain", plain), ("region", model)):
        module.register_forward_pre_hook(lambda *_, name=name: calls.append(name))
    result = run_benchmark(dense, {"region": model}, [32], plain=plain, passes=2, warmup=0, progress=False)
    for start in (0, 3, 6):  # the estimates, and two turns
        assert set(calls[start : start + 3]) == {"dense", "plain", "region"}
    assert [row["model"] for row in result] == ["dense", "dense as loaded", "region"]
    assert result[1]["analytic_speedup"] == 1


@torch.no_grad()
def test_twins_share_their_weights_and_only_one_of_them_is_attached():
    backbone = make_backbone("minit2i")
    before, inputs = snapshot(backbone), make_inputs(backbone)
    expected = backbone(*inputs)
    other = twin(backbone)
    addresses = [{value.data_ptr() for value in module.state_dict().values()} for module in (backbone, other)]
    assert addresses[0] == addresses[1]
    rti.attach(other, rti.RegionConfig(core=CORE))
    assert not backbone.attached
    assert list(snapshot(backbone)) == list(before)
    assert torch.equal(backbone(*inputs), expected)


def test_a_model_merged_for_good_says_so():
    _, model = attached("minit2i")
    with refused("keep=False", "load it again"):
        model.unfuse()
    with refused("keep=False"), model.dense():
        pass


@torch.no_grad()
@pytest.mark.parametrize("family", ["minit2i", "jit"])
def test_attention_written_out_is_the_same_attention(family, monkeypatch):
    def attention(q, k, v, log_sizes=None):
        assert log_sizes is None  # dense
        scores = torch.einsum("bqhd,bkhd->bhqk", q, k) * q.shape[-1] ** -0.5
        return torch.einsum("bhqk,bkhd->bqhd", scores.softmax(dim=-1), v).flatten(2)

    backbone = make_backbone(family)
    inputs = make_inputs(backbone)
    expected = backbone(*inputs)
    monkeypatch.setattr(sys.modules[type(backbone).__module__], "attention", attention)
    written_out = backbone(*inputs)
    assert not torch.equal(written_out, expected)  # another order of sums
    torch.testing.assert_close(written_out, expected, atol=1e-4, rtol=1e-4)


def test_the_parts_of_a_run_are_timed_and_nothing_stays_behind():
    dense, model = attached("minit2i")
    before = set(vars(model.backbone)), set(vars(model.reduction)), set(vars(model.reduction.read))
    with torch.no_grad(), parts_of(model) as parts:
        model(*make_inputs(model.backbone), budget=16)
    assert {"embed", "prelude", "partition", "read", "core", "write", "interface", "coda", "head"} <= set(parts)
    assert all(seconds >= 0 for seconds in parts.values())
    assert parts["interface"] >= parts["partition"] + parts["read"] + parts["write"]
    assert before == (set(vars(model.backbone)), set(vars(model.reduction)), set(vars(model.reduction.read)))
    with torch.no_grad(), parts_of(dense) as parts:
        dense(*make_inputs(dense))
    assert set(parts) == {"embed", "trunk", "head"}


def test_a_stopwatch_adds_up(monkeypatch):
    times = iter([1.0, 3.0, 10.0, 11.5])
    monkeypatch.setattr("rti.lab.bench.stopwatch.clock", lambda device: next(times))

    class Thing:
        def work(self):
            return 7

    thing, seconds = Thing(), {"part": 0.0}
    with timed(thing, "work", seconds, "part", torch.device("cpu")):
        assert (thing.work(), thing.work()) == (7, 7)
    assert seconds == {"part": 3.5}
    assert thing.work() == 7
    assert vars(thing) == {}


@pytest.mark.parametrize(("device", "peak"), [("cuda", 0.6), ("cpu", None)])
def test_the_peak_is_that_of_the_run_on_a_gpu_and_not_of_what_was_before(monkeypatch, device, peak):
    held = [5e9]
    monkeypatch.setattr(torch.cuda, "reset_peak_memory_stats", lambda _: held.clear())
    monkeypatch.setattr(torch.cuda, "max_memory_allocated", lambda _: max(held))
    assert peak_memory(lambda: held.extend([2e8, 6e8]), torch.device(device)) == peak
    assert (held == [5e9]) == (peak is None)  # nothing is run for nothing


@pytest.mark.parametrize("family", ["minit2i", "jit"])
def test_made_up_conditions_are_usable(family):
    backbone = make_backbone(family)
    condition = random_condition(backbone, 12)  # more than there are classes
    assert len(condition) == 12
    with torch.no_grad():
        assert backbone(torch.zeros(12, 3, 32, 32), 0.5, condition).isfinite().all()


# The command.


def test_the_command_keeps_its_contract(capsys, tmp_path):
    folder, figure = SAVE["minit2i"](tmp_path / "backbone"), tmp_path / "new" / "cost.png"
    values = run_json(
        capsys, "bench", folder, "--budgets", "32,8", "--text-budget", "full,3", "--passes", 1, "--warmup", 0,
        "--core", "1,2", "--set", "cuts=merge", "--set", "cuts_from=features", "--plot", figure,
    )  # fmt: skip
    rows = values["rows"]
    assert [(row["budget"], row["text_budget"]) for row in rows] == [
        ("dense", None),
        *((32, None), (8, None), (32, 3), (8, 3)),
    ]
    assert [row["model"] for row in rows[:2]] == ["dense", "region"]
    for row in rows:
        assert {"seconds", "speedup", "analytic_speedup", "efficiency", "images_per_second", "parts"} <= set(row)
    assert figure.read_bytes().startswith(b"\x89PNG")


def test_what_compiling_brings_is_timed_beside_the_model_as_loaded(capsys, tmp_path, monkeypatch):
    given = {}

    def note(dense, models, *rest, plain=None, **options):
        given.update(dense=dense, region=models["region"].backbone, plain=plain)
        raise rti.InputError("enough")

    monkeypatch.setattr("rti.lab.bench.benchmark.run_benchmark", note)
    run(capsys, "bench", SAVE["minit2i"](tmp_path / "backbone"), "--core", "1,2", "--compile")
    changed = {}
    for name, backbone in given.items():
        modules = [module for block in backbone.repeated_blocks() for module in block.modules()]
        changed[name] = any(module._compiled_call_impl is not None for module in modules)
    assert changed == {"dense": True, "region": True, "plain": False}


def test_an_adapter_is_timed_with_its_own_reduction(capsys, tmp_path):
    backbone = rti.load_backbone(SAVE["jit"](tmp_path / "backbone"))
    rti.attach(backbone, rti.RegionConfig(core=CORE, cuts="fixed")).save_pretrained(tmp_path / "adapter")
    values = run_json(capsys, "bench", tmp_path / "adapter", "--budgets", "0.5", "--passes", 1, "--steps", 2)
    assert [row["budget"] for row in values["rows"]] == ["dense", 32]
    code, _, err = run(capsys, "bench", tmp_path / "adapter", "--reductions", "region")
    assert (code, err.count("\n")) == (2, 1)
    assert "--reductions" in err


def test_other_reductions_can_take_the_place_of_an_adapter_that_ships(capsys):
    options = ("--budgets", "64", "--passes", 1, "--warmup", 0)
    both = ("--reductions", "region,token-skip", "--set", "core=4,9")
    values = run_json(capsys, "bench", "scenes", *both, *options)
    assert [row["model"] for row in values["rows"]] == ["dense", "region", "token-skip"]
    shorter = values["rows"][1]["analytic_speedup"]
    own = run_json(capsys, "bench", "scenes", "--reductions", "region", *options)["rows"][1]["analytic_speedup"]
    assert own > shorter > 1  # left unsaid, the core is that of the adapter: 2 to 9
    code, _, err = run(capsys, "bench", "scenes", "--set", "cuts=gaps", *options)
    assert (code, err.count("\n")) == (2, 1)
    assert "--reductions" in err


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("--budgets", "100"), "100"),
        (("--text-budget", "9"), "9"),
        (("--reductions", "telepathy"), "telepathy"),
        (("--set", "cuts=luck"), "luck"),
        (("--set", "colour=red"), "colour"),
        (("--passes", "0"), "passes"),
        (("--batch", "0"), "batch"),
        (("--steps", "0"), "steps"),
        (("--threads", "0"), "threads"),
        (("--dtype", "int3"), "int3"),
        (("--plot", "figure.txt"), "figure.txt"),
    ],
)
def test_nonsense_is_refused_in_a_line(capsys, tmp_path, arguments, said):
    folder = SAVE["minit2i"](tmp_path / "backbone")
    code, _, err = run(capsys, "bench", folder, "--core", "1,2", *arguments)
    lines = [line for line in err.splitlines() if line.startswith("rti: error")]
    assert (code, len(lines)) == (2, 1)
    assert said in lines[0]


def test_the_analytic_count_with_short_text_is_known(capsys):
    """B/16 at R = 256 with 32 text tokens, by hand: three blocks on 1056 tokens before and after, eleven on 288."""
    hidden, mlp, full = 768, 2048, 17 * (2 * 1280 * (4 * 768**2 + 3 * 768 * 2048) + 4 * 1280**2 * 768)
    used = 0
    for tokens, blocks in ((1056, 6), (288, 11)):
        used += blocks * (2 * tokens * (4 * hidden**2 + 3 * hidden * mlp) + 4 * tokens**2 * hidden)
    values = run_json(capsys, "info", "minit2i-b16", "--budgets", "256", "--text-budget", "32")
    assert values["rows"][0]["speedup"] == pytest.approx(full / used, abs=1e-3)
    assert json.loads(json.dumps(values))["text_budget"] == 32


@pytest.mark.parametrize("kind", ["cuda", "mps"])
def test_the_clock_waits_for_the_device(monkeypatch, kind):
    waited = []
    monkeypatch.setattr(getattr(torch, kind), "synchronize", lambda *device: waited.append(kind))
    clock(torch.device(kind))
    clock(torch.device("cpu"))
    assert waited == [kind]
