"""Models that ship inside the package: found by name from anywhere; and the words they know."""

import json
import shutil
import subprocess
import sys
import warnings

import pytest
import torch

import rti
from rti import shipped
from rti.adapter import CONFIG as ADAPTER_CONFIG
from rti.cli import main
from rti.text.encoder import text_encoder_of
from rti.text.vocabulary import VOCABULARY, vocabulary_line
from rti.text.words import WordEncoder
from tiny import CORE, assert_same_state, randomise_trainable, refused, save_minit2i, snapshot

TEXT = dict(prompt_length=12, txt_input_size=12)
PROMPT = "a red star left of a blue circle"
QUICK = dict(num_inference_steps=1, guidance_scale=1.0, output_type="pt", progress=False)


def save_model(folder, seed=0):
    """A backbone with its words, in the layout that base training writes."""
    save_minit2i(folder / "transformer", seed=seed, **TEXT)
    torch.manual_seed(seed)
    WordEncoder(12).save_pretrained(folder / "text_encoder")
    return folder


def save_adapter(backbone, folder, cuts, seed=0):
    config = rti.RegionConfig(core=CORE, cuts=cuts, lora_rank=2, lora_alpha=2)
    model = rti.attach(rti.load_backbone(backbone), config)
    randomise_trainable(model, seed).save_pretrained(folder)
    return folder


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """Model and adapters as training leaves them: the backbone's source is a path that will not be there."""
    run = tmp_path_factory.mktemp("run")
    save_model(run / "scenes")
    save_adapter(run / "scenes", run / "scenes" / "adapter", "merge")
    save_adapter(run / "scenes", run / "scenes" / "adapter-gaps", "gaps")
    save_model(run / "bare")
    return run.rename(run.with_name(f"{run.name}-package"))


@pytest.fixture
def models(made, tmp_path, monkeypatch):
    """The package's models, seen from an empty working folder."""
    monkeypatch.setattr(shipped, "MODELS", made)
    monkeypatch.chdir(tmp_path)
    return made


def noise():
    return torch.Generator().manual_seed(0)


# Names.


def test_the_names_are_those_of_the_folders_that_hold_a_model(models):
    (models / "empty").mkdir(exist_ok=True)
    assert shipped.shipped_names() == ("bare", "scenes")
    for name, folder in (("scenes", "scenes"), ("bare", "bare"), ("scenes/adapter-gaps", "scenes/adapter-gaps")):
        assert shipped.shipped(name) == models / folder
        assert shipped.shipped_name(models / folder) == name


@pytest.mark.parametrize("name", ["", ".", "..", "empty", "scenes/..", "scenes/transformer", "./scenes", "nowhere"])
def test_other_names_are_no_shipped_models(models, name):
    assert shipped.shipped(name) is None


def test_a_folder_elsewhere_has_no_name_among_the_models(models, tmp_path):
    assert shipped.shipped_name(tmp_path) is None
    assert shipped.shipped_name(models) is None


def test_without_shipped_models_there_are_no_names(tmp_path, monkeypatch):
    monkeypatch.setattr(shipped, "MODELS", tmp_path / "models")
    assert shipped.shipped_names() == ()
    assert shipped.shipped("scenes") is None
    with refused("scenes", "minit2i-b16"):
        rti.load_backbone("scenes")


def test_an_unknown_model_is_told_the_shipped_names(models):
    with refused("scones", "scenes", "minit2i-b16"):
        rti.load_backbone("scones")


# Loading by name.


def test_a_name_stands_for_backbone_adapter_and_both(models):
    backbone = rti.load_backbone("scenes")
    assert_same_state(backbone, snapshot(rti.load_backbone(models / "scenes")))
    model = rti.load("scenes")
    expected = rti.load(models / "scenes" / "adapter", models / "scenes")
    assert model.config.cuts == "merge"
    assert_same_state(model, snapshot(expected))
    assert rti.load("scenes/adapter-gaps").config.cuts == "gaps"
    pipe = rti.Pipeline.from_pretrained("scenes")
    assert pipe.elastic.fused
    pictures = pipe(PROMPT, generator=noise(), budget=8, **QUICK).images
    dense = pipe(PROMPT, generator=noise(), dense=True, **QUICK).images
    plain = rti.Pipeline.from_pretrained(models / "scenes")
    assert plain.elastic is None
    torch.testing.assert_close(dense, plain(PROMPT, generator=noise(), **QUICK).images, atol=1e-4, rtol=0)
    assert (pictures - dense).abs().mean() > 1e-3
    other = rti.Pipeline.from_pretrained("scenes", adapter="scenes/adapter-gaps")
    assert other.elastic.config.cuts == "gaps"


