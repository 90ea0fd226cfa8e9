"""Base training: a small MiniT2I backbone from scratch on the scenes world, with every parameter trainable.

Everything a step draws depends on the seed and the step alone, so a run that was stopped goes on as if it had not
been: to resume, run the same command again.
"""

from __future__ import annotations

import json
import math
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors.torch import save_file
from torch import nn
from tqdm.auto import tqdm

from rti import scenes
from rti.backbones import build
from rti.backbones.minit2i import MiniT2I
from rti.errors import InputError
from rti.sampling import sample
from rti.scenes.encoder import WordEncoder
from rti.training.loss import draw_times, noisy_state, velocity_loss
from rti.training.muon import Muon, split_parameters
from rti.training.settings import check_unchanged, parse_arguments
from rti.training.signals import on_stop_signal
from rti.training.state import load_checkpoint, save_checkpoint

# The embedded default: MiniT2I's structure, small. 16 x 16 patches and 64 text tokens, the release's 4 to 1.
SCENES_SIZES = dict(
    image_size=64,
    patch_size=4,
    txt_input_size=64,
    hidden_size=128,
    txt_hidden_size=128,
    cond_vec_size=128,
    depth_double=12,
    txt_preamble_depth=2,
    num_heads=4,
    head_dim=32,
    pca_channels=32,
    prompt_length=64,
    n_T=50,
    guidance_scale=3.0,
    llm="rti-words",
)


# What may differ when a run goes on.
FREE = {"output", "threads", "compile", "steps", "cooldown", "save_every", "keep"}
FREE |= {"evaluate_every", "evaluate_images", "evaluate_steps"}


@dataclass(frozen=True)
class PretrainConfig:
    """One run. `start_from` takes the weights of another run's `model` folder, such as one at half the size."""

    output: str
    steps: int = 100_000
    batch: int = 64
    image_size: int = 64
    prompt_length: int = 64
    noise_scale: float = 1.0
    learning_rate: float = 3e-3
    adam_learning_rate: float = 2e-3
    warmup: int = 200
    cooldown: int = 0  # steps at the end over which the learning rate falls to zero
    clip: float = 1.0
    ema: float = 0.999
    time_mean: float = -0.8
    time_deviation: float = 0.8
    drop: float = 0.1
    seed: int = 0
    start_from: str | None = None
    threads: int = 1
    compile: bool = True
    save_every: int = 250
    keep: int = 2
    evaluate_every: int = 2000  # 0: never
    evaluate_images: int = 120
    evaluate_steps: int = 25

    def __post_init__(self):
        for field in ("steps", "batch", "threads", "save_every", "keep"):
            if getattr(self, field) < 1:
                raise InputError(f"{field} must be at least 1, got {getattr(self, field)!r}")
        if self.image_size not in (32, 64):
            raise InputError(f"image_size must be 32 or 64, got {self.image_size!r}")

    def sizes(self) -> dict[str, Any]:
        return SCENES_SIZES | {
            "image_size": self.image_size,
            "prompt_length": self.prompt_length,
            "noise_scale": self.noise_scale,
            "patch_spacing": 64 / self.image_size,  # at half the size a patch lies between two of the full size
        }


class Learner(nn.Module):
    """What learns: the backbone and its word vectors."""

    def __init__(self, sizes: dict[str, Any], seed: int):
        super().__init__()
        self.backbone: MiniT2I = build("minit2i", sizes).to_empty(device="cpu")
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            self.encoder = WordEncoder(sizes["txt_input_size"])
            initialise(self.backbone)

    def forward(self, x: torch.Tensor, t: torch.Tensor, ids: torch.Tensor, keep: torch.Tensor) -> torch.Tensor:
        states, mask = self.encoder.embed(ids)
        return self.backbone(x, t, self.backbone.condition(text=states, mask=mask & keep[:, None]))


def initialise(backbone: MiniT2I) -> None:
    """Xavier for linear maps, residual branches scaled down by depth, and a head that starts at zero."""
    with torch.no_grad():
        for name, parameter in backbone.named_parameters():
            if "norm" in name:
                parameter.fill_(1.0)
            elif parameter.ndim == 1 or name.startswith("final_layer"):
                parameter.zero_()
            elif name == "mask_token":
                parameter.normal_(std=0.5)
            else:
                fan_in, fan_out = parameter[0].numel(), len(parameter)
                residual = name.endswith(("attn_proj.weight", "w2.weight"))
                scale = (2 * backbone.depth) ** -0.5 if residual else 1.0
                bound = scale * math.sqrt(6 / (fan_in + fan_out))
                parameter.uniform_(-bound, bound)


