"""How far our networks and samplers are from the authors' own code, on the reference checkpoints in tests/data.

The velocities are the clean image's difference divided by as little as 0.05, and guidance takes 5 times one minus 4
times another: they show the rounding of the clean image 20 and 180 times enlarged. The last column is how far the
reference arrays are from the same network in float64, which is the rounding in the reference itself.
"""

from pathlib import Path

import numpy as np
import torch

import rti
from rti.flow import velocity

DATA = Path(__file__).parent.parent / "tests" / "data"


def load(name: str) -> tuple[rti.Backbone, dict[str, torch.Tensor]]:
    arrays = np.load(DATA / name / "golden.npz")
    return rti.load_backbone(DATA / name), {key: torch.from_numpy(arrays[key]) for key in arrays}


def report(name: str, ours: torch.Tensor, theirs: torch.Tensor, exact: torch.Tensor | None = None) -> None:
    difference = (ours - theirs).abs().max().item()
    rounding = "" if exact is None else f"; reference from float64 {(exact - theirs).abs().max().item():.2e}"
    print(f"{name:38s} {difference:.2e} absolute, of values up to {theirs.abs().max().item():.1f}{rounding}")


def velocities(
    backbone: rti.Backbone, x: torch.Tensor, t: torch.Tensor, condition
) -> tuple[torch.Tensor, torch.Tensor]:
    """The velocity, and the one guided at scale 5."""
    plain, empty = (
        velocity(backbone(x, t, some), x, t, backbone.flow.time_floor)
        for some in (condition, backbone.unconditional(condition))
    )
    return plain, empty + 5.0 * (plain - empty)


if __name__ == "__main__":
    with torch.no_grad():
        backbone, golden = load("minit2i-tiny")
        condition = backbone.condition(text=golden["text"], mask=golden["mask"])
        double = rti.load_backbone(DATA / "minit2i-tiny", dtype=torch.float64)
        x, t = golden["x"], golden["t"]
        report("MiniT2I, clean image", backbone(x, t, condition), golden["x0"], double(x.double(), t, condition))
        exact = velocities(double, x.double(), t, condition)
        for name, key, ours, theirs in zip(
            ("velocity", "guided velocity"), ("v", "v_cfg5"), velocities(backbone, x, t, condition), exact, strict=True
        ):
            report(f"MiniT2I, {name}", ours, golden[key], theirs)
        noise = backbone.flow.noise_scale * golden["unit_noise"]
        images = rti.sample(backbone, noise, condition, steps=4, guidance_scale=5.0)
        report("MiniT2I, 4 Euler steps at guidance 5", images, golden["euler4_cfg5"])

        backbone, golden = load("jit-tiny")
        clean = backbone(golden["x"], golden["t"], backbone.condition(labels=golden["y"]))
        report("JiT, clean image", clean, golden["x0"])
        noise = backbone.flow.noise_scale * golden["unit_noise"]
        condition = backbone.condition(labels=golden["labels"])
        images = rti.sample(backbone, noise, condition, steps=5, guidance_scale=3.0, guidance_interval=(0.1, 1.0))
        report("JiT, 5 Heun steps at guidance 3", images, golden["heun5_cfg3_0p1_1p0"])
