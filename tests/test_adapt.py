"""An adapter from prompts alone: the closed form is the least-squares one, runs go on where they stopped, no data."""

import json
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from accelerate.state import AcceleratorState
from safetensors.torch import load_file

import rti
from rti.cli import main
from rti.flow import draw_noise, picture_generator, velocity
from rti.loading import build, usual_core
from rti.method.reductions import Span
from rti.presets import PRESETS, default_core
from rti.sampling import GuidedVelocity
from rti.seeds import mix
from rti.solvers import euler
from rti.text.prompts import template_prompts, word_prompts
from rti.text.vocabulary import words_of
from rti.training.adapt import FEWEST_STEPS, Adapting
from rti.training.closed_form import RIDGE, Sums, collect
from rti.training.config import AdaptConfig
from rti.training.distillation import Distillation
from rti.training.draws import Dial
from rti.training.trainer import Trainer
from rti.training.trajectories import FIRST
from test_trainer import assert_equal, launch, letters, trained_values
from tiny import make_backbone, refused

SUBJECTS = {"minit2i": list("abcdefgh"), "jit": [3, 1, 4, 5, 9]}


def region(**changes) -> rti.RegionConfig:
    settings = dict(
        core=(1, 2), cuts="merge", cuts_from="estimate", lora_rank=4, sized_write=True, sized_attention=True
    )
    return rti.RegionConfig(**settings | changes)


def settings(folder, **changes) -> AdaptConfig:
    usual = dict(budgets=(4, 16), steps=6, batch=4, batch_per_device=2, save_every=2, linear_prompts=3)
    return AdaptConfig(model="tiny", output=str(folder), warmup=2, **usual | changes)


def adapting(folder, family="jit", **changes) -> Adapting:
    encoder = letters if family == "minit2i" else None
    config = settings(folder, **changes)
    return Adapting(config, region(one_pass=config.one_pass), make_backbone(family), encoder, SUBJECTS[family])


def sums_of(model, family, **options) -> Sums:
    encoder = letters if family == "minit2i" else None
    return collect(model, encoder, dict(enumerate(SUBJECTS[family][:3])), (4, 16), **options)


def test_the_closed_form_solves_the_ridge_regression_of_its_rows():
    """Against the normal equations written out, and against the gradient, which must be zero there."""
    random = torch.Generator().manual_seed(0)
    sums, rows = Sums(), {}
    for budget in (4, 16):
        x, y = torch.randn(2, 50, 6, generator=random), torch.randn(2, 50, 3, generator=random)
        sums.add(budget, x, y, None)
        rows[budget] = x.flatten(0, 1).double(), y.flatten(0, 1).double()
    found = sums.solve()
    solution = found.clone().requires_grad_()
    share = sum((x @ solution - y).square().sum() / y.square().sum() for x, y in rows.values())
    diagonal = sum(x.square().sum(dim=0) / y.square().sum() for x, y in rows.values())
    (share + RIDGE * (diagonal[:, None] * solution.square()).sum()).backward()
    assert solution.grad.abs().max() < 1e-4
    for budget, gained in sums.explained(found).items():
        x, y = rows[budget]
        assert gained == pytest.approx(float(1 - (x @ found - y).square().sum() / y.square().sum()), abs=1e-5)


def test_guided_rows_are_what_a_sampler_combines():
    """A map that is right on both branches is right on what guidance makes of them; errors apart weigh more."""
    x, y = torch.randn(4, 5, 6), torch.randn(4, 5, 3)
    plain, guided = Sums(), Sums()
    plain.add(4, x, y, None)
    guided.add(4, x, y, 3.0)
    combined = 3 * y[:2] - 2 * y[2:]
    expected = plain[4]["energy"] + 2 / 13 * combined.double().square().sum()
    assert guided[4]["energy"].item() == pytest.approx(expected.item(), rel=1e-5)


