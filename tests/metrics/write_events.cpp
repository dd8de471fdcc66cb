// Writes event files for event_oracle.py: a run of 10 steps that is killed, then resumed at step 6
// and run to step 8.
#include <cstdio>
#include <limits>
#include <vector>

#include "metrics/tensorboard/event_file.h"

using lockstep::metrics::EventFile;
using lockstep::metrics::Scalar;

namespace {

void write_steps(EventFile* file, int64_t first, int64_t last, double offset) {
  for (int64_t step = first; step <= last; ++step) {
    const double x = static_cast<double>(step);
    file->add(step, std::vector<Scalar>{
                        {"loss/train", offset + 1 / x}, {"lr", 0.5}, {"sparsity", x / 100}});
  }
}

/// One of each kind at this step; event_oracle.py knows their numbers.
void write_values(EventFile* file, int64_t step) {
  const float infinity = std::numeric_limits<float>::infinity();
  file->add(step, "weights/w",
            lockstep::metrics::histogram_of(
                std::vector<float>{0.5F, -2, 0.25F, 0, 0, 1e-20F, infinity, 3}));
  file->add(step, "weights/none", lockstep::metrics::histogram_of({}));
  const std::vector<uint8_t> pixels{255, 0, 0, 0, 255, 0, 0, 0, 255, 1, 2, 3, 4, 5, 6, 7, 8, 9};
  file->add(step, "inputs/0", lockstep::metrics::image_of(pixels, 2, 3, 3));
  file->add(step, "inputs/1", lockstep::metrics::image_of(std::vector<uint8_t>{7, 9}, 1, 2, 1));
  const std::vector<float> samples{0, 1, 0.5F, -1, -0.5F, 7};
  file->add(step, "sound", lockstep::metrics::audio_of(samples, 8000, 2));
  file->add(step, "run/settings", lockstep::metrics::TextSummary{"```\na=b\n```\n"});
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 2) return std::fputs("usage: write_events FOLDER\n", stderr), 64;
  {
    EventFile first({.folder = argv[1], .node = "n0", .resumed_step = {}});
    write_steps(&first, 1, 10, 0);
    write_values(&first, 10);  // taken back
  }
  EventFile second({.folder = argv[1],
                    .node = "n1",
                    .resumed_step = 6});  // sorts behind the first, as a later time would
  write_steps(&second, 7, 8, 100);
  write_values(&second, 8);
}
