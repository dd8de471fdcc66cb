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
    assert [event.step for event in first[2:]] == [*range(1, 11)] + 6 * [10]
    for event in first[2:12]:
        values = {value.tag: value.simple_value for value in event.summary.value}
        assert sorted(values) == ["loss/train", "lr", "sparsity"], values
        assert close(values["loss/train"], 1 / event.step) and values["lr"] == 0.5
        assert close(values["sparsity"], event.step / 100)
        assert event.wall_time > 1.6e9
    assert [event.step for event in second[2:]] == [7, 8] + 6 * [8]
    check_values({value.tag: value for event in second[4:] for value in event.summary.value})
    # The framing too, with every checksum looked at.
    assert len([*tf.data.TFRecordDataset([str(path) for path in files])]) == 18 + 10


def check_values(values):
    """Checks the output of write_values() of write_events.cpp, as TensorFlow decodes it."""
    histogram = values["weights/w"].histo
    assert (histogram.min, histogram.max, histogram.num) == (-2, 3, 7), histogram
    assert close(histogram.sum, 1.75) and close(histogram.sum_squares, 13.3125)
    limits, counts = [*histogram.bucket_limit], [*histogram.bucket]
    assert limits == sorted(limits) and len(limits) == len(counts) and sum(counts) == 7
    for value, count in ((-2, 1), (0.25, 1), (0.5, 1), (3, 1)):
        at = next(i for i, limit in enumerate(limits) if value < limit)
        assert counts[at] == count and limits[at - 1] <= value, (value, limits[at - 1:at + 1])
        if value > 0:
            assert limits[at] / limits[at - 1] < 1.1001
    assert counts[next(i for i, limit in enumerate(limits) if 0 < limit)] == 3  # 0, 0 and 1e-20
    assert values["weights/none"].histo.num == 0
    image = values["inputs/0"].image
    assert (image.height, image.width, image.colorspace) == (2, 3, 3)
    assert tf.io.decode_png(image.encoded_image_string).numpy().tolist() == [
        [[255, 0, 0], [0, 255, 0], [0, 0, 255]], [[1, 2, 3], [4, 5, 6], [7, 8, 9]]]
    assert tf.io.decode_png(values["inputs/1"].image.encoded_image_string).numpy().tolist() == [[[7], [9]]]
    audio = values["sound"].audio
    assert (audio.sample_rate, audio.num_channels, audio.length_frames, audio.content_type) == (8000, 2, 3, "audio/wav")
    heard, rate = tf.audio.decode_wav(audio.encoded_audio_string)
    assert rate == 8000 and heard.shape == (3, 2)
    assert all(abs(a - b) < 1e-4 for a, b in zip(heard.numpy().ravel(), (0, 1, 0.5, -1, -0.5, 1)))
    text = values["run/settings"]
    assert text.metadata.plugin_data.plugin_name == "text"
    assert tf.make_ndarray(text.tensor).item() == b"```\na=b\n```\n"


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
    tags = scalars.Tags()
    assert {key: sorted(tags[key]) for key in ("histograms", "images", "audio")} == {
        "histograms": ["weights/none", "weights/w"], "images": ["inputs/0", "inputs/1"], "audio": ["sound"]}, tags
    for points in (scalars.Histograms("weights/w"), scalars.Images("inputs/0"), scalars.Audio("sound")):
        assert [event.step for event in points] == [8], points
    plugins = {tag: shown.SummaryMetadata(tag).plugin_data.plugin_name for tag in ("weights/w", "inputs/0", "sound", "run/settings")}
    assert plugins == {"weights/w": "histograms", "inputs/0": "images", "sound": "audio", "run/settings": "text"}, plugins
    for tag in plugins:
        assert [event.step for event in shown.Tensors(tag)] == [8], tag
    print("TensorBoard drops the points that the resumed run takes back")


with tempfile.TemporaryDirectory() as name:
    folder = pathlib.Path(name)
    subprocess.run([sys.argv[1], name], check=True)
    files = sorted(folder.iterdir())
    assert len(files) == 2, files
    check_with_tensorflow(files)
    check_with_tensorboard(folder)
print("TensorFlow reads every event")
