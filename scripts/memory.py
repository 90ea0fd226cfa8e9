"""Peak memory of one forward pass at true size with random weights: python scripts/memory.py minit2i-l16"""

import argparse
import resource

import torch

import rti
from rti.lab.bench.benchmark import random_condition

if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("model", choices=sorted(rti.PRESETS))
    parser.add_argument("--budget", type=int, default=None, help="regions; all patches if not given")
    parser.add_argument("--dtype", default="float32", choices=("float32", "bfloat16"))
    options = parser.parse_args()

    backbone = rti.load_backbone(options.model, init="random", dtype=getattr(torch, options.dtype))
    model = rti.attach(backbone, rti.RegionConfig(core=rti.PRESETS[options.model].core, cuts="merge"))
    condition = random_condition(backbone, 1)
    with torch.no_grad():
        clean = model(torch.randn(1, backbone.channels, *backbone.image_size), 0.5, condition, budget=options.budget)
    gigabytes = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e6
    print(f"{options.model}, {options.dtype}: {gigabytes:.1f} GB at the most; finite: {bool(clean.isfinite().all())}")
