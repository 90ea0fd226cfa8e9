"""Prompts to text states: by a frozen T5 encoder from transformers, or by a checkpoint's own words."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Protocol

import torch

from rti.backbones.base import Backbone
from rti.errors import InputError
from rti.files import in_one_line, local_path, read_json
from rti.shipped import find_shipped
from rti.text.words import WORDS, WordEncoder


class TextEncoder(Protocol):
    """What a pipeline needs of a text encoder. `length` is the padded length.

    `lenient` leaves out words it does not know, with a warning. It is given only where a user asks for it.
    """

    def __call__(self, prompts: Sequence[str], length: int, lenient: bool = False) -> tuple[torch.Tensor, torch.Tensor]:
        """Prompts -> states (B, length, C) and mask (B, length)."""
        ...


def text_encoder_of(backbone: Backbone) -> Path | str | None:
    """Where a backbone's text encoder is: beside its checkpoint, or else where its config says."""
    name = str((backbone.source or {}).get("source", ""))
    source = find_shipped(name) or Path(name)
    if (source / "text_encoder").is_dir():
        return source
    return getattr(backbone.config, "llm", None)


def load_text_encoder(
    source: str | Path, dtype: torch.dtype = torch.float32, device: str | torch.device = "cpu"
) -> TextEncoder:
    """The text encoder of a checkpoint folder, whichever kind it is, or a T5 by its name on the hub."""
    config = local_path(source) / "text_encoder" / "config.json"
    if config.is_file() and read_json(config).get("kind") == WORDS:
        with in_one_line(f"cannot load the text encoder {source}"):
            return WordEncoder.from_pretrained(config.parent).to(device, dtype)
    return T5TextEncoder.from_pretrained(source, dtype, device)


class T5TextEncoder:
    """The encoder half of a (FLAN-)T5, as MiniT2I uses it: padded to a fixed length, longer prompts truncated."""

    def __init__(self, tokenizer, encoder):
        self.tokenizer, self.encoder = tokenizer, encoder

    @classmethod
    def from_pretrained(
        cls, source: str | Path, dtype: torch.dtype = torch.float32, device: str | torch.device = "cpu"
    ) -> T5TextEncoder:
        """From the hub, or from a folder: a T5, or a pipeline's with `text_encoder` and `tokenizer` in it."""
        from transformers import AutoTokenizer, T5EncoderModel

        folder = local_path(source)
        encoder = tokenizer = folder if folder.is_dir() else source
        if folder.exists() and not folder.is_dir():
            raise InputError(f"text encoder {source} is a file; allowed: a folder, or a name on the hub")
        if (folder / "text_encoder").is_dir():
            encoder, tokenizer = folder / "text_encoder", folder / "tokenizer"
        with in_one_line(f"cannot load the text encoder {source}"):
            model = T5EncoderModel.from_pretrained(encoder, use_safetensors=True).to(device, dtype).eval()
            return cls(AutoTokenizer.from_pretrained(tokenizer), model)

    def to(self, device: str | torch.device) -> T5TextEncoder:
        self.encoder.to(device)
        return self

    @torch.no_grad()
    def __call__(self, prompts: Sequence[str], length: int, lenient: bool = False) -> tuple[torch.Tensor, torch.Tensor]:
        """Every word is known, piece by piece: `lenient` changes nothing."""
        tokens = self.tokenizer(
            list(prompts), padding="max_length", truncation=True, max_length=length, return_tensors="pt"
        ).to(self.encoder.device)
        states = self.encoder(input_ids=tokens.input_ids, attention_mask=tokens.attention_mask).last_hidden_state
        return states, tokens.attention_mask.bool()
