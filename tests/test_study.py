"""The study: what it plans, how it runs and resumes, and what it reports."""

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from forks import Forked, forked_command
from rti.lab.scenes import TASKS
from rti.lab.study.figures import FIGURES, draw_figures
from rti.lab.study.plan import Job, Row, Study, plan, read_study
from rti.lab.study.records import Records
from rti.lab.study.report import collect, table
from rti.lab.study.run import run_jobs
from test_cli import run, run_json
from tiny import refused, save_jit

ROWS = [
    {
        "name": "ours",
        "title": "ours",
        "settings": {"cuts": "merge", "cuts_from": "estimate"},
        "seeds": [0, 1],
        "images": {"8": 6, "16": 12},
        "steps_at": {"8": [2]},
    },
    {"name": "raster", "title": "raster", "group": "order", "settings": {"order": "raster"}},
    {"name": "skip", "title": "token skip", "reduction": "token-skip", "images": {"16": 12}},
]


def write_study(folder: Path, **changes) -> Path:
    backbone = save_jit(folder / "backbone", num_classes=56)
    values = {
        "model": str(backbone),
        "budgets": [8, 16],
        "unseen": [12],
        "train": {"steps": 2, "batch": 4, "batch_per_device": 4, "core": [1, 3], "sample_every": 0, "warmup": 1},
        "sample_steps": 3,
        "dense_images": 12,
        "dense_steps": [2],
        "loss_examples": 8,
        "passes": 1,
        "time_batch": 2,
        "rows": ROWS,
    }
    path = folder / "study.json"
    path.write_text(json.dumps(values | changes))
    return path


# The plan.


def test_every_row_is_trained_scored_and_timed_under_the_same_conditions(tmp_path):
    study = read_study(write_study(tmp_path))
    jobs = {job.name: job for job in plan(study)}
    assert set(jobs) == {
        *("pictures-dense-dense-3-steps", "pictures-dense-dense-2-steps"),
        *("train-ours-0", "loss-ours-0", "pictures-ours-0-8-3-steps", "pictures-ours-0-16-3-steps"),
        *("train-ours-1", "loss-ours-1", "pictures-ours-1-8-3-steps", "pictures-ours-1-16-3-steps"),
        *("pictures-ours-0-8-2-steps", "pictures-ours-1-8-2-steps", "time-ours"),
        *("train-raster-0", "loss-raster-0", "time-raster"),
        *("train-skip-0", "loss-skip-0", "pictures-skip-0-16-3-steps", "time-skip"),
    }
    trained = [" ".join(jobs[f"train-{run}"].command) for run in ("ours-0", "ours-1", "raster-0", "skip-0")]
    for command in trained:
        for setting in ("--steps=2", "--batch=4", "--core=1,3", "--budgets=8,16", "--data scenes"):
            assert setting in command
    assert "--seed=1" in trained[1]
    assert "--order=raster" in trained[2]
    assert "--reduction token-skip" in trained[3]
    losses = jobs["loss-ours-0"].command
    assert losses[losses.index("--budget") + 1] == "dense,8,12,16"  # the unseen one as well
    assert "dense,16" in jobs["loss-skip-0"].command  # it has no budget: one is enough
    assert jobs["time-ours"].needs == ()  # what was learned takes no time
    assert " ".join(jobs["time-raster"].command[2:]) == (
        "--reductions region --set core=1,3 --set order=raster --budgets 8,16 --batch 2 --passes 1 --json"
    )
    assert not any("--compile" in job.command for job in jobs.values())


def test_a_row_from_prompts_alone_touches_no_data_and_is_judged_as_the_others(tmp_path, capsys):
    """`rti adapt` makes its adapter, by settings of its own; its first command is one that rti can run."""
    settings = {"steps": 1, "batch": 2, "linear_prompts": 1, "core": [1, 3]}
    row = {"name": "adapt", "title": "adapt", "group": "making", "by": "adapt", "settings": settings}
    study = read_study(write_study(tmp_path, rows=[*ROWS, row]))
    jobs = {job.name: job for job in plan(study) if job.run.startswith("adapt")}
    made = jobs["train-adapt-0"]
    assert made.command[0] == "adapt" and "--data" not in made.command and "--reduction" not in made.command
    assert "--budgets=8,16" in made.command and "--warmup=1" not in made.command  # which is of training on data
    assert jobs["loss-adapt-0"].needs == ("train-adapt-0",) and "time-adapt" in jobs
    assert run_json(capsys, *made.words(tmp_path)[:-1])["step"] == 1 and made.made(tmp_path).is_dir()


