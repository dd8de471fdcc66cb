"""Files in and out of the kernel's page cache, for reads that have to come from the disk."""
import ctypes
import mmap
import os


def drop(path):
    """Writes dirty pages back, since they cannot be dropped, and lets the kernel drop the file's pages."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
        os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
    finally:
        os.close(descriptor)


def cached_bytes(path):
    """Bytes of the file in the page cache, in whole pages."""
    with open(path, "rb") as file:
        num_bytes = os.fstat(file.fileno()).st_size
        if num_bytes == 0:
            return 0
        num_pages = -(-num_bytes // mmap.PAGESIZE)
        in_memory = (ctypes.c_ubyte * num_pages)()
        with mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_COPY) as mapped:
            begin = ctypes.c_char.from_buffer(mapped)
            try:
                libc = ctypes.CDLL(None, use_errno=True)
                if libc.mincore(ctypes.c_void_p(ctypes.addressof(begin)), ctypes.c_size_t(num_bytes), in_memory) != 0:
                    raise OSError(ctypes.get_errno(), f"mincore of {path}")
            finally:
                del begin  # else the mapping cannot be closed
    return mmap.PAGESIZE * sum(page & 1 for page in in_memory)
