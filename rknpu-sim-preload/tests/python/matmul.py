"""Drives the NPU as programs in Python do: ioctls by fcntl, mappings by the C library's mmap."""

import ctypes
import fcntl
import os
import struct
import multiprocessing

libc = ctypes.CDLL("libc.so.6", use_errno=True)
libc.mmap.restype = ctypes.c_void_p
libc.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t] + [ctypes.c_int] * 3 + [ctypes.c_long]
libc.munmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t]

ACTION, CREATE, MAP, DESTROY = 0xC0086440, 0xC0306442, 0xC0106443, 0xC0106444


def create(fd, size):
    arguments = bytearray(struct.pack("<IIQQQQiI", 0, 0x403, size, 0, 0, 0, 0, 0))
    fcntl.ioctl(fd, CREATE, arguments)
    return struct.unpack("<IIQQQQiI", arguments)[0]


def child():
    """Leaves a buffer behind; ends by os._exit, as all children of multiprocessing do."""
    create(os.open("/dev/dri/card1", os.O_RDWR), 4096)


multiprocessing.set_start_method("fork")
process = multiprocessing.Process(target=child)
process.start()
process.join()
assert process.exitcode == 0

fd = os.open("/dev/dri/card1", os.O_RDWR | os.O_CLOEXEC)
version = bytearray(struct.pack("<II", 1, 0))
fcntl.ioctl(fd, ACTION, version)
assert struct.unpack("<II", version)[1] == 908

handle = create(fd, 8192)
arguments = bytearray(struct.pack("<IIQ", handle, 0, 0))
fcntl.ioctl(fd, MAP, arguments)
offset = struct.unpack("<IIQ", arguments)[2]
address = libc.mmap(None, 8192, 3, 1, fd, offset)
assert address != ctypes.c_void_p(-1).value, os.strerror(ctypes.get_errno())
ctypes.memset(address, 7, 8192)
assert ctypes.string_at(address, 8192) == bytes([7]) * 8192
assert libc.munmap(address, 8192) == 0
fcntl.ioctl(fd, DESTROY, bytearray(struct.pack("<IIQ", handle, 0, 0)))
os.close(fd)
