#include "checkpoint/files/save_files.h"

#include <algorithm>
#include <charconv>

#include <fmt/format.h>

#include "base/files/files.h"

// Apart from the state file, which needs protobuf: the command `lockstep` is linked to this alone.
namespace lockstep::checkpoint {
namespace {

constexpr std::string_view kIndexSuffix = "index";

std::optional<int64_t> parse_number(std::string_view text) {
  if (text.empty() || text.front() == '-' || (text.size() > 1 && text.front() == '0'))
    return std::nullopt;
  int64_t number = 0;
  const auto [end, fault] = std::from_chars(text.data(), text.data() + text.size(), number);
  if (fault != std::errc() || end != text.data() + text.size()) return std::nullopt;
  return number;
}

/// data-00000-of-00002; files of others may be named nearly so.
bool is_shard(const std::string& rest) {
  constexpr std::string_view kPattern = "data-00000-of-00000";
  return std::equal(rest.begin(), rest.end(), kPattern.begin(), kPattern.end(),
                    [](char letter, char wanted) {
                      return wanted == '0' ? letter >= '0' && letter <= '9' : letter == wanted;
                    });
}

}  // namespace

std::string numbered(const std::string& prefix, int64_t number) {
  return fmt::format("{}-{}", prefix, number);
}

std::string index_path(const std::string& prefix) { return prefix + ".index"; }

std::string shard_path(const std::string& prefix, int32_t shard, int32_t num_shards) {
  return fmt::format("{}.data-{:05}-of-{:05}", prefix, shard, num_shards);
}

std::string entries_path(const std::string& shard_path) {
  return fmt::format("{}{}{}", shard_path, kEntriesSuffix, kTemporarySuffix);
}

std::optional<FileName> parse_file_name(std::string_view name) {
  size_t dot = name.rfind(".data-");
  if (dot == std::string_view::npos) dot = name.rfind(".index");
  if (dot == std::string_view::npos) return std::nullopt;
  const std::string_view stem = name.substr(0, dot);
  const size_t dash = stem.rfind('-');
  if (dash == std::string_view::npos || dash == 0) return std::nullopt;
  const std::optional<int64_t> number = parse_number(stem.substr(dash + 1));
  if (!number) return std::nullopt;
  return FileName{std::string(stem.substr(0, dash)), *number, std::string(name.substr(dot + 1))};
}

std::optional<FileName> parse_own_name(std::string_view name) {
  std::optional<FileName> parts = parse_file_name(name);
  if (parts && parts->rest != "index" && !is_shard(parts->rest)) parts.reset();
  return parts;
}

std::string_view without_temporary_suffix(std::string_view name) {
  if (!name.ends_with(kTemporarySuffix)) return name;
  name.remove_suffix(kTemporarySuffix.size());
  if (name.ends_with(kEntriesSuffix)) name.remove_suffix(kEntriesSuffix.size());
  return name;
}

std::vector<SaveName> find_saves(const std::filesystem::path& dir, std::string_view prefix_name) {
  std::vector<SaveName> saves;
  for (const std::string& name : files::list(dir)) {
    const std::optional<FileName> parts = parse_file_name(name);
    if (!parts || parts->rest != kIndexSuffix) continue;
    if (!prefix_name.empty() && parts->prefix != prefix_name) continue;
    saves.push_back({numbered((dir / parts->prefix).string(), parts->number), parts->number});
  }
  std::sort(saves.begin(), saves.end(), [](const SaveName& a, const SaveName& b) {
    return a.number != b.number ? a.number < b.number : a.prefix < b.prefix;
  });
  return saves;
}

std::vector<SaveName> named_by(const StateFile& state, const std::filesystem::path& prefix) {
  std::vector<std::string> paths = state.all;
  paths.push_back(state.newest);
  std::vector<SaveName> saves;
  for (const std::string& path : paths) {
    const std::string name = std::filesystem::path(path).filename().string();
    const std::optional<FileName> parts = parse_file_name(index_path(name));
    if (parts && parts->prefix == prefix.filename().string())
      saves.push_back({numbered(prefix.string(), parts->number), parts->number});
  }
  return saves;
}

}  // namespace lockstep::checkpoint
