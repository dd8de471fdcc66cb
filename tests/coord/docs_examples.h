// The C++ of docs/callbacks.md: docs_test.cpp runs it, and finds each of the page's lines here.
#pragma once

#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "base/files/files.h"
#include "coord/callback_types.h"
#include "coord/kpi_callback.h"
#include "coord/saver_callback.h"

namespace lockstep::tests {

// clang-format off
class Postprocess : public coord::Callback {
 public:
  std::vector<std::string> incoming_keys() const override { return {"logits", "_mask"}; }
  std::vector<std::string> generated_keys() const override { return {"classes"}; }
  coord::RunOn run_on() const override { return coord::RunOn::kAll; }
  std::optional<coord::DataMap> on_iteration_end(const coord::DataMap& data) override {
    at::Tensor classes_B = data.tensor("logits").argmax(1);
    if (data.contains("mask")) classes_B = classes_B * data.tensor("mask");
    coord::DataMap made;
    made.put("classes", classes_B);
    return made;
  }
};

class TextSaver : public coord::SaverCallback {
 public:
  TextSaver() : SaverCallback({.keys = {"classes"}}) {}

 protected:
  void save_sample(const coord::DataMap& sample) override {
    const int64_t number = sample.tensor("classes").item<int64_t>();
    files::write_atomically(save_name().string() + ".txt", std::to_string(number));
  }
};

class ShareRight : public coord::KpiEvaluator {
 public:
  std::vector<std::string> incoming_keys() const override { return {"classes", "labels"}; }
  int64_t num_sums() const override { return 2; }
  void add(const coord::DataMap& data, std::span<double> sums) override {
    const at::Tensor is_right_B = data.tensor("classes") == data.tensor("labels");
    sums[0] += is_right_B.sum().item<double>();
    sums[1] += static_cast<double>(is_right_B.numel());
  }
  std::vector<coord::Kpi> values(std::span<const double> sums) const override {
    return {{"share_right", sums[0] / sums[1]}};
  }
};

inline void add_callbacks() {
  coord::callback_types().add({.name = "postprocess", .read = [](ConfigReader*) -> coord::MakeCallback {
    return [](const coord::Services&) { return std::make_unique<Postprocess>(); };
  }});
  coord::callback_types().add({.name = "share_right", .read = [](ConfigReader*) -> coord::MakeCallback {
    return [](const coord::Services& services) {
      return std::make_unique<coord::KpiEvaluatorCallback>(std::make_unique<ShareRight>(), services);
    };
  }});
}
// clang-format on

}  // namespace lockstep::tests