def test_what_is_compiled_is_training_and_scoring_but_not_timing(tmp_path):
    for job in plan(read_study(write_study(tmp_path, compile=True))):
        assert ("--compile" in job.command) == (job.kind != "time")


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"rows": []}, "rows of the study"),
        ({"rows": [ROWS[1], ROWS[1]]}, "raster, raster"),
        ({"rows": [ROWS[1] | {"name": "dense"}]}, "dense"),
        ({"rows": [ROWS[1] | {"name": "Ours!"}]}, "Ours!"),
        ({"rows": [ROWS[1] | {"group": "other"}]}, "other"),
        ({"rows": [ROWS[1] | {"by": "magic"}]}, "magic"),
        ({"rows": [ROWS[2] | {"by": "adapt"}]}, "makes regions, not token-skip"),
        ({"rows": [ROWS[1] | {"seeds": []}]}, "seeds"),
        ({"rows": [ROWS[1] | {"colour": "red"}]}, "colour"),
        ({"rows": [{"name": "x"}]}, "title"),
        ({"bugdets": [8]}, "bugdets"),
        ({"rows": ["ours"]}, "must be an object"),
        ({"time_batch": 0}, "time_batch"),
        ({"passes": "many"}, "many"),
        ({"rows": [ROWS[1] | {"name": 3}]}, "name of row"),
        ({"rows": [ROWS[1] | {"name": "x" * 65}]}, "up to 64"),
        ({"rows": [ROWS[1] | {"title": ["x"]}]}, "title of row"),
        ({"rows": [ROWS[1] | {"seeds": 0}]}, "seeds of row"),
        ({"rows": [ROWS[1] | {"seeds": ["x"]}]}, "seeds of row"),
        ({"rows": [ROWS[1] | {"settings": ["cuts"]}]}, "settings of row"),
        ({"rows": [ROWS[1] | {"images": [6]}]}, "images of row"),
        ({"rows": [ROWS[1] | {"images": {"many": 6}}]}, "images of row"),
        ({"rows": [ROWS[1] | {"steps_at": {"8": 2}}]}, "steps_at of row"),
        ({"model": None}, "model of the study"),
        ({"budgets": []}, "budgets of the study"),
        ({"budgets": 8}, "budgets of the study"),
        ({"unseen": ["8"]}, "unseen of the study"),
        ({"train": "fast"}, "train of the study"),
        ({"dense_steps": None}, "dense_steps of the study"),
        ({"compile": "no"}, "compile of the study"),
        ({"seed": -1}, "seed of the study"),
    ],
)
def test_a_study_that_makes_no_sense_is_refused(tmp_path, changes, said):
    with refused(said):
        read_study(write_study(tmp_path, **changes))


def test_a_file_that_is_no_study_is_refused(tmp_path, capsys):
    (tmp_path / "a.json").write_text("[1]")
    (tmp_path / "b.json").write_text("{")
    for name in ("a.json", "b.json", "c.json"):
        code, _, err = run(capsys, "study", tmp_path / name, "--output", tmp_path / "out")
        assert (code, err.count("\n")) == (2, 1)
        assert name in err
    with refused("telepathy"):
        Row(name="a", title="a", reduction="telepathy")


# Running.


def info(run: str, *needs: str, model: str = "jit-b16", kind: str = "train") -> Job:
    return Job(kind, run, ("info", model, "--json"), needs)


def done(folder: Path) -> dict[str, str]:
    """The lines of the records by their jobs."""
    lines = (folder / "records.jsonl").read_text().splitlines()
    return {json.loads(line)["name"]: line for line in lines}


@pytest.fixture
def forked(monkeypatch):
    """Jobs as forks: where the order of jobs matters, and not how a process is started."""
    monkeypatch.setattr(subprocess, "Popen", forked_command)


