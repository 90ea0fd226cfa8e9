"""A run of `rti tune` in its folder: what was drawn and measured stays there, and the same command goes on.

reference.safetensors   careful pictures: dense, many steps of second order
tried.json              seconds of the passes, and every trial with its scores
presets.json            what was found
"""

from __future__ import annotations

import hashlib
import json
import os
import platform
import statistics
import warnings
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from tqdm.auto import tqdm

from rti.checkpoint import read_state
from rti.dials import FILE, SLACK, Dials, Preset, write_presets
from rti.errors import InputError
from rti.files import in_one_line, read_json, whole_file, write_whole
from rti.flow import picture_generator
from rti.images import to_pil
from rti.lab.bench.stopwatch import clock
from rti.lab.pictures.folder import Entry
from rti.lab.pictures.generation import adapter_weights_of, weights_of
from rti.lab.pictures.scorers.fidelity import psnr, ssim
from rti.lab.tuning.costs import Costs, Ranges
from rti.lab.tuning.search import Trial, halve, rungs, work
from rti.pipeline import Pipeline

REFERENCE, TRIED = "reference.safetensors", "tried.json"
CAREFUL = Dials(50, "multistep")  # the reference
FIDELITY = {"psnr": psnr, "ssim": ssim}
TURNS = 3  # how often a finalist's picture is timed, in turn with all others
TOGETHER = 8  # pictures that are scored at a time
FEWEST = 8  # pictures in the first round where a scorer says but right or wrong
Scorer = Callable[[Sequence[Any], Sequence[Entry]], Sequence[dict[str, Any]]]