def test_a_shipped_model_without_adapter_is_a_backbone(models):
    assert rti.Pipeline.from_pretrained("bare").elastic is None
    with refused("bare", "adapter"):
        rti.load("bare")


def test_a_shipped_backbone_is_remembered_by_its_name_however_it_was_found(models):
    for source in ("scenes", models / "scenes", str(models / "scenes")):
        backbone = rti.load_backbone(source)
        assert backbone.source == {"source": "scenes"}
        assert text_encoder_of(backbone) == models / "scenes"


def test_a_users_adapter_finds_the_shipped_backbone_wherever_the_package_is(models, tmp_path, monkeypatch):
    folder = save_adapter("scenes", tmp_path / "mine", "fixed")
    assert json.loads((folder / ADAPTER_CONFIG).read_text())["backbone"]["source"] == {"source": "scenes"}
    moved = tmp_path / "elsewhere"
    shutil.copytree(models, moved)
    monkeypatch.setattr(shipped, "MODELS", moved)
    save_model(tmp_path / "scenes", seed=5)  # a name that was stored never means a folder of the user's
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        model = rti.load(folder)
    assert model.backbone.source == {"source": "scenes"}
    assert_same_state(model.detach(), snapshot(rti.load_backbone(moved / "scenes")))


def test_a_shipped_adapter_finds_its_backbone_beside_it(models):
    stored = json.loads((models / "scenes" / "adapter" / ADAPTER_CONFIG).read_text())["backbone"]["source"]
    assert not (models / stored["source"]).exists()  # where it lay in training
    assert rti.load("scenes").backbone.source == {"source": "scenes"}


# A folder of the user's with the same name.


def test_a_folder_of_that_name_that_holds_a_model_comes_first_and_a_warning_says_so(models, tmp_path):
    save_model(tmp_path / "scenes", seed=5)
    with pytest.warns(UserWarning, match=f"scenes is the folder {tmp_path / 'scenes'}"):
        pipe = rti.Pipeline.from_pretrained("scenes")
    assert pipe.elastic is None
    assert pipe.backbone.source == {"source": str(tmp_path / "scenes")}
    assert text_encoder_of(pipe.backbone) == tmp_path / "scenes"


def test_an_adapter_of_that_name_comes_first_too(models, tmp_path):
    save_adapter(models / "scenes", tmp_path / "scenes", "fixed")
    with pytest.warns(UserWarning, match="not the model that ships"):
        assert rti.load("scenes").config.cuts == "fixed"


def test_a_folder_of_that_name_without_a_model_does_not_hide_the_shipped_one_and_a_warning_says_so(models, tmp_path):
    (tmp_path / "scenes").mkdir()
    (tmp_path / "scenes" / "0000.tar").write_text("data")
    with pytest.warns(UserWarning, match=f"{tmp_path / 'scenes'} holds no model"):
        assert rti.load("scenes").config.cuts == "merge"


def test_from_inside_the_package_the_name_is_the_same_model(models, monkeypatch):
    monkeypatch.chdir(models)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert rti.load("scenes").config.cuts == "merge"


# Words.


@pytest.fixture
def pipe(models):
    return rti.Pipeline.from_pretrained("scenes")


def test_unknown_words_are_refused_with_the_vocabulary(pipe):
    with refused("dragon", vocabulary_line()):
        pipe(["a red star", "a red dragon"], **QUICK)


def test_lenient_leaves_unknown_words_out_and_names_them_once(pipe):
    with pytest.warns(UserWarning) as caught:
        lenient = pipe(["a shiny red star", "a shiny big moon"], generator=noise(), lenient=True, **QUICK).images
    assert [str(warning.message) for warning in caught] == ["unknown words left out: shiny, big"]
    assert torch.equal(lenient, pipe(["a red star", "a moon"], generator=noise(), **QUICK).images)


def test_lenient_says_nothing_about_known_words_and_needs_one(pipe):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        lenient = pipe(PROMPT, generator=noise(), lenient=True, **QUICK).images
    assert torch.equal(lenient, pipe(PROMPT, generator=noise(), **QUICK).images)
    with refused("dragon", vocabulary_line()):
        pipe("dragon", lenient=True, **QUICK)


