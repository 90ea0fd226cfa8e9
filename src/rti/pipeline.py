"""A pipeline in the manner of diffusers: prompt or label in, pictures out, with a dial for the budget."""

from __future__ import annotations

import copy
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image

from rti.adapter import Stored
from rti.backbones.base import Backbone, Condition
from rti.dials import FILE, Dials, Preset, choose, measure_pace, read_presets, usual_presets, within
from rti.elastic import ElasticModel, attach, load
from rti.errors import InputError, UnsupportedModelError, check_choice, check_finite, check_switch, check_whole
from rti.flow import choose_times, draw_noise, interpolate
from rti.images import fit, to_pil, to_tensor
from rti.loading import load_backbone, usual_core
from rti.method.budgets import Budget, Budgets, Schedule, is_dense
from rti.method.config import RegionConfig
from rti.precision import check_device, check_dtype
from rti.sampling import check_callback, sample
from rti.scheduler import OwnSolver, check_scheduler
from rti.text.encoder import TextEncoder, load_text_encoder, text_encoder_of

OUTPUT_TYPES = ("pil", "np", "pt")
UNTRAINED = "untrained"  # as an adapter: a fresh interface
STRENGTH = 0.8  # of image-to-image, as in diffusers


@dataclass
class PipelineOutput:
    images: list[Image.Image] | np.ndarray | torch.Tensor
    regions: torch.Tensor | None = None  # (B, N) region of each patch at the last step, where asked for


