"""DLPack in and out, and tensors of our own."""

import gc
import weakref

import numpy as np
import pytest
from conftest import BF16, attention, same

import abreast


class Producer:
    """An array that speaks DLPack and nothing else."""

    def __init__(self, array, capsule=None):
        self.array, self.asked = array, []
        self.capsule = capsule or (lambda **asked: array.__dlpack__(**asked))

    def __dlpack__(self, **asked):
        self.asked.append(asked)
        return self.capsule(**asked)

    def __dlpack_device__(self):
        return self.array.__dlpack_device__()


def test_versioned_and_older_capsules():
    scores = np.arange(12, dtype=np.float32).reshape(2, 6)
    want = abreast.top_k(scores, k=3)
    versioned = Producer(scores)
    assert same(np.from_dlpack(abreast.top_k(versioned, k=3)), want)
    assert versioned.asked[0]["max_version"][0] == 1
    older = Producer(scores, lambda **_: scores.__dlpack__())
    assert same(np.from_dlpack(abreast.top_k(older, k=3)), want)

    def ignorant(**asked):
        if asked:
            raise TypeError("what is that?")
        return scores.__dlpack__()

    assert same(np.from_dlpack(abreast.top_k(Producer(scores, ignorant), k=3)), want)


def test_a_result_goes_into_any_producer():
    scores = np.arange(12, dtype=np.float32).reshape(2, 6)
    want = abreast.top_k(scores, k=3)
    out = np.zeros((2, 5), np.int32)
    given = Producer(out)
    assert abreast.top_k(scores, k=3, out=given) is given
    assert (out[:, :3] == want).all() and not out[:, 3:].any()
    out = abreast.zeros((2, 5), "int32")
    abreast.top_k(scores, k=3, out=out)
    assert (np.from_dlpack(out)[:, :3] == want).all()


def test_the_read_only_flag_is_honoured():
    out = np.zeros((2, 3), np.int32)
    out.flags.writeable = False
    scores = np.zeros((2, 6), np.float32)
    with pytest.raises(ValueError, match="out must be writable, got a read-only array"):
        abreast.top_k(scores, k=3, out=Producer(out))
    scores.flags.writeable = False
    assert abreast.top_k(Producer(scores), k=3).shape == (2, 3)


def test_what_a_producer_refuses_is_said():
    def refuse(**_):
        raise BufferError("not today")

    with pytest.raises(ValueError, match="scores must be a tensor that DLPack can lend, got not today"):
        abreast.top_k(Producer(np.zeros((1, 4), np.float32), refuse), k=1)

    def broken(**_):
        raise RuntimeError("on fire")

    with pytest.raises(RuntimeError, match="on fire"):
        abreast.top_k(Producer(np.zeros((1, 4), np.float32), broken), k=1)
    with pytest.raises((TypeError, ValueError)):
        abreast.top_k(Producer(np.zeros((1, 4), np.float32), lambda **_: "no capsule"), k=1)


def test_a_producer_elsewhere_is_refused():
    class Elsewhere(Producer):
        def __dlpack_device__(self):
            return (10, 0)

    with pytest.raises(ValueError, match="scores must be on cpu or cuda, got DLPack device type 10"):
        abreast.top_k(Elsewhere(np.zeros((1, 4), np.float32)), k=1)


def test_memory_is_given_back():
    q, kv, indices = attention(rows=2)

    class Array(np.ndarray):
        pass

    lent = [k.view(Array) for k in kv]
    seen = [weakref.ref(k) for k in lent]
    out = abreast.sparse_attention(q, lent, indices)
    with pytest.raises(ValueError):
        abreast.sparse_attention(q, lent, indices, scale=float("nan"))
    del lent
    gc.collect()
    assert all(r() is None for r in seen)
    assert out.shape == q.shape


