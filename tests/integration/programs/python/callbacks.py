"""Callbacks of callbacks_test.py, infer_python_test.py and tests/python/python_callback_test.cpp."""
import json
import os
import sqlite3
import threading

import torch


class Verdict:
    """The twin of examples/callback_plugin/verdict.cpp."""

    incoming_keys = ["logits"]
    generated_keys = ["classes", "probabilities"]
    run_on = "all"

    def __init__(self, min_probability=0.5):
        self.min_probability = min_probability

    def on_iteration_end(self, logits):
        probabilities, classes = logits.softmax(1).max(1)
        return {"classes": torch.where(probabilities < self.min_probability, -1, classes), "probabilities": probabilities}


class Every:
    """Lets its dependents run once in `every` iterations."""

    generated_keys = ["chosen"]
    run_on = "all"

    def __init__(self, every):
        self.every = every

    def incoming_keys(self):
        return ["logits", "_targets"]

    def on_iteration_end(self, logits, targets=None):
        if self.iteration_info.iteration_number % self.every:
            return None
        return {"chosen": logits}


class Recorder:
    """Records its calls with the visible parts of its context, from one begin to the next."""

    def __init__(self, key="x", run_on="rank0"):
        self.incoming_keys, self.run_on = [key], run_on
        self.calls = []

    def note(self, call):
        self.calls.append([call, self.mode, self.is_training, str(self.log_dir), self.summary_step, self.number_iterations_per_epoch,
                           list(self.iteration_info), self.rank, self.world_size, self.summary_writer is None])

    def begin(self):
        self.calls = []
        self.note("begin")

    def on_iteration_start(self):
        self.note("start")

    def on_iteration_end(self, **data):
        self.note("iteration")
        if self.summary_writer is not None:
            self.summary_writer.add_scalar("mean", data[self.incoming_keys[0]].mean())
            self.summary_writer.add_scalar("at_seven", 2.5, 7)

    def on_epoch_end(self):
        self.note("epoch")

    def end(self):
        self.note("end")
        self.log_dir.mkdir(parents=True, exist_ok=True)
        (self.log_dir / "calls.json").write_text(json.dumps(self.calls))


class Table:
    """Counts samples in a database, which belongs to the thread that opened it."""

    incoming_keys = ["logits"]

    def begin(self):
        self.log_dir.mkdir(parents=True, exist_ok=True)
        self.rows = sqlite3.connect(self.log_dir / "table.db")
        self.rows.execute("create table samples (number integer)")

    def on_iteration_end(self, logits):
        self.rows.executemany("insert into samples values (?)", [[number] for number in logits.argmax(1).tolist()])

    def end(self):
        self.rows.commit()
        self.rows.close()


class ByThread:
    """Counts its calls by thread."""

    incoming_keys = ["x"]
    generated_keys = ["count"]

    def __init__(self):
        self.of_thread = threading.local()

    def on_iteration_end(self, x):
        self.of_thread.count = getattr(self.of_thread, "count", 0) + 1
        return {"count": torch.tensor(self.of_thread.count)}


class Shared:
    """Returns its inputs: the same memory, for any nesting."""

    incoming_keys = ["maps", "texts", "x"]
    generated_keys = ["maps_back", "texts_back", "x_back", "_kinds"]

    def on_iteration_end(self, maps, texts, x):
        x[0] = 5
        kinds = [type(value).__name__ for value in (maps, maps["inner"], texts, x)]
        return {"maps_back": {"deeper": maps}, "texts_back": tuple(texts), "x_back": x, "kinds": kinds}


class Bad:
    """Fails as requested."""

    incoming_keys = ["logits"]
    generated_keys = ["_made"]

    def __init__(self, fault=""):
        self.fault = fault
        if fault == "constructor":
            raise ValueError("no such thing")
        if fault == "attribute":
            self.mode = "fast"
        if fault == "incoming_keys":
            self.incoming_keys = "logits"
        if fault == "run_on":
            self.run_on = "rank1"
        if fault == "raises_on_rank_1":
            self.run_on = "all"
        if fault == "nobody_makes":
            self.incoming_keys = ["logist"]

    def begin(self):
        if self.fault == "begin":
            raise RuntimeError("begin fails")

    def on_iteration_end(self, **data):
        if self.fault == "raises" and self.iteration_info.iteration_number == 2:
            raise KeyError("third iteration")
        if self.fault == "raises_on_rank_1" and os.environ.get("OMPI_COMM_WORLD_RANK") == "1":
            raise KeyError("rank 1 alone")
        if self.fault == "exits":
            raise SystemExit(3)
        made = {"list": [1, 2], "number": 0.5, "kind": {"made": 0.5}, "nested": {"made": {"inner": {3}}}, "key": {1: data["logits"]},
                "undeclared": {"other": data["logits"]}}
        return made.get(self.fault, {})

    def end(self):
        if self.fault == "end":
            raise OSError("end fails")


