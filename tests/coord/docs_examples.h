// The C++ of docs/callbacks.md: docs_test.cpp runs it, and finds each of the page's lines here.
#pragma once

#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include <ATen/ATen.h>

#include "base/files/files.h"
#include "coord/callback_types.h"
#include "coord/eval_metric.h"
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

inline coord::EvalMetric share_right() {
  const auto sums = [](const coord::DataMap& data) {
    const at::Tensor is_right_B = data.tensor("classes") == data.tensor("labels");
    return at::tensor({is_right_B.sum().item<double>(), static_cast<double>(is_right_B.numel())});
  };
  const auto values = [](const at::Tensor& sums_S) -> std::vector<coord::EvalValue> {
    return {{"share_right", sums_S[0] / sums_S[1]}};
  };
  return {.incoming_keys = {"classes", "labels"}, .num_sums = 2, .sums = sums, .values = values};
}

inline void add_callbacks() {
  coord::callback_types().add({.name = "postprocess", .read = [](ConfigReader*) -> coord::MakeCallback {
    return [](const coord::Services&) { return std::make_unique<Postprocess>(); };
  }});
  coord::callback_types().add({.name = "share_right", .read = [](ConfigReader*) -> coord::MakeCallback {
    return [](const coord::Services& services) {
      return std::make_unique<coord::KpiEvaluator>(share_right(), services);
    };
  }});
}
// clang-format on

}  // namespace lockstep::tests
