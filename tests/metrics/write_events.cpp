// Writes event files for event_oracle.py: a run of 10 steps that is killed, then resumed at step 6
// and run to step 8.
#include <cstdio>
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

}  // namespace

int main(int argc, char** argv) {
  if (argc != 2) return std::fputs("usage: write_events FOLDER\n", stderr), 64;
  {
    EventFile first({.folder = argv[1], .node = "n0", .resumed_step = {}});
    write_steps(&first, 1, 10, 0);
  }
  EventFile second({.folder = argv[1],
                    .node = "n1",
                    .resumed_step = 6});  // sorts behind the first, as a later time would
  write_steps(&second, 7, 8, 100);
}
