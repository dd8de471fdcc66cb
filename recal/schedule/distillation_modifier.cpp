#include <string>

#include <fmt/format.h>
#include <yaml-cpp/yaml.h>

#include "recal/schedule/modifier_fields.h"
#include "recal/schedule/modifier_table.h"
#include "recal/schedule/timeline_builder.h"

// DistillationModifier: adds the outputs of a teacher to the loss.
namespace lockstep::recal {
namespace {

struct DistillationOptions {
  Window window;  ///< open bounds: those of the run
  double hardness = 0.5;
  double temperature = 2.0;
  bool names_outputs = false;  ///< the recipe chooses among several outputs
};

/// Mixes the loss with the divergence from a teacher's outputs (Distillation). The run file names
/// the teacher.
class DistillationModifier final : public ModifierWith<DistillationOptions> {
 public:
  using ModifierWith::ModifierWith;

  void place_in(StageSpan* stage) override { stage->place_open(&options_.window); }
  std::string summary() const override {
    return fmt::format("distils, hardness {}, temperature {}", options_.hardness,
                       options_.temperature);
  }
  void compile(TimelineBuilder* builder) const override {
    const auto& [start, end] = options_.window;
    if (start && end && !builder->steps_of(options_.window)) return;
    const int64_t first = start ? builder->step_of(*start) : 0;
    const int64_t last = end && !end->is_run_end() ? builder->step_of(*end) : INT64_MAX;
    if (first >= last) return;
    // An action without effect: a modifier without any would count as one with too short a window.
    if (builder->inputs().params && !is_on(builder))
      return builder->add(first, ActionKind::kStopDistilling, 0);
    if (options_.names_outputs)
      builder->note("distill_output_keys has no effect: a network has one output here");
    builder->claim_loss({first, last});
    builder->add(first, ActionKind::kSetTemperature, options_.temperature);
    builder->add(first, ActionKind::kDistill, options_.hardness);
    if (last != INT64_MAX) builder->add(last, ActionKind::kStopDistilling, 0);
  }

 private:
  /// False if this run has no teacher, with the reason as a fault or warning.
  bool is_on(TimelineBuilder* builder) const {
    switch (builder->inputs().teacher) {
      case TeacherChoice::kGiven:
        return true;
      case TeacherChoice::kDisabled:
        builder->warn("train.distill_teacher is disable: the loss is that of the task alone");
        return false;
      case TeacherChoice::kNoLoss:
        builder->fault(
            fmt::format("{} cannot work in a loop of your own, which computes the loss: "
                        "add the teacher's part there and remove the modifier",
                        tag()));
        return false;
      case TeacherChoice::kNone:
        break;
    }
    builder->fault(fmt::format(
        "{} needs a teacher: set train.distill_teacher in the run file to a checkpoint, a run's "
        "folder, self (a copy of the network at the start) or disable",
        tag()));
    return false;
  }
};

/// Refuses a value other than those that mean "all".
void refuse_keys(ConfigReader* in, std::string_view key, std::string_view why) {
  const YAML::Node node = in->take(key);
  if (node.IsDefined() && !(node.IsSequence() && node.size() == 0))
    in->refuse(key, fmt::format("may only be [] or omitted: {}", why));
}

/// Reads the keys of SparseML's later form, which compares outputs of layers.
void read_later_form(ConfigReader* in) {
  for (const char* key : {"targets", "comparison", "orig_scale", "distill_scale", "transforms"}) {
    if (!is_written(*in, key)) continue;
    in->take(key);
    in->refuse(key,
               "is not supported: outputs of the whole network are compared, by their KL "
               "divergence; use hardness and temperature");
  }
}

}  // namespace

Modifiers read_distillation(ConfigReader* in, const SourceLocation& location) {
  DistillationOptions options;
  read_window(in, &options.window, Bounds::kOptional);
  in->read("hardness", &options.hardness, between(0, 1), "the teacher's share of the loss");
  in->read("temperature", &options.temperature, more_than(0),
           "divides the outputs of both networks before softmax");
  const YAML::Node outputs = in->take("distill_output_keys", "list", "without effect: all outputs");
  options.names_outputs = outputs.IsDefined() && outputs.size() > 0;
  refuse_keys(in, "teacher_input_keys", "the teacher gets the inputs of the network");
  read_minus_one(in, "update_frequency", "the teacher takes part in every step");
  read_logging(in);
  read_later_form(in);
  in->done();
  return one_modifier<DistillationModifier>(options, *in, location);
}

}  // namespace lockstep::recal
