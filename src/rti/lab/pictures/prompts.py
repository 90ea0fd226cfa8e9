"""What to draw: the prompts of each benchmark, and where it expects their pictures.

GenEval, PartiPrompts and MJHQ-30K are fetched once into the cache and checked, or read from a path: none is part of
rti. A text file, class labels and the scenes world need no file of others.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

from rti.data.fetch import fetch
from rti.errors import InputError, check_whole
from rti.files import in_one_line, require_regular
from rti.flow import picture_seed
from rti.lab import scenes
from rti.lab.judge import Wanted
from rti.lab.pictures.folder import Entry

SOURCES = ("geneval", "parti", "mjhq", "scenes", "classes")
SCENES, CLASSES = 240, 50_000  # how many by default, where there is no end of them
_PLAIN = re.compile(r"[\w-][\w.-]*")  # what may be part of a path


@dataclass(frozen=True)
class PromptSet:
    """The prompts of a benchmark in their order, how many pictures each gets, and where they lie."""

    source: str  # its name, or the path of its file
    kind: str  # "text" or "labels": which models can draw it
    prompts: tuple[Entry, ...]
    style: str = "flat"  # of the layout: flat, groups or geneval
    images: int = 1  # pictures per prompt, as the benchmark has it

    def __post_init__(self) -> None:
        if not self.prompts:
            raise InputError(f"{self.source} holds no prompt")

    def __len__(self) -> int:
        return len(self.prompts)

    def entries(self, images: int, seed: int) -> tuple[Entry, ...]:
        """The prompts with the files of so many pictures each, and their seeds."""
        found = []
        for prompt in self.prompts:
            files = tuple(self.layout(prompt, number, images) for number in range(images))
            seeds = tuple(picture_seed(seed, prompt.index, number) for number in range(images))
            found.append(replace(prompt, files=files, seeds=seeds))
        return tuple(found)

    def layout(self, prompt: Entry, number: int, images: int) -> str:
        """Where picture `number` of `images` of a prompt lies.

        flat     00012.png, and with several pictures per prompt 00012-0003.png
        groups   animals/NAME.png, a folder for each category
        geneval  00012/samples/0003.png; beside `samples` lies metadata.jsonl
        """
        if self.style == "geneval":
            return f"{prompt.index:05d}/samples/{number:04d}.png"
        name = (prompt.name or f"{prompt.index:05d}") + (f"-{number:04d}" if images > 1 else "")
        return f"{prompt.group}/{name}.png" if self.style == "groups" else f"{name}.png"

    def spread(self, count: int | None) -> PromptSet:
        """So many prompts, spread evenly over all; each keeps its index, hence its files and its seeds."""
        if count is None:
            return self
        if not 1 <= count <= len(self):
            raise InputError(f"count {count} is not usable; {self.source} has {len(self)} prompts")
        return replace(self, prompts=tuple(self.prompts[index * len(self) // count] for index in range(count)))

    def digest(self) -> str:
        """sha256 of what is asked for, prompt by prompt; it does not change with the path of a file."""
        lines = [[prompt.index, prompt.prompt, prompt.group, prompt.name, prompt.metadata] for prompt in self.prompts]
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
    path = fetch_benchmark(source) if source in BENCHMARKS else Path(os.path.expanduser(source))
    if path.suffix not in FORMATS:
        endings = ", ".join(FORMATS)
        raise InputError(f"unknown prompts {source!r}; allowed: {', '.join(SOURCES)}, or a file ({endings})")
    prompts = read_prompts(path, source)
    if source == "mjhq" and len(prompts) != 30_000:  # no checksum is known for what was fetched, but its size is
        raise InputError(f"{path} has {len(prompts)} prompts; MJHQ-30K has 30000")
    return prompts.spread(count)


def read_prompts(path: Path, source: str, ending: str | None = None) -> PromptSet:
    """The prompts of a file in the format of an ending; by default of its own."""
    require_regular(path)
    parse, style, images = FORMATS[ending or path.suffix]
    with in_one_line(f"{path} is not readable"):
        text = path.read_text(encoding="utf-8-sig")
        # Lines end at a line feed and nowhere else: str.splitlines would also cut at rarer characters within a prompt.
        lines = [line for line in (line.removesuffix("\r") for line in text.split("\n")) if line]
        return PromptSet(source, "text", tuple(parse(lines, str(path))), style, images)


def _geneval(lines: list[str], file: str) -> Iterator[Entry]:
    """GenEval's metadata: a JSON object per line, with tag, include, exclude and prompt."""
    for index, line in enumerate(lines):
        where = f"{file}, line {index + 1}"
        with in_one_line(f"{where} is not readable JSON"):
            metadata = json.loads(line)
        if not isinstance(metadata, dict) or not isinstance(metadata.get("prompt"), str):
            raise InputError(f"{where} is no line of GenEval's metadata; expected an object with a prompt")
        yield Entry(index, metadata["prompt"], Wanted.from_metadata(metadata, where).tag, metadata=metadata)


