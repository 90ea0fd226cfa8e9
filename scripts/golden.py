"""How far our networks and samplers are from the authors' own code, on the reference checkpoints in tests/data.

These are the comparisons of tests/test_golden.py, printed: our float32 against the authors' arrays, those against the
same network in float64, which is the rounding in them, and what the tests allow the two together. Velocities are
multiplied by the time left again, which they were divided by.
"""

import sys
from pathlib import Path

import torch

sys.path.insert(0, str(Path(__file__).parent.parent / "tests"))

import test_golden
from close import bound


def report(ours: torch.Tensor, authors: torch.Tensor, exact: torch.Tensor, gain: float = 1.0) -> None:
    difference, rounding = ((one - authors).abs().max().item() for one in (ours, exact))
    allowed = bound(authors, gain=gain) + rounding
    print(f"{difference:12.1e} {rounding:20.1e} {allowed:10.1e} {authors.abs().max().item():16.1f}")


if __name__ == "__main__":
    test_golden.assert_authors = report
    print(f"{'ours - authors':>12s} {'authors - float64':>18s} {'allowed':>10s} {'largest value':>16s}")
    for name in ("minit2i-tiny", "jit-tiny"):
        print(f"{name}, clean image; the same attached, with as many regions as patches")
        test_golden.test_the_clean_image_is_the_authors_also_of_an_attached_model_at_full_budget(name)
    print("minit2i-tiny, velocity; the same guided at scale 5")
    test_golden.test_the_velocity_is_the_authors()
    print("minit2i-tiny, 4 Euler steps at guidance 5")
    test_golden.test_sampling_gives_the_authors_images("minit2i-tiny", "euler4_cfg5", 5.0, 4, {}, 0.0)
    print("jit-tiny, 5 Heun steps at guidance 3")
    interval = dict(guidance_interval=(0.1, 1.0))
    test_golden.test_sampling_gives_the_authors_images("jit-tiny", "heun5_cfg3_0p1_1p0", 3.0, 5, interval, 0.1)
