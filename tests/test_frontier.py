"""The figures of scored runs and of several models: what is drawn is what was scored, and dense is marked."""

import json
from pathlib import Path

import numpy as np
import pytest

from rti.lab.pictures.frontier import frontier_figure
from rti.lab.pictures.scored_runs import add_speedups, read_runs
from rti.lab.plots import COLOURS, GREY
from rti.lab.probes.figures import profiles, profiles_figure, walks_figure
from test_cli import run, run_json
from test_compare import make_run
from tiny import refused

pyplot = pytest.importorskip("matplotlib.pyplot")

REGION = {"reduction": "region", "core": [4, 9], "cuts": "gaps"}
SIMILAR = {"reduction": "feature-similarity", "core": [4, 9]}
SKIP = {"reduction": "token-skip", "core": [2, 9], "extra_groups": 0}


@pytest.fixture(autouse=True)
def closed():
    yield
    pyplot.close("all")


def scored(path, speed, scores, reduction=None, budget="dense", model="jit-b16", **changes):
    """A row with a folder for each metric, all its pictures of one score, drawn at `speed` pictures a second."""
    changes |= {"model": model, "budget": budget, "reduction": reduction}
    for metric, score in scores.items():
        folder = make_run(path / metric, np.full((6, 1), score), metric, prompts=dict(source=metric), **changes)
        if speed is not None:
            (folder / "timing.jsonl").write_text(json.dumps({"pictures": 4, "seconds": 4 / speed}) + "\n")
    return path


@pytest.fixture
def rows(tmp_path):
    """Two methods at two budgets and one without any on one backbone, one method on another; dense of both."""
    return [
        scored(tmp_path / "dense", 2.0, {"geneval": 0.9, "clip": 28.0}),
        scored(tmp_path / "r64", 5.0, {"geneval": 0.7, "clip": 27.0}, REGION, 64),
        scored(tmp_path / "r130", 4.0, {"geneval": 0.8, "clip": 27.5}, REGION, 130),
        scored(tmp_path / "s64", 5.0, {"geneval": 0.5}, SIMILAR, 64),
        scored(tmp_path / "s130", 4.0, {"geneval": 0.6}, SIMILAR, 130),
        scored(tmp_path / "skip", 3.0, {"geneval": 0.75}, SKIP, 64),
        scored(tmp_path / "l", 1.0, {"geneval": 0.95}, model="jit-l16"),
        scored(tmp_path / "l64", 3.0, {"geneval": 0.85}, REGION | {"core": [8, 19]}, 64, "jit-l16"),
    ]


def lines_of(axes) -> dict[str, list[tuple[float, float]]]:
    """The points of every line that has a name, in order."""
    named = [line for line in axes.lines if not line.get_label().startswith("_")]
    return {line.get_label(): [tuple(map(float, point)) for point in line.get_xydata()] for line in named}


def near(points):
    return [pytest.approx(point) for point in points]


# Scores against speed.


def test_the_frontier_is_each_score_against_the_measured_speed_up_with_dense_marked(rows):
    runs = add_speedups(read_runs([str(row) for row in rows]))
    figure = frontier_figure(runs, ["geneval", "clip", "pick"])
    geneval, clip = figure.axes  # nothing was scored by pick
    assert [axes.get_ylabel() for axes in figure.axes] == ["GenEval, % ↑", "CLIPScore ↑"]
    assert geneval.get_xlabel() == "measured speed-up"
    found = lines_of(geneval)
    assert found == {
        "dense (frozen), jit-b16": near([(1, 90)]),
        "region, jit-b16": near([(2, 80), (2.5, 70)]),  # from slow to fast
        "feature-similarity, jit-b16": near([(2, 60), (2.5, 50)]),
        "token-skip, jit-b16": near([(1.5, 75)]),
        "dense (frozen), jit-l16": near([(1, 95)]),
        "region, jit-l16": near([(3, 85)]),
    }
    assert lines_of(clip)["region, jit-b16"] == near([(2, 27.5), (2.5, 27)])
    lines = {line.get_label(): line for line in geneval.lines}
    for backbone, level, opacity in (("jit-b16", 90, 1.0), ("jit-l16", 95, 0.5)):
        star = lines[f"dense (frozen), {backbone}"]
        assert (star.get_marker(), star.get_color(), star.get_alpha()) == ("*", GREY, opacity)
        assert any(set(line.get_ydata()) == {level} and line.get_linestyle() == "--" for line in geneval.lines)
    one, other = lines["region, jit-b16"], lines["region, jit-l16"]  # a method by its colour, a backbone by opacity
    assert one.get_color() == other.get_color() == COLOURS[0] != lines["feature-similarity, jit-b16"].get_color()
    assert (one.get_alpha(), other.get_alpha()) == (1.0, 0.5)
    assert [text.get_text() for text in geneval.texts] == ["130", "64"]  # budgets, once
    legend = [text.get_text() for text in figure.legends[0].get_texts()]
    assert sorted(legend) == sorted(found)
    assert legend[:2] == ["dense (frozen), jit-b16", "region, jit-b16"]  # as they were given


