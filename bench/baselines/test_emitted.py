"""Tests of `emitted.py`, against C: `tests/python_baselines.rs` runs them on a folder that it generates."""

import ctypes
import json
import os
import re
import shutil
import subprocess
import tempfile
import unittest
from pathlib import Path

from emitted import ALIGNMENT, SYMMETRIC, Emitted, EmittedError, Entry, Kernel, Nvcc, Status, arena, together

GENERATED = Path(os.environ["PEERWARP_EMITTED"])
SHAPES = json.loads((Path(__file__).parents[2] / "src/families/moe/gpumode.json").read_text())["all2all"]
FLAGS_OF_C = ["-Wall", "-Wextra", "-Werror", "-Wno-overlength-strings"]

# What C makes of a header, and a library whose launch keeps the arguments to be asked for.
VIEW = """
static void view_NAME(void) {
    printf("NAME size %zu ranks %d id %llu\\n", sizeof(NAME_Args), UPPER_RANKS, (unsigned long long)UPPER_KERNEL_ID);
    #define X(member, kind, bytes) \\
        printf("NAME " #member " %zu %zu " #kind " %llu\\n", offsetof(NAME_Args, member), \\
               sizeof(((NAME_Args*)0)->member), (unsigned long long)bytes);
    UPPER_BUFFERS(X)
    #undef X
    printf("NAME wait_budget_ns %zu rank %zu\\n", offsetof(NAME_Args, wait_budget_ns), offsetof(NAME_Args, rank));
}
"""
KEEP = """
static NAME_Args kept;
int NAME_launch(const NAME_Args* args, void* stream) {
    if (stream != (void*)77) return 3;
    if (args->rank >= UPPER_RANKS) return PEERWARP_BAD_RANK;
    kept = *args;
    return 0;
}
int NAME_resident_blocks(int* blocks) { *blocks = 1000 + UPPER_GRID_BLOCKS; return 0; }
const char* NAME_error(int code) { return code == PEERWARP_BAD_RANK ? "rank: too large" : "a stream of another"; }
uint64_t kept_wait_budget_ns(void) { return kept.wait_budget_ns; }
void* kept_member(const char* name, int rank) {
    #define X(member, kind, bytes) if (!strcmp(name, #member)) return ((void**)&kept.member)[rank];
    UPPER_BUFFERS(X)
    return 0;
}
"""


def for_kernel(text, kernel):
    return text.replace("NAME", kernel.name).replace("UPPER", kernel.name.upper())


def pair(shape, ranks):
    key = [f"h{shape['hidden_dim']}", f"e{shape['num_experts']}", f"k{shape['experts_per_token']}"]
    key += [f"t{shape['max_num_tokens']}", f"r{ranks}", "fp16", "both"]
    emitted = Emitted(GENERATED)
    return emitted.find("moe_dispatch", *key, "expert"), emitted.find("moe_combine", *key)


class Case(unittest.TestCase):
    def setUp(self):
        held = tempfile.TemporaryDirectory()
        self.addCleanup(held.cleanup)
        self.folder = Path(held.name)

    def c(self, kernels, text, *flags):
        """Compiles C that includes the kernels' headers."""
        source, made = self.folder / "test.c", self.folder / "made"
        headers = "".join(f'#include "{kernel.header}"\n' for kernel in kernels)
        includes = "".join(f"#include <{name}.h>\n" for name in ("stddef", "stdio", "string"))
        source.write_text(headers + includes + text)
        subprocess.run(["cc", *FLAGS_OF_C, *flags, "-o", made, source], check=True)
        return made

    def copy(self):
        """A copy of the emitted folder that can be damaged, and the first kernel's entry in it."""
        copy = self.folder / "copy"
        shutil.copytree(GENERATED, copy)
        return copy, Emitted(copy).entries[0]

    def refuses(self, action, *words):
        with self.assertRaises(EmittedError) as refused:
            action()
        for word in words:
            self.assertIn(str(word), str(refused.exception))


