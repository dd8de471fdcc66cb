// The caller's side of a save: snapshot, start the thread, wait. The thread's side is run(), which
// takes the lock and drives a SaveJob.
#include "checkpoint/save/saver.h"

#include <algorithm>
#include <filesystem>
#include <system_error>

#include <fmt/format.h>

#include "base/files/files.h"
#include "base/log.h"
#include "base/trace.h"
#include "checkpoint/format/checkpoint_files.h"
#include "checkpoint/format/rank_faults.h"
#include "checkpoint/save/checkpoint_folder.h"
#include "checkpoint/save/save_job.h"
#include "checkpoint/save/save_plan.h"

namespace lockstep::checkpoint {
namespace {

using Clock = std::chrono::steady_clock;

/// Bytes of state that begin() copies, so that training need not wait for staging.
constexpr int64_t kMostToCopy = int64_t{16} << 20;

// Interval at which the while-waiting hook is called.
constexpr std::chrono::milliseconds kLook{50};

double seconds_since(Clock::time_point start) {
  return std::chrono::duration<double>(Clock::now() - start).count();
}

/// Adds the time of its scope to a counter.
class TimeOf {
 public:
  explicit TimeOf(double* seconds) : seconds_(seconds) {}
  ~TimeOf() { *seconds_ += seconds_since(start_); }
  TimeOf(const TimeOf&) = delete;
  TimeOf& operator=(const TimeOf&) = delete;