class Run:
    """A training run in its folder."""

    def __init__(self, config: PretrainConfig):
        self.config, self.folder = config, Path(config.output)
        check_unchanged(self.folder, asdict(config), FREE)
        torch.set_num_threads(config.threads)
        self.learner = Learner(config.sizes(), config.seed)
        if config.start_from is not None:
            start_from(self.learner, Path(config.start_from))
        self.average = Learner(config.sizes(), config.seed).requires_grad_(False)
        self.average.load_state_dict(self.learner.state_dict())
        matrices, others = split_parameters([self.learner])
        self.optimisers = [
            Muon(matrices, lr=config.learning_rate),
            torch.optim.AdamW(others, lr=config.adam_learning_rate, betas=(0.9, 0.95), weight_decay=0.0),
        ]
        self.step, self.bad_steps, self.seconds = 0, 0, 0.0
        self._resume()
        if config.compile:
            for block in [*self.learner.backbone.double_blocks, *self.learner.backbone.txt_preamble_blocks]:
                block.compile()
        self.stopping = False

    def learning_rate_factor(self) -> float:
        config = self.config
        rise = min(1.0, (self.step + 1) / config.warmup) if config.warmup else 1.0
        left = config.steps - self.step
        fall = min(1.0, left / config.cooldown) if config.cooldown else 1.0
        return rise * fall

    def train_step(self) -> float:
        """One step; a loss that is not finite is skipped and counted. Gives back the loss."""
        config = self.config
        data = scenes.batch(config.seed, self.step, config.batch, size=config.image_size, length=config.prompt_length)
        images, ids = torch.from_numpy(data.images), torch.from_numpy(data.ids)
        generator = torch.Generator().manual_seed(config.seed * 1_000_000_007 + self.step)
        t = draw_times(config.batch, config.time_mean, config.time_deviation, generator)
        keep = torch.rand(config.batch, generator=generator) >= config.drop
        x = noisy_state(images, t, config.noise_scale, generator)
        flow = self.learner.backbone.flow
        loss = velocity_loss(self.learner(x, t, ids, keep), images, t, flow.time_floor)
        value = loss.item()
        factor = self.learning_rate_factor()
        for optimiser, rate in zip(self.optimisers, (config.learning_rate, config.adam_learning_rate), strict=True):
            optimiser.zero_grad()
            for group in optimiser.param_groups:
                group["lr"] = rate * factor
        if math.isfinite(value):
            self.bad_steps = 0
            loss.backward()
            torch.nn.utils.clip_grad_norm_(self.learner.parameters(), config.clip)
            for optimiser in self.optimisers:
                optimiser.step()
            decay = min(config.ema, (self.step + 1) / (self.step + 20))
            with torch.no_grad():
                torch._foreach_lerp_(list(self.average.parameters()), list(self.learner.parameters()), 1 - decay)
        else:
            self.bad_steps += 1
            if self.bad_steps >= 5:
                raise InputError(
                    f"the loss was not finite five steps in a row, at step {self.step}; lower the learning rate"
                )
        self.step += 1
        return value

    def run(self) -> None:
        config = self.config
        bar = tqdm(total=config.steps, initial=self.step, desc=self.folder.name, unit="step", mininterval=5)
        losses, clock = [], time.perf_counter()
        try:
            with on_stop_signal(self._stop):
                while self.step < config.steps and not self.stopping:
                    losses.append(self.train_step())
                    bar.update()
                    if self.step % 50 == 0:
                        now = time.perf_counter()
                        self.seconds += now - clock
                        rate = len(losses) * config.batch / (now - clock)
                        clock = now
                        bar.set_postfix(loss=f"{np.mean(losses):.4f}", images=f"{rate:.0f}/s")
                        self.log(loss=round(float(np.mean(losses)), 5), images_per_second=round(rate, 1))
                        losses = []
                    if self.step % config.save_every == 0:
                        self.save()
                    if config.evaluate_every and (self.step % config.evaluate_every == 0 or self.step == config.steps):
                        started = time.perf_counter()
                        self.evaluate()
                        clock += time.perf_counter() - started
                self.save()
        finally:
            bar.close()

    def _stop(self, *_: Any) -> None:
        self.stopping = True

    def log(self, **values: Any) -> None:
        entry = {"step": self.step, "pictures": self.step * self.config.batch, "hours": round(self.seconds / 3600, 3)}
        with (self.folder / "log.jsonl").open("a") as file:
            file.write(json.dumps(entry | values) + "\n")

    def evaluate(self) -> None:
        """Accuracy of the averaged weights on fixed prompts and seeds, and a sheet of samples."""
        from rti.images import contact_sheet, save_image, to_pil

        config, backbone = self.config, self.average.backbone
        prompts = scenes.prompts(config.evaluate_images, seed=12345)
        pictures = []
        for first in range(0, len(prompts), 60):
            some = prompts[first : first + 60]
            with torch.no_grad():
                states, mask = self.average.encoder([scene.caption for scene in some], config.prompt_length)
            generator = torch.Generator().manual_seed(first)
            noise = torch.randn(len(some), 3, *backbone.image_size, generator=generator) * config.noise_scale
            condition = backbone.condition(text=states, mask=mask)
            pictures.append(sample(backbone, noise, condition, steps=config.evaluate_steps).clamp(-1, 1))
        images = torch.cat(pictures)
        result = scenes.score(prompts, images.numpy())
        self.log(accuracy=round(result.overall, 4), tasks={task: round(v, 3) for task, v in result.tasks.items()})
        tiles = [picture.resize((128, 128), 0) for picture in to_pil(images[:24])]
        captions = [scene.caption for scene in prompts[:24]]
        rows = [tiles[first : first + 6] for first in range(0, len(tiles), 6)]
        save_image(contact_sheet(rows, column_labels=captions[:6]), self.folder / "samples.png")

    # Saving and resuming.

    def save(self) -> None:
        tensors = {f"learner.{name}": value for name, value in self.learner.state_dict().items()}
        tensors |= {f"average.{name}": value for name, value in self.average.state_dict().items()}
        for index, optimiser in enumerate(self.optimisers):
            for number, state in optimiser.state_dict()["state"].items():
                tensors |= {f"optimiser.{index}.{number}.{key}": torch.as_tensor(value) for key, value in state.items()}
        values = {"bad_steps": self.bad_steps, "seconds": self.seconds}
        save_checkpoint(self.folder, self.step, tensors, values, self.config.keep)
        save_model(self.average, self.folder / "model")

    def _resume(self) -> None:
        loaded = load_checkpoint(self.folder)
        if loaded is None:
            return
        tensors, values = loaded
        self.step, self.bad_steps, self.seconds = values["step"], values["bad_steps"], values["seconds"]
        for name, module in (("learner", self.learner), ("average", self.average)):
            module.load_state_dict(_under(tensors, f"{name}."))
        for index, optimiser in enumerate(self.optimisers):
            state: dict[int, dict[str, torch.Tensor]] = {}
            for key, value in _under(tensors, f"optimiser.{index}.").items():
                number, name = key.split(".")
                state.setdefault(int(number), {})[name] = value
            optimiser.load_state_dict(optimiser.state_dict() | {"state": state})


