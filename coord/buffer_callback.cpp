// Buffers of samples, and the callbacks `collector` and `statistics` that use them. Samples are
// stacked to a state per rank; the states of several ranks are concatenated.
#include "coord/buffer_callback.h"

#include <utility>

#include <ATen/TensorOperators.h>
#include <ATen/ops/full.h>
#include <ATen/ops/maximum.h>
#include <ATen/ops/minimum.h>
#include <ATen/ops/zeros_like.h>
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <nlohmann/json.hpp>

#include "base/error.h"
#include "base/files/files.h"
#include "base/log.h"
#include "coord/callback_types.h"

namespace lockstep::coord {
namespace {

constexpr const char* kParts = "the samples that were collected";

constexpr const char* kEvaluate = "evaluate";

/// Collector: passes on the samples of `every` iterations at once, each key as `collected_<key>`.
/// Callbacks that depend on it run once per `every` iterations. In training it continues over the
/// ends of epochs. Samples left at the end are dropped, and rank 0 logs their number.
class Collector : public BufferCallback {
 public:
  Collector(const BufferOptions& options, int64_t every)
      : BufferCallback(options, std::make_unique<ListBuffer>()),
        keys_(options.keys),
        every_(every) {}

  std::vector<std::string> generated_keys() const override {
    std::vector<std::string> keys;
    for (const std::string& declared : keys_) {
      const CallbackKey key = callback_key(declared);
      keys.push_back((key.is_optional ? "_collected_" : "collected_") + key.name);
    }
    return keys;
  }

  void begin() override {
    BufferCallback::begin();
    num_iterations_ = 0;
  }

  // `evaluate` of another callback may empty the buffer earlier; the count then restarts.
  std::optional<DataMap> on_iteration_end(const DataMap& data) override {
    std::optional<DataMap> made = BufferCallback::on_iteration_end(data);
    ++num_iterations_;
    if (!made.has_value() && num_iterations_ == every_) made = evaluate();
    if (made.has_value()) num_iterations_ = 0;
    return made;
  }

  void end() override {
    if (num_iterations_ > 0 && context().rank == 0)
      log::info("callbacks", fmt::format("collector: the last {} iteration(s), with {} sample(s) "
                                         "here, are fewer than every: {} and are dropped",
                                         num_iterations_, buffer().num_samples(), every_));
  }

 protected:
  std::optional<DataMap> process_buffer(const DataMap& data) override {
    DataMap made;
    for (const auto& [key, value] : data.values()) made.put("collected_" + key, value);
    return made;
  }

 private:
  const std::vector<std::string> keys_;
  const int64_t every_;
  int64_t num_iterations_ = 0;  // since the last output
};

using Json = nlohmann::ordered_json;

/// Returns a number, or a list in row-major order.
Json list_of(const at::Tensor& tensor) {
  const at::Tensor numbers = on_cpu(tensor).to(at::kDouble);
  const auto* const first = static_cast<const double*>(numbers.const_data_ptr());
  if (numbers.dim() == 0) return *first;
  return std::vector<double>(first, first + numbers.numel());
}

/// Statistics: writes statistics.json with count, shape, and element-wise mean, variance, minimum
/// and maximum of each key. They cover the samples present at the end. At each earlier `evaluate`
/// it writes statistics-<iteration>.json. Statistics over all ranks are written on rank 0.
class Statistics : public BufferCallback {
 public:
  Statistics(const BufferOptions& options, const Services& services)
      : BufferCallback(options, std::make_unique<StatsBuffer>(), services),
        is_of_all_ranks_(options.gather) {}

  std::string stores_as() const override { return "statistics.json"; }
  void end() override {
    if (is_incomplete_pass(context(), "statistics.json")) return;
    is_end_ = true;
    // Collective with `gather`: every rank must come here.
    evaluate();
  }
  void begin() override {
    BufferCallback::begin();
    is_end_ = false;
  }

 protected:
  std::optional<DataMap> process_buffer(const DataMap& data) override {
    if (is_of_all_ranks_ && context().rank != 0) return DataMap();  // rank 0 writes the same values
    Json all = Json::object();
    for (const auto& [key, value] : data.values()) {
      const DataMap& stats = data.map(key);
      all[key]["count"] = stats.tensor("count").item<int64_t>();
      all[key]["shape"] = stats.tensor("mean").sizes().vec();
      for (const char* const name : {"mean", "variance", "minimum", "maximum"})
        all[key][name] = list_of(stats.tensor(name));
    }
    if (all.empty()) return DataMap();
    files::make_folders(context().log_dir);
    files::write_atomically(context().log_dir / file_name(), all.dump(2) + "\n");
    return DataMap();
  }

 private:
  std::string file_name() const {
    if (is_end_) return "statistics.json";
    return fmt::format("statistics-{:06}.json", context().iteration_info.iteration_number);
  }

