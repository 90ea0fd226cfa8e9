"""The command line: what it prints, what it refuses, and that it writes nothing where it refuses."""

import json
import os
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from rti.cli import main

DATA = Path(__file__).parent / "data"
BUDGETS = (64, 96, 128, 192, 256, 344, 384, 512, 536, 728, 912)
PERCENT = (48.8, 50.3, 51.8, 54.7, 57.8, 62.1, 64.1, 70.7, 72.0, 82.5, 93.2)
PAPER_FLOPS = dict(zip(BUDGETS, PERCENT, strict=True))


def run(capsys, *arguments: object) -> tuple[int, str, str]:
    """Exit code, standard output and standard error of `rti ARGUMENTS`."""
    with pytest.raises(SystemExit) as stop:
        main([str(argument) for argument in arguments])
    captured = capsys.readouterr()
    return stop.value.code, captured.out, captured.err


def run_json(capsys, *arguments: object) -> dict:
    code, out, err = run(capsys, *arguments, "--json")
    assert code == 0, err
    return json.loads(out.strip().splitlines()[-1])


@pytest.fixture
def photograph(tmp_path) -> Path:
    """A flat picture with one detailed corner."""
    pixels = np.full((96, 160, 3), 120, dtype=np.uint8)
    pixels[:48, :48] = np.random.default_rng(0).integers(0, 255, (48, 48, 3))
    path = tmp_path / "photograph.png"
    Image.fromarray(pixels).save(path)
    return path


@pytest.mark.parametrize(
    ("model", "millions", "percent"), [("minit2i-b16", 16.3, 5.9), ("minit2i-l16", 36.0, 3.8), ("jit-b16", 6.0, 4.4)]
)
def test_info_gives_the_trainable_counts_of_the_paper(capsys, model, millions, percent):
    values = run_json(capsys, "info", model)
    assert round(values["trainable"] / 1e6, 1) == millions
    assert round(100 * values["trainable_share"], 1) == percent


def test_info_says_which_blocks_run_on_how_many_tokens(capsys):
    values = run_json(capsys, "info", "minit2i-b16", "--budget", "256")
    assert values["parameters"] == 258_122_880
    assert values["tokens_per_block"] == [1024] * 3 + [256] * 11 + [1024] * 3
    code, out, _ = run(capsys, "info", "minit2i-b16", "--budget", "256")
    assert code == 0
    assert "16,279,296" in out
    assert "3 to 13" in out


def test_info_reads_a_checkpoint_and_an_adapter(capsys, tmp_path):
    import rti

    values = run_json(capsys, "info", DATA / "jit-tiny")
    assert values["family"] == "jit"
    model = rti.attach(rti.load_backbone(DATA / "jit-tiny"), rti.RegionConfig(core=(2, 3), cuts="fixed"))
    model.save_pretrained(tmp_path / "adapter")
    adapted = run_json(capsys, "info", tmp_path / "adapter")
    assert adapted["core"] == [2, 3]
    assert adapted["reduction"]["cuts"] == "fixed"
    assert adapted["parameters"] == values["parameters"]
    assert adapted["trainable"] == sum(p.numel() for p in model.trainable_parameters().values())


def test_an_adapter_that_does_not_name_its_backbone_is_refused(capsys, tmp_path):
    (tmp_path / "rti_config.json").write_text(json.dumps({"reduction": "region", "core": [1, 2]}))
    code, _, err = run(capsys, "info", tmp_path)
    assert (code, err.count("\n")) == (2, 1)
    assert str(tmp_path) in err


def test_flops_gives_all_eleven_figures_of_the_paper(capsys):
    budgets = ",".join(map(str, PAPER_FLOPS))
    rows = run_json(capsys, "info", "minit2i-b16", "--budgets", budgets)["rows"]
    assert {row["budget"]: row["percent_of_dense"] for row in rows} == PAPER_FLOPS


def test_flops_counts_image_tokens_as_the_paper_does_for_jit(capsys):
    rows = run_json(capsys, "info", "jit-b16", "--budgets", "64,130,193")["rows"]
    assert [int(row["percent_of_image_tokens"] + 0.4) for row in rows] == [62, 75, 88]


def test_a_longer_core_costs_what_the_paper_says(capsys):
    def image_tokens(core: str) -> float:
        return run_json(capsys, "info", "minit2i-b16", "--budgets", "256", "--core", core)["rows"][0][
            "percent_of_image_tokens"
        ]

    assert image_tokens("1,15") / image_tokens("3,13") == pytest.approx(0.66, abs=0.005)


