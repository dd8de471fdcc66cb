"""One network on OMP_NUM_THREADS threads, batch after batch: the peer of bench/programs/infer_engine.cpp, with the same arguments.

usage: infer_engine.py MODEL INPUTS OUTPUTS KIND ITERATIONS EXTENT...
KIND: frozen, optimized (torch.jit of MODEL.pt), onnxruntime, openvino, deepsparse (MODEL.onnx); float32; prints seconds of a batch, the median
"""
import os
import pathlib
import statistics
import sys
import time

import numpy as np

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2] / "tests/support"))
WARM = 5


def onnxruntime_call(model, inputs):
    import onnxruntime
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads, options.inter_op_num_threads = int(os.environ.get("OMP_NUM_THREADS", 1)), 1
    session = onnxruntime.InferenceSession(model, options, providers=["CPUExecutionProvider"])
    return lambda: session.run(["logits"], {"inputs": inputs})[0]


def openvino_call(model, inputs):
    import openvino
    network = openvino.Core().read_model(model)
    network.reshape(inputs.shape)
    request = openvino.compile_model(network, "CPU", {"INFERENCE_NUM_THREADS": int(os.environ.get("OMP_NUM_THREADS", 1)), "PERFORMANCE_HINT": "LATENCY",
                                                      "INFERENCE_PRECISION_HINT": "f32"}).create_infer_request()
    return lambda: request.infer([inputs], share_inputs=True)[0]


def deepsparse_call(model, inputs):
    import deepsparse
    engine = deepsparse.compile_model(model, batch_size=len(inputs), num_cores=int(os.environ.get("OMP_NUM_THREADS", 1)))
    return lambda: engine.run([inputs])[0]


def torch_call(model, inputs, kind):
    from cpu_torch import torch
    torch.set_num_threads(int(os.environ.get("OMP_NUM_THREADS", 1)))
    torch.set_flush_denormal(True)
    torch.set_grad_enabled(False)
    module = torch.jit.freeze(torch.jit.load(model).eval())
    if kind == "optimized":
        module = torch.jit.optimize_for_inference(module)
    tensor = torch.from_numpy(inputs)
    return lambda: module(tensor)


def main():
    model, inputs, outputs, kind, iterations, *shape = sys.argv[1:]
    values = np.fromfile(inputs, np.float32).reshape([int(extent) for extent in shape])
    calls = {"onnxruntime": onnxruntime_call, "openvino": openvino_call, "deepsparse": deepsparse_call}
    call = calls[kind](model, values) if kind in calls else torch_call(model, values, kind)
    seconds = []
    for i in range(-WARM, int(iterations)):
        start = time.perf_counter()
        answer = call()
        if i >= 0:
            seconds.append(time.perf_counter() - start)
    np.asarray(answer).astype(np.float32).tofile(outputs)
    print(f"{statistics.median(seconds):.9f}")


if __name__ == "__main__":
    main()