 private:
  double* seconds_;
  Clock::time_point start_ = Clock::now();
};

/// Calls `look` repeatedly until the future is ready.
template <typename Future>
void poll_until_ready(const Future& future, const std::function<void()>& look) {
  if (!look) return;
  while (future.wait_for(kLook) != std::future_status::ready) look();
}

void wait_for(StagedCopy& copy) {
  const trace::Span span("copy from the device");
  copy.wait_on_host();
}

/// True for faults of the disk, after which the run may continue without this checkpoint.
bool is_disk_fault(const Error& fault) {
  return fault.code() == ExitCode::kIo || fault.code() == ExitCode::kCannotCreate ||
         fault.code() == ExitCode::kInputMissing;
}

}  // namespace

Saver::Saver(SaverOptions options, dist::Communicator& comm)
    : options_(std::move(options)), comm_(comm) {
  check(options_.keep_checkpoint_max == -1 || options_.keep_checkpoint_max > 0,
        "keep_checkpoint_max is 0 or below -1");
  check(!std::filesystem::path(options_.prefix).filename().empty(), "a checkpoint needs a prefix");
  // Absolute: the process may change its working directory during a save.
  if (!files::is_remote(options_.prefix))
    options_.prefix = std::filesystem::absolute(options_.prefix).string();
  if (!options_.copies_folder.empty())
    options_.copies_folder = std::filesystem::absolute(options_.copies_folder).string();
}

void Saver::keep_from_next_save(int64_t keep_checkpoint_max) {
  check(keep_checkpoint_max == -1 || keep_checkpoint_max > 0,
        "keep_checkpoint_max is 0 or below -1");
  keep_next_ = keep_checkpoint_max;  // the thread of a save in progress reads options_
}

Saver::~Saver() {
  // A hook could throw, which a destructor must not.
  while_waiting_ = {};
  join();
}

void Saver::join() {
  if (is_under_way()) poll_until_ready(result_, while_waiting_);
  if (thread_.joinable()) thread_.join();
}

/// Returns the memory in bytes that this rank's part of such a state takes.
int64_t Saver::bytes_to_stage(const StateList& state) const {
  const std::vector<StoredTensor> pieces = save_pieces(state, 0, options_.sparse);
  const SavePlan plan(pieces, comm_.world_size(), options_.min_cut_bytes);
  return StagedShard::bytes_of(pieces, plan.parts_of(comm_.rank()));
}

void Saver::prepare(const StateList& state) {
  check(!is_under_way() && !prepared_.valid(), "prepare() comes before the first save");
  const int64_t num_bytes = bytes_to_stage(state);
  const int64_t pinned_bytes = stager_ ? Snapshot(state).bytes_on(stager_->device()) : 0;
  // A failure here occurs again, and is reported, when the memory is needed.
  (void)fault_of([&] {
    prepared_ = std::async(std::launch::async, [this, num_bytes, pinned_bytes] {
      (void)fault_of([&] {
        memory_.reserve(num_bytes);
        memory_.touch();
      });
      if (stager_) (void)fault_of([&] { stager_->prepare(pinned_bytes); });
    });
  });
}

void Saver::begin(const StateList& state, int64_t step) {
  blocked_s_ = 0;
  began_ = Clock::now();
  bool copies_little = true;
  {
    const TimeOf blocked(&blocked_s_);
    const auto snapshot = std::make_shared<Snapshot>(state);
    stage(snapshot.get());
    // With a stager copy_all() has copied everything already.
    copies_little = copy_ != nullptr || snapshot->bytes_that_may_change() <= kMostToCopy;
    if (copy_ == nullptr && copies_little) snapshot->copy_what_may_change();
    start(snapshot, {.value = step});
  }
  // Staging copies only what this rank writes, into memory that is used again. A copy of everything
  // would take new memory at each save.
  if (!copies_little) wait_until_staged();
}

void Saver::stage(Snapshot* snapshot) {
  check(!is_under_way(), "one save at a time: wait() for the previous one");
  copy_.reset();
  if (stager_ == nullptr) return;
  // The background thread uses the stager too.
  if (prepared_.valid()) prepared_.get();
  if (const auto fault =
          fault_of([&] { stager_->prepare(snapshot->bytes_on(stager_->device())); })) {
    log::warning("checkpoint", fmt::format("each update during a save waits for the device's copy: "
                                           "the state cannot be staged in pinned memory ({})",
                                           plain_text(*fault)));
    stager_.reset();
    return;
  }
  copy_ = snapshot->copy_all(*stager_);
}

SaveResult Saver::save(const StateList& state, int64_t step) {
  return save_now(state, {.value = step});
}

SaveResult Saver::save_as_next(const StateList& state, int64_t above) {
  return save_now(state, {.value = above, .is_next = true});
}

SaveResult Saver::save_now(const StateList& state, Number number) {
  began_ = Clock::now();
  blocked_s_ = 0;
  const auto snapshot = std::make_shared<Snapshot>(state);  // the caller waits: no copy needed
  stage(snapshot.get());
  start(snapshot, number);
  return wait();
}

void Saver::start(std::shared_ptr<Snapshot> snapshot, Number number) {
  check(number.value >= 0, "a checkpoint needs a step");
  // Freed memory that the allocator has kept is this thread's, not the saver's.
  if (!prepared_.valid() && !memory_.is_reserved())
    (void)fault_of([&] { memory_.reserve(bytes_to_stage(snapshot->state())); });
  number_ = number.value;
  options_.keep_checkpoint_max =
      std::exchange(keep_next_, {}).value_or(options_.keep_checkpoint_max);
  // The future exists before the thread starts: wait_until_staged() may be called at once.
  const auto staged = std::make_shared<std::promise<void>>();
  staged_ = staged->get_future();
  // Shared by the thread and, if none can be started, the fallback below.
  const auto task = std::make_shared<std::packaged_task<SaveResult()>>(
      [this, snapshot = std::move(snapshot), copy = copy_, number, staged] {
        bool is_staged = false;
        const auto tell_staged = [&] {
          if (!std::exchange(is_staged, true)) staged->set_value();
        };
        try {
          if (copy) wait_for(*copy);
          return run(snapshot->state(), number, tell_staged);
        } catch (...) {
          tell_staged();  // training waits for it, also if the save ended before staging
          const Error fault = current_error();
          if (!fault.on_every_rank() && on_lost_) on_lost_(fault);
          throw;
        }
      });
  result_ = task->get_future();
  try {
    thread_ = std::jthread([task] {
      trace::name_thread("save");
      (*task)();
    });
  } catch (const std::system_error& fault) {
    // The other ranks have started theirs and wait for this one, so the save runs here.
    log::warning("checkpoint", fmt::format("no thread for saving ({}): training waits for the save",
                                           fault.what()));
    (*task)();
  }
}

void Saver::wait_until_staged() {
  if (!staged_.valid()) return;
  const TimeOf blocked(&blocked_s_);
  // The stream waits, not the host.
  if (copy_) return copy_->hold_caller();
  poll_until_ready(staged_, while_waiting_);
  staged_.get();
}

bool Saver::is_done() const {
  return !is_under_way() || result_.wait_for(std::chrono::seconds(0)) == std::future_status::ready;
}

bool Saver::is_done_within(std::chrono::milliseconds longest) {
  const TimeOf blocked(&blocked_s_);
  const Clock::time_point end = Clock::now() + longest;
  while (!is_done()) {
    const auto left = end - Clock::now();
    if (left <= Clock::duration::zero()) return false;
    (void)result_.wait_for(std::min<Clock::duration>(left, kLook));
    if (while_waiting_ && !is_done()) while_waiting_();
  }
  return true;
}

SaveResult Saver::wait() {
  check(is_under_way(), "no save is under way");
  SaveResult result;
  {
    const TimeOf blocked(&blocked_s_);
    join();
    // Rethrows what the thread threw.
    result = result_.get();
  }
  staged_ = {};
  copy_.reset();
  result.blocked_s = blocked_s_;
  return result;
}

/// Finds the checkpoints that this saver may remove: those of the state file and of killed saves.
void Saver::find_own_saves() {
  const std::filesystem::path prefix(options_.prefix);
  own_saves_.emplace();
  if (const auto state = read_state_file_if_sound(prefix.parent_path()))
    for (const SaveName& save : named_by(*state, prefix)) own_saves_->insert(save.number);
}

/// Takes the lock on rank 0. All ranks learn the outcome and the number.
std::optional<Error> Saver::take_lock(Number* number, std::unique_ptr<SaveLock>* lock) {
  const TimeLimit limit(comm_, options_.stage_timeout_s + options_.lock_patience_s);
  std::optional<Error> fault;
  int64_t found = 0;
  if (comm_.rank() == 0)
    fault = fault_of([&] {
      const std::filesystem::path prefix(options_.prefix);
      if (files::is_remote(prefix)) {
        // SaveJob asks the store for them, once training continues.
        if (!own_saves_) own_saves_.emplace();
        if (!number->is_next) return;
        finish_replacements(prefix.parent_path());
      } else {
        files::make_folders(prefix.parent_path());
        finish_replacements(prefix.parent_path());  // their numbers are taken
        *lock = std::make_unique<SaveLock>(options_.prefix, options_.lock_patience_s);
        if (!own_saves_) find_own_saves();
        own_saves_->insert((*lock)->interrupted().begin(), (*lock)->interrupted().end());
      }
      const auto saves = find_saves(prefix.parent_path(), prefix.filename().string());
      found = saves.empty() ? 0 : saves.back().number;
    });
  if (auto shared = shared_fault(comm_, fault)) return shared;
  // Only rank 0 has looked into the folder; the maximum gives all ranks its number.
  if (number->is_next) *number = {.value = dist::max_of(comm_, std::max(found, number->value)) + 1};
  return std::nullopt;
}

SaveResult Saver::failed(const Error& fault, int64_t number) const {
  SaveResult result{.number = number, .prefix = numbered(options_.prefix, number)};
  result.seconds = seconds_since(began_);
  result.error = plain_text(fault);
  result.code = fault.code();
  return result;
}

SaveResult Saver::run(const StateList& state, Number number, const std::function<void()>& staged) {
  const trace::Span span("save");
  if (prepared_.valid()) prepared_.get();
  const auto tell = [&](const SaveResult& result) {
    if (comm_.rank() == 0)
      log::warning("checkpoint",
                   fmt::format("{} could not be saved: {}; earlier checkpoints are kept",
                               result.prefix, result.error));
    return result;
  };
  std::unique_ptr<SaveLock> lock;
  if (const auto fault = take_lock(&number, &lock)) {
    // Training waits for this call, although nothing will be staged.
    staged();
    if (!is_disk_fault(*fault)) throw Error(*fault);
    return tell(failed(*fault, number.is_next ? number.value + 1 : number.value));
  }
  SaveJob save(options_, comm_, state, number.value, &memory_, staged,
               {lock.get(), own_saves_ ? &*own_saves_ : nullptr});
  const std::optional<Error> fault = save.run();
  // A fault that is not the disk's is the same on all ranks and ends the run.
  if (fault && !is_disk_fault(*fault)) throw Error(*fault);
  if (fault) return tell(failed(*fault, number.value));
  SaveResult result = save.result();
  result.ok = true;
  result.seconds = seconds_since(began_);
  const std::optional<Error> not_as_written = save.tidy();
  if (!not_as_written) return result;
  result = failed(*not_as_written, number.value);
  if (comm_.rank() == 0)
    log::error("checkpoint",
               fmt::format("{} may be damaged and was removed: {}; earlier checkpoints are kept",
                           result.prefix, result.error));
  return result;
}

}  // namespace lockstep::checkpoint