class WrongParameters(Bad):
    """A callback whose method lacks the parameters that incoming_keys name."""

    def on_iteration_end(self, outputs):
        return {}


class Texts:
    """Saves each sample as text, next to what prediction_saver saves."""

    incoming_keys = ["logits", "_mask", "_names", "save_names"]
    not_batch_keys = ["mask"]
    save_prefix = "text/"

    def __init__(self, save_suffix="", stores_as="text/*.json"):
        self.save_suffix, self.stores_as = save_suffix, stores_as
        self.num_samples = 0

    def save_sample(self, logits, mask=None, names="none"):
        with open(self.save_name + ".json", "w") as file:
            json.dump({"logits": logits.tolist(), "mask": None if mask is None else list(mask.shape), "names": names}, file)
        self.num_samples += 1

    def end(self):
        (self.log_dir / "num_samples").write_text(str(self.num_samples))


class Kept:
    """Keeps samples, and describes them when `evaluate` is set."""

    incoming_keys = ["x", "_names", "_evaluate"]
    generated_keys = ["sum_of_x", "_seen"]
    begun = ended = 0

    def __init__(self, buffer="list", gather=False):
        self.buffer, self.gather = buffer, gather

    def begin(self):
        self.begun += 1

    def process_buffer(self, x, names=("none",)):
        if isinstance(x, dict):
            return {"sum_of_x": x["mean"] * x["count"], "seen": sorted(x)}
        return {"sum_of_x": x.sum(0), "seen": list(names)}


class LastIteration:
    """Lets buffers evaluate in the last iteration of an evaluation."""

    incoming_keys = ["logits"]
    generated_keys = ["evaluate"]
    run_on = "all"

    def on_iteration_end(self, logits):
        return {"evaluate": torch.tensor(self.iteration_info.iteration_number + 1 == self.number_iterations_per_epoch)}


class Sums:
    """Number and sums of the logits of all ranks."""

    incoming_keys = ["logits"]
    gather = True

    def process_buffer(self, logits):
        self.log_dir.mkdir(parents=True, exist_ok=True)
        (self.log_dir / "sums.json").write_text(json.dumps({"count": len(logits), "sums": logits.double().sum(0).tolist()}))
        return {}


class ShareRight:
    """The share of samples whose class is the most probable one, and how sure the network is of it."""

    incoming_keys = ["logits", "targets"]
    num_sums = 3

    def __init__(self, fault=""):
        self.fault = fault
        if fault == "num_sums":
            self.num_sums = 2.5
        if fault == "keys":
            self.generated_keys = ["share"]

    def sums(self, logits, targets):
        if self.fault == "count":
            return [1, 2]
        if self.fault == "kind":
            return 3
        probabilities, classes = logits.softmax(1).max(1)
        return [(classes == targets).sum(), probabilities.sum(dtype=torch.float64), len(targets)]

    def values(self, sums):
        if self.fault == "values":
            return [0.5]
        if self.fault == "number":
            return {"share_right": "half"}
        return {"share_right": sums[0] / sums[2], "mean_probability": sums[1].item() / sums[2].item()}


class TwoKinds(ShareRight):
    def save_sample(self, **sample):
        pass


class NoMethod:
    """Has no on_iteration_end."""


class Node:
    """Reads and makes keys of any name; each is `texts` where there are some, else what it read first, without its first `cut` rows."""

    def __init__(self, reads, makes, texts=None, cut=0):
        self.incoming_keys, self.generated_keys = reads, makes
        self.texts, self.cut, self.run_on = texts, cut, "all"

    def on_iteration_end(self, **data):
        first = data[self.incoming_keys[0]]
        number = self.iteration_info.iteration_number
        texts = self.texts and [text.format(number=number, sample=i) for text in self.texts for i in range(len(first) // len(self.texts))]
        return {key: texts or first[self.cut:] for key in self.generated_keys}