def test_regions_draws_any_photograph(capsys, tmp_path, photograph):
    output = tmp_path / "new" / "regions.png"
    values = run_json(capsys, "regions", photograph, "--budget", 30, "--size", 160, "--patch", 8, "-o", output)
    assert values["grid"] == [12, 20]
    assert values["retained"] > values["retained_by_even_cuts"]
    assert values["largest_region"] > 8
    with Image.open(output) as picture:
        assert picture.width > 2 * 512


def test_regions_of_one_patch_each_keep_everything(capsys, tmp_path, photograph):
    output = tmp_path / "regions.png"
    values = run_json(capsys, "regions", photograph, "--budget", 1.0, "--size", 160, "--patch", 8, "-o", output)
    assert (values["retained"], values["largest_region"], values["single_patches"]) == (1.0, 1, 240)


def test_sample_puts_budgets_and_labels_side_by_side(capsys, tmp_path):
    output = tmp_path / "sample.png"
    arguments = ("sample", "--model", DATA / "jit-tiny", "--labels", "1,2", "--steps", 2, "--untrained")
    values = run_json(capsys, *arguments, "--budget", "16,dense,0.5", "--regions", "-o", output)
    assert [row["budget"] for row in values["rows"]] == [16, "dense", 32]
    assert values["subjects"] == ["1", "2"]
    with Image.open(values["regions"]) as picture:
        assert picture.width > 2 * 512
        assert picture.height > 3 * 512


def test_an_untrained_interface_begins_at_three_quarters_and_says_what_to_expect(capsys, tmp_path):
    draw = ("sample", "--model", DATA / "jit-tiny", "--labels", "1", "--steps", 1, "-o", tmp_path / "sample.png")
    for how in (["--untrained"], ["--adapter", "untrained"]):
        code, out, err = run(capsys, *draw, *how)
        assert code == 0, err
        assert "dense" in out and "48" in out  # of 64 patches
        assert "untrained" in out and "rti adapt" in out
    assert "rti adapt" not in run(capsys, *draw)[1]


def test_sample_draws_the_regions_of_one_budget_below_its_row(capsys, tmp_path, monkeypatch):
    from rti import images

    sheets, whole = [], images.contact_sheet
    monkeypatch.setattr(images, "contact_sheet", lambda *given: sheets.append(given) or whole(*given))
    draw = ("sample", "--model", DATA / "jit-tiny", "--labels", "1,2", "--steps", 1, "--untrained", "--seed", 3)
    draw = (*draw, "--budget", "dense,16,0.5", "-o", tmp_path / "sample.png")
    plain, marked = (run_json(capsys, *draw, *more) for more in ((), ("--regions-of", "25%")))
    assert [row["budget"] for row in marked["rows"]] == [row["budget"] for row in plain["rows"]] == ["dense", 16, 32]
    (before, *_), (rows, labels, _) = sheets
    assert labels == ["dense", "R = 16", "its 16\nregions", "R = 32"]
    pixels = [[picture.tobytes() for picture in row] for row in rows]
    assert pixels[:2] + pixels[3:] == [[picture.tobytes() for picture in row] for row in before]
    assert (rows[2][0].size, len(rows[2])) == (rows[1][0].size, 2)
    assert pixels[2] != pixels[1]
    for wrong in ("8", "dense", "many"):
        code, _, err = run(capsys, *draw, "--regions-of", wrong)
        assert (code, wrong in err) == (2, True)


def test_sample_uses_a_saved_adapter(capsys, tmp_path):
    import rti
    from tiny import randomise_trainable

    model = rti.attach(rti.load_backbone(DATA / "jit-tiny"), rti.RegionConfig(core=(2, 3)))
    randomise_trainable(model).save_pretrained(tmp_path / "adapter")
    arguments = ("--labels", "3", "--steps", "2", "--budget", "16,dense")
    by_folder, by_option = tmp_path / "one.png", tmp_path / "two.png"
    run_json(capsys, "sample", "--model", tmp_path / "adapter", *arguments, "-o", by_folder)
    run_json(
        capsys, "sample", "--model", DATA / "jit-tiny", "--adapter", tmp_path / "adapter", *arguments, "-o", by_option
    )
    assert by_folder.read_bytes() == by_option.read_bytes()


