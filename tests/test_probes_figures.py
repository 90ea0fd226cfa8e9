"""Figures: what is drawn is the data, every axis names its unit, no text lies on another; PNG, SVG and JSON."""

import itertools
import json

import numpy as np
import pytest
import torch
from PIL import Image

import rti
from rti.flow import picture_generator
from rti.images import enlarge, to_pil
from rti.lab.plots import COLOURS
from rti.lab.probes import figures
from rti.lab.probes.gallery import fade, gallery, glow, methods, overlay, tint_groups
from rti.lab.probes.groupings import Row
from test_cli import DATA, run, run_json
from test_probes import Skip, Soft, make_pipe, make_run, subjects
from tiny import CORE, randomise_trainable, refused

pyplot = pytest.importorskip("matplotlib.pyplot")
Text = pytest.importorskip("matplotlib.text").Text

TIMES = [0.03, 0.2, 0.5, 0.8, 0.93]


def redundancy() -> dict:
    by_block = {kind: list(np.linspace(0.3 + shift, 0.8, 12)) for shift, kind in enumerate_shift(figures.KINDS)}
    by_step = {kind: list(np.linspace(0.3 + shift, 0.9, len(TIMES))) for shift, kind in enumerate_shift(by_block)}
    curve = [min(1.0, (index / 100) ** 0.5) for index in range(101)]
    return {
        **{"budget": 64, "patches": 256, "prompts": 4, "times": TIMES, "middle_block": 6, "proposed_core": [2, 9]},
        **{"by_block": by_block, "by_step": by_step, "lorenz": {"share_of_detail": curve}},
    }


GROUPINGS = (
    *("gaps of the features (paper)", "fixed boundaries", "feature similarity"),
    *("latent array", "token skip"),
)


def enumerate_shift(kinds):
    return [(0.1 * place, kind) for place, kind in enumerate(kinds)]


def bars(names, **measures) -> dict:
    rows = [
        {"name": name} | {key: values[place] for key, values in measures.items()} for place, name in enumerate(names)
    ]
    for row, key in itertools.product(rows, measures):
        row[f"{key}_error"] = None if row[key] is None else 0.02
    return {"budget": 64, "patches": 256, "prompts": 4, "rows": rows}


def groupings() -> dict:
    return bars(
        [*GROUPINGS, "merge on the features", "merge on the estimate (ours)"],
        spread=[0.5, 0.7, 3.2, 5.9, None, 0.6, 0.5],
        size_detail=[0.4, 0.0, -0.1, 0.2, None, 0.5, 0.6],
        retained=[0.72, 0.68, 0.74, -0.2, 0.5, 0.76, 0.76],
    )


def orders() -> dict:
    return bars(["hilbert", "morton", "raster"], retained=[0.7, 0.6, 0.6], spread_per_patch=[1.1, 1.4, 2.4])


def routing() -> dict:
    rows = [
        {"budget": budget, "detail_ratio": ratio, "size_detail": [0.1, 0.2, 0.4, 0.5, 0.5], "entropy": [1, 2, 2, 3, 3]}
        for budget, ratio in ((128, [None] * 5), (64, [None, 2.0, 4.0, 6.0, 6.5]), (16, [1.1, 3.0, 9.0, 30.0, 31.0]))
    ]
    return {"patches": 256, "prompts": 4, "times": TIMES, "rows": rows}


DRAWN = {
    "redundancy": lambda: figures.redundancy_figure(redundancy()),
    "groupings": lambda: figures.groupings_figure(groupings()),
    "orders": lambda: figures.orders_figure(orders()),
    "routing": lambda: figures.routing_figure(routing()),
}


@pytest.fixture(autouse=True)
def closed():
    yield
    pyplot.close("all")


