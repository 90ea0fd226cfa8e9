"""CLIPScore, PickScore and ImageReward on small random models, against plain references."""

import math

import numpy as np
import pytest
import torch
from PIL import Image
from torch.nn import functional

from rti.lab.pictures.folder import Entry, PictureFolder
from rti.lab.pictures.scorers.clip import Clip, ClipScorer, PickScorer, clip_pixels
from rti.lab.pictures.scorers.imagereward import ImageReward, convert
from rti.lab.pictures.scorers.results import Score, prompt_means, score_folder
from scorer_models import (
    PUBLISHED,
    REWARD,
    SMALL_VISION,
    med_config,
    random_pixels,
    reward_shapes,
    reward_state,
    save_bert_tokenizer,
    save_clip,
    save_image_reward,
)
from tiny import refused

PROMPTS = ["a red car", "two blue cats and a dog, left of it: 7", "x", "a very long prompt " * 30]
SIZES = [(64, 64), (32, 48), (100, 52), (40, 40)]  # with an even margin, where the two rules of cropping agree


@pytest.fixture(scope="module")
def pictures():
    return [Image.fromarray(random_pixels(*size, seed)) for seed, size in enumerate(SIZES)]


def entries(prompts=PROMPTS):
    return [Entry(index, prompt, None, (f"{index}.png",), (index,)) for index, prompt in enumerate(prompts)]


@pytest.fixture(scope="module")
def clip_folder(tmp_path_factory):
    return save_clip(tmp_path_factory.mktemp("clip"))


def plain_cosines(folder, pictures, prompts):
    """Picture and text towers one example at a time, with the library's own processor."""
    from transformers import AutoTokenizer, CLIPImageProcessorPil, CLIPModel

    model = CLIPModel.from_pretrained(folder).eval()
    tokenizer = AutoTokenizer.from_pretrained(folder)
    processor = CLIPImageProcessorPil(size={"shortest_edge": 32}, crop_size={"height": 32, "width": 32})
    values = []
    for picture, prompt in zip(pictures, prompts, strict=True):
        tokens = tokenizer(prompt).input_ids
        tokens = tokens if len(tokens) <= 77 else [*tokens[:76], tokens[-1]]
        with torch.no_grad():
            words = model.text_projection(model.text_model(torch.tensor([tokens])).pooler_output)[0]
            pixels = torch.as_tensor(np.array(processor(picture).pixel_values[0]))[None]
            seen = model.visual_projection(model.vision_model(pixels).pooler_output)[0]
        values.append(float(words @ seen) / math.sqrt(float(words @ words) * float(seen @ seen)))
    return values, model.logit_scale.item()


def test_clip_score_equals_a_plain_reference(clip_folder, pictures):
    scores = [row["score"] for row in ClipScorer.load(str(clip_folder))(pictures, entries())]
    cosines, _ = plain_cosines(clip_folder, pictures, PROMPTS)
    assert scores == pytest.approx([max(100 * value, 0.0) for value in cosines], abs=1e-3)
    assert min(scores) > 0 and len({round(score, 1) for score in scores}) == 4


def test_clip_score_is_never_negative(clip_folder, pictures):
    for kind, largest in ((ClipScorer, 0.0), (PickScorer, -1e-6)):
        scorer = kind.load(str(clip_folder))
        with torch.no_grad():
            scorer.model.visual_projection.weight.neg_()
        scores = [row["score"] for row in scorer(pictures, entries())]
        assert max(scores) <= largest
        assert min(scores) == 0 or kind is PickScorer


def test_pick_score_equals_a_plain_reference_with_a_tokenizer_from_elsewhere(clip_folder, pictures, tmp_path):
    for name in ("config.json", "model.safetensors"):
        (tmp_path / name).write_bytes((clip_folder / name).read_bytes())
    scorer = PickScorer.load(str(tmp_path), tokenizer=str(clip_folder))
    scores = [row["score"] for row in scorer(pictures, entries())]
    cosines, scale = plain_cosines(clip_folder, pictures, PROMPTS)
    assert scale == pytest.approx(3.2)
    assert scores == pytest.approx([math.exp(3.2) * value for value in cosines], abs=1e-4)