JIT = ("--model", DATA / "jit-tiny", "--steps", "1")
BAD_INPUT = {
    "an unknown command": (("draw",), "draw"),
    "an unknown option": (("info", "jit-b16", "--bogus"), "--bogus"),
    "an unknown model": (("info", "sdxl"), "sdxl"),
    "a family without a size": (("info", "minit2i"), "minit2i"),
    "a budget of zero": (("info", "jit-b16", "--budgets", "0"), "budget 0"),
    "a negative budget": (("info", "jit-b16", "--budgets", "-4"), "-4"),
    "a budget above N": (("info", "jit-b16", "--budgets", "257"), "257"),
    "a share above one": (("info", "jit-b16", "--budgets", "1.5"), "1.5"),
    "a budget that is no number": (("info", "jit-b16", "--budgets", "nan"), "nan"),
    "words as budget": (("info", "jit-b16", "--budgets", "many"), "many"),
    "an empty core": (("info", "jit-b16", "--core", "9,4"), "(9, 4)"),
    "a core outside the trunk": (("info", "jit-b16", "--core", "4,12"), "(4, 12)"),
    "half a core": (("info", "jit-b16", "--core", "4"), "4"),
    "nothing to draw": (("sample", *JIT), "prompts"),
    "a label out of range": (("sample", *JIT, "--labels", "11"), "label 11"),
    "labels that are no numbers": (("sample", *JIT, "--labels", "cat"), "cat"),
    "a prompt for a class-conditional model": (("sample", *JIT, "a cat"), "label"),
    "no steps": (("sample", "--model", DATA / "jit-tiny", "--labels", "1", "--steps", "0"), "steps"),
    "a budget without an adapter": (("sample", *JIT, "--labels", "1", "--budget", "8"), "--adapter"),
    "an unknown dtype": (("sample", *JIT, "--labels", "1", "--dtype", "int8"), "int8"),
    "a device that is not there": (("sample", *JIT, "--labels", "1", "--device", "quantum"), "quantum"),
    "an unknown rule": (("sample", *JIT, "--labels", "1", "--untrained", "--cuts", "random"), "random"),
    "an adapter that is none": (("sample", *JIT, "--labels", "1", "--adapter", DATA), "rti_config.json"),
    "a file that is no picture": (("regions", DATA / "jit-tiny" / "config.json"), "config.json"),
    "a picture that is not there": (("regions", "nowhere.png"), "nowhere.png"),
    "a seed that no generator takes": (("sample", *JIT, "--labels", "1", "--seed", "9" * 20), "seed must be"),
    "a negative seed": (("sample", *JIT, "--labels", "1", "--seed", "-1"), "seed must be"),
    "steps beyond counting": (("sample", *JIT, "--labels", "1", "--steps", "9" * 20), "steps must be"),
    "a name too long for a path": (("info", "a" * 300), "aaa"),
    "a folder with such a name": (("compare", "a" * 300, "b"), "aaa"),
    "pictures in such a folder": (("score", "clip", "a" * 300), "aaa"),
    "data in such a folder": (("figure", "redundancy", "a" * 300, "b", "--names", "c,d"), "aaa"),
    "a size beyond memory": (("regions", "x.png", "--size", str(2**63 - 1)), "size must be"),
    "data from a device, which may have no end": (("figure", "orders", "/dev/null"), "/dev/null is no regular file"),
    "the home of nobody": (("generate", "scenes", "--prompts", "~nouser/x.txt", "-o", "x"), "~nouser/x.txt"),
}


@pytest.mark.parametrize(("arguments", "named"), BAD_INPUT.values(), ids=BAD_INPUT)
def test_bad_input_is_one_line_and_exit_code_2_and_nothing_is_written(capsys, tmp_path, monkeypatch, arguments, named):
    monkeypatch.chdir(tmp_path)
    code, out, err = run(capsys, *arguments)
    assert code == 2
    assert out == ""
    assert err.startswith("rti: error: ")
    assert err.count("\n") == 1
    assert named in err
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("content", ["[" * 50_000, '{"probe": ' + "9" * 5000 + "}"], ids=["deep", "digits"])
@pytest.mark.parametrize("command", ["figure orders", "figure redundancy", "study"])
def test_json_that_no_reader_can_hold_is_refused(capsys, tmp_path, command, content):
    (tmp_path / "x.json").write_text(content)
    output = ("-o", tmp_path / "out") if command == "study" else ("-o", tmp_path / "out.png")
    code, _, err = run(capsys, *command.split(), tmp_path / "x.json", *output)
    assert (code, err.count("\n")) == (2, 1)
    assert "x.json is not readable JSON" in err
    assert [path.name for path in tmp_path.iterdir()] == ["x.json"]