def test_the_closed_form_brings_the_core_nearer_to_the_dense_one(family):
    """On states of other noise than it was fitted on, at each budget; and leaves the frozen backbone alone."""
    backbone = make_backbone(family)
    before = {name: value.clone() for name, value in backbone.state_dict().items()}
    model = rti.attach(backbone, region())
    fresh = {budget: one["energy"].item() for budget, one in sums_of(model, family, seed=1).items()}
    model.reduction.correct(sums_of(model, family).solve())
    fitted = {budget: one["energy"].item() for budget, one in sums_of(model, family, seed=1).items()}
    assert all(fitted[budget] < 0.9 * fresh[budget] for budget in fresh), (fitted, fresh)
    assert_equal(dict(model.detach().state_dict()), before)


def test_what_is_left_is_what_the_core_on_regions_misses():
    """The energy that is summed is that of dense tokens minus the reduction's own."""
    model = rti.attach(make_backbone("jit"), region())
    backbone = model.backbone
    x, t = torch.randn(2, 3, 32, 32), torch.full((2,), 0.3)
    condition, estimate = backbone.condition(labels=[1, 2]), torch.randn(2, 3, 32, 32)
    tokens = model.prelude(x, t, condition)
    core = Span(backbone, 1, 3)
    features, left = model.reduction.linear(tokens, core, 4, estimate)
    assert torch.equal(left, model.core(tokens, 4, estimate).image)
    solution = torch.randn(features.shape[-1], 32, generator=torch.Generator().manual_seed(2)) / 10
    model.reduction.correct(solution)
    seen = model.core(tokens, 4, estimate).image
    torch.testing.assert_close(seen, left + features @ solution, rtol=1e-4, atol=1e-4)


def test_sums_that_were_interrupted_go_on(tmp_path, monkeypatch):
    whole = sums_of(rti.attach(make_backbone("jit"), region()), "jit")
    monkeypatch.setattr("rti.training.closed_form.AT_ONCE", 1)
    parts = []

    def stop_at_two(done: int) -> None:
        parts.append(done)
        if done == 2:
            raise KeyboardInterrupt

    model, store = rti.attach(make_backbone("jit"), region()), tmp_path / "sums.safetensors"
    with pytest.raises(KeyboardInterrupt):
        sums_of(model, "jit", store=store, on_part=stop_at_two)
    again = sums_of(model, "jit", store=store, on_part=parts.append)
    assert parts == [0, 1, 2, 2, 3]  # the third subject alone was left
    for budget, one in whole.items():
        torch.testing.assert_close(again[budget]["gram"], one["gram"], rtol=1e-4, atol=1e-2)
    sums_of(model, "jit", store=store, seed=8, on_part=parts.append)  # other settings begin anew
    assert parts[5] == 0


def test_a_resumed_run_equals_an_uninterrupted_one(tmp_path, family):
    how = dict(reuse=1, cooldown=0)  # so that pictures join after it goes on
    whole = adapting(tmp_path / "whole", family, **how)
    whole.run()
    adapting(tmp_path / "parts", family, steps=3, **how).run()
    parts = adapting(tmp_path / "parts", family, **how)
    trainer = parts.trainer()
    assert trainer.step == 3
    before = trainer.task.pictures.drawn
    trainer.run()
    assert trainer.task.pictures.drawn > before
    reference = adapting(tmp_path / "whole", family, **how).trainer()
    assert_equal(trained_values(trainer), trained_values(reference))
    assert_equal(trainer.task.pictures.state(), reference.task.pictures.state())


def test_two_processes_share_the_closed_form_and_train_as_one(tmp_path):
    """Over gloo. The sums are those of one process; each process has states of its own, and one adapter comes out."""
    alone = adapting(tmp_path / "alone", stage="linear", linear_prompts=5)
    expected = alone.run()["explained"]
    program = """
import json
from test_adapt import adapting
run = adapting("together", linear_prompts=5, steps=None, minutes=0.01, batch_per_device=8)
told = run.run()
if run.engine.is_main_process:
    print("values", json.dumps([run.engine.num_processes, told["explained"], told["step"], told["against_dense"]]))
"""
    processes, explained, step, rows = launch(tmp_path, program)
    assert (processes, step) == (2, FEWEST_STEPS)
    assert {int(budget): share for budget, share in explained.items()} == pytest.approx(expected, abs=2e-3)
    assert [row["budget"] for row in rows] == [16, 4]
    rti.load(tmp_path / "together/adapter", make_backbone("jit"))
    again = adapting(tmp_path / "together", linear_prompts=5, steps=FEWEST_STEPS + 2)  # one goes on where two stopped
    assert again.run()["step"] == FEWEST_STEPS + 2


