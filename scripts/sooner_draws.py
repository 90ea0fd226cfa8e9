"""How `sooner.py` draws and keeps: a setting, its pictures and what they took, and the file of all of it."""

from __future__ import annotations

import json
import random
from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors.torch import load_file, save_file
from sooner_reuse import Counted, Reuse, reused
from tqdm.auto import tqdm

import rti
from rti.files import read_json, whole_file, write_whole
from rti.flow import draw_noise, picture_generator
from rti.images import to_pil
from rti.lab.bench.stopwatch import clock
from rti.lab.pictures.folder import Entry
from rti.lab.pictures.scorers.fidelity import psnr
from rti.lab.pictures.scorers.geneval import GenEvalScorer, SceneDetector
from rti.sampling import sample
from rti.solvers import Callback, Field

BATCH, SEED = 8, 7


@dataclass(frozen=True)
class Setting:
    """How a picture is drawn. None is as the family does: guidance in its interval; and no budget, the dense model."""

    solver: str
    steps: int
    shift: float = 1.0
    interval: tuple[float, float] | None = None
    budget: int | None = None
    reuse: Reuse | None = None

    def __str__(self) -> str:
        """Its name in the table and in the file: no two have the same."""
        parts = [f"{self.solver} {self.steps}", None if self.shift == 1 else f"shift {self.shift:g}"]
        parts += [self.interval and "guided {:g} to {:g}".format(*self.interval)]
        parts += [self.budget and f"budget {self.budget}", self.reuse and str(self.reuse)]
        return ", ".join(filter(None, parts))


def adams_bashforth(
    velocity: Field, x: torch.Tensor, times: torch.Tensor, callback: Callback | None = None
) -> torch.Tensor:
    """Two steps, second order, by the velocity: x + h v + h^2 / 2 x (v - v before) / (h before)."""
    before = None
    for step, (t, t_next) in enumerate(pairwise(times.tolist())):
        now, h = velocity(x, t, step), t_next - t
        bend = 0.0 if before is None else (now - before[0]) * h / (2 * before[1])
        x, before = x + h * (now + bend), (now, h)
        if callback is not None:
            x = callback(step, x)
    return x


def solver_of(setting: Setting) -> Any:
    """What `sample` takes as a solver. UniPC goes by our times, DPM-Solver++ by its own, which begin at 0.001."""
    if setting.solver not in ("dpm++", "unipc"):
        return setting.solver
    import diffusers

    flow = {"use_flow_sigmas": True, "prediction_type": "flow_prediction"}
    if setting.solver == "unipc":
        return diffusers.UniPCMultistepScheduler(**flow)
    return diffusers.DPMSolverMultistepScheduler(**flow, flow_shift=setting.shift)


def draw(
    pipe: rti.Pipeline, setting: Setting, entries: Sequence[Entry]
) -> tuple[torch.Tensor, torch.Tensor, dict[str, float]]:
    """The last clean estimates and the solver's last states, in [-1, 1], and what they took."""
    model, dense, count = pipe.elastic, setting.budget is None, len(entries)
    with model.dense() if dense else nullcontext():
        backbone = model.backbone
        condition = pipe._condition([entry.prompt for entry in entries], None, 1)
        generators = [picture_generator(SEED, entry.index) for entry in entries]
        noise = draw_noise(
            (backbone.channels, *backbone.image_size), generators, backbone.flow.noise_scale, backbone.device
        )
        if setting.reuse is None:
            counted = Counted(model, dense, count)
        else:
            counted = reused(model, dense, setting.reuse, count, setting.steps)
        solver, seen = solver_of(setting), {}  # the first import of diffusers takes a second
        started = clock(backbone.device)
        state = sample(
            counted,
            noise,
            condition,
            steps=setting.steps,
            shift=setting.shift,
            solver=solver,
            finish="state",
            guidance_interval=setting.interval,
            budget=setting.budget,
            callback=lambda step, x, estimate: seen.update(estimate=estimate),
        )
        seconds = clock(backbone.device) - started
    taken = {"seconds": seconds, "evaluations": counted.calls, "guided": counted.guided, "passes": counted.rows / count}
    return seen["estimate"].clamp(-1, 1), state.clamp(-1, 1), taken


class Rows:
    """The file: of each setting and batch what it took, and for each picture its PSNR and whether it is right."""

    def __init__(self, path: Path, about: dict[str, Any], pictures: int):
        self.path, self.about, self.batches = path, about, range(pictures // BATCH)
        kept = read_json(path) if path.exists() else {"about": about, "rows": {}}
        if kept["about"] != about:
            raise rti.InputError(f"{path} is of {kept['about']}, this is {about}; give another file")
        self.rows: dict[str, dict[str, Any]] = kept["rows"]

    def has(self, setting: Setting, number: int) -> bool:
        return str(number) in self.rows.get(str(setting), {})

    def add(self, setting: Setting, number: int, values: dict[str, Any]) -> None:
        self.rows.setdefault(str(setting), {})[str(number)] = values
        self.write()

    def write(self, **more: Any) -> None:
        write_whole(self.path, json.dumps({"about": self.about, "rows": self.rows} | more) + "\n")

    def of(self, setting: Setting, name: str) -> np.ndarray:
        """A number for each picture, or for each batch."""
        return np.hstack([self.rows[str(setting)][str(number)][name] for number in self.batches])

    def seconds(self, setting: Setting) -> float:
        """Per picture."""
        return float(np.median(self.of(setting, "seconds")) / BATCH)


def measure(
    pipe: rti.Pipeline,
    rows: Rows,
    settings: Sequence[Setting],
    entries: Sequence[Entry],
    careful: Setting,
    references: Path,
) -> None:
    """Draw what the file does not have, and the references, by the careful setting, that theirs does not have."""
    score = GenEvalScorer(SceneDetector())
    todo = {number: [one for one in settings if not rows.has(one, number)] for number in rows.batches}
    with tqdm(total=sum(map(len, todo.values())), unit="batch", smoothing=0.0) as bar:
        for number, missing in todo.items():
            some = entries[number * BATCH : (number + 1) * BATCH]
            kept = load_file(references) if references.exists() else {}
            if missing and str(number) not in kept:
                bar.set_description(f"reference {number}")
                kept[str(number)] = draw(pipe, careful, some)[0].cpu().contiguous()
                with whole_file(references) as place:
                    save_file(kept, place)
            random.Random(number).shuffle(missing)
            for setting in missing:
                bar.set_description(str(setting))
                estimate, state, values = draw(pipe, setting, some)
                for name, pictures in (("psnr", estimate), ("state", state)):
                    values[name] = psnr((pictures.cpu() + 1) / 2, (kept[str(number)] + 1) / 2).tolist()
                values["right"] = [row["score"] for row in score(to_pil(estimate), some)]
                rows.add(setting, number, values)
                bar.update()
