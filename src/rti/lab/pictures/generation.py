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
from contextlib import nullcontext, suppress
from dataclasses import asdict, dataclass
from importlib import metadata
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from tqdm.auto import tqdm

from rti import __version__
from rti.checkpoint import weights_digest
from rti.errors import InputError, check_choice, check_finite, check_whole
from rti.files import in_one_line, write_whole
from rti.flow import choose_times
from rti.images import save_image
from rti.lab.pictures.folder import TIMING, Entry, PictureFolder, begin, check_manifest, is_whole
from rti.lab.pictures.prompts import PromptSet
from rti.method.budgets import Budget, Budgets, is_dense, resolve_budget
from rti.pipeline import Pipeline
from rti.sampling import FINISHES, check_interval
from rti.solvers import SOLVERS

FORMAT = 1  # of the manifest
SEEDS = 2**32  # more would share pictures: two words would go into the sequence of seeds


@dataclass(frozen=True)
class GenerationSettings:
    """How each picture is drawn; None is as the model samples by itself, a budget of None the frozen backbone."""

    budget: Budget = None
    text_budget: Budget = None
    steps: int | None = None
    guidance: float | None = None
    guidance_passes: int | None = None
    guidance_interval: tuple[float, float] | None = None
    solver: str | None = None
    shift: float | None = None
    finish: str | None = None
    images: int | None = None  # per prompt; None as the benchmark has it
    seed: int = 0
    lenient: bool = False

    def __post_init__(self) -> None:
        check_whole("seed", self.seed, SEEDS - 1, least=0)
        if self.images is not None:
            check_whole("images per prompt", self.images, SEEDS)
        if self.guidance is not None:
            check_finite("guidance", self.guidance)
        if self.guidance_interval is not None:
            check_interval(self.guidance_interval)
        choose_times(1 if self.steps is None else self.steps, self.shift)
        for name, allowed in (("solver", SOLVERS), ("finish", FINISHES)):
            if (given := getattr(self, name)) is not None:
                check_choice(name, given, allowed)
        if is_dense(self.budget):
            object.__setattr__(self, "budget", None)
        if self.budget is None and self.text_budget is not None:
            raise InputError("a text budget given without a budget; the frozen backbone has none")
        Budgets(passes=self.guidance_passes)  # which refuses what is none