def test_jobs_wait_for_what_they_need_and_fail_with_it(tmp_path, forked):
    jobs = [info("a"), info("b", "train-a"), info("bad", model="no-such-model"), info("after", "train-bad")]
    jobs.append(info("last", "train-after"))
    failed = run_jobs(tmp_path, jobs)
    assert failed == ["train-bad", "train-after", "train-last"]
    records = Records(tmp_path)
    assert records.of(jobs[1])["result"]["model"] == "jit-b16"
    assert records.of(jobs[2]) is None
    assert "no-such-model" in (tmp_path / "logs" / "train-bad.txt").read_text()
    before = (tmp_path / "records.jsonl").read_text()
    assert list(done(tmp_path)) == ["train-a", "train-b"]
    run_jobs(tmp_path, jobs[:2])
    assert (tmp_path / "records.jsonl").read_text() == before


def test_jobs_are_commands_of_this_python_and_timings_come_last(tmp_path, monkeypatch):
    started, start = [], subprocess.Popen

    def stand_in(command, **rest):
        started.append(command)
        return start([sys.executable, "-c", "print({})"], **rest)

    monkeypatch.setattr(subprocess, "Popen", stand_in)
    jobs = [info("a", kind="time", model="jit-l16"), info("b"), info("c", "train-b", model="jit-h16")]
    assert run_jobs(tmp_path, jobs) == []
    assert [command[:4] for command in started] == [[sys.executable, "-m", "rti", "info"]] * 3
    assert [command[4] for command in started] == ["jit-b16", "jit-h16", "jit-l16"]


def test_what_is_gone_is_made_again_only_if_something_needs_it(tmp_path, monkeypatch, forked):
    jobs = [replace(info("a"), makes="{study}/adapter"), info("b", "train-a")]

    def times() -> int:
        return (tmp_path / "records.jsonl").read_text().count('"train-a", "command": ["info", "jit-b16", "--json"], "s')

    run_jobs(tmp_path, jobs)
    run_jobs(tmp_path, jobs)  # nothing needs the adapter any more
    (tmp_path / "adapter").mkdir()
    Records(tmp_path).forget(jobs[1])
    run_jobs(tmp_path, jobs)
    assert times() == 1
    (tmp_path / "adapter").rmdir()
    Records(tmp_path).forget(jobs[1])

    def half():
        (tmp_path / "adapter").mkdir()  # of the step that an interrupted training had come to
        print("{}")
        sys.exit(1)

    with monkeypatch.context() as patched:
        patched.setattr(subprocess, "Popen", lambda command, stdout, **rest: Forked(half, stdout.fileno()))
        assert run_jobs(tmp_path, jobs) == ["train-a", "train-b"]
    assert Records(tmp_path).of(jobs[0]) is None  # not taken for done
    assert run_jobs(tmp_path, jobs) == []
    assert times() == 2


# The records.


def test_records_of_another_command_and_damaged_ones_are_refused(tmp_path):
    path, good = tmp_path / "records.jsonl", {"name": "train-a", "command": ["info", "x"], "result": {}}
    path.write_text(json.dumps(good) + "\n")
    with refused("another command", "info x"):
        Records(tmp_path).of(info("a"))
    losses = {"times": "AACAPwAAgD8=", "losses": {"dense": "AACAPw=="}}  # two times, one loss
    for bad in ("{", "[1]", "[" * 50_000, '{"name": "train-a"}', json.dumps(good | {"result": losses})):
        path.write_text(json.dumps(good) + f"\n{bad}\n")
        with refused("line 2", "records.jsonl", "damaged"):
            Records(tmp_path)
    path.unlink()
    (tmp_path / "jobs").mkdir()
    with refused("jobs", "earlier"):  # one file for each job: not taken for a study that has not begun
        Records(tmp_path)


