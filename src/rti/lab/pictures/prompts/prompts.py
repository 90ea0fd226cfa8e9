"""Prompts, sets of them, and the layouts that benchmarks expect."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from rti.errors import InputError


@dataclass(frozen=True)
class Prompt:
    """One thing to draw. Its index in the whole benchmark names its files and is part of its seeds."""

    index: int
    subject: str | int  # a caption, or a class label
    group: str | None = None  # what results are broken down by: GenEval's tag, a category
    name: str | None = None  # what its pictures are called, where that is not the index
    metadata: dict[str, Any] | None = field(default=None, hash=False)  # GenEval's line


Layout = Callable[[Prompt, int, int], str]  # (prompt, number of the picture, pictures per prompt) -> path


def geneval_layout(prompt: Prompt, number: int, images: int) -> str:
    """00012/samples/0003.png; beside `samples` lies metadata.jsonl."""
    return f"{prompt.index:05d}/samples/{number:04d}.png"


def flat_layout(prompt: Prompt, number: int, images: int) -> str:
    """00012.png, and with several pictures per prompt 00012-0003.png."""
    return f"{prompt.name or f'{prompt.index:05d}'}{_suffix(number, images)}.png"


def category_layout(prompt: Prompt, number: int, images: int) -> str:
    """animals/NAME.png, a folder for each category."""
    return f"{prompt.group}/{flat_layout(prompt, number, images)}"


def _suffix(number: int, images: int) -> str:
    return f"-{number:04d}" if images > 1 else ""


@dataclass(frozen=True)
class PromptSet:
    """The prompts of a benchmark in their order, how many pictures each gets, and where they lie."""

    source: str  # its name, or the path of its file
    kind: str  # "text" or "labels": which models can draw it
    prompts: tuple[Prompt, ...]
    layout: Layout = flat_layout
    images: int = 1  # pictures per prompt, as the benchmark has it

    def __post_init__(self) -> None:
        if not self.prompts:
            raise InputError(f"{self.source} holds no prompt")

    def __len__(self) -> int:
        return len(self.prompts)

    def spread(self, count: int | None) -> PromptSet:
        """So many prompts, spread evenly over all; each keeps its index, hence its files and its seeds."""
        if count is None or count == len(self):
            return self
        if not 1 <= count <= len(self):
            raise InputError(f"count {count} is not usable; {self.source} has {len(self)} prompts")
        chosen = tuple(self.prompts[index * len(self) // count] for index in range(count))
        return PromptSet(self.source, self.kind, chosen, self.layout, self.images)

    def digest(self) -> str:
        """sha256 of what is asked for, prompt by prompt; it does not change with the path of a file."""
        lines = [[prompt.index, prompt.subject, prompt.group, prompt.name, prompt.metadata] for prompt in self.prompts]
        return hashlib.sha256(json.dumps(lines, sort_keys=True).encode()).hexdigest()