class OfLayout(Case):
    def test_every_shape_is_there_for_two_four_and_eight_ranks(self):
        found = [kernel.name for shape in SHAPES for ranks in (2, 4, 8) for kernel in pair(shape, ranks)]
        self.assertEqual(sorted(found), sorted(entry["entry"] for entry in Emitted(GENERATED).entries))
        self.assertEqual(len(set(found)), 30)

    def test_arguments_and_buffers_are_those_of_c(self):
        kernels = [kernel for ranks, shape in ((2, SHAPES[0]), (8, SHAPES[4])) for kernel in pair(shape, ranks)]
        calls = "".join(f"view_{kernel.name}();" for kernel in kernels)
        text = "".join(for_kernel(VIEW, kernel) for kernel in kernels) + f"int main(void) {{ {calls} return 0; }}\n"
        said = subprocess.run([self.c(kernels, text)], check=True, capture_output=True, text=True).stdout
        lines = []
        for kernel in kernels:
            args, name = kernel.Args, kernel.name
            lines.append(f"{name} size {ctypes.sizeof(args)} ranks {kernel.ranks} id {kernel.id}")
            for member, buffer in kernel.buffers.items():
                at = getattr(args, member)
                lines.append(f"{name} {member} {at.offset} {at.size} {buffer.kind} {buffer.bytes}")
            lines.append(f"{name} wait_budget_ns {args.wait_budget_ns.offset} rank {args.rank.offset}")
        self.assertEqual(said.splitlines(), lines)

    def test_what_a_kernel_uses_has_a_size(self):
        for entry in Emitted(GENERATED).entries:
            kernel = Kernel(GENERATED, entry)
            device, launcher, _ = kernel.source.read_text().partition("// ---- Launcher")
            self.assertTrue(launcher)
            used = set(re.findall(r"\bargs\.(\w+)", device)) & set(kernel.buffers)
            self.assertEqual({b.name for b in kernel.buffers.values() if b.bytes > 0}, used, kernel.name)

    def test_a_status_is_that_of_c(self):
        (kernel, _) = pair(SHAPES[0], 2)
        members = "".join(f'printf("{name} %zu\\n", offsetof(PeerwarpStatus, {name}));' for name, _ in Status._fields_)
        text = f'int main(void) {{ {members} printf("%zu\\n", sizeof(PeerwarpStatus)); return 0; }}'
        said = subprocess.run([self.c([kernel], text)], check=True, capture_output=True, text=True).stdout
        here = [f"{name} {getattr(Status, name).offset}" for name, _ in Status._fields_]
        self.assertEqual(said.splitlines(), [*here, str(ctypes.sizeof(Status))])

    def test_a_status_says_who_waited_for_whom(self):
        kernels = pair(SHAPES[0], 2)
        self.assertIsNone(Status().words(kernels))
        status = Status(aborted=2, filled=1, kernel=kernels[1].id, index=5, rank=1, role=2, block=3, peer=4)
        status.flag, status.site, status.expected, status.seen = 6, 0, 8, 9
        said = f"rank 1 gave up waiting for rank 4 in {kernels[1].name}, role 2, block 3: flag 6[5] is 9, not 8"
        self.assertRegex(kernels[1].waits[0], r"^src/families/moe/kernels/\w+\.rs:[1-9]\d*$")
        self.assertEqual(status.words(kernels), f"{said} ({kernels[1].waits[0]})")
        status.site = 70
        self.assertEqual(status.words(kernels), f"{said} (wait 70)")
        self.assertIn("rank 1 gave up", Status(aborted=2).words(kernels))

    def test_buffers_of_a_round_lie_side_by_side(self):
        dispatch, combine = pair(SHAPES[4], 2)
        buffers = together([dispatch, combine])
        self.assertEqual({f"{dispatch.name}.epoch", f"{combine.name}.epoch", "n", "pos"} - set(buffers), set())
        self.assertTrue(all(buffer.bytes > 0 for buffer in buffers.values()))
        offsets, size = arena(buffers)
        self.assertEqual(set(offsets), {key for key, buffer in buffers.items() if buffer.kind in SYMMETRIC})
        ends = [0] + [offset + buffers[key].bytes for key, offset in offsets.items()]
        for end, offset in zip(ends, [*offsets.values(), size]):
            self.assertTrue(end <= offset < end + ALIGNMENT and offset % ALIGNMENT == 0)

    def test_buffers_begin_with_what_kernels_expect(self):
        buffers = [b for shape in SHAPES for kernel in pair(shape, 4) for b in kernel.buffers.values()]
        zero = {buffer.kind for buffer in buffers if buffer.first_byte == 0}
        self.assertEqual(zero, {"FLAGS", "LL", "EPOCH", "STATUS"})
        self.assertEqual({b.first_byte for b in buffers if b.kind == "PACKETS"}, {0xFF})


