// Search and restore of checkpoints.
#include "checkpoint/restore.h"

#include <algorithm>
#include <functional>
#include <future>
#include <map>
#include <numeric>
#include <set>

#include <ATen/ThreadLocalState.h>
#include <fmt/format.h>
#include <fmt/ranges.h>

#include "base/digest.h"
#include "base/error.h"
#include "base/files/files.h"
#include "base/log.h"
#include "base/text.h"
#include "checkpoint/format/bundle_encoding.h"
#include "checkpoint/format/bundle_reader.h"
#include "checkpoint/format/object_graph.h"
#include "checkpoint/format/rank_faults.h"
#include "checkpoint/format/saved_values.h"
#include "checkpoint/format/tensor_slice.h"
#include "checkpoint/format/tensor_type.h"
#include "checkpoint/save/checkpoint_folder.h"
#include "checkpoint/save/host_copy.h"

namespace lockstep::checkpoint {

// restore_latest() tries checkpoints from the newest to the oldest. All ranks try the same one, and
// any rank's failure makes all of them go to the next.

namespace {

/// Throws Error(kConfig) unless type and shape are those of the live entry.
void require_form(const BundleReader& reader, const std::string& name, const DenseTensor& saved,
                  const StateEntry& entry) {
  const int32_t wanted =
      entry.text ? kStringType : type_number(entry.tensor.scalar_type()).value_or(0);
  const at::IntArrayRef wanted_shape = entry.text ? at::IntArrayRef() : entry.tensor.sizes();
  if (saved.dtype == wanted && wanted_shape == at::IntArrayRef(saved.shape)) return;
  throw Error(
      ExitCode::kConfig, "checkpoint",
      fmt::format("{}: tensor '{}' is {}, but this run needs {}; restore the model and optimizer "
                  "settings of the checkpoint, or start a new run with its weights "
                  "(lockstepd: checkpoint.warm_start_ckpt in {})",
                  index_path(reader.prefix()), name, type_and_shape(saved.dtype, saved.shape),
                  type_and_shape(wanted, wanted_shape), another_place(reader.prefix())));
}

/// Throws unless every key exists in the right form. Returns the keys that were not requested.
std::vector<std::string> match(const BundleReader& reader, const DenseView& saved,
                               const StateList& state) {
  std::set<std::string> asked;
  std::vector<std::string> missing;
  for (const StateEntry& entry : state) {
    const std::string name = index_name(entry.key);
    if (!asked.insert(name).second) continue;
    if (const std::optional<DenseTensor> tensor = saved.find(name))
      require_form(reader, name, *tensor, entry);
    else if (!entry.value_if_missing)
      missing.push_back(entry.key);
  }
  // All missing keys in one message.
  if (!missing.empty())
    throw Error(ExitCode::kConfig, "checkpoint",
                fmt::format("{}: contains no '{}': another model or optimizer saved it; set them "
                            "back, or start a new run with its weights (lockstepd: "
                            "checkpoint.warm_start_ckpt in {})",
                            index_path(reader.prefix()), fmt::join(missing, "', '"),
                            another_place(reader.prefix())));
  std::vector<std::string> unused;
  for (const std::string& name : saved.names()) {
    if (asked.contains(name) || name == kGraphName || name == index_name(kCounterKey)) continue;
    unused.push_back(state_key(name).value_or(name));
  }
  return unused;
}

/// Fills an entry that the checkpoint lacks. match() has accepted it.
void put_value_if_missing(const StateEntry& entry) {
  if (entry.text) return entry.text->clear();
  if (!entry.held) return void(entry.tensor.detach().fill_(*entry.value_if_missing));
  check_ranges(*entry.held, entry.tensor.numel());
  with_plain_copy(entry.tensor, true, [&](const at::Tensor& target) {
    for (const ElementRange& range : *entry.held)
      target.view(-1).slice(0, range.begin_E, range.end_E).fill_(*entry.value_if_missing);
  });
}

/// Adds checkpoints that the state file names although their index is missing: a sign that they
/// existed.
void add_listed(const std::filesystem::path& dir, std::string_view prefix_name,
                std::vector<SaveName>* saves) {
  std::optional<StateFile> state = read_state_file_if_sound(dir);
  if (!state) return;
  state->all.push_back(state->newest);
  // Entries are compared by file name, since paths may be absolute or relative.
  for (const std::string& listed : state->all) {
    const std::string name = std::filesystem::path(listed).filename().string();
    const std::optional<FileName> parts = parse_save_name(name);
    if (!parts || (!prefix_name.empty() && parts->prefix != prefix_name)) continue;
    const SaveName save{(dir / name).string(), parts->number};
    if (std::ranges::find(*saves, save.prefix, &SaveName::prefix) == saves->end())
      saves->push_back(save);
  }
}

/// Checkpoint that restore_latest() tries: in its folder, or as copies on the hosts.
struct Candidate {
  std::string prefix;
  int64_t number = 0;
  std::optional<HostCopies> copies = {};
  std::string stored = {};  ///< prefix of the same one in the store, if it has it
};

/// Returns rank 0's checkpoints on every rank, the newest first.
std::vector<Candidate> agreed_candidates(const std::filesystem::path& dir,
                                         std::string_view prefix_name,
                                         dist::Communicator& control) {
  std::vector<Candidate> candidates;
  for (const std::string& prefix : split(text_of_rank_0(control, [&] {
         finish_replacements(dir);
         std::string lines;
         for (const SaveName& save : newest_first(dir, prefix_name)) lines += save.prefix + '\n';
         return lines;
       })))
    candidates.push_back({prefix, parse_save_name(prefix).value_or(FileName()).number});
  return candidates;
}

/// Adds copies on the hosts: of a checkpoint in the store before it, and newer ones that the store
/// never had. Collective.
void add_copies(const std::string& prefix, dist::Communicator& control,
                std::vector<Candidate>* candidates) {
  for (HostCopies& copies : find_host_copies(prefix, control)) {
    Candidate copy{numbered(prefix, copies.number), copies.number, std::move(copies)};
    const auto stored = std::ranges::find_if(*candidates, [&](const Candidate& one) {
      return one.number == copy.number && !one.copies;
    });
    if (stored != candidates->end()) {
      std::string digest;  // of an index that cannot be read: no copy equals it
      if (control.rank() == 0)
        (void)fault_of([&] { digest = sha256_hex(files::read(index_path(stored->prefix))); });
      copy.stored = stored->prefix;
      if (dist::broadcast_text(control, digest) != copy.copies->index_sha256) continue;
      mark_stored(copy.prefix);
      candidates->insert(stored, copy);
    } else if (!copy.copies->is_stored &&
               (candidates->empty() || copy.number > candidates->front().number)) {
      candidates->insert(candidates->begin(), copy);
    }
  }
}

/// Throws the error of a folder whose checkpoints are all unusable.
[[noreturn]] void throw_none_readable(const std::filesystem::path& dir,
                                      const std::vector<std::string>& defects) {
  throw Error(
      ExitCode::kBadData, "checkpoint",
      fmt::format("{}: {} checkpoint{} and none can be restored:\n  {}\nNothing was started: "
                  "repair or remove them, or name another folder. Is the folder the same "
                  "on every rank?",
                  dir.string(), defects.size(), defects.size() == 1 ? "" : "s",
                  fmt::join(defects, "\n  ")))
      .everywhere();
}

}  // namespace

std::vector<SaveName> newest_first(const std::filesystem::path& dir, std::string_view prefix_name) {
  std::vector<SaveName> saves = find_saves(dir, prefix_name);
  add_listed(dir, prefix_name, &saves);
  std::ranges::stable_sort(saves, std::greater(), &SaveName::number);
  return saves;
}

namespace {

/// Restore of one checkpoint. The constructor checks names and forms of all entries.
class Restore {
 public:
  Restore(const std::string& prefix, const StateList& state, int num_threads)
      : reader_(prefix, num_threads), saved_(&reader_), state_(state) {
    const std::optional<FileName> parts = parse_save_name(prefix);
    report_ = {.prefix = prefix,
               .number = parts ? parts->number : -1,
               .unused = match(reader_, saved_, state)};
  }

