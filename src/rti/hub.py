"""Fetching from the Hugging Face hub, with failures in one line."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from rti.errors import InputError
from rti.files import first_line


def is_repository_name(source: str) -> bool:
    """Whether a source could be a repository on the hub: owner/name, and not a path."""
    return source.count("/") == 1 and not source.startswith((".", "/", "~"))


def fetch(repository: str, patterns: Sequence[str]) -> Path:
    """The local folder of a repository, with the files that match the patterns."""
    from huggingface_hub import snapshot_download

    with in_one_line(f"cannot fetch {repository} from the hub"):
        return Path(snapshot_download(repository, allow_patterns=list(patterns)))


@contextmanager
def in_one_line(what: str) -> Iterator[None]:
    """Whatever goes wrong on the way to the hub, as an error of one line."""
    try:
        yield
    except InputError:
        raise
    except Exception as error:  # a network fails in any way, each version of huggingface_hub in its own
        raise InputError(f"{what}: {first_line(error)}") from None