def test_text_regions_are_among_what_the_closed_form_is_fitted_on():
    """Fitted with shortened texts it is nearer to the dense core on them than fitted without."""

    def energy(**fitted) -> float:
        model = rti.attach(make_backbone("minit2i"), region(text_regions=True))
        model.reduction.correct(sums_of(model, "minit2i", **fitted).solve())
        return sum(one["energy"].item() for one in sums_of(model, "minit2i", seed=1, texts=(2,)).values())

    assert energy(texts=(2,)) < energy()


def test_self_distillation_comes_nearer_to_the_teacher(tmp_path, family):
    """On the pictures it is trained on (random weights have nothing to generalise); the backbone stays as it was."""
    run = adapting(tmp_path, family, steps=40, stage="distil", learning_rate=3e-3, save_every=40, reuse=1000, drop=0.0)
    before = {name: value.clone() for name, value in run.model.named_parameters() if not value.requires_grad}
    other = Distillation(run.config, run.model, SUBJECTS[family], run.encoder)
    other.pictures.draw_until(FIRST)
    other.module.features, other.module.balanced = 0.0, False

    def losses() -> list[float]:
        with torch.no_grad():
            return [
                float(other.module(*other.examples(0, range(12), Dial(budget, False))).mean()) for budget in (4, 16)
            ]

    fresh = losses()
    told = run.run()
    assert told["step"] == 40
    assert all(now < 0.7 * then for now, then in zip(losses(), fresh, strict=True)), (losses(), fresh)
    assert_equal({name: dict(run.model.named_parameters())[name] for name in before}, before)


def test_a_perfect_student_has_no_loss(family):
    """As many fresh regions as patches are the frozen model, so nothing is left to learn."""
    model = rti.attach(make_backbone(family), region())
    task = Distillation(settings("nowhere"), model, SUBJECTS[family], letters if family == "minit2i" else None)
    task.pictures.draw_until(8)
    assert task.module(*task.examples(0, range(4), Dial(64, False))).max() < 1e-4  # float16's and bfloat16's rounding
    assert task.module(*task.examples(0, range(4), Dial(4, False))).min() > 1e-3


