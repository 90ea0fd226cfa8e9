"""Wrong values for every public call: python scripts/fuzz_calls.py --cases 10000 --seed 0

Each case takes a call that works and puts one to three values of another kind in place of its arguments.
"""

from __future__ import annotations

import os
import random
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import fuzzing
import numpy as np
import torch
from PIL import Image

sys.path.insert(0, str(Path(__file__).parent.parent / "tests"))

import rti
from rti.data import open_data
from rti.images import check_output, fit, open_image
from rti.lab.pictures.generation import GenerationSettings
from rti.lab.probes.photograph import cut_photograph, load_photograph
from rti.method.budgets import parse_budget, resolve_budget, resolve_schedule
from rti.presets import find_preset, get_preset
from tiny import CORE, make_backbone, make_inputs, save_jit

VALUES: list[Any] = [
    *(
        None,
        True,
        False,
        0,
        1,
        2,
        -1,
        7,
        64,
        65,
        2**31,
        2**63,
        2**64,
        10**30,
        10**400,
        0.0,
        0.25,
        1.0,
        -0.5,
        1.5,
        1e308,
    ),
    *(float("nan"), float("inf"), -float("inf"), 1j, "", "x", "64", "25%", "dense", "cuda", "cuda:99", "meta:1", "jit"),
    *("a" * 300, "a" * 70_000, "a\0b", "~nouser", "\ud83d", "../..", "/dev/null", "/dev/zero/x", b"64", b""),
    *([], [1], [None], ["a", "b"], [0, 1], (0, 1), (1, 0), ("a", "b"), (1, 2, 3), {}, {"a": 1}, {1}, range(3)),
    *(object(), lambda *_: None, lambda *_: 8, Exception("x"), Path("nowhere"), Path("a" * 300)),
    *(torch.int8, torch.float16, torch.float32, torch.device("cpu"), torch.Generator()),
    *(torch.zeros(()), torch.zeros(0), torch.zeros(3), torch.zeros(1, 3, 32, 32), torch.zeros(2, 64, 8)),
    *(torch.full((1, 3, 32, 32), float("nan")), torch.zeros(1, 3, 32, 32, dtype=torch.int64), torch.tensor([99])),
    *(np.zeros(3), np.int64(8), np.float32(0.5), np.bool_(True), Image.new("RGB", (0, 0)), Image.new("L", (3, 5))),
]


class Call:
    """A call that works, by its arguments. `after` uses what it gives, where the fault may show only then."""

    def __init__(self, function: Callable[..., Any], after: Callable[[Any], object] | None = None, **works: Any):
        self.function, self.after, self.works = function, after, works
        self.run(works)

    def run(self, arguments: dict[str, Any]) -> None:
        result = self.function(**arguments)
        if self.after is not None:
            self.after(result)

    def __call__(self, rng: random.Random) -> None:
        names = rng.sample(list(self.works), min(rng.randint(1, 3), len(self.works)))
        self.run(self.works | {name: rng.choice(VALUES) for name in names})


