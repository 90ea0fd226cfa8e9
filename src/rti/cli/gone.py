"""Options of 0.1 that are gone, for one release: a warning says what takes their place, and the command goes on."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from rti.cli.output import show_error
from rti.errors import InputError


class Gone(NamedTuple):
    """An option of a command: what takes its place, and whether a value came after it."""

    command: str  # such as "eval scenes"
    option: str
    instead: str  # another option, which then gets the value; or a sentence
    has_value: bool = True


_EXTRACTOR = "torch-fidelity makes the features; those of any other network go in by --features FILE"
_PAPER = "the paper's values stand in docs/probes/README.md"
_PROBED = ("redundancy", "groupings", "orders", "routing", "lorenz")
GONE: list[Gone] = [
    Gone("eval scenes", "--reuse", "the same --output goes on with what it has, budget by budget"),
    Gone("score fid", "--extractor", _EXTRACTOR),
    Gone("score is", "--extractor", _EXTRACTOR),
    Gone("web", "--study", "the table and the figures of a study are in its folder: rti study PLAN --report"),
    Gone("train", "--estimate", "a pass of the model makes the estimate, as it did by default"),
    *(Gone(name, "--text-cache", "captions are encoded as they are read") for name in ("train", "pretrain")),
    *(Gone(f"figure {name}", "--paper", _PAPER, False) for name in _PROBED),
]


GONE_COMMANDS = {
    "encode": "rti train encodes captions as it reads them",
    "scenes": "rti train --data scenes draws the world as it goes, rti generate --prompts scenes takes its captions",
}


def without_what_is_gone(arguments: Sequence[str]) -> list[str]:
    """The arguments with old options renamed or left out, each with a warning."""
    if arguments and arguments[0] in GONE_COMMANDS:
        raise InputError(f"rti {arguments[0]} is gone: {GONE_COMMANDS[arguments[0]]}")
    remaining, kept = list(arguments), []
    while remaining:
        word = remaining.pop(0)
        option, equals, value = word.partition("=")
        gone = next((one for one in GONE if one.option == option and _is_of(one.command, kept)), None)
        if gone is None:
            kept.append(word)
            continue
        if gone.instead.startswith("--"):
            show_error(f"{option} is now {gone.instead}; the old name goes in 0.3", "warning")
            kept.append(gone.instead + equals + value)
            continue
        show_error(f"{option} is gone: {gone.instead}", "warning")
        if gone.has_value and not equals and remaining:
            remaining.pop(0)
    return kept


def _is_of(command: str, before: list[str]) -> bool:
    words = [word for word in before if not word.startswith("-")]
    return words[: len(command.split())] == command.split()
