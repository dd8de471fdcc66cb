// restore_latest() tries checkpoints from the newest to the oldest. All ranks try the same one, and
// any rank's failure makes all of them go to the next.
#include "checkpoint/restore/restore.h"

#include <algorithm>
#include <set>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "base/error.h"
#include "base/log.h"
#include "checkpoint/bundle/tensor_runs.h"
#include "checkpoint/bundle/tensor_type.h"
#include "checkpoint/files/rank_faults.h"
#include "checkpoint/files/state_names.h"
#include "checkpoint/reader/bundle_reader.h"
#include "checkpoint/reader/dense_view.h"
#include "checkpoint/reader/verify.h"
#include "dist/agree.h"

namespace lockstep::checkpoint {
namespace {

constexpr std::string_view kNotShared = "Is the folder the same on every rank?";

/// Throws Error(kConfig) unless type and shape are those of the live entry.
void require_form(const BundleReader& reader, const std::string& name, const DenseTensor& saved,
                  const StateEntry& entry) {
  const int32_t wanted =
      entry.text ? kStringType : type_number(entry.tensor.scalar_type()).value_or(0);
  const at::IntArrayRef wanted_shape = entry.text ? at::IntArrayRef() : entry.tensor.sizes();
  if (saved.dtype == wanted && wanted_shape == at::IntArrayRef(saved.shape)) return;
  throw Error(
      ExitCode::kConfig, "checkpoint",
      fmt::format("{}: tensor '{}' is {}, but this run needs {}; set model and optimizer back to "
                  "those of the save, or choose another run.project_dir: "
                  "checkpoint.warm_start_ckpt begins a new run with a save's weights",
                  index_path(reader.prefix()), name, type_and_shape(saved.dtype, saved.shape),
                  type_and_shape(wanted, wanted_shape)));
}

/// Throws unless every key exists in the right form. Returns the keys that nobody requested.
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
                fmt::format("{}: holds no '{}': another model or optimizer saved it; set them "
                            "back, or choose another run.project_dir: checkpoint.warm_start_ckpt "
                            "begins a new run with a save's weights",
                            index_path(reader.prefix()), fmt::join(missing, "', '")));
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

/// Returns the number in a prefix; -1 if there is none.
int64_t number_of(const std::string& prefix) {
  const std::filesystem::path index = index_path(prefix);
  const std::optional<FileName> parts = parse_file_name(index.filename().string());
  return parts ? parts->number : -1;
}

/// Adds checkpoints that the state file names although their index is missing: a sign that they
/// existed.
void add_listed(const std::filesystem::path& dir, std::string_view prefix_name,
                std::vector<SaveName>* saves) {
  std::optional<StateFile> state;
  if (const auto fault = fault_of([&] { state = read_state_file(dir); }))
    log::warning("checkpoint", plain_text(*fault));
  if (!state) return;
  state->all.push_back(state->newest);
  // Entries are compared by file name, since paths may be absolute or relative.
  for (const std::string& listed : state->all) {
    const std::string name = std::filesystem::path(listed).filename().string();
    const std::optional<FileName> parts = parse_file_name(index_path(name));
    if (!parts || (!prefix_name.empty() && parts->prefix != prefix_name)) continue;
    const bool known = std::any_of(saves->begin(), saves->end(), [&](const SaveName& save) {
      return std::filesystem::path(save.prefix).filename() == name;
    });
    if (!known) saves->push_back({(dir / name).string(), parts->number});
  }
}

/// Returns all checkpoints, newest first.
std::vector<SaveName> newest_first(const std::filesystem::path& dir, std::string_view prefix_name) {
  std::vector<SaveName> saves = find_saves(dir, prefix_name);
  add_listed(dir, prefix_name, &saves);
  std::stable_sort(saves.begin(), saves.end(),
                   [](const SaveName& a, const SaveName& b) { return a.number > b.number; });
  return saves;
}

/// Returns rank 0's prefixes on every rank.
std::vector<std::string> agreed_candidates(const std::filesystem::path& dir,
                                           std::string_view prefix_name,
                                           dist::Communicator& control) {
  std::string lines;
  std::optional<Error> fault;
  if (control.rank() == 0)
    fault = fault_of([&] {
      for (const SaveName& save : newest_first(dir, prefix_name)) lines += save.prefix + '\n';
    });
  if (const auto shared = shared_fault(control, fault)) throw Error(*shared).everywhere();
  const std::string all = dist::broadcast_text(control, lines);
  std::vector<std::string> prefixes;
  for (size_t start = 0; start < all.size();) {
    const size_t end = all.find('\n', start);
    prefixes.push_back(all.substr(start, end - start));
    start = end + 1;
  }
  return prefixes;
}

/// Restores one checkpoint after the quick check, which is much cheaper than a failed restore.
void try_restore(const std::string& prefix, const StateList& state, RestoreReport* report) {
  if (const auto defect = quick_check(prefix))
    throw Error(ExitCode::kBadData, "checkpoint", *defect);
  *report = restore(prefix, state);
}

/// Throws the error of a folder whose checkpoints are all unusable.
[[noreturn]] void throw_none_readable(const std::filesystem::path& dir,
                                      const std::vector<std::string>& defects) {
  throw Error(ExitCode::kBadData, "checkpoint",
              fmt::format("{}: {} save{} and none can be restored:\n  {}\nNothing was started: "
                          "mend or remove them, or name "
                          "another folder. {}",
                          dir.string(), defects.size(), defects.size() == 1 ? "" : "s",
                          fmt::join(defects, "\n  "), kNotShared))
      .everywhere();
}

}  // namespace

