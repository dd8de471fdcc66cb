"""Writes the samples of bench/programs/callbacks.cpp with TensorFlow's TFRecordWriter and prints the seconds.

usage: tfrecord_writer.py FOLDER NUM_SAMPLES NUM_FLOATS
"""
import os
import sys
import time

import numpy as np
import tensorflow as tf

folder, num_samples, num_floats = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
values = np.arange(num_floats, dtype=np.float32)
Feature, Ints, Bytes = tf.train.Feature, tf.train.Int64List, tf.train.BytesList
start = time.perf_counter()
path = os.path.join(folder, "peer.tfrecord")
with tf.io.TFRecordWriter(path) as writer:
    for i in range(num_samples):
        writer.write(tf.train.Example(features=tf.train.Features(feature={
            # a list is taken faster than an array
            "x": Feature(float_list=tf.train.FloatList(value=values.tolist())),
            "x/shape": Feature(int64_list=Ints(value=values.shape)),
            "x/dtype": Feature(bytes_list=Bytes(value=[b"float32"])),
            "label": Feature(int64_list=Ints(value=[i])),
            "label/shape": Feature(int64_list=Ints(value=[])),
            "label/dtype": Feature(bytes_list=Bytes(value=[b"int64"])),
        })).SerializeToString())
with open(path, "rb+") as file:  # on disk, as the saver's
    os.fsync(file.fileno())
print(time.perf_counter() - start)