class Shard(NamedTuple):
    """Which process of how many this is."""

    rank: int = 0
    world: int = 1

    @classmethod
    def of_environment(cls) -> Shard:
        """As `accelerate launch` and torchrun set it. The processes need not talk to each other."""
        given = [os.environ.get(name, usual) for name, usual in (("RANK", "0"), ("WORLD_SIZE", "1"))]
        if not all(map(str.isdigit, given)) or int(given[0]) >= int(given[1]):
            raise InputError(f"RANK and WORLD_SIZE are not usable: {given}; allowed: 0 <= RANK < WORLD_SIZE")
        return cls(*map(int, given))

    def device(self, wanted: str) -> str:
        """Where this process computes: "auto" is a GPU of its own where there are several processes."""
        if wanted != "auto" or self.world == 1 or not torch.cuda.is_available():
            return wanted
        return f"cuda:{int(os.environ.get('LOCAL_RANK', self.rank)) % torch.cuda.device_count()}"


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
        self.begun = check_manifest(self.folder, self.manifest)
        entries = prompts.entries(self.images, self.settings.seed)
        self.target = PictureFolder(self.folder, self.manifest, entries)
        self.pictures = self.target.pictures

    def run(self, batch: int = 16, shard: Shard | None = None, progress: bool = True) -> dict[str, Any]:
        """Draw what is missing of this process's share. It can be stopped at any moment, and run again.

        Gives back how many pictures were drawn, how many were there before, and the seconds it took.
        """
        check_whole("batch", batch, SEEDS)
        shard = shard or Shard.of_environment()
        batches = [self.pictures[first : first + batch] for first in range(0, len(self.pictures), batch)]
        share = batches[shard.rank :: shard.world]
        missing = [[picture for picture in some if not self._is_there(*picture)] for some in share]
        total, todo = sum(map(len, share)), sum(map(len, missing))
        started = time.perf_counter()
        if self.begun:
            begin(self.target)  # what a kill left unwritten of it
        title = "dense" if self.budget is None else f"R = {self.budget}"
        title += f", process 1 of {shard.world}" if shard.world > 1 else ""
        hidden = not progress or shard.rank > 0  # the shares are alike: one bar tells for all
        with (
            self.pipe.drawing(self.budget is None) as pipe,
            tqdm(total=total, initial=total - todo, desc=title, unit="picture", disable=hidden) as bar,
        ):
            for some, wanted in zip(share, missing, strict=True):
                if wanted:
                    self._draw(pipe, some, wanted)
                    bar.update(len(wanted))
        return {"drawn": todo, "there_before": total - todo, "seconds": round(time.perf_counter() - started, 3)}

    def missing(self) -> int:
        """How many pictures of all are not there."""
        return sum(not self._is_there(*picture) for picture in self.pictures)

    def _is_there(self, entry: Entry, number: int) -> bool:
        return is_whole(self.target.file(entry, number), self.pipe.backbone.image_size)

    def _draw(self, pipe: Pipeline, pictures: list[tuple[Entry, int]], wanted: list[tuple[Entry, int]]) -> None:
        settings, started = self.settings, time.perf_counter()
        drawn = pipe(
            [entry.prompt for entry, _ in pictures],
            generator=[torch.Generator().manual_seed(entry.seeds[number]) for entry, number in pictures],
            budget=Budgets(self.budget, text=settings.text_budget, passes=settings.guidance_passes),
            num_inference_steps=settings.steps,
            guidance_scale=settings.guidance,
            guidance_interval=settings.guidance_interval,
            solver=settings.solver,
            shift=settings.shift,
            finish=settings.finish,
            lenient=settings.lenient,
            progress=False,
        ).images
        seconds = time.perf_counter() - started
        if not self.begun:  # only now: what the model refuses leaves nothing behind
            begin(self.target)
            self.begun = True
        for (entry, number), image in zip(pictures, drawn, strict=True):
            path = self.target.file(entry, number)
            # GenEval's line, where its own evaluation expects it; with the first picture: one process writes it.
            beside = path.parent.parent / "metadata.jsonl"
            if number == 0 and entry.metadata is not None and not beside.is_file():
                write_whole(beside, json.dumps(entry.metadata) + "\n")
            if (entry, number) in wanted:
                save_image(image, path)
        line = {"pictures": len(pictures), "seconds": round(seconds, 6), "device": str(self.pipe.backbone.device)}
        timing = self.folder / TIMING
        with in_one_line(f"cannot write {timing}"), open(timing, "a", encoding="utf-8") as file:
            file.write(json.dumps(line) + "\n")

    def _budget(self) -> int | None:
        """The number of regions; refuse what this model cannot draw, before anything is written."""
        backbone, budget = self.pipe.backbone, self.settings.budget
        if backbone.conditioned_on != self.prompts.kind:
            takes = {"text": "prompts", "labels": "class labels"}
            drawn = f"{type(backbone).__name__} draws from {takes[backbone.conditioned_on]}"
            raise InputError(f"{self.prompts.source} has {takes[self.prompts.kind]}, but {drawn}")
        if budget is not None and self.pipe.elastic is None:
            raise InputError(f"budget {budget!r} needs an adapter, and this model has none; allowed: dense")
        return None if budget is None else resolve_budget(budget, backbone.patches)

    def _manifest(self, names: dict[str, Any]) -> dict[str, Any]:
        """All that a picture depends on. Batch, processes and device are not part of it: they change nothing to see."""
        backbone, settings, prompts = self.pipe.backbone, self.settings, self.prompts
        flow = backbone.flow
        manifest = {
            "format": FORMAT,
            "model": names.get("model", (backbone.source or {}).get("source")),
            "adapter": None if self.budget is None else names.get("adapter"),
            "weights": weights_of(self.pipe),
            "adapter_weights": None if self.budget is None else adapter_weights_of(self.pipe),
            "config": asdict(backbone.config),
            "dtype": str(backbone.dtype).removeprefix("torch."),
            "size": list(backbone.image_size),
            "patches": backbone.patches,
            "reduction": None if self.budget is None else self.pipe.elastic.config.to_dict(),
            "budget": "dense" if self.budget is None else self.budget,
            "text_budget": settings.text_budget,
            "steps": flow.steps if settings.steps is None else settings.steps,
            "guidance": float(flow.guidance_scale if settings.guidance is None else settings.guidance),
            "guidance_passes": settings.guidance_passes,
            "guidance_interval": settings.guidance_interval,
            "solver": settings.solver,
            "shift": settings.shift,
            "finish": settings.finish or FINISHES[0],
            "lenient": settings.lenient,
            "prompts": {"source": prompts.source, "count": len(prompts), "sha256": prompts.digest()},
            "images_per_prompt": self.images,
            "seed": settings.seed,
            "versions": _versions(),
        }
        return json.loads(json.dumps(manifest))  # as it is read back, lists for tuples


def weights_of(pipe: Pipeline) -> str:
    """Which frozen weights draw: a folder may hold others by now. They are the same beside any adapter and without.

    Where an adapter was fused for good they are not known any more, and it is the fused ones.
    """
    elastic = pipe.elastic
    known = elastic is not None and not elastic.fused_for_good
    with elastic.dense() if known else nullcontext(elastic or pipe.backbone) as weights:
        parts = [weights_digest(weights)]
    if pipe.backbone.conditioned_on == "text":
        encoder = pipe.text_encoder
        known = isinstance(getattr(encoder, "encoder", encoder), torch.nn.Module)
        parts += [weights_digest(encoder)] if known else []
    return hashlib.sha256("".join(parts).encode()).hexdigest()


def adapter_weights_of(pipe: Pipeline) -> str | None:
    """Which adapter draws, on which backbone; None where it was fused for good."""
    if pipe.elastic is None or pipe.elastic.fused_for_good:
        return None
    with pipe.elastic.unfused() as model:
        return weights_digest(model)


def _versions() -> dict[str, str]:
    found = {"rti": __version__, "torch": torch.__version__, "numpy": np.__version__}
    for name in ("pillow", "transformers"):
        with suppress(metadata.PackageNotFoundError):
            found[name] = metadata.version(name)
    return found
