"""Reductions from elsewhere: examples/own_reduction.py as a package that docs/reductions.md has installed."""

import re
import shutil
import sys
import warnings
from pathlib import Path

import pytest
import torch

import rti
from rti.lab.study.plan import Row
from rti.method.reductions import REDUCTIONS, register, register_installed
from test_cli import run_json
from tiny import CORE, make_backbone, make_inputs, randomise_trainable, refused, save_jit

ROOT = Path(__file__).parent.parent
PAGE, EXAMPLE = ROOT / "docs" / "reductions.md", ROOT / "examples" / "own_reduction.py"


@pytest.fixture
def package(tmp_path, monkeypatch):
    """The page's example, installed as pip would leave it; forgotten afterwards."""
    text = PAGE.read_text(encoding="utf-8")
    points = re.search(r'```toml\n\[project\.entry-points\."(.*?)"\]\n(.*?)```', text, re.DOTALL)
    shutil.copy(EXAMPLE, tmp_path)
    described = tmp_path / "my_cells-1.0.dist-info"
    described.mkdir()
    (described / "METADATA").write_text("Metadata-Version: 2.1\nName: my-cells\nVersion: 1.0\n")
    (described / "entry_points.txt").write_text(f"[{points[1]}]\n{points[2]}".replace('= "', "= ").replace('"\n', "\n"))
    monkeypatch.syspath_prepend(tmp_path)
    before = dict(REDUCTIONS)
    yield tmp_path
    sys.modules.pop("own_reduction", None)
    REDUCTIONS.clear()
    REDUCTIONS.update(before)


@torch.no_grad()
def test_the_pages_reduction_is_known_once_its_package_is_installed(package, tmp_path):
    assert "cells" not in REDUCTIONS
    register_installed()
    register_installed()  # again is no clash
    config = REDUCTIONS["cells"][0](core=CORE)
    model = randomise_trainable(rti.attach(make_backbone("jit"), config)).eval()
    x, t, condition = make_inputs(model.backbone)
    tokens = model.backbone.embed(x, t, condition)
    for budget in (1, 7, 16, 64):
        groups = model.reduction.regions(tokens, budget)
        assert set(groups[0].tolist()) == set(range(budget))
    assert torch.equal(groups[0].bincount(), torch.ones(64, dtype=torch.int64))
    before = model(x, t, condition, budget=7)
    model.save_pretrained(tmp_path / "adapter")
    assert torch.equal(rti.load(tmp_path / "adapter", make_backbone("jit"))(x, t, condition, budget=7), before)
    assert Row(name="cells", title="cells", reduction="cells").is_elastic


def test_a_command_times_it(package, tmp_path, capsys):
    register_installed()
    bench = ("bench", save_jit(tmp_path), "--reductions", "cells", "--set", "order=raster", "--core", "1,3")
    values = run_json(capsys, *bench, "--budgets", "8", "--passes", "1")
    assert [row["model"] for row in values["rows"]] == ["dense", "cells"]


def test_a_package_that_is_broken_is_said_in_a_line_and_left_out(package):
    (package / "own_reduction.py").write_text("raise RuntimeError('no good')")
    before = set(REDUCTIONS)
    with pytest.warns(UserWarning, match="own_reduction:REDUCTION cannot be used: no good"):
        register_installed()
    assert set(REDUCTIONS) == before
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        (package / "my_cells-1.0.dist-info" / "entry_points.txt").write_text("")
        register_installed()


def test_what_is_no_reduction_or_has_a_name_that_is_taken_is_refused(package):
    config, reduction = REDUCTIONS["region"]
    with refused("subclass of ReductionConfig"):
        register(dict, reduction)
    with refused("subclass of Reduction"):
        register(config, config)
    with refused("'region' already"):
        register(type("Other", (config,), {}), reduction)
