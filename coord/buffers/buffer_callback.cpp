#include "coord/buffers/buffer_callback.h"

#include <utility>

#include "coord/savers/split_batch.h"

namespace lockstep::coord {
namespace {

constexpr const char* kEvaluate = "evaluate";

}  // namespace

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

}  // namespace lockstep::coord
