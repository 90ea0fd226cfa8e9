"""Text states computed once: a folder that answers in place of the frozen text encoder while a model trains.

cache.json                which encoder, its width, the padded length, the dtype
states-00000.safetensors  one tensor (tokens, width) per caption, under the sha256 of the caption; about 256 MB each
cache.lock                held by the one process that writes

Only the states of tokens are kept. Backbones put a learned token in place of padding, so its states are never used.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from itertools import count
from pathlib import Path

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save

from rti.errors import InputError
from rti.files import read_json, write_whole
from rti.text.encoder import TextEncoder

CONFIG, LOCK, SHARD, PART = "cache.json", "cache.lock", "states-{:05d}.safetensors", ".part"
DTYPES = ("bfloat16", "float32", "float16")
FORMAT = 1
SHARD_BYTES, SHARD_CAPTIONS = 256 << 20, 4096  # a shard is written when it holds either
_SAMPLES = 1024  # values of each weight that go into the fingerprint
_PROBE = "a photograph of a red cube on a blue table"


@dataclass(frozen=True)
class CacheSettings:
    """What cache.json says. The states of two caches are the same where all but the encoder's name are."""

    encoder: str  # as it was named, for people: folders move
    fingerprint: str  # which encoder it is, see `fingerprint`
    length: int  # longer captions were cut at it
    dtype: str = DTYPES[0]
    width: int | None = None  # known from the first states on
    format: int = FORMAT

    def __post_init__(self):
        if self.format != FORMAT:
            raise InputError(f"text states of format {self.format!r} are not readable; this version reads {FORMAT}")
        if self.dtype not in DTYPES:
            raise InputError(f"dtype {self.dtype!r} is unknown; allowed: {', '.join(DTYPES)}")
        for name, value in (("length", self.length), ("width", self.width)):
            if value is not None and (type(value) is not int or value < 1):
                raise InputError(f"the {name} of text states must be a positive whole number, got {value!r}")

    @classmethod
    def read(cls, folder: Path) -> CacheSettings:
        values = read_json(folder / CONFIG)
        try:
            settings = cls(**values)
        except TypeError:
            raise InputError(f"{folder / CONFIG} is none of a cache of text states: it has {sorted(values)}") from None
        except InputError as error:
            raise InputError(f"{folder / CONFIG} is not usable: {error}") from None
        if settings.width is None:
            raise InputError(f"{folder / CONFIG} does not say the width of the states")
        return settings

    def check_same(self, other: CacheSettings, folder: Path) -> None:
        """Refuse to add states of another kind to a cache."""
        for name in ("length", "dtype"):
            ours, theirs = getattr(self, name), getattr(other, name)
            if ours != theirs:
                raise InputError(f"{folder} holds text states of {name} {theirs}, not {ours}; choose another folder")
        if self.fingerprint != other.fingerprint:
            raise InputError(
                f"{folder} holds text states of {other.encoder} (fingerprint {other.fingerprint[:12]}), not of "
                f"{self.encoder} (fingerprint {self.fingerprint[:12]}); choose another folder"
            )

    def mark(self) -> dict[str, str]:
        """Written into every shard, so that one of another cache is not taken for one of this."""
        values = {name: value for name, value in asdict(self).items() if name != "encoder"}
        return {"rti_text_states": json.dumps(values, sort_keys=True)}


