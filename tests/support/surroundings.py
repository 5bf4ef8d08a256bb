"""Run the test suite in hard surroundings, several of them at once: `make test-surroundings`, or ONLY=paths for one.

    paths   a temporary folder with a space and #=,@ in its name, the C locale, another time zone, umask 077
    core    one core, Python's development mode
    load    eight processes beside the suite that use all cores
    avx2    no AVX-512 in NumPy, PyTorch, BLAS and numba; a home folder that cannot be written
    sse     no AVX at all there; another user, if root starts it

Each has an order of the tests and a hash seed of its own.
"""

from __future__ import annotations

import os
import random
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).parents[2]
NOBODY = 65534
ALL = ("paths", "core", "load", "avx2", "sse")


def numpy_features(kept: str) -> str:
    """The features of this CPU that NumPy must not use: all that it chooses at run time, or those above AVX2."""
    from numpy._core._multiarray_umath import __cpu_dispatch__, __cpu_features__

    return " ".join(
        name
        for name in __cpu_dispatch__
        if __cpu_features__[name] and (kept == "sse" or name.startswith(("AVX512", "X86_V4")))
    )


def environment_of(name: str, folder: Path, seed: int) -> dict[str, str]:
    """The variables of one run; its folder for temporary files is made."""
    temporary = folder / ("a b#=,@c" if name == "paths" else "tmp")
    home = folder / "home"
    for made in (temporary, home):
        made.mkdir()
    variables = {
        "OMP_NUM_THREADS": "1",
        "TMPDIR": str(temporary),
        "HYPOTHESIS_STORAGE_DIRECTORY": str(temporary / "hypothesis"),
        "PYTHONDONTWRITEBYTECODE": "1",
        "NESCIO_TEST_ORDER": str(seed),
        "PYTHONHASHSEED": str(seed),
    }
    if name == "paths":
        variables |= {"LC_ALL": "C", "LANG": "C", "TZ": "Pacific/Chatham"}
    if name == "avx2":
        variables |= {"ATEN_CPU_CAPABILITY": "avx2", "MKL_ENABLE_INSTRUCTIONS": "AVX2", "OPENBLAS_CORETYPE": "Haswell"}
        variables |= {"NUMBA_CPU_NAME": "haswell", "NUMBA_CPU_FEATURES": "", "HOME": str(home)}
    if name == "sse":
        variables |= {"ATEN_CPU_CAPABILITY": "default", "MKL_ENABLE_INSTRUCTIONS": "SSE4_2"}
        variables |= {"OPENBLAS_CORETYPE": "Nehalem", "NUMBA_CPU_NAME": "nehalem", "NUMBA_CPU_FEATURES": ""}
        variables |= {"HOME": str(home)}
    if name in ("avx2", "sse"):
        variables["NPY_DISABLE_CPU_FEATURES"] = numpy_features(name)
        home.chmod(0o500)
    return variables


def other_user_can_run() -> bool:
    """Whether this is root, and an interpreter and a repository that others can read."""
    if os.geteuid() != 0:
        return False
    try:
        subprocess.run([sys.executable, "-c", "import nescio"], user=NOBODY, group=NOBODY, extra_groups=[], check=True)
    except (OSError, subprocess.CalledProcessError):
        print(f"Another user cannot run {sys.executable}: the tests run as this one.", flush=True)
        return False
    return True


def run(name: str, words: list[str]) -> int:
    """The exit code of the suite in one of the surroundings."""
    seed = random.SystemRandom().randrange(1, 10_000)
    with tempfile.TemporaryDirectory() as made:
        folder = Path(made)
        variables = environment_of(name, folder, seed)
        command = [sys.executable, *(["-X", "dev"] if name == "core" else []), "-m", "pytest", "-p", "no:cacheprovider"]
        command += ["-n", "1" if name == "core" else "2", "--dist", "loadfile", "-m", "not slow and not cluster"]
        how: dict[str, object] = {"umask": 0o077} if name == "paths" else {}
        if name == "sse" and other_user_can_run():
            how = {"user": NOBODY, "group": NOBODY, "extra_groups": []}
            for path in (folder, *folder.iterdir()):
                os.chown(path, NOBODY, NOBODY)
        first = [min(os.sched_getaffinity(0))]
        hogs = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(8 if name == "load" else 0)]
        print(f"{name}: {' '.join(f'{key}={value!r}' for key, value in variables.items())}", flush=True)
        try:
            return subprocess.run(
                [*command, *words],
                cwd=ROOT,
                env=os.environ | variables,
                preexec_fn=(lambda: os.sched_setaffinity(0, first)) if name == "core" else None,
                **how,  # type: ignore[call-overload]
            ).returncode
        finally:
            for hog in hogs:
                hog.kill()
                hog.wait()


if __name__ == "__main__":
    wanted = [word for word in sys.argv[1:] if word in ALL]
    more = [word for word in sys.argv[1:] if word not in ALL]
    codes = {name: run(name, more) for name in wanted or ALL}
    sys.exit(", ".join(f"{name} failed" for name, code in codes.items() if code) or 0)
