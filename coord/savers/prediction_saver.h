#pragma once

#include "coord/savers/saver_callback.h"

namespace lockstep::coord {

/// Saves each sample as <save_name>.json: {"key": value}, tensors as nested lists, a single text as
/// a text, nested maps as objects; numbers that JSON does not know (NaN, infinities) as null. The
/// file appears when it is whole.
class PredictionSaver : public SaverCallback {
 public:
  using SaverCallback::SaverCallback;
  std::string stores_as() const override { return files_ending_in(".json"); }

 protected:
  void save_sample(const DataMap& sample) override;
};

}  // namespace lockstep::coord