class TextCache:
    """Captions that were encoded before -> states (B, length, C) float32, zero where padded, and mask (B, length).

    A `TextEncoder` that knows only what is in its folder. States are read from the disk when they are asked for.
    """

    def __init__(self, folder: str | Path, settings: CacheSettings):
        self.folder, self.settings = Path(folder), settings
        self.width, self.length = settings.width, settings.length
        self.shards, self.broken = _open_shards(self.folder, settings)
        self._shard_of = {key: shard for shard in self.shards.values() for key in shard.keys()}  # noqa: SIM118

    @classmethod
    def open(cls, folder: str | Path) -> TextCache:
        if not (Path(folder) / CONFIG).is_file():
            raise InputError(f"{folder} is no cache of text states: it has no {CONFIG}; `rti encode` writes one")
        return cls(folder, CacheSettings.read(Path(folder)))

    def __reduce__(self):  # open files cannot be pickled: another process opens its own
        return TextCache.open, (self.folder,)

    def __len__(self) -> int:
        return len(self._shard_of)

    def __call__(self, prompts: Sequence[str], length: int, lenient: bool = False) -> tuple[torch.Tensor, torch.Tensor]:
        # Nothing is left out of a caption here: `lenient` or not, it is there or it is not.
        # Where a caption is cut changes the states of all its tokens, so other lengths are not just more padding.
        if length != self.length:
            raise InputError(f"{self.folder} holds text states of length {self.length}, but length {length} is needed")
        states = torch.zeros(len(prompts), length, self.width)
        mask = torch.zeros(len(prompts), length, dtype=torch.bool)
        for row, prompt in enumerate(prompts):
            key = caption_key(prompt)
            if key not in self._shard_of:
                raise InputError(
                    f"caption {_shortened(prompt)} is not in {self.folder}; run `rti encode` on the data of this run"
                )
            words = self._shard_of[key].get_tensor(key)
            states[row, : len(words)], mask[row, : len(words)] = words, True
        return states, mask


class CacheWriter:
    """Adds captions to a cache, or begins one. To resume, add what is `missing`.

    A shard appears under its name only when it is whole and on the disk. At the end of the `with`, also by an error,
    what was added so far is written; a process that is killed loses the shard it was at.
    """

    def __init__(self, folder: str | Path, settings: CacheSettings):
        self.folder, self.settings = Path(folder), settings
        self._pending: dict[str, torch.Tensor] = {}
        self._bytes = 0  # of them
        check_folder(self.folder)
        self._agree()

    def _agree(self) -> None:
        """Take over the settings of a cache that is there already, or refuse."""
        if (self.folder / CONFIG).is_file():
            held = CacheSettings.read(self.folder)
            self.settings.check_same(held, self.folder)
            self.settings = held

    def __enter__(self) -> CacheWriter:
        from filelock import FileLock, Timeout  # comes with huggingface_hub

        self._began = not self.folder.exists()
        self._lock = FileLock(self.folder / LOCK, timeout=0)
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            self._lock.acquire()
            for part in self.folder.glob(f"*{PART}"):
                part.unlink()
        except Timeout:
            raise InputError(f"another process is writing to {self.folder}; wait for it to end") from None
        except OSError as error:
            raise InputError(f"cannot write to {self.folder}: {error.strerror or error}") from None
        self._agree()  # again, now that nobody else writes
        shards, _ = _open_shards(self.folder, self.settings)  # those that cannot be read are written anew
        self._keys, self._numbers = {key for shard in shards.values() for key in shard.keys()}, set(shards)  # noqa: SIM118
        return self

    def __exit__(self, *_: object) -> None:
        try:
            self.flush()
        finally:
            if not (self.folder / CONFIG).exists():  # nothing was written: leave nothing
                (self.folder / LOCK).unlink(missing_ok=True)
                if self._began:
                    self.folder.rmdir()
            self._lock.release()

    def missing(self, captions: Iterable[str]) -> list[str]:
        """The captions that are still to be encoded, each once, in their order."""
        wanted = {caption_key(caption): caption for caption in captions}
        return [caption for key, caption in wanted.items() if key not in self._keys]

    def add(self, caption: str, states: torch.Tensor) -> None:
        """The states of a caption's tokens (tokens, width)."""
        states = states.detach().to("cpu", getattr(torch, self.settings.dtype), copy=True).contiguous()
        if self.settings.width is None:
            self.settings = replace(self.settings, width=states.shape[1])
        if not states.isfinite().all():
            raise InputError(f"states of {_shortened(caption)} are not finite as {self.settings.dtype}")
        self._pending[caption_key(caption)] = states
        self._bytes += states.nbytes
        if self._bytes >= SHARD_BYTES or len(self._pending) >= SHARD_CAPTIONS:
            self.flush()

    def flush(self) -> None:
        """Write what was added as a shard of its own."""
        pending, self._pending, self._bytes = self._pending, {}, 0
        if not pending:
            return
        number = next(number for number in count() if number not in self._numbers)
        try:
            if not (self.folder / CONFIG).exists():
                config = json.dumps(asdict(self.settings), indent=2) + "\n"
                write_whole(self.folder / CONFIG, config, sync=True)
            write_whole(self.folder / SHARD.format(number), save(pending, metadata=self.settings.mark()), sync=True)
        except OSError as error:
            raise InputError(f"cannot write to {self.folder}: {error.strerror or error}") from None
        self._keys.update(pending)
        self._numbers.add(number)


