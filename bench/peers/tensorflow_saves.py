"""TensorFlow's side of bench/checkpoint: commands on standard input, a line of seconds for each; bench/programs/saves.cpp lists them."""
import os
import pathlib
import sys
import time

os.environ["TF_CPP_MIN_LOG_LEVEL"] = "3"
os.environ["CUDA_VISIBLE_DEVICES"] = "-1"
import tensorflow as tf  # noqa: E402

NUM_TENSORS, NUM_ELEMENTS = 32, 7_812_500


class Bench:
    def __init__(self):
        self.variables = [tf.Variable(tf.random.normal([NUM_ELEMENTS])) for _ in range(NUM_TENSORS)]
        self.checkpoint = tf.train.Checkpoint(**{f"w{i}": variable for i, variable in enumerate(self.variables)})

    def durable(self, folder):
        start = time.perf_counter()
        self.checkpoint.write(f"{folder}/model.ckpt")
        for file in [*pathlib.Path(folder).iterdir(), pathlib.Path(folder)]:
            descriptor = os.open(file, os.O_RDONLY)
            os.fsync(descriptor)
            os.close(descriptor)
        return time.perf_counter() - start

    def restore(self, folder):
        start = time.perf_counter()
        self.checkpoint.read(f"{folder}/model.ckpt").assert_consumed()
        return time.perf_counter() - start


def main():
    bench = Bench()
    for line in sys.stdin:
        command, folder = line.split()
        print("result", f"{getattr(bench, command)(folder):f}", flush=True)


if __name__ == "__main__":
    main()
