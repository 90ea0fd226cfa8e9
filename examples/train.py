"""A few steps of elastic fine-tuning in Python, on the model and the world that ship: python examples/train.py RUN"""

import sys

import rti
from rti.training.assemble import make_trainer
from rti.training.config import TrainConfig

config = TrainConfig(
    model="scenes-jit", output=sys.argv[1], data="scenes", steps=4, batch=4, batch_per_device=4, budgets=(32, 64)
)
reduction = rti.RegionConfig(core=(3, 7), cuts="merge", cuts_from="estimate")
trainer = make_trainer(config, reduction)
trainer.run(on_step=lambda step, loss: print(f"step {step}: loss {loss:.4f}"))
model = rti.load(f"{config.output}/adapter")  # the same command again would go on where it stopped
print(f"{config.output}/adapter: core {model.config.core}")
