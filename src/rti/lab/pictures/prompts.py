"""What to draw: the prompts of each benchmark, and where it expects their pictures.

GenEval, PartiPrompts and MJHQ-30K are fetched once into the cache and checked, or read from a path: none is part of
rti. A text file, class labels and the scenes world need no file of others.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, NamedTuple

from rti.errors import InputError, check_whole
from rti.lab import scenes

SOURCES = ("geneval", "parti", "mjhq", "scenes", "classes")
SCENES, CLASSES = 240, 50_000  # how many by default, where there is no end of them


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
    name = prompt.name or f"{prompt.index:05d}"
    return f"{name}-{number:04d}.png" if images > 1 else f"{name}.png"


def category_layout(prompt: Prompt, number: int, images: int) -> str:
    """animals/NAME.png, a folder for each category."""
    return f"{prompt.group}/{flat_layout(prompt, number, images)}"


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
        if count is None:
            return self
        if not 1 <= count <= len(self):
            raise InputError(f"count {count} is not usable; {self.source} has {len(self)} prompts")
        return replace(self, prompts=tuple(self.prompts[index * len(self) // count] for index in range(count)))

    def digest(self) -> str:
        """sha256 of what is asked for, prompt by prompt; it does not change with the path of a file."""
        lines = [[prompt.index, prompt.subject, prompt.group, prompt.name, prompt.metadata] for prompt in self.prompts]
        return hashlib.sha256(json.dumps(lines, sort_keys=True).encode()).hexdigest()


def open_prompts(
    source: str, count: int | None = None, classes: int | None = None, seed: int = 0, split: str = "train"
) -> PromptSet:
    """Prompts by name, or from a file, which its ending tells: .jsonl, .tsv, .json as the benchmarks', .txt by line.

    `count` takes so many of them, spread over all; of "scenes" and "classes" the first so many. `classes` is how many
    the model has; `seed` and `split` choose the scenes.
    """
    if source == "scenes":
        return scene_prompts(SCENES if count is None else count, seed, split)
    if source == "classes":
        return class_prompts(CLASSES if count is None else count, classes)
    if source in BENCHMARKS:
        return BENCHMARKS[source].read(fetch_benchmark(source), source).spread(count)
    readers = {one.ending: one.read for one in BENCHMARKS.values()} | {".txt": read_text}
    path = Path(os.path.expanduser(source))  # pathlib's refuses a user it does not know
    if path.suffix not in readers:
        endings = ", ".join(readers)
        raise InputError(f"unknown prompts {source!r}; allowed: {', '.join(SOURCES)}, or a file ({endings})")
    return readers[path.suffix](path, source).spread(count)


def read_geneval(path: Path, source: str) -> PromptSet:
    """GenEval's metadata: a JSON object per line, with tag, include, exclude and prompt. Four pictures each."""
    from rti.lab.pictures.scorers.geneval import Wanted

    prompts = []
    for index, line in enumerate(_lines(path)):
        where = f"{path}, line {index + 1}"
        metadata = _json(line, where)
        if not isinstance(metadata, dict) or not isinstance(metadata.get("prompt"), str):
            raise InputError(f"{where} is no line of GenEval's metadata; expected an object with a prompt")
        wanted = Wanted.from_metadata(metadata, where)
        prompts.append(Prompt(index, metadata["prompt"], wanted.tag, metadata=metadata))
    return PromptSet(source, "text", tuple(prompts), geneval_layout, images=4)


def read_parti(path: Path, source: str) -> PromptSet:
    """PartiPrompts: tab-separated columns, quotes are part of the text. The group is the category."""
    header, *rows = [line.split("\t") for line in _lines(path)] or [[]]
    if header[:2] != ["Prompt", "Category"]:
        raise InputError(f"{path} has the columns {', '.join(header)}; expected Prompt, Category, Challenge, Note")
    for number, row in enumerate(rows, start=2):
        if len(row) < 2 or not row[0].strip():
            raise InputError(f"{path}, line {number} has no prompt and category separated by a tab")
    return PromptSet(source, "text", tuple(Prompt(index, row[0], row[1]) for index, row in enumerate(rows)))


def read_mjhq(path: Path, source: str) -> PromptSet:
    """MJHQ-30K: name -> category and prompt. Pictures lie in a folder per category, as those of the benchmark do."""
    entries = _json(_text(path), str(path))
    if not isinstance(entries, dict) or not all(_is_mjhq(name, entry) for name, entry in entries.items()):
        raise InputError(f"{path} is no meta_data.json of MJHQ-30K; expected names with a category and a prompt each")
    sizes = list(Counter(entry["category"] for entry in entries.values()).values())
    if source == "mjhq" and sizes != [3000] * 10:  # no checksum is known for what was fetched, but its shape is
        raise InputError(f"{path} has {len(entries)} prompts in {len(sizes)} categories; expected 10 of 3000 each")
    prompts = (
        Prompt(index, entry["prompt"], entry["category"], name=name)
        for index, (name, entry) in enumerate(entries.items())
    )
    return PromptSet(source, "text", tuple(prompts), category_layout)


