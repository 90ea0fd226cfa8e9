"""Files from elsewhere: loaded once, whole or not at all."""

from __future__ import annotations

import hashlib
import http.client
import os
import shutil
import time
import urllib.error
import urllib.request
from pathlib import Path, PurePosixPath
from urllib.parse import unquote, urlsplit

from rti.errors import InputError
from rti.files import in_one_line, whole_file

WEB, HUB = ("http://", "https://"), "hf://"
_PAUSES = (0.25, 0.5)  # seconds before a second and a third try
_TIMEOUT = 60  # seconds without a byte


def cache_folder() -> Path:
    """$RTI_CACHE, else rti in the user's cache folder."""
    if os.environ.get("RTI_CACHE"):
        return Path(os.environ["RTI_CACHE"])
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "rti"


def is_remote(address: str) -> bool:
    return "://" in address


def fetch(address: str, quiet: bool = False) -> Path:
    """The local file of a path or of an address: of the web, the hub, or any store that fsspec knows (s3, gs, ...).

    It is in the cache folder (the hub's is in the hub's own): a second call, or a second process, does not load it
    again.
    """
    if not is_remote(address):
        return Path(address)
    with in_one_line(f"cannot download {address}"):
        if address.startswith(HUB):
            return _from_hub(address)
        from filelock import FileLock  # comes with huggingface_hub

        name = PurePosixPath(unquote(urlsplit(address).path)).name or "file"
        target = cache_folder() / "shards" / f"{hashlib.sha256(address.encode()).hexdigest()[:16]}-{name}"
        if target.exists():
            return target
        target.parent.mkdir(parents=True, exist_ok=True)
        with FileLock(f"{target}.lock"):
            if not target.exists():  # another process may have loaded it while this one waited
                with whole_file(target) as part, in_one_line(f"cannot download {address}"):
                    (_from_web if address.startswith(WEB) else _from_store)(address, part, quiet)
        return target


def _from_web(address: str, target: Path, quiet: bool) -> None:
    """By Python's own client, since fsspec's needs aiohttp. Connections that break are tried again."""
    from tqdm.auto import tqdm

    request = urllib.request.Request(address, headers={"User-Agent": "rti"})
    for pause in (*_PAUSES, None):
        try:
            with urllib.request.urlopen(request, timeout=_TIMEOUT) as reply, target.open("wb") as file:
                total = int(reply.headers.get("Content-Length") or 0)
                with tqdm.wrapattr(reply, "read", total, desc=target.name[1:-5], disable=quiet) as source:
                    shutil.copyfileobj(source, file, 1 << 20)
                # Reading gives nothing at a broken connection, as at the end: only the count tells.
                if total and file.tell() != total:
                    raise ConnectionError(f"the connection broke after {file.tell()} of {total} bytes")
                return
        except (urllib.error.URLError, http.client.HTTPException, ConnectionError, TimeoutError) as error:
            refused = isinstance(error, urllib.error.HTTPError) and error.code < 500
            if refused or pause is None:  # "not found" will not get better
                raise
            time.sleep(pause)


def _from_store(address: str, target: Path, quiet: bool) -> None:
    import fsspec  # comes with torch

    bar = fsspec.callbacks.NoOpCallback() if quiet else fsspec.callbacks.TqdmCallback({"desc": target.name[1:-5]})
    filesystem, path = fsspec.url_to_fs(address)
    filesystem.get_file(path, str(target), callback=bar)


def _from_hub(address: str) -> Path:
    import huggingface_hub

    kind, owner, repository, path = [*address.removeprefix(HUB).split("/", 3), "", "", ""][:4]
    if kind != "datasets" or not (owner and repository and path):
        raise InputError(f"{address} is not an address on the hub; the form is hf://datasets/OWNER/NAME/PATH.tar")
    name, _, revision = repository.partition("@")
    options = {"repo_type": "dataset", "revision": revision or None}
    return Path(huggingface_hub.hf_hub_download(f"{owner}/{name}", path, **options))