  /// Gives entries their values: those without a tensor in the checkpoint, and tensors of which
  /// reads_here[i] is true; all if it is empty.
  void read(const std::vector<size_t>& entries, const std::vector<bool>& reads_here = {}) {
    std::vector<TensorRead> reads;
    for (const size_t i : entries) {
      const StateEntry& entry = state_[i];
      const std::string name = index_name(entry.key);
      if (!saved_.contains(name)) {
        put_value_if_missing(entry);
        report_.filled.push_back(entry.key);
      } else if (entry.text)
        *entry.text = saved_.read_texts(name).at(0);
      else if (reads_here.empty() || reads_here[i])
        reads.push_back({name, entry.tensor, entry.held});
    }
    saved_.read_all(reads);
  }

  /// Returns the indices of all entries in the order of their bytes in the shards.
  std::vector<size_t> in_order_of_bytes() const {
    std::vector<size_t> entries(state_.size());
    std::iota(entries.begin(), entries.end(), size_t{0});
    std::ranges::stable_sort(entries, {}, [&](size_t i) {
      const auto tensor = saved_.find(index_name(state_[i].key));
      if (!tensor) return std::pair(int32_t{-1}, int64_t{0});
      const auto& slices = tensor->entry->slices;
      const BundlePlace* first = tensor->entry;
      if (!slices.empty()) first = &slices.front();
      return std::pair(first->shard, first->offset);
    });
    return entries;
  }

