#include "model/model.h"

#include "base/error.h"

namespace lockstep::model {

at::Tensor Model::own_loss(const at::Tensor& /*inputs_BX*/, const at::Tensor& /*targets_BY*/) {
  throw Error(ExitCode::kConfig, "model",
              "this network has no loss of its own: train.loss own is for networks in Python; take "
              "auto");
}

}  // namespace lockstep::model
