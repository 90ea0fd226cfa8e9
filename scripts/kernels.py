"""Whether the tests of the method hold on other CPUs: they run under each set of kernels that this one can pretend to.

python scripts/kernels.py [TEST FILES] prints a row per setting: whether a network's numbers are other ones than without
it (a setting may have no effect on this CPU), tests passed and failed, seconds. Exits with 1 if any failed.
"""

import hashlib
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

TESTS = Path(__file__).parent.parent / "tests"
SOURCE = TESTS.parent / "src"
FILES = "golden attach sampling partition merge read write reductions text_regions compile"
SETTINGS = [{}]
SETTINGS += [{"ATEN_CPU_CAPABILITY": value} for value in ("default", "avx2", "avx512")]  # torch's own
SETTINGS += [{"ONEDNN_MAX_CPU_ISA": value} for value in ("SSE41", "AVX2", "AVX512_CORE")]  # half precision
SETTINGS += [{"MKL_ENABLE_INSTRUCTIONS": value} for value in ("SSE4_2", "AVX2", "AVX512")]  # Intel's CPUs only
SETTINGS += [{"MKL_CBWR": value} for value in ("COMPATIBLE", "AVX2")]  # matrix products, on any CPU
SETTINGS += [{"OMP_NUM_THREADS": "2"}]
SETTINGS += [{"ATEN_CPU_CAPABILITY": "default", "ONEDNN_MAX_CPU_ISA": "SSE41", "MKL_CBWR": "COMPATIBLE"}]
SETTINGS += [{"ROUNDED": "otherwise"}]  # ours: layers rounded as a CPU might that nobody has here


def run(setting: dict[str, str], files: list[str]) -> dict:
    """The tests in a process of their own, since kernels are chosen when torch is loaded."""
    paths = os.pathsep.join([str(SOURCE), os.environ.get("PYTHONPATH", "")])
    environment = os.environ | {"OMP_NUM_THREADS": "1", "PYTHONPATH": paths, "PYTHONDONTWRITEBYTECODE": "1"} | setting
    environment |= {"OMP_WAIT_POLICY": "PASSIVE"}  # threads that wait for each other leave a busy machine alone
    started = time.perf_counter()
    command = [sys.executable, __file__, "--inside", *files]
    with tempfile.TemporaryDirectory() as cache:  # a compiler must not take up what it made for other kernels
        environment |= {"TORCHINDUCTOR_CACHE_DIR": cache}
        lines = subprocess.run(command, env=environment, stdout=subprocess.PIPE, text=True).stdout.splitlines()
    result = (
        json.loads(lines[-1]) if lines else {"numbers": "", "passed": 0, "failed": ["it did not start, or not end"]}
    )
    return result | {"seconds": time.perf_counter() - started}


class Watch:
    """Sees to the number of threads, which the tests' own settings hold at one, and counts."""

    def __init__(self):
        self.passed, self.failed = 0, []

    def pytest_collection_finish(self):
        import torch

        torch.set_num_threads(int(os.environ["OMP_NUM_THREADS"]))
        if os.environ.get("ROUNDED"):
            for name in ("linear", "scaled_dot_product_attention", "rms_norm"):
                setattr(torch.nn.functional, name, rounded_otherwise(getattr(torch.nn.functional, name)))
        self.numbers = fingerprint()

    def pytest_runtest_logreport(self, report):
        self.passed += report.when == "call" and report.passed
        if report.failed:
            self.failed.append(report.nodeid)


def rounded_otherwise(function):
    """The function with each result moved by up to one eps. By its place and by the shapes, as it is with kernels: the
    same call always gives the same, and one of another batch something else."""
    import torch

    def moved(x, *arguments, **options):
        result = function(x, *arguments, **options)
        if result.dtype != torch.float32 or result.device.type != "cpu":
            return result
        seed = int(hashlib.sha256(repr((x.shape, result.shape)).encode()).hexdigest()[:8], 16)
        move = torch.randint(-1, 2, result.shape, generator=torch.Generator().manual_seed(seed))
        return result * (1 + torch.finfo(torch.float32).eps * move)

    return moved


def fingerprint() -> str:
    """What a small network gives in float32 and bfloat16, to the last bit."""
    import torch

    import rti
    from tiny import DATA, make_inputs

    backbone = rti.load_backbone(DATA / "jit-tiny")
    with torch.no_grad():
        outputs = [backbone.to(dtype)(*make_inputs(backbone, 8)) for dtype in (torch.float32, torch.bfloat16)]
    return hashlib.sha256(b"".join(output.numpy().tobytes() for output in outputs)).hexdigest()


def inside(files: list[str]) -> None:
    import pytest

    watch = Watch()
    with open(os.devnull, "w") as nowhere:
        printed, sys.stdout = sys.stdout, nowhere
        options = ["-p", "no:cacheprovider", "--hypothesis-seed=0", "--rootdir", str(TESTS.parent)]
        pytest.main([*options, *files], plugins=[watch])
        sys.stdout = printed
    print(json.dumps({"numbers": watch.numbers, "passed": watch.passed, "failed": watch.failed}))


def table(settings: list[dict[str, str]], files: list[str]) -> bool:
    """Print a row per setting; whether all of them passed."""
    print(f"{'setting':80s} {'numbers':>8s} {'passed':>7s} {'failed':>7s} {'seconds':>8s}")
    plain, broken = None, False
    for setting in settings:
        chosen = files
        if "ROUNDED" in setting:  # no compiler looks into ours, and every CPU has products with ones and zeros right
            chosen = [file for file in files if "compile" not in file and "write" not in file]
        result = run(setting, chosen)
        plain = plain or result["numbers"]
        numbers = "same" if result["numbers"] == plain else "other"
        name = " ".join(f"{key}={value}" for key, value in setting.items()) or "as it is"
        counts = f"{result['passed']:7d} {len(result['failed']):7d} {result['seconds']:8.0f}"
        print(f"{name:80s} {numbers:>8s} {counts}", *result["failed"], sep="\n    ", flush=True)
        broken |= bool(result["failed"])
    return not broken


if __name__ == "__main__":
    if sys.argv[1:2] == ["--inside"]:
        inside(sys.argv[2:])
    else:
        files = sys.argv[1:] or [str(TESTS / f"test_{name}.py") for name in FILES.split()]
        sys.exit(not table(SETTINGS, files))
