"""The prompts of each benchmark, from its own file, and those that need none: class labels, the scenes world."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

from rti.errors import InputError, check_whole
from rti.lab.pictures.prompts.files import fetch_benchmark
from rti.lab.pictures.prompts.prompts import Prompt, PromptSet, category_layout, flat_layout, geneval_layout

SOURCES = ("geneval", "parti", "mjhq", "scenes", "classes")
SCENES, CLASSES = 240, 50_000  # how many by default, where there is no end of them
_PARTI_COLUMNS = ["Prompt", "Category", "Challenge", "Note"]
_MJHQ_CATEGORIES, _MJHQ_EACH = 10, 3000


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
    if source in _BY_NAME:
        read, path = _BY_NAME[source], fetch_benchmark(source)
        return read(path, source).spread(count)
    path = Path(os.path.expanduser(source))  # pathlib's refuses a user it does not know
    if path.suffix not in _BY_ENDING:
        endings = ", ".join(_BY_ENDING)
        raise InputError(f"unknown prompts {source!r}; allowed: {', '.join(SOURCES)}, or a file ({endings})")
    return _BY_ENDING[path.suffix](path, source).spread(count)


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
    if header[:2] != _PARTI_COLUMNS[:2]:
        raise InputError(f"{path} has the columns {', '.join(header)}; expected {', '.join(_PARTI_COLUMNS)}")
    for number, row in enumerate(rows, start=2):
        if len(row) < 2 or not row[0].strip():
            raise InputError(f"{path}, line {number} has no prompt and category separated by a tab")
    return PromptSet(source, "text", tuple(Prompt(index, row[0], row[1]) for index, row in enumerate(rows)))


def read_mjhq(path: Path, source: str) -> PromptSet:
    """MJHQ-30K: name -> category and prompt. Pictures lie in a folder per category, as those of the benchmark do."""
    entries = _json(_text(path), str(path))
    if not isinstance(entries, dict) or not all(_is_mjhq(name, entry) for name, entry in entries.items()):
        raise InputError(f"{path} is no meta_data.json of MJHQ-30K; expected names with a category and a prompt each")
    if source == "mjhq":  # no checksum is known for what was fetched, but its shape is
        sizes = [sum(entry["category"] == one for entry in entries.values()) for one in _categories(entries)]
        if sizes != [_MJHQ_EACH] * _MJHQ_CATEGORIES:
            raise InputError(f"{path} has {len(entries)} prompts in {len(sizes)} categories; expected 10 of 3000 each")
    prompts = tuple(
        Prompt(index, entry["prompt"], entry["category"], name=name)
        for index, (name, entry) in enumerate(entries.items())
    )
    return PromptSet(source, "text", prompts, category_layout)


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
    return PromptSet("classes", "labels", tuple(prompts), flat_layout)


def scene_prompts(count: int, seed: int, split: str, kind: str = "text") -> PromptSet:
    """Captions of the scenes world, or its classes, with what they ask for, in GenEval's layout."""
    from rti.lab import scenes

    check_whole("count", count)
    check_whole("seed", seed, least=0)
    drawn = scenes.prompts(count, seed, split) if kind == "text" else scenes.class_prompts(count, seed)
    prompts = (
        Prompt(i, scene.caption if kind == "text" else scenes.class_of(scene), scene.task, metadata=scene.metadata())
        for i, scene in enumerate(drawn)
    )
    return PromptSet("scenes", kind, tuple(prompts), geneval_layout)


_BY_NAME: dict[str, Callable[[Path, str], PromptSet]] = {
    "geneval": read_geneval,
    "parti": read_parti,
    "mjhq": read_mjhq,
}
_BY_ENDING = {".jsonl": read_geneval, ".tsv": read_parti, ".json": read_mjhq, ".txt": read_text}


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


def _is_mjhq(name: str, entry: Any) -> bool:
    """Whether an entry is usable. Names and categories become paths, so that they must be plain ones."""
    return (
        isinstance(entry, dict)
        and isinstance(entry.get("prompt"), str)
        and isinstance(entry.get("category"), str)
        and all(re.fullmatch(r"[\w-][\w.-]*", text) for text in (name, entry["category"]))
    )


def _categories(entries: dict[str, Any]) -> list[str]:
    return list(dict.fromkeys(entry["category"] for entry in entries.values()))
