#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "base/device/device_graph.h"
#include "data/loader.h"
#include "dist/reducer/gradient_reducer.h"
#include "model/model.h"
#include "train/gradients/batch_statistics.h"
#include "train/gradients/training_pass.h"

namespace lockstep::train {

/// A CUDA graph of a rank's forward and backward pass (train.cuda_graphs), which is recorded here
/// (captured, in CUDA's word): the host launches it by one call instead of some hundred, and where
/// kernels are short a step then takes as long as they do.
///
/// What changes from step to step is copied to where the recording reads it: samples, targets, and
/// what losses are weighted with. It is made once most passes so far, and kPassesBefore more
/// than others, were over samples of one shape, and holds for this shape; others, as the last of an
/// epoch, run as ever. Not recorded are passes in which a number of the host counts (ForwardPass:
/// dropout), that a layer hook watches (quantization), and those beside which buckets may travel,
/// since no hook of autograd is called in a replay.
///
/// If the device refuses, rank 0 says why, once, and passes run as ever. The bits are those of
/// passes that are not recorded, where the device takes the same kernels.
class RecordedPass {
 public:
  static constexpr int64_t kPassesBefore = 3;
  static constexpr int64_t kMost = 12;  ///< after so many of others the usual shape is another one

  struct Parts {
    TrainingPass& pass;
    model::Model& model;
    dist::GradientReducer& reducer;
    BatchStatistics& statistics;
    at::Device device;   ///< of the weights
    bool tells = false;  ///< what happens to the log
  };
  RecordedPass(const Parts& parts, std::shared_ptr<DeviceGraph> graph)
      : parts_(parts), graph_(std::move(graph)) {}

  /// The pass over these samples, the update's last, from the recording: made now, if it is due;
  /// prepare_for_backward() is called. Nothing where it is not recorded: then nothing was done.
  std::optional<LossSum> run(const data::Samples& samples, double weight,
                             const dist::StepRequests& requests);

  /// Parameters lie elsewhere now, or others are trained.
  void forget();

 private:
  /// What the recording depends on, beside parameters.
  struct Shape {
    std::vector<int64_t> inputs, targets;
    at::ScalarType inputs_type = at::kFloat, targets_type = at::kLong;
    bool batch_norm_frozen = false;
    bool operator==(const Shape&) const = default;
  };
  struct Recorded {
    Shape shape;
    PassInputs inputs;
    LossSum loss;
    model::SeenStatistics seen;
  };

  bool is_recordable() const;
  void count(const Shape& shape);
  Shape shape_of(const data::Samples& samples) const;
  void copy_in(const data::Samples& samples, double weight);
  bool record(const data::Samples& samples, double weight, const Shape& shape);
  std::optional<LossSum> replay(const data::Samples& samples, double weight,
                                const dist::StepRequests& requests);

  Parts parts_;
  std::shared_ptr<DeviceGraph> graph_;  // null: the device has refused
  std::unique_ptr<Recorded> recorded_;
  Shape usual_;           // of most passes
  int64_t num_more_ = 0;  // passes of it than of others, at most kMost
};

}  // namespace lockstep::train
