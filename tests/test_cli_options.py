"""Options that several commands share."""

from __future__ import annotations

from dataclasses import dataclass

import pytest
import torch
import typer
from typer.testing import CliRunner

from rti.cli.options import unfold
from test_cli import run
from tiny import save_jit


@dataclass(frozen=True)
class Shared:
    folder: str = typer.Argument(help="Where.")
    seed: int = typer.Option(7, help="A seed.")
    names: list[str] = typer.Option(None, help="Some names.")


def make_app() -> tuple[typer.Typer, list[tuple]]:
    app, calls = typer.Typer(), []

    @app.command()
    @unfold
    def command(shared: Shared, count: int = typer.Option(1, help="How many.")) -> None:
        """What it does."""
        calls.append((shared, count))

    return app, calls


def test_the_fields_are_options_and_come_back_as_the_dataclass():
    app, calls = make_app()
    result = CliRunner().invoke(app, ["here", "--count", "3", "--names", "a", "--names", "b"])
    assert result.exit_code == 0, result.output
    assert calls == [(Shared("here", 7, ["a", "b"]), 3)]


def test_help_shows_the_commands_own_options_first():
    app, _ = make_app()
    shown = CliRunner().invoke(app, ["--help"], env={"COLUMNS": "100"}).output
    assert "What it does." in shown and "Where." in shown
    assert shown.index("--count") < shown.index("--seed") < shown.index("--names")


def test_a_missing_argument_and_a_wrong_value_are_typers_own_errors():
    app, calls = make_app()
    assert CliRunner().invoke(app, []).exit_code == 2
    assert CliRunner().invoke(app, ["here", "--seed", "x"]).exit_code == 2
    assert calls == []


@pytest.mark.parametrize(("supported", "lines"), [(True, 0), (False, 1)])
def test_a_dtype_that_the_cpu_only_emulates_is_warned_of(tmp_path, capsys, monkeypatch, supported, lines):
    """Where the CPU has units for it, or the dtype is float32, nothing is said."""
    folder = save_jit(tmp_path)
    monkeypatch.setattr(torch.backends.mkldnn, "is_available", lambda: True)
    monkeypatch.setattr(torch.ops.mkldnn, "_is_mkldnn_bf16_supported", lambda: supported)
    bench = ("bench", folder, "--budgets", "8", "--core", "1,3", "--passes", "1", "--device", "cpu", "--dtype")
    code, _, err = run(capsys, *bench, "bfloat16")
    said = [line for line in err.splitlines() if line.startswith("rti: warning: this CPU has no units for bfloat16")]
    assert (code, len(said)) == (0, lines)
    code, _, err = run(capsys, *bench, "float32")
    assert (code, "units" in err) == (0, False)
