#pragma once

#include <cstdint>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "coord/callback.h"

namespace lockstep::coord {

struct SaverOptions {
  std::vector<std::string> keys;            ///< what is saved; `_x` is optional
  std::vector<std::string> not_batch_keys;  ///< those of them that go whole to each sample
  std::string save_prefix, save_suffix;     ///< around each name
  RunOn run_on = RunOn::kAll;
};

/// Saves single samples: a derived class writes one in save_sample(), under the name that is given.
///
/// The name is log_dir / (save_prefix + entry of `save_names` + save_suffix), where an iteration
/// gives the texts `save_names`, one a sample; else
/// epoch_{:05}_iter_{:06}_rank_{:03}_sample_{:05} stands for the entry. The derived class adds the
/// extension.
///
/// Throws Error(kBadData): too few names; an empty one; one with `..`, a leading `/` or an empty
/// part, as nothing is written outside log_dir; a part of more than 235 bytes; one that this epoch
/// had already. A later epoch of a training replaces files of the same name.
class SaverCallback : public Callback {
 public:
  explicit SaverCallback(SaverOptions options) : options_(std::move(options)) {}

  std::vector<std::string> incoming_keys() const override;
  RunOn run_on() const override { return options_.run_on; }
  void begin() override;
  std::optional<DataMap> on_iteration_end(const DataMap& data) override;

 protected:
  /// One sample's values, as split_batch_inputs() gives them. Its folder is there.
  virtual void save_sample(const DataMap& sample) = 0;
  /// Whether samples in a row may have one name (frames of a sequence).
  virtual bool names_may_repeat() const { return false; }
  /// stores_as() of a class that adds this extension.
  std::string files_ending_in(const std::string& extension) const {
    return options_.save_prefix + "*" + options_.save_suffix + extension;
  }

  /// During save_sample(): the path without its extension.
  const std::filesystem::path& save_name() const { return save_name_; }
  /// Whether that is an entry of `save_names`.
  bool name_is_given() const { return name_is_given_; }

 private:
  void require_names(const DataMap& data, size_t num_samples) const;
  std::string name_of(const DataMap& data, size_t sample) const;
  void take_name(const std::string& name);

  const SaverOptions options_;
  std::filesystem::path save_name_, folder_;  // the folder that was made last
  std::string last_name_;
  bool name_is_given_ = false;
  int64_t epoch_ = -1;
  std::set<std::string> epoch_names_;  // those of `save_names` alone
};

/// Throws Error(kBadData) unless the name is that of a file at or below the folder it is put into.
void require_inside(const std::string& name);

}  // namespace lockstep::coord
