// Callbacks between iterations: bench/callbacks [PYTHON]
//
// The time that ten empty callbacks take in an iteration, that of one in Python (which reads two
// tensors and gives one back, in the main thread as in training and in a thread of its own as in
// inference), and that of a TFRecord saver per sample of 3 kB. With a Python that has TensorFlow,
// else that of .venv-test: the same samples through its TFRecordWriter
// (bench/peers/tfrecord_writer.py), in turn, in wall time; both files must hold equally many
// bytes.
#include <unistd.h>

#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include <ATen/ATen.h>
#include <fmt/format.h>

#include "base/error.h"
#include "bench/programs/pairs.h"
#include "coord/callbacks_handler.h"
#include "coord/tf_records_saver.h"
#include "python/python_types.h"

namespace lockstep::bench {
namespace {

using coord::CallbacksHandler;
using coord::DataMap;
using coord::NamedCallback;

/// Reads one key, makes nothing.
class Empty : public coord::Callback {
 public:
  std::vector<std::string> incoming_keys() const override { return {"logits"}; }
  std::optional<DataMap> on_iteration_end(const DataMap&) override { return DataMap(); }
};

/// Microseconds of an iteration, on this thread.
double iteration_us(CallbacksHandler& handler) {
  constexpr int kNumIterations = 20'000;
  DataMap data;
  data.put("logits", at::zeros({32, 10}));
  data.put("labels", at::zeros({32}));
  const double ms = median_ms(9, {}, [&] {
    for (int i = 0; i < kNumIterations; ++i) {
      handler.on_iteration_start();
      handler.on_iteration_end(data);
    }
  });
  return ms * 1000 / kNumIterations;
}

void time_empty_callbacks() {
  constexpr double kGoalUs = 5;
  std::vector<NamedCallback> callbacks;
  for (int i = 0; i < 10; ++i)
    callbacks.push_back({fmt::format("empty{}", i), std::make_unique<Empty>()});
  CallbacksHandler handler(std::move(callbacks), {"logits", "labels"}, {.log_dir = "log"});
  const double us = iteration_us(handler);
  fmt::print("ten empty callbacks             {:>8.2f} us an iteration  goal <= {}: {}\n", us,
             kGoalUs, met(us <= kGoalUs));
}

void time_python_callback() {
  static constexpr double kGoalUs = 60;
  std::vector<NamedCallback> callbacks;
  const python::PythonArgs args{.path = LOCKSTEP_SOURCE_DIR "/bench/peers/passing_callback.py",
                                .name = "Passing"};
  callbacks.push_back({"passing", python::make_python_callback(args, "callbacks")});
  CallbacksHandler handler(std::move(callbacks), {"logits", "labels"}, {.log_dir = "log"});
  const auto told = [](const char* where, double us) {
    fmt::print("a callback in Python, {:<10} {:>8.2f} us an iteration  goal <= {}: {}\n", where, us,
               kGoalUs, met(us <= kGoalUs));
  };
  told("training", iteration_us(handler));
  std::thread([&] { told("inference", iteration_us(handler)); }).join();
}

constexpr int64_t kNumSamples = 20'000, kBatch = 50, kNumFloats = 750;

/// bench/peers/tfrecord_writer.py makes the same.
DataMap batch_of(int64_t first) {
  DataMap batch;
  batch.put("x", at::arange(kNumFloats, at::kFloat).expand({kBatch, kNumFloats}).contiguous());
  batch.put("label", at::arange(first, first + kBatch));
  return batch;
}

double save_s(const std::filesystem::path& folder) {
  coord::TfRecordsSaverOptions options{.max_samples_per_file = kNumSamples};
  options.saver.keys = {"x", "label"};
  std::vector<NamedCallback> callbacks;
  callbacks.push_back({"saver", std::make_unique<coord::TfRecordsSaverCallback>(options)});
  CallbacksHandler handler(std::move(callbacks), options.saver.keys, {.log_dir = folder});
  std::vector<DataMap> batches;
  for (int64_t i = 0; i < kNumSamples; i += kBatch) batches.push_back(batch_of(i));
  const auto start = std::chrono::steady_clock::now();
  handler.begin();
  for (const DataMap& batch : batches) handler.on_iteration_end(batch);
  handler.end();
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

/// Seconds that the peer prints.
double peer_s(const std::string& python, const std::filesystem::path& folder) {
  const std::string command =
      fmt::format("TF_CPP_MIN_LOG_LEVEL=3 '{}' '{}/bench/peers/tfrecord_writer.py' '{}' {} {}",
                  python, LOCKSTEP_SOURCE_DIR, folder.string(), kNumSamples, kNumFloats);
  FILE* const pipe = ::popen(command.c_str(), "r");
  check(pipe != nullptr, "popen");
  double seconds = 0;
  const int num_read = std::fscanf(pipe, "%lf", &seconds);
  if (::pclose(pipe) != 0 || num_read != 1)
    throw Error(ExitCode::kUnavailable, "bench", "the peer failed: " + command);
  return seconds;
}

int64_t bytes_in(const std::filesystem::path& folder) {
  int64_t sum = 0;
  for (const auto& entry : std::filesystem::directory_iterator(folder))
    sum += static_cast<int64_t>(entry.file_size());
  return sum;
}

void time_saver(const std::string& python) {
  constexpr double kGoalRatio = 4;
  constexpr int kNumPairs = 5;
  const std::filesystem::path folder =
      std::filesystem::temp_directory_path() / fmt::format("lockstep-bench-{}", ::getpid());
  const std::filesystem::path own = folder / "own", other = folder / "peer";
  std::vector<double> own_us, ratios;
  for (int i = 0; i < kNumPairs; ++i) {
    std::filesystem::remove_all(folder);
    std::filesystem::create_directories(other);
    const double seconds = save_s(own);
    own_us.push_back(seconds * 1e6 / kNumSamples);
    if (python.empty()) continue;
    ratios.push_back(peer_s(python, other) / seconds);
    check(bytes_in(own) == bytes_in(other), "both write the same");
  }
  std::filesystem::remove_all(folder);
  fmt::print("TFRecord saver, 3 kB samples    {:>8.2f} us a sample", median(own_us));
  if (!ratios.empty())
    fmt::print("  Python's TFRecordWriter takes {:.2f}x  goal >= {}x: {}", median(ratios),
               kGoalRatio, met(median(ratios) >= kGoalRatio));
  fmt::print("\n");
}

}  // namespace
}  // namespace lockstep::bench

int main(int argc, char** argv) {
  return lockstep::bench::exit_code_of([&] {
    lockstep::bench::time_empty_callbacks();
    const std::filesystem::path known(LOCKSTEP_SOURCE_DIR "/.venv-test/bin/python");
    std::string python;
    if (std::filesystem::exists(known)) python = known.string();
    if (argc > 1) python = argv[1];
    lockstep::bench::time_saver(python);
    lockstep::bench::time_python_callback();
  });
}