class OfCalls(Case):
    def test_a_launch_gets_the_arguments(self):
        (kernel, _) = pair(SHAPES[0], 4)
        made = self.c([kernel], for_kernel(KEEP, kernel), "-shared", "-fPIC", "-I", str(kernel.header.parent))
        library = ctypes.CDLL(str(made))
        library.kept_member.restype, library.kept_member.argtypes = ctypes.c_void_p, [ctypes.c_char_p, ctypes.c_int]
        library.kept_wait_budget_ns.restype = ctypes.c_uint64
        entry = Entry(kernel, library)
        self.assertGreater(entry.resident_blocks(), 1000)
        args, pointers = kernel.Args(wait_budget_ns=5 << 40, rank=3), {}
        for number, buffer in enumerate(kernel.buffers.values()):
            pointers[buffer.name] = [(number + 1) << 40 | rank << 4 for rank in range(4 if buffer.symmetric else 1)]
            if buffer.symmetric:
                getattr(args, buffer.name)[:] = pointers[buffer.name]
            else:
                setattr(args, buffer.name, pointers[buffer.name][0])
        entry.launch(args, 77)
        self.assertEqual(library.kept_wait_budget_ns(), 5 << 40)
        for name, wanted in pointers.items():
            kept = [library.kept_member(name.encode(), rank) for rank in range(len(wanted))]
            self.assertEqual(kept, wanted, name)
        self.refuses(lambda: entry.launch(args, 78), kernel.name, "a stream of another (code 3)")
        args.rank = 4
        self.refuses(lambda: entry.launch(args, 77), "rank: too large (code -2)")
        self.refuses(lambda: Entry(pair(SHAPES[1], 4)[0], library), "lacks an entry point")

    @unittest.skipUnless(os.environ.get("PEERWARP_NVCC"), "PEERWARP_NVCC is not set")
    def test_a_compiled_launcher_looks_at_the_arguments(self):
        (_, kernel) = pair(SHAPES[0], 2)
        nvcc = Nvcc()
        major = nvcc.release[0]
        home = Path(nvcc.path).parents[1]
        runtime = next(path for path in home.glob(f"lib*/libcudart.so.{major}"))
        ctypes.CDLL(str(runtime), mode=ctypes.RTLD_GLOBAL)
        entry = Entry(kernel, ctypes.CDLL(str(nvcc.library([kernel], self.folder))))
        args = kernel.Args(wait_budget_ns=1, rank=2)
        self.refuses(lambda: entry.launch(args, None), "rank: it must be below 2")
        args.rank, args.wait_budget_ns = 1, 0
        self.refuses(lambda: entry.launch(args, None), "wait_budget_ns: 0")
        args.wait_budget_ns = 1
        # Each pointer is the first one that is missing, in turn; with the last one there it would launch.
        used = [buffer for buffer in kernel.buffers.values() if buffer.bytes > 0]
        for buffer in used:
            self.refuses(lambda name=buffer.name: entry.launch(args, None), f"{buffer.name}: a pointer is null")
            if buffer.symmetric:
                getattr(args, buffer.name)[:] = [16, 24]
                self.refuses(lambda name=buffer.name: entry.launch(args, None), f"{buffer.name}: a pointer is null or not")
                getattr(args, buffer.name)[:] = [16, 16]
            else:
                setattr(args, buffer.name, 16)