def test_a_view_has_other_elements_over_the_same_bytes():
    q, kv, indices = attention()
    raw = q.view(np.uint16)
    tensor = abreast.view(raw, "bfloat16")
    assert (tensor.data_ptr, tensor.shape, tensor.dtype, tensor.device) == (raw.ctypes.data, q.shape, "bfloat16", "cpu")
    out = abreast.sparse_attention(tensor, kv, indices)
    assert isinstance(out, abreast.Tensor)
    back = np.from_dlpack(out.view("uint16"))
    assert back.ctypes.data == out.data_ptr
    assert (back == abreast.sparse_attention(q, kv, indices).view(np.uint16)).all()
    given = np.zeros(q.shape, np.uint16)
    abreast.sparse_attention(tensor, kv, indices, out=abreast.view(given, "bfloat16"))
    assert (given == back).all()
    with pytest.raises(TypeError, match="an element of u16 has not the size of f32"):
        abreast.view(raw, "float32")
    with pytest.raises(TypeError, match='there is no element type "float31"'):
        abreast.view(raw, "float31")
    with pytest.raises(ValueError, match="view: array must be contiguous"):
        abreast.view(raw[:, :, ::2], "bfloat16")
    raw.flags.writeable = False
    frozen = abreast.view(raw, "bfloat16")
    assert frozen.read_only and frozen.view("uint16").read_only
    with pytest.raises(ValueError, match="out must be writable"):
        abreast.sparse_attention(q, kv, indices, out=frozen)
    # Where a consumer can be told, it is; where not, it does not get it.
    assert not np.from_dlpack(frozen.view("uint16")).flags.writeable
    with pytest.raises(BufferError):
        frozen.__dlpack__()


def test_a_view_keeps_its_memory():
    array = np.arange(6, dtype=np.uint16)
    seen = weakref.ref(array)
    tensor = abreast.view(array, "int16")
    del array
    gc.collect()
    assert seen() is not None
    other = np.from_dlpack(tensor)
    del tensor
    gc.collect()
    assert other.tolist() == list(range(6)) and seen() is not None
    del other
    gc.collect()
    assert seen() is None


def test_zeros():
    tensor = abreast.zeros((2, 3), "int64")
    assert repr(tensor) == "abreast.Tensor(shape=[2, 3], dtype=int64, device=cpu)"
    array = np.from_dlpack(tensor)
    assert array.shape == (2, 3) and array.dtype == np.int64 and not array.any()
    assert tensor.data_ptr % 64 == 0
    for device in ("gpu", "cpu:1", "cuda:x"):
        with pytest.raises(ValueError, match="there is no device"):
            abreast.zeros((1,), device=device)
    with pytest.raises((ValueError, MemoryError)):
        abreast.zeros((2**40, 2**40))
    with pytest.raises(MemoryError, match="out of memory"):
        abreast.zeros((2**50,))


def test_memory_by_its_address():
    array = np.arange(8, dtype=np.float32)
    tensor = abreast.from_pointer(array.ctypes.data, (2, 4), "float32", owner=array)
    assert abreast.top_k(tensor, k=2).shape == (2, 2)
    assert same(np.from_dlpack(tensor), array.reshape(2, 4))
    frozen = abreast.from_pointer(array.ctypes.data, (2, 4), "float32", read_only=True)
    with pytest.raises(ValueError, match="out must be writable"):
        abreast.gather_rows(tensor, out=frozen)
    with pytest.raises(ValueError, match="no memory of shape"):
        abreast.from_pointer(0, (1,), "float32")
    with pytest.raises(ValueError, match="no memory of shape"):
        abreast.from_pointer(64, (2**60, 2**20), "float32")
    with pytest.raises(TypeError, match="no argument"):
        abreast.from_pointer(64, (1,), "float32", color="red")
    assert abreast.from_pointer(0, (0, 4), "float32").shape == (0, 4)


def test_export_arguments():
    tensor = abreast.zeros((4,))
    assert tensor.__dlpack_device__() == (1, 0)
    assert "dltensor_versioned" in repr(tensor.__dlpack__(max_version=(1, 0)))
    assert '"dltensor"' in repr(tensor.__dlpack__())
    with pytest.raises(BufferError):
        tensor.__dlpack__(copy=True)
    with pytest.raises(BufferError):
        tensor.__dlpack__(dl_device=(2, 0))
    with pytest.raises(TypeError):
        tensor.__dlpack__(strem=None)


def test_nothing_is_copied(lib):
    """The result is where `out` was, and an own result where the library sees it."""
    q, kv, indices = attention()
    args = (lib.of(q), lib.all(kv), lib.all(indices))
    if not lib.immutable:
        out = lib.of(np.zeros(q.shape, BF16))
        address = out.ctypes.data if lib.name == "numpy" else out.data_ptr()
        got = abreast.sparse_attention(*args, out=out)
        assert got is out
        assert (got.ctypes.data if lib.name == "numpy" else got.data_ptr()) == address
        assert lib.host(got).astype(np.float32).any()
        tensor = abreast.view(args[0], "uint16")
        assert tensor.data_ptr == (args[0].ctypes.data if lib.name == "numpy" else args[0].data_ptr())
    else:
        tensor = abreast.view(args[0], "uint16")
        assert tensor.data_ptr == args[0].unsafe_buffer_pointer()
        mine = abreast.zeros((16, 64))
        theirs = lib.jax.dlpack.from_dlpack(mine)
        assert theirs.unsafe_buffer_pointer() == mine.data_ptr


