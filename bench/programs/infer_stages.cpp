// A whole inference of images: reading, network and a saver of predictions, staged or in turn.
//   infer_stages MODEL.pt SECTION FOLDER BATCH THREADS staged|in_turn
// SECTION: of a data set, YAML in flow style. Predictions go to FOLDER. Prints the seconds of an
// iteration, behind the first ones: of all, then those that feed, network and callbacks took by
// themselves. bench/inference asks it; its peer is bench/peers/infer_images.py.

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include <ATen/Context.h>
#include <ATen/Parallel.h>
#include <yaml-cpp/yaml.h>

#include "base/error.h"
#include "base/files/files.h"
#include "coord/tf_records_saver.h"
#include "data/dataset_table.h"
#include "infer/data_feeder.h"
#include "infer/inferer.h"
#include "infer/saved_model.h"

namespace lockstep {
namespace {

using Clock = std::chrono::steady_clock;
constexpr int64_t kWarm = 5;  // iterations that do not count: the engine compiles in the first

double seconds_since(Clock::time_point start) {
  return std::chrono::duration<double>(Clock::now() - start).count();
}

/// Seconds of the iterations that count; each stage writes its own.
struct Times {
  double feed = 0, network = 0, callbacks = 0;
  Clock::time_point begin, end;
  int64_t num_counted = 0;
};

class TimedFeeder final : public infer::DataFeeder {
 public:
  TimedFeeder(std::unique_ptr<data::Dataset> dataset, int64_t batch_size, Times* times)
      : feeder_(std::move(dataset), batch_size), times_(*times) {}

  std::optional<coord::DataMap> next() override {
    const Clock::time_point start = Clock::now();
    std::optional<coord::DataMap> feed = feeder_.next();
    if (feed && num_read_++ >= kWarm) times_.feed += seconds_since(start);
    return feed;
  }
  std::optional<int64_t> num_iterations() const override { return feeder_.num_iterations(); }

 private:
  infer::DatasetFeeder feeder_;
  Times& times_;
  int64_t num_read_ = 0;
};

class TimedSaver final : public coord::TfRecordsSaverCallback {
 public:
  explicit TimedSaver(Times* times)
      : TfRecordsSaverCallback({.saver = {.keys = {"logits"}}}), times_(*times) {}

  std::optional<coord::DataMap> on_iteration_end(const coord::DataMap& data) override {
    const Clock::time_point start = Clock::now();
    std::optional<coord::DataMap> made = TfRecordsSaverCallback::on_iteration_end(data);
    const coord::IterationInfo& info = context().iteration_info;
    times_.end = Clock::now();
    if (info.iteration_number < kWarm) {
      times_.begin = times_.end;
      return made;
    }
    times_.callbacks += seconds_since(start);
    times_.network += info.execution_time;
    ++times_.num_counted;
    return made;
  }

 private:
  Times& times_;
};

std::unique_ptr<data::Dataset> open_section(const std::string& section) {
  Diagnostics faults;
  const YamlDocument document = YamlDocument::parse("section", section, &faults);
  const data::DatasetOptions options = data::read_dataset_options(
      ConfigReader(document.root(), "feed", document, &faults), data::DatasetUse::kEvaluation);
  faults.throw_if_any("config");
  return options.make({});
}

void measure(const std::vector<std::string>& words) {
  const infer::LoadedNetwork network{
      .source = words[0],
      .nodes = {{{.name = "inputs",
                  .shape = {infer::IoNode::kAny, 3, infer::IoNode::kAny, infer::IoNode::kAny}}},
                {{.name = "logits", .shape = {infer::IoNode::kAny, infer::IoNode::kAny}}}},
      .module = infer::load_torchscript(files::read(words[0]), words[0])};
  Times times;
  TimedFeeder feeder(open_section(words[1]), std::stoll(words[3]), &times);
  std::vector<coord::NamedCallback> callbacks;
  callbacks.push_back({"saver", std::make_unique<TimedSaver>(&times)});
  coord::CallbacksHandler handler(std::move(callbacks), {"inputs", "_targets", "logits"},
                                  {.mode = coord::Mode::kInfer, .log_dir = words[2]});
  infer::Inferer inferer(network, at::kCPU, feeder, handler,
                         {.use_multiprocessing = words[5] == "staged"});
  (void)inferer.run();
  const auto num = static_cast<double>(std::max<int64_t>(1, times.num_counted));
  std::printf("%.9f %.9f %.9f %.9f\n",
              std::chrono::duration<double>(times.end - times.begin).count() / num,
              times.feed / num, times.network / num, times.callbacks / num);
}

}  // namespace
}  // namespace lockstep

int main(int argc, char** argv) {
  if (argc != 7) {
    std::fputs("usage: infer_stages MODEL.pt SECTION FOLDER BATCH THREADS staged|in_turn\n",
               stderr);
    return 64;
  }
  at::set_num_threads(std::atoi(argv[5]));
  at::globalContext().setFlushDenormal(true);
  try {
    lockstep::measure({argv + 1, argv + argc});
  } catch (const std::exception& fault) {
    std::fprintf(stderr, "%s\n", fault.what());
    return 70;
  }
  return 0;
}
