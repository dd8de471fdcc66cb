#include "train/step/recorded_pass.h"

#include <algorithm>
#include <utility>

#include <ATen/ops/empty.h>
#include <c10/util/Exception.h>
#include <fmt/format.h>
#include <fmt/ranges.h>

#include "base/log.h"
#include "base/tensors/tensor_memory.h"
#include "base/trace.h"

namespace lockstep::train {
namespace {

/// Returns the reason against recording; empty if none is known.
std::string hindrance(const GraphQuestion& question) {
  if (!question.repeats_itself)
    return "nothing says that each pass of this network and loss does the same work "
           "(ModelType::repeats_itself, LossType::repeats_itself)";
  if (question.model.reads_forward_pass()) return "the network drops numbers at random";
  if (question.model.has_layer_hook()) return "the recipe quantizes";
  if (question.steps_alone) return "each rank learns alone (sync.sync_replicas: false)";
  if (question.sums_batch_norm && question.gradients.world_size() > 1)
    return "batches are normalised over all ranks, by messages within a pass (train.batch_norm: "
           "sync)";
  if (question.keeps_tensors) return "a callback or hook reads what goes through the network";
  if (question.memory_at_start)
    return "the GPU's memory is taken at the start (section gpu), and a recording needs its own";
  return "";
}

}  // namespace

std::shared_ptr<DeviceGraph> choose_graph(const GraphQuestion& question) {
  if (question.wanted == "off") return nullptr;
  std::shared_ptr<DeviceGraph> graph = question.gradients.make_graph();
  const std::string why_not = graph == nullptr ? "" : hindrance(question);
  if (why_not.empty()) return graph;
  if (question.wanted == "on" && question.gradients.rank() == 0)
    log::warning("train", fmt::format("train.cuda_graphs: on has no effect, as {}", why_not));
  return nullptr;
}

// Capture and replay of one pass. Kernels of a graph use fixed addresses, so inputs are copied into
// recorded_->inputs, and any move of parameters discards the graph (forget()).

namespace {

std::string reason_of(const std::exception& error) {
  const auto* const of_libtorch = dynamic_cast<const c10::Error*>(&error);
  return of_libtorch != nullptr ? of_libtorch->what_without_backtrace() : error.what();
}

}  // namespace

bool RecordedPass::is_recordable() const {
  return graph_ != nullptr && !parts_.model.reads_forward_pass() &&
         !parts_.model.has_layer_hook() && !parts_.reducer.may_send_in_backward();
}

RecordedPass::Shape RecordedPass::shape_of(const data::Samples& samples) const {
  return {.inputs = samples.inputs_BX.sizes().vec(),
          .targets = samples.targets_BY.sizes().vec(),
          .inputs_type = samples.inputs_BX.scalar_type(),
          .targets_type = samples.targets_BY.scalar_type(),
          .batch_norm_frozen = parts_.model.batch_norms().is_frozen()};
}

/// Discards the graph. The next passes run normally, so that one-time work, such as allocations, is
/// done before the next capture.
void RecordedPass::forget() {
  recorded_.reset();
  if (graph_ != nullptr) graph_->forget();
  num_more_ = 0;
}

/// Counts shapes by Boyer and Moore's vote: the usual shape is replaced after as many others.
void RecordedPass::count(const Shape& shape) {
  if (num_more_ == 0) usual_ = shape;
  num_more_ = shape == usual_ ? std::min(num_more_ + 1, kMost) : num_more_ - 1;
}

std::optional<LossSum> RecordedPass::run(const data::Samples& samples, double weight,
                                         const dist::StepRequests& requests) {
  const Shape shape = shape_of(samples);
  if (!is_recordable()) {
    parts_.reducer.follow_backward(true);
    forget();
    return std::nullopt;
  }
  count(shape);
  if (recorded_ != nullptr && recorded_->shape == shape) return replay(samples, weight, requests);
  // The first passes also warm up kernels and memory, which a capture cannot do.
  if (!(shape == usual_) || num_more_ <= kPassesBefore || samples.targets_BY.size(0) == 0)
    return std::nullopt;
  if (!record(samples, weight, shape)) return std::nullopt;
  return replay(samples, weight, requests);
}

void RecordedPass::copy_in(const data::Samples& samples, double weight) {
  copy_to_device(samples.inputs_BX, recorded_->inputs.inputs_BX);
  copy_to_device(samples.targets_BY, recorded_->inputs.targets_BY);
  recorded_->inputs.weight.fill_(weight);
}

bool RecordedPass::record(const data::Samples& samples, double weight, const Shape& shape) {
  // Autograd's accumulator nodes run on the stream on which they were created. So those of earlier
  // passes must be gone.
  parts_.reducer.follow_backward(false);
  parts_.reducer.settle();
  recorded_ = std::make_unique<Recorded>();
  recorded_->shape = shape;
  const auto room_for = [&](const at::Tensor& values) {
    return at::empty(values.sizes(), values.options().device(parts_.device));
  };
  recorded_->inputs = {.inputs_BX = room_for(samples.inputs_BX),
                       .targets_BY = room_for(samples.targets_BY),
                       .weight = at::empty({}, at::TensorOptions(parts_.device))};
  copy_in(samples, weight);
  try {
    graph_->capture([this] {
      metrics::PhaseSeconds unused;
      recorded_->loss =
          parts_.pass.run(recorded_->inputs, std::nullopt, HostWaits::kForNothing, &unused);
      if (!parts_.model.batch_norms().empty()) recorded_->seen = parts_.statistics.take_seen();
    });
  } catch (const std::exception& error) {
    if (!parts_.model.batch_norms().empty()) (void)parts_.statistics.take_seen();
    // The device refused once; no further attempt.
    graph_.reset();
    forget();
    if (parts_.tells)
      log::warning("train",
                   fmt::format("the GPU cannot record training passes, so they run without "
                               "train.cuda_graphs: {}",
                               reason_of(error)));
    return false;
  }
  if (parts_.tells)
    log::info("train", fmt::format("training passes over [{}] are recorded (train.cuda_graphs)",
                                   fmt::join(shape.inputs, ", ")));
  return true;
}

std::optional<LossSum> RecordedPass::replay(const data::Samples& samples, double weight,
                                            const dist::StepRequests& requests) {
  const trace::Span span("forward and backward");
  // Waits for the gather of weights, which the graph reads.
  parts_.reducer.settle();
  parts_.reducer.prepare_for_backward(requests);
  copy_in(samples, weight);
  graph_->replay();
  if (!parts_.model.batch_norms().empty()) parts_.statistics.give_seen(recorded_->seen);
  return recorded_->loss;
}

}  // namespace lockstep::train