class Pipeline:
    """Text or labels to pictures, at any budget.

    pipe = rti.Pipeline.from_pretrained("minit2i-b16", adapter="path/to/adapter")
    picture = pipe("a red cube on a table", budget=256, generator=torch.Generator().manual_seed(0)).images[0]
    """

    def __init__(self, model: ElasticModel | Backbone, text_encoder: TextEncoder | None = None):
        if not isinstance(getattr(model, "_orig_mod", model), (ElasticModel, Backbone)):
            raise UnsupportedModelError(
                f"a pipeline of a {type(model).__name__}; allowed: a model of rti.load_backbone, rti.attach or rti.load"
            )
        if text_encoder is not None and not callable(text_encoder):
            raise InputError(f"text_encoder {text_encoder!r} cannot be called; allowed: a text encoder, or none")
        self.model, self._text_encoder, self._scheduler = model, text_encoder, None
        self._text_source: tuple[Any, torch.dtype] | None = None
        self._presets: dict[str, Preset] | None = None
        self.adapter_folder: Path | None = None  # that it was loaded from
        self._pace: float | None = None  # seconds of a dense step here, once they were needed

    @classmethod
    def from_pretrained(
        cls,
        source: str | Path,
        adapter: str | Path | None = None,
        size: str | None = None,
        text_encoder: TextEncoder | str | Path | None = None,
        torch_dtype: torch.dtype | None = None,
        device: str | torch.device = "cpu",
        fuse: bool = True,
        dtype: torch.dtype | None = None,
        presets: str | Path | None = None,
        **options: Any,
    ) -> Pipeline:
        """From an adapter (a folder or a repository, which knows its backbone), or a backbone with or without one.

        A model that ships with rti, such as "scenes", comes with its adapter. The adapter "untrained" is a fresh
        interface, for where there is none (docs/settings.md).

        `text_encoder` replaces the one the checkpoint names; it is loaded when first needed. With `fuse` the LoRA is
        folded into the weights, which is faster. `dtype` and `torch_dtype` are the two spellings of diffusers for one
        thing, by default float32. `presets` is a file of `rti tune`, by default the one in the adapter's folder.
        `options` go to `rti.load_backbone`, such as init="random".
        """
        if "merge" in options:
            warnings.warn("merge= is now fuse=, as in diffusers; the old name goes in 0.3", FutureWarning, stacklevel=2)
            fuse = options.pop("merge")
        if dtype is not None and torch_dtype is not None and dtype is not torch_dtype:
            raise InputError(f"dtype {dtype!r} and torch_dtype {torch_dtype!r} given; they are one thing, give one")
        torch_dtype = next((given for given in (dtype, torch_dtype) if given is not None), torch.float32)
        check_dtype(torch_dtype)
        alone = adapter is not None or size is not None or options
        stored = None if alone else Stored.find(source)
        if stored is not None:
            model = load(stored, dtype=torch_dtype, device=device)
        else:
            model = load_backbone(source, size=size, dtype=torch_dtype, device=device, **options)
            if adapter == UNTRAINED:
                model = attach(model, RegionConfig(core=usual_core(model), **RegionConfig.untrained_defaults())).eval()
            elif adapter is not None:
                stored = Stored.open(adapter)
                model = load(stored, model)
        if fuse and isinstance(model, ElasticModel):
            model.fuse()
        pipe = cls(model, text_encoder if callable(text_encoder) else None)
        pipe._text_source = (text_encoder_of(pipe.backbone) if text_encoder is None else text_encoder, torch_dtype)
        if stored is not None:
            pipe.adapter_folder = stored.path
        own = None if stored is None or not (stored.path / FILE).is_file() else stored.path / FILE
        if (file := own if presets is None else presets) is not None:
            pipe.presets = read_presets(Path(file))
        return pipe

    @property
    def elastic(self) -> ElasticModel | None:
        """The attached model, also where it was compiled; None for a backbone alone."""
        inner = getattr(self.model, "_orig_mod", self.model)
        return inner if isinstance(inner, ElasticModel) else None

    @property
    def backbone(self) -> Backbone:
        return self.elastic.backbone if self.elastic is not None else getattr(self.model, "_orig_mod", self.model)

    @property
    def text_encoder(self) -> TextEncoder:
        if self._text_encoder is None:
            if self._text_source is None:
                raise InputError("this pipeline has no text encoder; give one: rti.Pipeline(model, text_encoder)")
            source, dtype = self._text_source
            self._text_encoder = load_text_encoder(source, dtype, self.backbone.device)
        return self._text_encoder

    @property
    def presets(self) -> dict[str, Preset]:
        """The usual ones, and those of `rti tune` from the adapter's folder."""
        text_regions = self.elastic is not None and self.elastic.config.text_regions
        return usual_presets(self.elastic is not None, text_regions) | (self._presets or {})

    @presets.setter
    def presets(self, presets: dict[str, Preset] | None) -> None:
        self._presets = presets

    @property
    def scheduler(self) -> Any:
        """Any flow scheduler of diffusers: pipe.scheduler = UniPCMultistepScheduler.from_config(pipe.scheduler.config).

        Until one is set, and after None is, the pipeline has its own solvers.
        """
        return OwnSolver() if self._scheduler is None else self._scheduler

    @scheduler.setter
    def scheduler(self, scheduler: Any) -> None:
        if scheduler is not None and not isinstance(scheduler, OwnSolver):
            check_scheduler(scheduler)
        self._scheduler = None if isinstance(scheduler, OwnSolver) else scheduler

    def to(self, *places: Any, device: Any = None, dtype: torch.dtype | None = None) -> Pipeline:
        """Move the model and its text encoder to a device, a dtype, or both, in either order as in diffusers."""
        for place in places:
            if isinstance(place, torch.dtype):
                dtype = place
            else:
                device = place
        check_device(self.backbone.device if device is None else device)
        check_dtype(self.backbone.dtype if dtype is None else dtype)
        self._pace = None
        encoder = getattr(self._text_encoder, "encoder", self._text_encoder)
        for module in (self.model, encoder):
            if isinstance(module, torch.nn.Module):
                module.to(device=device, dtype=dtype)
        if self._text_source is not None and dtype is not None:  # for when it is loaded
            self._text_source = (self._text_source[0], dtype)
        return self

    @contextmanager
    def drawing(self, dense: bool = False) -> Iterator[Pipeline]:
        """A pipeline ready for many pictures: the frozen backbone alone, or the model with its LoRA folded in.

        Afterwards the model is as it was: one in training goes on training.
        """
        model = self.elastic
        if model is None or (model.fused and not dense):
            yield self
        elif dense:
            if self.backbone.conditioned_on == "text":
                _ = self.text_encoder  # loaded once, for both
            ready = copy.copy(self)
            with model.dense() as ready.model:
                yield ready
        else:
            model.fuse()
            try:
                yield self
            finally:
                model.unfuse()

    def __call__(
        self,
        prompt: str | int | Sequence[str] | Sequence[int] | None = None,
        label: int | Sequence[int] | None = None,
        num_inference_steps: int | None = None,
        guidance_scale: float | None = None,
        guidance_interval: tuple[float, float] | None = None,
        generator: torch.Generator | Sequence[torch.Generator] | None = None,
        budget: Schedule | Budgets = None,
        guidance_budget: None = None,
        text_budget: Budget = None,
        dense: bool = False,
        num_images_per_prompt: int = 1,
        batch_size: int | None = None,
        image: Image.Image | torch.Tensor | None = None,
        strength: float | None = None,
        output_type: str = "pil",
        callback_on_step_end: Callable[[Pipeline, int, float, dict[str, torch.Tensor]], Any] | None = None,
        return_regions: bool = False,
        lenient: bool = False,
        progress: bool = True,
        guidance_passes: int | None = None,
        solver: str | None = None,
        shift: float | None = None,
        times: Sequence[float] | None = None,
        finish: str | None = None,
        preset: str | None = None,
        seconds: float | None = None,
    ) -> PipelineOutput:
        """Pictures for prompts (MiniT2I) or labels (JiT); a label may also be given in the prompt's place.

        Args:
            budget: Region tokens in the core: a number, a share of the patches (0.25 or "25%"), a list with one for
                each step, or a function of the step. None or "dense" is the frozen backbone without the adapter;
                1.0 is the adapter with as many regions as there are patches.
            text_budget: Text tokens in the trunk, a number or a share; None for all. It needs an adapter trained for
                it.
            guidance_passes: 1 or 2 passes of the model a guided step; None for one where the adapter was made for it
                (`rti adapt --guidance`), and else two.
            guidance_budget: Gone; both branches of guidance have the budget.
            dense: The same as the budget "dense".
            generator: One per picture, or one that draws the noise of all pictures in turn.
            image: Start from this picture instead of noise.
            strength: How much of it may change: 1 forgets it, 0.1 changes little, 0.8 is the default.
            batch_size: How many pictures to make at a time; it never changes a picture.
            callback_on_step_end: Called as diffusers does, with the pipeline, the step, its time, and a dict of
                "latents" (here the picture so far) and "estimate" (the clean picture predicted). A dict it gives back
                may hold other "latents" to go on with; it may raise to stop.
            return_regions: Also give back the regions of the last step.
            solver: "euler", "heun" or "multistep"; None for the scheduler that was set, else for the model's own.
            shift: Above 1, more of the steps are spent on noise, as in SD3.
            times: The times of the steps themselves, rising from 0 (noise) to 1 (picture); diffusers' sigmas are 1 - t.
            finish: "estimate" gives the last clean estimate, "state" the solver's last state, as the release does.
            preset: The name of one of `pipe.presets`; what is given beside it counts more.
            seconds: The best preset that takes no longer for a picture. They are measured by `rti tune`.
            lenient: Leave words out that the text encoder does not know, with a warning, instead of refusing them.
        """
        check_choice("output_type", output_type, OUTPUT_TYPES)
        switches = {"dense": dense, "return_regions": return_regions, "lenient": lenient, "progress": progress}
        for name, value in switches.items():
            check_switch(name, value)
        check_whole("num_images_per_prompt", num_images_per_prompt)
        if batch_size is not None:
            check_whole("batch_size", batch_size)
        if strength is not None and image is None:
            raise InputError(f"strength {strength!r} given without an image to start from; give image= as well")
        check_callback("callback_on_step_end", callback_on_step_end)
        budget = "dense" if dense and budget is None else budget
        typed = (num_inference_steps, solver, shift, finish, guidance_interval, guidance_passes, budget, text_budget)
        dials = Dials(*typed)
        if preset is not None or seconds is not None:
            chosen = self.dials(preset, seconds)
            dials = dials.over(chosen if times is None else replace(chosen, num_inference_steps=None, shift=None))
        budgets = Budgets.of(dials.budget, dials.text_budget, guidance_budget, dials.guidance_passes)
        if is_dense(budgets.image):
            budgets, dense = replace(budgets, image=None), True
        for name, value in budgets.given().items() if dense else ():
            raise InputError(
                f"{name} {value!r} given, but the frozen backbone has none; "
                "leave dense out, and give a budget such as 0.25, or 1.0 for all patches"
            )
        if return_regions and (dense or self.elastic is None):
            raise InputError(
                "return_regions given, but the frozen backbone has no regions; leave it out, or give a budget"
            )
        with self.elastic.dense() if dense and self.elastic is not None else nullcontext(self.model) as model:
            condition = self._condition(prompt, label, num_images_per_prompt, lenient)
            count = len(condition)
            noise = self._noise(count, generator)
            state, start = noise, 0
            own = self.backbone.flow.steps if times is None else None
            steps = own if dials.num_inference_steps is None else dials.num_inference_steps
            grid = choose_times(steps, dials.shift, times)
            steps = len(grid) - 1
            if not dense and self.elastic is not None:
                budgets = budgets.resolve(steps, self.backbone.patches)  # for all batches at once
            if image is not None:
                state, start = self._start_from(image, STRENGTH if strength is None else strength, noise, grid)
            parts, regions = [], []
            for first in range(0, count, batch_size or count):
                batch = slice(first, first + (batch_size or count))
                watcher = _Watcher(self, state[batch], grid, callback_on_step_end)
                picture = sample(
                    model,
                    watcher.state,
                    condition[batch],
                    times=grid,
                    solver=self._scheduler if dials.solver is None else dials.solver,
                    finish=dials.finish,
                    guidance_scale=guidance_scale,
                    guidance_interval=dials.guidance_interval,
                    budget=budgets,
                    start=start,
                    callback=watcher,
                    progress=progress,
                )
                parts.append(picture)
                if return_regions:
                    last = (watcher.state, watcher.time, condition[batch], budgets.image[-1], watcher.estimate)
                    regions.append(model.regions(*last, budgets.text))
        found = torch.cat(regions) if return_regions else None
        return PipelineOutput(_output(torch.cat(parts), output_type), found)

    def dials(self, preset: str | None = None, seconds: float | None = None) -> Dials:
        """Those of a preset, by its name or by the seconds that a picture may take here.

        For the seconds a dense step is timed, once.
        """
        if preset is not None and seconds is not None:
            raise InputError(f"preset {preset!r} and seconds {seconds!r} given; allowed: one of them")
        return choose(self.presets, preset).dials if seconds is None else within(self.presets, seconds, self.pace).dials

    def pace(self) -> float:
        """Seconds of a dense step of one picture, here and now; measured once."""
        if self._pace is None:
            subject = {"prompt": "a"} if self.backbone.conditioned_on == "text" else {"label": 0}
            how = {"budget": "dense", "solver": "euler", "output_type": "np", "progress": False}

            def draw(steps: int) -> None:
                self(**subject, num_inference_steps=steps, generator=torch.Generator(), **how)

            self._pace = measure_pace(draw)
        return self._pace

    @torch.no_grad()
    def _condition(self, prompt: Any, label: Any, repeats: int, lenient: bool = False) -> Condition:
        backbone = self.backbone
        if backbone.conditioned_on == "text":
            prompts = list(prompt) if isinstance(prompt, (list, tuple)) else [prompt]
            if label is not None:
                raise InputError(
                    f"{type(backbone).__name__} draws from a prompt, not from a label; got label {label!r}"
                )
            if not prompts or not all(isinstance(text, str) and text.strip() for text in prompts):
                raise InputError(f"prompt must be a text or a list of texts, none of them empty; got {prompt!r}")
            options = {"lenient": True} if lenient else {}  # an encoder of the user's own need not know it
            states, mask = self.text_encoder(prompts, backbone.config.prompt_length, **options)
            condition = backbone.condition(text=states.to(backbone.device), mask=mask.to(backbone.device))
        else:
            given = [value for value in (prompt, label) if value is not None]
            several = given and isinstance(given[0], (list, tuple, torch.Tensor, np.ndarray)) and np.ndim(given[0])
            labels = list(given[0]) if several else given
            if len(given) > 1 or not labels or any(isinstance(one, (bool, str, float)) for one in labels):
                shown = given[0] if len(given) == 1 else tuple(given) or None
                raise InputError(f"{type(backbone).__name__} draws from a class label, a whole number; got {shown!r}")
            condition = backbone.condition(labels=labels)
        index = torch.arange(len(condition), device=backbone.device).repeat_interleave(repeats)
        return backbone.prepare(condition)[index]

    def _noise(self, count: int, generator: Any) -> torch.Tensor:
        if generator is None:
            generator = torch.Generator().manual_seed(int(torch.randint(2**63 - 1, ())))  # as torch's own seed decides
        generators = [generator] * count if isinstance(generator, torch.Generator) else generator
        several = isinstance(generators, (list, tuple))
        if not several or not all(isinstance(one, torch.Generator) for one in generators):
            raise InputError(f"generator must be a torch.Generator or a list of them, got {generator!r}")
        if len(generators) != count:
            raise InputError(f"{len(generators)} generators for {count} pictures; give one per picture, or one for all")
        backbone = self.backbone
        shape = (backbone.channels, *backbone.image_size)
        return draw_noise(shape, generators, backbone.flow.noise_scale, backbone.device)

    def _start_from(
        self, image: Any, strength: float, noise: torch.Tensor, times: torch.Tensor
    ) -> tuple[torch.Tensor, int]:
        """The state at the step that leaves `strength` of the trajectory to go."""
        check_finite("strength", strength, above=0, most=1)
        steps = len(times) - 1
        if isinstance(image, Image.Image):
            image = to_tensor(fit(image.convert("RGB"), *self.backbone.image_size))
        if not isinstance(image, torch.Tensor):
            raise InputError(f"image must be a PIL image or a tensor, got {image!r}")
        if not image.is_floating_point():
            raise InputError(f"image is a tensor of {image.dtype}; allowed: floating-point numbers in [-1, 1]")
        if image.ndim != 4 or tuple(image.shape[1:]) != tuple(noise.shape[1:]) or len(image) not in (1, len(noise)):
            raise InputError(
                f"image of shape {tuple(image.shape)} does not fit; allowed: {tuple(noise.shape)} in [-1, 1]"
            )
        start = min(round((1.0 - strength) * steps), steps - 1)
        t = times[start].expand(len(noise)).to(noise.device)
        return interpolate(image.to(noise.device, torch.float32), noise, t), start


class _Watcher:
    """Sees every step: passes it on to the user's callback, and remembers what the last step starts from."""

    def __init__(self, pipeline: Pipeline, state: torch.Tensor, times: torch.Tensor, callback: Callable | None):
        self.pipeline, self.state, self.callback = pipeline, state, callback
        self.times, self.steps = times.tolist(), len(times) - 1
        self.time = self.times[-2]
        self.estimate: torch.Tensor | None = None

    def __call__(self, step: int, state: torch.Tensor, estimate: torch.Tensor) -> torch.Tensor:
        if self.callback is not None:
            given = {"latents": state, "estimate": estimate}
            returned = self.callback(self.pipeline, step, self.times[step], given)
            state = returned.get("latents", state) if isinstance(returned, dict) else state
        if step == self.steps - 2:
            self.state, self.estimate = state, estimate
        return state


def _output(images: torch.Tensor, kind: str) -> list[Image.Image] | np.ndarray | torch.Tensor:
    """diffusers' conventions: "np" and "pt" are in [0, 1], channels last and first."""
    if kind == "pil":
        return to_pil(images)
    unit = (images.float().clamp(-1, 1) + 1) / 2
    return unit.permute(0, 2, 3, 1).cpu().numpy() if kind == "np" else unit
