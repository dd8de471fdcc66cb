#include <fmt/format.h>

#include "base/log.h"
#include "coord/buffers/buffer_callback.h"
#include "coord/builtins/builtins.h"

namespace lockstep::coord {
namespace {

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
                                         "here, are fewer than every: {} and go to nobody",
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

}  // namespace

CallbackType collector() {
  return {.name = "collector", .read = [](ConfigReader* in) -> MakeCallback {
            BufferOptions options;
            options.keys = read_keys(in, "collector: what is collected; '_x' is optional");
            options.not_batch_keys = read_not_batch_keys(
                in, "collector: those of the keys that are not by sample", options.keys);
            int64_t every = 1;
            in->require("every");
            in->read("every", &every, count_from(1),
                     "collector: iterations whose samples are given at once, as collected_<key>");
            options.run_on = RunOn::kAll;
            return [=](const Services&) { return std::make_unique<Collector>(options, every); };
          }};
}

}  // namespace lockstep::coord