@torch.no_grad()
def test_pictures_go_where_the_frozen_sampler_goes_and_every_other_one_where_the_student_does(family):
    """Each of a noise, a subject and times of its own, in whatever order they are drawn; the oldest make room."""
    model = rti.attach(make_backbone(family), region())
    backbone, encoder = model.backbone, letters if family == "minit2i" else None
    flow = backbone.flow
    assert flow.guidance_scale != 1.0  # or guidance would not be tried

    def apart(**changes) -> list[float]:
        """How far two neighbours' last states are from the frozen sampler's."""
        pictures = Distillation(settings("nowhere", **changes), model, SUBJECTS[family], encoder).pictures
        pictures.draw_until(9)
        kept = pictures.kept
        assert pictures.drawn == len(kept["x"]) == 16
        asked = len(SUBJECTS[family])
        assert kept["places"].tolist() == [(one + one // asked) % asked for one in range(16)]
        found = []
        for number in (10, 11):
            noise = draw_noise((3, 32, 32), [picture_generator(settings("nowhere").seed + 1, number)], flow.noise_scale)
            with model.dense() as frozen:
                condition = pictures.conditions.of([kept["places"][number]])
                guided = GuidedVelocity(frozen, condition, flow, flow.guidance_scale, flow.guidance_interval)
                last = euler(guided, noise, kept["times"][number])
            found.append(float((kept["x"][number, -1] - last[0]).abs().max()))
        pictures.room = 8
        pictures.draw_until(17)
        assert pictures.drawn == 24 and len(pictures.kept["x"]) == 8
        return found

    assert max(apart(budgets=(64,))) < 0.02  # all patches: the student is the teacher
    followed, alone = apart(budgets=(1,))
    assert followed < 0.02 < 0.05 < alone


@torch.no_grad()
def test_lessons_are_what_the_teacher_says_of_the_state_that_is_shown(family):
    """At the time, and in the branch, of each example; the estimate is that of the step before."""
    model = rti.attach(make_backbone(family), region())
    task = Distillation(settings("nowhere"), model, SUBJECTS[family], letters if family == "minit2i" else None)
    task.pictures.draw_until(8)
    lessons, _ = task.examples(3, range(32), Dial(4, False))
    with model.dense() as frozen:
        expected = frozen(lessons.x, lessons.t, lessons.condition)
    torch.testing.assert_close(lessons.clean, expected, rtol=2e-3, atol=2e-3)
    again = task.pictures.choose(3, range(5, 9), Dial(4, False))
    assert torch.equal(again.x, lessons.x[5:9])
    assert lessons.t.min() > 0  # and at a sampler's first step there is no estimate
    assert task.pictures.choose(3, range(8), Dial(4, blind=True)).t.eq(0).all()
    kept = task.pictures.kept
    times, x, estimates = (kept[name].float() for name in ("times", "x", "estimate"))
    step = (times[:, 2] - times[:, 1]).view(-1, 1, 1, 1)
    moved = x[:, 1] + step * velocity(estimates[:, 2], x[:, 1], times[:, 1], model.backbone.flow.time_floor)
    torch.testing.assert_close(x[:, 2], moved, rtol=2e-3, atol=4e-3)


def test_times_are_the_quantiles_of_those_of_training():
    """Whatever a picture's shift is, each eleventh of the distribution has one of its times."""
    config = settings("nowhere", time_mean=-0.4, time_deviation=1.1)
    pictures = Distillation(config, rti.attach(make_backbone("jit"), region()), SUBJECTS["jit"]).pictures
    times = torch.stack([pictures._times(number) for number in range(400)])
    assert times[:, 0].eq(0).all() and times[:, -1].eq(1).all() and times.diff(dim=1).gt(0).all()
    shares = torch.special.ndtr((times[:, 1:-1].logit() + 0.4) / 1.1)
    assert torch.equal((shares * 11).floor(), torch.arange(11.0).expand(400, -1))
    assert shares.min() < 0.01 and shares.max() > 0.99
    assert (shares.mean(dim=0) - (torch.arange(11) + 0.5) / 11).abs().max() < 0.01


def test_no_data_package_is_touched(tmp_path):
    """The whole of `rti adapt` in a process that cannot import rti.data; the same with the teacher's words alone."""
    program = """
import sys
sys.modules["rti.data"] = None
from rti.cli import main
from rti.training import subjects, trajectories
subjects.HELD_OUT, trajectories.FIRST = 1, 8
main(["adapt", "scenes", "--output", "run", "--steps", "1", "--batch", "1", "--linear-prompts", "1", "--budgets", "16"])
"""
    path = str(Path(rti.__file__).parents[1])
    done = subprocess.run(
        [sys.executable, "-c", program],
        cwd=tmp_path,
        env={"PYTHONPATH": path, "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    results = json.loads((tmp_path / "run/results.json").read_text())
    assert [row["budget"] for row in results["against_dense"]] == [16]
    card = (tmp_path / "run/adapter/README.md").read_text()
    assert (
        "rti adapt" in card
        and f"{len(set(word_prompts(2000))) - 1} prompts" in card
        and f"{results['against_dense'][0]['psnr']} dB" in card
    )
    pipe = rti.Pipeline.from_pretrained(tmp_path / "run/adapter")
    assert pipe.elastic.config.sized_write


def test_in_python_an_adapter_comes_back_attached(tmp_path):
    options = dict(budgets=(4, 16), core=(1, 2), steps=2, batch=2, linear_prompts=2)
    model = rti.adapt(make_backbone("jit"), [1, 2, 3], output=tmp_path / "run", **options)
    assert (tmp_path / "run/adapter/interface.safetensors").is_file()
    again = rti.load(tmp_path / "run/adapter", make_backbone("jit"))
    assert_equal(dict(again.reduction.state_dict()), dict(model.reduction.state_dict()))


@pytest.mark.parametrize(
    "arguments, named",
    [
        (["adapt", "nothing", "--output", "run"], "unknown model 'nothing'"),
        (["adapt", "scenes", "--output", "run", "--minutes", "0"], "minutes"),
        (["adapt", "scenes", "--output", "run", "--stage", "both"], "all, linear, distil"),
        (["adapt", "scenes", "--output", "run", "--prompts", "nowhere.txt"], "nowhere.txt does not exist"),
        (["adapt", "scenes", "--output", "run", "--labels", "1"], "draws from prompts"),
        (["adapt", "scenes-jit", "--output", "run", "--prompts", "some.txt"], "draws from labels"),
        (["adapt", "scenes", "--output", "run", "--budgets", "300"], "1 to 256"),
    ],
)
def test_bad_input_is_one_line(capsys, tmp_path, monkeypatch, arguments, named):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(SystemExit) as ended:
        main(arguments)
    error = capsys.readouterr().err.strip()
    assert ended.value.code == 2 and named in error and len(error.splitlines()) == 1
    assert not (tmp_path / "run").exists()


def test_without_a_number_of_steps_the_minutes_decide_and_a_resumed_run_keeps_them(tmp_path):
    """More minutes, more steps; the number stays when the run goes on, whatever the machine does by then."""
    run = adapting(tmp_path / "long", steps=None, minutes=100.0, guidance="2..3")
    long = run.trainer().config.steps
    assert adapting(tmp_path / "short", steps=None, minutes=0.01).trainer().config.steps == FEWEST_STEPS < long
    short = adapting(tmp_path / "short", steps=None, minutes=0.01)
    assert short.run()["step"] == FEWEST_STEPS
    assert adapting(tmp_path / "short", steps=None, minutes=100.0).config.steps == FEWEST_STEPS


def test_a_wrong_guess_of_how_long_a_step_takes_is_put_right(tmp_path, monkeypatch):
    """The machine was busy when it was tried: after a quarter of the steps there is time for more."""
    monkeypatch.setattr(Adapting, "seconds_of_step", lambda run, trainer: 1e6)
    run = adapting(tmp_path, steps=None, minutes=100.0, stage="distil")
    trainer = run.trainer()
    assert trainer.config.steps == FEWEST_STEPS
    look_again, quarter = run.plan_again(trainer), FEWEST_STEPS // 4
    look_again(quarter - 1, 0.0)
    assert trainer.config.steps == FEWEST_STEPS
    look_again(quarter, 0.0)
    planned = json.loads((tmp_path / "config.json").read_text())
    assert planned["steps"] == trainer.config.steps == trainer.task.config.steps > 10 * FEWEST_STEPS
    assert planned["cooldown"] == int(0.4 * planned["steps"])
    trainer.step = 1
    trainer.save()
    monkeypatch.undo()
    trainer.lock.release()
    again = adapting(tmp_path, steps=None, minutes=100.0, stage="distil").trainer()
    kept = json.loads((tmp_path / "config.json").read_text())
    assert again.step == 1 and kept == planned  # the plan is kept, and how often it saves


def test_a_run_goes_by_the_plan_that_was_changed_on_the_way(tmp_path):
    trainer = adapting(tmp_path, steps=3, stage="distil").trainer()

    def longer(step: int, loss: float) -> None:
        trainer.config = replace(trainer.config, steps=5)

    trainer.run(longer)
    assert trainer.step == 5 and (tmp_path / "checkpoint-00000005").is_dir()


def test_sums_of_other_settings_are_not_gone_on_with(tmp_path):
    """The same folder with another core, before any checkpoint: the closed form begins anew."""

    def run(folder: Path, core: tuple[int, int]) -> dict:
        config = settings(folder, stage="linear")
        return Adapting(config, region(core=core), make_backbone("jit"), None, SUBJECTS["jit"]).run()["explained"]

    run(tmp_path / "one", (1, 2))
    assert run(tmp_path / "one", (2, 2)) == run(tmp_path / "other", (2, 2))


def test_the_budget_of_all_patches_leaves_nothing_to_solve_and_does_no_harm(tmp_path):
    run = adapting(tmp_path, stage="linear", budgets=(16, 64))
    assert set(run.run()["explained"]) == {16, 48}


def test_it_may_begin_from_another_adapter_as_it_is(tmp_path):
    """Without the closed form, which would correct what is right already; one without sized_write is a start too."""
    first = rti.attach(make_backbone("jit"), region(sized_write=False))
    with torch.no_grad():
        first.reduction.write.g.weight += 0.1
    first.save_pretrained(tmp_path / "first")
    run = adapting(tmp_path / "run", start_from=str(tmp_path / "first"), steps=1)
    assert torch.equal(run.model.reduction.write.g.weight, first.reduction.write.g.weight)
    assert not run.model.reduction.write.h.weight.any()
    assert "explained" not in run.run()
    with refused("start_from"):
        settings(tmp_path, stage="linear", start_from="somewhere")


def test_frozen_weights_in_half_precision_have_an_adapter_in_float32(tmp_path):
    backbone = make_backbone("jit").to(torch.bfloat16)
    config = settings(tmp_path, dtype="bfloat16", mixed_precision="bf16", steps=2)
    AcceleratorState._reset_state(True)  # of other precision
    try:
        Adapting(config, region(), backbone, None, SUBJECTS["jit"]).run()
    finally:
        AcceleratorState._reset_state(True)
    stored = load_file(tmp_path / "adapter/interface.safetensors")
    assert {value.dtype for value in stored.values()} == {torch.float32}
    assert stored["write.g.weight"].bfloat16().float().ne(stored["write.g.weight"]).any()  # not rounded on the way


@pytest.mark.parametrize(
    "given, said",
    [
        ("a red cube", "a list of labels"),
        ([], "a list of labels"),
        (5, "a list of labels"),
        ([3.7], "a list of labels"),
        ([3, 99], "label 99"),
        (torch.tensor([1, 2]), None),
    ],
)
def test_subjects_that_are_none_are_refused_at_once(tmp_path, given, said):
    def run() -> Adapting:
        return Adapting(settings(tmp_path), region(), make_backbone("jit"), None, given)

    if said is None:
        assert run().subjects.used == [1, 2]
    else:
        with refused(said):
            run()


def test_an_interface_that_learns_nothing_has_no_closed_form(tmp_path):
    config = region(interface="mean", sized_write=False)
    with refused("no closed form"):
        Adapting(settings(tmp_path), config, make_backbone("jit"), None, SUBJECTS["jit"]).run()


def test_pictures_join_at_the_same_rate_for_any_micro_batch(tmp_path):
    drawn = []
    for at_once in (1, 4):
        trainer = adapting(
            tmp_path / str(at_once), batch_per_device=at_once, steps=9, stage="distil", reuse=2
        ).trainer()
        for _ in range(9):
            trainer.train_step()
        drawn.append(trainer.task.pictures.drawn)
    assert drawn == [FIRST + 16] * 2  # two a step, eight at once


def test_a_run_with_other_settings_is_refused(tmp_path):
    adapting(tmp_path, steps=2).run()
    with refused("another drop"):
        adapting(tmp_path, steps=2, drop=0.1)


def test_a_run_goes_on_with_the_same_subjects_only(tmp_path):
    adapting(tmp_path, steps=2).run()
    with refused("another subjects"):
        Adapting(settings(tmp_path, steps=2), region(), make_backbone("jit"), None, [1, 2, 3, 4, 6])


def test_sums_of_other_weights_are_not_gone_on_with(tmp_path):
    """A model in memory has no name; its weights tell."""

    def explained(folder: str, seed: int) -> dict:
        backbone = make_backbone("jit", seed)
        run = Adapting(settings(tmp_path / folder, stage="linear"), region(), backbone, None, SUBJECTS["jit"])
        return run.run()["explained"]

    one = explained("one", seed=0)
    assert explained("one", seed=1) == explained("other", seed=1) != one


def test_with_no_usable_checkpoint_a_run_begins_anew_with_the_closed_form(tmp_path):
    run = adapting(tmp_path, steps=2, keep=1)
    first = run.run()
    for file in tmp_path.glob("checkpoint-*/state.safetensors"):
        file.write_bytes(b"damaged")
    again = adapting(tmp_path, steps=2, keep=1).run()
    assert again["explained"] == first["explained"] and again["against_dense"] == first["against_dense"]


def test_the_record_is_of_all_sittings(tmp_path):
    first = json.loads(json.dumps(adapting(tmp_path, steps=2).run()))
    path = tmp_path / "results.json"
    path.write_text(json.dumps(first | {"seconds": 100}))
    second = adapting(tmp_path, steps=4).run()
    assert second["explained"] == first["explained"] and 100 <= second["seconds"] < 160
    assert adapting(tmp_path, steps=4).run()["seconds"] == second["seconds"]  # nothing was left to do
    card = (tmp_path / "adapter/README.md").read_text()
    assert "Write's map in closed form, then 4 steps of 4" in card


def test_after_an_error_or_a_stop_the_backbone_is_as_it_was(tmp_path, monkeypatch):
    options = dict(budgets=(4, 16), core=(1, 2), steps=3, batch=2, linear_prompts=2, stage="distil")
    backbone = make_backbone("jit")
    before = {name: value.clone() for name, value in backbone.state_dict().items()}
    with refused("closed form"):
        rti.adapt(backbone, [1, 2, 3], output=tmp_path / "mean", interface="mean", **options | {"stage": "all"})
    step = Trainer.train_step

    def step_and_stop(trainer):
        trainer._stop()
        return step(trainer)

    monkeypatch.setattr(Trainer, "train_step", step_and_stop)
    with pytest.raises(KeyboardInterrupt):
        rti.adapt(backbone, [1, 2, 3], output=tmp_path / "run", **options)
    assert_equal(dict(backbone.state_dict()), before)
    monkeypatch.setattr(Trainer, "train_step", step)
    rti.adapt(backbone, [1, 2, 3], output=tmp_path / "run", **options).detach()  # and it goes on


def test_a_start_brings_its_own_settings(tmp_path):
    first = rti.attach(make_backbone("jit"), rti.RegionConfig(core=(2, 3), lora_rank=3, cuts="gaps"))
    first.save_pretrained(tmp_path / "first")
    given = {"output": str(tmp_path / "run"), "start_from": str(tmp_path / "first"), "budgets": (4,), "core": (1, 3)}
    config = Adapting.of(make_backbone("jit"), given, None, SUBJECTS["jit"]).model.config
    assert config == rti.RegionConfig(core=(1, 3), lora_rank=3, cuts="gaps")


def test_a_checkpoint_of_a_released_size_has_its_core_and_budgets(tmp_path, monkeypatch):
    """By its sizes, wherever it lies and whatever its folder is called."""
    preset = PRESETS["jit-l16"]
    monkeypatch.setattr(Adapting, "__init__", lambda run, config, *rest: setattr(run, "config", config))
    run = Adapting.of(build("jit", preset.sizes), {"output": str(tmp_path)})
    assert (run.config.budgets, usual_core(build("jit", preset.sizes))) == (preset.budgets, preset.core)
    assert usual_core(make_backbone("jit")) == default_core(5)


def test_prompts_of_words_are_all_known_and_begin_alike():
    assert all(words_of(prompt)[1] == [] for prompt in word_prompts(200))
    assert word_prompts(8) == word_prompts(40)[:8] and len(set(word_prompts(40))) > 30
    assert len(set(template_prompts())) == len(template_prompts()) > 300


def test_seeds_of_neighbours_are_unrelated():
    assert len({mix(a, b) for a in range(30) for b in range(30)}) == 900