def texts_of(figure) -> list:
    """Every text that is seen, and where: titles, labels, ticks, notes and legends."""
    figure.canvas.draw()
    renderer = figure.canvas.get_renderer()
    outside = set()  # matplotlib keeps labels of ticks beyond the ends of an axis, and draws none of them
    for axis in (axis for axes in figure.axes for axis in (axes.xaxis, axes.yaxis)):
        low, high = sorted(axis.get_view_interval())
        for tick in (*axis.get_major_ticks(), *axis.get_minor_ticks()):
            if not low <= tick.get_loc() <= high:
                outside |= {tick.label1, tick.label2}
    return [
        (text.get_text(), text.get_window_extent(renderer))
        for text in figure.findobj(Text)
        if text not in outside and text.get_visible() and text.get_text().strip()
    ]


@pytest.mark.parametrize("name", DRAWN)
def test_no_text_lies_on_another_or_leaves_the_figure(name):
    figure = DRAWN[name]()
    shown = texts_of(figure)
    assert len(shown) > 10
    for (first, a), (second, b) in itertools.combinations(shown, 2):
        apart = a.x1 <= b.x0 + 0.5 or b.x1 <= a.x0 + 0.5 or a.y1 <= b.y0 + 0.5 or b.y1 <= a.y0 + 0.5  # of a pixel
        assert apart, (first, second)
    for text, box in shown:
        assert box.x0 >= -1, text
        assert box.x1 <= figure.bbox.x1 + 1, text
        assert box.y0 >= -1, text
        assert box.y1 <= figure.bbox.y1 + 1, text


@pytest.mark.parametrize("name", ["redundancy", "groupings", "orders", "routing"])
def test_data_that_lacks_something_or_has_it_in_another_shape_is_refused(name):
    draw, make = getattr(figures, f"{name}_figure"), globals()[name]
    draw(make())
    for key in make():
        if key in ("grid", "middle_time"):
            continue
        with refused("damaged"):
            draw({other: value for other, value in make().items() if other != key})
    for key in ("rows", "times", "by_block", "by_step", "lorenz", "proposed_core"):
        for value in (None, "x", 3, [{}]):
            if key in make():
                with refused("damaged"):
                    draw(make() | {key: value})


def test_a_lorenz_curve_of_one_point_is_refused():
    with refused("damaged"):
        figures.redundancy_figure(redundancy() | {"lorenz": {"share_of_detail": [1.0]}})


@pytest.mark.parametrize("name", DRAWN)
def test_every_axis_says_what_it_shows(name):
    for axes in DRAWN[name]().axes:
        assert axes.get_xlabel()
        assert axes.get_ylabel() or name in ("groupings", "orders")  # whose other axis has the names of the rows


def test_the_lines_are_the_data():
    values = redundancy()
    _, time, depth = figures.redundancy_figure(values).axes
    for line, kind in zip(depth.lines, figures.KINDS, strict=False):
        assert line.get_ydata() == pytest.approx([100 * value for value in values["by_block"][kind]])
    for line, kind in zip(time.lines, figures.KINDS, strict=False):
        assert line.get_ydata() == pytest.approx([100 * value for value in values["by_step"][kind]])
        assert list(line.get_xdata()) == TIMES
    assert len({line.get_color() for line in time.lines}) == len(figures.KINDS)


def test_the_bars_are_the_data_and_a_method_without_groups_says_so():
    figure = figures.groupings_figure(groupings())
    spread, _, retained = figure.axes
    widths = [patch.get_width() for patch in retained.patches]
    assert widths == pytest.approx([72, 68, 74, -20, 50, 76, 76])
    assert [text.get_text() for text in spread.texts].count("no groups") == 1


def test_a_ratio_that_is_not_known_is_not_drawn():
    ratio = figures.routing_figure(routing()).axes[0]
    drawn = [line for line in ratio.lines if line.get_marker() != "None"]
    assert [list(line.get_ydata()) for line in drawn] == [[2.0, 4.0, 6.0, 6.5], [1.1, 3.0, 9.0, 30.0, 31.0]]
    assert any("R = 128" in text.get_text() for text in ratio.texts)


