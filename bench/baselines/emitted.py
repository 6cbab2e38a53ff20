"""Emitted kernels in Python: finds them in a folder that `peerwarp generate` wrote, compiles them to a library, and calls
their C entry points (docs/how-to/c.md). Needs an nvcc, and no package.

What a kernel takes is read from what was emitted: names and offsets of its arguments from the manifest, kinds and bytes of
its buffers from the header. The two have to agree, and ctypes with them.
"""

import ctypes
import hashlib
import json
import os
import re
import shutil
import subprocess
import tempfile
from dataclasses import dataclass
from pathlib import Path

# Kinds of buffers that every rank has and all ranks reach.
SYMMETRIC = {"SYMMETRIC", "FLAGS", "PACKETS", "LL", "STATUS"}
# Kinds whose bytes are zero before the first launch. Packets have all bits set; so get buffers that need no value, where
# it would show in the results if they were used.
ZEROED = {"FLAGS", "LL", "EPOCH", "COUNTERS", "STATUS"}
KINDS = SYMMETRIC | {"LOCAL", "EPOCH", "COUNTERS"}
# Arguments that are no buffers.
SCALARS = {
    "wait_budget_ns": ctypes.c_uint64,
    "rank": ctypes.c_uint32,
    "rows_there": ctypes.c_uint32,
    "empty_id": ctypes.c_int32,
}
# Bytes of a map of a matrix.
MAP_BYTES = 128
# What begins a buffer within one allocation of several: more than the 16 bytes that kernels demand.
ALIGNMENT = 256
ABI = "PEERWARP_ABI_1"


class EmittedError(Exception):
    """Something about the emitted files, the compiler, or a call: what, and what would be right."""


@dataclass(frozen=True)
class Buffer:
    """What to allocate on each rank."""

    name: str
    kind: str
    bytes: int

    @property
    def symmetric(self):
        return self.kind in SYMMETRIC

    @property
    def first_byte(self):
        """Each byte's value before the first launch."""
        return 0 if self.kind in ZEROED else 0xFF


class Status(ctypes.Structure):
    """`PeerwarpStatus` of the headers."""

    _fields_ = [
        ("aborted", ctypes.c_uint32),
        ("filled", ctypes.c_uint32),
        ("kernel", ctypes.c_uint64),
        ("index", ctypes.c_uint64),
        *((name, ctypes.c_uint32) for name in ("rank", "role", "block", "peer", "flag", "site", "expected", "seen")),
        ("inactive", ctypes.c_uint64),
    ]

    def words(self, kernels):
        """Who gave up waiting for whom, or None while all is well."""
        if self.aborted == 0:
            return None
        if self.filled == 0:
            return f"rank {self.aborted - 1} gave up waiting, and tells why in its own status"
        kernel = next((k for k in kernels if k.id == self.kernel), None)
        name = kernel.name if kernel else f"kernel {self.kernel:#x}"
        place = kernel.waits.get(self.site) if kernel else None
        place = place or f"wait {self.site}"
        return (
            f"rank {self.rank} gave up waiting for rank {self.peer} in {name}, role {self.role}, block {self.block}: "
            f"flag {self.flag}[{self.index}] is {self.seen}, not {self.expected} ({place})"
        )


