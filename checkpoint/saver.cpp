#include "checkpoint/saver.h"

#include <chrono>
#include <deque>
#include <filesystem>
#include <optional>

#include <fmt/format.h>

#include "base/error.h"
#include "base/log.h"
#include "checkpoint/one_save.h"
#include "checkpoint/rank_faults.h"

namespace lockstep::checkpoint {
namespace {

using Clock = std::chrono::steady_clock;

double seconds_since(Clock::time_point start) {
  return std::chrono::duration<double>(Clock::now() - start).count();
}

/// Adds the time until it goes out of scope.
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

/// True for what the disk does to us: the run may go on without this save.
bool is_disk_fault(const Error& fault) {
  return fault.code() == ExitCode::kIo || fault.code() == ExitCode::kCannotCreate ||
         fault.code() == ExitCode::kInputMissing;
}

}  // namespace

/// The state as it was at begin(): what is not steady lies here.
struct Saver::Snapshot {
  StateList state;
  std::deque<std::string> texts;

  explicit Snapshot(StateList list) : state(std::move(list)) {}

  void copy_what_may_change() {
    for (StateEntry& entry : state) {
      if (entry.text != nullptr) entry.text = &texts.emplace_back(*entry.text);
      if (entry.tensor.defined() && !entry.steady) entry.tensor = entry.tensor.detach().clone();
    }
  }
};

Saver::Saver(SaverOptions options, dist::Communicator& comm)
    : options_(std::move(options)), comm_(comm) {
  check(options_.keep_checkpoint_max == -1 || options_.keep_checkpoint_max > 0,
        "keep_checkpoint_max is 0 or below -1");
  check(!std::filesystem::path(options_.prefix).filename().empty(), "a save needs a prefix");
  options_.prefix = std::filesystem::absolute(options_.prefix).string();
}

Saver::~Saver() { join(); }

void Saver::join() {
  if (result_.valid()) result_.wait();
}

void Saver::prepare(const StateList& state) {
  check(!is_under_way() && !prepared_.valid(), "prepare() comes before the first save");
  const std::vector<SavePiece> pieces = save_pieces(state, 0, options_.sparse);
  const SavePlan plan(pieces, comm_.world_size(), options_.min_cut_bytes);
  const int64_t num_bytes = ShardImage::bytes_of(pieces, plan.parts_of(comm_.rank()));
  prepared_ = std::async(std::launch::async, [this, num_bytes] {
    // What fails here fails again, and is said, where it is needed.
    (void)fault_of([&] { memory_.touch(num_bytes); });
  });
}

void Saver::begin(const StateList& state, int64_t step) {
  blocked_s_ = 0;
  const TimeOf blocked(&blocked_s_);
  const auto snapshot = std::make_shared<Snapshot>(state);
  snapshot->copy_what_may_change();
  start(snapshot, step);
}

SaveResult Saver::save(const StateList& state, int64_t step) {
  blocked_s_ = 0;
  start(std::make_shared<Snapshot>(state), step);  // nothing changes until it is over
  return wait();
}

void Saver::start(std::shared_ptr<Snapshot> snapshot, int64_t step) {
  check(step >= 0, "a save needs a step");
  check(!is_under_way(), "one save at a time: wait() for the one before");
  number_ = step;
  const auto staged = std::make_shared<std::promise<void>>();
  staged_ = staged->get_future();
  result_ = std::async(std::launch::async, [this, snapshot = std::move(snapshot), step, staged] {
    try {
      return run(snapshot->state, step, [&] { staged->set_value(); });
    } catch (const Error& fault) {
      if (!fault.on_every_rank() && on_lost_) on_lost_(fault);
      throw;
    }
  });
}

void Saver::wait_until_staged() {
  if (!staged_.valid()) return;
  const TimeOf blocked(&blocked_s_);
  staged_.get();
}

bool Saver::is_done() const {
  return !is_under_way() || result_.wait_for(std::chrono::seconds(0)) == std::future_status::ready;
}

SaveResult Saver::wait() {
  check(is_under_way(), "no save is under way");
  SaveResult result;
  {
    const TimeOf blocked(&blocked_s_);
    result = result_.get();
  }
  staged_ = {};
  result.blocked_s = blocked_s_;
  return result;
}

SaveResult Saver::run(const StateList& state, int64_t step, const std::function<void()>& staged) {
  const auto start = Clock::now();
  if (prepared_.valid()) prepared_.get();
  OneSave save(options_, comm_, state, step, &memory_, staged);
  const std::optional<Error> fault = save.run();
  if (fault && !is_disk_fault(*fault)) throw Error(*fault);
  SaveResult result{
      .ok = !fault, .number = step, .prefix = save.prefix(), .seconds = seconds_since(start)};
  if (fault) {
    result.error = plain_text(*fault);
    if (comm_.rank() == 0)
      log::warning("checkpoint", fmt::format("{} could not be saved: {}; the saves before it stand",
                                             save.prefix(), result.error));
    return result;
  }
  result.bytes_written = save.bytes_written();
  result.bytes_dense = save.dense_bytes();
  result.compare_s = save.compare_s();
  if (const std::optional<Error> not_as_written = save.tidy()) {
    result.ok = false;
    result.error = plain_text(*not_as_written);
    if (comm_.rank() == 0)
      log::error("checkpoint", fmt::format("{} is not to be trusted: {}; older saves are kept",
                                           save.prefix(), result.error));
  }
  return result;
}

}  // namespace lockstep::checkpoint
