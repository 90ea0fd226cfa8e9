"""Saving and loading an adapter: what is written, that it comes back, that PEFT reads it, and what is refused."""

import json
import shutil
from dataclasses import dataclass
from pathlib import Path

import huggingface_hub
import peft
import pytest
import torch
from huggingface_hub.utils import filter_repo_objects
from safetensors.torch import load_file, save_file

import rti
from close import assert_close
from rti.adapter import adapter_folder, load_weights
from rti.method.config import ReductionConfig
from rti.method.reductions import REDUCTIONS
from rti.method.reductions.dense import DenseReduction
from tiny import CORE, SAVE, assert_same_state, make_backbone, make_inputs, randomise_trainable, refused, snapshot

FILES = ["README.md", "adapter_config.json", "adapter_model.safetensors", "interface.safetensors", "rti_config.json"]
CONFIG = dict(core=CORE, order="morton", cuts="merge", cuts_from="estimate", lora_rank=3, lora_alpha=6, size_prior=0.25)


@pytest.fixture
def source(family, tmp_path):
    return SAVE[family](tmp_path / "backbone")


@pytest.fixture
def model(source):
    """A model as training would leave it, whose backbone was loaded from a folder."""
    return randomise_trainable(rti.attach(rti.load_backbone(source), rti.RegionConfig(**CONFIG))).eval()


@pytest.fixture
def folder(model, tmp_path):
    model.save_pretrained(tmp_path / "adapter")
    return tmp_path / "adapter"


def answers(model) -> list[torch.Tensor]:
    inputs = make_inputs(model.backbone)
    with torch.no_grad():
        return [model(*inputs, budget=budget, estimate=inputs[0].flip(3)) for budget in (3, 20, None)]


def assert_same_answers(model, expected: list[torch.Tensor]) -> None:
    for result, other in zip(answers(model), expected, strict=True):
        assert torch.equal(result, other)


def files(folder) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


# There and back.


def test_a_saved_model_comes_back_bit_by_bit(model, folder):
    loaded = rti.load(folder)
    assert loaded.config == model.config
    assert not loaded.training
    assert_same_answers(loaded, answers(model))
    assert_same_state(loaded, snapshot(model))
    assert set(loaded.trainable_parameters()) == set(model.trainable_parameters())


@pytest.mark.parametrize("kind", ["text", "module", "path", "wrapped"])
def test_a_saved_model_can_be_loaded_onto_another_backbone(model, folder, source, family, kind):
    """The same weights give the same model; other weights give another, by the same adapter."""
    expected = answers(model)
    shutil.move(source, source.parent / "moved")
    with refused(source):
        rti.load(folder)
    moved = source.parent / "moved"
    backbone = {"text": str(moved), "path": moved, "module": make_backbone(family)}.get(kind)
    if kind == "wrapped":
        targets = ["txt_embedder"] if family == "minit2i" else ["t_embedder.mlp.2"]
        backbone = peft.get_peft_model(make_backbone(family), peft.LoraConfig(target_modules=targets)).eval()
    assert_same_answers(rti.load(folder, backbone), expected)

    other = rti.load(folder, make_backbone(family, seed=1))
    assert not torch.equal(answers(other)[0], expected[0])
    assert torch.equal(other.reduction.read.score, model.reduction.read.score)


def test_a_random_preset_is_remembered(tmp_path, small_presets):
    model = rti.attach(rti.load_backbone("jit-b16", init="random", seed=7), rti.RegionConfig(core=CORE))
    model.save_pretrained(tmp_path)
    assert_same_answers(rti.load(tmp_path), answers(model))


def test_loading_in_bfloat16(model, folder):
    loaded = rti.load(folder, dtype=torch.bfloat16)
    assert {parameter.dtype for parameter in loaded.parameters()} == {torch.bfloat16}
    assert torch.equal(loaded.reduction.write.g.weight, model.reduction.write.g.weight.bfloat16())


def test_a_loaded_model_trains_on(folder):
    loaded = rti.load(folder)
    inputs = make_inputs(loaded.backbone)
    loaded(*inputs, budget=8).square().mean().backward()
    assert loaded.reduction.read.score.grad.any()
    assert all(parameter.grad is None for name, parameter in loaded.named_parameters() if not parameter.requires_grad)


