"""Names and files that come from anywhere: looked at before they are opened, refused in one line.

No torch here: the command line looks at names before it loads anything.
"""

from __future__ import annotations

import json
import os
import stat
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from rti.errors import InputError

LARGEST_JSON = 2**24  # bytes; a value of two characters takes some 60 bytes once it is read


def local_path(name: Any) -> Path:
    """A name as a path, ~ written out; refused if no file could have it: too long, a null character, no such user."""
    try:
        path = Path(name).expanduser()
        os.stat(path)
    except (FileNotFoundError, NotADirectoryError):
        return path
    except (OSError, ValueError, TypeError, RuntimeError) as error:
        raise InputError(f"{shown(name)} is no name of a file ({first_line(error)})") from None
    return path


def is_repository_name(source: str) -> bool:
    """Whether a source could be a repository on the Hugging Face hub: owner/name, and not a path."""
    return source.count("/") == 1 and not source.startswith((".", "/", "~"))


def fetch_repository(repository: str, patterns: Sequence[str]) -> Path:
    """The local folder of a repository on the hub, with the files that match the patterns."""
    from huggingface_hub import snapshot_download

    with in_one_line(f"cannot fetch {repository} from the hub"):
        return Path(snapshot_download(repository, allow_patterns=list(patterns)))


def require_regular(path: Path) -> None:
    """Refuse what is not there, and what is no regular file: a device has no end, and a pipe may never begin."""
    with in_one_line(f"{shown(path)} cannot be read"):
        if not os.path.exists(path):
            raise InputError(f"{shown(path)} does not exist")
        mode = os.stat(path).st_mode
    if not stat.S_ISREG(mode):
        raise InputError(f"{shown(path)} is {'a folder' if stat.S_ISDIR(mode) else 'no regular file'}; give a file")


def read_json(path: Path) -> dict[str, Any]:
    """The object of a JSON file."""
    path = Path(path)
    require_regular(path)
    with in_one_line(f"{path} is not readable JSON"):  # not UTF-8, not JSON, nested too deeply, ...
        if path.stat().st_size > LARGEST_JSON:
            raise InputError(f"{path} has {path.stat().st_size:,} bytes; as JSON at most {LARGEST_JSON:,} are read")
        text = path.read_text(encoding="utf-8")
        content = json.loads(text)
        if "\\ud" in text.lower():  # half of a surrogate pair is no text: nothing can show or write it
            json.dumps(content, ensure_ascii=False).encode()
    if not isinstance(content, dict):
        raise InputError(f"{path} must hold a JSON object, not a {type(content).__name__}")
    return content


@contextmanager
def whole_file(path: Path, shared: bool = False) -> Iterator[Path]:
    """A hidden place to write to; renamed to `path` at the end: a reader finds all of a file or nothing.

    What a killed process leaves behind is overwritten by the next. Where several processes write the same file
    (`shared`), each has a place of its own.
    """
    path = Path(path)
    temporary = path.with_name(f".{path.name}.{os.getpid()}.part" if shared else f".{path.name}.part")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        yield temporary
        os.replace(temporary, path)
    except OSError as error:
        raise InputError(f"cannot write {shown(path)}: {error.strerror or error}") from None
    finally:
        with suppress(OSError):
            temporary.unlink(missing_ok=True)


def write_whole(path: Path, data: str | bytes) -> None:
    """Write a file whole or not at all."""
    with whole_file(path) as temporary:
        temporary.write_bytes(data.encode() if isinstance(data, str) else data)


def sync_folder(folder: Path) -> None:
    """Force the new names in a folder to the disk. Windows cannot open a folder, and does so by itself."""
    with suppress(PermissionError):
        descriptor = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)


@contextmanager
def in_one_line(what: str) -> Iterator[None]:
    """Whatever a library raises over somebody's files or a network, as an error of one line."""
    try:
        yield
    except InputError:
        raise
    except Exception as error:  # each version of a library fails in ways of its own
        raise InputError(f"{what}: {first_line(error)}") from None


def first_line(error: Exception) -> str:
    """What an error says, short enough to stand in one of ours."""
    text = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
    lines = text.strip().splitlines()
    return lines[0][:160] if lines else type(error).__name__


def shown(name: Any) -> str:
    """A name as a message shows it: one line, not the whole of a very long one."""
    text = " ".join(str(name).split())
    return text if len(text) <= 200 else f"{text[:100]}… ({len(text)} characters)"
