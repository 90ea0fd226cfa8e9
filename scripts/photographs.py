"""Fetch freely licensed photographs for `rti probe lorenz`: the wallpapers of Debian packages (CC-BY, CC-BY-SA, CC0).

python scripts/photographs.py FOLDER

It needs apt-get and dpkg-deb, and installs nothing. Each package's photographs go to a sub-folder of its own, with
the package's copyright file beside them, which names every author and licence. Commit none of them.
"""

from __future__ import annotations

import argparse
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from PIL import Image

PACKAGES = ("lomiri-wallpapers-16.04", "lomiri-wallpapers-20.04")
LEAST_SIDE = 800  # pixels: thumbnails are left out
DRAWN = ("analogpattern", "umang", "Fossa", "Infinite-Sea", "Painting-Colors")  # these wallpapers are no photographs


def fetch(package: str, folder: Path) -> list[Path]:
    """Download and unpack one package, and copy its photographs."""
    with tempfile.TemporaryDirectory() as place:
        subprocess.run(["apt-get", "download", package], cwd=place, check=True, stdout=subprocess.DEVNULL)
        archive = next(Path(place).glob("*.deb"))
        subprocess.run(["dpkg-deb", "-x", archive, Path(place) / "files"], check=True)
        home = folder / package
        home.mkdir(parents=True, exist_ok=True)
        shutil.copy(next((Path(place) / "files/usr/share/doc").glob("*/copyright")), home / "copyright")
        (home / "version").write_text(archive.name + "\n", encoding="utf-8")
        found = []
        for path in sorted((Path(place) / "files").rglob("*")):
            picture_file = path.suffix.lower() in (".jpg", ".jpeg", ".png") and path.is_file() and not path.is_symlink()
            if picture_file and not path.name.startswith(DRAWN):
                with Image.open(path) as picture:
                    large = min(picture.size) >= LEAST_SIDE
                if large:
                    found.append(Path(shutil.copy(path, home / path.name)))
        return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", type=Path, help="where to put the photographs; outside the repository")
    parser.add_argument("--packages", nargs="+", default=PACKAGES, help="Debian packages with photographs")
    arguments = parser.parse_args()
    for tool in ("apt-get", "dpkg-deb"):
        if shutil.which(tool) is None:
            sys.exit(f"photographs: {tool} is not here; this script needs a Debian system")
    for package in arguments.packages:
        try:
            found = fetch(package, arguments.folder)
        except subprocess.CalledProcessError as error:
            sys.exit(f"photographs: cannot fetch {package}: {error}")
        print(f"{package}: {len(found)} photographs, licences in {arguments.folder / package / 'copyright'}")


if __name__ == "__main__":
    main()
