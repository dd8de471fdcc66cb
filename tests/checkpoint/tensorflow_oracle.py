"""Lets TensorFlow judge our saves and lets us read TensorFlow's.

usage: tensorflow_oracle.py CHECKPOINT_EXCHANGE
"""
import hashlib
import json
import os
import pathlib
import subprocess
import sys
import tempfile

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
import numpy as np
import tensorflow as tf

EXCHANGE = sys.argv[1]
SUFFIX = "/.ATTRIBUTES/VARIABLE_VALUE"
TYPES = {
    "Float": tf.float32, "Double": tf.float64, "Half": tf.float16, "BFloat16": tf.bfloat16, "Int": tf.int32,
    "Long": tf.int64, "Short": tf.int16, "Char": tf.int8, "Byte": tf.uint8, "Bool": tf.bool, "UInt16": tf.uint16,
    "UInt32": tf.uint32, "UInt64": tf.uint64, "ComplexFloat": tf.complex64, "ComplexDouble": tf.complex128,
}


def expected_values():
    """What exchange_main.cpp saves, by name in the index."""
    small = (np.arange(6) % 4).reshape(2, 3)
    values = {f"_lockstep/types/{name}": small.astype(t.as_numpy_dtype) for name, t in TYPES.items()}
    values["model/blocks/0/conv/weight" + SUFFIX] = np.arange(5000, dtype=np.float32).reshape(50, 100) / np.float32(7)
    values["model/blocks/0/conv/bias" + SUFFIX] = np.full(50, -1.5, np.float32)
    values["model/head/weight" + SUFFIX] = np.arange(12, dtype=np.float64).reshape(3, 4).T
    values["model/empty" + SUFFIX] = np.zeros((0, 3), np.float32)
    values["optimizer/v1..0/step" + SUFFIX] = np.int64(41)
    values["save_counter" + SUFFIX] = np.int64(7)
    values["_lockstep/config"] = "name: digits\né".encode()
    return values


def exchange(verb, argument):
    done = subprocess.run([EXCHANGE, verb, argument], check=False, capture_output=True, text=True)
    assert done.returncode == 0, f"{verb}: exit {done.returncode}\n{done.stdout}{done.stderr}"
    return done.stdout


def raw_bytes(value):
    if isinstance(value, bytes):
        return value
    array = np.asarray(value)
    if array.dtype == object:
        return b"".join(array.reshape(-1).tolist())
    return array.tobytes()  # row-major


def from_json(tensor):
    """The values of `show --json` as an array of the same type."""
    if tensor["dtype"] == "string":
        return [bytes.fromhex(v["hex"]) if isinstance(v, dict) else v.encode() for v in tensor["values"]]
    values = [complex(*v) if isinstance(v, list) else float(v) if isinstance(v, str) else v for v in tensor["values"]]
    return np.array(values).astype(tf.as_dtype(tensor["dtype"]).as_numpy_dtype).reshape(tensor["shape"])


def check_shown(prefix):
    """show --json says of every tensor what TensorFlow reads."""
    reader = tf.train.load_checkpoint(prefix)
    shapes, types = reader.get_variable_to_shape_map(), reader.get_variable_to_dtype_map()
    shown = {tensor["name"]: tensor for tensor in json.loads(exchange("show", prefix))["tensors"]}
    assert set(shown) == set(shapes), set(shown) ^ set(shapes)
    for name, tensor in shown.items():
        value = reader.get_tensor(name)
        assert tensor["dtype"] == types[name].name, (name, tensor["dtype"], types[name])
        assert tensor["shape"] == shapes[name], (name, tensor["shape"])
        assert tensor["sha256"] == hashlib.sha256(raw_bytes(value)).hexdigest(), name
        values = from_json(tensor)
        if tensor["dtype"] == "string":
            assert values == np.asarray(value, object).reshape(-1).tolist(), name
        else:
            assert values.tobytes() == np.asarray(value).tobytes(), name
    return shown


