"""Small files of the formats that data sets have, by hand: no package is needed."""
import io
import struct
import tarfile
import zlib


def png(side=8, shift=0):
    """A PNG of side x side pixels, a pattern moved by `shift`."""
    def chunk(name, body):
        return struct.pack(">I", len(body)) + name + body + struct.pack(">I", zlib.crc32(name + body))
    rows = b"".join(b"\0" + bytes((x + shift) % 256 for x in range(3 * side)) for _ in range(side))
    return (b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", struct.pack(">IIBBBBB", side, side, 8, 2, 0, 0, 0)) +
            chunk(b"IDAT", zlib.compress(rows)) + chunk(b"IEND", b""))


def crc32c(data):
    crc = 0xFFFFFFFF
    for byte in data:
        crc ^= byte
        for _ in range(8):
            crc = crc >> 1 ^ (0x82F63B78 & -(crc & 1))
    return crc ^ 0xFFFFFFFF


def masked(data):
    crc = crc32c(data)
    return struct.pack("<I", ((crc >> 15 | crc << 17) + 0xA282EAD8) & 0xFFFFFFFF)


def field(number, body):
    length = bytes([len(body) & 127 | 128, len(body) >> 7])
    return bytes([number << 3 | 2]) + length + body


def record(**features):
    """A TFRecord of an Example; `__` in a name means a slash."""
    def feature(value):
        return field(1, field(1, value)) if isinstance(value, bytes) else field(3, b"\x08" + bytes([value]))
    example = field(1, b"".join(field(1, field(1, name.replace("__", "/").encode()) + field(2, feature(value)))
                                for name, value in features.items()))
    length = struct.pack("<Q", len(example))
    return length + masked(length) + example + masked(example)


def npy(kind, shape, data):
    head = f"{{'descr': '{kind}', 'fortran_order': False, 'shape': {shape}, }}\n".encode()
    return b"\x93NUMPY\x01\x00" + struct.pack("<H", len(head)) + head + data


def idx(shape, data):
    return struct.pack(f">BBBB{len(shape)}I", 0, 0, 8, len(shape), *shape) + data


def write_formats(folder, samples, side):
    """One set of images, of 4 a class, in every format that holds images; by format, the keys of data.train, `path` first."""
    def write(name, data):
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)
        return path
    images = [png(side, 5 * i) for i in range(samples)]
    rows = [bytes((x + 5 * i) % 256 for x in range(3 * side)) * side for i in range(samples)]  # [H, W, C]
    labels = [i // 4 for i in range(samples)]
    csv, archive = "", io.BytesIO()
    with tarfile.open(fileobj=archive, mode="w") as tar:
        for i, (image, label) in enumerate(zip(images, labels)):
            write(f"set/{label}/{i:02}.png", image)
            csv += f"set/{label}/{i:02}.png,{label}\n"
            for ending, data in (("png", image), ("cls", b"%d" % label)):
                facts = tarfile.TarInfo(f"{i:02}.{ending}")
                facts.size = len(data)
                tar.addfile(facts, io.BytesIO(data))
    planes = b"".join(bytes(row[c::3]) for row in rows for c in range(3))
    write("labels", idx((samples,), bytes(labels)))
    write("y.npy", npy("|u1", (samples,), bytes(labels)))
    records = [record(image__encoded=image, image__class__label=label) for image, label in zip(images, labels)]
    return {
        "idx": [f"path={write('images', idx((samples, 3, side, side), planes))}"],
        "folder": [f"path={folder / 'set'}"],
        "csv": [f"path={write('s.csv', csv.encode())}"],
        "archive": [f"path={write('s.tar', archive.getvalue())}"],
        "records": [f"path={write('s.tfrecord', b''.join(records))}"],
        "npy": [f"path={write('x.npy', npy('|u1', (samples, side, side, 3), b''.join(rows)))}", f"targets={folder / 'y.npy'}", "layout=hwc"],
    }
