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
    """Values that exchange_main.cpp saves, by name in the index."""
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


def numbers(shape, dtype=np.float32):
    return (np.arange(np.prod(shape)) % 97).astype(dtype).reshape(shape)


def restored(prefix, **objects):
    """Checkpoint.restore() of our save, every value of it consumed."""
    checkpoint = tf.train.Checkpoint(**objects)
    checkpoint.restore(prefix).assert_consumed()
    return checkpoint


def variables(**values):
    return Part(**{name: tf.Variable(tf.zeros(v.shape, v.dtype)) for name, v in values.items()})


def check_values(part, values):
    for name, value in values.items():
        assert np.array_equal(getattr(part, name).numpy(), value), name


def check_slices(prefix, shown, names, num_shards):
    """The tensors are in slices indeed, all shards hold some, and TensorFlow lists them whole."""
    listed = dict(tf.train.list_variables(prefix))
    reader = tf.train.load_checkpoint(prefix)
    shards = set()
    for name, value in names.items():
        slices = shown[name]["slices"]
        assert len(slices) > 1 and shown[name]["shard"] is None, name
        shards |= {one["shard"] for one in slices}
        assert listed[name] == list(value.shape), name
        assert np.array_equal(reader.get_tensor(name), value), name
    assert shards == set(range(num_shards)), shards


def check_tensorflow_restores_our_slices(folder):
    """Tensors that two ranks divide, of 1 to 4 dimensions, of each type that TensorFlow slices."""
    exchange("write_slices", folder)
    prefix = tf.train.latest_checkpoint(folder)
    assert prefix == f"{folder}/model.ckpt-8", prefix
    model = {"one": numbers([1001]), "long": numbers([20000]), "two": numbers([37, 29]), "three": numbers([5, 7, 11], np.float64)}
    moments = {"four": numbers([3, 4, 5, 6])}
    shown = check_shown(prefix)
    exchange("verify", prefix)
    names = {f"model/{name}{SUFFIX}": value for name, value in model.items()}
    names["optimizer/m/four" + SUFFIX] = moments["four"]
    for name, value in expected_values().items():
        if name.startswith("_lockstep/types/") and name in shown:
            names[name] = value
    assert len(names) == 5 + 11, sorted(names)  # the types that TensorFlow reads in slices
    check_slices(prefix, shown, names, 2)
    model["whole"] = numbers([8, 8])
    live = restored(prefix, model=variables(**model), optimizer=Part(m=variables(**moments)))
    check_values(live.model, model)
    check_values(live.optimizer.m, moments)
    assert live.save_counter.numpy() == 8


def check_tensorflow_restores_our_boxes(folder):
    exchange("write_boxes", folder)
    prefix = f"{folder}/model.ckpt-9"
    model = {"rows": numbers([10, 4]), "columns": numbers([10, 4]), "middle": numbers([3, 6, 2]), "pinwheel": numbers([3, 3])}
    shown = check_shown(prefix)
    check_slices(prefix, shown, {f"model/{name}{SUFFIX}": value for name, value in model.items()}, 2)
    live = restored(prefix, model=variables(**model))
    check_values(live.model, model)


def check_we_read_tensorflows_shards(folder):
    """Three shards, with tensors that are divided over them, as a partitioned variable's are."""
    cut = {  # shape_and_slice by shard, as SaveV2 takes them
        "rows": ([12, 5], ["12 5 0,4:-", "12 5 4,4:-", "12 5 8,4:-"]),
        "columns": ([4, 9], ["4 9 -:0,2", "4 9 -:2,6", "4 9 -:8,1"]),
        "middle": ([2, 6, 3], ["2 6 3 -:0,1:-", "2 6 3 -:1,1:-", "2 6 3 -:2,4:-"]),
        "spelled": ([6, 4], ["6 4 0,2:0,4", "6 4 2,2:0,4", "6 4 4,2:-"]),  # a whole dimension with its length
        "grid": ([4, 4], ["4 4 0,2:-", "4 4 2,2:0,1", "4 4 2,2:1,3"]),
    }
    types = {"rows": tf.float32, "columns": tf.int64, "middle": tf.bfloat16, "spelled": tf.bool, "grid": tf.complex64}
    os.makedirs(folder)
    values = {name: tf.cast(tf.constant(numbers(shape) % (2 if name == "spelled" else 97)), types[name])
              for name, (shape, _) in cut.items()}
    parts = []
    for shard in range(3):
        names, specs, tensors = [f"alone{shard}"], [""], [tf.constant([shard, 7])]
        for name, (_, all_specs) in cut.items():
            ranges = [s.split(",") if s != "-" else None for s in all_specs[shard].split()[-1].split(":")]
            index = tuple(slice(None) if r is None else slice(int(r[0]), int(r[0]) + int(r[1])) for r in ranges)
            names.append(name)
            specs.append(all_specs[shard])
            tensors.append(values[name][index])
        parts.append(tf.raw_ops.ShardedFilename(basename=f"{folder}/part", shard=shard, num_shards=3))
        tf.raw_ops.SaveV2(prefix=parts[-1], tensor_names=names, shape_and_slices=specs, tensors=tensors)
    prefix = f"{folder}/sharded.ckpt-1"
    tf.raw_ops.MergeV2Checkpoints(checkpoint_prefixes=parts, destination_prefix=prefix, delete_old_dirs=False)
    shown = check_shown(prefix)
    assert set(shown) == set(cut) | {"alone0", "alone1", "alone2"}
    check_slices(prefix, shown, {name: values[name].numpy() for name in cut}, 3)
    exchange("verify", prefix)


with tempfile.TemporaryDirectory() as folder:
    ours, theirs = f"{folder}/ours", f"{folder}/theirs"
    check_tensorflow_restores_our_slices(f"{folder}/slices")
    check_tensorflow_restores_our_boxes(f"{folder}/slices")
    check_we_read_tensorflows_shards(f"{folder}/sharded")
    check_tensorflow_restores_ours(check_tensorflow_reads_ours(ours))
    check_we_read_tensorflows(theirs)
print("TensorFlow", tf.__version__, "and Lockstep read each other's saves")
