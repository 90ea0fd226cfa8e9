"""The same prompt and seed at several budgets, with the model that ships: python examples/sample.py"""

import torch

import rti

pipe = rti.Pipeline.from_pretrained("scenes")
for budget in ("dense", 128, 64, "12.5%"):
    seed = torch.Generator().manual_seed(0)
    result = pipe("a red star left of a blue circle", budget=budget, generator=seed, num_inference_steps=12)
    result.images[0].save(f"star-{budget}.png")
    print(f"star-{budget}.png")