def _is_mjhq(name: str, entry: Any) -> bool:
    """Whether an entry is usable. Names and categories become paths, so that they must be plain ones."""
    texts = [entry.get("prompt"), entry.get("category")] if isinstance(entry, dict) else [None]
    plain = re.compile(r"[\w-][\w.-]*")
    return all(isinstance(one, str) for one in texts) and all(map(plain.fullmatch, (name, texts[1])))


def read_text(path: Path, source: str) -> PromptSet:
    """A prompt per line; empty lines do not count."""
    texts = [line.strip() for line in _lines(path) if line.strip()]
    return PromptSet(source, "text", tuple(Prompt(index, text) for index, text in enumerate(texts)))


def class_prompts(count: int, classes: int | None) -> PromptSet:
    """Labels in turn, so that any number of pictures is balanced: no class has two more than another."""
    if classes is None:
        raise InputError("prompts 'classes' need a class-conditional model; this one draws from text")
    check_whole("count", count)
    width = len(str(classes - 1))
    prompts = (Prompt(index, index % classes, f"{index % classes:0{width}d}") for index in range(count))
    return PromptSet("classes", "labels", tuple(prompts))


def scene_prompts(count: int, seed: int, split: str, kind: str = "text") -> PromptSet:
    """Captions of the scenes world, or its classes, with what they ask for, in GenEval's layout."""
    check_whole("count", count)
    check_whole("seed", seed, least=0)
    text = kind == "text"
    wanted = scenes.prompts(count, seed, split) if text else scenes.class_prompts(count, seed)
    prompts = (
        Prompt(index, scene.caption if text else scenes.class_of(scene), scene.task, metadata=scene.metadata())
        for index, scene in enumerate(wanted)
    )
    return PromptSet("scenes", kind, tuple(prompts), geneval_layout)


class Benchmark(NamedTuple):
    """How a benchmark's file is read, where it is, and its sha256; None where we could not learn it."""

    read: Callable[[Path, str], PromptSet]
    ending: str
    address: str
    sha256: str | None


_GITHUB = "https://raw.githubusercontent.com"
BENCHMARKS = {
    "geneval": Benchmark(
        read_geneval,
        ".jsonl",
        f"{_GITHUB}/djghosh13/geneval/main/prompts/evaluation_metadata.jsonl",
        "5c48e0813e812e3c373fa5c8ed07a8f0a483be30272b4427b0559c8048e67c13",
    ),
    "parti": Benchmark(
        read_parti,
        ".tsv",
        f"{_GITHUB}/google-research/parti/2c99f6652cbc7f0d0441aa91f4c7e7055bcb0071/PartiPrompts.tsv",
        "fab29e41bb512a169b56acab4cf2a41dcb675e285df2efcde6640c7dd3c440eb",
    ),
    "mjhq": Benchmark(read_mjhq, ".json", "hf://datasets/playgroundai/MJHQ-30K/meta_data.json", None),
}


def fetch_benchmark(name: str) -> Path:
    """The local copy of a benchmark's file; one whose content is not what it should be is thrown away and refused."""
    from rti.data.fetch import fetch

    wanted = BENCHMARKS[name]
    path = fetch(wanted.address)
    found = hashlib.sha256(path.read_bytes()).hexdigest()
    if wanted.sha256 not in (None, found):
        path.unlink(missing_ok=True)
        raise InputError(
            f"{wanted.address} has sha256 {found[:12]}, expected {wanted.sha256[:12]}; "
            f"to use your own copy, give its path: --prompts FILE{wanted.ending}"
        )
    return path


def _text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8-sig")
    except FileNotFoundError:
        raise InputError(f"{path} does not exist") from None
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(f"{path} is not readable as text ({error})") from None


def _lines(path: Path) -> list[str]:
    """Lines end at a line feed and nowhere else: str.splitlines would also cut at rarer characters within a prompt."""
    return [line.removesuffix("\r") for line in _text(path).rstrip("\n").split("\n") if line.removesuffix("\r")]


def _json(text: str, where: str) -> Any:
    try:
        return json.loads(text)
    except (ValueError, RecursionError) as error:
        raise InputError(f"{where} is not readable JSON ({error})") from None
