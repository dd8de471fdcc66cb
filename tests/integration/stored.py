"""Reads what the savers of callbacks store: TFRecord files of tf.train.Example, without TensorFlow."""
import struct


def varint(data, at):
    value = shift = 0
    while True:
        value |= (data[at] & 0x7F) << shift
        shift += 7
        at += 1
        if data[at - 1] < 0x80:
            return value, at


def fields(data):
    """(number, body) of a message whose fields are all of bytes or varints."""
    at = 0
    while at < len(data):
        tag, at = varint(data, at)
        if tag & 7 == 2:
            size, at = varint(data, at)
            yield tag >> 3, data[at:at + size]
            at += size
        else:
            assert tag & 7 == 0, tag
            value, at = varint(data, at)
            yield tag >> 3, value


def whole_numbers(body):
    numbers, at = [], 0
    while at < len(body):
        value, at = varint(body, at)
        numbers.append(value)
    return numbers


def values_of(feature):
    """Values of one tf.train.Feature: bytes, floats or integers."""
    for kind, body in fields(feature):
        for _, items in fields(body):
            if kind == 1:
                return items
            if kind == 2:
                return list(struct.unpack(f"<{len(items) // 4}f", items))
            return whole_numbers(items) if isinstance(items, bytes) else [items]
    return []


def examples(path):
    """{key: values} of each record of a file."""
    data, at, found = path.read_bytes(), 0, []
    while at < len(data):
        size, = struct.unpack_from("<Q", data, at)
        (_, features), = fields(data[at + 12:at + 12 + size])
        found.append({})
        for _, entry in fields(features):
            parts = dict(fields(entry))
            found[-1][parts[1].decode()] = values_of(parts.get(2, b""))
        at += 16 + size
    return found


def stored(folder, key):
    """One value of all samples under a folder, in the order of the files' names."""
    files = sorted(folder.rglob("*.tfrecord"))
    assert files, f"{folder} holds no .tfrecord"
    return [example[key] for file in files for example in examples(file)]
