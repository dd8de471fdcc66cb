"""Tags that TensorBoard's own reader finds in a folder of event files.

usage: run_tags.py FOLDER    prints JSON: {kind: {tag: [[step, value], ...]}} of all that it has; values of scalars alone, else null
"""
import json
import sys
import types

sys.modules["tensorboard.compat.notf"] = types.ModuleType("notf")  # asks TensorBoard not to load TensorFlow, which takes seconds
from tensorboard.backend.event_processing.event_accumulator import AUDIO, HISTOGRAMS, IMAGES, SCALARS, TENSORS, EventAccumulator


def main():
    folder = EventAccumulator(sys.argv[1], size_guidance=dict.fromkeys((AUDIO, HISTOGRAMS, IMAGES, SCALARS, TENSORS), 0))
    folder.Reload()
    readers = {SCALARS: folder.Scalars, HISTOGRAMS: folder.Histograms, IMAGES: folder.Images, AUDIO: folder.Audio, TENSORS: folder.Tensors}
    found = {kind: {tag: [[event.step, getattr(event, "value", None) if kind == SCALARS else None] for event in read(tag)]
                    for tag in folder.Tags()[kind]} for kind, read in readers.items()}
    print(json.dumps(found))


if __name__ == "__main__":
    main()
