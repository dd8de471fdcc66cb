#include <fmt/format.h>

#include "base/log.h"
#include "coord/builtins/builtins.h"

namespace lockstep::coord {
namespace {

/// Log: writes a line every `every` iterations with epoch, iteration, time, and the mean of each
/// key.
class LogCallback : public Callback {
 public:
  LogCallback(std::vector<std::string> keys, int64_t every)
      : keys_(std::move(keys)), every_(every) {}

  std::vector<std::string> incoming_keys() const override { return keys_; }

  std::optional<DataMap> on_iteration_end(const DataMap& data) override {
    const IterationInfo& info = context().iteration_info;
    // Also at the last iteration, so that the log has the final values.
    if ((info.iteration_number + 1) % every_ != 0 && !info.is_last_iteration) return DataMap();
    std::string line = fmt::format("{} epoch {} iteration {}: {:.4g} s", mode_name(context().mode),
                                   info.epoch_number, info.iteration_number, info.execution_time);
    for (const auto& [key, value] : data.values())
      if (const auto* const tensor = std::get_if<at::Tensor>(&value))
        line += fmt::format(", {} {:.6g}", key, mean_of(*tensor));
    log::info("callbacks", line);
    return DataMap();
  }

 private:
  // On the CPU in float64, so that a sum of many values does not lose digits.
  static double mean_of(const at::Tensor& tensor) {
    return tensor.detach().to(at::kCPU, at::kDouble).mean().item<double>();
  }

  const std::vector<std::string> keys_;
  const int64_t every_;
};

}  // namespace

CallbackType log_callback() {
  return {.name = "log", .read = [](ConfigReader* in) -> MakeCallback {
            int64_t every = 1;
            std::vector<std::string> keys;
            in->read("every", &every, count_from(1), "log: iterations from one line to the next");
            in->read("keys", &keys, "log: tensors whose means stand in the line; '_x' is optional");
            return [=](const Services&) { return std::make_unique<LogCallback>(keys, every); };
          }};
}

}  // namespace lockstep::coord