# What is printed.


def test_what_looks_like_markup_is_printed_as_it_is(capsys, tmp_path, monkeypatch, photograph):
    monkeypatch.chdir(tmp_path)
    code, out, _ = run(capsys, "regions", photograph, "-o", "[/x].png")
    assert (code, "[/x].png" in out) == (0, True)
    assert (tmp_path / "[" / "x].png").is_file()


@pytest.mark.parametrize(
    ("command", "instead"),
    [("encode", "train"), ("scenes", "train"), ("probe lorenz", "probe redundancy"), ("figure lorenz", "figure red")],
)
def test_a_command_that_is_gone_says_what_takes_its_place(capsys, command, instead):
    code, _, err = run(capsys, *command.split(), "--output", "x")
    assert (code, err.count("\n"), f"rti {command} is gone: rti {instead}" in err) == (2, 1, True)


def test_no_command_to_the_terminal_is_passed_on(capsys, tmp_path, photograph):
    """Neither in an error, nor in a table, nor in a warning; line ends that we print ourselves stay."""
    bad = "\x1b[2J\x07\x9b\u202e\udcff"
    code, _, err = run(capsys, "info", bad)
    assert (code, "\\x1b[2J" in err, set(err) & set(bad) - set("[2J")) == (2, True, set())
    named = tmp_path / "\x1b[2J.png"
    named.write_bytes(photograph.read_bytes())
    code, out, _ = run(capsys, "regions", named, "--size", 32, "--patch", 8, "-o", tmp_path / "\x07.png")
    assert (code, "\x1b" in out, "\x07" in out, out.count("\n") > 5) == (0, False, False, True)
    code, _, err = run(capsys, "figure", "walks", "--grid", "\x1b", "--\x1b", "-o", tmp_path / "walks.png")
    assert (code, "\x1b" in err, "rti: warning: --grid is gone" in err) == (2, False, True)


@pytest.mark.parametrize(("before", "value", "shown"), [((), None, 1), (("--traceback",), None, 0), ((), "1", 0)])
def test_what_nobody_foresaw_is_one_line_and_a_traceback_only_where_asked_for(
    capsys, monkeypatch, before, value, shown
):
    def fail(*_):
        raise RuntimeError("\x1bboom")

    monkeypatch.setattr("rti.resolve.describe", fail)
    monkeypatch.delenv("RTI_TRACEBACK", raising=False)
    if value:
        monkeypatch.setenv("RTI_TRACEBACK", value)
    code, _, err = run(capsys, *before, "info", "jit-b16")
    assert (code, "\x1b" in err, "boom" in err) == (1, False, True)
    assert ("Traceback (most recent call last)" in err) == (not shown)
    if shown:
        assert err.startswith("rti: error: RuntimeError: \\x1bboom") and err.count("\n") == 1
        assert "RTI_TRACEBACK=1" in err


# Spellings and defaults.


def test_a_budget_may_be_spelt_both_ways_in_every_command(capsys):
    import typer

    from rti.cli import app

    def walk(command):
        if not hasattr(command, "commands"):
            return [command]
        return [found for one in command.commands.values() for found in walk(one)]

    spelt = [
        {"--budget", "--budgets"} & {*option.opts} for one in walk(typer.main.get_command(app)) for option in one.params
    ]
    assert [len(names) for names in spelt if names] == [2] * 15
    assert run_json(capsys, "info", "jit-b16", "--budgets", "64")["budget"] == 64
    assert run_json(capsys, "info", "jit-b16", "--budget", "64")["rows"][0]["budget"] == 64


@pytest.mark.parametrize("given", [None, "70"])
def test_threads_do_not_spin_for_long_unless_the_user_says_so(given):
    """Read by libgomp when torch is imported, so it must stand by then: a process of its own."""
    program = "import os, sys; from rti.cli import main; assert 'torch' not in sys.modules\n"
    program += "try: main(['--version'])\nexcept SystemExit: print(os.environ['GOMP_SPINCOUNT'])"
    environment = {name: value for name, value in os.environ.items() if name != "GOMP_SPINCOUNT"}
    environment |= {} if given is None else {"GOMP_SPINCOUNT": given}
    done = subprocess.run([sys.executable, "-c", program], env=environment, capture_output=True, text=True, check=True)
    assert done.stdout.split()[-1] == (given or "5000")


