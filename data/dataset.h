#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <set>
#include <span>
#include <string>
#include <vector>

#include <ATen/core/Tensor.h>

#include "base/error.h"
#include "base/tensors/forward_arguments.h"

/// Data sets: the interface, a data set in memory, and one that continues at damaged samples.
namespace lockstep::data {

/// Kind of a sample's target. Symbols: C = classes, T = tokens of a sample, Y = shape of a target.
enum class TargetKind {
  kClass,   ///< a class number, int64 []
  kSoft,    ///< a probability for each class, float32 [C]: one-hot or soft labels
  kValues,  ///< numbers, float32 [Y]
  kTokens,  ///< the token after each input token, int64 [T]
};

/// Target of a token that counts neither in the loss nor in a metric. PyTorch's cross_entropy and
/// transformers use the same number.
constexpr int64_t kIgnoredTarget = -100;

/// Returns the kind for messages: "class numbers", "soft labels", ...
std::string name_of(TargetKind kind);

/// Properties that all samples of a data set share. A network is built for them.
struct SampleSpec {
  std::vector<int64_t> input_shape;         ///< X
  at::ScalarType input_dtype = at::kFloat;  ///< float32, or int64 for tokens
  TargetKind target_kind = TargetKind::kClass;
  int64_t num_classes = 0;                    ///< C; size of the vocabulary; numbers of one target
  std::vector<std::string> class_names = {};  ///< by class number; empty if the files name none
  bool may_ignore = false;                    ///< classes, tokens: targets may be kIgnoredTarget
  bool varies = false;      ///< shapes differ between batches; input_shape is that of one sample
  bool has_targets = true;  ///< false: targets_BY is a placeholder, and only a network's own loss
                            ///< can be trained
  /// Two samples as a batch, targets included. Empty if input_shape describes the batches.
  ForwardArguments example = {};

  /// True if one network fits both. Of the members after num_classes only `varies` is compared.
  bool operator==(const SampleSpec& other) const {
    return (input_shape == other.input_shape || varies) && varies == other.varies &&
           input_dtype == other.input_dtype && target_kind == other.target_kind &&
           num_classes == other.num_classes;
  }
};

/// Returns, for messages, "inputs [3, 32, 32] and 10 classes".
std::string describe(const SampleSpec& spec);

/// Some samples in the requested order. Symbols: B = samples, X = shape of one input, Y = shape of
/// one target.
struct Samples {
  at::Tensor inputs_BX;   ///< SampleSpec::input_dtype, CPU
  at::Tensor targets_BY;  ///< as SampleSpec::target_kind says, CPU; undefined without targets,
                          ///< which only DatasetUse::kInference allows
  /// Number of damaged samples among the requested ones (SkippingDataset).
  int64_t num_skipped = 0;
  /// Records read from files for the samples, and their size there in bytes, packed or not.
  int64_t num_records = 0, num_record_bytes = 0;
  /// Further tensors of a batch in Python. They usually have B rows.
  std::vector<at::Tensor> more = {};
  /// Keywords of inputs_BX, targets_BY and `more`, in this order. Empty: positional arguments.
  std::vector<std::string> names = {};
};

/// Returns 0 samples of this spec.
Samples no_samples(const SampleSpec& spec);

/// Returns some of the samples, without the counts of reading. Throws Error(kConfig) if a tensor
/// has no row for each sample, unless all samples are wanted.
Samples part_of(const Samples& all, int64_t begin, int64_t size);

/// Returns the samples with each tensor changed by a function.
Samples mapped(Samples samples, const std::function<at::Tensor(const at::Tensor&)>& change);

/// Returns the arguments of a forward pass. Positional targets come last.
ForwardArguments arguments_of(const Samples& samples, bool with_targets);

/// Indexable set of samples, with the same content on every rank. Thread-safe unless
/// reads_in_threads() is false.
class Dataset {
 public:
  virtual ~Dataset() = default;

  virtual int64_t num_samples() const = 0;
  virtual SampleSpec spec() const = 0;
  /// Returns samples by index, each in [0, num_samples()). Random changes depend only on (seed,
  /// epoch, index). Evaluation reads epoch 0.
  virtual Samples get(std::span<const int64_t> indices_B, int64_t epoch) const = 0;
  /// Returns a digest of the content: SHA-256 in hex.
  virtual std::string digest() const = 0;
  /// False: the loader's caller reads, and data.loader_threads is ignored.
  virtual bool reads_in_threads() const { return true; }
  /// Default number of loader threads; 0 if samples are ready in memory.
  virtual int64_t usual_threads() const { return 1; }
  /// True if samples are read in ascending order only, so that data.shuffle has no effect.
  virtual bool is_sequential() const { return false; }
};

/// Data set in memory as two tensors. Symbols: S = samples, X = shape of an input, Y = of a target.
class MemoryDataset : public Dataset {
 public:
  /// inputs_SX is float32, or int64 for tokens. targets_SY is as `target_kind` says; class numbers
  /// and tokens are in [0, num_classes).
  MemoryDataset(at::Tensor inputs_SX, at::Tensor targets_SY, int64_t num_classes,
                TargetKind target_kind = TargetKind::kClass);

  int64_t num_samples() const override { return targets_SY_.size(0); }
  SampleSpec spec() const override;
  Samples get(std::span<const int64_t> indices_B, int64_t epoch) const override;
  int64_t usual_threads() const override { return 0; }
  std::string digest() const override;

 private:
  at::Tensor inputs_SX_;
  at::Tensor targets_SY_;
  TargetKind target_kind_;
  int64_t num_classes_;
};

/// Replacement for a damaged sample.
enum class InsteadOfDamaged {
  kNextSample,  ///< the next intact one in the data set: for training
  kNothing,     ///< no row: for evaluation
};

/// Data set that continues at a damaged sample (an Error(kBadData) while reading it). The
/// replacement depends only on the data set, the sample and the epoch, so ranks and threads change
/// no bit. Samples::num_skipped counts the damaged ones. Each one is logged once.
class SkippingDataset final : public Dataset {
 public:
  SkippingDataset(std::unique_ptr<Dataset> dataset, InsteadOfDamaged instead)
      : dataset_(std::move(dataset)), instead_(instead) {}

  int64_t num_samples() const override { return dataset_->num_samples(); }
  SampleSpec spec() const override { return dataset_->spec(); }
  /// Rethrows the fault in three cases: the file was replaced (files::FileChanged); 1,000 samples
  /// in a row, or all, are damaged; or even an empty read fails. In the last case no sample is at
  /// fault, but for instance an ended worker.
  Samples get(std::span<const int64_t> indices_B, int64_t epoch) const override;
  std::string digest() const override { return dataset_->digest(); }
  bool reads_in_threads() const override { return dataset_->reads_in_threads(); }
  int64_t usual_threads() const override { return dataset_->usual_threads(); }
  bool is_sequential() const override { return dataset_->is_sequential(); }

 private:
  /// Returns one row, or none.
  Samples sound(int64_t index, int64_t epoch) const;
  void tell(int64_t index, const Error& fault) const;

  std::unique_ptr<Dataset> dataset_;
  InsteadOfDamaged instead_;
  mutable std::mutex mutex_;
  mutable std::set<int64_t> told_;  ///< indices of samples that were logged
};

}  // namespace lockstep::data
