"""What a tracker of experiments holds, as JSON, read by its own client or messages: python tracked.py mlflow STORE | wandb FILE

{"settings": {name: text}, "loss": {step: value}, "evaluations": {name: number of points}, "files": [path], "runs": number, "status": text}
"""
import collections
import json
import struct
import sys


def of_mlflow(store):
    import mlflow
    client = mlflow.MlflowClient(store)
    runs = client.search_runs([client.get_experiment_by_name("lockstep").experiment_id])
    number = runs[0].info.run_id

    def files_in(folder):
        for entry in client.list_artifacts(number, folder):
            yield from files_in(entry.path) if entry.is_dir else [entry.path]
    evaluations = {name: len(client.get_metric_history(number, name)) for name in runs[0].data.metrics if name.startswith("eval/")}
    return {"settings": runs[0].data.params, "loss": {point.step: point.value for point in client.get_metric_history(number, "loss")},
            "evaluations": evaluations, "files": [*files_in(None)], "runs": len(runs), "status": runs[0].info.status}


def wandb_records(path):
    """The records of a log of W&B, which has LevelDB's frames: blocks of 32 KiB; 7 bytes of checksum, length and type before each piece."""
    with open(path, "rb") as file:
        text = file.read()
    block, at, record = 32 * 1024, 7, b""  # after the file's own header
    while at + 7 <= len(text):
        if block - at % block < 7:
            at += block - at % block
            continue
        _, length, kind = struct.unpack_from("<IHB", text, at)
        record += text[at + 7:at + 7 + length]
        at += 7 + length
        if kind in (1, 4):  # whole, or the last piece
            yield record
            record = b""


def of_wandb(path):
    from wandb.proto.wandb_internal_pb2 import Record
    found = {"settings": {}, "loss": {}, "evaluations": collections.Counter(), "files": [], "runs": 0, "status": ""}
    for data in wandb_records(path):
        record = Record()
        record.ParseFromString(data)
        kind = record.WhichOneof("record_type")
        if kind == "run":
            found["runs"] += 1
            found["settings"] |= {item.key: json.loads(item.value_json) for item in record.run.config.update}
        if kind == "artifact":
            found["files"] += [entry.path for entry in record.artifact.manifest.contents]
        if kind == "exit":
            found["status"] = "FINISHED" if record.exit.exit_code == 0 else "FAILED"
        if kind == "history":
            values = {"/".join(item.nested_key) or item.key: json.loads(item.value_json) for item in record.history.item}
            if "loss" in values:
                found["loss"][int(values["_step"])] = values["loss"]
            found["evaluations"].update(name for name in values if name.startswith("eval/") and name != "eval/step")
    return found


print(json.dumps({"mlflow": of_mlflow, "wandb": of_wandb}[sys.argv[1]](sys.argv[2])))