# What is written.


def test_the_files_and_their_keys_are_exact(model, folder, family, source):
    assert files(folder) == FILES
    lora = load_file(folder / "adapter_model.safetensors")
    names = {name for name in model.trainable_parameters() if "lora_" in name}
    renamed = {
        name.replace("backbone.", "base_model.model.", 1).replace(".rti.weight", ".weight"): name for name in names
    }
    assert set(lora) == set(renamed)
    parameters = model.trainable_parameters()
    assert all(torch.equal(lora[key], parameters[name]) for key, name in renamed.items())
    interface = load_file(folder / "interface.safetensors")
    assert set(interface) == {"read.score", "read.size_embedding", "write.g.weight", "write.g.bias"}
    assert all(torch.equal(value, parameters[f"reduction.{key}"]) for key, value in interface.items())

    config = json.loads((folder / "rti_config.json").read_text())
    assert config.pop("rti_version") == rti.__version__
    origin = config.pop("backbone")
    assert (origin["family"], origin["source"]) == (family, {"source": str(source)})
    left_alone = {"text_regions": False, "interface": "learned", "position": "average", "size_embedding": True}
    left_alone |= {"sized_write": False, "sized_attention": False, "one_pass": None}
    assert config == {"reduction": "region"} | left_alone | CONFIG | {"core": list(CORE)}
    written = json.loads((folder / "adapter_config.json").read_text())
    assert (written["peft_type"], written["r"], written["lora_alpha"]) == ("LORA", 3, 6)
    assert written["target_modules"] == sorted(model.backbone.lora_targets)
    card = huggingface_hub.ModelCard.load(folder / "README.md")
    assert "rti" in card.data.tags
    assert "rti.Pipeline.from_pretrained" in card.text
    assert "pypi.org" not in card.text  # no such page yet
    example = {"minit2i": 'pipe("a prompt", ', "jit": "pipe(label=0, "}[family]  # ten classes: 207 is none of them
    assert example in card.text


def test_a_merged_model_saves_the_same(model, folder, tmp_path):
    before = snapshot(model)
    model.fuse()
    model.save_pretrained(tmp_path / "merged")
    for name in FILES:
        assert (tmp_path / "merged" / name).read_bytes() == (folder / name).read_bytes(), name
    assert model.fused
    assert_same_state(model.unfuse(), before)


def test_a_users_lora_is_not_saved(source, tmp_path, family):
    backbone = rti.load_backbone(source)
    targets = ["img_qkv"] if family == "minit2i" else ["attn.qkv"]
    peft.inject_adapter_in_model(peft.LoraConfig(target_modules=targets), backbone, adapter_name="theirs")
    model = rti.attach(backbone, rti.RegionConfig(**CONFIG))
    model.save_pretrained(tmp_path / "adapter")
    plain = rti.attach(make_backbone(family), rti.RegionConfig(**CONFIG))
    expected = {name.replace(".rti.", ".") for name in plain.trainable_parameters() if "lora_" in name}
    saved = load_file(tmp_path / "adapter" / "adapter_model.safetensors")
    assert {key.replace("base_model.model.", "backbone.") for key in saved} == expected


def test_saving_over_an_old_adapter_replaces_it(model, folder):
    (folder / "notes.txt").write_text("mine")
    randomise_trainable(model, seed=1)
    model.save_pretrained(str(folder))
    assert files(folder) == sorted([*FILES, "notes.txt"])
    assert_same_answers(rti.load(folder), answers(model))


def test_a_folder_that_cannot_be_written_is_refused_and_left_alone(model, tmp_path):
    (tmp_path / "file").write_text("in the way")
    for folder in (tmp_path / "file", tmp_path / "file" / "deeper"):
        with refused("cannot write", folder):
            model.save_pretrained(folder)
    assert (tmp_path / "file").read_text() == "in the way"
    assert files(tmp_path) == ["backbone", "file"]


