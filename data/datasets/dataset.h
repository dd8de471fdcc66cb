#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include <ATen/core/Tensor.h>

namespace lockstep::data {

/// What the target of one sample is. Symbols: C = classes, T = tokens of one sample, Y = the shape
/// of one target.
enum class TargetKind {
  kClass,   ///< a class number, int64 []
  kSoft,    ///< a probability for each class, float32 [C]: one-hot or soft labels
  kValues,  ///< numbers, float32 [Y]
  kTokens,  ///< the token after each input token, int64 [T]
};

/// Target of a token that counts neither in the loss nor in a metric, as in PyTorch's cross_entropy
/// and in transformers.
constexpr int64_t kIgnoredTarget = -100;

/// class numbers, soft labels, ...: for messages.
std::string name_of(TargetKind kind);

/// What all samples of a data set have in common; a network is made for it.
struct SampleSpec {
  std::vector<int64_t> input_shape;         ///< X
  at::ScalarType input_dtype = at::kFloat;  ///< float32, or int64 for tokens
  TargetKind target_kind = TargetKind::kClass;
  int64_t num_classes = 0;  ///< C; tokens of the vocabulary; numbers of one target
  std::vector<std::string> class_names = {};  ///< by class number; empty where files name none
  bool may_ignore = false;                    ///< classes, tokens: targets may be kIgnoredTarget

  /// True if one network fits both: class_names and may_ignore are not compared.
  bool operator==(const SampleSpec& other) const {
    return input_shape == other.input_shape && input_dtype == other.input_dtype &&
           target_kind == other.target_kind && num_classes == other.num_classes;
  }
};

/// inputs [3, 32, 32], 10 classes: for messages.
std::string describe(const SampleSpec& spec);

/// Some samples, in the order asked for. Symbols: B = samples, X = the shape of one input, Y = the
/// shape of one target.
struct Samples {
  at::Tensor inputs_BX;   ///< SampleSpec::input_dtype, CPU
  at::Tensor targets_BY;  ///< as SampleSpec::target_kind says, CPU; undefined where there are none,
                          ///< which DatasetUse::kInference alone allows
  /// Damaged ones among those asked for (data/datasets/skipping_dataset.h).
  int64_t num_skipped = 0;
  /// Records that were read from files for them, and their bytes there, packed or not.
  int64_t num_records = 0, num_record_bytes = 0;
};

/// None of such samples.
Samples no_samples(const SampleSpec& spec);

/// An indexable set of samples. Same content on every rank; safe to read from several threads
/// unless reads_in_threads() is false.
class Dataset {
 public:
  virtual ~Dataset() = default;

  virtual int64_t num_samples() const = 0;
  virtual SampleSpec spec() const = 0;
  /// Each index in [0, num_samples()). A data set that changes its samples at random draws from
  /// (seed, epoch, index) and nothing else; evaluation reads epoch 0.
  virtual Samples get(std::span<const int64_t> indices_B, int64_t epoch) const = 0;
  /// Tells data sets of different content apart: SHA-256 in hex.
  virtual std::string digest() const = 0;
  /// False: the loader's caller reads, whatever data.loader_threads says.
  virtual bool reads_in_threads() const { return true; }
  /// Threads of a loader if nobody says how many; 0 where samples lie ready in memory.
  virtual int64_t usual_threads() const { return 1; }
};

}  // namespace lockstep::data