def encode_captions(captions: Sequence[str], encoder: TextEncoder, writer: CacheWriter, batch: int) -> Iterator[int]:
    """Encode captions and add them to a cache, `batch` at a time; yields how many, so that the caller may stop."""
    length = writer.settings.length
    for start in range(0, len(captions), batch):
        prompts = captions[start : start + batch]
        states, mask = encoder(prompts, length)
        counts = mask.sum(dim=1).tolist()
        for prompt, words, kept, tokens in zip(prompts, states, mask, counts, strict=True):
            if not kept[:tokens].all():  # they would come back at other positions
                raise InputError("the text encoder pads before the words; only padding after them can be kept")
            writer.add(prompt, words[:tokens])
        yield len(prompts)


def fingerprint(encoder: TextEncoder) -> str:
    """Which encoder it is: sha256 of 1,024 evenly spaced values of every weight, and of one sentence's tokens.

    Of the weights and not of their files, so that a folder may move and the hub's copy of a T5 equals a local one.
    Nothing is computed, so it is the same on every machine. Sorted and without names, since releases of transformers
    differ in how they name weights and in which they list twice.
    """
    samples = set()
    for weight in getattr(encoder, "encoder", encoder).parameters():
        flat = weight.detach().flatten()
        values = flat[:: max(1, len(flat) // _SAMPLES)][:_SAMPLES].float().cpu().numpy()
        samples.add(hashlib.sha256(f"{tuple(weight.shape)}".encode() + values.tobytes()).hexdigest())
    tokenizer = getattr(encoder, "tokenizer", None)
    tokens = [] if tokenizer is None else list(tokenizer(_PROBE).input_ids)
    return hashlib.sha256(json.dumps([sorted(samples), tokens]).encode()).hexdigest()


def caption_key(caption: str) -> str:
    return hashlib.sha256(caption.encode("utf-8", "surrogatepass")).hexdigest()


def check_folder(folder: Path) -> None:
    """Refuse, before the work, to begin a cache where something else is or nothing can be written."""
    nearest = next(path for path in (folder, *folder.absolute().parents) if path.exists())
    if not nearest.is_dir():
        raise InputError(f"cannot write to {folder}: {nearest} is a file")
    if not os.access(nearest, os.W_OK):
        raise InputError(f"cannot write to {folder}: no permission")
    if folder.is_dir() and not (folder / CONFIG).is_file():
        others = sorted(path.name for path in folder.iterdir() if path.name != LOCK and path.suffix != PART)
        if others:
            raise InputError(f"{folder} is no cache of text states and not empty: it holds {others[0]}, no {CONFIG}")


def _open_shards(folder: Path, settings: CacheSettings) -> tuple[dict[int, safe_open], list[Path]]:
    """Shards by their number, headers read; and those that are broken or belong to another cache."""
    shards, broken = {}, []
    for path in sorted(folder.glob("states-*.safetensors")):
        number = re.fullmatch(r"states-(\d{5,})", path.stem)
        try:
            shard = safe_open(path, framework="pt") if path.is_file() else None  # a pipe would never answer
        except (SafetensorError, OSError):
            shard = None
        if shard is None or number is None or shard.metadata() != settings.mark():
            broken.append(path)
        else:
            shards[int(number[1])] = shard
    return shards, broken


def _shortened(caption: str) -> str:
    return repr(caption if len(caption) <= 60 else caption[:57] + "...")