def test_every_budget_is_written_and_none_of_a_method_without(tmp_path):
    rows = [scored(tmp_path / "dense", 1.0, {"clip": 28})]
    rows += [scored(tmp_path / f"r{n}", 4 - n / 100, {"clip": 27}, REGION, n) for n in (16, 32, 64, 128, 192)]
    (axes,) = frontier_figure(add_speedups(read_runs(map(str, rows))), ["clip"]).axes
    assert [text.get_text() for text in axes.texts] == ["192", "128", "64", "32", "16"]
    skip = [rows[0], scored(tmp_path / "skip", 2.0, {"clip": 27}, SKIP, 64)]
    assert not frontier_figure(add_speedups(read_runs(map(str, skip))), ["clip"]).axes[0].texts


def test_a_line_goes_through_its_budgets_also_where_a_leaner_one_was_timed_slower(tmp_path):
    rows = [scored(tmp_path / "dense", 1.0, {"clip": 28})]
    rows += [scored(tmp_path / f"r{n}", speed, {"clip": 27}, REGION, n) for n, speed in ((32, 1.2), (64, 3), (128, 2))]
    (axes,) = frontier_figure(add_speedups(read_runs(map(str, rows))), ["clip"]).axes
    assert [point[0] for point in lines_of(axes)["region"]] == [2, 3, 1.2]


def test_scores_are_drawn_against_the_budget_too(rows):
    runs = add_speedups(read_runs(map(str, rows[:3])), "budget")
    (axes,) = frontier_figure(runs, ["geneval"], "budget").axes
    assert lines_of(axes) == {"dense (frozen)": near([(1024, 90)]), "region": near([(130, 80), (64, 70)])}
    assert [text.get_text() for text in axes.get_xticklabels()] == ["64", "130", "1024"]
    assert (axes.get_xscale(), axes.get_xlabel()) == ("log", "budget R, region tokens in the core")


def test_methods_are_called_by_their_reduction_and_what_sets_them_apart_or_as_typed(tmp_path):
    dense = scored(tmp_path / "dense", 1.0, {"fid": 3.0})
    gaps = scored(tmp_path / "gaps", 2.0, {"fid": 6.0}, REGION, 64)
    merge = scored(tmp_path / "merge", 2.0, {"fid": 5.0}, REGION | {"cuts": "merge", "core": [3, 9]}, 64)
    skip, deep = (scored(tmp_path / f"skip{n}", 2.0, {"fid": 7.0}, SKIP | {"extra_groups": n}, 64) for n in (0, 3))
    titles = [one["name"] for one in read_runs([str(dense), str(gaps), str(merge), f"ours={skip}", str(deep)])]
    assert titles[:3] == ["dense (frozen)", "region, cuts gaps", "region, cuts merge"]
    assert titles[3:] == ["ours", "token-skip, extra groups 3"]


def test_the_fid_figure_puts_both_points_of_token_skip_where_the_paper_has_them(tmp_path, capsys):
    """By image tokens, since these models were not timed: 1.41x as trained, and back at dense with three groups."""
    rows = [scored(tmp_path / "dense", None, {"fid": 3.62, "is": 275.1})]
    rows += [scored(tmp_path / "r64", None, {"fid": 16.69, "is": 136.1}, REGION, 64)]
    skips = [
        scored(tmp_path / f"skip{n}", None, {"fid": fid}, SKIP | {"extra_groups": n}, 64)
        for n, fid in ((0, 19.11), (3, 7.02))
    ]
    named = [f"token skip={row}" for row in skips]
    output = tmp_path / "fid.png"
    run_json(capsys, "figure", "frontier", *rows, *named, "--against", "tokens", "--metrics", "fid,is", "-o", output)
    data = json.loads(output.with_suffix(".json").read_text())
    runs = data["rows"]
    assert [row["name"] for row in runs] == ["dense (frozen)", "region", "token skip", "token skip"]
    assert [row["speedup"] for row in runs] == pytest.approx([1, 1.6, 1.412, 1.011], abs=1e-3)
    fid, inception = frontier_figure(runs, ["fid", "is"], "tokens").axes
    assert (fid.get_ylabel(), inception.get_ylabel()) == ("FID ↓", "Inception Score ↑")
    assert (fid.get_yscale(), inception.get_yscale()) == ("log", "linear")
    assert fid.get_xlabel() == "speed-up by image tokens"
    line = lines_of(fid)["token skip"]  # one name, one line
    assert [point[1] for point in line] == pytest.approx([7.02, 19.11])
    assert lines_of(inception)["dense (frozen)"] == near([(1, 275.1)])
    again = add_speedups(read_runs([*map(str, rows), *named]), "flops")
    assert [row["name"] for row in again] == [row["name"] for row in runs]
    assert again[1]["speedup"] == pytest.approx(1 / 0.646, abs=2e-3)


