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
  std::vector<std::string> keys;            ///< what is kept; `_x` is optional
  std::vector<std::string> not_batch_keys;  ///< those of them that go whole to each sample
  bool gather = false;  ///< process_buffer() gets the samples of all ranks; then RunOn::kAll
  RunOn run_on = RunOn::kAll;
};

/// Keeps the samples of many iterations, then computes something of all: process_buffer() runs, and
/// the buffer is freed, in an iteration whose optional key `evaluate` (one truth value) is set, by
/// the driver or by another callback. In other iterations what depends on it is halted.
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
  /// `data`: what the buffer's joined() gives.
  virtual std::optional<DataMap> process_buffer(const DataMap& data) = 0;
  /// Adds one iteration's samples.
  void add(const DataMap& data);
  /// Processes and frees, as `evaluate` does.
  std::optional<DataMap> evaluate();
  const Buffer& buffer() const { return *buffer_; }

 private:
  const BufferOptions options_;
  const std::unique_ptr<Buffer> buffer_;
  const Services services_;
};

}  // namespace lockstep::coord
