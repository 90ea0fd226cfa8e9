"""docs/paper.md: every command it names is there, with the options it names."""

import re
import shlex
from pathlib import Path

import pytest
import typer

from rti.cli import app

PAGE = Path(__file__).parent.parent / "docs" / "paper.md"
COMMANDS = sorted({" ".join(text.split()) for text in re.findall(r"`(rti [^`]+)`", PAGE.read_text(encoding="utf-8"))})


def test_the_page_has_a_row_for_every_figure_and_table():
    rows = re.findall(r"^\| ((?:Fig\.|Table) [^|]+?) \|", PAGE.read_text(encoding="utf-8"), re.MULTILINE)
    named = {kind: [name for name in rows if name.startswith(kind)] for kind in ("Fig.", "Table")}
    numbers = {int(number) for name in named["Fig."] for number in re.findall(r"\d+", name)}
    assert numbers | {19, 20} == set(range(1, 22))  # 18 to 21 are one row
    assert named["Table"] == ["Table 1", "Table 2", "Table 3", "Table 4"]


@pytest.mark.parametrize("text", COMMANDS)
def test_a_command_of_the_page_is_there_with_its_options(text):
    words = shlex.split(text.split(" | ")[0])[1:]
    command = typer.main.get_command(app)
    while words and hasattr(command, "commands"):
        name = words.pop(0)
        assert name in command.commands, text
        command = command.commands[name]
    options = {option for parameter in command.get_params(typer.Context(command)) for option in parameter.opts}
    given = [word.partition("=")[0] for word in words if re.match(r"--?[a-z]", word)]
    assert set(given) <= options, text