# The command line.


def run(capsys, *arguments):
    with pytest.raises(SystemExit) as stop:
        main([str(argument) for argument in arguments])
    captured = capsys.readouterr()
    return stop.value.code, captured.out, captured.err


SAMPLE = ("--steps", "1", "--budget", "dense,8", "--json")


def test_sample_needs_no_more_than_a_prompt(capsys, models, tmp_path):
    code, out, err = run(capsys, "sample", PROMPT, *SAMPLE)
    assert code == 0, err
    values = json.loads(out.splitlines()[-1])
    assert values["model"] == "scenes"
    assert [row["budget"] for row in values["rows"]] == ["dense", 8]
    assert [path.name for path in tmp_path.iterdir()] == ["sample.png"]


def test_sample_without_a_shipped_model_asks_for_one(capsys, tmp_path, monkeypatch):
    monkeypatch.setattr(shipped, "MODELS", tmp_path / "models")
    code, _, err = run(capsys, "sample", PROMPT)
    assert (code, err.count("\n")) == (2, 1)
    assert "'scenes' is no file, folder or preset; presets: minit2i-b16" in err


def test_sample_refuses_unknown_words_on_one_line_with_the_vocabulary(capsys, models, tmp_path):
    code, out, err = run(capsys, "sample", "a red dragon", *SAMPLE)
    assert (code, out) == (2, "")
    assert err.startswith("rti: error: ")
    assert err.count("\n") == 1
    assert "dragon" in err
    assert vocabulary_line() in err
    assert list(tmp_path.iterdir()) == []


def test_sample_lenient_warns_once_on_one_line_for_all_budgets(capsys, models):
    code, _, err = run(capsys, "sample", "a red shiny star", *SAMPLE, "--lenient")
    assert code == 0
    assert [line for line in err.splitlines() if "warning" in line.lower()] == [
        "rti: warning: unknown words left out: shiny"
    ]


def test_sample_warns_once_of_a_folder_that_has_the_models_name(capsys, models, tmp_path):
    save_model(tmp_path / "scenes")
    code, _, err = run(capsys, "sample", PROMPT, "--model", "scenes", "--steps", "1")
    assert code == 0
    assert err.count("rti: warning: scenes is the folder") == 1


def test_every_command_about_a_model_takes_the_name(capsys, models):
    for command in (("info", "scenes"), ("info", "scenes", "--budgets", "8"), ("info", "scenes/adapter-gaps")):
        code, out, err = run(capsys, *command, "--json")
        assert code == 0, err
        assert json.loads(out.splitlines()[-1])["core"] == list(CORE)
    code, out, err = run(
        capsys, "eval", "scenes", "scenes", "--images", 6, "--steps", 1, "--budget", "8,dense", "--json"
    )
    assert code == 0, err
    assert [row["budget"] for row in json.loads(out.splitlines()[-1])["rows"]] == [8, "dense"]


def test_the_help_of_sample_lists_every_word(capsys):
    code, out, _ = run(capsys, "sample", "--help")
    assert code == 0
    words = set(out.replace(";", " ").replace(",", " ").replace(".", " ").split())
    plurals = {word for word in VOCABULARY if word.endswith("s") and word != "cross"}
    assert set(VOCABULARY[1:]) - plurals <= words
    assert "plurals" in words


def test_names_are_known_without_torch():
    program = "import sys, rti.shipped, rti.cli.eval; print('torch' in sys.modules, 'numpy' in sys.modules)"
    finished = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert finished.stdout.strip() == "False False"


# The weights in the package.


@pytest.mark.parametrize(("name", "megabytes"), [("scenes", 40), ("scenes-jit", 15)])
def test_what_ships_draws_what_it_is_asked_for_and_is_small(capsys, name, megabytes):
    """Six pictures at a quarter of the tokens."""
    words = ("--budget", 64, "--images", 6, "--steps", 8, "--seed", 3, "--json")
    code, out, err = run(capsys, "eval", "scenes", name, *words)
    assert code == 0, err
    assert json.loads(out.splitlines()[-1])["overall"] >= 4 / 6
    folder = shipped.MODELS / name
    assert sum(file.stat().st_size for file in folder.rglob("*") if file.is_file()) < megabytes * 1e6
    assert "95 % interval" in (folder / "README.md").read_text(encoding="utf-8")  # its card has what it measured