def test_scores_do_not_depend_on_the_batch(clip_folder, pictures):
    scorer = PickScorer.load(str(clip_folder))
    together = [row["score"] for row in scorer(pictures, entries())]
    apart = [scorer([picture], [entry])[0]["score"] for picture, entry in zip(pictures, entries(), strict=True)]
    assert apart == pytest.approx(together, abs=1e-4)


def test_pictures_are_prepared_as_the_librarys_processor_does(pictures):
    from transformers import CLIPImageProcessorPil

    for size in (224, 32):
        processor = CLIPImageProcessorPil(size={"shortest_edge": size}, crop_size={"height": size, "width": size})
        ours = clip_pixels(pictures, size)
        assert ours.shape == (4, 3, size, size)
        for index in (0, 1, 3):
            theirs = torch.as_tensor(np.array(processor(pictures[index]).pixel_values[0]))
            torch.testing.assert_close(ours[index], theirs, atol=2e-5, rtol=0)


def test_labels_have_no_score_against_a_text(clip_folder, pictures):
    with refused("prompt 0", "207"):
        ClipScorer.load(str(clip_folder))(pictures[:1], entries([207]))


def test_a_model_of_another_kind_is_refused(tmp_path, clip_folder):
    from transformers import BertConfig, BertModel

    BertModel(
        BertConfig(hidden_size=8, num_hidden_layers=1, num_attention_heads=1, intermediate_size=8)
    ).save_pretrained(tmp_path)
    with refused(tmp_path):
        Clip.load(str(tmp_path))
    with refused("cannot load", "no/model"):
        Clip.load("no/model")


# ImageReward.


@pytest.fixture
def small(monkeypatch):
    monkeypatch.setattr("rti.lab.pictures.scorers.imagereward.VISION", SMALL_VISION)


def attend(q, k, v, heads, allowed=None):
    """Plain attention: (L, D), (M, D), (M, D) -> (L, D)."""
    parts = []
    for query, key, value in zip(*(x.chunk(heads, dim=-1) for x in (q, k, v)), strict=True):
        weights = query @ key.T / query.shape[-1] ** 0.5
        if allowed is not None:
            weights = weights.masked_fill(~allowed, float("-inf"))
        parts.append(weights.softmax(dim=-1) @ value)
    return torch.cat(parts, dim=-1)


