"""`rti adapt`: an adapter from prompts or labels alone. The frozen backbone is the teacher; no data set is touched.

First the closed form, then self-distillation from there; both go on where they stopped, and each leaves an adapter that
can be used. At the end it is measured against the frozen backbone, on prompts and noise that were not used.
"""

from __future__ import annotations

import itertools
import json
import math
import os
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, fields, replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch
from tqdm.auto import tqdm

from rti.adapter import Stored, load_weights, note
from rti.backbones.base import Backbone
from rti.elastic import ElasticModel, attach
from rti.errors import InputError, check_choice
from rti.files import is_repository_name, read_json, write_whole
from rti.loading import load_backbone, preset_like, usual_core
from rti.method.config import ReductionConfig, RegionConfig
from rti.precision import TYPED
from rti.presets import is_released
from rti.seeds import seeded
from rti.shipped import find_shipped
from rti.text.encoder import TextEncoder, load_text_encoder, text_encoder_of
from rti.text.words import WordEncoder
from rti.training.closed_form import collect
from rti.training.config import AdaptConfig
from rti.training.distillation import Distillation
from rti.training.draws import Dial
from rti.training.fidelity import against_dense
from rti.training.settings import CONFIG, check_fits, check_unchanged, read_settings, write_settings
from rti.training.state import hold, load_checkpoint
from rti.training.subjects import Subjects
from rti.training.trainer import Trainer, make_engine
from rti.training.trajectories import AT_ONCE, STEPS, Conditions

RESULTS = "results.json"
FEWEST_STEPS = 20
SLACK = 1.08  # of a tried step, for what it leaves out: the optimiser, checkpoints
SAVED = 300.0  # seconds: so often, at least, a checkpoint
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
        try:
            if run.run().get("stopped"):
                raise KeyboardInterrupt
            load_weights(run.model, run.folder / "adapter")
        except BaseException:
            run.model.detach()  # the backbone is the caller's
            raise
        return run.model.eval()


