#pragma once

#include "coord/savers/saver_callback.h"

namespace lockstep::coord {

/// Saver of each sample as <save_name>.json: {"key": value}. Tensors become nested lists, a single
/// text a text, nested maps objects. Numbers that JSON lacks (NaN, infinities) become null. The
/// file appears when it is complete.
class PredictionSaver : public SaverCallback {
 public:
  using SaverCallback::SaverCallback;
  std::string stores_as() const override { return files_ending_in(".json"); }

 protected:
  void save_sample(const DataMap& sample) override;
};

}  // namespace lockstep::coord
