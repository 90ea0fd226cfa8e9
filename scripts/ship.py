"""Put trained models into the package: backbone in bfloat16, adapters, what they measured, and a card.

python scripts/ship.py scenes --model RUN/model                    # before the adapter trains, on these very weights
python scripts/ship.py scenes --adapter RUN/adapter [--as adapter-gaps]
python scripts/ship.py scenes --results results.json --hours 6.5 --pictures 300000   # of rti eval scenes --json
"""

from __future__ import annotations

import argparse
import json
import shutil
from pathlib import Path

import torch

from rti.loading import load_backbone, save_backbone
from rti.shipped import MODELS
from rti.text.encoder import load_text_encoder, text_encoder_of

parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
parser.add_argument("name")
parser.add_argument("--model", type=Path)
parser.add_argument("--adapter", type=Path)
parser.add_argument("--as", dest="called", default="adapter")
parser.add_argument("--results", type=Path)
parser.add_argument("--hours", type=float, help="of training, for the card")
parser.add_argument("--pictures", type=int, help="seen in training, for the card")
arguments = parser.parse_args()
folder = MODELS / arguments.name

CARD = """---
license: apache-2.0
library_name: region-tokens
pipeline_tag: {task}
tags: [region-tokens, rti, {family}]
---

# {name}

A small {family} backbone ({parameters:.1f} M parameters, {patches} patches) with its region token adapter, trained from
scratch for [region-tokens](https://pypi.org/project/region-tokens/). It draws the *scenes* world and nothing else.

- **Data:** the procedural world of `rti.lab.scenes`: shapes in colours and textures on plain or graded
  backgrounds{data}. Nothing is downloaded, nothing is anyone's work.
- **Recipe:** `docs/default.md` in the repository has the exact commands. {seen}
- **Licence:** Apache-2.0, weights and code.
- **Limits:** 64 x 64 pictures of that world; {limits}.

{table}
"""


def size_of(path: Path) -> float:
    return sum(file.stat().st_size for file in path.rglob("*") if file.is_file()) / 1e6


if arguments.model is not None:
    backbone = load_backbone(arguments.model, dtype=torch.bfloat16)
    save_backbone(backbone, folder)
    if backbone.conditioned_on == "text":
        load_text_encoder(text_encoder_of(backbone)).to(torch.bfloat16).save_pretrained(folder / "text_encoder")
if arguments.adapter is not None:
    target = folder / arguments.called
    shutil.rmtree(target, ignore_errors=True)
    shutil.copytree(arguments.adapter, target)
results = folder / "results.json"
if arguments.model is not None or (arguments.adapter is not None and arguments.called == "adapter"):
    results.unlink(missing_ok=True)  # of other weights
if arguments.results is not None:
    values = json.loads(arguments.results.read_text().strip().splitlines()[-1])
    known = json.loads(results.read_text()) if results.is_file() else {}
    for name in ("hours", "pictures"):  # of training, once said
        values[name] = getattr(arguments, name) or known.get(name)
    results.write_text(json.dumps(values, indent=1) + "\n")
table, seen = "Not measured yet.", ""
if results.is_file():
    values = json.loads(results.read_text())
    if values.get("pictures"):
        seen = f"{values['pictures']:,} pictures in {values['hours']:.1f} hours on a machine of 2 CPU cores."
    tasks = list(values["tasks"])
    lines = [f"| budget | overall (95 % interval) | {' | '.join(tasks)} |", "|---|---|" + "---|" * len(tasks)]
    for row in values["rows"]:
        low, high = (100 * bound for bound in row["interval"])
        cells = " | ".join(f"{100 * row['tasks'][task]:.1f}" for task in tasks)
        lines.append(f"| {row['budget']} | {100 * row['overall']:.1f} ({low:.1f} to {high:.1f}) | {cells} |")
    budgets = ",".join(str(row["budget"]) for row in values["rows"])
    command = f"rti eval scenes {arguments.name} --budget {budgets} --images {values['images']} --seed {values['seed']}"
    table = f"% right, by `{command} --steps {values['steps']}`:\n\n" + "\n".join(lines)
backbone = load_backbone(folder)
by_text = backbone.conditioned_on == "text"
words, classes = "words outside its vocabulary are refused", "a class is a colour and a shape"
card = CARD.format(
    task="text-to-image" if by_text else "unconditional-image-generation",
    data=", six\n  tasks as GenEval's; some combinations are held out" if by_text else ", one object each",
    limits=words if by_text else classes,
    family=type(backbone).__name__,
    name=arguments.name,
    parameters=sum(parameter.numel() for parameter in backbone.parameters()) / 1e6,
    patches=backbone.patches,
    seen=seen,
    table=table,
)
(folder / "README.md").write_text(card)
print(f"{folder}: {size_of(folder):.1f} MB")
