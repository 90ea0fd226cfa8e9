"""Every example runs as it stands."""

from __future__ import annotations

import runpy
import sys
from pathlib import Path

import pytest

from rti.method.reductions import REDUCTIONS

EXAMPLES = sorted((Path(__file__).parent.parent / "examples").glob("*.py"))


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.stem)
def test_an_example_runs(path, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "argv", [str(path), "run"])
    monkeypatch.setitem(REDUCTIONS, "cells", None)  # so that what an example registers is forgotten afterwards
    monkeypatch.delitem(REDUCTIONS, "cells")
    runpy.run_path(str(path), run_name="__main__")
    said = capsys.readouterr().out
    expected = {
        "sample": "star-12.5%.png",
        "train": "step 4: loss",
        "own_reduction": "by cells, untrained",
        "own_backbone": "R = 16: 2 pictures of (3, 32, 32)",
    }
    assert expected[path.stem] in said