def test_devices():
    assert abreast.describe().startswith("cpu, ")
    assert abreast.describe("cpu") == abreast.describe()
    with pytest.raises(ValueError, match="there is no device"):
        abreast.describe("tpu")
    assert abreast.release_stream(12345) is False
    assert abreast.status_names(0) == "OK"
    assert abreast.status_names(3) == "INVALID_INDEX|NONFINITE_KV"


def test_sizes_out_of_range_are_values():
    for shape in ((-1,), (3, -(2**40)), (2**64,)):
        with pytest.raises(ValueError, match="shape must be of numbers from 0"):
            abreast.zeros(shape)
        with pytest.raises(ValueError, match="shape must be of numbers from 0"):
            abreast.from_pointer(64, shape, "float32")
    for word in (2**32, -(2**31) - 1, 2**62):
        with pytest.raises(ValueError, match="status_names: word must be of 32 bits"):
            abreast.status_names(word)
    assert abreast.status_names(2**32 - 1) == abreast.status_names(-1) != "OK"


def test_circles_are_collected():
    """An owner that keeps the tensor over its memory is what objects with memory of their own look like."""

    class Owner:
        pass

    class Array(np.ndarray):
        pass

    by_address, array = Owner(), np.zeros(8, np.float32)
    by_address.tensor = abreast.from_pointer(array.ctypes.data, (8,), "float32", owner=by_address)
    viewed = np.zeros(8, np.float32).view(Array)
    viewed.tensor = abreast.view(viewed, "int32")
    seen = [weakref.ref(by_address), weakref.ref(viewed)]
    # One that somebody else still uses stays.
    used = np.zeros(8, np.float32).view(Array)
    used.tensor = abreast.view(used, "int32")
    used.other, kept, stays = used.tensor.view("uint32"), np.from_dlpack(used.tensor), weakref.ref(used)
    del by_address, viewed, used
    gc.collect()
    assert all(r() is None for r in seen)
    assert stays() is not None and kept.tolist() == [0] * 8


def capsule(address, shape, dtype=(2, 32)):
    """A DLPack capsule with anything in it."""
    import ctypes

    class Tensor(ctypes.Structure):
        _fields_ = [("data", ctypes.c_void_p), ("device", ctypes.c_int32 * 2), ("ndim", ctypes.c_int32)]
        _fields_ += [("code", ctypes.c_uint8), ("bits", ctypes.c_uint8), ("lanes", ctypes.c_uint16)]
        _fields_ += [("shape", ctypes.c_void_p), ("strides", ctypes.c_void_p), ("byte_offset", ctypes.c_uint64)]
        _fields_ += [("context", ctypes.c_void_p), ("deleter", ctypes.c_void_p)]

    sizes = (ctypes.c_int64 * len(shape))(*shape)
    tensor = Tensor(address, (1, 0), len(shape), *dtype, 1, ctypes.addressof(sizes))
    new = ctypes.pythonapi.PyCapsule_New
    new.restype, new.argtypes = ctypes.py_object, [ctypes.c_void_p, ctypes.c_char_p, ctypes.c_void_p]
    return (sizes, tensor), lambda **_: new(ctypes.addressof(tensor), b"dltensor", None)


def test_no_memory_at_all_is_refused():
    scores = np.zeros((2, 3), np.float32)
    kept, lend = capsule(None, (2, 3))
    with pytest.raises(ValueError, match="top_k: scores must be a tensor whose values are in memory, got a null pointer"):
        abreast.top_k(Producer(scores, lend), k=1)
    with pytest.raises(ValueError, match="top_k: out must be a tensor whose values are in memory"):
        abreast.top_k(scores, k=1, out=Producer(scores, lend))
    more, lend = capsule(None, (2,), (0, 32))
    with pytest.raises(ValueError, match="top_k: offset must be a tensor whose values are in memory"):
        abreast.top_k(scores, k=1, offset=Producer(scores, lend))
    empty, lend = capsule(None, (2, 0))
    assert abreast.top_k(Producer(scores, lend), k=1).shape == (2, 1)
    for wrong in ((-2, 3), (2**62, 2**62), (1, 2**62)):
        last, lend = capsule(scores.ctypes.data, wrong)
        with pytest.raises(ValueError):
            abreast.top_k(Producer(scores, lend), k=1)
    assert kept and more and empty and last
