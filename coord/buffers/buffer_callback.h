#pragma once

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "coord/buffers/buffer.h"
#include "coord/callback.h"
#include "coord/services.h"

namespace lockstep::coord {

struct BufferOptions {
  std::vector<std::string> keys;            ///< keys to keep; `_x` is optional
  std::vector<std::string> not_batch_keys;  ///< those passed unsplit to each sample
  bool gather = false;  ///< process_buffer() gets the samples of all ranks; implies RunOn::kAll
  RunOn run_on = RunOn::kAll;
};

/// Callback that keeps the samples of many iterations and then computes a result of all.
/// process_buffer() runs, and the buffer is cleared, in an iteration whose optional key `evaluate`
/// (one truth value) is set. The driver or another callback sets it. In other iterations the
/// callbacks that depend on it are halted.
///
/// With `gather`, all ranks must set `evaluate` in the same iteration.
class BufferCallback : public Callback {
 public:
  BufferCallback(BufferOptions options, std::unique_ptr<Buffer> buffer, Services services = {});

  std::vector<std::string> incoming_keys() const override;
  RunOn run_on() const override { return options_.gather ? RunOn::kAll : options_.run_on; }
  void begin() override { buffer_->clear(); }
  std::optional<DataMap> on_iteration_end(const DataMap& data) override;

 protected:
  /// Computes the result; `data` is what the buffer's joined() returned.
  virtual std::optional<DataMap> process_buffer(const DataMap& data) = 0;
  /// Adds the samples of one iteration.
  void add(const DataMap& data);
  /// Processes and clears the buffer, as `evaluate` does.
  std::optional<DataMap> evaluate();
  const Buffer& buffer() const { return *buffer_; }

 private:
  const BufferOptions options_;
  const std::unique_ptr<Buffer> buffer_;
  const Services services_;
};

}  // namespace lockstep::coord
