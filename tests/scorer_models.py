"""Small random scorers, saved in the layouts of the real ones; and prompts in GenEval's format, made up here."""

import json
from itertools import pairwise
from pathlib import Path

import numpy as np
import torch

# One prompt for each of GenEval's tasks, none of them GenEval's own.
LINES = [
    {"tag": "single_object", "include": [{"class": "dog", "count": 1}], "prompt": "a single dog"},
    {
        "tag": "two_object",
        "include": [{"class": "dog", "count": 1}, {"class": "kite", "count": 1}],
        "prompt": "a dog and a kite",
    },
    {
        "tag": "counting",
        "include": [{"class": "cup", "count": 2}],
        "exclude": [{"class": "cup", "count": 3}],
        "prompt": "two cups",
    },
    {"tag": "colors", "include": [{"class": "car", "count": 1, "color": "red"}], "prompt": "a red car"},
    {
        "tag": "position",
        "include": [{"class": "cat", "count": 1}, {"class": "bus", "count": 1, "position": ["left of", 0]}],
        "prompt": "a bus left of a cat",
    },
    {
        "tag": "color_attr",
        "include": [{"class": "bed", "count": 1, "color": "blue"}, {"class": "tie", "count": 1, "color": "pink"}],
        "prompt": "a blue bed and a pink tie",
    },
]


def write_lines(path: Path) -> Path:
    path.write_text("".join(json.dumps(line) + "\n" for line in LINES), encoding="utf-8")
    return path


def save_clip(folder: Path, seed: int = 0) -> Path:
    """A CLIP of two layers with a byte-level tokenizer of CLIP's own class."""
    from transformers import CLIPConfig, CLIPModel, CLIPTokenizer

    characters = [chr(code) for code in range(33, 127)]
    words = ["<|startoftext|>", "<|endoftext|>", *characters, *(f"{one}</w>" for one in characters)]
    tokenizer = CLIPTokenizer(vocab={word: index for index, word in enumerate(words)}, merges=[])
    tokenizer.save_pretrained(folder)
    tower = dict(hidden_size=16, intermediate_size=24, num_hidden_layers=2, num_attention_heads=2)
    config = CLIPConfig(
        text_config=tower | dict(vocab_size=len(words), max_position_embeddings=77, bos_token_id=0, eos_token_id=1),
        vision_config=tower | dict(image_size=32, patch_size=8),
        projection_dim=12,
    )
    torch.manual_seed(seed)
    model = CLIPModel(config)
    with torch.no_grad():
        for parameter in model.parameters():  # else its biases are all zero and its vectors nearly alike
            parameter += 0.3 * torch.randn_like(parameter)
        model.visual_projection.weight.neg_()  # with seed 0 all pictures then agree a little with all texts
        model.logit_scale.fill_(3.2)
    model.save_pretrained(folder)
    return folder


def save_mask2former(folder: Path, seed: int = 0, labels: int = 80) -> Path:
    from transformers import Mask2FormerConfig, Mask2FormerForUniversalSegmentation, SwinConfig

    stages = [f"stage{number}" for number in (1, 2, 3, 4)]
    swin = SwinConfig(
        image_size=32, embed_dim=8, depths=[1] * 4, num_heads=[1, 1, 2, 2], window_size=4, out_features=stages
    )
    config = Mask2FormerConfig(
        backbone_config=swin,
        feature_size=32,
        mask_feature_size=32,
        hidden_dim=32,
        encoder_feedforward_dim=16,
        encoder_layers=1,
        decoder_layers=2,
        num_attention_heads=2,
        dim_feedforward=16,
        num_queries=10,
        num_labels=labels,
    )
    torch.manual_seed(seed)
    Mask2FormerForUniversalSegmentation(config).save_pretrained(folder)
    return folder


REWARD = dict(vision=64, vision_inner=40, vision_layers=2, patch=8, places=17, projection=24)
REWARD |= dict(text=32, inner=48, text_layers=2, heads=2, words=60, positions=40)
PUBLISHED = dict(vision=1024, vision_inner=4096, vision_layers=24, patch=16, places=197, projection=256)
PUBLISHED |= dict(text=768, inner=3072, text_layers=12, heads=12, words=30524, positions=512)


SMALL_VISION = dict(hidden_size=64, intermediate_size=40, num_hidden_layers=2, num_attention_heads=1, patch_size=8)
SMALL_VISION |= dict(image_size=32, hidden_act="gelu", layer_norm_eps=1e-6)  # of REWARD, in place of BLIP's ViT-L/16