RestoreReport restore(const std::string& prefix, const StateList& state, int num_threads) {
  BundleReader reader(prefix, num_threads);
  DenseView saved(&reader);
  RestoreReport report{
      .prefix = prefix, .number = number_of(prefix), .unused = match(reader, saved, state)};
  std::vector<TensorRead> reads;
  for (const StateEntry& entry : state) {
    const std::string name = index_name(entry.key);
    if (!saved.contains(name)) {
      put_value_if_missing(entry);
      report.filled.push_back(entry.key);
    } else if (entry.text)
      *entry.text = saved.read_texts(name).at(0);
    else
      reads.push_back({name, entry.tensor, entry.held});
  }
  saved.read_all(reads);
  return report;
}

RestoreReport restore_on_all(const std::string& prefix, const StateList& state,
                             dist::Communicator& control) {
  RestoreReport report;
  const std::optional<Error> fault = fault_of([&] { report = restore(prefix, state); });
  if (const auto shared = shared_fault(control, fault)) throw Error(*shared).everywhere();
  return report;
}

std::optional<RestoreReport> restore_latest(const std::filesystem::path& dir,
                                            std::string_view prefix_name, const StateList& state,
                                            dist::Communicator& control) {
  std::vector<std::string> defects;
  for (const std::string& prefix : agreed_candidates(dir, prefix_name, control)) {
    RestoreReport report;
    // A failed attempt may leave some variables new; the next attempt writes all of them again.
    const auto own = fault_of([&] { try_restore(prefix, state, &report); });
    const auto fault = shared_fault(control, own);
    if (!fault) {
      report.num_damaged = static_cast<int64_t>(defects.size());
      return report;
    }
    // A fault of the machine says nothing about the checkpoint. Falling back to an older one would
    // lose steps.
    if (fault->code() != ExitCode::kBadData && fault->code() != ExitCode::kInputMissing)
      throw Error(*fault).everywhere();
    defects.push_back(plain_text(*fault));
    if (control.rank() == 0)
      log::warning("checkpoint", fmt::format("{} is passed over: {}", prefix, defects.back()));
  }
  // Checkpoints exist but none is readable: starting at step 0 would overwrite them.
  if (!defects.empty()) throw_none_readable(dir, defects);
  return std::nullopt;
}

std::optional<SaveName> latest_complete(const std::filesystem::path& dir,
                                        std::string_view prefix_name,
                                        std::vector<std::string>* defects) {
  for (const SaveName& save : newest_first(dir, prefix_name)) {
    const std::optional<std::string> defect = quick_check(save.prefix);
    if (!defect) return save;
    defects->push_back(*defect);
  }
  return std::nullopt;
}

}  // namespace lockstep::checkpoint
