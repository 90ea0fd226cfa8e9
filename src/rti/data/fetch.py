"""Shards from elsewhere: downloaded once, whole or not at all."""

from __future__ import annotations

import hashlib
import http.client
import os
import tempfile
import time
import urllib.error
import urllib.request
from pathlib import Path, PurePosixPath
from urllib.parse import unquote, urlsplit

from rti.errors import InputError

_TRIES = 3
_CHUNK = 1 << 20
_TIMEOUT = 60  # seconds without a byte
WEB, HUB = ("http://", "https://"), "hf://"
_HUB_FORM = "hf://datasets/OWNER/NAME/PATH.tar"


def cache_folder() -> Path:
    """$RTI_CACHE, else rti in the user's cache folder."""
    if os.environ.get("RTI_CACHE"):
        return Path(os.environ["RTI_CACHE"])
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "rti"


def fetch(address: str) -> Path:
    """The local file of a path, a web address or an address on the hub."""
    if address.startswith(WEB):
        return download(address)
    if address.startswith(HUB):
        return _from_hub(address)
    return Path(address)


def download(url: str) -> Path:
    """A file from the web, in the cache folder; a second call, or a second process, does not load it again."""
    from filelock import FileLock  # comes with huggingface_hub

    name = PurePosixPath(unquote(urlsplit(url).path)).name or "file"
    target = cache_folder() / "shards" / f"{hashlib.sha256(url.encode()).hexdigest()[:16]}-{name}"
    if target.exists():
        return target
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        with FileLock(f"{target}.lock"):
            if not target.exists():  # another process may have loaded it while this one waited
                _download(url, target)
    except (OSError, http.client.HTTPException, ValueError) as error:
        raise InputError(f"cannot download {url}: {getattr(error, 'reason', None) or error}") from None
    return target


def _download(url: str, target: Path) -> None:
    """Into a temporary file, renamed when it is complete; connections that break are tried again."""
    for remaining in reversed(range(_TRIES)):
        handle, temporary = tempfile.mkstemp(dir=target.parent, prefix=f".{target.name}.", suffix=".part")
        try:
            with os.fdopen(handle, "wb") as file:
                _copy(url, file, target.name)
            os.replace(temporary, target)
            return
        except (urllib.error.URLError, http.client.HTTPException, ConnectionError, TimeoutError) as error:
            refused = isinstance(error, urllib.error.HTTPError) and error.code < 500
            if refused or remaining == 0:  # "not found" will not get better
                raise
            time.sleep(2.0 ** (_TRIES - 1 - remaining) / 4)
        finally:
            Path(temporary).unlink(missing_ok=True)


def _copy(url: str, file, name: str) -> None:
    from tqdm.auto import tqdm

    request = urllib.request.Request(url, headers={"User-Agent": "rti"})
    with urllib.request.urlopen(request, timeout=_TIMEOUT) as reply:
        length = reply.headers.get("Content-Length")
        total = int(length) if length else None
        with tqdm(total=total, desc=name, unit="B", unit_scale=True) as bar:
            while chunk := reply.read(_CHUNK):
                file.write(chunk)
                bar.update(len(chunk))
        # read(n) returns nothing at a broken connection, as at the end: only the count tells.
        if total is not None and file.tell() != total:
            raise ConnectionError(f"the connection broke after {file.tell()} of {total} bytes")


def _from_hub(address: str) -> Path:
    import huggingface_hub

    parts = address[len(HUB) :].split("/", 3)
    if len(parts) != 4 or parts[0] != "datasets" or not all(parts):
        raise InputError(f"{address} is not an address on the hub; the form is {_HUB_FORM}")
    name, _, revision = parts[2].partition("@")
    try:
        return Path(
            huggingface_hub.hf_hub_download(
                f"{parts[1]}/{name}", parts[3], repo_type="dataset", revision=revision or None
            )
        )
    except Exception as error:  # the hub's library raises errors of many kinds, with messages of many lines
        raise InputError(f"cannot download {address}: {type(error).__name__}: {str(error).splitlines()[0]}") from None
