"""`python -m peerwarp doctor` says what there is on this machine, what is missing, and how to get it; `python -m peerwarp bench`
times dispatch and combine from PyTorch, beside other libraries.

All else is the command `peerwarp`: `python -m peerwarp show --model mixtral-8x7b --tokens 8 --ranks 4`.
"""

from __future__ import annotations

import importlib.metadata
import sys

from peerwarp import __version__, _core
from peerwarp._world import compilers
from peerwarp.errors import PeerwarpError


def _package(name: str, why: str) -> tuple[str, bool, str]:
    """Whether a Python package is installed; it is not imported."""
    try:
        return name, True, importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return name, False, f"not installed: `pip install {name}` ({why})"


def doctor() -> int:
    """Prints what was looked for. 0 if kernels can run on GPUs of this machine, 1 if they can only be simulated."""
    native = _core.findings(compilers())
    packages = [
        _package("numpy", "arrays; needed"),
        _package("ml_dtypes", "a bfloat16 type for NumPy; without it, bits as uint16 or float32"),
        _package("torch", "for World.from_torch, and so for GPUs, alone"),
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
    lacking = [what for what, there in (("a GPU", gpus), ("PyTorch", packages[2][1])) if not there]
    print("worlds of GPUs: " + (f"no, {' and '.join(lacking)} cannot be used" if lacking else "yes"))
    return 0 if gpus and packages[0][1] else 1


def main() -> int:
    """The command `peerwarp`."""
    if sys.argv[1:] == ["doctor"]:
        return doctor()
    try:
        code, out, err = _core.command(sys.argv[1:])
    except PeerwarpError as error:
        code, out, err = 2, "", f"error: {error}\n"
    sys.stderr.write(err)
    sys.stdout.write(out)
    return code


#: The commands that the module adds.
_OWN = """\
Commands of the Python package:
  doctor  Say what there is on this machine, what is missing, and how to get it
  bench   Time dispatch and combine from PyTorch, beside other libraries

All other commands are those of peerwarp:

"""


def module() -> int:
    """`python -m peerwarp`: the command, but for `bench`, which is that of PyTorch."""
    if sys.argv[1:2] in (["--help"], ["-h"], ["help"]) and len(sys.argv) == 2:
        sys.stdout.write(_OWN)
    if sys.argv[1:2] != ["bench"]:
        return main()
    from peerwarp import _bench

    try:
        return _bench.main(sys.argv[2:])
    except PeerwarpError as error:
        sys.stderr.write(f"error: {error}\n")
        return 2


if __name__ == "__main__":
    sys.exit(module())
