#pragma once

#include <functional>

namespace lockstep {

/// A CUDA graph: work of a device that is captured once and then done again by one call of the
/// host, which takes microseconds however many kernels it is (Communicator::make_graph()). One
/// caller at a time.
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
  /// autograd's threads; the host's own part of it runs once, here. Numbers of the host are kept as
  /// they are now, tensors are read and written in each replay() where they lie now. Memory that
  /// `body` allocates belongs to the graph until the next capture() or the end, also where a tensor
  /// outlives it. `body` may not wait for the device, nor copy from it. Takes the place of what was
  /// captured before.
  ///
  /// Throws what `body` throws, and Error(kUnavailable) if the device cannot capture it; nothing is
  /// captured then.
  virtual void capture(const std::function<void()>& body) = 0;
  /// Puts it on the calling thread's stream; the host runs on. After capture() alone.
  virtual void replay() = 0;
  /// Gives back what the graph holds; nothing is captured then.
  virtual void forget() = 0;
};

}  // namespace lockstep