def _settings_of_start(adapter: str) -> dict[str, Any]:
    """The reduction of an adapter that a run begins with."""
    config = Stored.open(adapter).config
    if not isinstance(config, RegionConfig):
        raise InputError(f"{adapter} is a {config.name}; rti adapt goes on with regions only")
    follow = ("text_regions", "one_pass")  # from settings of the run
    return {field.name: getattr(config, field.name) for field in fields(config) if field.name not in follow}


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
        typed = {key: value for key, value in given.items() if value is not None}
        if isinstance(model, Backbone):
            backbone, name = model, str((model.source or {}).get("source", model.family))
        elif os.path.exists(name) or (is_repository_name(name) and not is_released(name)):
            dtype = str(typed.get("dtype", "float32"))
            check_choice("dtype", dtype, TYPED)
            backbone = load_backbone(name, size=typed.get("size"), dtype=getattr(torch, dtype))
        usual = {}
        if backbone is not None and (find_shipped(name) is None or os.path.exists(name)):
            preset = preset_like(backbone)
            budgets = tuple(max(1, backbone.patches // share) for share in (16, 8, 4, 2))
            usual = {"budgets": preset.budgets if preset else budgets, "core": usual_core(backbone)}
        if typed.get("start_from") is not None:
            usual |= _settings_of_start(typed["start_from"])
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
            backbone = load_backbone(config.model, config.size, config.init, config.seed, dtype)
        check_fits(config, reduction, backbone)
        if encoder is None and backbone.conditioned_on == "text":
            if config.init == "random" and config.text_encoder is None:  # to try the machinery, any words will do
                with seeded(config.seed):
                    encoder = WordEncoder(backbone.config.txt_input_size)
            else:
                encoder = load_text_encoder(config.text_encoder or text_encoder_of(backbone))
        self.encoder, self.subjects = encoder, Subjects.of(config, backbone, encoder, prompts)
        self.settings = asdict(config) | {"reduction": reduction.to_dict(), "subjects": self.subjects.digest()}
        check_unchanged(self.folder, self.settings)
        self.goes_on = load_checkpoint(self.folder) is not None
        if config.steps is None and self.goes_on:  # it was decided when the run began
            planned = read_json(self.folder / CONFIG)
            often = min(config.save_every, planned.get("save_every", config.save_every))
            config = replace(config, steps=planned.get("steps"), save_every=often)
            told = f"rti: {self.folder} goes on to the {config.steps} steps that were planned when it began"
            print(f"{told}; --steps changes them", file=sys.stderr)
        self.engine = make_engine(config)
        if self.engine.distributed_type == "FSDP":
            raise InputError("rti adapt is not for FSDP: the teacher draws pictures beside the training; allowed: DDP")
        self.config = config = _divided(config, self.engine.num_processes)
        if hasattr(encoder, "to"):
            encoder.to(self.engine.device)
        with seeded(config.seed):  # LoRA's A starts at random
            self.model = attach(backbone, reduction).to(self.engine.device)
        try:
            self._begin()
        except BaseException:
            self.model.detach()
            raise

    def _begin(self) -> None:
        """The adapter as the run begins with it; what cannot be is refused here, not after the closed form."""
        config, model = self.config, self.model
        for parameter in model.trainable_parameters().values():  # the closed form's too, whatever is frozen
            parameter.data = parameter.data.float()
        if config.start_from is not None and not self.goes_on:
            load_weights(model, config.start_from)
        if model.config.one_pass is not None:
            one = Conditions(model, self.encoder, self.subjects.used).of([0])
            model.prepare(one, guidance=torch.ones(1, device=self.engine.device))

    def run(self) -> dict[str, Any]:
        """All stages; gives back what was measured, for JSON. One that was stopped says so, and is not measured."""
        config, path = self.config, self.folder / RESULTS
        told = read_json(path) if self.goes_on and path.is_file() else {}  # of the sittings before
        told |= {"output": str(self.folder), "adapter": str(self.folder / "adapter")}
        if config.stage != "distil" and config.start_from is None and not self.goes_on:
            lock = hold(self.folder) if self.engine.is_main_process else None
            try:
                told["explained"] = self.solve()
            finally:
                if lock is not None:
                    lock.release(force=True)
            told["linear_seconds"] = round(time.monotonic() - self.began)
        before = told.get("step", 0)
        if config.stage != "linear":
            trainer = self.trainer()
            trainer.run(self.plan_again(trainer) if self.config.steps is None else None)
            told |= {"step": trainer.step, "stopped": trainer.step < trainer.config.steps}
        if not before or told["step"] > before:  # else there was nothing left to do
            told["seconds"] = told.get("seconds", 0) + round(time.monotonic() - self.began)
        if not self.engine.is_main_process:
            return told
        if not told.get("stopped"):
            load_weights(self.model, self.folder / "adapter")
            held_out = self.subjects.held_out
            told["against_dense"] = against_dense(self.model, self.encoder, held_out, self.config, self.scale)
            note(self.folder / "adapter", self.card(told))
        write_whole(path, json.dumps(told, indent=1) + "\n")
        if config.stage != "linear" and not told["stopped"]:
            for sums in self.folder.glob("linear-*.safetensors"):
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
            write_settings(self.folder, self.settings)
        return {budget: round(share, 3) for budget, share in sums.explained(solution).items()}

    def trainer(self) -> Trainer:
        """Self-distillation, resumed where it stopped. Where nobody said how many steps, as many as the time allows."""
        config = self.config
        task = Distillation(config, self.model, self.subjects.used, self.encoder)
        trainer = Trainer(replace(config, steps=config.steps or FEWEST_STEPS), task, self.engine)
        self.plan(trainer, None if config.steps else self.seconds_of_step(trainer))
        return trainer

    def plan(self, trainer: Trainer, seconds: float | None) -> None:
        """Train the steps that were asked for; or as many as the minutes still allow, of so many seconds each."""
        config = self.config
        steps, often = config.steps, config.save_every
        if seconds is not None:
            mine = [seconds, 60 * config.minutes - (time.monotonic() - self.began)]
            told = trainer.accelerator.gather(torch.tensor([mine], device=trainer.accelerator.device))
            seconds, left = float(told[:, 0].max()), float(told[:, 1].min())  # the slowest process decides
            steps, often = max(FEWEST_STEPS, trainer.step + int(left / seconds)), min(often, math.ceil(SAVED / seconds))
        planned = {"steps": steps, "cooldown": int(COOLDOWN * steps) if config.cooldown is None else config.cooldown}
        planned["save_every"] = often
        trainer.config = trainer.task.config = replace(config, **planned)
        if trainer.accelerator.is_main_process:
            write_settings(self.folder, self.settings | planned)

    def plan_again(self, trainer: Trainer) -> Callable[[int, float], None]:
        """After a quarter of the steps it is known how long they take."""
        quarter, started = trainer.config.steps // 4, time.monotonic()

        def on_step(step: int, loss: float) -> None:
            if step == quarter:
                self.plan(trainer, (time.monotonic() - started) / step)

        return on_step

    def seconds_of_step(self, trainer: Trainer) -> float:
        """Those of each budget are tried on the spot, and none is taken."""
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
        return seconds

    def card(self, told: dict[str, Any]) -> str:
        """What the adapter was made from, and how near it is to the frozen backbone."""
        what, config = "labels" if self.encoder is None else "prompts", self.config
        used = min(len(self.subjects.used), config.linear_prompts if config.stage == "linear" else 2**63)
        passes = " in one pass" if self.model.guides_itself(self.scale) else ""
        stages = [f"{told['step']} steps of {config.batch} against the frozen backbone"] if told.get("step") else []
        if "explained" in told:
            stages.insert(0, "Write's map in closed form")
        elif config.start_from is not None:
            stages.insert(0, f"from {config.start_from}")
        learned = "" if config.one_pass is None else f"It guides itself at scales of {config.guidance}. "
        rows = "\n".join(f"| {row['budget']} | {row['psnr']} dB | {row['loss']} |" for row in told["against_dense"])
        return f"""
## How it was made

By `rti adapt` from {used} {what} and no data set, in {told["seconds"] / 60:.1f} minutes: {", then ".join(stages)}.
{learned}Against the frozen backbone on {len(self.subjects.held_out)} {what} with noise it never saw, {STEPS} steps,
guidance {self.scale:g}{passes}:

| regions | PSNR to dense | loss against dense |
|---|---|---|
{rows}
"""
