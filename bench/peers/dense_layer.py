"""Dense layers in onnxruntime, on one thread: the peer of bench/programs/sparse_layers.cpp.

Reads lines "kind outputs inputs kernel size batch groups stride" and prints the microseconds of each, least of several runs. size 0: a linear layer.
"""
import sys
import time

import numpy as np
import onnxruntime
from onnx import TensorProto, helper, numpy_helper

RUNS = 15


def model_of(outputs, inputs, kernel, size, batch, groups, stride):
    rng = np.random.default_rng(1)
    shape = [outputs, inputs] if size == 0 else [outputs, inputs // groups, kernel, kernel]
    constants = [numpy_helper.from_array(rng.normal(size=extents).astype(np.float32), name) for name, extents in (("w", shape), ("b", [outputs]))]
    if size == 0:
        node, x = helper.make_node("Gemm", ["x", "w", "b"], ["sum"], transB=1), [batch, inputs]
    else:
        node = helper.make_node("Conv", ["x", "w", "b"], ["sum"], kernel_shape=[kernel] * 2, strides=[stride] * 2, pads=[kernel // 2] * 4, group=groups)
        x = [batch, inputs, size, size]
    graph = helper.make_graph([node, helper.make_node("Relu", ["sum"], ["y"])], "layer", [helper.make_tensor_value_info("x", TensorProto.FLOAT, x)],
                              [helper.make_tensor_value_info("y", TensorProto.FLOAT, None)], constants)
    return helper.make_model(graph, ir_version=8, opset_imports=[helper.make_opsetid("", 13)]).SerializeToString(), rng.normal(size=x).astype(np.float32)


def main():
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = options.inter_op_num_threads = 1
    for line in sys.stdin:
        model, x = model_of(*map(int, line.split()[1:]))
        session = onnxruntime.InferenceSession(model, options, providers=["CPUExecutionProvider"])
        seconds = []
        for _ in range(RUNS + 2):
            start = time.perf_counter()
            session.run(None, {"x": x})
            seconds.append(time.perf_counter() - start)
        print(f"{1e6 * min(seconds[2:]):.1f}", flush=True)


if __name__ == "__main__":
    main()