# Steps against tokens.


def test_the_cost_sweep_is_each_score_against_the_seconds_of_a_picture(tmp_path, capsys):
    rows = []
    for steps, seconds, right in ((39, 11.2, 0.876), (6, 1.8, 0.659), (10, 2.8, 0.805)):
        rows.append(scored(tmp_path / f"dense-{steps}", 1 / seconds, {"geneval": right}, steps=steps))
    for steps, seconds, right in ((16, 1.8, 0.827), (100, 11.2, 0.863)):
        rows.append(scored(tmp_path / f"r-{steps}", 1 / seconds, {"geneval": right}, REGION, 64, steps=steps))
    output = tmp_path / "steps.png"
    run_json(capsys, "figure", "frontier", *rows, "--against", "seconds", "-o", output)
    assert output.is_file()
    (axes,) = frontier_figure(json.loads(output.with_suffix(".json").read_text())["rows"], ["geneval"], "seconds").axes
    assert lines_of(axes) == {
        "dense (frozen)": near([(1.8, 65.9), (2.8, 80.5), (11.2, 87.6)]),  # from few steps to many
        "region, R = 64": near([(1.8, 82.7), (11.2, 86.3)]),
    }
    assert axes.get_xscale() == "log"
    assert [text.get_text() for text in axes.get_xticklabels()] == ["1.8", "2.8", "11"]
    assert [text.get_text() for text in axes.texts] == ["6", "10", "39", "16", "100"]
    assert axes.lines[0].get_color() == GREY


# Profiles over the depth.


def probe(retained, size=None, budget=64, patches=256) -> dict:
    values = {"probe": "redundancy", "budget": budget, "patches": patches, "by_block": {"adaptive": retained}}
    return values | ({"image_size": [size, size]} if size else {})


def test_profiles_are_drawn_over_the_relative_depth_a_panel_for_each_size(tmp_path, capsys):
    known = {"deep": probe([0.6, 0.7, 0.8, 0.7, 0.65], 512), "small": probe([0.7, 0.72, 0.71], 256)}
    known["wide"] = probe([0.5, 0.9], 512, 256, 1024)
    for name, values in known.items():
        (tmp_path / name).mkdir()
        (tmp_path / name / "redundancy.json").write_text(json.dumps(values))
    output = tmp_path / "depth.png"
    folders = [tmp_path / name for name in known]
    run_json(capsys, "figure", "redundancy", *folders, "--names", "a,b,c", "-o", output)
    found = json.loads(output.with_suffix(".json").read_text())["profiles"]
    assert [(name, one["rise"]) for name, one in found.items()] == [("a", 0.2), ("b", 0.02), ("c", 0.4)]
    figure = profiles_figure(found)
    left, right = figure.axes
    assert [axes.get_title() for axes in figure.axes] == ["256 x 256 pixels", "512 x 512 pixels"]
    assert lines_of(left) == {"b": near([(0, 70), (0.5, 72), (1, 71)])}
    drawn = lines_of(right)
    assert drawn["a"] == near([(0, 60), (0.25, 70), (0.5, 80), (0.75, 70), (1, 65)])
    assert drawn["c"] == near([(0, 50), (1, 90)])
    assert left.get_ylim() == right.get_ylim()
    assert [text.get_text() for text in figure.legends[0].get_texts()] == ["b", "a", "c"]


def test_profiles_without_a_name_for_the_figure_are_refused(capsys, tmp_path):
    code, _, err = run(
        capsys, "figure", "redundancy", tmp_path / "a.json", tmp_path / "b.json", "--names", "a,b", "-o", ""
    )
    assert (code, "must end in .png" in err) == (2, True)


