#include <functional>
#include <map>

#include "base/error.h"
#include "optim/elementwise.h"
#include "optim/fused.h"

namespace lockstep::optim {
namespace {

using Make = std::unique_ptr<Optimizer> (*)(const OptimizerOptions&, std::vector<FlatBuffer>&,
                                            const ParamTable&);

template <typename Kind>
std::unique_ptr<Optimizer> make(const OptimizerOptions& options, std::vector<FlatBuffer>& buffers,
                                const ParamTable& params) {
  return std::make_unique<Kind>(options, buffers, params);
}

/// Returns the factory of a type. Some values select a simpler rule.
Make maker_of(const OptimizerOptions& options) {
  // Without momentum no slot is needed.
  if (options.type == "momentum" && options.momentum == 0) return make<FusedSgd>;
  // A square root instead of pow(): faster, and vectorised.
  if (options.type == "ftrl" && options.ftrl_learning_rate_power == -0.5)
    return make<Elementwise<rules::FtrlOfRoot>>;
  static const std::map<std::string, Make> makers{{"sgd", make<FusedSgd>},
                                                  {"momentum", make<FusedMomentum>},
                                                  {"adam", make<FusedAdam>},
                                                  {"adamw", make<FusedAdam>},
                                                  {"adadelta", make<Elementwise<rules::Adadelta>>},
                                                  {"adagrad", make<Elementwise<rules::Adagrad>>},
                                                  {"ftrl", make<Elementwise<rules::Ftrl>>},
                                                  {"rmsprop", make<Elementwise<rules::RmsProp>>},
                                                  {"lion", make<Elementwise<rules::Lion>>}};
  const auto found = makers.find(options.type);
  check(found != makers.end(), "the reader lets only known optimizers pass");
  return found->second;
}

}  // namespace

std::unique_ptr<Optimizer> make_optimizer(const OptimizerOptions& options,
                                          std::vector<FlatBuffer>& buffers,
                                          const ParamTable& params) {
  return maker_of(options)(options, buffers, params);
}

}  // namespace lockstep::optim