def make_calls(root: Path) -> dict[str, Call]:
    """Every public call with arguments that work, on the smallest models there are."""
    folder = save_jit(root / "jit")
    picture = root / "a.png"
    Image.new("RGB", (40, 30), "red").save(picture)
    adapter = root / "adapter"
    rti.attach(make_backbone("jit"), rti.RegionConfig(core=CORE, lora_rank=2)).save_pretrained(adapter)
    jit, mini = make_backbone("jit"), make_backbone("minit2i")
    model = rti.attach(make_backbone("jit"), rti.RegionConfig(core=CORE, cuts="merge", cuts_from="estimate"))
    x, t, labels = make_inputs(jit, batch=1)
    _, _, text = make_inputs(mini, batch=1)
    pipe = rti.Pipeline(model)

    def attach(**options: Any) -> None:
        backbone = options.pop("backbone")
        rti.attach(make_backbone("jit") if backbone is None else backbone, **options).detach()

    def move(place: Any, dtype: Any) -> None:
        rti.Pipeline(make_backbone("jit")).to(place, dtype)

    config = dict(core=CORE, lora_rank=2, lora_alpha=2, text_regions=False, order="hilbert", cuts="gaps")
    config |= dict(cuts_from="features", size_prior=None, interface="learned", position="average", size_embedding=True)
    drawn = dict(
        prompt=None, label=1, num_inference_steps=1, guidance_scale=1.0, guidance_interval=None, generator=None
    )
    drawn |= dict(budget=8, text_budget=None, dense=False, num_images_per_prompt=1)
    drawn |= dict(batch_size=None, image=None, strength=None, output_type="pt", callback_on_step_end=None)
    drawn |= dict(return_regions=False, progress=False)
    sampled = dict(noise=x, condition=labels, steps=1, guidance_scale=1.0, guidance_interval=None, budget=8)
    sampled |= dict(text_budget=None, solver=None, start=0, callback=None, progress=False)
    passed = dict(x=x, t=t, condition=labels)
    return {
        "load_backbone": Call(
            rti.load_backbone, source=folder, size=None, init=None, seed=0, dtype=torch.float32, device="cpu"
        ),
        "random backbone": Call(find_or_get, name="jit-b16", size=None),
        "load": Call(rti.load, lambda model: model.detach(), folder=adapter, backbone=str(folder)),
        "attach": Call(attach, backbone=None, config=rti.RegionConfig(core=CORE, lora_rank=2)),
        "RegionConfig": Call(rti.RegionConfig, lambda config: hash(config), **config),
        "from_dict": Call(rti.RegionConfig.from_dict, values=config),
        "Pipeline": Call(rti.Pipeline, model=jit, text_encoder=None),
        "from_pretrained": Call(
            rti.Pipeline.from_pretrained, source=folder, adapter=None, size=None, text_encoder=None, dtype=None
        ),
        "to": Call(move, place="cpu", dtype=torch.float32),
        "pipe": Call(pipe, **drawn),
        "sample": Call(rti.sample, model=model, **sampled),
        "model": Call(model, **passed, budget=8, estimate=x, text_budget=None),
        "regions": Call(model.regions, **passed, budget=8, estimate=x),
        "backbone": Call(jit, **passed, budget=None, estimate=None),
        "labels": Call(jit.condition, labels=[1]),
        "text": Call(mini.condition, text=text.states, mask=text.mask),
        "order": Call(rti.order, name="hilbert", height=4, width=4),
        "merge_tree": Call(rti.merge_tree, features=torch.rand(1, 16, 3), size_prior=0.0, budget=None),
        "resolve_budget": Call(lambda budget: resolve_budget(budget, 64), budget=8),
        "resolve_schedule": Call(lambda budget: resolve_schedule(budget, 2, 64), budget=8),
        "parse_budget": Call(lambda text: parse_budget(str(text)), text="64"),
        "open_data": Call(open_data, lambda source: source[0], spec="scenes", size=32, flip=False, seed=0, kind=None),
        "open_image": Call(open_image, path=picture),
        "fit": Call(lambda height, width: fit(Image.new("RGB", (9, 9)), height, width), height=4, width=4),
        "photograph": Call(load_photograph, path=picture, size=64, patch=4),
        "cut_photograph": Call(
            lambda budget, cuts, order: cut_photograph(Image.new("RGB", (32, 32)), (8, 8), 4, budget, cuts, order),
            **dict(budget=8, cuts="merge", order="hilbert"),
        ),
        "check_output": Call(check_output, path=root / "b.png"),
        "GenerationSettings": Call(GenerationSettings, budget=8, steps=2, guidance=1.0, images=1, seed=0),
    }


def find_or_get(name: Any, size: Any) -> None:
    find_preset(name, size)
    get_preset(name, size)


if __name__ == "__main__":
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as root:
        place = Path(root) / "a" / "b" / "c"
        place.mkdir(parents=True)
        os.chdir(place)  # where "../.." is small
        fuzzing.main(make_calls(Path(root)), __doc__)
