#!/usr/bin/env python3
"""TensorFlow's own reader (and TensorBoard's, where it is installed) on files of write_events.

usage: event_oracle.py WRITE_EVENTS
"""
import pathlib
import subprocess
import sys
import tempfile

import tensorflow as tf


def close(a, b):
    return abs(a - b) <= 1e-6 * max(1, abs(b))


def check_with_tensorflow(files):
    first, second = ([*tf.compat.v1.train.summary_iterator(str(path))] for path in files)
    assert first[0].file_version == second[0].file_version == "brain.Event:2"
    for events, step in ((first, 0), (second, 7)):
        start = events[1]
        assert start.session_log.status == tf.compat.v1.SessionLog.START and start.step == step, start
    assert [event.step for event in first[2:]] == list(range(1, 11)), first
    for event in first[2:]:
        values = {value.tag: value.simple_value for value in event.summary.value}
        assert sorted(values) == ["loss/train", "lr", "sparsity"], values
        assert close(values["loss/train"], 1 / event.step) and values["lr"] == 0.5
        assert close(values["sparsity"], event.step / 100)
        assert event.wall_time > 1.6e9
    assert [event.step for event in second[2:]] == [7, 8]
    # The framing too, with every checksum looked at.
    assert len([*tf.data.TFRecordDataset([str(path) for path in files])]) == 12 + 4


def check_with_tensorboard(folder):
    try:
        from tensorboard.backend.event_processing import event_accumulator, plugin_event_accumulator
    except ImportError:
        print("TensorBoard is not installed; its reader was not asked")
        return
    wanted = [(s, False) for s in range(1, 7)] + [(7, True), (8, True)]
    scalars = event_accumulator.EventAccumulator(str(folder))
    scalars.Reload()
    assert scalars.Tags()["scalars"] == ["loss/train", "lr", "sparsity"], scalars.Tags()
    assert [(event.step, event.value > 50) for event in scalars.Scalars("loss/train")] == wanted
    shown = plugin_event_accumulator.EventAccumulator(str(folder))  # what the web pages are fed from
    shown.Reload()
    assert shown.SummaryMetadata("loss/train").plugin_data.plugin_name == "scalars"
    assert [(event.step, event.tensor_proto.float_val[0] > 50) for event in shown.Tensors("loss/train")] == wanted
    print("TensorBoard drops the points that the resumed run takes back")


with tempfile.TemporaryDirectory() as name:
    folder = pathlib.Path(name)
    subprocess.run([sys.argv[1], name], check=True)
    files = sorted(folder.iterdir())
    assert len(files) == 2, files
    check_with_tensorflow(files)
    check_with_tensorboard(folder)
print("TensorFlow reads every event")
