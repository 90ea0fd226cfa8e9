"""Fetching from the Hugging Face hub, with failures in one line."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from rti.files import in_one_line


def is_repository_name(source: str) -> bool:
    """Whether a source could be a repository on the hub: owner/name, and not a path."""
    return source.count("/") == 1 and not source.startswith((".", "/", "~"))


def fetch(repository: str, patterns: Sequence[str]) -> Path:
    """The local folder of a repository, with the files that match the patterns."""
    from huggingface_hub import snapshot_download

    with in_one_line(f"cannot fetch {repository} from the hub"):
        return Path(snapshot_download(repository, allow_patterns=list(patterns)))
