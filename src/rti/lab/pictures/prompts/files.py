"""The benchmarks' own files: fetched once into the cache and checked, never part of rti."""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import NamedTuple

from rti.errors import InputError


class BenchmarkFile(NamedTuple):
    """Where a file is, and its sha256; None where we could not learn it, then its content is checked by its reader."""

    address: str
    sha256: str | None


_GITHUB = "https://raw.githubusercontent.com"
FILES = {
    "geneval": BenchmarkFile(
        f"{_GITHUB}/djghosh13/geneval/main/prompts/evaluation_metadata.jsonl",
        "5c48e0813e812e3c373fa5c8ed07a8f0a483be30272b4427b0559c8048e67c13",
    ),
    "parti": BenchmarkFile(
        f"{_GITHUB}/google-research/parti/2c99f6652cbc7f0d0441aa91f4c7e7055bcb0071/PartiPrompts.tsv",
        "fab29e41bb512a169b56acab4cf2a41dcb675e285df2efcde6640c7dd3c440eb",
    ),
    "mjhq": BenchmarkFile("hf://datasets/playgroundai/MJHQ-30K/meta_data.json", None),
}


def fetch_benchmark(name: str) -> Path:
    """The local copy of a benchmark's file; one whose content is not what it should be is thrown away and refused."""
    from rti.data.fetch import fetch

    file = FILES[name]
    path = fetch(file.address)
    if file.sha256 is not None:
        found = hashlib.sha256(path.read_bytes()).hexdigest()
        if found != file.sha256:
            path.unlink(missing_ok=True)
            raise InputError(
                f"{file.address} has sha256 {found[:12]}, expected {file.sha256[:12]}; "
                f"to use your own copy, give its path: --prompts FILE{_ENDINGS[name]}"
            )
    return path


_ENDINGS = {"geneval": ".jsonl", "parti": ".tsv", "mjhq": ".json"}
