#include <algorithm>

#include <fmt/format.h>

#include "base/error.h"
#include "base/files/files.h"
#include "coord/builtins/builtins.h"
#include "coord/savers/split_batch.h"

namespace lockstep::coord {
namespace {

/// Returns a field of a CSV file, quoted if necessary (RFC 4180).
std::string quoted(const std::string& text) {
  if (text.find_first_of(",\"\r\n") == std::string::npos) return text;
  std::string field = "\"";
  for (const char letter : text) field += letter == '"' ? "\"\"" : std::string(1, letter);
  return field + "\"";
}

/// Confusion matrix: samples by class (row) and by the class with the highest output (column), over
/// all ranks and iterations. Writes confusion.csv at the end.
class Confusion : public Callback {
 public:
  Confusion(std::string logits, std::string labels, int64_t num_classes, Services services)
      : logits_(std::move(logits)),
        labels_(std::move(labels)),
        num_classes_(num_classes),
        counts_(static_cast<size_t>(num_classes * num_classes), 0.0),
        services_(std::move(services)) {
    if (labels_ == "targets" && num_classes_ < services_.num_classes)
      throw Error(ExitCode::kConfig, "callbacks",
                  fmt::format("callback 'confusion' has num_classes {}, and the targets have {} "
                              "classes: set num_classes to {}",
                              num_classes_, services_.num_classes, services_.num_classes))
          .everywhere();
  }

  std::vector<std::string> incoming_keys() const override { return {logits_, labels_}; }
  RunOn run_on() const override { return RunOn::kAll; }
  std::string stores_as() const override { return "confusion.csv"; }

  void begin() override { std::fill(counts_.begin(), counts_.end(), 0.0); }

  std::optional<DataMap> on_iteration_end(const DataMap& data) override {
    // argmax takes the first of equal outputs.
    const at::Tensor chosen_B = on_cpu(data.tensor(logits_)).argmax(-1).to(at::kLong);
    const at::Tensor labels_B = on_cpu(data.tensor(labels_)).to(at::kLong);
    if (chosen_B.dim() != 1 || chosen_B.sizes() != labels_B.sizes())
      throw Error(ExitCode::kBadData, "callbacks",
                  fmt::format("'{}' is of {} samples and '{}' of {}; wanted are [samples, classes] "
                              "and [samples]",
                              logits_, chosen_B.numel(), labels_, labels_B.numel()));
    const auto* const chosen = static_cast<const int64_t*>(chosen_B.const_data_ptr());
    const auto* const labels = static_cast<const int64_t*>(labels_B.const_data_ptr());
    for (int64_t i = 0; i < labels_B.numel(); ++i)
      // Row: the sample's class, column: the chosen class.
      counts_[static_cast<size_t>(class_of(labels[i]) * num_classes_ + class_of(chosen[i]))] += 1;
    return DataMap();
  }

  void end() override {
    // Before the collective, because after an error the other ranks may not call it.
    if (is_half_told(context(), "confusion.csv")) return;
    if (services_.sum_over_ranks) services_.sum_over_ranks(counts_);
    if (context().rank != 0) return;
    files::make_folders(context().log_dir);
    files::write_atomically(context().log_dir / "confusion.csv", table());
  }

 private:
  /// Returns the table, with the class names in the first line and column if there are any.
  std::string table() const {
    const auto num_classes = static_cast<size_t>(num_classes_);
    const std::vector<std::string>& names = services_.class_names;
    const bool has_names = names.size() == num_classes;
    std::string text;
    if (has_names) {
      for (const std::string& name : names) text += "," + quoted(name);
      text += '\n';
    }
    for (size_t row = 0; row < num_classes; ++row) {
      if (has_names) text += quoted(names[row]) + ",";
      for (size_t column = 0; column < num_classes; ++column)
        text +=
            fmt::format("{}{:.0f}", column == 0 ? "" : ",", counts_[row * num_classes + column]);
      text += '\n';
    }
    return text;
  }

  /// Returns the class number after checking its range.
  int64_t class_of(int64_t number) const {
    if (number >= 0 && number < num_classes_) return number;
    throw Error(
        ExitCode::kBadData, "callbacks",
        fmt::format("there is a sample of class {}, and num_classes is {}", number, num_classes_));
  }

  const std::string logits_, labels_;
  const int64_t num_classes_;
  std::vector<double> counts_;  // [num_classes, num_classes]
  const Services services_;
};

}  // namespace

CallbackType confusion() {
  return {.name = "confusion",
          .read = [](ConfigReader* in) -> MakeCallback {
            std::string logits = "logits", labels = "targets";
            int64_t num_classes = 2;
            in->read("outputs", &logits, "confusion: key of the outputs, [samples, classes]");
            in->read("labels", &labels, "confusion: key of the right classes, [samples]");
            in->require("num_classes");
            in->read("num_classes", &num_classes, between(2, 1000),
                     "confusion: rows and columns of confusion.csv");
            return [=](const Services& services) {
              return std::make_unique<Confusion>(logits, labels, num_classes, services);
            };
          },
          .modes = {"eval"}};
}

}  // namespace lockstep::coord
