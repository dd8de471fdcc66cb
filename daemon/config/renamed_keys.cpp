#include "daemon/config/renamed_keys.h"

#include <array>

#include <fmt/format.h>
#include <yaml-cpp/yaml.h>

// Two tables, kRenamed and kRemoved, and their application to documents and overrides.
namespace lockstep::daemon {
namespace {

/// Former and present name of a key, perhaps in another section.
struct RenamedKey {
  std::string_view section, former, now;
  std::string_view new_section = section;

  std::string former_path() const { return fmt::format("{}.{}", section, former); }
  std::string path() const { return fmt::format("{}.{}", new_section, now); }
};

constexpr std::array kRenamed = {
    RenamedKey{"sync", "wire", "comm_dtype"},
    RenamedKey{"sync", "packed", "sparse_allreduce"},
    RenamedKey{"sync", "agree_every", "replica_check_every"},
    RenamedKey{"checkpoint", "warm_start_names", "warm_start_rename"},
    RenamedKey{"run", "grace_s", "grace_seconds", "preemption"},
};

/// Key that no version reads any more.
struct RemovedKey {
  std::string_view section, name;
  std::string_view advice;  ///< replacement to use

  std::string path() const { return fmt::format("{}.{}", section, name); }
  std::string fault() const {
    return fmt::format("'{}' is no longer supported: {}", path(), advice);
  }
};

constexpr std::array kRemoved = {
    RemovedKey{"metrics", "pushgateway", "use 'metrics.textfile_dir' or 'metrics.linger_secs'"},
    RemovedKey{"metrics", "processor_share",
               "remove the line; the server no longer delays requests"},
    RemovedKey{"sync", "error_feedback",
               "remove the line; use sync.comm_dtype fp32 where rounding loses too much"},
    RemovedKey{"sync", "outer_optimizer",
               "remove the line; local steps continue from the mean of the ranks"},
    RemovedKey{"sync", "outer_lr", "remove the line; local steps have no outer optimizer"},
    RemovedKey{"sync", "outer_momentum", "remove the line; local steps have no outer optimizer"},
};

std::string warning_of(const RenamedKey& key, const std::string& place) {
  return fmt::format("{}: '{}' is now '{}'; the old name is read for one more version", place,
                     key.former_path(), key.path());
}

void rename_key(const RenamedKey& key, YamlDocument* document, std::vector<std::string>* warnings,
                Diagnostics* faults) {
  YAML::Node root = document->root();
  YAML::Node former = find_at_path(root, key.former_path()).key;
  if (!former.IsScalar()) return;
  const Fault place = document->fault_at(former, "");
  const YAML::Node now = find_at_path(root, key.path()).key;
  // Both names at once: neither value can be preferred.
  if (now.IsScalar()) {
    faults->add(document->fault_at(
        former, fmt::format("'{}' is the former name of '{}', which {} also sets: keep the new one",
                            key.former_path(), key.path(), document->place_text(now.Mark()))));
    return;
  }
  warnings->push_back(
      warning_of(key, place.line > 0 ? fmt::format("{}:{}", place.file, place.line) : place.file));
  if (key.new_section == key.section) {
    former = std::string(key.now);  // rename in place, so that faults keep the key's position
    return;
  }
  const YAML::Node home = find_at_path(root, key.new_section).value;
  if (!home.IsMap() && !home.IsNull()) return;  // its own reader reports this fault
  YAML::Node owner = find_at_path(root, key.section).value;
  YAML::Node section_now = root[std::string(key.new_section)];  // created if missing
  section_now[std::string(key.now)] = owner[std::string(key.former)];
  owner.remove(std::string(key.former));
}

}  // namespace

std::vector<std::string> former_names() {
  std::vector<std::string> names;
  for (const RenamedKey& key : kRenamed) names.push_back(key.former_path());
  return names;
}

std::vector<std::string> rename_keys(YamlDocument* document, Diagnostics* faults) {
  std::vector<std::string> warnings;
  for (const RenamedKey& key : kRenamed) rename_key(key, document, &warnings, faults);
  return warnings;
}

std::vector<std::string> rename_keys(std::vector<Override>* overrides) {
  std::vector<std::string> warnings;
  for (Override& one : *overrides)
    for (const RenamedKey& key : kRenamed)
      if (one.path == key.former_path()) {
        one.path = key.path();
        warnings.push_back(warning_of(key, one.origin));
      }
  return warnings;
}

std::string with_new_names(const std::string& settings_line) {
  for (const RenamedKey& key : kRenamed)
    if (settings_line.starts_with(key.former_path() + "="))
      return key.path() + settings_line.substr(key.former_path().size());
  return settings_line;
}

void refuse_removed_keys(YamlDocument* document, Diagnostics* faults) {
  for (const RemovedKey& key : kRemoved) {
    const YamlPair found = find_at_path(document->root(), key.path());
    if (!found.key.IsScalar()) continue;
    // Remove it too, or the section's reader would report an unknown key.
    faults->add(document->fault_at(found.key, key.fault()));
    YAML::Node section = find_at_path(document->root(), key.section).value;
    section.remove(std::string(key.name));
  }
}

void refuse_removed_keys(std::vector<Override>* overrides, Diagnostics* faults) {
  for (const RemovedKey& key : kRemoved)
    std::erase_if(*overrides, [&](const Override& one) {
      if (one.path != key.path()) return false;
      faults->add({one.origin, 0, 0, key.fault(), ""});
      return true;
    });
}

}  // namespace lockstep::daemon
