"""How the native part looks at tensors: by a table of DLPack's functions for C, here one whose functions are Python's."""

from __future__ import annotations

import ctypes
from typing import Any

import pytest

from peerwarp import _core


class Described(ctypes.Structure):
    """DLTensor."""

    _fields_ = (
        ("data", ctypes.c_void_p),
        ("device", ctypes.c_int32),
        ("number", ctypes.c_int32),
        ("axes", ctypes.c_int32),
        ("code", ctypes.c_uint8),
        ("bits", ctypes.c_uint8),
        ("lanes", ctypes.c_uint16),
        ("shape", ctypes.POINTER(ctypes.c_int64)),
        ("strides", ctypes.POINTER(ctypes.c_int64)),
        ("offset", ctypes.c_uint64),
    )


Describe = ctypes.PYFUNCTYPE(ctypes.c_int, ctypes.py_object, ctypes.POINTER(Described))
Stream = ctypes.PYFUNCTYPE(ctypes.c_int, ctypes.c_int32, ctypes.c_int32, ctypes.POINTER(ctypes.c_void_p))


class Table(ctypes.Structure):
    """DLPackExchangeAPI."""

    _fields_ = (
        ("major", ctypes.c_uint32),
        ("minor", ctypes.c_uint32),
        ("unused", ctypes.c_void_p * 4),
        ("describe", Describe),
        ("stream", Stream),
    )


class Tensor:
    """A tensor of a library that has a table."""

    __dlpack_c_exchange_api__: Any

    def __init__(self, *shape: int, device: tuple[int, int] = (2, 1), strides: tuple[int, ...] | None = None) -> None:
        self.lengths = (ctypes.c_int64 * len(shape))(*shape)
        self.strides = None if strides is None else (ctypes.c_int64 * len(strides))(*strides)
        self.device, self.fails = device, False


def _describe(tensor: Tensor, into: Any) -> int:
    if tensor.fails:
        return -1
    found = into.contents
    found.data, found.offset = 0x1000, 0x20
    found.device, found.number = tensor.device
    found.axes, found.shape = len(tensor.lengths), tensor.lengths
    found.strides = tensor.strides or ctypes.POINTER(ctypes.c_int64)()
    found.code, found.bits, found.lanes = 4, 16, 1
    return 0


def capsule(table: Table, name: bytes) -> Any:
    new = ctypes.pythonapi.PyCapsule_New
    new.restype, new.argtypes = ctypes.py_object, [ctypes.c_void_p, ctypes.c_char_p, ctypes.c_void_p]
    return new(ctypes.addressof(table), name, None)


TABLE = Table(1, 3, (ctypes.c_void_p * 4)(), Describe(_describe), Stream(lambda *_: 0))
NAME = b"dlpack_exchange_api"
Tensor.__dlpack_c_exchange_api__ = capsule(TABLE, NAME)


def test_a_tensor_is_what_its_library_says() -> None:
    exchange = _core.Exchange(Tensor, 1)
    assert exchange.look(Tensor(3, 8, strides=(8, 1))) == (0x1020, (4, 16), [3, 8])
    assert exchange.look(Tensor(3, 8)) == (0x1020, (4, 16), [3, 8])
    assert exchange.look(Tensor()) == (0x1020, (4, 16), [])
    assert exchange.look(Tensor(0, 8, strides=(8, 1))) == (0x1020, (4, 16), [0, 8])
    # Where there is one of something, its stride says nothing.
    assert exchange.look(Tensor(1, 8, strides=(99, 1))) == (0x1020, (4, 16), [1, 8])
    assert exchange.look(Tensor(3, 8, device=(10, 1), strides=(8, 1))) is not None


def test_others_are_left_to_code_that_can_say_why() -> None:
    class Other(Tensor):
        pass

    exchange = _core.Exchange(Tensor, 1)
    failing = Tensor(2)
    failing.fails = True
    others = [
        Tensor(2, device=(2, 0)),
        Tensor(2, device=(1, 1)),
        Tensor(3, 8, strides=(1, 3)),
        Tensor(3, 8, strides=(16, 1)),
        Tensor(*[1] * 9),
        Other(2),
        failing,
        None,
        7,
    ]
    assert [exchange.look(other) for other in others] == [None] * len(others)


@pytest.mark.parametrize(
    "table",
    [None, 3, capsule(TABLE, b"another"), capsule(Table(2, 0, (ctypes.c_void_p * 4)(), TABLE.describe, TABLE.stream), NAME)],
)
def test_a_type_without_such_a_table_has_no_exchange(table: object) -> None:
    class Without:
        __dlpack_c_exchange_api__ = table

    with pytest.raises((AttributeError, TypeError, ValueError)):
        _core.Exchange(Without, 0)


def test_torch_has_the_table_that_is_looked_for() -> None:
    torch = pytest.importorskip("torch")
    if not hasattr(torch.Tensor, "__dlpack_c_exchange_api__"):
        pytest.skip("this PyTorch has no table")
    # No GPU is needed to find that a tensor is not on one.
    assert _core.Exchange(torch.Tensor, 0).look(torch.zeros(2)) is None
