"""Pictures at scale: prompts into the layout of a benchmark, over many processes, in as many sittings as it takes.

The picture of a prompt depends on its seed and on nothing else: not on the other prompts, nor on the processes. To the
last bit it also depends on the shape of the batch it is computed in, so that batches are cut from the whole list of
pictures once and for all. A batch of which some pictures are there is drawn whole, and only the others are written.
"""

from __future__ import annotations

import hashlib
import json
import os
import time
import warnings
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from tqdm.auto import tqdm

from rti import __version__
from rti.errors import InputError, check_finite, check_whole
from rti.files import write_whole
from rti.flow import picture_seed, time_grid
from rti.images import save_image
from rti.lab.pictures.folder import (
    MANIFEST,
    PROMPTS,
    TIMING,
    Entry,
    check_manifest,
    entries_text,
    is_whole,
    manifest_differences,
    read_manifest,
    tidy,
    write_shared,
)
from rti.lab.pictures.prompts.prompts import Prompt, PromptSet
from rti.method.budgets import Budget, is_dense, resolve_budget
from rti.pipeline import Pipeline

FORMAT = 1  # of the manifest
SEEDS = 2**32  # more would share pictures: two words would go into the sequence of seeds


@dataclass(frozen=True)
class GenerationSettings:
    """How each picture is drawn; None is as the model samples by itself, a budget of None the frozen backbone."""

    budget: Budget = None
    guidance_budget: Budget = None
    text_budget: Budget = None
    steps: int | None = None
    guidance: float | None = None
    images: int | None = None  # per prompt; None as the benchmark has it
    seed: int = 0
    lenient: bool = False
    int8: bool = False  # the blocks' linear layers, see rti.int8

    def __post_init__(self) -> None:
        if isinstance(self.seed, bool) or not isinstance(self.seed, int) or not 0 <= self.seed < SEEDS:
            raise InputError(f"seed must be a whole number from 0 to {SEEDS - 1}, got {self.seed!r}")
        if self.images is not None:
            check_whole("images per prompt", self.images, SEEDS)
        if self.guidance is not None:
            check_finite("guidance", self.guidance)
        if is_dense(self.budget):
            object.__setattr__(self, "budget", None)
        if self.budget is None and (self.guidance_budget is not None or self.text_budget is not None):
            raise InputError("a guidance or text budget given without a budget; the frozen backbone has none")


class Shard(NamedTuple):
    """Which process of how many this is."""

    rank: int = 0
    world: int = 1

    @classmethod
    def of_environment(cls) -> Shard:
        """As `accelerate launch` and torchrun set it. The processes need not talk to each other."""
        try:
            shard = cls(int(os.environ.get("RANK", 0)), int(os.environ.get("WORLD_SIZE", 1)))
        except ValueError:
            shard = cls(-1, 0)
        if not 0 <= shard.rank < shard.world:
            given = {name: os.environ.get(name) for name in ("RANK", "WORLD_SIZE")}
            raise InputError(f"RANK and WORLD_SIZE are not usable: {given}; allowed: 0 <= RANK < WORLD_SIZE")
        return shard

    def device(self, wanted: str) -> str:
        """Where this process computes: "auto" is a GPU of its own where there are several processes."""
        if wanted != "auto" or self.world == 1 or not torch.cuda.is_available():
            return wanted
        return f"cuda:{int(os.environ.get('LOCAL_RANK', self.rank)) % torch.cuda.device_count()}"


class Generated(NamedTuple):
    """How many pictures this process drew, how many of its share were there already, and in how many seconds."""

    drawn: int
    there: int
    seconds: float


