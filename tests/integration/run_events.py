"""The curves in the event files of a run, as TensorFlow reads them.

usage: run_events.py FOLDER...    prints JSON, a list of one {tag: [[step, value], ...]} a folder, of what is no number its kind ("histo", "image"); of a step that two files hold, the later file counts
"""
import json
import os
import pathlib
import sys

os.environ["TF_CPP_MIN_LOG_LEVEL"] = "3"
import tensorflow as tf


def curves_of(folder):
    curves = {}
    for path in sorted(pathlib.Path(folder).glob("events.out.tfevents.*")):
        for event in tf.compat.v1.train.summary_iterator(str(path)):
            for value in event.summary.value:
                kind = value.WhichOneof("value")
                curves.setdefault(value.tag, {})[event.step] = value.simple_value if kind == "simple_value" else kind
    return {tag: sorted(points.items()) for tag, points in curves.items()}


def main():
    print(json.dumps([curves_of(folder) for folder in sys.argv[1:]]))


if __name__ == "__main__":
    main()
