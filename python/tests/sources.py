"""Sources of Python packages as syntax: nothing of them is imported, so that they need neither their dependencies nor a GPU."""

from __future__ import annotations

import ast
import importlib.util
import os
from functools import cache
from pathlib import Path

import pytest

#: Folders with unpacked wheels, beside what is installed: `PEERWARP_TEST_FRAMEWORKS=/tmp/vllm:/tmp/sglang`.
VARIABLE = "PEERWARP_TEST_FRAMEWORKS"


def _folder(package: str) -> Path:
    for folder in filter(None, os.environ.get(VARIABLE, "").split(":")):
        if (Path(folder) / package).is_dir():
            return Path(folder)
    spec = importlib.util.find_spec(package)
    if spec is None or not spec.submodule_search_locations:
        pytest.skip(f"{package} is not installed, and {VARIABLE} names no folder of its sources")
    return Path(next(iter(spec.submodule_search_locations))).parent


@cache
def _read(path: Path) -> ast.Module:
    return ast.parse(path.read_text(encoding="utf-8"))


def module(name: str) -> ast.Module:
    """A module; the test is skipped where its package is not there."""
    package = name.partition(".")[0]
    path = _folder(package).joinpath(*name.split("."))
    file = path / "__init__.py" if path.is_dir() else path.with_suffix(".py")
    assert file.is_file(), f"{package} has no module {name}"
    return _read(file)


def exported(name: str) -> set[str]:
    """The names of a module, and of what it imports all of."""
    own = module(name)
    stars = [one for one in own.body if isinstance(one, ast.ImportFrom) and any(alias.name == "*" for alias in one.names)]
    inner = (f"{name}.{star.module}" if star.level else str(star.module) for star in stars)
    return names(own).union(*(names(module(one)) for one in inner))


def found(of: ast.AST, name: str) -> ast.ClassDef | ast.FunctionDef:
    """A class or function anywhere in something, by its name, or by names of what it is in: `Dispatcher.dispatch`."""
    inner: ast.AST = of
    for part in name.split("."):
        inside = (one for one in ast.walk(inner) if isinstance(one, (ast.ClassDef, ast.FunctionDef)) and one is not inner)
        match = next((one for one in inside if one.name == part), None)
        assert match is not None, f"{name}: there is no {part}"
        inner = match
    assert isinstance(inner, (ast.ClassDef, ast.FunctionDef))
    return inner


class Signature:
    """The parameters of a function."""

    def __init__(self, function: ast.AST) -> None:
        assert isinstance(function, ast.FunctionDef)
        args = function.args
        positional = [*args.posonlyargs, *args.args]
        self.names = [one.arg for one in positional]
        self.keywords = [one.arg for one in args.kwonlyargs]
        without = len(positional) - len(args.defaults)
        self.optional = {one.arg for one in positional[without:]}
        self.optional |= {one.arg for one, value in zip(args.kwonlyargs, args.kw_defaults, strict=True) if value is not None}
        self.takes_more = args.vararg is not None, args.kwarg is not None

    def takes(self, caller: Signature) -> None:
        """Whether a caller of another signature may call this one."""
        assert self.names[: len(caller.names)] == caller.names
        assert set(caller.keywords) <= {*self.keywords, *self.names}
        others = {*self.names[len(caller.names) :], *self.keywords} - set(caller.keywords)
        assert others <= self.optional, f"{others - self.optional} would be missing"
        assert caller.optional <= self.optional

    def takes_call(self, call: ast.Call, bound: int = 1) -> None:
        """Whether it may be called like this, after `bound` parameters that are there."""
        names = [one.arg for one in call.keywords]
        assert None not in names
        free = self.names[bound:]
        assert len(call.args) <= len(free) or self.takes_more[0]
        by_name = {*free[len(call.args) :], *self.keywords}
        assert set(names) <= by_name or self.takes_more[1], set(names) - by_name
        assert by_name - set(names) <= self.optional, f"{by_name - set(names) - self.optional} would be missing"


def calls(of: ast.AST, name: str) -> list[ast.Call]:
    """The calls of a function or method by its last name."""
    every = [one for one in ast.walk(of) if isinstance(one, ast.Call)]
    return [one for one in every if getattr(one.func, "attr", getattr(one.func, "id", None)) == name]


def names(of: ast.AST) -> set[str]:
    """Every name that something defines, imports, assigns or uses, attributes and texts too."""
    used: set[str] = set()
    for one in ast.walk(of):
        if isinstance(one, ast.Attribute):
            used.add(one.attr)
        elif isinstance(one, ast.Name):
            used.add(one.id)
        elif isinstance(one, (ast.ClassDef, ast.FunctionDef)):
            used.add(one.name)
        elif isinstance(one, ast.alias):
            used.add(one.asname or one.name)
        elif isinstance(one, ast.Constant) and isinstance(one.value, str):
            used.add(one.value)
    return used
