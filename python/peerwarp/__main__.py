"""`python -m peerwarp doctor`: what there is on this machine, what is missing, and how to get it."""

from __future__ import annotations

import argparse
import importlib.metadata
import sys

from peerwarp import __version__, _core


def _package(name: str, why: str) -> tuple[str, bool, str]:
    """Whether a Python package is installed; it is not imported."""
    try:
        return name, True, importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return name, False, f"not installed: `pip install {name}` ({why})"


def doctor() -> int:
    """Prints what was looked for. 0 if kernels can run on GPUs of this machine, 1 if they can only be simulated."""
    native = _core.findings()
    packages = [
        _package("numpy", "arrays; needed"),
        _package("ml_dtypes", "a bfloat16 type for NumPy; without it, bits as uint16 or float32"),
        _package("torch", "for World.from_torch alone"),
    ]
    print(f"peerwarp {__version__}, Python {sys.version.split()[0]}")
    for what, found, said in [*native, *packages]:
        first, *rest = said.splitlines() or [""]
        print(f"  {'yes' if found else 'no ':3} {what}: {first}")
        for line in rest:
            print(f"        {line.strip()}")
    has = {what: found for what, found, _ in native}
    gpus = has["NVIDIA GPUs"] or has["AMD GPUs"]
    print("simulated worlds: yes" if packages[0][1] else "simulated worlds: no, NumPy is missing")
    print("launches on GPUs from Python: not in this version" + ("" if gpus else ", and no GPU can be used here"))
    return 0 if gpus and packages[0][1] else 1


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m peerwarp", description=__doc__)
    commands = parser.add_subparsers(dest="command", required=True)
    commands.add_parser("doctor", help="what there is on this machine, what is missing, and how to get it")
    parser.parse_args()
    return doctor()


if __name__ == "__main__":
    sys.exit(main())
