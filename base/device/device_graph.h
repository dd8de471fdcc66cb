#pragma once

#include <functional>

namespace lockstep {

/// CUDA graph: device work that is captured once and then repeated by one call of the host. Such a
/// call takes microseconds, however many kernels there are (Communicator::make_graph()). One caller
/// at a time.
///
///   graph->capture([&] {         // computes nothing yet
///     loss = forward(inputs);
///     loss.backward();
///   });
///   graph->replay();             // now loss is that of these inputs
///
///   inputs.copy_(others);
///   graph->replay();             // and now of the others
///
/// Source: CUDA C++ Programming Guide, "CUDA Graphs"; PyTorch's torch.cuda.graph.
class DeviceGraph {
 public:
  virtual ~DeviceGraph() = default;

  /// Captures the kernels that `body` launches on the calling thread's stream and, in backward, on
  /// autograd's threads. The host code of `body` runs once, here. Host values keep their present
  /// values. Each replay() reads and writes tensors at their present addresses. Memory that `body`
  /// allocates belongs to the graph until the next capture() or the end. That holds even if a
  /// tensor outlives it. `body` must not wait for the device or copy from it. An earlier capture is
  /// replaced.
  ///
  /// Throws what `body` throws, and Error(kUnavailable) if the device cannot capture it. Nothing is
  /// captured then.
  virtual void capture(const std::function<void()>& body) = 0;
  /// Enqueues the captured work on the calling thread's stream; the host does not wait. Only after
  /// capture().
  virtual void replay() = 0;
  /// Frees what the graph holds; nothing is captured afterwards.
  virtual void forget() = 0;
};

}  // namespace lockstep