def test_saving_writes_all_files_or_none(model, folder):
    before = {name: (folder / name).read_bytes() for name in FILES if name != "interface.safetensors"}
    (folder / "interface.safetensors").unlink()
    (folder / "interface.safetensors").mkdir()  # cannot be replaced by a file
    randomise_trainable(model, seed=1)
    with refused("cannot write", folder):
        model.save_pretrained(folder)
    assert files(folder) == FILES
    assert {name: (folder / name).read_bytes() for name in before} == before


# PEFT reads it.


@torch.no_grad()
def test_peft_loads_the_lora(model, folder, family):
    """The backbone with PEFT's LoRA alone is our model without its reduction."""
    inputs = make_inputs(model.backbone)
    expected = model.backbone(*inputs)
    plain = make_backbone(family)
    wrapped = peft.PeftModel.from_pretrained(plain, folder)
    assert not torch.equal(make_backbone(family)(*inputs), expected)
    assert_close(wrapped(*inputs), expected)
    assert_close(wrapped.merge_and_unload()(*inputs), expected)


# The hub.


def test_pushing_uploads_the_files(model, folder, monkeypatch):
    calls = []

    class Api:
        def create_repo(self, repository, private, exist_ok):
            calls.append((repository, private, exist_ok))

        def upload_folder(self, repo_id, folder_path, commit_message):
            calls.append((repo_id, commit_message))
            for name in FILES:
                assert (Path(folder_path) / name).read_bytes() == (folder / name).read_bytes(), name
            assert files(Path(folder_path)) == FILES
            return f"https://huggingface.co/{repo_id}/tree/main"

    monkeypatch.setattr(huggingface_hub, "HfApi", Api)
    assert (
        model.push_to_hub("me/adapter", private=True, message="first") == "https://huggingface.co/me/adapter/tree/main"
    )
    assert calls == [("me/adapter", True, True), ("me/adapter", "first")]


@pytest.fixture
def hub(monkeypatch, folder):
    """A hub with one repository, me/adapter; `fetched` lists what was asked of it."""
    fetched = []

    def snapshot_download(repository, allow_patterns=None, **_):
        fetched.append((repository, allow_patterns))
        if repository != "me/adapter":
            raise huggingface_hub.errors.LocalEntryNotFoundError("not there\nnor anywhere")
        return str(folder)

    def hf_hub_download(repository, name, **_):
        fetched.append((repository, [name]))
        if repository != "me/adapter" or name not in FILES:
            raise huggingface_hub.errors.LocalEntryNotFoundError("not there\nnor anywhere")
        return str(folder / name)

    monkeypatch.setattr(huggingface_hub, "snapshot_download", snapshot_download)
    monkeypatch.setattr(huggingface_hub, "hf_hub_download", hf_hub_download)
    return fetched


def test_an_adapter_is_loaded_from_the_hub(hub, model):
    assert_same_answers(rti.load("me/adapter"), answers(model))
    with refused("me/other"):
        rti.load("me/other")


def test_asking_whether_a_repository_is_an_adapter_fetches_no_weights_of_another_kind(hub):
    """A pipeline asks this of every repository, and a repository of backbones holds gigabytes of safetensors."""
    assert adapter_folder("someone/backbone") is None
    patterns = [pattern for _, patterns in hub for pattern in patterns]
    assert patterns
    weights = ["transformer/diffusion_pytorch_model.safetensors", "minit2i-b-16/transformer/model.safetensors"]
    assert list(filter_repo_objects(weights, allow_patterns=patterns)) == []


# What does not fit.


def change_json(name, **changes):
    def change(folder):
        content = json.loads((folder / name).read_text())
        for key, value in changes.items():
            target = content["backbone"] if key in ("family", "source", "sizes") else content
            if value is None:
                del target[key]
            else:
                target[key] = value
        (folder / name).write_text(json.dumps(content))

    return change


