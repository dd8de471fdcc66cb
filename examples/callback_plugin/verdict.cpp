// A plug-in with a callback: what a network's outputs mean, for the savers behind it.
//   lockstep infer --saved_model latest --config examples/callback_plugin/run.yaml

#include <ATen/TensorOperators.h>
#include <ATen/ops/max.h>
#include <ATen/ops/softmax.h>
#include <ATen/ops/where.h>

#include "coord/callback_types.h"
#include "estimator/plugin.h"

namespace {

using lockstep::ConfigReader;
namespace coord = lockstep::coord;

/// Returns the most probable class of each sample and its probability, from `logits` [samples,
/// classes]; -1 if the probability is below min_probability.
class Verdict final : public coord::Callback {
 public:
  explicit Verdict(double min_probability) : min_probability_(min_probability) {}

  std::vector<std::string> incoming_keys() const override { return {"logits"}; }
  std::vector<std::string> generated_keys() const override { return {"classes", "probabilities"}; }
  coord::RunOn run_on() const override { return coord::RunOn::kAll; }

  std::optional<coord::DataMap> on_iteration_end(const coord::DataMap& data) override {
    const auto [probabilities_B, classes_B] = at::softmax(data.tensor("logits"), 1).max(1);
    coord::DataMap made;
    made.put("classes", at::where(probabilities_B < min_probability_, -1, classes_B));
    made.put("probabilities", probabilities_B);
    return made;
  }

 private:
  const double min_probability_;
};

coord::MakeCallback read_verdict(ConfigReader* in) {
  double min_probability = 0.5;
  in->read("min_probability", &min_probability, lockstep::between(0, 1),
           "verdict: a sample whose most probable class is less probable has class -1");
  return [min_probability](const coord::Services&) {
    return std::make_unique<Verdict>(min_probability);
  };
}

void add_rows() { coord::callback_types().add({.name = "verdict", .read = read_verdict}); }

}  // namespace

LOCKSTEP_PLUGIN(add_rows)