def test_a_number_of_pictures_and_a_label_may_be_spelt_both_ways(capsys):
    code, _, err = run(capsys, "eval", "scenes", DATA / "jit-tiny", "--count", "5")
    assert (code, "images must be a whole number from 6" in err) == (2, True)
    code, _, err = run(capsys, "sample", *JIT, "--label", "11")
    assert (code, "label 11" in err) == (2, True)


def test_generate_and_eval_draw_the_same_by_default():
    import inspect

    from rti.cli.eval import scenes
    from rti.cli.generate import generate

    one, two = (inspect.signature(command).parameters["seed"].default.default for command in (scenes, generate))
    assert one == two


def test_info_says_how_a_model_samples(capsys):
    values = run_json(capsys, "info", "jit-b16")
    assert (values["sampler"], values["steps"], values["guidance"]) == ("heun", 50, 3.0)


def test_sample_loses_no_picture_and_leaves_the_clean_ones_beside_their_regions(capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    draw = ("sample", "--model", DATA / "jit-tiny", "--labels", "1", "--steps", "1", "--untrained", "--budget", "16")
    assert run_json(capsys, *draw)["output"] == "sample.png"
    before = (tmp_path / "sample.png").read_bytes()
    values = run_json(capsys, *draw, "--regions")
    assert (values["output"], values["regions"]) == ("sample-1.png", "sample-1-regions.png")
    assert (tmp_path / "sample.png").read_bytes() == before == (tmp_path / "sample-1.png").read_bytes()
    assert (tmp_path / "sample-1-regions.png").read_bytes() != before
    code, out, _ = run(capsys, *draw, "-o", "sample.png")
    assert (code, "sample.png: 1 picture a row" in out) == (0, True)


def test_labels_of_the_scenes_world_are_shown_by_name():
    from rti.lab.scenes import CLASSES
    from rti.lab.scenes.classes import subject_names
    from tiny import make_backbone

    assert subject_names(make_backbone("jit", num_classes=56), [0, 55]) == [CLASSES[0], CLASSES[55]]
    assert subject_names(make_backbone("jit"), [0, 5]) == ["0", "5"]
    assert subject_names(make_backbone("minit2i"), ["a red star"]) == ["a red star"]


@pytest.mark.parametrize("output", ["folder/in/the/way.png", "picture.xyz"])
def test_an_output_that_cannot_be_written_is_refused_before_the_work(capsys, tmp_path, monkeypatch, photograph, output):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "folder").write_text("a file")
    before = sorted(tmp_path.rglob("*"))
    monkeypatch.setattr(
        "rti.lab.probes.photograph.cut_photograph", lambda *_: pytest.fail("it worked before it looked")
    )
    code, _, err = run(capsys, "regions", photograph, "-o", output)
    assert (code, err.count("\n")) == (2, 1)
    assert output in err
    assert sorted(tmp_path.rglob("*")) == before


def test_help_answers_without_importing_torch():
    """Importing torch takes more than a second; the command itself must not."""
    script = "import sys; from rti.cli import main\ntry: main(['--help'])\nfinally: print('torch' in sys.modules)"
    started = time.perf_counter()
    result = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert "regions" in result.stdout
    assert result.stdout.splitlines()[-1] == "False"
    assert time.perf_counter() - started < 10  # a second on an idle machine; generous on a busy one


def test_every_command_teaches_its_options(capsys):
    for command in ("sample", "regions", "info", "bench", "study"):
        code, out, _ = run(capsys, command, "--help")
        assert code == 0
        assert "--json" in out


def test_the_readme_names_only_commands_and_names_that_exist(capsys):
    import re

    import rti

    readme = (Path(__file__).parent.parent / "README.md").read_text(encoding="utf-8")
    _, help_text, _ = run(capsys, "--help")
    for command in set(re.findall(r"`rti (\w+)", readme)):
        assert command in help_text
    for name in set(re.findall(r"\brti\.([A-Za-z_]\w*)", readme)):
        assert hasattr(rti, name), name
