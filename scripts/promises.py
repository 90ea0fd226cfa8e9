"""Do the commands and names that README and docs showed at an earlier commit still work?

    python scripts/promises.py daf6891

Every `rti` command must be there with its options, or stand in rti.cli.gone, which says what takes its place; every
name rti.x must be found, also by its old module, which warns.
"""

from __future__ import annotations

import importlib
import re
import shlex
import subprocess
import sys
import warnings
from collections.abc import Iterator

import typer

import rti
from rti.cli import app
from rti.cli.gone import GONE, GONE_COMMANDS


def pages(commit: str) -> Iterator[tuple[str, str]]:
    """The Markdown files of a commit that a user reads, each with its text."""
    listed = subprocess.check_output(["git", "ls-tree", "-r", "--name-only", commit], text=True).split()
    for name in listed:
        if name.endswith(".md") and name.split("/")[0] in ("README.md", "CONTRIBUTING.md", "docs"):
            yield name, subprocess.check_output(["git", "show", f"{commit}:{name}"], text=True).replace("\\\n", " ")


def missing_of(text: str) -> list[str]:
    """What of a command line is not there."""
    try:
        words = shlex.split(re.split(r" [|#]|;", text)[0], comments=True)[1:]
    except ValueError:  # cut off in the middle of a quotation
        return []
    command, path = typer.main.get_command(app), []
    while words and hasattr(command, "commands"):
        path.append(words.pop(0))
        if path[-1] not in command.commands:
            return [] if " ".join(path) in GONE_COMMANDS or path[0] == "COMMAND" else [" ".join(path)]
        command = command.commands[path[-1]]
    known = {
        one for option in command.get_params(typer.Context(command)) for one in option.opts + option.secondary_opts
    }
    known |= {gone.option for gone in GONE if gone.command == " ".join(path)}
    return [word for word in words if re.match(r"--?[a-z]", word) and word.partition("=")[0] not in known]


def is_found(name: str) -> bool:
    """Whether rti.a.b is there: as an attribute, or as a module."""
    found, parts = rti, name.split(".")
    for end in range(2, len(parts) + 1):
        try:
            found = getattr(found, parts[end - 1], None) or importlib.import_module(".".join(parts[:end]))
        except ImportError:
            return False
    return True


def main() -> None:
    warnings.simplefilter("ignore")  # old names warn
    commands, names, broken = set(), set(), []
    for page, text in pages(sys.argv[1]):
        found = re.findall(r"`(rti [^`]+)`", text) + re.findall(r"^(rti [a-z].*)$", text, re.MULTILINE)
        commands |= {" ".join(one.split()) for one in found}
        names |= set(re.findall(r"\brti(?:\.[a-z_]+)*\.[A-Za-z_]+\b", text))
        broken += [f"{page}: {one}: {', '.join(lost)}" for one in found if (lost := missing_of(one))]
    broken += [f"{name} is not there" for name in sorted(names) if not is_found(name)]
    print("\n".join(broken))
    print(f"{len(commands)} commands and {len(names)} names, {len(broken)} broken")
    sys.exit(bool(broken))


if __name__ == "__main__":
    main()
