"""`rti adapt`: an adapter from prompts or labels alone. The frozen backbone is the teacher; no data set is touched.

First the closed form, then self-distillation from there; both go on where they stopped, and each leaves an adapter that
can be used. At the end it is measured against the frozen backbone, on prompts and noise that were not used.
"""

from __future__ import annotations

import itertools
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
from rti.presets import default_core, is_released
from rti.seeds import seeded
from rti.text.encoder import TextEncoder, load_text_encoder, text_encoder_of
from rti.text.prompts import prompts_of_file, spread_labels, template_prompts, word_prompts
from rti.text.words import WordEncoder
from rti.training.closed_form import collect
from rti.training.config import AdaptConfig
from rti.training.distillation import Distillation
from rti.training.draws import Dial
from rti.training.settings import CONFIG, check_fits, check_unchanged, read_settings, write_settings
from rti.training.state import checkpoints, hold
from rti.training.trainer import Trainer, make_engine
from rti.training.trajectories import AT_ONCE, Conditions

HELD_OUT = 8  # prompts that are only measured on
UNUSED = 2**20  # what is added to the seed for noise that no training sees
MEASURED = 4  # states of each of their pictures
FEWEST_STEPS = 20
SLACK = 1.08  # of a tried step, for what it leaves out: the optimiser, checkpoints
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
    those of `rti adapt` (budgets, core, stage, reuse, ...).
    """
    with TemporaryDirectory(prefix="rti-") as place:
        given = settings | {"minutes": minutes, "output": str(output or place)}
        run = Adapting.of(backbone, given, text_encoder, prompts)
        run.run()
        load_weights(run.model, run.folder / "adapter")
        return run.model.eval()


@dataclass
class Subjects:
    """What the teacher draws, and what is only measured on."""

    used: list[Any]
    held_out: list[Any]

    @classmethod
    def of(cls, config: AdaptConfig, backbone: Backbone, encoder: TextEncoder | None, given: Any) -> Subjects:
        if given is not None:
            if isinstance(given, str) or not len(given):
                raise InputError(f"prompts {given!r} are not usable; allowed: a list of prompts or of labels")
            given = list(given)
        if backbone.conditioned_on != "text":
            if config.prompts is not None:
                raise InputError(f"{config.prompts} given, but {type(backbone).__name__} draws from labels")
            classes = backbone.config.num_classes
            every = [int(label) for label in given or config.labels or spread_labels(classes, classes)]
            backbone.condition(labels=every)  # refuses what is none
            return cls(every, [every[index % len(every)] for index in range(HELD_OUT)])  # of other noise
        if config.labels:
            raise InputError(f"labels {config.labels} given, but {type(backbone).__name__} draws from prompts")
        if given is not None or config.prompts is not None:
            every = prompts_of_file(Path(config.prompts)) if given is None else given
        else:
            every = word_prompts(2000) if isinstance(encoder, WordEncoder) else template_prompts()
        every = list(dict.fromkeys(every))
        if isinstance(encoder, WordEncoder):
            encoder(every, backbone.config.prompt_length)  # refuses words it does not know
        kept = min(HELD_OUT, len(every) // 4)
        return cls(every[: len(every) - kept], every[len(every) - kept :] or every)


def _divided(config: AdaptConfig, processes: int) -> AdaptConfig:
    """The same with as many examples on each device as divide the batch; one that does not divide is refused."""
    each = max(1, config.batch // processes)
    at_once = max(number for number in range(1, each + 1) if each % number == 0 and number <= config.batch_per_device)
    config = replace(config, batch_per_device=at_once)
    config.accumulation(processes)
    return config


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
        elif os.path.exists(name) or (is_repository_name(name) and not is_released(name)):
            options = {"init": given.get("init"), "seed": int(given.get("seed") or 0)}
            options["dtype"] = getattr(torch, str(given.get("dtype") or "float32"), torch.float32)
            backbone = load_backbone(name, **options)
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
            config = replace(config, steps=read_json(self.folder / CONFIG).get("steps"))
        self.engine = make_engine(config)
        if self.engine.distributed_type == "FSDP":
            raise InputError("rti adapt is not for FSDP: the teacher draws pictures beside the training; allowed: DDP")
        self.config = config = _divided(config, self.engine.num_processes)
        if hasattr(encoder, "to"):
            encoder.to(self.engine.device)
        with seeded(config.seed):  # LoRA's A starts at random
            self.model = attach(backbone, reduction).to(self.engine.device)
        for parameter in self.model.trainable_parameters().values():  # the closed form's too, whatever is frozen
            parameter.data = parameter.data.float()
        if config.start_from is not None and not checkpoints(self.folder):
            load_weights(self.model, config.start_from)
        if reduction.one_pass is not None:  # refused here, not after the closed form
            one = Conditions(self.model, encoder, self.subjects.used).of([0])
            self.model.prepare(one, guidance=torch.ones(1, device=self.engine.device))

    def run(self) -> dict[str, Any]:
        """All stages; gives back what was measured, for JSON. One that was stopped says so, and is not measured."""
        told: dict[str, Any] = {"output": str(self.folder), "adapter": str(self.folder / "adapter")}
        if self.config.stage != "distil" and self.config.start_from is None and not checkpoints(self.folder):
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
        for sums in self.folder.glob("linear-*.safetensors") if self.config.stage != "linear" else ():
            sums.unlink()  # nobody needs them any more
        return told

    @property
    def scale(self) -> float:
        """The guidance scale of the closed form and of what is measured: the model's own, or the middle of a range."""
        scales, own = self.config.scales, self.model.backbone.flow.guidance_scale
        return own if scales is None or scales[0] <= own <= scales[1] else math.sqrt(math.prod(scales))

    def solve(self) -> dict[int, float]:
        """The closed form, by all processes together; its adapter is there afterwards."""
        config, engine = self.config, self.engine
        used, count = self.subjects.used, max(config.linear_prompts, engine.num_processes)
        chosen = {
            number: used[number % len(used)] for number in range(count)[engine.process_index :: engine.num_processes]
        }
        patches = self.model.backbone.patches
        budgets = {*config.budgets, 3 * patches // 4}  # also near dense, where little may be lost
        budgets = sorted(budget for budget in budgets if 0 < budget < patches)  # all of them: nothing is missed
        hidden = not engine.is_main_process
        with tqdm(total=len(chosen), desc="closed form", unit="prompt", disable=hidden) as bar, engine.autocast():
            sums = collect(
                self.model,
                self.encoder,
                chosen,
                budgets,
                seed=config.seed,
                scale=self.scale,
                texts=config.text_budgets,
                store=self.folder / f"linear-{engine.process_index}.safetensors",
                on_part=lambda done: bar.update(done - bar.n),
            )
        for budget, name in itertools.product(budgets, ("gram", "cross", "energy")):  # in one order everywhere
            sums[budget][name] = engine.reduce(sums[budget][name], reduction="sum")
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
        steps = config.steps or self.steps_in_time(trainer)
        cooldown = int(COOLDOWN * steps) if config.cooldown is None else config.cooldown
        trainer.config = task.config = config = replace(config, steps=steps, cooldown=cooldown)
        if trainer.accelerator.is_main_process:
            write_settings(self.folder, self.settings | {"steps": config.steps, "cooldown": config.cooldown})
        return trainer

    def steps_in_time(self, trainer: Trainer) -> int:
        """As many as the minutes allow, by a step of each budget, tried on the spot, without one being taken."""
        task, numbers = trainer.task, trainer.shares[0]
        kinds = (False,) if self.config.one_pass is None else (False, True)
        dials = [Dial(budget, False, guided=guided) for guided in kinds for budget in self.config.budgets]

        def try_them() -> float:
            started = time.monotonic()
            for dial in dials:
                loss = trainer.objective(*task.batch(0, numbers, dial)).mean()
                trainer.accelerator.backward(loss)
                float(loss.detach())  # which waits for a GPU
            return (time.monotonic() - started) / len(dials) * len(trainer.shares)

        try_them()  # the first one draws the first pictures, and compiles
        seconds, started = try_them(), time.monotonic()
        task.pictures.draw_until(task.pictures.drawn + 1)
        share = self.config.batch / (self.config.reuse * trainer.accelerator.num_processes * AT_ONCE)  # of them a step
        seconds = SLACK * (seconds + share * (time.monotonic() - started))
        for optimiser in trainer.optimisers:
            optimiser.zero_grad()
        mine = [seconds, 60 * self.config.minutes - (time.monotonic() - self.began)]
        told = torch.tensor(mine, device=trainer.accelerator.device)
        seconds, left = trainer.accelerator.reduce(told, reduction="mean").tolist()  # the same on every process
        return max(FEWEST_STEPS, int(left / seconds))

    @torch.no_grad()
    def measure(self) -> list[dict[str, float]]:
        """Against the frozen backbone, from noise that was not used: PSNR of the picture, loss of the clean image."""
        config, asked, model = self.config, self.subjects.held_out, self.model
        other = replace(config, seed=config.seed + UNUSED, steps=1, compile=False)
        task, places = Distillation(other, model, asked, self.encoder), range(len(asked))
        task.module.features, task.module.balanced = 0.0, False
        task.pictures.draw_until(len(asked))
        losses: dict[int, list[float]] = {budget: [] for budget in sorted(config.budgets, reverse=True)}
        for step, (budget, some) in itertools.product(range(MEASURED), losses.items()):
            dial = Dial(budget, False, guided=config.one_pass is not None)
            some.append(float(task.module(*task.examples(step, places, dial)).mean()))
        pipe, labels = Pipeline(model, self.encoder), self.encoder is None

        def draw(budget: int | str) -> torch.Tensor:
            generators = [picture_generator(config.seed + UNUSED, index) for index in places]
            subjects = {"label" if labels else "prompt": asked}
            how = {"num_inference_steps": 12, "batch_size": 4, "output_type": "pt", "progress": False}
            how["guidance_scale"] = self.scale
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
        passes = " in one pass" if self.model.guides_itself(self.scale) else ""
        rows = "\n".join(f"| {row['budget']} | {row['psnr']} dB | {row['loss']} |" for row in told["against_dense"])
        return f"""
## How it was made

By `rti adapt` from {len(self.subjects.used)} {what} and no data set, in {told["seconds"] / 60:.1f} minutes
({told.get("step", 0)} steps of {self.config.batch} after the closed form). Against the frozen backbone
on {len(self.subjects.held_out)} {what} with noise it never saw, 12 steps, guidance {self.scale:g}{passes}:

| regions | PSNR to dense | loss against dense |
|---|---|---|
{rows}
"""
