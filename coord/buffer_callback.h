#pragma once

#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "coord/callback.h"
#include "coord/data_map.h"

/// Callbacks that keep the samples of many iterations, and the buffers that they use.
namespace lockstep::coord {

/// Samples that are kept until they are processed.
class Buffer {
 public:
  virtual ~Buffer() = default;
  /// Adds a sample in the form of split_batch_inputs().
  virtual void add(const DataMap& sample) = 0;
  virtual int64_t num_samples() const = 0;
  /// Returns this rank's content, for joined() on any rank.
  virtual DataMap state() const = 0;
  /// Returns the input of process_buffer() from the states of all ranks in rank order (or of one
  /// rank).
  virtual DataMap joined(std::span<const DataMap> states) const = 0;
  virtual void clear() = 0;
};

/// Buffer of all samples. joined() returns each key as a tensor [N, ...] of all N samples (or as
/// texts), in rank order. The samples must have equal keys and shapes, else it throws
/// Error(kBadData).
class ListBuffer : public Buffer {
 public:
  void add(const DataMap& sample) override;
  int64_t num_samples() const override { return static_cast<int64_t>(samples_.size()); }
  DataMap state() const override;
  DataMap joined(std::span<const DataMap> states) const override;
  void clear() override { samples_.clear(); }

 protected:
  void drop_first() { samples_.pop_front(); }

 private:
  std::deque<DataMap> samples_;
};

/// Buffer of the last `capacity` samples.
class RingBuffer : public ListBuffer {
 public:
  explicit RingBuffer(int64_t capacity) : capacity_(capacity) {}
  void add(const DataMap& sample) override;

 private:
  const int64_t capacity_;
};

/// Buffer of element-wise statistics of each tensor. It keeps no samples, so its memory does not
/// grow. joined() returns for each key (nested ones by path) a map of float64 tensors in the
/// sample's shape: `mean`, `variance` (of the population: divided by N), `minimum`, `maximum`, and
/// `count`, one number. Texts are skipped.
///
/// Source: T. F. Chan, G. H. Golub, R. J. LeVeque, Algorithms for computing the sample variance
/// (1983). Means and squared deviations are joined pairwise, without sums that cancel.
class StatsBuffer : public Buffer {
 public:
  void add(const DataMap& sample) override;
  int64_t num_samples() const override { return num_samples_; }
  DataMap state() const override;
  DataMap joined(std::span<const DataMap> states) const override;
  void clear() override;

 private:
  struct Stats {
    int64_t count = 0;
    at::Tensor mean, deviations, minimum, maximum;  // float64; deviations: sum of squares
  };
  using AllStats = std::map<std::string, Stats>;

  static void join(const std::string& key, const Stats& other, Stats* stats);

  AllStats stats_;
  int64_t num_samples_ = 0;
};

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
