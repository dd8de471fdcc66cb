#include "recal/modifiers/epoch_range.h"

#include <fmt/format.h>

#include "recal/modifiers/modifier_fields.h"
#include "recal/timeline/timeline_builder.h"

namespace lockstep::recal {

std::unique_ptr<Modifier> EpochRange::read(YamlFields* in, Place place) {
  Window window;
  read_window(in, &window);
  in->done();
  return std::make_unique<EpochRange>(window, in->path(), std::move(place));
}

std::string EpochRange::summary() const { return "trains to " + window_.end->sentence_text(); }

void EpochRange::contribute(TimelineBuilder* builder) const {
  const std::optional<StepRange> steps = builder->steps_of(window_);
  if (steps && steps->first > 0)
    builder->note(fmt::format("its start at {} changes nothing: a run begins at step 0",
                              window_.start->sentence_text()));
}

}  // namespace lockstep::recal