def _under(tensors: dict[str, torch.Tensor], prefix: str) -> dict[str, torch.Tensor]:
    return {key.removeprefix(prefix): value for key, value in tensors.items() if key.startswith(prefix)}


def start_from(learner: Learner, folder: Path) -> None:
    """Take the weights of a saved model; the position tables are the learner's own."""
    from rti.backbones.checkpoint import read_state

    learner.backbone.load_state_dict(read_state(folder / "transformer" / "diffusion_pytorch_model.safetensors")[0])
    learner.encoder.load_state_dict(WordEncoder.from_pretrained(folder / "text_encoder").state_dict())


def save_model(learner: Learner, folder: Path) -> None:
    """Write the model in the release's layout, with its text encoder beside it."""
    transformer = folder / "transformer"
    transformer.mkdir(parents=True, exist_ok=True)
    config = asdict(learner.backbone.config) | {"_class_name": "MiniT2IMMJiTModel"}
    (transformer / "config.json").write_text(json.dumps(config, indent=2) + "\n", encoding="utf-8")
    state = {f"model.net.{key}": value.detach().contiguous() for key, value in learner.backbone.state_dict().items()}
    save_file(state, transformer / "diffusion_pytorch_model.safetensors", metadata={"format": "pt"})
    learner.encoder.save_pretrained(folder / "text_encoder")


if __name__ == "__main__":
    import sys

    Run(PretrainConfig(**parse_arguments(sys.argv[1:], PretrainConfig))).run()