def check_tensorflow_reads_ours(folder):
    exchange("write", folder)
    prefix = tf.train.latest_checkpoint(folder)
    assert prefix == f"{folder}/model.ckpt-7", prefix
    expected = expected_values()
    listed = dict(tf.train.list_variables(prefix))
    assert set(listed) == set(expected) | {"_CHECKPOINTABLE_OBJECT_GRAPH"}, set(listed) ^ set(expected)
    reader = tf.train.load_checkpoint(prefix)
    for name, value in expected.items():
        read = reader.get_tensor(name)
        assert raw_bytes(read) == raw_bytes(value), name
        assert list(np.shape(value)) == listed[name], name
    check_shown(prefix)
    exchange("verify", prefix)
    shards = sorted(p.name for p in pathlib.Path(folder).glob("*.data-*"))
    assert shards == [f"model.ckpt-7.data-0000{r}-of-00002" for r in range(2)], shards
    assert all((pathlib.Path(folder) / shard).stat().st_size > 0 for shard in shards)
    return prefix


class Part(tf.Module):
    """Variables and parts by name."""

    def __init__(self, **children):
        super().__init__()
        for name, child in children.items():
            setattr(self, name, child)


def nested_objects():
    def zeros(shape, dtype):
        return tf.Variable(tf.zeros(shape, dtype))

    block = Part(conv=Part(weight=zeros([50, 100], tf.float32), bias=zeros([50], tf.float32)))
    model = Part(blocks=Part(**{"0": block}), head=Part(weight=zeros([4, 3], tf.float64)), empty=zeros([0, 3], tf.float32))
    optimizer = Part(**{"v1.0": Part(step=tf.Variable(0, dtype=tf.int64))})
    return model, optimizer


def check_tensorflow_restores_ours(prefix):
    model, optimizer = nested_objects()
    checkpoint = tf.train.Checkpoint(model=model, optimizer=optimizer)
    checkpoint.restore(prefix).assert_consumed()
    block = getattr(model.blocks, "0").conv
    expected = expected_values()
    assert np.array_equal(block.weight.numpy(), expected["model/blocks/0/conv/weight" + SUFFIX])
    assert np.array_equal(block.bias.numpy(), np.full(50, -1.5, np.float32))
    assert np.array_equal(model.head.weight.numpy(), expected["model/head/weight" + SUFFIX])
    assert getattr(optimizer, "v1.0").step.numpy() == 41
    assert checkpoint.save_counter.numpy() == 7
    wrong = tf.train.Checkpoint(model=model, optimizer=optimizer, more=tf.Variable(0.0))
    try:
        wrong.restore(prefix).assert_consumed()
    except AssertionError:
        return
    raise SystemExit("assert_consumed passes whatever is asked: this test shows nothing")


def check_we_read_tensorflows(folder):
    model, _ = nested_objects()
    getattr(model.blocks, "0").conv.weight.assign(tf.random.stateless_normal([50, 100], [1, 2]))
    words = tf.Variable(["", "two words", "x" * 300])
    odd = tf.Variable([float("nan"), float("inf"), -0.0, 0.1], dtype=tf.float32)
    many = Part(**{f"v{i}": tf.Variable(tf.fill([i % 7], i)) for i in range(200)})  # more than one restart interval
    checkpoint = tf.train.Checkpoint(model=model, words=words, odd=odd, many=many)
    prefix = checkpoint.save(f"{folder}/theirs.ckpt")
    shown = check_shown(prefix)
    assert len(shown) == 4 + 2 + 200 + 2, len(shown)  # model, words and odd, many, counter and graph
    exchange("verify", prefix)  # our encoder gives TensorFlow's own bytes


with tempfile.TemporaryDirectory() as folder:
    ours, theirs = f"{folder}/ours", f"{folder}/theirs"
    check_tensorflow_restores_ours(check_tensorflow_reads_ours(ours))
    check_we_read_tensorflows(theirs)
print("TensorFlow", tf.__version__, "and Lockstep read each other's saves")