def test_half_a_line_of_a_killed_process_is_no_record(tmp_path):
    records = Records(tmp_path)
    records.keep(info("a"), 1, {"a": 1})
    whole = (tmp_path / "records.jsonl").read_text()
    (tmp_path / "records.jsonl").write_text(whole + whole[:30])
    again = Records(tmp_path)
    assert again.of(info("a"))["result"] == {"a": 1}
    again.keep(info("b"), 2, {"b": 1})
    assert list(done(tmp_path)) == ["train-a", "train-b"]
    records.keep(info("c"), 2, {"c": 1})  # by another command in the same folder
    assert list(done(tmp_path)) == ["train-a", "train-b", "train-c"]


def test_prompts_are_kept_once_and_other_prompts_are_refused(finished):
    study, folder = finished
    text = (folder / "records.jsonl").read_text()
    assert text.count("a red star") == 12  # of the dense pictures, which are first; all others have the same
    job = next(job for job in plan(study) if job.name == "pictures-ours-0-8-3-steps")
    path = job.made(folder)
    path.write_text(path.read_text().replace("a red star", "a blue star"))
    with refused("other prompts"):
        Records(folder).keep(job, 1, {})


def test_a_study_that_was_copied_is_the_same_study(finished, monkeypatch):
    study, folder = finished
    copied = folder / "copied" / "out"
    copied.mkdir(parents=True)
    shutil.copy(folder / "records.jsonl", copied)
    monkeypatch.chdir(copied)
    for other in (copied, Path()):
        assert all(Records(other).of(job) is not None for job in plan(study))
    with refused("another command"):  # of another study there
        [Records(copied).of(job) for job in plan(replace(study, seed=8))]


def test_a_dry_run_shows_the_commands_and_which_are_done(finished, capsys):
    study, folder = finished
    forget(study, folder, "loss-")
    command = ("study", folder / "study.json", "--output", folder, "--dry-run")
    assert run_json(capsys, *command) == {"done": 16, "jobs": 20}
    code, out, _ = run(capsys, *command, "--only", "skip", "--kinds", "loss,time")
    assert code == 0
    *jobs, last = out.splitlines()
    assert [line.split()[:4] for line in jobs] == [
        ["done:", "rti", "train", str(folder / "backbone")],  # which the loss needs
        ["to", "do:", "rti", "eval"],
        ["done:", "rti", "bench", str(folder / "backbone")],
    ]
    assert last == "2 of 3 jobs are done"
    for option, value, allowed in (("--kinds", "loss,guess", "pictures"), ("--only", "nobody", "raster")):
        code, _, err = run(capsys, *command, option, value)
        assert (code, err.count("\n"), value.split(",")[-1] in err, allowed in err) == (2, 1, True, True)


# The report, from hand-made results.