def reward_shapes(sizes: dict[str, int] = REWARD) -> dict[str, tuple[int, ...]]:
    """Every weight of ImageReward.pt by its published name."""
    wide, inner, text, positions = sizes["vision"], sizes["inner"], sizes["text"], sizes["positions"]
    shapes: dict[str, tuple[int, ...]] = {}

    def linear(name: str, out: int, into: int) -> None:
        shapes[f"{name}.weight"], shapes[f"{name}.bias"] = (out, into), (out,)

    def norm(name: str, size: int) -> None:
        shapes[f"{name}.weight"], shapes[f"{name}.bias"] = (size,), (size,)

    eyes, words = "blip.visual_encoder", "blip.text_encoder"
    shapes[f"{eyes}.cls_token"], shapes[f"{eyes}.pos_embed"] = (1, 1, wide), (1, sizes["places"], wide)
    shapes[f"{eyes}.patch_embed.proj.weight"] = (wide, 3, sizes["patch"], sizes["patch"])
    shapes[f"{eyes}.patch_embed.proj.bias"] = (wide,)
    for layer in range(sizes["vision_layers"]):
        block = f"{eyes}.blocks.{layer}"
        norm(f"{block}.norm1", wide), norm(f"{block}.norm2", wide)
        linear(f"{block}.attn.qkv", 3 * wide, wide), linear(f"{block}.attn.proj", wide, wide)
        linear(f"{block}.mlp.fc1", sizes["vision_inner"], wide)
        linear(f"{block}.mlp.fc2", wide, sizes["vision_inner"])
    norm(f"{eyes}.norm", wide)
    shapes[f"{words}.embeddings.position_ids"] = (1, positions)
    shapes[f"{words}.embeddings.word_embeddings.weight"] = (sizes["words"], text)
    shapes[f"{words}.embeddings.position_embeddings.weight"] = (positions, text)
    norm(f"{words}.embeddings.LayerNorm", text)
    for layer in range(sizes["text_layers"]):
        block = f"{words}.encoder.layer.{layer}"
        for attention, source in (("attention", text), ("crossattention", wide)):
            linear(f"{block}.{attention}.self.query", text, text)
            linear(f"{block}.{attention}.self.key", text, source)
            linear(f"{block}.{attention}.self.value", text, source)
            linear(f"{block}.{attention}.output.dense", text, text)
            norm(f"{block}.{attention}.output.LayerNorm", text)
        linear(f"{block}.intermediate.dense", inner, text), linear(f"{block}.output.dense", text, inner)
        norm(f"{block}.output.LayerNorm", text)
    linear("blip.vision_proj", sizes["projection"], wide), linear("blip.text_proj", sizes["projection"], text)
    for number, (into, out) in zip((0, 2, 4, 6, 7), pairwise((text, 1024, 128, 64, 16, 1)), strict=True):
        linear(f"mlp.layers.{number}", out, into)
    return shapes


def reward_state(seed: int = 0) -> dict[str, torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    state = {}
    for name, shape in reward_shapes().items():
        value = torch.randn(shape, generator=generator)
        if name.endswith("position_ids"):
            value = torch.arange(shape[1])[None]
        elif name.endswith(".weight") and len(shape) == 1:
            value = 1 + 0.2 * value
        elif len(shape) > 1:
            value = value / value[0].numel() ** 0.5
        state[name] = value
    return state


def med_config(sizes: dict[str, int] = REWARD) -> dict:
    return {
        "architectures": ["BertModel"],
        "hidden_size": sizes["text"],
        "num_attention_heads": sizes["heads"],
        "num_hidden_layers": sizes["text_layers"],
        "intermediate_size": sizes["inner"],
        "vocab_size": sizes["words"],
        "max_position_embeddings": sizes["positions"],
        "hidden_act": "gelu",
        "layer_norm_eps": 1e-12,
        "hidden_dropout_prob": 0.1,
        "encoder_width": 768,
        "add_cross_attention": True,
    }


def save_image_reward(folder: Path, seed: int = 0) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    torch.save(reward_state(seed), folder / "ImageReward.pt")
    (folder / "med_config.json").write_text(json.dumps(med_config()))
    return folder


def save_bert_tokenizer(folder: Path) -> Path:
    from transformers import BertTokenizer

    words = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "a", "red", "blue", "pink", "two", "and", "left", "of"]
    words += [chr(code) for code in range(97, 123) if chr(code) != "a"] + ["##" + chr(code) for code in range(97, 117)]
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "vocab.txt").write_text("\n".join(words) + "\n")
    BertTokenizer(str(folder / "vocab.txt")).save_pretrained(folder)
    return folder


def random_pixels(height: int, width: int, seed: int) -> np.ndarray:
    """Smooth enough that resizing matters, different in every part."""
    rng = np.random.default_rng(seed)
    coarse = rng.integers(0, 256, (max(height // 4, 1), max(width // 4, 1), 3)).astype(np.uint8)
    return np.kron(coarse, np.ones((4, 4, 1), np.uint8))[:height, :width]
