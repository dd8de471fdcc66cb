// summary.json. Non-finite numbers become null, since JSON has none.
#include "train/summary.h"

#include <nlohmann/json.hpp>

#include "base/digest.h"
#include "base/files/files.h"

namespace lockstep::train {
namespace {

/// Converts a tensor to a number, or to nested lists with one level per dimension.
nlohmann::ordered_json tensor_json(const at::Tensor& values) {
  if (values.dim() == 0)
    return values.scalar_type() == at::kLong ? nlohmann::ordered_json(values.item<int64_t>())
                                             : nlohmann::ordered_json(values.item<double>());
  nlohmann::ordered_json list = nlohmann::ordered_json::array();
  for (const at::Tensor& part : values.unbind()) list.push_back(tensor_json(part));
  return list;
}

nlohmann::ordered_json json_of(const EvalResult& eval) {
  nlohmann::ordered_json json{
      {"accuracy", nullptr}, {"loss", eval.loss}, {"num_samples", eval.num_samples}};
  if (eval.accuracy) json["accuracy"] = *eval.accuracy;
  for (const auto& [name, value] : eval.metrics) json["metrics"][name] = tensor_json(value);
  for (const auto& [name, value] : eval.kpis) json["kpis"][name] = value;
  return json;
}

}  // namespace

std::string eval_json(const EvalResult& eval) { return json_of(eval).dump(); }

void write_summary(const std::filesystem::path& path, const Summary& summary) {
  nlohmann::ordered_json json{{"exit_reason", summary.exit_reason},
                              {"exit_code", summary.exit_code},
                              {"steps", summary.steps},
                              {"epochs", summary.epochs},
                              {"skipped_steps", summary.skipped_steps},
                              {"world_size", summary.world_size},
                              {"train_loss", nullptr},
                              {"eval", nullptr},
                              {"sparsity", summary.sparsity},
                              {"num_prunable_weights", summary.num_prunable_weights},
                              {"samples_per_second", summary.samples_per_second},
                              {"checkpoint", summary.checkpoint},
                              {"resumed_from_step", nullptr},
                              {"parameters_sha256", summary.parameters_sha256},
                              {"metrics_address", summary.metrics_address}};
  if (!summary.evaluated_sha256.empty()) json["evaluated_sha256"] = summary.evaluated_sha256;
  if (!summary.error.empty()) json["error"] = summary.error;
  if (summary.train_loss) json["train_loss"] = *summary.train_loss;
  if (summary.resumed_from_step) json["resumed_from_step"] = *summary.resumed_from_step;
  if (summary.eval) json["eval"] = json_of(*summary.eval);
  files::write_atomically(
      path, json.dump(2, ' ', false, nlohmann::ordered_json::error_handler_t::replace) + "\n");
}

std::string parameters_sha256(const ParamTable& params) {
  std::vector<const Param*> by_name;
  for (const Param& param : params) by_name.push_back(&param);
  // By name, so that the digest does not depend on the model's order of parameters.
  std::sort(by_name.begin(), by_name.end(),
            [](const Param* a, const Param* b) { return a->name < b->name; });
  Sha256 digest;
  for (const Param* param : by_name) digest.add(param->tensor.detach().cpu());
  return digest.hex();
}

}  // namespace lockstep::train