@pytest.fixture
def finished(tmp_path) -> tuple[Study, Path]:
    """A study of which every job is done, with results that can be checked by hand."""
    study, records = read_study(write_study(tmp_path)), Records(tmp_path)
    for job in plan(study):
        options, result, made = dict(pairwise(job.command)), {}, None
        typed = options.get("--budget", options.get("--budgets", "")).split(",")
        if job.kind == "pictures":
            right = {"dense": 1, "skip-0": 1, "ours-1": 0}.get(job.run, 0.5)
            several = [dict.fromkeys(typed, i // 6 < 2 * right) for i in range(int(options["--images"]))]
            pictures = [
                {"task": TASKS[i % 6], "caption": "a red star", "correct": one} for i, one in enumerate(several)
            ]
            made = {"pictures": pictures}
        elif job.kind == "loss":
            worse = {"ours-1": 0.3, "skip-0": 0.2, "raster-0": 0.4}.get(job.run, 0.1)
            at = [0.1, 0.3, 0.5, 0.7] * 2
            losses = {b: [1 + (0 if b == "dense" else worse * (1 + (t > 0.6))) for t in at] for b in typed}
            made = {"times": at, "losses": losses}
        elif job.kind == "time":
            result = {"rows": [{"budget": int(b), "speedup": 32 / int(b)} for b in typed]}
        if made is not None:
            target = job.made(tmp_path)
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_text(json.dumps(made))
        records.keep(job, 1, result)
    return study, tmp_path


def forget(study: Study, folder: Path, part: str) -> None:
    records = Records(folder)
    for job in plan(study):
        if part in job.name:
            records.forget(job)


def test_results_are_means_over_seeds_paired_with_dense(finished):
    study, folder = finished
    values = collect(study, folder)
    assert values["done"] == values["jobs"] == len(plan(study))
    assert [one["overall"] for one in values["dense"]] == [1.0, 1.0]
    ours = {row["budget"]: row for row in values["rows"] if row["name"] == "ours"}
    assert set(ours) == {8, 12, 16}
    assert (ours[16]["images"], ours[16]["seeds"]) == (12, 2)
    assert ours[16]["overall"] == pytest.approx(0.25)  # half of the first seed's, none of the second's
    assert ours[16]["difference"] == pytest.approx(-0.75)
    assert ours[8]["images"] == 6  # the first six of the dense ones are their pairs
    assert ours[8]["difference"] == pytest.approx(-0.5)
    assert "overall" not in ours[12]
    assert not ours[12]["seen"]
    assert [one["steps"] for one in ours[8]["by_steps"]] == [2, study.sample_steps]
    assert ours[8]["by_steps"][1]["overall"] == ours[8]["overall"]
    assert [one["steps"] for one in ours[8]["by_steps"][0]["minus_dense_at"]] == [
        study.sample_steps,
        *study.dense_steps,
    ]
    assert ours[8]["by_steps"][1]["minus_dense_at"][0]["difference"] == pytest.approx(-0.5)
    assert values["dense"][0]["same_prompts"]["images"] == 6
    assert ours[16]["overall_by_seed"] == pytest.approx([0.5, 0.0])
    assert ours[12]["analytic_speedup"] > 1  # which needs no measurement
    assert "speedup" not in ours[12]
    assert ours[8]["loss_difference"] == pytest.approx(0.25)
    assert ours[8]["speedup"] == 4.0
    skip = [row for row in values["rows"] if row["name"] == "skip"]
    assert [row["budget"] for row in skip] == [16]


def test_the_first_row_is_paired_with_every_other_at_the_same_budget(finished):
    study, folder = finished
    values = collect(study, folder)
    rows = {(row["name"], row["budget"]): row for row in values["rows"]}
    skip, raster = rows["skip", 16], rows["raster", 8]
    assert skip["lead"] == pytest.approx(0.5 - 1)  # at the first seed, which both have
    assert skip["lead_interval"][0] <= skip["lead"] <= skip["lead_interval"][1]
    assert skip["loss_lead"] == pytest.approx(0.25 - 0.125)  # a lower loss leads
    assert "lead" not in raster  # it has no pictures
    assert raster["loss_lead"] == pytest.approx(0.5 - 0.125)
    assert not any("loss_lead" in row for row in values["rows"] if row["name"] == "ours")


def test_a_seed_that_is_not_done_yet_is_not_waited_for(finished):
    study, folder = finished
    forget(study, folder, "-ours-1")
    ours = next(row for row in collect(study, folder)["rows"] if (row["name"], row["budget"]) == ("ours", 16))
    assert (ours["seeds"], ours["overall"]) == (1, pytest.approx(0.5))
    assert ours["loss_difference"] == pytest.approx(0.125)


def test_a_row_of_which_nothing_is_done_is_left_out(finished):
    study, folder = finished
    forget(study, folder, "raster")
    values = collect(study, folder)
    assert "raster" not in {row["name"] for row in values["rows"]}
    assert values["done"] == values["jobs"] - 3


def test_the_table_has_every_row_from_rich_to_lean(finished):
    study, folder = finished
    lines = table(collect(study, folder)).splitlines()
    titles = [[cell.strip() for cell in line.split("|")[1:-1]] for line in lines]
    assert len({len(line) for line in titles}) == 1
    assert titles[2][:3] == ["dense", "", "1.00x"]
    assert [line[:3] for line in titles[3:]] == [
        ["ours", "16", "2.00x"],
        ["raster", "16", "2.00x"],
        ["token skip", "its own", "2.00x"],
        ["ours", "12 (unseen)", ""],
        ["raster", "12 (unseen)", ""],
        ["ours", "8", "4.00x"],
        ["raster", "8", "4.00x"],
    ]
    ours = titles[3]
    assert ours[-4].startswith("25.0 (")
    assert ours[-3].startswith("-75.0 (")
    assert ours[-2] == "24"  # twelve prompts, two seeds
    assert ours[-1].startswith("+0.2500 (")


def test_a_method_has_one_colour_in_the_study_and_in_the_probes():
    from rti.lab.plots import places_of

    study = places_of(["merge-estimate", "mine", "gaps", "token-skip", "other"])
    probes = places_of(["gaps of the features (paper)", "merge on the estimate (ours)", "token skip", "mine"])
    assert (study["merge-estimate"], study["gaps"], study["token-skip"]) == (0, 1, 6)
    assert (probes["merge on the estimate (ours)"], probes["gaps of the features (paper)"], probes["token skip"]) == (
        0,
        1,
        6,
    )
    assert len({*study.values()}) == 5 and len({*probes.values()}) == 4


def test_the_figures_are_drawn_and_nothing_is_drawn_of_nothing(finished):
    study, folder = finished
    values = collect(study, folder)
    drawn = draw_figures(values, folder / "figures")
    assert {path.name for path in drawn} == {f"{name}{ending}" for name in FIGURES for ending in (".png", ".svg")}
    assert all(path.stat().st_size > 2000 for path in drawn)
    assert draw_figures({"dense": [], "rows": []}, folder / "figures") == []
    assert list((folder / "figures").iterdir()) == []  # nor is anything left of what is no more
    for name in ("quality-against-budget", "steps-or-tokens"):  # a legend lies below the lines and inside the figure
        figure = FIGURES[name](values).figure
        figure.canvas.draw()
        (legend,), (axes,) = figure.legends, figure.axes
        box = legend.get_window_extent()
        assert box.y1 <= axes.get_window_extent().y0
        assert 0 <= box.x0 < box.x1 <= figure.bbox.x1
    assert axes.get_ylim() == (0, 100)  # of steps or tokens: shares from the bottom


# The whole of it.


def test_a_tiny_study_runs_is_interrupted_and_goes_on(tmp_path, capsys, forked):
    """One row on a tiny model, by the command; terminated in the middle of it, then finished."""
    rows = [ROWS[0] | {"seeds": [0], "images": {"8": 6}, "steps_at": {}}]
    path = write_study(tmp_path, rows=rows, dense_images=6, dense_steps=[], unseen=[])
    output = tmp_path / "out"
    process = forked_command([sys.executable, "-m", "rti", "study", str(path), "--output", str(output)])
    deadline = time.monotonic() + 300
    while not (output / "records.jsonl").exists() and time.monotonic() < deadline and process.poll() is None:
        time.sleep(0.05)
    process.send_signal(signal.SIGTERM)
    assert process.wait(timeout=120) == 130
    before = (output / "records.jsonl").read_text()
    assert 0 < len(done(output)) < 5
    values = run_json(capsys, "study", path, "--output", output)
    assert values == {"output": str(output), "done": 5, "jobs": 5}
    assert (output / "records.jsonl").read_text().startswith(before)  # nothing was done again
    assert len(done(output)) == 6  # five jobs, and the prompts
    lean, rich = json.loads((output / "results.json").read_text())["rows"]
    assert (lean["budget"], lean["images"], rich["budget"], "images" in rich) == (8, 6, 16, False)
    assert np.isfinite(rich["loss_difference"]) and rich["speedup"] > 0
    assert (output / "table.md").read_text().count("\n") == 5


def test_a_job_that_is_just_starting_when_the_study_is_stopped_is_stopped_too(tmp_path, monkeypatch):
    """Else it would go on alone, and stand in the way of the same command."""
    sent = []
    process = SimpleNamespace(poll=lambda: -15 if sent else None, send_signal=sent.append, returncode=-15)
    process.wait = process.poll

    def start(*_, **__):
        os.kill(os.getpid(), signal.SIGTERM)
        return process

    monkeypatch.setattr(subprocess, "Popen", start)
    with pytest.raises(KeyboardInterrupt):
        run_jobs(tmp_path, [Job("time", "ours", ("info", "scenes"))])
    assert sent == [signal.SIGTERM]
    assert signal.getsignal(signal.SIGTERM) is signal.SIG_DFL