def _parti(lines: list[str], file: str) -> Iterator[Entry]:
    """PartiPrompts: tab-separated columns, quotes are part of the text. The group is the category."""
    header, *rows = [line.split("\t") for line in lines] or [[]]
    if header[:2] != ["Prompt", "Category"]:
        raise InputError(f"{file} has the columns {', '.join(header)}; expected Prompt, Category, Challenge, Note")
    for index, row in enumerate(rows):
        if len(row) < 2 or not row[0].strip():
            raise InputError(f"{file}, line {index + 2} has no prompt and category separated by a tab")
        yield Entry(index, row[0], row[1])


def _mjhq(lines: list[str], file: str) -> Iterator[Entry]:
    """MJHQ-30K: name -> category and prompt. Names and categories become paths, so that they must be plain ones."""
    for index, (name, entry) in enumerate(json.loads("\n".join(lines)).items()):
        prompt, category = (entry.get(key) if isinstance(entry, dict) else None for key in ("prompt", "category"))
        if not isinstance(prompt, str) or not all(_PLAIN.fullmatch(one or "") for one in (name, category)):
            raise InputError(f"{file} is no meta_data.json of MJHQ-30K: {name!r} is not a plain name with a prompt")
        yield Entry(index, prompt, category, name=name)


def _text(lines: list[str], file: str) -> Iterator[Entry]:
    """A prompt per line; empty lines do not count."""
    return (Entry(index, text) for index, text in enumerate(filter(None, map(str.strip, lines))))


FORMATS = {  # by the ending of a file: how it is read, where the pictures lie, and how many a prompt gets
    ".jsonl": (_geneval, "geneval", 4),
    ".tsv": (_parti, "flat", 1),
    ".json": (_mjhq, "groups", 1),
    ".txt": (_text, "flat", 1),
}


def class_prompts(count: int, classes: int | None) -> PromptSet:
    """Labels in turn, so that any number of pictures is balanced: no class has two more than another."""
    if classes is None:
        raise InputError("prompts 'classes' need a class-conditional model; this one draws from text")
    check_whole("count", count)
    width = len(str(classes - 1))
    prompts = (Entry(index, index % classes, f"{index % classes:0{width}d}") for index in range(count))
    return PromptSet("classes", "labels", tuple(prompts))


def scene_prompts(count: int, seed: int, split: str, kind: str = "text") -> PromptSet:
    """Captions of the scenes world, or its classes, with what they ask for, in GenEval's layout."""
    check_whole("count", count)
    check_whole("seed", seed, least=0)
    text = kind == "text"
    wanted = scenes.prompts(count, seed, split) if text else scenes.class_prompts(count, seed)
    prompts = (
        Entry(index, scene.caption if text else scenes.class_of(scene), scene.task, metadata=scene.metadata())
        for index, scene in enumerate(wanted)
    )
    return PromptSet("scenes", kind, tuple(prompts), "geneval")


_GITHUB = "https://raw.githubusercontent.com"
BENCHMARKS = {  # where the file is, and its sha256; None where we could not learn it
    "geneval": (
        f"{_GITHUB}/djghosh13/geneval/main/prompts/evaluation_metadata.jsonl",
        "5c48e0813e812e3c373fa5c8ed07a8f0a483be30272b4427b0559c8048e67c13",
    ),
    "parti": (
        f"{_GITHUB}/google-research/parti/2c99f6652cbc7f0d0441aa91f4c7e7055bcb0071/PartiPrompts.tsv",
        "fab29e41bb512a169b56acab4cf2a41dcb675e285df2efcde6640c7dd3c440eb",
    ),
    "mjhq": ("hf://datasets/playgroundai/MJHQ-30K/meta_data.json", None),
}


def fetch_benchmark(name: str) -> Path:
    """The local copy of a benchmark's file; one whose content is not what it should be is thrown away and refused."""
    address, wanted = BENCHMARKS[name]
    path = fetch(address)
    found = hashlib.sha256(path.read_bytes()).hexdigest()
    if wanted not in (None, found):
        path.unlink(missing_ok=True)
        instead = f"to use your own copy, give its path: --prompts FILE{path.suffix}"
        raise InputError(f"{address} has sha256 {found[:12]}, expected {wanted[:12]}; {instead}")
    return path
