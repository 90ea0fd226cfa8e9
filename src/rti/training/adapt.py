"""`rti adapt`: an adapter from prompts or labels alone. The frozen backbone is the teacher; no data set is touched.

First the closed form, then self-distillation from there; both go on where they stopped, and each leaves an adapter that
can be used. At the end it is measured against the frozen backbone, on prompts and noise that were not used.
"""

from __future__ import annotations

import json
import math
import os
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch
from tqdm.auto import tqdm

from rti.adapter import load_weights, note
from rti.backbones.base import Backbone
from rti.elastic import ElasticModel, attach
from rti.errors import InputError
from rti.files import is_repository_name, read_json, write_whole
from rti.flow import picture_generator
from rti.loading import load_backbone
from rti.method.config import ReductionConfig
from rti.pipeline import Pipeline
from rti.presets import default_core
from rti.seeds import seeded
from rti.text.encoder import TextEncoder, load_text_encoder, text_encoder_of
from rti.text.prompts import prompts_of_file, spread_labels, template_prompts, word_prompts
from rti.text.words import WordEncoder
from rti.training.closed_form import collect
from rti.training.config import AdaptConfig
from rti.training.distillation import Distillation, DistillationObjective
from rti.training.draws import Dial
from rti.training.settings import CONFIG, check_fits, check_unchanged, read_settings, write_settings
from rti.training.state import checkpoints, hold
from rti.training.trainer import Trainer, make_engine

HELD_OUT = 8  # prompts that are only measured on
UNUSED = 2**20  # what is added to the seed for noise that no training sees
MEASURED = 64  # states of them
FEWEST_STEPS = 20
COOLDOWN = 0.4  # the last share of the steps, over which the learning rate falls


def adapt(
    backbone: Backbone | str | Path,
    prompts: Sequence[str] | Sequence[int] | None = None,
    minutes: float = 20.0,
    output: str | Path | None = None,
    text_encoder: TextEncoder | None = None,
    **settings: Any,
) -> ElasticModel:
    """An adapter for a frozen backbone from prompts (or labels) alone, as `rti adapt` makes it; attached, for use.

    `output` is the folder of the run, where the adapter stays; without it nothing is kept but the model. `settings` are
    those of `rti adapt` (budgets, core, stage, own, ...).
    """
    with TemporaryDirectory(prefix="rti-") as place:
        given = settings | {"minutes": minutes, "output": str(output or place)}
        run = Adapting.of(backbone, given, text_encoder, prompts)
        run.run()
        load_weights(run.model, run.folder / "adapter")
        return run.model.eval()


