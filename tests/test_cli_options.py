"""Options that several commands share."""

from __future__ import annotations

from dataclasses import dataclass

import pytest
import torch
import typer
from typer.testing import CliRunner

from rti.cli import gone
from rti.cli.gone import Gone
from rti.cli.options import command
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
    @command
    def act(shared: Shared, count: int = typer.Option(1, help="How many.")) -> None:
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


def test_what_a_command_gives_back_is_printed_where_json_is_asked_for():
    app = typer.Typer()

    @app.command()
    @command
    def add(first: int, second: int) -> dict:
        return {"sum": first + second}

    assert CliRunner().invoke(app, ["1", "2", "--json"]).output == '{"sum": 3}\n'
    assert CliRunner().invoke(app, ["1", "2"]).output == ""


def test_an_option_that_is_gone_is_warned_of_and_the_command_goes_on(monkeypatch, capsys):
    rows = [Gone("eval scenes", "--old", "--new"), Gone("eval scenes", "--dropped", "nothing needs it", True)]
    monkeypatch.setattr(gone, "GONE", rows)
    typed = ["eval", "scenes", "m", "--old", "1", "--old=2", "--dropped", "x", "--dropped=y", "-o", "out"]
    kept = ["eval", "scenes", "m", "--new", "1", "--new=2", "-o", "out"]
    assert gone.without_what_is_gone(typed) == kept
    warned = capsys.readouterr().err.splitlines()
    assert len(warned) == 4 and "--old is now --new" in warned[0] and "nothing needs it" in warned[2]
    other = ["eval", "loss", "m", "--old", "1"]
    assert gone.without_what_is_gone(other) == other
