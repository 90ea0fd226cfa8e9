"""Files from elsewhere: loaded once, whole or not at all."""

from __future__ import annotations

import hashlib
import os
import re
from pathlib import Path, PurePosixPath
from urllib.parse import unquote, urlsplit

from filelock import FileLock  # comes with huggingface_hub

from rti.errors import InputError
from rti.files import in_one_line, whole_file


def cache_folder() -> Path:
    """$RTI_CACHE, else rti in the user's cache folder."""
    usual = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "rti"
    return Path(os.environ.get("RTI_CACHE") or usual)


def is_remote(address: str) -> bool:
    return "://" in address


def fetch(address: str, quiet: bool = False) -> Path:
    """The local file of a path or of an address: of the hub, the web, or any store that fsspec knows (s3, gs, ...).

    It is in the cache folder (the hub's is in the hub's own): a second call, or a second process, does not load it
    again.
    """
    if not is_remote(address):
        return Path(address)
    with in_one_line(f"cannot download {address}"):
        if address.startswith("hf://"):
            return _from_hub(address)
        name = PurePosixPath(unquote(urlsplit(address).path)).name or "file"
        target = cache_folder() / "shards" / f"{hashlib.sha256(address.encode()).hexdigest()[:16]}-{name}"
        if not target.exists():
            target.parent.mkdir(parents=True, exist_ok=True)
            with FileLock(f"{target}.lock"):
                if not target.exists():  # another process may have loaded it while this one waited
                    _load(address, target, quiet)
        return target


def _load(address: str, target: Path, quiet: bool) -> None:
    import fsspec  # comes with torch

    options = {}
    if address.startswith("http"):
        import aiohttp

        # An address is taken as it is written, proxies are asked as the environment says, and a connection counts as
        # broken after a minute without a byte, however long a file takes as a whole.
        patience = aiohttp.ClientTimeout(total=None, sock_connect=60, sock_read=60)
        options = {"encoded": True, "client_kwargs": {"trust_env": True, "timeout": patience}}
    filesystem, path = fsspec.url_to_fs(address, **options)
    bar = fsspec.callbacks.TqdmCallback({"desc": target.name, "unit": "B", "unit_scale": True, "disable": quiet})
    with whole_file(target) as part, in_one_line(f"cannot download {address}"):
        try:
            filesystem.get_file(path, str(part), callback=bar)
        except FileNotFoundError:
            raise InputError(f"cannot download {address}: it was not found") from None


def _from_hub(address: str) -> Path:
    import huggingface_hub

    parts = re.fullmatch(r"hf://datasets/([^/@]+/[^/@]+)(?:@([^/]+))?/(.+)", address)
    if parts is None:
        raise InputError(f"{address} is not an address on the hub; the form is hf://datasets/OWNER/NAME/PATH.tar")
    return Path(huggingface_hub.hf_hub_download(parts[1], parts[3], repo_type="dataset", revision=parts[2]))
