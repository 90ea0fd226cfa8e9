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
_SCORES = "the scores are in scores/METRIC.json of the folder; cp them to where you want them"
_PAPER = "the paper's values stand in docs/probes/README.md"
_GUIDANCE = "it lost quality and time; both branches of guidance have the budget"
_INT8 = "it was slower than float32 for small models, and torch gives up the quantisation that did it"
_FAST = ("sample", "generate", "eval scenes", "eval loss", "web", "bench")
_PROBED = ("redundancy", "groupings", "orders", "routing")
_SPEEDS = "speed-ups are those of drawing the pictures; --against flops or tokens has those by arithmetic"
_WALKS = "the walks are the paper's, 8 positions from the 12th on over 8 x 8 patches"
GONE: list[Gone] = [
    Gone("eval scenes", "--reuse", "the same --output goes on with what it has, budget by budget"),
    Gone("eval scenes", "--held-out", "--split=held-out", False),
    Gone("eval loss", "--estimate", "docs/study/README.md has what it found", True),
    Gone("score fid", "--extractor", _EXTRACTOR),
    Gone("score is", "--extractor", _EXTRACTOR),
    *(Gone("score", option, _SCORES) for option in ("--output", "-o")),
    Gone("web", "--study", "the table and the figures of a study are in its folder: rti study PLAN --report"),
    Gone("train", "--estimate", "a pass of the model makes the estimate, as it did by default"),
    *(Gone(name, "--text-cache", "captions are encoded as they are read") for name in ("train", "pretrain")),
    *(Gone(name, "--guidance-budget", _GUIDANCE) for name in ("sample", "generate", "bench", "eval scenes")),
    Gone("study", "--workers", "jobs run one after the other, on all cores"),
    *(Gone(name, "--int8", _INT8, False) for name in _FAST),
    Gone("bench", "--reference", "dense is timed with fused attention alone", False),
    *(Gone(f"figure {name}", "--paper", _PAPER, False) for name in _PROBED),
    Gone("figure frontier", "--speeds", _SPEEDS),
    *(Gone("figure walks", option, _WALKS) for option in ("--grid", "--first", "--length")),
]


GONE_COMMANDS = {
    "probe lorenz": "rti probe redundancy measures the detail of the pictures that a model draws",
    "figure lorenz": "rti figure redundancy draws the curve of the pictures that a model draws",
    "demo": "make demo of a clone draws it; so does rti sample, with --regions-of 64; rti bench scenes times it",
    "figure fid": "rti figure frontier --metrics fid,is draws it",
    "figure steps": "rti figure frontier --against seconds draws it",
    "flops": "rti info MODEL --budgets 64,256 lists the cost too",
    "encode": "rti train encodes captions as it reads them",
    "scenes": "rti train --data scenes draws the world as it goes, rti generate --prompts scenes takes its captions",
}


def without_what_is_gone(arguments: Sequence[str]) -> list[str]:
    """The arguments with old options renamed or left out, each with a warning."""
    for gone in (" ".join(arguments[:1]), " ".join(arguments[:2])):
        if gone in GONE_COMMANDS:
            raise InputError(f"rti {gone} is gone: {GONE_COMMANDS[gone]}")
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
