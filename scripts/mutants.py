"""Whether the tests notice small mistakes: each of these is made in a copy of the package, and its tests must fail.

python scripts/mutants.py [WORDS] prints for each mistake (whose name has one of the words) the first test that caught
it, and exits with 1 if one was not caught. The package itself is never touched.
"""

import os
import shutil
import sys
import tempfile
import time
from pathlib import Path
from typing import NamedTuple

TESTS = Path(__file__).parent.parent / "tests"
SOURCE = TESTS.parent / "src" / "rti"


class Mutant(NamedTuple):
    name: str
    file: str  # in the package
    right: str  # stands there once
    wrong: str
    tests: str  # the files whose tests should notice
    only: str = ""  # of these the ones with this word in their name


LAYERS, MINIT2I, JIT = "backbones/layers.py", "backbones/minit2i.py", "backbones/jit.py"
STEP = "if step < last:"
MUTANTS = [
    Mutant("norm epsilon 1e-5", LAYERS, "eps=1e-6", "eps=1e-5", "golden"),
    Mutant(
        "rotary halves swapped (MiniT2I)",
        MINIT2I,
        "first * cos - second * sin, second * cos + first * sin",
        "first * cos + second * sin, second * cos - first * sin",
        "golden",
    ),
    Mutant(
        "rotary convention of the other family (JiT)",
        JIT,
        "even, odd = x.unflatten(-1, (-1, 2)).unbind(-1)",
        "even, odd = x.unflatten(-1, (2, -1)).unbind(-2)",
        "golden",
    ),
    Mutant("rows and columns swapped in the angles", LAYERS, "[by_row, by_column]", "[by_column, by_row]", "golden"),
    Mutant("rotary frequencies of 9999", LAYERS, "return 10000.0 ** (-2.0", "return 9999.0 ** (-2.0", "golden"),
    Mutant("position table of 9999", LAYERS, "rate = 10000.0 **", "rate = 9999.0 **", "golden"),
    Mutant("time frequencies of 9999", LAYERS, "math.log(10000)", "math.log(9999)", "golden"),
    Mutant(
        "attention scale a hundredth off",
        LAYERS,
        "scaled_dot_product_attention(q, k, v)",
        "scaled_dot_product_attention(1.01 * q, k, v)",
        "golden",
    ),
    Mutant("unpatchify, rows and columns", LAYERS, "permute(0, 5, 1, 3, 2, 4)", "permute(0, 5, 1, 4, 2, 3)", "golden"),
    Mutant(
        "patchify, rows and columns",
        LAYERS,
        "permute(0, 2, 4, 3, 5, 1)",
        "permute(0, 4, 2, 3, 5, 1)",
        "attach",
        "estimate",
    ),
    Mutant("patch embedding, pixels", LAYERS, "permute(0, 2, 4, 1, 3, 5)", "permute(0, 2, 4, 1, 5, 3)", "golden"),
    Mutant("time floor 0.06", "flow.py", "clamp_min(floor)", "clamp_min(floor + 0.01)", "golden sampling"),
    Mutant("guidance by s - 1", "sampling.py", "return self.scale * cond", "return (self.scale - 1) * cond", "golden"),
    Mutant(
        "guidance by s and s",
        "sampling.py",
        "(self.scale - 1) * unconditional",
        "self.scale * unconditional",
        "golden",
    ),
    Mutant("guidance one step early", "sampling.py", "(t > low)", "(t >= low - 0.2)", "golden"),
    Mutant("interval closed at its start", "sampling.py", "(t > low)", "(t >= low)", "sampling"),
    Mutant("Heun's last step is Heun's", "sampling.py", STEP, "if step <= last:", "sampling"),
    Mutant("Heun's last two steps are Euler's", "sampling.py", STEP, "if step < last - 1:", "golden"),
    Mutant(
        "budgets one step late",
        "sampling.py",
        "self.budgets.image[step]",
        "self.budgets.image[max(step - 1, 0)]",
        "sampling",
    ),
    Mutant(
        "alpha of the LoRA not applied",
        "lora.py",
        "lora_alpha=config.lora_alpha",
        "lora_alpha=config.lora_rank",
        "attach",
        "alpha",
    ),
    Mutant(
        "detach forgets to unmerge",
        "elastic.py",
        "        self.unfuse()\n        lora.remove",
        "        lora.remove",
        "attach",
        "detaching",
    ),
    Mutant(
        "detach forgets what trained",
        "elastic.py",
        "self._trainable_before.get(name, parameter.requires_grad)",
        "True",
        "attach",
        "detaching",
    ),
    Mutant("Read sums", "method/read.py", ".softmax(dim=-1)", ".exp()", "read"),
    Mutant(
        "size embedding one level up",
        "method/read.py",
        "(size[..., None] >= powers)",
        "(size[..., None] > powers)",
        "read",
    ),
    Mutant(
        "mean phasor not divided",
        "method/read.py",
        "(weights @ phasors) / weights.sum(dim=-1, keepdim=True)",
        "weights @ phasors",
        "read",
    ),
    Mutant(
        "Write forgets the patch",
        "method/write.py",
        "return patches + F.linear(patches",
        "return F.linear(patches",
        "write",
    ),
    Mutant(
        "Write forgets its own half",
        "method/write.py",
        "patches + F.linear(patches, own, self.g.bias.to(dtype)) +",
        "patches +",
        "write",
    ),
    Mutant(
        "ties in merge reversed",
        "method/merge.py",
        "(tie[:-2] < tie[1:-1])",
        "(tie[:-2] > tie[1:-1])",
        "merge partition",
    ),
    Mutant(
        "equal heights from fine to coarse",
        "method/merge.py",
        "level.sort(descending=True, stable=True)",
        "level.sort(descending=False, stable=True)",
        "merge",
    ),
    Mutant(
        "heights may fall",
        "method/merge.py",
        "height = torch.maximum(height, cost.index_select(0, left))",
        "height = cost.index_select(0, left)",
        "merge partition",
    ),
    Mutant(
        "mean of a join by the left share",
        "method/merge.py",
        "(size.index_select(0, right) /",
        "(size.index_select(0, left) /",
        "merge partition",
    ),
    Mutant(
        "size prior of the left run",
        "method/merge.py",
        "growth.index_select(0, both.long())",
        "growth.index_select(0, size[:-1].long())",
        "merge",
    ),
    Mutant(
        "a tree stops one early",
        "method/merge.py",
        ".sum(dim=1) < budget)",
        ".sum(dim=1) <= budget)",
        "merge partition",
    ),
    Mutant(
        "gaps prefer the later",
        "method/partition.py",
        "distance.sort(dim=1, descending=True, stable=True).indices",
        "distance.shape[1] - 1 - distance.flip(1).sort(dim=1, descending=True, stable=True).indices",
        "partition",
    ),
    Mutant(
        "fixed cuts one late",
        "method/partition.py",
        "(position * budget - 1) // patches",
        "(position * budget - budget) // patches",
        "partition",
    ),
    Mutant(
        "regions not taken back from the walk",
        "method/reductions/region.py",
        "return ids[:, self.position]",
        "return ids[:, self.walk]",
        "attach",
        "regions",
    ),
    Mutant("text cut evenly", "method/text_regions.py", '"gaps")', '"fixed")', "text_regions"),
]


