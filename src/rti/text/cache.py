"""Text states computed once: a folder that answers in place of the frozen text encoder while a model trains.

cache.json                which encoder, its width, the padded length, the dtype
states-00000.safetensors  one tensor (tokens, width) per caption, under the sha256 of the caption; about 256 MB each

Only the states of tokens are kept. Backbones put a learned token in place of padding, so its states are never used.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager
from itertools import count
from pathlib import Path
from typing import Any

import torch
from safetensors import safe_open
from safetensors.torch import save

from rti.errors import InputError
from rti.files import in_one_line, read_json, require_regular, shown, write_whole
from rti.text.encoder import TextEncoder

CONFIG, SHARD = "cache.json", "states-{:05d}.safetensors"
DTYPES = ("bfloat16", "float32", "float16")
FORMAT = 1
SHARD_BYTES, SHARD_CAPTIONS = 256 << 20, 4096  # a shard is written when it holds either


class TextCache:
    """Captions that were encoded before -> states (B, length, C) float32, zero where padded, and mask (B, length).

    A `TextEncoder` that knows only what is in its folder. States are read from the disk when they are asked for.
    """

    def __init__(self, folder: str | Path):
        self.folder, config = Path(folder), Path(folder) / CONFIG
        if not config.is_file():
            raise InputError(f"{folder} is no cache of text states: it has no {CONFIG}; `rti encode` writes one")
        self.settings = read_json(config)
        self.width, self.length = self.settings.get("width"), self.settings.get("length")
        if self.settings.get("format") != FORMAT or not type(self.width) is type(self.length) is int:
            raise InputError(f"{config} does not describe text states of format {FORMAT}: {self.settings}")
        self._shard_of: dict[str, safe_open] = {}
        for path in sorted(self.folder.glob("states-*.safetensors")):
            require_regular(path)  # a pipe would never answer
            with in_one_line(f"{path} is damaged; delete it and run `rti encode` again"):
                shard = safe_open(path, framework="pt")
            if shard.metadata() != _mark(self.settings):
                raise InputError(f"{path} is not of this cache; delete it and run `rti encode` again")
            self._shard_of |= dict.fromkeys(shard.keys(), shard)

    def __reduce__(self):  # open files cannot be pickled: another process opens its own
        return TextCache, (self.folder,)

    def __len__(self) -> int:
        return len(self._shard_of)

    def __contains__(self, caption: str) -> bool:
        return caption_key(caption) in self._shard_of

    def __call__(self, prompts: Sequence[str], length: int, lenient: bool = False) -> tuple[torch.Tensor, torch.Tensor]:
        # Nothing is left out of a caption here: `lenient` or not, it is there or it is not.
        # Where a caption is cut changes the states of all its tokens, so other lengths are not just more padding.
        if length != self.length:
            raise InputError(f"{self.folder} holds text states of length {self.length}, but length {length} is needed")
        states = torch.zeros(len(prompts), length, self.width)
        mask = torch.zeros(len(prompts), length, dtype=torch.bool)
        for row, prompt in enumerate(prompts):
            if prompt not in self:
                raise InputError(f"{shown(repr(prompt))} is not in {self.folder}; run `rti encode` on this run's data")
            words = self._shard_of[caption_key(prompt)].get_tensor(caption_key(prompt))
            states[row, : len(words)], mask[row, : len(words)] = words, True
        return states, mask


class CacheWriter(AbstractContextManager):
    """Adds captions to a cache, or begins one: `encode` what is `missing`.

    A shard appears under its name only when it is whole and on the disk. At the end of the `with`, also by an error,
    what was added so far is written; a process that is killed loses the shard it was at. Two at once do no harm.
    """

    def __init__(self, folder: str | Path, encoder: TextEncoder, name: str, length: int, dtype: str = DTYPES[0]):
        self.folder, self.encoder, self.pending = Path(folder), encoder, {}
        # The name is for people: folders move.
        wanted = {"encoder": name, "fingerprint": fingerprint(encoder), "length": length, "dtype": dtype}
        self.cache = TextCache(folder) if (self.folder / CONFIG).is_file() else None
        self.settings = self.cache.settings if self.cache else wanted | {"width": None, "format": FORMAT}
        for key in ("length", "dtype", "fingerprint"):
            if self.settings.get(key) != wanted[key]:
                theirs = f"{self.settings.get('encoder')} with {key} {self.settings.get(key)}"
                raise InputError(f"{folder} holds text states of {theirs}, not of {name} with {wanted[key]}")

    def __exit__(self, *_: object) -> None:
        self.flush()

    def missing(self, captions: Sequence[str]) -> list[str]:
        """The captions that are still to be encoded, each once, in their order."""
        return [caption for caption in dict.fromkeys(captions) if self.cache is None or caption not in self.cache]

    def encode(self, captions: Sequence[str], batch: int) -> Iterator[int]:
        """Encode captions and add them, `batch` at a time; yields how many, so that the caller may stop."""
        for start in range(0, len(captions), batch):
            prompts = captions[start : start + batch]
            states, mask = self.encoder(prompts, self.settings["length"])
            counts = mask.sum(dim=1)
            if not mask.equal(torch.arange(mask.shape[1], device=mask.device) < counts[:, None]):
                raise InputError("the text encoder pads before the words; only padding after them can be kept")
            states = states.detach().to("cpu", getattr(torch, self.settings["dtype"]))
            if not states.isfinite().all():
                raise InputError(f"text states are not finite as {self.settings['dtype']}; choose another dtype")
            for prompt, words, tokens in zip(prompts, states, counts.tolist(), strict=True):
                self.pending[caption_key(prompt)] = words[:tokens].clone()
            if sum(some.nbytes for some in self.pending.values()) >= SHARD_BYTES or len(self.pending) >= SHARD_CAPTIONS:
                self.flush()
            yield len(prompts)

    def flush(self) -> None:
        """Write what was added as a shard of its own, after the last."""
        pending, self.pending = self.pending, {}
        if not pending:
            return
        path = next(path for number in count() if not (path := self.folder / SHARD.format(number)).exists())
        self.settings["width"] = next(iter(pending.values())).shape[1]
        if not (self.folder / CONFIG).exists():
            write_whole(self.folder / CONFIG, json.dumps(self.settings, indent=2) + "\n", sync=True)
        write_whole(path, save(pending, metadata=_mark(self.settings)), sync=True)
        self.cache = TextCache(self.folder)


def check_folder(folder: Path) -> None:
    """Refuse, before the work, to begin a cache where something else is or nothing can be written."""
    nearest = next(path for path in (folder, *folder.absolute().parents) if path.exists())
    if not nearest.is_dir() or not os.access(nearest, os.W_OK):
        raise InputError(f"cannot write to {folder}: {nearest} is in the way or read-only")
    others = sorted(path.name for path in folder.iterdir() if path.suffix != ".part") if folder.is_dir() else []
    if others and CONFIG not in others:
        raise InputError(f"{folder} is no cache of text states and not empty: it holds {others[0]}, no {CONFIG}")


def _mark(settings: dict[str, Any]) -> dict[str, str]:
    """Written into every shard, so that one of another cache is not taken for one of this."""
    return {"rti_text_states": json.dumps({key: settings[key] for key in settings if key != "encoder"}, sort_keys=True)}


def fingerprint(encoder: TextEncoder) -> str:
    """Which encoder it is: sha256 of 1,024 evenly spaced values of every weight, and of one sentence's tokens.

    Of the weights and not of their files, so that a folder may move and the hub's copy of a T5 equals a local one.
    Nothing is computed, so it is the same on every machine. Sorted and without names, since releases of transformers
    differ in how they name weights and in which they list twice.
    """
    samples = set()
    for weight in getattr(encoder, "encoder", encoder).parameters():
        flat = weight.detach().flatten()
        values = flat[:: max(1, len(flat) // 1024)][:1024].float().cpu().numpy()
        samples.add(hashlib.sha256(f"{tuple(weight.shape)}".encode() + values.tobytes()).hexdigest())
    tokenizer = getattr(encoder, "tokenizer", None)
    tokens = [] if tokenizer is None else list(tokenizer("a photograph of a red cube on a blue table").input_ids)
    return hashlib.sha256(json.dumps([sorted(samples), tokens]).encode()).hexdigest()


def caption_key(caption: str) -> str:
    return hashlib.sha256(caption.encode("utf-8", "surrogatepass")).hexdigest()
