#include "recal/modifiers/modifiers.h"

#include <fmt/format.h>

#include "recal/modifiers/modifier_fields.h"
#include "recal/timeline/timeline_builder.h"

namespace lockstep::recal {
namespace {

/// Sets the length of training: a bound without an action. A later end of another modifier wins. A
/// run always begins at step 0; another start only causes a note.
class EpochRange final : public Modifier {
 public:
  EpochRange(Window window, std::string tag, SourceLocation location)
      : Modifier(std::move(tag), std::move(location)), window_(window) {}

  Window window() const override { return window_; }
  void place_in(StageSpan* stage) override { stage->place(&window_); }
  std::string summary() const override;
  void compile(TimelineBuilder* builder) const override;

 private:
  Window window_;
};

std::string EpochRange::summary() const { return "trains to " + window_.end->sentence_text(); }

void EpochRange::compile(TimelineBuilder* builder) const {
  const std::optional<StepRange> steps = builder->steps_of(window_);
  if (steps && steps->first > 0)
    builder->note(fmt::format("its start at {} changes nothing: a run begins at step 0",
                              window_.start->sentence_text()));
}

}  // namespace

Modifiers read_epoch_range(ConfigReader* in, const SourceLocation& location) {
  Window window;
  read_window(in, &window);
  in->done();
  return one_modifier<EpochRange>(window, *in, location);
}

}  // namespace lockstep::recal
