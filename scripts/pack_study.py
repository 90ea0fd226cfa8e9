"""A folder of `rti study` of before 0.2, a file for each job, as records.jsonl: pack_study.py study.json FOLDER."""

from __future__ import annotations

import sys
from pathlib import Path

from rti.errors import InputError
from rti.files import read_json
from rti.lab.study.plan import FOLDER, plan, read_study
from rti.lab.study.records import Records


def main(study: Path, folder: Path) -> None:
    old = folder / "jobs"
    old.rename(hidden := folder / "jobs-before")
    records = Records(folder)
    for job in plan(read_study(study)):
        path = hidden / f"{job.name}.json"
        if not path.exists():
            continue
        kept = read_json(path)
        for before, now in zip(kept["command"], job.command, strict=True):
            if before != now and not (now.startswith(FOLDER) and before.endswith(now.removeprefix(FOLDER))):
                raise InputError(f"{path} is the result of another command: {before}, not {now}")
        records.keep(job, kept["seconds"], kept["result"])
    print(f"{records.path}: {sum(records.of(job) is not None for job in plan(read_study(study)))} jobs")


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]))