class Tuning:
    """`by` is "psnr" or "ssim" to the careful pictures, or the name of a scorer, which is then given."""

    def __init__(
        self,
        pipe: Pipeline,
        entries: Sequence[Entry],
        ranges: Ranges,
        folder: Path,
        pictures: int = 48,
        by: str = "psnr",
        scorer: Scorer | None = None,
        guidance: float | None = None,
        batch: int = 1,
        seed: int = 0,
        compiled: bool = False,
    ):
        self.pipe, self.entries, self.ranges, self.folder, self.pictures = pipe, entries, ranges, folder, pictures
        self.by, self.scorer, self.guidance, self.batch, self.seed = by, scorer, guidance, batch, seed
        self.subject = "label" if pipe.backbone.conditioned_on == "labels" else "prompt"
        own = pipe.backbone.flow.guidance_scale if guidance is None else guidance
        self.costs = Costs(pipe, ranges, float(own), batch)
        prompts = hashlib.sha256(json.dumps([one.prompt for one in entries]).encode()).hexdigest()[:16]
        self.told = {"backbone": weights_of(pipe), "adapter": adapter_weights_of(pipe), "prompts": prompts}
        self.told |= {"by": by, "guidance": own, "seed": seed, "reference": CAREFUL.given()}
        self.machine = {"device": str(pipe.backbone.device), "dtype": str(pipe.backbone.dtype), "compiled": compiled}
        self.machine |= {"processor": platform.processor() or platform.machine(), "cores": os.cpu_count()}
        self.machine |= {"threads": torch.get_num_threads(), "torch": torch.__version__, "batch": batch}
        self.trials: dict[Dials, Trial] = {}
        self.references: list[torch.Tensor] = []
        self._open()

    def _open(self) -> None:
        """What an earlier sitting left, if it asked the same. Seconds are another machine's no business."""
        path = self.folder / TRIED
        if not path.is_file():
            return
        stored = read_json(path)
        with in_one_line(f"{path} is damaged; choose another output folder"):
            changed = [name for name, value in self.told.items() if stored["told"][name] != value]
            if changed:
                raise InputError(f"{self.folder} was tuned with another {', '.join(changed)}; choose another folder")
            for row in stored["trials"]:
                dials = Dials.read(row["dials"])
                timed = row["timed"] if stored["machine"] == self.machine else None
                self.trials[dials] = Trial(dials, timed=timed, scores=row["scores"])
            if stored["machine"] == self.machine and stored["passes"]:
                self.costs.before = stored["before"]
                self.costs.passes = {tuple(key): seconds for key, seconds in stored["passes"]}
        if (self.folder / REFERENCE).is_file():
            self.references = list(read_state(self.folder / REFERENCE)[0]["pictures"])

    def save(self) -> None:
        rows = [{"dials": one.dials.given(), "timed": one.timed, "scores": one.scores} for one in self.trials.values()]
        passes = [[list(key), seconds] for key, seconds in self.costs.passes.items()]
        known = {"told": self.told, "machine": self.machine, "before": self.costs.before, "passes": passes}
        write_whole(self.folder / TRIED, json.dumps(known | {"trials": rows}) + "\n")

    def begin(self) -> None:
        """Time the passes, and draw the careful pictures, where an earlier sitting has not."""
        self.folder.mkdir(parents=True, exist_ok=True)
        if not self.costs.passes.keys() >= {
            (one.budget, one.text_budget, "unguided") for one in self.ranges.settings()
        }:
            one = self.entries[0].prompt
            given = (None, one, 1) if self.subject == "label" else (one, None, 1)
            self.costs.measure(lambda: self.pipe._condition(*given))
        self.save()
        if self.scorer is not None:
            return
        missing = range(len(self.references), self.pictures)
        for first in tqdm(missing[::TOGETHER], desc="careful pictures", disable=not missing):
            some = range(first, min(first + TOGETHER, self.pictures))
            self.references += list(self.draw(CAREFUL, some).half().cpu())
            with whole_file(self.folder / REFERENCE) as path:
                save_file({"pictures": torch.stack(self.references)}, path)

    def draw(self, dials: Dials, numbers: Sequence[int]) -> torch.Tensor:
        """Pictures of some of the prompts, each from its own noise: (B, 3, H, W) in [0, 1]."""
        subjects = [self.entries[number % len(self.entries)].prompt for number in numbers]
        generators = [picture_generator(self.seed, number) for number in numbers]
        how = dict(guidance_scale=self.guidance, generator=generators, output_type="pt", progress=False)
        with self.pipe.drawing(dials.budget is None) as pipe:
            return pipe(**{self.subject: subjects}, **dials.given(), **how).images

    def score(self, trial: Trial, count: int, bar: tqdm | None = None) -> None:
        """Draw with a trial's dials until it has so many scores."""
        for first in range(len(trial.scores), count, TOGETHER):
            numbers = range(first, min(first + TOGETHER, count))
            drawn = self.draw(trial.dials, numbers)
            if self.scorer is None:
                careful = torch.stack([self.references[number] for number in numbers]).to(drawn)
                trial.scores += FIDELITY[self.by](drawn.float(), careful.float()).tolist()
            else:
                entries = [self.entries[number % len(self.entries)] for number in numbers]
                trial.scores += [float(row["score"]) for row in self.scorer(to_pil(2 * drawn - 1), entries)]
            if bar is not None:
                bar.update(min(len(numbers) * trial.cost, bar.total - bar.n))
            self.save()

    def trial(self, dials: Dials, cost: float = 0.0) -> Trial:
        found = self.trials.setdefault(dials, Trial(dials))
        found.cost = cost or found.cost
        return found

    def search(self, seconds: float, most: int) -> list[Trial]:
        """The best ways to spend so many seconds on a picture, the very best first; of more than `most`, some."""
        found = list(self.costs.candidates(seconds).items())
        if not found:
            least = self.costs.least()
            raise InputError(f"{seconds:.3g} s a picture cannot be had here, whatever is turned; {least:.2g} s can")
        order = torch.randperm(len(found), generator=torch.Generator().manual_seed(self.seed))
        trials = [self.trial(*found[place]) for place in order[:most].tolist()]
        every = rungs(self.pictures, len(trials), 1 if self.scorer is None else FEWEST)
        look = "{desc}: {percentage:3.0f}%|{bar}| {elapsed}<{remaining}"
        total = work([trial.cost for trial in trials], every) + 1e-6
        with tqdm(total=total, desc=f"{seconds:.3g} s a picture", bar_format=look) as bar:
            return halve(trials, every, lambda trial, count: self.score(trial, count, bar))

    def time(self, trials: Sequence[Trial]) -> None:
        """The seconds of whole pictures in the place of the sum of their passes; all take turns."""
        device, times = self.pipe.backbone.device, {trial.dials: [] for trial in trials}
        for _ in tqdm(range(TURNS), desc="timing"):
            for dials, some in times.items():
                with self.pipe.drawing(dials.budget is None):  # else its LoRA would be folded in on the clock
                    started = clock(device)
                    self.draw(dials, range(self.batch))
                    some.append((clock(device) - started) / self.batch)
        for trial in trials:
            trial.timed = statistics.median(times[trial.dials])
        self.save()

    def best(self, seconds: float, most: int) -> Trial:
        """The best that really draws a picture in so many seconds.

        Where whole pictures take longer than their passes, it looks among faster ones once more.
        """
        finalists, limit = [], seconds
        for _ in range(2):
            finalists += self.search(limit, most)
            self.time(finalists)
            if fitting := [trial for trial in finalists if trial.seconds <= SLACK * seconds]:
                return max(fitting, key=lambda trial: trial.score(self.pictures))
            fastest = min(finalists, key=lambda trial: trial.seconds)
            limit = seconds * fastest.cost / fastest.seconds
            if limit < self.costs.least():
                break
        warnings.warn(
            f"{seconds:.3g} s a picture asked for; the fastest found takes {fastest.seconds:.3g}", stacklevel=2
        )
        return fastest

    def write(self, found: dict[str, Trial], folders: Sequence[Path]) -> dict[str, Preset]:
        """Write presets, beside those that are there by other names; gives them back."""
        pace, presets = self.pipe.pace(), {}
        for name, trial in found.items():
            row = trial.row(self.pictures)
            measured = {key: row[key] for key in ("score", "interval", "pictures")} | {"by": self.by}
            presets[name] = Preset(trial.dials, round(trial.seconds, 5), pace, measured | {"machine": self.machine})
        for folder in folders:
            write_presets(folder / FILE, presets)
        return presets