class Kernel:
    """One emitted kernel: an entry of the manifest, and its header."""

    def __init__(self, folder, entry):
        try:
            self.name, self.family, self.target = entry["entry"], entry["family"], entry["target"]
            self.source, self.header = folder / entry["file"], folder / entry["header"]
            fields, size = entry["args"]["fields"], entry["args"]["bytes"]
            maps = entry["args"].get("maps", [])
        except KeyError as missing:
            raise EmittedError(f"{folder / 'manifest.json'}: an entry has no {missing}") from None
        for path in (self.source, self.header):
            if not path.is_file():
                raise EmittedError(f"{path}: the manifest lists it, and it is not there; generate again")
        header = self.header.read_text(encoding="utf-8")
        if f"#define {ABI}\n" not in header:
            raise EmittedError(f"{self.header}: not of {ABI}, which is what is understood here")
        self.ranks = self.constant(header, "RANKS")
        self.id = self.constant(header, "KERNEL_ID")
        self.waits = self.places(header)
        self.buffers = self.listed(header)
        self.Args = self.arguments(fields, maps, size, self.constant(header, "ARGS_BYTES"))

    def constant(self, header, name):
        found = re.search(rf"^#define {self.name.upper()}_{name} (?:UINT64_C\()?(0x[0-9a-f]+|\d+)\b", header, re.M)
        if not found:
            raise EmittedError(f"{self.header}: does not define {self.name.upper()}_{name}")
        return int(found.group(1), 0)

    def places(self, header):
        """Where its waits stand in the author's source, by number; none if it does not wait."""
        found = re.search(rf"^#define {self.name.upper()}_WAITS\(X\)((?:.*\\\n)+.*)", header, re.M)
        items = re.findall(r'X\((\d+), "([^"]*)", (\d+)\)', found.group(1)) if found else []
        return {int(number): f"{file}:{line}" for number, file, line in items}

    def listed(self, header):
        """Its buffers by name, as the header's list has them."""
        found = re.search(rf"^#define {self.name.upper()}_BUFFERS\(X\)((?:.*\\\n)+.*)", header, re.M)
        items = re.findall(r"X\((\w+), (\w+), (\d+)\)", found.group(1)) if found else []
        if not items:
            raise EmittedError(f"{self.header}: does not list buffers in {self.name.upper()}_BUFFERS")
        buffers = {name: Buffer(name, kind, int(size)) for name, kind, size in items}
        for buffer in buffers.values():
            if buffer.kind not in KINDS:
                raise EmittedError(f"{self.header}: {buffer.name} is {buffer.kind}, not one of {', '.join(sorted(KINDS))}")
        return buffers

    def arguments(self, fields, maps, size, header_size):
        """The struct of its arguments. Maps of matrices stay zero: launches make them."""

        def member(name):
            if name in SCALARS:
                return SCALARS[name]
            if name not in self.buffers:
                raise EmittedError(f"{self.name}: argument {name} is no buffer, nor one of {', '.join(SCALARS)}")
            return ctypes.c_void_p * self.ranks if self.buffers[name].symmetric else ctypes.c_void_p

        members = [(field["name"], member(field["name"])) for field in fields]
        end = max((field["offset"] + field["bytes"] for field in fields), default=0)
        for one in maps:
            members += [(f"before_{one['name']}", ctypes.c_uint8 * (one["offset"] - end))]
            members += [(one["name"], ctypes.c_uint64 * (MAP_BYTES // 8))]
            end = one["offset"] + MAP_BYTES
        struct = type("Args", (ctypes.Structure,), {"_fields_": members})
        for field in fields:
            here = getattr(struct, field["name"])
            if (here.offset, here.size) != (field["offset"], field["bytes"]):
                raise EmittedError(
                    f"{self.name}: argument {field['name']} has {here.size} bytes at {here.offset}, and "
                    f"{field['bytes']} at {field['offset']} in the manifest"
                )
        if not ctypes.sizeof(struct) == size == header_size:
            sizes = f"{ctypes.sizeof(struct)} bytes here, {size} in the manifest and {header_size} in the header"
            raise EmittedError(f"{self.name}: the arguments have {sizes}")
        return struct

    def key(self, buffer):
        """What names a buffer among those of kernels that run in turn: they share all but their epochs."""
        return f"{self.name}.{buffer.name}" if buffer.kind == "EPOCH" else buffer.name


def problem(entry):
    """The words of a name that say what a kernel is for, and not how it was tuned."""
    return set(entry["entry"].removeprefix(entry["family"]).split("__")[0].split("_"))


class Emitted:
    """A folder that `peerwarp generate` wrote."""

    def __init__(self, folder):
        self.folder = Path(folder)
        manifest = self.folder / "manifest.json"
        try:
            read = json.loads(manifest.read_text(encoding="utf-8"))
            self.version, self.entries = read["version"], read["kernels"]
        except FileNotFoundError:
            raise EmittedError(f"{manifest}: not there; `peerwarp generate --out {folder}` writes it") from None
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise EmittedError(f"{manifest}: not a manifest of `peerwarp generate`: {error!r}") from None

    def find(self, family, *words):
        """The one kernel of a family with all these words in its name, as in `h7168`, `r8`, `fp16`."""
        of_family = [e for e in self.entries if e["family"] == family and e["target"].startswith("cuda:")]
        wanted = [e for e in of_family if set(words) <= problem(e)]
        if len(wanted) == 1:
            return Kernel(self.folder, wanted[0])
        asked = f"{family} with {', '.join(words)}, for CUDA"
        if wanted:
            raise EmittedError(f"{self.folder}: more than one {asked}: {', '.join(e['entry'] for e in wanted)}")
        raise EmittedError(f"{self.folder}: no {asked}, among {len(of_family)} of the family")


def together(kernels):
    """What to allocate for kernels that run in turn: buffers by `Kernel.key`. Those of one name are one buffer."""
    needed = {}
    for kernel in kernels:
        for buffer in kernel.buffers.values():
            key = kernel.key(buffer)
            other = needed.get(key, buffer)
            if other.kind != buffer.kind:
                raise EmittedError(f"{kernel.name}: {buffer.name} is {buffer.kind}, and {other.kind} in the kernel before")
            if buffer.bytes > 0:
                needed[key] = max(buffer, other, key=lambda b: b.bytes)
    return needed


def arena(buffers):
    """Where symmetric buffers lie in one allocation on each rank, `{key: offset}`, and the bytes of it."""
    offsets, end = {}, 0
    for key, buffer in buffers.items():
        if buffer.symmetric:
            offsets[key] = end
            end += -(-buffer.bytes // ALIGNMENT) * ALIGNMENT
    return offsets, end


class Nvcc:
    """A compiler: the one that is named, or `PEERWARP_NVCC`, or on the PATH, or in `CUDA_HOME` or /usr/local/cuda."""

    def __init__(self, named=None):
        given = named or os.environ.get("PEERWARP_NVCC")
        homes = [os.environ.get("CUDA_HOME"), "/usr/local/cuda"]
        places = [given] if given else ["nvcc"] + [f"{home}/bin/nvcc" for home in homes if home]
        self.path = next(filter(None, map(shutil.which, places)), None)
        if self.path is None:
            raise EmittedError(f"nvcc: no {' and no '.join(places)}; name one by --nvcc or PEERWARP_NVCC")
        self.version = self.run("--version")
        release = re.search(r"release (\d+)\.(\d+)", self.version)
        if not release:
            raise EmittedError(f"{self.path} --version tells no release: {self.version}")
        self.release = tuple(map(int, release.groups()))

    def run(self, *arguments):
        ran = subprocess.run([self.path, *arguments], capture_output=True, text=True, check=False)
        if ran.returncode != 0:
            raise EmittedError(f"{self.path} failed with {ran.returncode}:\n{ran.stdout}{ran.stderr}".rstrip())
        return ran.stdout

    def library(self, kernels, cache):
        """A library of these kernels, as a path in the folder `cache`: compiled, unless it is there already."""
        # The runtime is the one that the program has loaded: two of them would not agree on the current device.
        flags = ["-std=c++17", "-O3", "-shared", "-cudart", "none", "-Xcompiler", "-fPIC"]
        # Spelled out: `-arch=sm_90a` alone leaves out what only that architecture has.
        for arch in sorted({k.target.removeprefix("cuda:sm_") for k in kernels}):
            flags += ["-gencode", f"arch=compute_{arch},code=sm_{arch}"]
        key = hashlib.sha256("\0".join([self.version, *flags]).encode())
        for kernel in kernels:
            key.update(kernel.source.read_bytes() + kernel.header.read_bytes())
        cache = Path(cache)
        cache.mkdir(mode=0o700, parents=True, exist_ok=True)
        private(cache)
        library = cache / f"{key.hexdigest()[:32]}.so"
        if library.is_file():
            private(library)
        else:
            # A folder of its own, and moved when it is whole: others may be compiling the same.
            with tempfile.TemporaryDirectory(dir=cache) as folder:
                made = Path(folder) / library.name
                self.run(*flags, "-o", str(made), *(str(kernel.source) for kernel in kernels))
                made.chmod(0o700)
                made.replace(library)
        return library


def private(path):
    """Refuses a folder or a library, which this process is to load, that another user owns or can write."""
    found = path.stat()
    if found.st_uid != os.geteuid():
        raise EmittedError(f"{path} belongs to user {found.st_uid}: --cache must name a folder of this user")
    if found.st_mode & 0o022:
        raise EmittedError(f"{path} is writable by others (mode {found.st_mode & 0o7777:o}): remove it, or name another --cache")


class Entry:
    """A kernel of a loaded library."""

    def __init__(self, kernel, library):
        self.kernel = kernel
        try:
            self.c_launch, self.c_resident_blocks, self.c_error = (
                getattr(library, f"{kernel.name}_{of}") for of in ("launch", "resident_blocks", "error")
            )
        except AttributeError as missing:
            raise EmittedError(f"{kernel.name}: its library lacks an entry point: {missing}") from None
        self.c_launch.argtypes = [ctypes.POINTER(kernel.Args), ctypes.c_void_p]
        self.c_resident_blocks.argtypes = [ctypes.POINTER(ctypes.c_int)]
        self.c_error.argtypes, self.c_error.restype = [ctypes.c_int], ctypes.c_char_p

    def launch(self, args, stream):
        """Launches on the current device and `stream`, and does not wait. The arguments are copied."""
        self.check(self.c_launch(args, stream))

    def resident_blocks(self):
        """How many blocks the current device holds at once; loads the kernel, which later might wait for those that run."""
        blocks = ctypes.c_int()
        self.check(self.c_resident_blocks(blocks))
        return blocks.value

    def check(self, code):
        if code != 0:
            raise EmittedError(f"{self.kernel.name}: {self.c_error(code).decode()} (code {code})")