def truncate(name):
    def change(folder):
        content = (folder / name).read_bytes()
        (folder / name).write_bytes(content[: len(content) // 2])

    return change


def change_tensors(name, change_state):
    def change(folder):
        state = load_file(folder / name)
        change_state(state)
        save_file(state, folder / name)

    return change


def drop_first(state):
    del state[sorted(state)[0]]


def add_one(state):
    state["base_model.model.unknown.lora_A.weight"] = torch.zeros(1)


def misshape(state):
    key = sorted(state)[0]
    state[key] = torch.zeros(1, 2, 3)


SPOILS = {
    "missing LoRA key": (change_tensors("adapter_model.safetensors", drop_first), "missing"),
    "extra LoRA key": (change_tensors("adapter_model.safetensors", add_one), "extra unknown.lora_A.weight"),
    "misshapen LoRA": (change_tensors("adapter_model.safetensors", misshape), "(1, 2, 3)"),
    "missing interface key": (change_tensors("interface.safetensors", drop_first), "missing read.score"),
    "misshapen interface": (change_tensors("interface.safetensors", misshape), "(1, 2, 3)"),
    "truncated LoRA": (truncate("adapter_model.safetensors"), "adapter_model.safetensors"),
    "truncated interface": (truncate("interface.safetensors"), "interface.safetensors"),
    "truncated config": (truncate("rti_config.json"), "rti_config.json"),
    "no LoRA": (lambda folder: (folder / "adapter_model.safetensors").unlink(), "adapter_model.safetensors"),
    "no interface": (lambda folder: (folder / "interface.safetensors").unlink(), "interface.safetensors"),
    "no config": (lambda folder: (folder / "rti_config.json").unlink(), "rti_config.json"),
    "rank of all memory": (change_json("rti_config.json", lora_rank=10**7), "10000000"),
    "no sizes": (change_json("rti_config.json", sizes=None), "sizes"),
    "sizes of another kind": (change_json("rti_config.json", sizes=[1]), "sizes"),
    "reduction of another kind": (change_json("rti_config.json", reduction=["region"]), "['region']"),
    "other rank": (change_json("rti_config.json", lora_rank=5), "lora_rank is 5"),
    "other family": (change_json("rti_config.json", family="other"), "other"),
    "unknown reduction": (change_json("rti_config.json", reduction="other"), "'other'"),
    "unknown field": (change_json("rti_config.json", more=1), "more"),
    "no core": (change_json("rti_config.json", core=None), "core"),
    "core outside": (change_json("rti_config.json", core=[1, 9]), "(1, 9)"),
    "size prior as text": (change_json("rti_config.json", size_prior="much"), "much"),
}


@pytest.mark.parametrize("family", ["jit"])
@pytest.mark.parametrize("spoil", SPOILS)
def test_an_adapter_that_does_not_fit_is_refused_and_the_backbone_left_as_it_was(folder, family, spoil):
    change, fragment = SPOILS[spoil]
    change(folder)
    backbone = make_backbone(family)
    state, grad = snapshot(backbone), [p.requires_grad for p in backbone.parameters()]
    classes = [type(module) for module in backbone.modules()]
    with refused(fragment):
        rti.load(folder, backbone)
    assert not backbone.attached
    assert not hasattr(backbone, "peft_config")
    assert [type(module) for module in backbone.modules()] == classes
    assert [p.requires_grad for p in backbone.parameters()] == grad
    assert_same_state(backbone, state)


@pytest.mark.parametrize("family", ["jit"])
@pytest.mark.parametrize("garbled", ["text", {"source": 3}, {"from": "x"}, {"source": "x", "more": 1}])
def test_an_adapter_whose_source_is_garbled_is_refused(folder, garbled):
    change_json("rti_config.json", source=garbled)(folder)
    with refused():
        rti.load(folder)


def test_an_adapter_that_does_not_know_its_backbone_asks_for_one(family, tmp_path):
    model = randomise_trainable(rti.attach(make_backbone(family), rti.RegionConfig(**CONFIG))).eval()
    model.save_pretrained(tmp_path)
    with refused(tmp_path, "backbone="):
        rti.load(tmp_path)
    assert_same_answers(rti.load(tmp_path, make_backbone(family)), answers(model))


@pytest.mark.parametrize(
    ("family", "other", "fragments"),
    [
        ("minit2i", ("jit", {}), ("minit2i", "jit")),
        ("jit", ("minit2i", {}), ("minit2i", "jit")),
        ("minit2i", ("minit2i", dict(depth_double=5)), ("depth_double 4", "5")),
        ("minit2i", ("minit2i", dict(image_size=40)), ("image_size 32", "40")),
        ("minit2i", ("minit2i", dict(head_dim=20)), ("lora",)),
        ("jit", ("jit", dict(hidden_size=48)), ("hidden_size 32", "48")),
        ("jit", ("jit", dict(input_size=[32, 36])), ("input_size 32", "36")),
    ],
)
def test_a_backbone_that_does_not_fit_is_refused_and_left_as_it_was(folder, other, fragments):
    family, changes = other
    backbone = make_backbone(family, **changes)
    state = snapshot(backbone)
    with refused(*fragments):
        rti.load(folder, backbone)
    assert not backbone.attached
    assert not hasattr(backbone, "peft_config")
    assert_same_state(backbone, state)


def test_an_attached_backbone_and_an_unknown_module_are_refused(folder, model):
    state = snapshot(model)
    with refused("already", "detach"):
        rti.load(folder, model.backbone)
    with refused("already", "detach"):
        rti.load(folder, model)
    assert_same_state(model, state)
    with refused("Linear"):
        rti.load(folder, torch.nn.Linear(2, 2))


@pytest.mark.parametrize("name", ["nowhere", "file.txt", "./a/b", ""])
def test_what_is_no_adapter_is_refused(tmp_path, monkeypatch, name):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "file.txt").write_text("")
    with refused("rti_config.json"):
        rti.load(name)


@pytest.mark.parametrize("name", ["a" * 300, "a" * 5000, "~nouser-at-all/x", "a\0b", 64, None])
def test_what_can_be_no_name_is_refused(name):
    for load in (rti.load, rti.load_backbone, rti.Pipeline.from_pretrained):
        with refused("no name of a file"):
            load(name)


def test_pushing_without_a_network_is_one_line(model, monkeypatch):
    class Api:
        def create_repo(self, *_, **__):
            raise RuntimeError("no route to the hub\nat all")

    monkeypatch.setattr(huggingface_hub, "HfApi", Api)
    with refused("me/adapter", "no route to the hub"):
        model.push_to_hub("me/adapter")


@dataclass(frozen=True)
class NestedConfig(ReductionConfig):
    name = "nested"


class Nested(DenseReduction):
    """A reduction of a user's own, all of whose parameters lie under one name."""

    def __init__(self, config, backbone):
        super().__init__(config, backbone)
        self.net = torch.nn.Linear(2, 2)


@pytest.mark.parametrize("child", ["net", "model", "module"])
def test_the_names_of_a_users_parameters_are_their_own(backbone, tmp_path, monkeypatch, child):
    """Backbones come in wrappers of these names, which are taken off; an adapter has none."""
    monkeypatch.setitem(REDUCTIONS, "nested", (NestedConfig, Nested))
    model = rti.attach(backbone, NestedConfig(core=CORE, lora_rank=1))
    model.reduction._modules = {child: model.reduction.net}
    model.save_pretrained(tmp_path)
    assert set(load_file(tmp_path / "interface.safetensors")) == {f"{child}.weight", f"{child}.bias"}
    model.reduction.state_dict()[f"{child}.bias"].fill_(7.0)
    load_weights(model, tmp_path)
    assert not (model.reduction.state_dict()[f"{child}.bias"] == 7.0).any()


def test_an_adapter_without_text_regions_may_be_the_start_of_one_with_them(tmp_path):
    start = randomise_trainable(rti.attach(make_backbone("minit2i"), rti.RegionConfig(core=CORE, lora_rank=2)))
    start.save_pretrained(tmp_path)
    model = rti.attach(make_backbone("minit2i"), rti.RegionConfig(core=CORE, lora_rank=2, text_regions=True))
    fresh = {name: value.clone() for name, value in model.reduction.state_dict().items() if name.startswith("text.")}
    load_weights(model, tmp_path)
    values, before = model.reduction.state_dict(), start.reduction.state_dict()
    assert all(torch.equal(values[name], before[name]) for name in before)
    assert fresh and all(torch.equal(values[name], fresh[name]) for name in fresh)
