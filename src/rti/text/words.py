"""The scenes world's own text encoder: one learned vector per word. Order and context are left to the backbone."""

from __future__ import annotations

import json
import warnings
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch
from safetensors.torch import load_file, save_file
from torch import nn

from rti.errors import InputError
from rti.files import read_json, whole_file, write_whole
from rti.text.vocabulary import VOCABULARY, encode, words_of

WORDS = "rti-words"  # what a config calls this kind of encoder


class WordEncoder(nn.Module):
    """Captions in the world's vocabulary -> states (B, T, C) and mask (B, T)."""

    def __init__(self, width: int):
        super().__init__()
        self.embedding = nn.Embedding(len(VOCABULARY), width)

    def forward(self, prompts: Sequence[str], length: int, lenient: bool = False) -> tuple[torch.Tensor, torch.Tensor]:
        """Unknown words are an error; with `lenient` they are left out, and a warning names them."""
        return self.embed(self.ids(prompts, length, lenient))

    def ids(self, prompts: Sequence[str], length: int, lenient: bool = False) -> torch.Tensor:
        """The words of captions as ids (B, T), 0 for no word."""
        encoded = np.stack([encode(prompt, length, lenient) for prompt in prompts])
        if unknown := dict.fromkeys(word for prompt in prompts for word in words_of(prompt)[1]):
            warnings.warn(f"unknown words left out: {', '.join(unknown)}", stacklevel=3)
        return torch.from_numpy(encoded).to(self.embedding.weight.device)

    def embed(self, ids: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Word ids (B, T), 0 for no word -> states (B, T, C) and mask (B, T)."""
        return self.embedding(ids), ids != 0

    def save_pretrained(self, folder: str | Path, values: dict[str, torch.Tensor] | None = None) -> None:
        """Write it to a folder; `values` are its tensors where they are not its own, such as an average's."""
        folder = Path(folder)
        state = {name: value.detach().contiguous() for name, value in (values or self.state_dict()).items()}
        with whole_file(folder / "model.safetensors") as path:
            save_file(state, path)
        config = {"kind": WORDS, "width": self.embedding.embedding_dim, "words": list(VOCABULARY)}
        write_whole(folder / "config.json", json.dumps(config, indent=2) + "\n")

    @classmethod
    def from_pretrained(cls, folder: str | Path) -> WordEncoder:
        folder = Path(folder)
        config = read_json(folder / "config.json")
        if config.get("kind") != WORDS or tuple(config.get("words", ())) != VOCABULARY:
            raise InputError(f"{folder} was made for another vocabulary than this version of rti has")
        encoder = cls(config["width"])
        encoder.load_state_dict(load_file(folder / "model.safetensors"))
        return encoder.eval().requires_grad_(False)