def plain_reward(state, pixels, tokens, mask):
    """ImageReward of one picture and prompt, from the published names: BLIP's ViT, BERT with cross attention, MLP."""

    def linear(name, x):
        return x @ state[f"{name}.weight"].T + state[f"{name}.bias"]

    def norm(name, x, eps):
        return functional.layer_norm(x, x.shape[-1:], state[f"{name}.weight"], state[f"{name}.bias"], eps)

    eyes, words, patch = "blip.visual_encoder", "blip.text_encoder", REWARD["patch"]
    rows = []
    for top in range(0, pixels.shape[1], patch):
        for left in range(0, pixels.shape[2], patch):
            square = pixels[:, top : top + patch, left : left + patch].flatten()
            rows.append(state[f"{eyes}.patch_embed.proj.weight"].flatten(1) @ square)
    x = torch.stack(rows) + state[f"{eyes}.patch_embed.proj.bias"]
    x = torch.cat([state[f"{eyes}.cls_token"][0], x]) + state[f"{eyes}.pos_embed"][0]
    for layer in range(REWARD["vision_layers"]):
        block = f"{eyes}.blocks.{layer}"
        q, k, v = linear(f"{block}.attn.qkv", norm(f"{block}.norm1", x, 1e-6)).chunk(3, dim=-1)
        x = x + linear(f"{block}.attn.proj", attend(q, k, v, heads=1))
        inner = functional.gelu(linear(f"{block}.mlp.fc1", norm(f"{block}.norm2", x, 1e-6)))
        x = x + linear(f"{block}.mlp.fc2", inner)
    picture = norm(f"{eyes}.norm", x, 1e-6)
    y = state[f"{words}.embeddings.word_embeddings.weight"][tokens]
    y = y + state[f"{words}.embeddings.position_embeddings.weight"][: len(tokens)]
    y = norm(f"{words}.embeddings.LayerNorm", y, 1e-12)
    for layer in range(REWARD["text_layers"]):
        block = f"{words}.encoder.layer.{layer}"
        for attention, source, allowed in (("attention", None, mask), ("crossattention", picture, None)):
            source = y if source is None else source
            q, k, v = (
                linear(f"{block}.{attention}.self.{name}", some)
                for name, some in (("query", y), ("key", source), ("value", source))
            )
            update = linear(f"{block}.{attention}.output.dense", attend(q, k, v, REWARD["heads"], allowed))
            y = norm(f"{block}.{attention}.output.LayerNorm", y + update, 1e-12)
        inner = functional.gelu(linear(f"{block}.intermediate.dense", y))
        y = norm(f"{block}.output.LayerNorm", y + linear(f"{block}.output.dense", inner), 1e-12)
    z = y[0]
    for number in (0, 2, 4, 6, 7):
        z = linear(f"mlp.layers.{number}", z)
    return (float(z) - 0.16717362830052426) / 1.0333394966054072


def test_the_conversion_maps_every_key_and_nothing_is_left_over(small):
    state = reward_state()
    converted = convert(state)
    model = ImageReward.from_state(state, med_config(), "here")
    expected = model.state_dict()
    assert converted.keys() == expected.keys()
    assert all(converted[key].shape == expected[key].shape for key in expected)
    unused = {f"blip.{name}_proj.{kind}" for name in ("vision", "text") for kind in ("weight", "bias")}
    unused |= {"blip.text_encoder.embeddings.position_ids"}
    assert len(converted) == len(state) - len(unused)
    assert unused <= set(reward_shapes())
    used = [id(value) for key, value in state.items() if key not in unused]
    assert sorted(used) == sorted(id(value) for value in converted.values())  # each once


def test_the_conversion_fits_the_published_sizes():
    """Without memory for them: a ViT-L/16 of 16 heads for 224 pixels, and BERT's base with attention to it."""
    with torch.device("meta"):
        state = {name: torch.empty(shape) for name, shape in reward_shapes(PUBLISHED).items()}
        model = ImageReward.from_state(state, med_config(PUBLISHED), "here")
    vision, text = model.vision.config, model.text.config
    assert (vision.num_attention_heads, vision.image_size, vision.layer_norm_eps) == (16, 224, 1e-6)
    assert (text.num_attention_heads, text.encoder_hidden_size, text.layer_norm_eps) == (12, 1024, 1e-12)
    assert len(model.state_dict()) == len(state) - 5


def test_a_key_that_is_unknown_or_missing_is_refused(small):
    for name in ("blip.visual_encoder.blocks.0.attn.rope", "decoder.weight"):
        with refused("there.pt", f"extra {name}"):
            ImageReward.from_state(reward_state() | {name: torch.zeros(1)}, med_config(), "there.pt")
    state = reward_state()
    del state["blip.text_encoder.encoder.layer.1.crossattention.self.key.bias"]
    with refused("there.pt", "missing text.encoder.layer.1.crossattention.self.key.bias"):
        ImageReward.from_state(state, med_config(), "there.pt")
    with refused("there.pt"):
        ImageReward.from_state({}, med_config(), "there.pt")