# Pictures.


def plain(size: int = 64) -> Image.Image:
    return Image.new("RGB", (size, size), (100, 100, 100))


def test_neighbours_along_the_order_have_different_colours_and_a_group_has_one():
    groups = torch.tensor([0, 0, 1, 1, 0, 2, 2, 1, 3, 3, 2, 4, 3, 3, 4, 4])
    tinted = tint_groups(plain(), groups, (4, 4))
    side = tinted.width // 4
    colour = [tinted.getpixel((int((j % 4 + 0.5) * side), int((j // 4 + 0.5) * side))) for j in range(16)]
    for a, b in itertools.combinations(range(16), 2):
        beside = abs(a - b) == 4 or (abs(a - b) == 1 and a // 4 == b // 4)
        if groups[a] == groups[b]:
            assert colour[a] == colour[b]
        elif beside:
            assert colour[a] != colour[b]
    red = round(0.45 * 100 + 0.55 * int(COLOURS[0][1:3], 16))
    assert red in {one[0] for one in colour}


def test_what_is_skipped_is_faded_and_what_is_unread_is_dark():
    kept = torch.tensor([True, False, False, False])
    faded = fade(plain(), kept, (2, 2))
    assert faded.getpixel((10, 10)) == (100, 100, 100)
    assert faded.getpixel((400, 10)) == (round(0.15 * 100 + 0.85 * 255),) * 3
    glowing = glow(plain(), torch.tensor([0.5, 0.25, 0.0, 0.25]), (2, 2))
    assert glowing.getpixel((10, 10)) == (100, 100, 100)
    assert glowing.getpixel((10, 400)) == (10, 10, 10)
    with refused("3 x 3"):
        fade(plain(), torch.ones(9, dtype=torch.bool), (3, 3))


def shown_in(figure) -> list[list[np.ndarray | None]]:
    rows = {}
    for axes in figure.axes:
        row = rows.setdefault(axes.get_subplotspec().rowspan.start, [])
        row.append(np.asarray(axes.images[0].get_array()) if axes.images else None)
    return [rows[row] for row in sorted(rows)]


def test_a_gallery_has_a_dense_row_and_a_row_for_each_budget_and_method(family):
    pipe = make_pipe(family, cuts="gaps")
    run = make_run(pipe, 2, seed=3, steps=2)
    figure, data = gallery(run, {"one": pipe, "two": pipe}, [16, 0.5])
    rows = shown_in(figure)
    assert [len(row) for row in rows] == [2] * 5
    assert data["budgets"] == [16, 32]
    assert np.array_equal(rows[0][1], np.asarray(enlarge(to_pil(run.follow([0, 1], lambda moment: None))[1], 256)))
    assert np.array_equal(rows[1][0], rows[2][0])  # the same method twice
    assert not np.array_equal(rows[0][0], rows[1][0])


def test_an_overlay_shows_the_regions_early_and_late_and_the_picture(family):
    pipe = make_pipe(family, cuts="merge", cuts_from="estimate")
    figure, data = overlay(make_run(pipe, 2, steps=6, watched=2), 10)
    rows = shown_in(figure)
    assert data["times"] == [pytest.approx(1 / 6, abs=1e-4), pytest.approx(4 / 6, abs=1e-4)]
    assert len(rows) == 3
    white = [(row[0] == 255).all(axis=-1).sum() for row in rows]
    assert white[0] > 100  # lines
    assert white[2] < white[0]
    with refused("adapter"):
        overlay(make_run(make_pipe(family), 1, steps=2), 10)


def test_methods_are_drawn_by_what_they_offer(family):
    pipe = make_pipe(family, cuts="gaps")
    config = rti.RegionConfig(core=CORE)
    rows = [Row("region", pipe.elastic.reduction), Row("soft", Soft(config)), Row("skip", Skip(config))]
    figure, data = methods(make_run(pipe, 1, seed=0, steps=2), rows, CORE, 16, {})
    drawn = (
        2
        * pipe(
            subjects(family, 1),
            dense=True,
            num_inference_steps=2,
            output_type="pt",
            progress=False,
            generator=picture_generator(0, 0),
        ).images
        - 1
    )
    shown = shown_in(figure)
    assert len(shown) == 1
    assert len(shown[0]) == 4
    assert data["methods"] == ["region", "soft", "skip"]
    grid, tinted, glowing, faded = shown[0]
    assert not np.array_equal(grid, tinted)
    assert np.array_equal(glowing, np.asarray(enlarge(to_pil(drawn)[0], 512)))  # reads evenly: nothing is dark
    share = (faded > 210).all(axis=-1).mean()
    assert share == pytest.approx(48 / 64, abs=0.1)  # 16 of 64 patches are kept


# The commands.


def test_figures_are_written_as_png_svg_and_json_the_same_each_time(capsys, tmp_path):
    for name, make in (("redundancy", redundancy), ("orders", orders)):
        (tmp_path / f"{name}.json").write_text(json.dumps(make() | {"probe": name}))
        values = run_json(capsys, "figure", name, tmp_path, "-o", tmp_path / "out" / f"{name}.png")
        first = [(tmp_path / "out" / f"{name}{ending}").read_bytes() for ending in (".png", ".svg", ".json")]
        assert first[0][:4] == b"\x89PNG"
        assert b"<svg" in first[1]
        assert json.loads(first[2]) == json.loads((tmp_path / f"{name}.json").read_text())
        assert values["output"].endswith(f"{name}.png")
    run_json(capsys, "figure", "orders", tmp_path, "-o", tmp_path / "again.png")
    assert (tmp_path / "again.svg").read_bytes() == first[1]


def test_the_picture_figures_by_command(capsys, tmp_path):
    model = rti.attach(rti.load_backbone(DATA / "jit-tiny"), rti.RegionConfig(core=(2, 3)))
    randomise_trainable(model).save_pretrained(tmp_path / "adapter")
    quick = ("--steps", 2, "--seed", 1)
    for name, options in (
        ("gallery", ("--budgets", "16,8", "--trained", f"other={tmp_path / 'adapter'}")),
        ("overlay", ("--budget", 8)),
        ("methods", ("--budget", 8, "--trained", f"mine={tmp_path / 'adapter'}")),
        ("methods", ("--budget", 8)),
    ):
        output = tmp_path / f"{name}.png"
        run_json(capsys, "figure", name, tmp_path / "adapter", "1", "2", *quick, *options, "-o", output)
        data = json.loads(output.with_suffix(".json").read_text())
        assert data["subjects"] == [1, 2]
        with Image.open(output) as picture:
            assert picture.width > 300
    assert data["pictures_of"] == []


@pytest.mark.parametrize(
    ("words", "named"),
    [
        (("redundancy", "nowhere"), "nowhere"),
        (("routing", DATA / "jit-tiny" / "config.json"), "config.json"),
        (("gallery", DATA / "jit-tiny", "1"), "adapter"),
        (("gallery", DATA / "jit-tiny", "1", "-o", "picture.svg"), "picture.svg"),
        (("methods", DATA / "jit-tiny", "1", "--trained", "x=nowhere"), "nowhere"),
        (("redundancy", DATA / "jit-tiny" / "config.json"), "config.json"),
        (("redundancy", "a", "b", "--names", "a,b,c"), "names a, b, c for 2 models"),
    ],
)
def test_bad_input_is_refused(capsys, tmp_path, monkeypatch, words, named):
    monkeypatch.chdir(tmp_path)
    code, _, err = run(capsys, "figure", *words)
    assert (code, err.count("\n"), named in err) == (2, 1, True)
    assert list(tmp_path.iterdir()) == []
