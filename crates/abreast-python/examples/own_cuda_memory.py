"""Your own CUDA memory and your own stream: no tensor library at all, only the driver, by ctypes.

Prints a line that begins with SKIPPED where there is no GPU.
"""

import ctypes
import random
import struct

import abreast

DIM, HEADS, SLOTS = 512, 64, 100


def bfloat16(values):
    """Bytes of the values, cut to bfloat16."""
    return b"".join(struct.pack("<f", value)[2:] for value in values)


class Cuda:
    """The few calls of the driver that this needs."""

    def __init__(self):
        self.driver = ctypes.CDLL("libcuda.so.1")
        self("cuInit", 0)
        device, context = ctypes.c_int(), ctypes.c_void_p()
        self("cuDeviceGet", ctypes.byref(device), 0)
        # The primary context, which abreast and the runtime API share.
        self("cuDevicePrimaryCtxRetain", ctypes.byref(context), device)
        self("cuCtxSetCurrent", context)

    def __call__(self, name, *args):
        code = getattr(self.driver, name)(*args)
        if code:
            raise RuntimeError(f"{name} returned {code}")

    def memory(self, data):
        """Device memory with these bytes."""
        address = ctypes.c_uint64()
        self("cuMemAlloc_v2", ctypes.byref(address), ctypes.c_size_t(len(data)))
        self("cuMemcpyHtoD_v2", address, data, ctypes.c_size_t(len(data)))
        return address.value

    def bytes(self, address, n):
        data = ctypes.create_string_buffer(n)
        self("cuMemcpyDtoH_v2", data, ctypes.c_uint64(address), ctypes.c_size_t(n))
        return data.raw

    def stream(self):
        stream = ctypes.c_void_p()
        self("cuStreamCreate", ctypes.byref(stream), 1)
        return stream


def main():
    try:
        cuda = Cuda()
    except (OSError, RuntimeError) as why:
        return print(f"SKIPPED: no GPU: {why}")
    rng = random.Random(0)
    numbers = [[rng.gauss(0, 1) for _ in range(n * DIM)] for n in (HEADS, SLOTS)]
    data = [bfloat16(n) for n in numbers] + [struct.pack(f"<{SLOTS}i", *range(SLOTS)), bytes(2 * HEADS * DIM)]
    shapes = [((1, HEADS, DIM), "bfloat16"), ((SLOTS, DIM), "bfloat16"), ((SLOTS,), "int32"), ((1, HEADS, DIM), "bfloat16")]

    def attend(addresses, **where):
        tensors = [abreast.from_pointer(a, s, d, **where) for a, (s, d) in zip(addresses, shapes)]
        return tensors[0], [tensors[1]], [tensors[2]], tensors[3]

    stream, addresses = cuda.stream(), [cuda.memory(d) for d in data]
    q, kv, indices, out = attend(addresses, device="cuda:0")
    abreast.sparse_attention(q, kv, indices, out=out, stream=stream.value)
    cuda("cuStreamSynchronize", stream)
    on_gpu = cuda.bytes(addresses[3], len(data[3]))

    held = [ctypes.create_string_buffer(d, len(d)) for d in data]
    q, kv, indices, out = attend([ctypes.addressof(h) for h in held])
    abreast.sparse_attention(q, kv, indices, out=out)
    print(f"{abreast.describe('cuda:0')}: {'the bits of the CPU' if on_gpu == held[3].raw else 'OTHER BITS'}")
    assert on_gpu == held[3].raw and any(on_gpu)
    # Before the stream goes, what is kept for it.
    abreast.release_stream(stream.value)
    cuda("cuStreamDestroy_v2", stream)


if __name__ == "__main__":
    main()
