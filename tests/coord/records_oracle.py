#!/usr/bin/env python3
"""TensorFlow reads the files of write_records: their names, counts, shapes, types and values.

usage: records_oracle.py WRITE_RECORDS
"""
import pathlib
import subprocess
import sys
import tempfile

import numpy as np
import tensorflow as tf

FILES = {"epoch_00000_iter_000000_rank_000_sample_00000.tfrecord": [0, 1],
         "epoch_00000_iter_000000_rank_000_sample_00002.tfrecord": [2, 3],
         "epoch_00000_iter_000000_rank_000_sample_00004.tfrecord": [4],
         "clips/a.tfrecord": [5],
         "clips/b.tfrecord": [6, 7]}


def expected(i):
    return {"outputs/boxes": np.full((2, 3), i / 4, np.float64),
            "bytes": np.full(300, i * 50 % 256, np.uint8),
            "half": np.array(i / 2, np.float16),
            "label": np.array(-i, np.int64),
            "is_even": np.array(i % 2 == 0),
            "bf": np.array([i], np.float32),
            "empty": np.zeros(0, np.float32),
            "classes": np.arange(3, dtype=np.int32),
            "text": np.array(f"text {i}")}


def type_name(name, value):
    return {"bf": "bfloat16", "text": "string"}.get(name, str(value.dtype))


def check_N37_sample(record, i):
    features = tf.train.Example.FromString(record.numpy()).features.feature
    wanted = expected(i)
    assert sorted(features) == sorted(wanted | {f"{n}/shape": 0 for n in wanted} | {f"{n}/dtype": 0 for n in wanted})
    for name, value in wanted.items():
        assert features[f"{name}/dtype"].bytes_list.value == [type_name(name, value).encode()], name
        shape = list(features[f"{name}/shape"].int64_list.value)
        assert shape == list(value.shape), (name, shape)
        feature = features[name]
        found = getattr(feature, feature.WhichOneof("kind")).value
        if name == "text":
            assert found == [str(value).encode()]
            continue
        if name == "bytes":
            found = np.frombuffer(found[0], np.uint8)
        assert np.array_equal(np.array(found).reshape(shape), value), (name, found)
    parsed = tf.io.parse_single_example(record, {"outputs/boxes": tf.io.FixedLenFeature([2, 3], tf.float32),
                                                 "label": tf.io.FixedLenFeature([], tf.int64)})
    assert parsed["label"].numpy() == -i and (parsed["outputs/boxes"].numpy() == i / 4).all()


with tempfile.TemporaryDirectory() as name:
    folder = pathlib.Path(name)
    subprocess.run([sys.argv[1], name], check=True)
    found_files = {str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file()}
    assert found_files == set(FILES), found_files
    for file, numbers in FILES.items():
        records = list(tf.data.TFRecordDataset(str(folder / file)))
        assert len(records) == len(numbers), (file, len(records))
        for record, number in zip(records, numbers):
            check_N37_sample(record, number)
print("TensorFlow reads every sample")