@dataclass
class Subjects:
    """What trajectories are drawn for, and what is only measured on."""

    used: list[Any]
    held_out: list[Any]

    @classmethod
    def of(cls, config: AdaptConfig, backbone: Backbone, encoder: TextEncoder | None, given: Any) -> Subjects:
        if backbone.conditioned_on != "text":
            if config.prompts is not None:
                raise InputError(f"{config.prompts} given, but {type(backbone).__name__} draws from labels")
            classes = backbone.config.num_classes
            every = list(given or config.labels or spread_labels(classes, classes))
            return cls(every, [every[index % len(every)] for index in range(HELD_OUT)])  # of other noise
        if config.labels:
            raise InputError(f"labels {config.labels} given, but {type(backbone).__name__} draws from prompts")
        if given is not None or config.prompts is not None:
            every = list(prompts_of_file(Path(config.prompts)) if given is None else given)
        else:
            every = word_prompts(480) if isinstance(encoder, WordEncoder) else template_prompts()
        kept = min(HELD_OUT, len(every) // 4)
        return cls(every[: len(every) - kept], every[len(every) - kept :] or every)


class Adapting:
    """A run of `rti adapt` in its folder."""

    @classmethod
    def of(
        cls,
        model: Backbone | str | Path,
        given: dict[str, Any],
        encoder: TextEncoder | None = None,
        prompts: Sequence[Any] | None = None,
    ) -> Adapting:
        """From what was typed. A model without a preset has budgets and a core by its own sizes."""
        backbone, name = None, str(model)
        if isinstance(model, Backbone):
            backbone, name = model, str((model.source or {}).get("source", model.family))
        elif os.path.exists(name) or is_repository_name(name):
            backbone = load_backbone(name, dtype=getattr(torch, str(given.get("dtype") or "float32"), torch.float32))
        usual = {}
        if backbone is not None and not AdaptConfig.preset_values(name):
            budgets = tuple(max(1, backbone.patches // share) for share in (16, 8, 4, 2))
            usual = {"budgets": budgets, "core": default_core(backbone.depth)}
        typed = {key: value for key, value in given.items() if value is not None}
        config, reduction = read_settings({"model": name} | usual | typed, kind=AdaptConfig)
        return cls(config, reduction, backbone, encoder, prompts)

    def __init__(
        self,
        config: AdaptConfig,
        reduction: ReductionConfig,
        backbone: Backbone | None = None,
        encoder: TextEncoder | None = None,
        prompts: Sequence[Any] | None = None,
    ):
        self.began = time.monotonic()
        self.folder = Path(config.output)
        if backbone is None:
            dtype = getattr(torch, config.dtype)
            backbone = load_backbone(config.model, init=config.init, seed=config.seed, dtype=dtype)
        check_fits(config, reduction, backbone)
        if encoder is None and backbone.conditioned_on == "text":
            if config.init == "random" and config.text_encoder is None:  # to try the machinery, any words will do
                with seeded(config.seed):
                    encoder = WordEncoder(backbone.config.txt_input_size)
            else:
                encoder = load_text_encoder(config.text_encoder or text_encoder_of(backbone))
        self.encoder, self.subjects = encoder, Subjects.of(config, backbone, encoder, prompts)
        self.settings = asdict(config) | {"reduction": reduction.to_dict()}
        check_unchanged(self.folder, self.settings)
        if config.steps is None and checkpoints(self.folder):  # it was decided when the run began
            stored = read_json(self.folder / CONFIG)
            config = replace(config, steps=stored.get("steps"), cooldown=stored.get("cooldown", 0))
        self.config = config
        self.engine = make_engine(config)
        if hasattr(encoder, "to"):
            encoder.to(self.engine.device)
        with seeded(config.seed):  # LoRA's A starts at random
            self.model = attach(backbone.to(self.engine.device), reduction)
        if config.start_from is not None:
            load_weights(self.model, config.start_from)

    def run(self) -> dict[str, Any]:
        """All stages; gives back what was measured, for JSON. One that was stopped says so, and is not measured."""
        told: dict[str, Any] = {"output": str(self.folder), "adapter": str(self.folder / "adapter")}
        if self.config.stage != "distil" and not checkpoints(self.folder):
            lock = hold(self.folder) if self.engine.is_main_process else None
            try:
                told["explained"] = self.solve()
            finally:
                if lock is not None:
                    lock.release(force=True)
        told["linear_seconds"] = round(time.monotonic() - self.began)
        if self.config.stage != "linear":
            trainer = self.trainer()
            trainer.run()
            told |= {"step": trainer.step, "stopped": trainer.step < trainer.config.steps}
        if told.get("stopped") or not self.engine.is_main_process:
            return told
        load_weights(self.model, self.folder / "adapter")
        told["seconds"] = round(time.monotonic() - self.began)
        told["against_dense"] = self.measure()
        write_whole(self.folder / "results.json", json.dumps(told, indent=1) + "\n")
        note(self.folder / "adapter", self.card(told))
        return told

    def solve(self) -> dict[int, float]:
        """The closed form, by all processes together; its adapter is there afterwards."""
        config, engine = self.config, self.engine
        used, count = self.subjects.used, max(config.linear_prompts, engine.num_processes)
        chosen = {
            number: used[number % len(used)] for number in range(count)[engine.process_index :: engine.num_processes]
        }
        patches = self.model.backbone.patches
        budgets = sorted({*config.budgets, 3 * patches // 4})  # near dense, where little may be lost
        hidden = not engine.is_main_process
        with tqdm(total=len(chosen), desc="closed form", unit="prompt", disable=hidden) as bar, engine.autocast():
            scale = None if config.scales is None else math.sqrt(math.prod(config.scales))
            sums = collect(
                self.model,
                self.encoder,
                chosen,
                budgets,
                seed=config.seed,
                scale=scale,
                texts=config.text_budgets,
                store=self.folder / f"linear-{engine.process_index}.safetensors",
                on_part=lambda done: bar.update(done - bar.n),
            )
        for one in sums.values():
            one |= {name: engine.reduce(value, reduction="sum") for name, value in one.items()}
        solution = sums.solve()
        self.model.reduction.correct(solution)
        if engine.is_main_process:
            self.model.save_pretrained(self.folder / "adapter")
        return {budget: round(share, 3) for budget, share in sums.explained(solution).items()}

    def trainer(self) -> Trainer:
        """Self-distillation, resumed where it stopped. Where nobody said how many steps, as many as the time allows."""
        config = self.config
        task = Distillation(config, self.model, self.subjects.used, self.encoder)
        trainer = Trainer(replace(config, steps=config.steps or FEWEST_STEPS), task, self.engine)
        if config.steps is None:
            seconds = self.seconds_per_step(trainer)
            left = 60 * config.minutes - (time.monotonic() - self.began)
            steps = max(FEWEST_STEPS, int(left / seconds))
            config = replace(config, steps=steps, cooldown=config.cooldown or int(COOLDOWN * steps))
            trainer.config = task.config = config
        if trainer.accelerator.is_main_process:
            write_settings(self.folder, self.settings | {"steps": config.steps, "cooldown": config.cooldown})
        return trainer

    def seconds_per_step(self, trainer: Trainer) -> float:
        """Of a step of each budget, tried on the spot, without one being taken."""
        task, numbers = trainer.task, trainer.shares[0]
        kinds = (False,) if self.config.one_pass is None else (False, True)
        dials = [Dial(budget, False, guided=guided) for guided in kinds for budget in self.config.budgets]

        def try_them() -> float:
            started = time.monotonic()
            for dial in dials:
                trainer.accelerator.backward(trainer.objective(*task.batch(0, numbers, dial)).mean())
            return (time.monotonic() - started) / len(dials) * len(trainer.shares)

        try_them()  # the first one fills the set of states, and compiles
        told = torch.tensor(try_them(), device=trainer.accelerator.device)
        for optimiser in trainer.optimisers:
            optimiser.zero_grad()
        return float(trainer.accelerator.reduce(told, reduction="mean"))

    @torch.no_grad()
    def measure(self) -> list[dict[str, float]]:
        """Against the frozen backbone, from noise that was not used: PSNR of the picture, loss of the clean image."""
        config, asked, model = self.config, self.subjects.held_out, self.model
        other = replace(config, seed=config.seed + UNUSED, own=0.0, states=MEASURED, steps=1)
        task, places = Distillation(other, model, asked, self.encoder), range(len(asked))
        objective = DistillationObjective(model, features=0.0)
        task.states.fill()
        losses: dict[int, list[float]] = {budget: [] for budget in sorted(config.budgets, reverse=True)}
        for first in range(0, MEASURED, len(asked)):
            state = task.states.draw(first, places)
            for budget, some in losses.items():
                condition = task.states.conditions(state.subject.tolist())
                some.append(float(objective(state, condition, Dial(budget, False)).mean()))
        pipe, labels = Pipeline(model, self.encoder), self.encoder is None

        def draw(budget: int | str) -> torch.Tensor:
            generators = [picture_generator(config.seed + UNUSED, index) for index in places]
            subjects = {"label" if labels else "prompt": asked}
            how = {"num_inference_steps": 12, "batch_size": 4, "output_type": "pt", "progress": False}
            with pipe.drawing(budget == "dense") as drawing:
                return drawing(**subjects, budget=budget, generator=generators, **how).images

        rows, dense = [], draw("dense")
        for budget, some in losses.items():
            error = (draw(budget) - dense).square().flatten(1).mean(dim=1)
            row = {"budget": budget, "psnr": round(float(-10 * error.log10().mean()), 2)}
            rows.append(row | {"loss": round(sum(some) / len(some), 5)})
        return rows

    def card(self, told: dict[str, Any]) -> str:
        """What the adapter was made from, and how near it is to the frozen backbone."""
        what = "labels" if self.encoder is None else "prompts"
        rows = "\n".join(f"| {row['budget']} | {row['psnr']} dB | {row['loss']} |" for row in told["against_dense"])
        return f"""
## How it was made

By `rti adapt` from {len(self.subjects.used)} {what} and no data set, in {told["seconds"] / 60:.1f} minutes
({told.get("step", 0)} steps of {self.config.batch} after the closed form). Against the frozen backbone
on {len(self.subjects.held_out)} {what} with noise it never saw, 12 steps:

| regions | PSNR to dense | loss against dense |
|---|---|---|
{rows}
"""