  const RestoreReport& report() const { return report_; }

 private:
  BundleReader reader_;
  DenseView saved_;
  const StateList& state_;
  RestoreReport report_;
};

}  // namespace

RestoreReport restore(const std::string& prefix, const StateList& state, int num_threads) {
  Restore all(prefix, state, num_threads);
  all.read(all.in_order_of_bytes());
  return all.report();
}

// A restore from a store by several ranks: each byte that all ranks need is read by one of them,
// which sends it to the others. A store's link is narrower than that between ranks. The ranks read
// the next entries while they exchange the last ones, so that the link is never idle.

namespace {

constexpr int kEveryRank = -1;

/// Division of a restore among the ranks.
struct ReadPlan {
  /// Rank that reads each entry's tensor for all. kEveryRank for texts, and for entries of which
  /// some rank holds a part.
  std::vector<int> readers;
  /// Entries that are read and then sent at a time.
  std::vector<std::vector<size_t>> rounds;
};

/// Returns what each rank reads: about as many bytes as the others, which are adjacent in the
/// shards because a store's files are read in blocks. `in_order`: the entries as
/// Restore::in_order_of_bytes(). `in_parts`: by rank, a '1' for each entry of which it needs a part
/// or that is a text, else '0'. Throws Error(kDisagree) if the ranks' numbers of entries differ.
ReadPlan plan_reads(const StateList& state, const std::vector<size_t>& in_order,
                    const std::vector<std::string>& in_parts) {
  constexpr int64_t kRoundBytes = int64_t{64} << 20;  // of a rank
  const auto num_ranks = static_cast<int64_t>(in_parts.size());
  for (const std::string& flags : in_parts)
    if (flags.size() != state.size())
      throw Error(ExitCode::kDisagree, "checkpoint",
                  "the ranks restore different numbers of tensors; is the model the same on all?");
  std::vector<bool> is_shared(state.size(), true);
  int64_t all_bytes = 0;
  for (size_t i = 0; i < state.size(); ++i) {
    for (const std::string& flags : in_parts) is_shared[i] = is_shared[i] && flags[i] == '0';
    if (is_shared[i]) all_bytes += static_cast<int64_t>(state[i].tensor.nbytes());
  }
  ReadPlan plan{.readers = std::vector<int>(state.size(), kEveryRank)};
  std::vector<int64_t> bytes_of_ranks(in_parts.size());
  int64_t before = 0;
  int rank = 0;
  for (const size_t i : in_order) {
    const int64_t num_bytes = is_shared[i] ? static_cast<int64_t>(state[i].tensor.nbytes()) : 0;
    // By the middle of the entry, so that a large one does not come on top of a full share.
    if (all_bytes > 0)
      rank = static_cast<int>(
          std::min(num_ranks - 1, (before + num_bytes / 2) * num_ranks / all_bytes));
    if (is_shared[i]) plan.readers[i] = rank;
    int64_t& of_rank = bytes_of_ranks[static_cast<size_t>(rank)];
    const auto round = static_cast<size_t>(of_rank / kRoundBytes);
    if (plan.rounds.size() <= round) plan.rounds.resize(round + 1);
    plan.rounds[round].push_back(i);
    of_rank += num_bytes;
    before += num_bytes;
  }
  return plan;
}

/// Returns the first fault of any rank, the same on all. Collective.
std::optional<Error> restore_together(const std::string& prefix, const StateList& state,
                                      dist::Communicator& control, RestoreReport* report) {
  // On every rank: in an earlier restore of this process the checkpoint may have been another one.
  if (files::is_remote(prefix)) files::writable_store_of(prefix).forget(prefix);
  if (!files::is_remote(prefix) || control.world_size() == 1)
    return shared_fault(control, fault_of([&] { *report = restore(prefix, state); }));
  std::string in_parts;
  for (const StateEntry& entry : state) in_parts += entry.held || entry.text ? '1' : '0';
  const std::vector<std::string> in_parts_of_ranks = dist::gather_texts(control, in_parts);
  std::optional<Restore> own;
  ReadPlan plan;
  if (auto fault = shared_fault(control, fault_of([&] {
                                  own.emplace(prefix, state, 0);
                                  plan = plan_reads(state, own->in_order_of_bytes(),
                                                    in_parts_of_ranks);
                                })))
    return fault;
  std::vector<bool> reads_here;
  for (const int reader : plan.readers)
    reads_here.push_back(reader == kEveryRank || reader == control.rank());
  const at::ThreadLocalState caller;  // such as whether tensors record gradients
  const auto start = [&](size_t round) {
    return std::async([&, round] {
      const at::ThreadLocalStateGuard as_caller(caller);
      return fault_of([&] { own->read(plan.rounds[round], reads_here); });
    });
  };
  std::future<std::optional<Error>> reading;
  if (!plan.rounds.empty()) reading = start(0);
  for (size_t round = 0; round < plan.rounds.size(); ++round) {
    const std::optional<Error> own_fault = reading.get();
    if (!own_fault && round + 1 < plan.rounds.size()) reading = start(round + 1);
    if (auto fault = shared_fault(control, own_fault)) return fault;
    for (const size_t i : plan.rounds[round])
      if (plan.readers[i] != kEveryRank && state[i].tensor.numel() > 0)
        with_plain_copy(state[i].tensor, reads_here[i], [&](const at::Tensor& target) {
          control.broadcast(target.view(-1).view(at::kByte), plan.readers[i]);
        });
  }
  *report = own->report();
  return std::nullopt;
}

}  // namespace

RestoreReport restore_on_all(const std::string& prefix, const StateList& state,
                             dist::Communicator& control) {
  RestoreReport report;
  if (const auto fault = restore_together(prefix, state, control, &report)) throw Error(*fault);
  return report;
}

/// Tries one checkpoint; returns the first fault of any rank. A failed attempt may leave some
/// variables new, and the next attempt writes all of them again.
static std::optional<Error> try_to_restore(const Candidate& candidate, const StateList& state,
                                           dist::Communicator& control, RestoreReport* report) {
  const std::string& prefix = candidate.prefix;
  std::optional<Error> fault;
  if (candidate.copies) fault = complete_on_each_host(prefix, *candidate.copies, control);
  if (!fault)
    fault = shared_fault(control, fault_of([&] {
                           // The quick check is much cheaper than a failed restore. A store shows
                           // all ranks the same.
                           if (control.rank() > 0 && files::is_remote(prefix)) return;
                           if (const auto defect = quick_check(prefix))
                             throw Error(ExitCode::kBadData, "checkpoint", *defect);
                         }));
  return fault ? fault : restore_together(prefix, state, control, report);
}

/// Reports a restore from copies on the hosts.
static void note_copies(const Candidate& candidate, bool is_first, RestoreReport* report) {
  if (!candidate.copies) return;
  report->is_unstored = candidate.stored.empty();
  if (report->is_unstored) {
    if (is_first)
      log::warning("checkpoint",
                   fmt::format("restored {} from the copies on the hosts: the store does not have "
                               "this checkpoint. To go back to the store's, remove the copies on "
                               "all hosts",
                               candidate.prefix));
    return;
  }
  mark_stored(candidate.prefix);  // on hosts that have got it only now
  if (is_first)
    log::info("checkpoint",
              fmt::format("restored {} from the copies on the hosts", candidate.stored));
  report->prefix = candidate.stored;
}

std::optional<RestoreReport> restore_latest(const std::filesystem::path& dir,
                                            std::string_view prefix_name, const StateList& state,
                                            dist::Communicator& control,
                                            const std::filesystem::path& copies) {
  std::vector<std::string> defects;
  std::vector<Candidate> candidates = agreed_candidates(dir, prefix_name, control);
  if (!copies.empty()) add_copies(copies / prefix_name, control, &candidates);
  for (const Candidate& candidate : candidates) {
    RestoreReport report;
    const std::optional<Error> fault = try_to_restore(candidate, state, control, &report);
    if (!fault) {
      note_copies(candidate, control.rank() == 0, &report);
      report.num_damaged = static_cast<int64_t>(defects.size());
      return report;
    }
    // A fault of the machine says nothing about the checkpoint. Falling back to an older one would
    // lose steps. But after a copy the same checkpoint in the store is tried.
    const bool is_defect =
        fault->code() == ExitCode::kBadData || fault->code() == ExitCode::kInputMissing;
    if (!is_defect && (candidate.stored.empty() || fault->code() == ExitCode::kConfig))
      throw Error(*fault);
    if (control.rank() == 0)
      log::warning("checkpoint",
                   fmt::format("{} is skipped: {}", candidate.prefix, plain_text(*fault)));
    // What the store has too is tried again there.
    if (candidate.stored.empty()) defects.push_back(plain_text(*fault));
  }
  // Checkpoints exist but none is readable: starting at step 0 would overwrite them.
  if (!defects.empty()) throw_none_readable(dir, defects);
  return std::nullopt;
}

/// Returns the checkpoint that the state file names; nullopt if that is not complete.
static std::optional<std::string> named_by_state_file(const std::filesystem::path& dir,
                                                      std::string_view prefix_name) {
  const std::optional<StateFile> state = read_state_file_if_sound(dir);
  if (!state || state->newest.empty()) return std::nullopt;
  const std::string prefix = (dir / state->newest).string();  // an absolute name stays unchanged
  if (!prefix_name.empty() && parse_save_name(prefix).value_or(FileName()).prefix != prefix_name)
    return std::nullopt;
  const std::optional<std::string> defect = is_there(index_path(prefix))
                                                ? quick_check(prefix)
                                                : std::optional<std::string>("it does not exist");
  if (!defect) return prefix;
  log::warning(
      "checkpoint",
      fmt::format("{} names {}, which is incomplete ({}); choosing the newest checkpoint by number",
                  (dir / kStateFile).string(), prefix, *defect));
  return std::nullopt;
}

/// True if the checkpoint was committed after the state file was written. Its program was killed
/// before it updated the state file.
static bool is_newer_than_state_file(const SaveName& save, const std::filesystem::path& dir) {
  const auto index = files::written_at(index_path(save.prefix));
  const auto state = files::written_at(dir / kStateFile);
  return index && state && *index > *state;
}

/// Returns the complete checkpoint with the highest number. If none is complete, returns the
/// highest of all.
static std::optional<std::string> highest(const std::vector<SaveName>& saves) {
  for (auto save = saves.rbegin(); save != saves.rend(); ++save) {
    const std::optional<std::string> defect = quick_check(save->prefix);
    if (!defect) return save->prefix;
    log::warning("checkpoint", fmt::format("{} is skipped: {}", save->prefix, *defect));
  }
  // With only damaged ones, the caller's restore fails with the reason. Returning nothing would
  // mean a fresh start.
  return saves.empty() ? std::nullopt : std::optional(saves.back().prefix);
}

std::optional<std::string> latest_checkpoint(const std::filesystem::path& dir,
                                             std::string_view prefix_name) {
  if (is_there(index_path(dir.string())) || files::is_file(dir))
    throw Error(
        ExitCode::kUsage, "checkpoint",
        fmt::format("'{}' is not a folder: name the folder to get its newest checkpoint, '{}'",
                    dir.string(), dir.parent_path().string()));
  finish_replacements(dir);
  return latest_committed(dir, prefix_name);
}

std::optional<std::string> latest_committed(const std::filesystem::path& dir,
                                            std::string_view prefix_name) {
  const auto named = named_by_state_file(dir, prefix_name);
  if (!named) return highest(find_saves(dir, prefix_name));
  const auto parts = parse_save_name(*named);
  if (!parts) return named;  // of another program, without a number
  // Only checkpoints newer than the state file in number and time may replace its choice.
  std::vector<SaveName> newer = find_saves(dir, parts->prefix);
  std::erase_if(newer, [&](const SaveName& save) {
    return save.number <= parts->number || !is_newer_than_state_file(save, dir) ||
           quick_check(save.prefix);
  });
  return newer.empty() ? named : newer.back().prefix;
}

std::optional<std::string> latest_checkpoint(const std::filesystem::path& dir,
                                             dist::Communicator& ranks) {
  const std::string answer =
      text_of_rank_0(ranks, [&] { return latest_checkpoint(dir).value_or(""); });
  return answer.empty() ? std::nullopt : std::optional(answer);
}

}  // namespace lockstep::checkpoint