class Generation:
    """A folder to be drawn by a model. `names` go into the manifest: the model and the adapter as a user typed them.

    Generation(pipe, open_prompts("geneval"), "runs/dense/geneval", GenerationSettings()).run(batch=16)
    """

    def __init__(
        self,
        pipe: Pipeline,
        prompts: PromptSet,
        folder: str | Path,
        settings: GenerationSettings | None = None,
        names: dict[str, Any] | None = None,
    ):
        self.pipe, self.prompts, self.folder = pipe, prompts, Path(folder)
        self.settings = settings or GenerationSettings()
        self.images = self.settings.images or prompts.images
        self.budget = self._budget()
        self.manifest = self._manifest(names or {})
        self._keep_versions()
        self.entries = tuple(self._entry(prompt) for prompt in prompts.prompts)
        self.pictures = [(prompt, number) for prompt in prompts.prompts for number in range(self.images)]
        self.begun = check_manifest(self.folder, self.manifest)

    def run(self, batch: int = 16, shard: Shard | None = None, progress: bool = True) -> Generated:
        """Draw what is missing of this process's share. It can be stopped at any moment, and run again."""
        check_whole("batch", batch, SEEDS)
        shard = shard or Shard.of_environment()
        batches = [self.pictures[first : first + batch] for first in range(0, len(self.pictures), batch)]
        share = batches[shard.rank :: shard.world]
        missing = [[picture for picture in some if not self._is_there(*picture)] for some in share]
        total, todo = sum(map(len, share)), sum(map(len, missing))
        started = time.perf_counter()
        if self.begun:
            self._begin()  # what a kill left unwritten of it
        with (
            self.pipe.drawing(self.budget is None, self.settings.int8) as pipe,
            self._bar(total, total - todo, shard, progress) as bar,
        ):
            for some, wanted in zip(share, missing, strict=True):
                if wanted:
                    self._draw(pipe, some, set(map(_key, wanted)))
                    bar.update(len(wanted))
        return Generated(todo, total - todo, time.perf_counter() - started)

    def missing(self) -> int:
        """How many pictures of all are not there."""
        return sum(not self._is_there(*picture) for picture in self.pictures)

    def _draw(self, pipe: Pipeline, pictures: list[tuple[Prompt, int]], wanted: set[tuple[int, int]]) -> None:
        settings, started = self.settings, time.perf_counter()
        drawn = pipe(
            [prompt.subject for prompt, _ in pictures],
            generator=[torch.Generator().manual_seed(self._seed(*picture)) for picture in pictures],
            budget=self.budget,
            guidance_budget=settings.guidance_budget,
            text_budget=settings.text_budget,
            num_inference_steps=settings.steps,
            guidance_scale=settings.guidance,
            lenient=settings.lenient,
            progress=False,
        ).images
        seconds = time.perf_counter() - started
        if not self.begun:  # only now: what the model refuses leaves nothing behind
            self._begin()
        for picture, image in zip(pictures, drawn, strict=True):
            if picture[1] == 0:  # so that one process alone writes it
                self._write_metadata(picture[0])
            if _key(picture) in wanted:
                save_image(image, self._path(*picture))
        self._note_time(len(pictures), seconds)

    def _note_time(self, pictures: int, seconds: float) -> None:
        line = {"pictures": pictures, "seconds": round(seconds, 6), "device": str(self.pipe.backbone.device)}
        path = self.folder / TIMING
        try:
            with open(path, "a", encoding="utf-8") as file:
                file.write(json.dumps(line) + "\n")
        except OSError as error:
            raise InputError(f"cannot write {path}: {error.strerror or error}") from None

    def _begin(self) -> None:
        """The manifest, then the prompts. Every process writes the same, whoever is first."""
        if not check_manifest(self.folder, self.manifest):  # another command may have begun there by now
            write_shared(self.folder / MANIFEST, json.dumps(self.manifest, indent=1) + "\n")
        if not (self.folder / PROMPTS).is_file():
            write_shared(self.folder / PROMPTS, entries_text(self.entries))
        tidy(self.folder)
        self.begun = True

    def _write_metadata(self, prompt: Prompt) -> None:
        """GenEval's line, where its own evaluation expects it: beside the folder of the samples."""
        path = self._path(prompt, 0).parent.parent / "metadata.jsonl"
        if prompt.metadata is not None and not path.is_file():
            write_whole(path, json.dumps(prompt.metadata) + "\n")

    def _path(self, prompt: Prompt, number: int) -> Path:
        return self.folder / self.prompts.layout(prompt, number, self.images)

    def _is_there(self, prompt: Prompt, number: int) -> bool:
        return is_whole(self._path(prompt, number), self.pipe.backbone.image_size)

    def _seed(self, prompt: Prompt, number: int) -> int:
        return picture_seed(self.settings.seed, prompt.index, number)

    def _entry(self, prompt: Prompt) -> Entry:
        numbers = range(self.images)
        files = tuple(self.prompts.layout(prompt, number, self.images) for number in numbers)
        seeds = tuple(self._seed(prompt, number) for number in numbers)
        return Entry(prompt.index, prompt.subject, prompt.group, files, seeds, prompt.metadata)

    def _budget(self) -> int | None:
        """The number of regions; refuse what this model cannot draw, before anything is written."""
        backbone, settings = self.pipe.backbone, self.settings
        if backbone.conditioned_on != self.prompts.kind:
            takes = {"text": "prompts", "labels": "class labels"}
            raise InputError(
                f"{self.prompts.source} has {takes[self.prompts.kind]}, but {type(backbone).__name__} draws from "
                f"{takes[backbone.conditioned_on]}"
            )
        if settings.steps is not None:
            time_grid(settings.steps)
        if settings.budget is None:
            return None
        if self.pipe.elastic is None:
            raise InputError(f"budget {settings.budget!r} needs an adapter, and this model has none; allowed: dense")
        return resolve_budget(settings.budget, backbone.patches)

    def _manifest(self, names: dict[str, Any]) -> dict[str, Any]:
        """All that a picture depends on. Batch, processes and device are not part of it: they change nothing to see."""
        backbone, settings = self.pipe.backbone, self.settings
        flow, elastic = backbone.flow, self.pipe.elastic
        source = (backbone.source or {}).get("source")
        return {
            "format": FORMAT,
            "model": names.get("model", source),
            "adapter": names.get("adapter"),
            "weights": weights_of(self.pipe),
            "dtype": str(backbone.dtype).removeprefix("torch."),
            "size": list(backbone.image_size),
            "patches": backbone.patches,
            "reduction": None if self.budget is None else json.loads(json.dumps(elastic.config.to_dict())),
            "budget": "dense" if self.budget is None else self.budget,
            "guidance_budget": settings.guidance_budget,
            "text_budget": settings.text_budget,
            "steps": flow.steps if settings.steps is None else settings.steps,
            "guidance": float(flow.guidance_scale if settings.guidance is None else settings.guidance),
            "lenient": settings.lenient,
            **({"int8": True} if settings.int8 else {}),  # folders from before it was there go on
            "prompts": {
                "source": self.prompts.source,
                "count": len(self.prompts),
                "sha256": self.prompts.digest(),
            },
            "images_per_prompt": self.images,
            "seed": settings.seed,
            "versions": _versions(),
        }

    def _keep_versions(self) -> None:
        """A folder goes on with other versions of the packages than it was begun with, and its manifest says which."""
        if not (self.folder / MANIFEST).is_file():
            return
        begun, now = read_manifest(self.folder).get("versions"), self.manifest["versions"]
        changed = manifest_differences(begun, now) if isinstance(begun, dict) else []
        if changed:
            told = ", ".join(f"{name} {old} there, {new} now" for name, old, new in changed)
            warnings.warn(f"{self.folder} goes on with other versions, which may show: {told}", stacklevel=3)
            self.manifest["versions"] = begun

    def _bar(self, total: int, there: int, shard: Shard, progress: bool) -> tqdm:
        title = "dense" if self.budget is None else f"R = {self.budget}"
        title += f", process 1 of {shard.world}" if shard.world > 1 else ""
        hidden = not progress or shard.rank > 0  # the shares are alike: one bar tells for all
        return tqdm(total=total, initial=there, desc=title, unit="picture", disable=hidden)


def _key(picture: tuple[Prompt, int]) -> tuple[int, int]:
    return picture[0].index, picture[1]


def weights_of(pipe: Pipeline) -> str:
    """Which weights draw: a folder may hold others by now. Those merged for good are others than those not merged."""
    from rti.text.cache import fingerprint

    elastic = pipe.elastic
    with elastic.unfused() if elastic is not None and not elastic.fused_for_good else nullcontext():
        parts = [fingerprint(pipe.backbone if elastic is None else elastic)]
    if pipe.backbone.conditioned_on == "text":
        encoder = pipe.text_encoder
        known = isinstance(getattr(encoder, "encoder", encoder), torch.nn.Module)
        parts += [fingerprint(encoder)] if known else []
    return hashlib.sha256("".join(parts).encode()).hexdigest()


def _versions() -> dict[str, str]:
    from importlib.metadata import PackageNotFoundError, version

    found = {"rti": __version__, "torch": torch.__version__, "numpy": np.__version__}
    for name in ("pillow", "transformers"):
        try:
            found[name] = version(name)
        except PackageNotFoundError:
            continue
    return found