def copy_with(mutant: Mutant, folder: Path) -> None:
    shutil.copytree(SOURCE, folder / "rti", ignore=shutil.ignore_patterns("__pycache__", "models"))
    path = folder / "rti" / mutant.file
    text = path.read_text()
    if text.count(mutant.right) != 1:
        sys.exit(f"{mutant.name}: {mutant.right!r} stands {text.count(mutant.right)} times in {mutant.file}, not once")
    path.write_text(text.replace(mutant.right, mutant.wrong))


class FirstFailure:
    def __init__(self, folder: Path):
        self.folder = folder

    def pytest_runtest_logreport(self, report):
        if report.failed:
            (self.folder / "caught").write_text(report.nodeid)


def run_tests(mutant: Mutant, folder: Path) -> None:
    """In a process forked from this one, which has loaded everything but the package."""
    import pytest

    sys.path.insert(0, str(folder))
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, 1), os.dup2(nowhere, 2)
    files = [str(TESTS / f"test_{name}.py") for name in mutant.tests.split()]
    options = ["-x", "-k", mutant.only, "-p", "no:cacheprovider", "--hypothesis-seed=0", "--rootdir", str(TESTS.parent)]
    pytest.main([*options, *files], plugins=[FirstFailure(folder)])
    loaded = Path(sys.modules["rti"].__file__)
    if folder not in loaded.parents:
        (folder / "caught").unlink(missing_ok=True)  # it was not the copy that was tested


def caught_by(mutant: Mutant) -> str:
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        copy_with(mutant, folder)
        child = os.fork()
        if child == 0:
            try:
                run_tests(mutant, folder)
            finally:
                os._exit(0)
        os.waitpid(child, 0)
        found = folder / "caught"
        return found.read_text() if found.exists() else ""


if __name__ == "__main__":
    import hypothesis  # noqa: F401
    import peft  # noqa: F401
    import transformers  # noqa: F401

    sys.dont_write_bytecode = True
    words = sys.argv[1:]
    chosen = [mutant for mutant in MUTANTS if not words or any(word in mutant.name for word in words)]
    missed = []
    for mutant in chosen:
        started = time.perf_counter()
        test = caught_by(mutant)
        print(f"{mutant.name:45s} {time.perf_counter() - started:4.0f} s  {test or 'NOT CAUGHT'}", flush=True)
        if not test:
            missed.append(mutant.name)
    print(f"{len(chosen) - len(missed)} of {len(chosen)} caught")
    sys.exit(bool(missed))
