#include "daemon/plan/measured_job.h"

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <filesystem>

#include <ATen/ops/ones.h>
#include <ATen/ops/zeros_like.h>
#include <fmt/format.h>
#include <unistd.h>

#include "base/error.h"
#include "base/process/proc.h"
#include "daemon/run/find_data.h"
#include "daemon/run/training_context.h"
#include "dist/bucket/buckets.h"
#include "dist/self_communicator.h"
#include "train/step/trainer.h"
#include "train/sync/share_weights.h"

namespace lockstep::daemon {
namespace {

constexpr int kWarmSteps = 2, kLeastSteps = 5, kMostSteps = 200;
constexpr double kTimedSeconds = 1;  // at least, while there are steps
constexpr int64_t kProbeBytes = 64 << 20;

double seconds_of(const auto& body) {
  const auto start = std::chrono::steady_clock::now();
  body();
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

double median(std::vector<double> values) {
  const auto middle = values.begin() + static_cast<long>(values.size() / 2);
  std::nth_element(values.begin(), middle, values.end());
  return *middle;
}

/// A context of one rank with so many samples a batch.
struct Alone {
  RunConfig config;
  dist::SelfCommunicator comm;
  std::unique_ptr<TrainingContext> context;

  Alone(const RunConfig& run, int64_t batch) : config(run) {
    config.data.batch_size_per_rank.reset();
    config.data.global_batch_size = batch;
    const FoundData found = find_data(config.data, comm);
    context = std::make_unique<TrainingContext>(config, comm, comm, comm, found);
  }
};

ComputeCost measure(Alone& alone) {
  TrainingContext& context = *alone.context;
  const train::RateSchedule rates(alone.config.optimizer, context.recipe.timeline(),
                                  context.total_steps());
  const train::TrainerParts parts{.control = context.control,
                                  .loader = context.loader,
                                  .model = *context.model,
                                  .flat_params = context.flat_params,
                                  .reducer = context.reducer,
                                  .optimizer = *context.optimizer,
                                  .recipe = context.recipe,
                                  .rates = rates,
                                  .loss = context.loss,
                                  .clock = context.clock,
                                  .bucket_bytes = alone.config.sync.bucket_bytes,
                                  .clip = alone.config.optimizer.clip,
                                  .loss_scale = &context.loss_scale,
                                  .elastic = alone.config.run.is_elastic(),
                                  .max_skipped_samples = alone.config.data.max_skipped,
                                  .ema = &context.ema};
  train::Trainer trainer(parts, alone.config.train);
  std::vector<double> before, backward, update, after;
  const int64_t num_steps = std::min<int64_t>(context.total_steps(), kWarmSteps + kMostSteps);
  const int64_t num_warm = std::min<int64_t>(kWarmSteps, num_steps - 1);
  double timed_s = 0;
  for (int64_t i = 0; i < num_steps; ++i) {
    if (timed_s > kTimedSeconds && before.size() >= kLeastSteps) break;
    const metrics::PhaseSeconds s = trainer.step(train::Votes()).phases;
    if (i < num_warm) continue;
    timed_s += s.sum();
    before.push_back(s.data + s.modifier + s.forward);
    backward.push_back(s.backward);
    update.push_back(s.optimizer);
    after.push_back(s.allreduce + s.other);
  }
  return {median(before), median(backward), median(update), median(after)};
}

double bytes_of_save(TrainingContext& context) {
  double bytes = 0;
  for (const StateEntry& entry : context.state())
    bytes += entry.tensor.defined() ? static_cast<double>(entry.tensor.nbytes())
             : entry.text           ? static_cast<double>(entry.text->size())
                                    : 0;
  return bytes;
}

/// As ranks of one host would, if its shared memory holds them.
bool share_weights_on_one_host(Alone& alone) {
  TrainingContext& context = *alone.context;
  return train::why_own_copies({alone.config.sync, *context.model, context.flat_params,
                                context.recipe, alone.comm, alone.comm, dist::ProcessInfo{},
                                /*has_users_hooks=*/!alone.config.hooks.empty()})
      .empty();
}

void describe(Alone& alone, MeasuredJob* job) {
  TrainingContext& context = *alone.context;
  const RunConfig& config = alone.config;
  const auto& buffers = context.flat_params.buffers();
  for (const dist::Bucket& bucket : dist::cut_into_buckets(buffers, config.sync.bucket_bytes)) {
    const int64_t item = config.sync.comm_dtype == "fp32"
                             ? static_cast<int64_t>(buffers[bucket.buffer].values_E.element_size())
                             : 2;
    job->dense.bucket_bytes.push_back(bucket.num_elements() * item);
    job->dense.item_bytes = static_cast<double>(item);
  }
  job->dense.overlaps = config.sync.overlap != "false";
  job->dense.shards_optimizer = config.sync.shard_optimizer;
  job->dense.has_window = config.sync.shared_window;
  job->dense.shares_weights = share_weights_on_one_host(alone);
  job->dense.rank_memory_bytes = resident_bytes();
  job->dense.slot_bytes = static_cast<double>(context.optimizer->slot_bytes());
  for (const FlatBuffer& buffer : buffers)
    job->dense.weight_bytes += static_cast<double>(buffer.values_E.nbytes());
  job->dense.save_bytes = bytes_of_save(context);
  if (config.checkpoint.enabled) {
    job->dense.save_every_steps = config.checkpoint.save_checkpoints_steps;
    if (config.checkpoint.save_checkpoints_secs)
      job->dense.save_every_s = static_cast<double>(*config.checkpoint.save_checkpoints_secs);
  }
  const int64_t last = std::max<int64_t>(0, context.total_steps() - 1);
  job->final_sparsity = context.recipe.target_sparsity_at(last);
  if (config.sync.sparse_allreduce != "never")
    job->final_kept_share = 1 - job->final_sparsity *
                                    static_cast<double>(context.num_prunable_weights()) /
                                    static_cast<double>(context.num_parameters());
}

std::filesystem::path nearest_folder(std::filesystem::path path) {
  std::error_code ignored;
  path = std::filesystem::absolute(path);
  while (!std::filesystem::is_directory(path, ignored) && path.has_relative_path())
    path = path.parent_path();
  return path;
}

}  // namespace

MeasuredJob measure_job(const RunConfig& config, int max_ranks) {
  MeasuredJob job;
  const int64_t large = config.data.global_batch(1);
  if (config.data.global_batch_size) job.dense.global_batch = large;
  const int64_t fewest = config.data.global_batch_size ? large / max_ranks : large / 2;
  const int64_t small = std::clamp<int64_t>(fewest, 1, std::max<int64_t>(1, large / 2));
  {
    Alone alone(config, small);
    job.dense.small = {static_cast<double>(small), measure(alone)};
  }
  Alone alone(config, large);
  job.dense.large = {static_cast<double>(large), measure(alone)};
  // Fewer samples take no longer: what says so is noise.
  ComputeCost& few = job.dense.small.cost;
  const ComputeCost& many = job.dense.large.cost;
  few = {std::min(few.before_s, many.before_s), std::min(few.backward_s, many.backward_s),
         std::min(few.update_s, many.update_s), std::min(few.after_s, many.after_s)};
  describe(alone, &job);
  return job;
}

double measure_memory_bytes_s() {
  const at::Tensor from = at::ones({kProbeBytes}, at::kByte), to = at::zeros_like(from);
  std::vector<double> seconds;
  for (int i = 0; i < 5; ++i) seconds.push_back(seconds_of([&] { to.copy_(from); }));
  return 2 * static_cast<double>(kProbeBytes) / median(seconds);
}

double measure_disk_bytes_s(const std::string& folder) {
  std::string name = (nearest_folder(folder) / ".lockstep-disk-XXXXXX").string();
  const int file = ::mkstemp(name.data());
  const auto refuse = [&] {
    throw Error(ExitCode::kCannotCreate, "plan",
                fmt::format("cannot write 64 MiB into {} to time its disk: give --disk-mbyte-s",
                            nearest_folder(folder).string()));
  };
  if (file < 0) refuse();
  ::unlink(name.c_str());
  const std::vector<char> bytes(1 << 20, 'x');
  bool is_written = true;
  const double seconds = seconds_of([&] {
    for (int64_t at = 0; at < kProbeBytes && is_written; at += static_cast<int64_t>(bytes.size()))
      is_written = ::write(file, bytes.data(), bytes.size()) == static_cast<ssize_t>(bytes.size());
    is_written = is_written && ::fsync(file) == 0;
  });
  ::close(file);
  if (!is_written) refuse();
  return static_cast<double>(kProbeBytes) / seconds;
}

}  // namespace lockstep::daemon
