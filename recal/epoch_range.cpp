#include "recal/epoch_range.h"

#include <fmt/format.h>

namespace lockstep::recal {

std::unique_ptr<Modifier> EpochRange::read(YamlFields* in, Place place) {
  EpochRangeOptions options;
  read_window(in, &options.start_epoch, &options.end_epoch);
  in->done();
  return std::make_unique<EpochRange>(options, std::move(place));
}

std::string EpochRange::summary() const {
  return fmt::format("trains to epoch {}", options_.end_epoch.text());
}

void EpochRange::contribute(TimelineBuilder*) const {}  // its window is all it has

}  // namespace lockstep::recal
