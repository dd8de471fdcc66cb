#include <algorithm>
#include <span>

#include <ATen/TensorOperators.h>
#include <fmt/format.h>

#include "base/error.h"
#include "base/log.h"
#include "coord/callback_types.h"
#include "metrics/tensorboard/event_file.h"

// Callbacks `log` and `summary`.
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

struct SummaryOptions {
  std::string key, as = "histogram";
  int64_t every = 100;      ///< iterations
  int64_t max_samples = 3;  ///< of images and sounds
  double sample_rate = 16000;
};

/// Summary: shows a tensor of every `every`-th iteration in TensorBoard. It is a histogram of the
/// values, or the first samples as images or sounds.
class SummaryCallback : public Callback {
 public:
  explicit SummaryCallback(SummaryOptions options) : options_(std::move(options)) {}

  std::vector<std::string> incoming_keys() const override { return {options_.key}; }

  std::optional<DataMap> on_iteration_end(const DataMap& data) override {
    const int64_t number = context().iteration_info.iteration_number;
    if (context().summary_writer == nullptr || number % options_.every != 0) return DataMap();
    const at::Tensor values = data.tensor(options_.key).detach().to(at::kCPU);
    if (options_.as == "histogram")
      write_histogram(values);
    else if (values.dim() == 0)
      refuse(values, "a batch of samples");
    else
      for (int64_t i = 0; i < std::min(options_.max_samples, values.size(0)); ++i)
        write(fmt::format("/{}", i), options_.as == "image" ? image(values[i]) : sound(values[i]));
    return DataMap();
  }

 private:
  /// Writes a histogram of a copy, because the loop may overwrite its tensors meanwhile.
  void write_histogram(const at::Tensor& values) {
    const at::Tensor copy = values.to(at::kCPU, at::kFloat, /*non_blocking=*/false,
                                      /*copy=*/true, at::MemoryFormat::Contiguous);
    const auto histogram = [copy]() -> metrics::SummaryValue {
      return metrics::histogram_of(
          {copy.const_data_ptr<float>(), static_cast<size_t>(copy.numel())});
    };
    context().summary_writer->add(context().summary_step, options_.key, histogram,
                                  static_cast<int64_t>(copy.nbytes()));
  }

  void write(const std::string& suffix, const metrics::SummaryValue& value) {
    context().summary_writer->add(context().summary_step, options_.key + suffix, value);
  }

  // Kept in a member, since the span must stay valid until the caller has used it.
  std::span<const float> floats(const at::Tensor& values) {
    kept_ = values.to(at::kFloat).contiguous();
    return {kept_.const_data_ptr<float>(), static_cast<size_t>(kept_.numel())};
  }

  [[noreturn]] void refuse(const at::Tensor& sample, const char* wanted) const {
    throw Error(ExitCode::kConfig, "callbacks",
                fmt::format("summary: a sample of '{}' has {} dimension(s); as: {} needs {}",
                            options_.key, sample.dim(), options_.as, wanted));
  }

  /// Converts [C, H, W] or [H, W] to an image. Values outside 0 to 1 are scaled from their minimum
  /// and maximum.
  metrics::SummaryValue image(const at::Tensor& sample) {
    at::Tensor pixels_CHW = sample.dim() == 2 ? sample.unsqueeze(0) : sample;
    const int64_t num_channels = pixels_CHW.dim() == 3 ? pixels_CHW.size(0) : 0;
    if (num_channels != 1 && num_channels != 3 && num_channels != 4)
      refuse(sample, "[H, W], or [C, H, W] with 1, 3 or 4 channels");
    // Bytes are pixels already; other types are scaled.
    if (pixels_CHW.scalar_type() != at::kByte) {
      pixels_CHW = pixels_CHW.to(at::kFloat).nan_to_num();
      const double least = pixels_CHW.min().item<double>(), most = pixels_CHW.max().item<double>();
      const bool is_within = least >= 0 && most <= 1;
      const double offset = is_within ? 0 : least;
      const double range = is_within || most == least ? 1 : most - least;
      pixels_CHW = ((pixels_CHW - offset) * (255 / range)).round().clamp(0, 255).to(at::kByte);
    }
    const at::Tensor pixels_HWC = pixels_CHW.permute({1, 2, 0}).contiguous();
    return metrics::image_of(
        {pixels_HWC.const_data_ptr<uint8_t>(), static_cast<size_t>(pixels_HWC.numel())},
        pixels_HWC.size(0), pixels_HWC.size(1), static_cast<int>(num_channels));
  }

  /// Converts [T] or [C, T] to a sound.
  metrics::SummaryValue sound(const at::Tensor& sample) {
    if (sample.dim() != 1 && sample.dim() != 2) refuse(sample, "[T] or [C, T]");
    const at::Tensor samples_CT = sample.dim() == 1 ? sample.unsqueeze(0) : sample;
    return metrics::audio_of(floats(samples_CT.t()), options_.sample_rate,
                             static_cast<int>(samples_CT.size(0)));
  }

  const SummaryOptions options_;
  at::Tensor kept_;  // memory of the span that floats() returned
};

}  // namespace

CallbackType log_callback() {
  return {.name = "log", .read = [](ConfigReader* in) -> MakeCallback {
            int64_t every = 1;
            std::vector<std::string> keys;
            in->read("every", &every, count_from(1), "log: iterations between lines");
            in->read("keys", &keys, "log: tensors whose means are logged; '_x' is optional");
            return [=](const Services&) { return std::make_unique<LogCallback>(keys, every); };
          }};
}

CallbackType summary() {
  return {.name = "summary",
          .read = [](ConfigReader* in) -> MakeCallback {
            SummaryOptions options;
            in->require("key");
            in->read("key", &options.key, "summary: tensor for TensorBoard");
            in->read_choice("as", &options.as, {"histogram", "image", "audio"},
                            "summary: all values as a histogram, or the first samples as images "
                            "or audio");
            in->read("every", &options.every, count_from(1),
                     "summary: iterations between summaries");
            in->read("max_samples", &options.max_samples, count_from(1),
                     "summary: most images or sounds per iteration");
            in->read("sample_rate", &options.sample_rate, between(1, 1e6),
                     "summary: audio "
                     "sample rate in Hz");
            return [=](const Services&) { return std::make_unique<SummaryCallback>(options); };
          },
          .modes = {"train", "eval"}};
}

}  // namespace lockstep::coord