def test_image_reward_equals_a_plain_reference_from_its_published_weights(small, tmp_path, pictures):
    scorer = ImageReward.load(str(save_image_reward(tmp_path / "model")), str(save_bert_tokenizer(tmp_path / "words")))
    prompts = ["a red car", "two blue kites and a pink tie left of a bed", "z", "a b c d e f g " * 10]
    scores = [row["score"] for row in scorer(pictures, entries(prompts))]
    expected = []
    for picture, prompt in zip(pictures, prompts, strict=True):
        tokens = scorer.tokenizer(prompt).input_ids
        tokens = tokens if len(tokens) <= 35 else [*tokens[:34], tokens[-1]]
        assert tokens[0] == 2  # [CLS]
        mask = torch.arange(35) < len(tokens)
        padded = torch.tensor(tokens + [0] * (35 - len(tokens)))
        expected.append(plain_reward(reward_state(), clip_pixels([picture], 32)[0], padded, mask))
    assert scores == pytest.approx(expected, abs=1e-4)
    assert max(scores) - min(scores) > 1e-3


def test_weights_that_would_run_code_are_refused(small, tmp_path):
    import pickle

    class Evil:
        def __reduce__(self):
            return print, ("run",)

    save_image_reward(tmp_path / "model")
    (tmp_path / "model" / "ImageReward.pt").write_bytes(pickle.dumps({"mlp.layers.0.weight": Evil()}))
    save_bert_tokenizer(tmp_path / "words")
    with refused("ImageReward.pt"):
        ImageReward.load(str(tmp_path / "model"), str(tmp_path / "words"))
    with refused("nowhere", "hub"):
        ImageReward.load("./nowhere", str(tmp_path / "words"))


# What is found in a folder.


def make_folder(tmp_path, prompts, images=2):
    """A folder with a manifest, and pictures whose brightness is ten times the prompt's index plus the number."""
    found = []
    for index, (prompt, group) in enumerate(prompts):
        files = tuple(f"{index}-{number}.png" for number in range(images))
        for number, file in enumerate(files):
            Image.new("RGB", (4, 4), (10 * index + number,) * 3).save(tmp_path / file)
        found.append(Entry(index, prompt, group, files, tuple(range(images))))
    return PictureFolder(tmp_path, {"prompts": {}}, tuple(found))


def brightness(pictures, entries):
    return [{"score": picture.getpixel((0, 0))[0]} for picture in pictures]


def shares(pictures, entries):
    return [{"score": row["score"] / 100} for row in brightness(pictures, entries)]


def test_scores_are_means_over_prompts_with_their_groups(tmp_path):
    folder = make_folder(tmp_path, [("a", "x"), ("b", "x"), ("c", "y")])
    score = score_folder(folder, "clip", brightness, {"model": "m"}, batch=4, progress=False)
    assert [row["score"] for row in score.pictures] == [0, 1, 10, 11, 20, 21]
    assert [row["file"] for row in score.pictures] == [file for entry in folder.entries for file in entry.files]
    assert prompt_means(folder.entries, score.pictures).tolist() == [0.5, 10.5, 20.5]
    assert score.summary["score"] == pytest.approx(10.5)
    assert score.summary["groups"] == {"x": 5.5, "y": 20.5}
    assert (score.summary["pictures"], score.summary["prompts"]) == (6, 3)
    by_group = score_folder(folder, "geneval", shares, {}, by_group=True, progress=False)
    assert by_group.summary["score"] == pytest.approx((0.055 + 0.205) / 2)


def test_a_score_is_read_back_as_it_was_written(tmp_path):
    folder = make_folder(tmp_path, [("a", None), ("b", None)])
    score = score_folder(folder, "pick", brightness, {"model": "m"}, progress=False)
    assert score.write(tmp_path) == tmp_path / "scores" / "pick.json"
    assert Score.read(tmp_path / "scores" / "pick.json") == score
    (tmp_path / "scores" / "clip.json").write_text("{}")
    with refused("clip.json"):
        Score.read(tmp_path / "scores" / "clip.json")
    with refused("prompt 1"):
        prompt_means(folder.entries, score.pictures[:2])
    with refused("batch", "0"):
        score_folder(folder, "pick", brightness, {}, batch=0)