class OfFiles(Case):
    def test_what_is_missing_is_named(self):
        self.refuses(lambda: Emitted(self.folder), self.folder / "manifest.json", "peerwarp generate")
        (self.folder / "manifest.json").write_text('{"kernels": 3}')
        self.refuses(lambda: Emitted(self.folder), "not a manifest", "version")
        copy, entry = self.copy()
        for of in ("header", "file"):
            (copy / entry[of]).unlink()
            self.refuses(lambda: Kernel(copy, entry), copy / entry[of], "generate again")
        self.refuses(lambda: Emitted(GENERATED).find("moe_dispatch", "r3", "fp16"), "no moe_dispatch with r3, fp16", "15")
        self.refuses(lambda: Emitted(GENERATED).find("moe_combine", "h2048"), "more than one", "_r2_", "_r8_")

    def test_files_that_disagree_are_refused(self):
        copy, entry = self.copy()
        header = copy / entry["header"]
        text = header.read_text()
        size = entry["args"]["bytes"]

        def with_header(old, new):
            self.assertIn(old, text)
            header.write_text(text.replace(old, new))
            return lambda: Kernel(copy, entry)

        self.refuses(with_header(f"ARGS_BYTES {size}", f"ARGS_BYTES {size + 8}"), f"{size} in the manifest and {size + 8}")
        self.refuses(with_header("PEERWARP_ABI_1", "PEERWARP_ABI_2"), "PEERWARP_ABI_1")
        self.refuses(with_header("_BUFFERS(X)", "_BUFFER(X)"), "_BUFFERS")
        self.refuses(with_header("(status, STATUS,", "(status, MANAGED,"), "status is MANAGED")
        self.refuses(with_header("(status, STATUS,", "(state, STATUS,"), "argument status is no buffer")
        header.write_text(text)
        field = entry["args"]["fields"][1]
        field["offset"] += 8
        self.refuses(lambda: Kernel(copy, entry), field["name"], "in the manifest")
        del entry["args"]
        self.refuses(lambda: Kernel(copy, entry), "'args'")


class OfCompiler(Case):
    def nvcc(self, release="release 13.0, V13.0.88", compiles="echo >> $0.runs; : > $made"):
        """A program that takes its place, and makes what follows -o."""
        program = self.folder / "nvcc"
        made = 'before=; for a; do [ "$before" = -o ] && made=$a; before=$a; done'
        program.write_text(f'#!/bin/sh\n[ "$1" = --version ] && echo "{release}" && exit\n{made}\n{compiles}\n')
        program.chmod(0o755)
        return Nvcc(str(program))

    def test_a_library_that_others_can_write_is_not_loaded(self):
        copy, entry = self.copy()
        kernel, cache = Kernel(copy, entry), self.folder / "cache"
        library = self.nvcc().library([kernel], cache)
        self.assertEqual((cache.stat().st_mode & 0o777, library.stat().st_mode & 0o777), (0o700, 0o700))
        for path in (cache, library):
            for mode in (0o777, 0o775, 0o722):
                path.chmod(mode)
                self.refuses(lambda: self.nvcc().library([kernel], cache), path, f"mode {mode:o}", "--cache")
            path.chmod(0o700)
            if os.geteuid() == 0:
                os.chown(path, 65534, -1)
                self.refuses(lambda: self.nvcc().library([kernel], cache), path, "belongs to user 65534", "--cache")
                os.chown(path, 0, -1)
        self.assertEqual(self.nvcc().library([kernel], cache), library)

    def test_what_is_compiled_stays_compiled(self):
        copy, entry = self.copy()
        kernel, cache, runs = Kernel(copy, entry), self.folder / "cache", self.folder / "nvcc.runs"
        first = self.nvcc().library([kernel], cache)
        self.assertEqual((self.nvcc().library([kernel], cache), runs.read_text()), (first, "\n"))
        self.assertEqual(list(cache.iterdir()), [first])
        kernel.source.write_text("// another")
        other = self.nvcc().library([kernel], cache)
        third = self.nvcc(release="release 13.1").library([kernel], cache)
        self.assertEqual((len({first, other, third}), runs.read_text()), (3, "\n\n\n"))

    def test_a_compiler_that_fails_is_quoted(self):
        (kernel, _) = pair(SHAPES[0], 2)
        failing = self.nvcc(compiles="echo no room >&2; exit 7")
        self.refuses(lambda: failing.library([kernel], self.folder), "with 7", "no room")
        self.assertEqual(list(self.folder.glob("*.so")), [])
        self.refuses(lambda: self.nvcc(release="nothing"), "tells no release")
        self.refuses(lambda: Nvcc(str(self.folder / "none")), "none", "--nvcc", "PEERWARP_NVCC")


if __name__ == "__main__":
    unittest.main()
