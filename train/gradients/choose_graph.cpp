#include "train/gradients/choose_graph.h"

#include <fmt/format.h>

#include "base/log.h"

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

}  // namespace lockstep::train
