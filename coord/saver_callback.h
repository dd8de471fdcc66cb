#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include <nlohmann/json_fwd.hpp>

#include "coord/callback.h"

/// Callbacks that save each sample in a file, and files that appear only when complete.
namespace lockstep::coord {

struct SampleSaverOptions {
  std::vector<std::string> keys;            ///< keys to save; `_x` is optional
  std::vector<std::string> not_batch_keys;  ///< those passed unsplit to each sample
  std::string save_prefix, save_suffix;     ///< added to each name
  RunOn run_on = RunOn::kAll;
};

/// Saver of single samples: a derived class writes one in save_sample(), under the given name.
///
/// The name is log_dir / (save_prefix + entry + save_suffix). The entry comes from the texts
/// `save_names`, one per sample, if the iteration has them. Otherwise it is
/// epoch_{:05}_iter_{:06}_rank_{:03}_sample_{:05}. The derived class adds the extension.
///
/// Throws Error(kBadData) for too few names and for an invalid name. Nothing is written outside
/// log_dir, so names with `..`, a leading `/` or an empty part are invalid. Empty names, parts of
/// more than 235 bytes, and names that this epoch had before are invalid too. A later training
/// epoch replaces files of the same name.
class SaverCallback : public Callback {
 public:
  explicit SaverCallback(SampleSaverOptions options) : options_(std::move(options)) {}

  std::vector<std::string> incoming_keys() const override;
  RunOn run_on() const override { return options_.run_on; }
  void begin() override;
  std::optional<DataMap> on_iteration_end(const DataMap& data) override;

 protected:
  /// Writes one sample, in the form of split_batch_inputs(). Its folder exists.
  virtual void save_sample(const DataMap& sample) = 0;
  /// True if consecutive samples may have one name (frames of a sequence).
  virtual bool names_may_repeat() const { return false; }
  /// Returns stores_as() of a class that adds this extension.
  std::string files_ending_in(const std::string& extension) const {
    return options_.save_prefix + "*" + options_.save_suffix + extension;
  }

  /// Returns the path without extension, during save_sample().
  const std::filesystem::path& save_name() const { return save_name_; }
  /// True if the name is an entry of `save_names`.
  bool name_is_given() const { return name_is_given_; }

 private:
  void require_names(const DataMap& data, size_t num_samples) const;
  std::string name_of(const DataMap& data, size_t sample) const;
  void take_name(const std::string& name);

  const SampleSaverOptions options_;
  std::filesystem::path save_name_, folder_;  // the folder created last
  std::string last_name_;
  bool name_is_given_ = false;
  int64_t epoch_ = -1;
  std::set<std::string> epoch_names_;  // only those of `save_names`
};

/// Throws Error(kBadData) unless the name is a path at or below the folder for results.
void require_inside(const std::string& name);

/// Converts a tensor to a number, or to nested lists with one level per dimension: truth values,
/// integers, everything else as float64.
nlohmann::ordered_json json_of_tensor(const at::Tensor& tensor);

/// Saver of each sample as <save_name>.json: {"key": value}. Tensors become nested lists, a single
/// text a text, nested maps objects. Numbers that JSON lacks (NaN, infinities) become null. The
/// file appears when it is complete.
class PredictionSaver : public SaverCallback {
 public:
  using SaverCallback::SaverCallback;
  std::string stores_as() const override { return files_ending_in(".json"); }

 protected:
  void save_sample(const DataMap& sample) override;
};

}  // namespace lockstep::coord
