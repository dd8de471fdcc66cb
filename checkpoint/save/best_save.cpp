#include "checkpoint/save/best_save.h"

#include <sstream>

#include <fmt/format.h>

#include "base/error.h"
#include "base/files/files.h"
#include "base/log.h"

namespace lockstep::checkpoint {
namespace {

std::filesystem::path best_path(const std::string& prefix) { return prefix + ".best"; }

}  // namespace

void write_best(const std::string& prefix, const BestSave& best) {
  files::write_atomically(best_path(prefix),
                          fmt::format("{} {} {}\n", best.number, best.metric, best.value));
}

std::optional<BestSave> read_best(const std::string& prefix) {
  std::error_code ignored;
  if (!std::filesystem::exists(best_path(prefix), ignored)) return std::nullopt;
  try {
    std::istringstream line(files::read(best_path(prefix), 4096));
    BestSave best;
    if (line >> best.number >> best.metric >> best.value) return best;
    log::warning("checkpoint",
                 best_path(prefix).string() + ": cannot be read as NUMBER METRIC VALUE");
  } catch (const Error& fault) {
    log::warning("checkpoint", fault.what());
  }
  return std::nullopt;
}

}  // namespace lockstep::checkpoint