def test_data_from_before_sizes_were_kept_is_one_panel(tmp_path):
    figure = profiles_figure(profiles({"a": probe([0.6, 0.7]), "b": probe([0.5, 0.8], 256)}))
    (axes,) = figure.axes
    assert list(lines_of(axes)) == ["a", "b"]


# Refusals.


def test_runs_that_cannot_be_compared_are_refused(tmp_path, rows):
    dense, r64 = str(rows[0]), str(rows[1])
    with refused("no dense run of jit-b16", r64):
        add_speedups(read_runs([r64]))
    with refused(dense, "both dense runs of jit-b16"):
        add_speedups(read_runs([dense, str(scored(tmp_path / "again", 1.0, {"is": 3.0}))]))
    with refused("50 steps", "25", "--against seconds"):
        other = scored(tmp_path / "other", 1.0, {"geneval": 0.5}, REGION, 32, steps=50)
        add_speedups(read_runs([dense, str(other)]))
    with refused("was not timed", "--against tokens"):
        untimed = scored(tmp_path / "untimed", None, {"geneval": 0.5}, REGION, 32)
        add_speedups(read_runs([dense, str(untimed)]))
    with refused("against 'fast'", "measured, flops, tokens, budget, seconds"):
        add_speedups(read_runs([dense, r64]), "fast")
    with refused("metric 'fud'", "geneval"):
        frontier_figure(add_speedups(read_runs([dense, r64])), ["fud"])
    with refused("no run has a score of fid"):
        frontier_figure(add_speedups(read_runs([dense, r64])), ["fid"])
    with refused("all runs have 25 steps"):
        add_speedups(read_runs([dense, r64]), "seconds")
    few = make_run(tmp_path / "few", np.full((3, 1), 0.5), budget=32, reduction=REGION)
    with refused("6 and 3 pictures", "geneval"):
        read_runs([dense, str(few)])
    with refused("25 % and 12.5 %"):
        profiles({"a": probe([0.6, 0.7]), "b": probe([0.6, 0.7], budget=32)})


@pytest.mark.parametrize("words", [("frontier", "x=nowhere"), ("frontier", "data.json"), ("frontier", "nowhere")])
def test_what_holds_no_runs_is_refused_and_nothing_is_written(capsys, tmp_path, monkeypatch, words):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "data.json").write_text(json.dumps({"rows": []}))
    code, _, err = run(capsys, "figure", *words)
    assert (code, err.count("\n"), words[1].removeprefix("x=") in err) == (2, 1, True)
    assert [path.name for path in tmp_path.iterdir()] == ["data.json"]


def test_the_figure_of_several_models_does_not_replace_the_data_of_one(capsys, tmp_path):
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "redundancy.json").write_text(json.dumps(probe([0.6, 0.7])))
    folders = tmp_path / "a", tmp_path / "b"
    before = (folders[0] / "redundancy.json").read_bytes()
    code, _, err = run(capsys, "figure", "redundancy", *folders, "-o", folders[0] / "redundancy.png")
    assert (code, "another --output" in err) == (2, True)
    code, _, err = run(capsys, "figure", "redundancy", *folders, "--names", "a,a", "-o", tmp_path / "x.png")
    assert (code, "a different one each" in err) == (2, True)
    assert (folders[0] / "redundancy.json").read_bytes() == before


# The orders themselves.


def test_the_walks_shade_the_same_run_of_every_order_and_jumps_are_dotted(capsys, tmp_path):
    values = run_json(capsys, "figure", "walks", "-o", tmp_path / "walks.png")
    data = json.loads(Path(values["data"]).read_text())
    assert list(data["orders"]) == ["hilbert", "morton", "raster"]
    figure = walks_figure(data["orders"])
    shaded = {}
    for axes in figure.axes:
        boxes = [shape.get_datalim(axes.transData) for shape in axes.collections]
        shaded[axes.get_title()] = sorted((round(box.y0 + 0.5), round(box.x0 + 0.5)) for box in boxes)
    # The paper's figure: a compact 2 x 4 patch, two blocks joined by a diagonal jump, a strip that wraps.
    assert shaded["hilbert"] == [(row, column) for row in (2, 3, 4, 5) for column in (0, 1)]
    assert shaded["morton"] == [*[(r, c) for r in (0, 1) for c in (4, 5)], *[(r, c) for r in (2, 3) for c in (2, 3)]]
    assert shaded["raster"] == [(1, c) for c in (4, 5, 6, 7)] + [(2, c) for c in (0, 1, 2, 3)]
    jumps = [sum(line.get_linestyle() == ":" for line in axes.lines) for axes in figure.axes]
    assert jumps == [0, 31, 7]