  bool is_end_ = false;
  const bool is_of_all_ranks_;
};

}  // namespace

void ListBuffer::add(const DataMap& sample) { samples_.push_back(sample); }

DataMap ListBuffer::state() const {
  std::vector<const DataMap*> samples;
  for (const DataMap& sample : samples_) samples.push_back(&sample);
  return joined_maps(samples, {.stacks = true, .area = "callbacks", .parts_are = kParts});
}

DataMap ListBuffer::joined(std::span<const DataMap> states) const {
  std::vector<const DataMap*> filled;
  // A rank without samples has an empty state.
  for (const DataMap& state : states)
    if (!state.empty()) filled.push_back(&state);
  return joined_maps(filled, {.area = "callbacks", .parts_are = kParts});
}

void RingBuffer::add(const DataMap& sample) {
  ListBuffer::add(sample);
  if (num_samples() > capacity_) drop_first();
}

// Statistics of two sets are joined with the formulas of Chan, Golub and LeVeque. A new sample is a
// set of one.

void StatsBuffer::join(const std::string& key, const Stats& other, Stats* stats) {
  if (stats->count == 0) {
    *stats = other;
    return;
  }
  if (stats->mean.sizes() != other.mean.sizes())
    refuse_data(fmt::format(
        "key '{}' has the shape [{}] in one sample and [{}] in another, so there "
        "are no statistics of it",
        key, fmt::join(stats->mean.sizes(), ", "), fmt::join(other.mean.sizes(), ", ")));
  // The formulas of Chan et al. for sets of `own` and `more` elements.
  const auto own = static_cast<double>(stats->count), more = static_cast<double>(other.count);
  const at::Tensor delta = other.mean - stats->mean;
  stats->deviations =
      stats->deviations + other.deviations + delta * delta * (own * more / (own + more));
  stats->mean = stats->mean + delta * (more / (own + more));
  stats->minimum = at::minimum(stats->minimum, other.minimum);
  stats->maximum = at::maximum(stats->maximum, other.maximum);
  stats->count += other.count;
}

void StatsBuffer::add(const DataMap& sample) {
  ++num_samples_;
  for (const FlatValue& flat : flat_values(sample)) {
    const at::Tensor* const tensor = std::get_if<at::Tensor>(flat.value);
    // Texts have no statistics.
    if (tensor == nullptr) continue;
    const at::Tensor value = on_cpu(*tensor).to(at::kDouble);
    const std::string key = path_text(flat);
    join(key, {1, value, at::zeros_like(value), value, value}, &stats_[key]);
  }
}

// Tensors only, so that services can gather the state over the ranks.
DataMap StatsBuffer::state() const {
  DataMap state;
  for (const auto& [key, stats] : stats_) {
    auto map = std::make_shared<DataMap>();
    map->put("count", at::full({}, stats.count, at::kLong));
    map->put("mean", stats.mean);
    map->put("deviations", stats.deviations);
    map->put("minimum", stats.minimum);
    map->put("maximum", stats.maximum);
    state.put(key, std::move(map));
  }
  return state;
}

DataMap StatsBuffer::joined(std::span<const DataMap> states) const {
  AllStats all;
  for (const DataMap& state : states)
    for (const auto& [key, value] : state.values()) {
      const DataMap& map = state.map(key);
      join(key,
           {map.tensor("count").item<int64_t>(), map.tensor("mean"), map.tensor("deviations"),
            map.tensor("minimum"), map.tensor("maximum")},
           &all[key]);
    }
  DataMap joined;
  for (const auto& [key, stats] : all) {
    auto map = std::make_shared<DataMap>();
    map->put("count", at::full({}, stats.count, at::kLong));
    map->put("mean", stats.mean);
    // Variance of the set itself: divided by the count, not by count - 1.
    map->put("variance", stats.deviations / static_cast<double>(stats.count));
    map->put("minimum", stats.minimum);
    map->put("maximum", stats.maximum);
    joined.put(key, std::move(map));
  }
  return joined;
}

void StatsBuffer::clear() {
  stats_.clear();
  num_samples_ = 0;
}

BufferCallback::BufferCallback(BufferOptions options, std::unique_ptr<Buffer> buffer,
                               Services services)
    : options_(std::move(options)), buffer_(std::move(buffer)), services_(std::move(services)) {}

std::vector<std::string> BufferCallback::incoming_keys() const {
  std::vector<std::string> keys = options_.keys;
  keys.push_back(std::string("_") + kEvaluate);
  return keys;
}

void BufferCallback::add(const DataMap& data) {
  DataMap kept;
  for (const auto& [key, value] : data.values())
    if (key != kEvaluate) kept.put(key, value);
  for (const DataMap& sample : split_batch_inputs(kept, options_.not_batch_keys))
    buffer_->add(sample);
}

std::optional<DataMap> BufferCallback::evaluate() {
  // The state is a joined copy, so the buffer can be cleared before the result is computed.
  std::vector<DataMap> states = {buffer_->state()};
  if (options_.gather && services_.gather_over_ranks)
    states = services_.gather_over_ranks(states.front());
  buffer_->clear();
  return process_buffer(buffer_->joined(states));
}

std::optional<DataMap> BufferCallback::on_iteration_end(const DataMap& data) {
  add(data);
  if (!data.contains(kEvaluate) || !data.tensor(kEvaluate).to(at::kBool).item<bool>())
    return std::nullopt;
  return evaluate();
}

CallbackType collector() {
  return {.name = "collector", .read = [](ConfigReader* in) -> MakeCallback {
            BufferOptions options;
            options.keys = read_keys(in, "collector: collected tensors; '_x' is optional");
            options.not_batch_keys =
                read_not_batch_keys(in, "collector: keys without a sample dimension", options.keys);
            int64_t every = 1;
            in->require("every");
            in->read("every", &every, count_from(1),
                     "collector: iterations per result collected_<key>");
            options.run_on = RunOn::kAll;
            return [=](const Services&) { return std::make_unique<Collector>(options, every); };
          }};
}

CallbackType statistics() {
  return {.name = "statistics", .read = [](ConfigReader* in) -> MakeCallback {
            BufferOptions options;
            options.keys = read_keys(in, "statistics: tensors; '_x' is optional");
            options.not_batch_keys = read_not_batch_keys(
                in, "statistics: keys without a sample dimension", options.keys);
            options.gather = true;
            in->read("gather", &options.gather,
                     "statistics: over the samples of all ranks; false: per rank");
            return [=](const Services& services) {
              return std::make_unique<Statistics>(options, services);
            };
          }};
}

}  // namespace lockstep::coord
