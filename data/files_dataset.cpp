// Data set of files, and the memory of its batches.
#include "data/files_dataset.h"

#include <algorithm>
#include <cstring>
#include <mutex>
#include <optional>

#include <ATen/ops/empty.h>
#include <c10/util/accumulate.h>
#include <fmt/format.h>

#include "base/error.h"
#include "base/files/files.h"
#include "data/images/decode.h"

namespace lockstep::data {
namespace {

/// Limit of the pool; a new tensor then displaces the oldest.
constexpr size_t kMaxKeptTensors = 64;

/// True if neither the tensor nor a view of it is used elsewhere.
bool is_ours_alone(const at::Tensor& tensor) {
  return tensor.use_count() == 1 && tensor.storage().use_count() == 1;
}

/// Pool of batch tensors that are reused once no other owner holds them, which reference counts
/// show. New memory costs more time than filling it. Thread-safe.
class BatchMemory {
 public:
  /// Returns a tensor with undefined values.
  at::Tensor take(at::IntArrayRef shape, at::ScalarType type) const {
    const std::scoped_lock lock(mutex_);
    for (const at::Tensor& tensor : tensors_)
      if (tensor.scalar_type() == type && tensor.sizes() == shape && tensor.is_contiguous() &&
          is_ours_alone(tensor))
        return tensor;
    at::Tensor fresh = at::empty(shape, type);
    // The pool is only a cache: a removed tensor lives on with its user.
    if (tensors_.size() == kMaxKeptTensors) tensors_.erase(tensors_.begin());
    tensors_.push_back(fresh);
    return fresh;
  }

 private:
  mutable std::mutex mutex_;
  mutable std::vector<at::Tensor> tensors_;
};

constexpr int64_t kMaxTries = 1000;  // damaged samples in a row

[[noreturn]] void refuse_feed(const std::string& what) {
  throw Error(ExitCode::kConfig, "data", what);
}

/// Returns one number per channel.
std::vector<double> each_channel(const std::vector<double>& numbers, int64_t channels,
                                 const char* key) {
  if (numbers.empty() || static_cast<int64_t>(numbers.size()) == channels) return numbers;
  if (numbers.size() == 1) return std::vector<double>(static_cast<size_t>(channels), numbers[0]);
  refuse_feed(fmt::format("'{}' has {} numbers; give one, or one for each of {} channels", key,
                          numbers.size(), channels));
}

bool is_picture(Content content) {
  return content == Content::kImage || content == Content::kPixels;
}

/// Returns a token from unaligned memory.
int64_t token_at(std::string_view tokens, int64_t place) {
  int64_t token = 0;
  std::memcpy(&token, tokens.data() + place * 8, sizeof token);
  return token;
}

/// Returns the position of the first int64 that is neither in [0, end) nor `ignored`.
std::optional<int64_t> place_out_of_range(std::string_view tokens, int64_t end, int64_t ignored) {
  const auto num_tokens = static_cast<int64_t>(tokens.size() / 8);
  for (int64_t i = 0; i < num_tokens; ++i) {
    const int64_t token = token_at(tokens, i);
    if ((token < 0 || token >= end) && token != ignored) return i;
  }
  return std::nullopt;
}

/// Returns the text without the area in front.
std::string text_of(const Error& fault) {
  const std::string text = fault.what();
  const size_t end = text.find("] ");
  return end == std::string::npos ? text : text.substr(end + 2);
}

/// Data set of a source's records. Every pixel is written once: a sample's transform writes its
/// floats straight into the batch tensor.
class FilesDataset final : public Dataset {
 public:
  FilesDataset(std::unique_ptr<Source> source, const FeedOptions& options)
      : source_(std::move(source)), options_(options) {
    if (is_picture(source_->spec().content))
      images_ = std::make_unique<ImageTransform>(image_target(), options_.augment);
    else if (!options_.means.empty() || !options_.deviations.empty() ||
             !options_.image_size.empty())
      refuse_feed(
          "image_size, mean and std are for images and uint8 pixels; these files contain other "
          "numbers");
    spec_ = make_spec();
    input_numbers_ = c10::multiply_integers(spec_.input_shape);
    target_numbers_ = spec_.target_kind == TargetKind::kClass    ? 1
                      : spec_.target_kind == TargetKind::kTokens ? input_numbers_
                                                                 : spec_.num_classes;
  }

  int64_t num_samples() const override { return source_->num_records(); }
  SampleSpec spec() const override { return spec_; }
  std::string digest() const override { return source_->digest(); }

  /// Throws Error(kBadData) with file, position and sample.
  Samples get(std::span<const int64_t> indices_B, int64_t epoch) const override {
    // One per thread: buffers keep their memory from batch to batch.
    thread_local Scratch scratch;
    std::vector<int64_t> input_shape = spec_.input_shape;
    input_shape.insert(input_shape.begin(), static_cast<int64_t>(indices_B.size()));
    std::vector<int64_t> target_shape = {input_shape.front()};
    if (spec_.target_kind != TargetKind::kClass) target_shape.push_back(target_numbers_);
    const bool counts =
        spec_.target_kind == TargetKind::kClass || spec_.target_kind == TargetKind::kTokens;
    Samples samples{.inputs_BX = memory_.take(input_shape, spec_.input_dtype)};
    if (source_->spec().targets != Targets::kNone)
      samples.targets_BY = memory_.take(target_shape, counts ? at::kLong : at::kFloat);
    scratch.num_records = scratch.num_record_bytes = 0;
    for (size_t row = 0; row < indices_B.size(); ++row) {
      // Starts loading the next record while this one is decoded.
      if (row + 1 < indices_B.size()) source_->expect(indices_B[row + 1]);
      write_sample(indices_B[row], epoch, static_cast<int64_t>(row), &samples, &scratch);
    }
    samples.num_records = scratch.num_records;
    samples.num_record_bytes = scratch.num_record_bytes;
    return samples;
  }

 private:
  struct Scratch {
    Record record;
    ImageScratch image;
    std::vector<float> other;
    int64_t num_records = 0, num_record_bytes = 0;  ///< read for the requested samples
  };

  ImageTarget image_target() const {
    // Without image_size the first image gives the size, and others must have it too.
    const SourceSpec& from = source_->spec();
    ImageTarget target{.keeps_ratio = options_.keeps_ratio};
    target.channels = options_.channels > 0             ? options_.channels
                      : from.content == Content::kImage ? 3
                                                        : (from.shape[0] == 1 ? 1 : 3);
    target.means = each_channel(options_.means, target.channels, "mean");
    target.deviations = each_channel(options_.deviations, target.channels, "std");
    if (!options_.image_size.empty()) {
      target.height = options_.image_size.front();
      target.width = options_.image_size.back();
    } else if (from.content == Content::kPixels) {
      target.height = from.shape[1];
      target.width = from.shape[2];
    } else {
      Scratch scratch;
      read(0, &scratch);
      try {
        const ImageHeader header = read_image_header(scratch.record.input);
        target.height = header.height;
        target.width = header.width;
      } catch (const Error& fault) {
        throw Error(fault.code(), "data", source_->place_of(0) + ": " + text_of(fault));
      }
      target.takes_any_size = false;
    }
    return target;
  }

  /// The spec decides which network fits: every option that changes shapes or targets applies here.
  SampleSpec make_spec() {
    const SourceSpec& from = source_->spec();
    SampleSpec spec{.input_shape = from.shape,
                    .num_classes = from.num_classes,
                    .class_names = from.class_names,
                    .may_ignore = from.may_ignore};
    if (images_ != nullptr) {
      const ImageTarget& target = images_->target();
      spec.input_shape = {target.channels, target.height, target.width};
    }
    if (from.content == Content::kTokens) spec.input_dtype = at::kLong;
    if (from.targets == Targets::kNone) {
      if (!options_.may_lack_targets)
        refuse_feed(source_->place_of(0) +
                    " and the images next to it have no labels; unlabelled data works only with "
                    "`lockstep infer`; name the folder that has a folder for each class, or a CSV "
                    "file of images and labels");
      return spec;
    }
    // Mixed samples have shares of two classes, so their labels become soft.
    const bool mixes = options_.augment.mixup > 0;
    if (mixes && from.content == Content::kTokens) refuse_feed("tokens cannot be mixed (mixup)");
    if (from.targets == Targets::kTokens) spec.target_kind = TargetKind::kTokens;
    if (from.targets == Targets::kNumbers)
      spec.target_kind = options_.soft_labels ? TargetKind::kSoft : TargetKind::kValues;
    if (from.targets != Targets::kLabels) return spec;
    if (options_.num_classes > 0) spec.num_classes = options_.num_classes;
    if (spec.num_classes == 0) refuse_feed("the number of classes is unknown: give num_classes");
    spec.target_kind = options_.one_hot || mixes ? TargetKind::kSoft : TargetKind::kClass;
    return spec;
  }

  void read(int64_t index, Scratch* scratch) const {
    try {
      source_->read(index, &scratch->record);
    } catch (Error& fault) {
      fault.append(fmt::format(" (sample {})", index));
      throw;
    }
    ++scratch->num_records;
    scratch->num_record_bytes +=
        static_cast<int64_t>(scratch->record.input.size() + scratch->record.target.size());
    // Before any value is used as an index, in the loss or in a one-hot target.
    require_in_range(index, scratch->record);
  }

  void require_in_range(int64_t index, const Record& record) const {
    const SourceSpec& from = source_->spec();
    const int64_t count = spec_.num_classes;
    // The message states the position in the file and the sample's number.
    const auto refuse = [&](const std::string& place, const std::string& what) {
      throw Error(
          ExitCode::kBadData, "data",
          fmt::format("{}: sample {}: {}{}", place, index, what,
                      from.may_ignore ? fmt::format(" ({} is ignored)", kIgnoredTarget) : ""));
    };
    if (from.content == Content::kTokens) {
      const int64_t end = from.targets == Targets::kTokens ? count : INT64_MAX;
      if (const auto place = place_out_of_range(record.input, end, /*ignored=*/0))
        refuse(
            source_->place_of(index),
            fmt::format("input token {} at place {} is out of range; there are {} tokens, from 0",
                        token_at(record.input, *place), *place, end));
    }
    if (from.targets == Targets::kTokens) {
      const int64_t ignored = from.may_ignore ? kIgnoredTarget : 0;
      if (const auto place = place_out_of_range(record.target, count, ignored))
        refuse(
            source_->place_of_target(index),
            fmt::format("target token {} at place {} is out of range; there are {} tokens, from 0",
                        token_at(record.target, *place), *place, count));
    }
    if (from.targets != Targets::kLabels || count == 0) return;
    if (record.label < 0 || record.label >= count)
      refuse(source_->place_of_target(index),
             fmt::format("label {} is out of range; there are {} classes, from 0", record.label,
                         count));
  }

  void write_sample(int64_t index, int64_t epoch, int64_t row, Samples* samples,
                    Scratch* scratch) const {
    read(index, scratch);
    const SampleRandom random(options_.augment, epoch, index);
    if (spec_.input_dtype == at::kLong) {
      std::memcpy(samples->inputs_BX.mutable_data_ptr<int64_t>() + row * input_numbers_,
                  scratch->record.input.data(), scratch->record.input.size());
    } else {
      write_input(index, random,
                  samples->inputs_BX.mutable_data_ptr<float>() + row * input_numbers_, scratch);
    }
    if (samples->targets_BY.defined()) write_target(scratch->record, row, &samples->targets_BY);
    if (options_.augment.mixup > 0) mix_in(random, epoch, row, samples, scratch);
  }

  void write_input(int64_t index, const SampleRandom& random, float* out, Scratch* scratch) const {
    const SourceSpec& from = source_->spec();
    const std::string_view input = scratch->record.input;
    try {
      if (from.content == Content::kImage)
        images_->from_file(input, random, &scratch->image, out);
      else if (from.content == Content::kPixels)
        images_->from_pixels({reinterpret_cast<const uint8_t*>(input.data()), from.shape[1],
                              from.shape[2], from.shape[0], from.is_interleaved},
                             random, &scratch->image, out);
      else
        std::memcpy(out, input.data(), input.size());
    } catch (const Error& fault) {
      throw Error(
          fault.code(), "data",
          fmt::format("{}: sample {}: {}", source_->place_of(index), index, text_of(fault)));
    }
  }

  void write_target(const Record& record, int64_t row, at::Tensor* targets_BY) const {
    if (spec_.target_kind == TargetKind::kClass) {
      targets_BY->mutable_data_ptr<int64_t>()[row] = record.label;
    } else if (spec_.target_kind == TargetKind::kTokens) {
      std::memcpy(targets_BY->mutable_data_ptr<int64_t>() + row * target_numbers_,
                  record.target.data(), record.target.size());
    } else {
      float* const out = targets_BY->mutable_data_ptr<float>() + row * target_numbers_;
      if (source_->spec().targets == Targets::kNumbers) {
        std::memcpy(out, record.target.data(), record.target.size());
      } else {
        std::fill(out, out + target_numbers_, 0.0F);
        out[record.label] = 1;
      }
    }
  }

  /// Reads a sample for mixup into `other`. If damaged samples are skipped, a damaged partner is
  /// replaced by the next intact one. It is not this sample's fault.
  void read_partner(int64_t index, int64_t epoch, Scratch* scratch) const {
    const int64_t num_tries = options_.skips_damaged ? std::min(kMaxTries, num_samples()) : 1;
    for (int64_t tried = 0; tried < num_tries; ++tried) try {
        const int64_t partner = (index + tried) % num_samples();
        read(partner, scratch);
        write_input(partner, SampleRandom(options_.augment, epoch, partner), scratch->other.data(),
                    scratch);
        return;
      } catch (const Error& fault) {
        // A replaced file is not a damaged sample: its index no longer fits.
        const bool is_damaged = fault.code() == ExitCode::kBadData &&
                                dynamic_cast<const files::FileChanged*>(&fault) == nullptr;
        if (!is_damaged || tried + 1 == num_tries) throw;
      }
  }

  void mix_in(const SampleRandom& random, int64_t epoch, int64_t row, Samples* samples,
              Scratch* scratch) const {
    const auto share = static_cast<float>(random.mixup_share());
    scratch->other.resize(static_cast<size_t>(input_numbers_));
    read_partner(random.mixup_partner(num_samples()), epoch, scratch);
    float* const input = samples->inputs_BX.mutable_data_ptr<float>() + row * input_numbers_;
    for (int64_t i = 0; i < input_numbers_; ++i)
      input[i] += share * (scratch->other[static_cast<size_t>(i)] - input[i]);
    float* const target = samples->targets_BY.mutable_data_ptr<float>() + row * target_numbers_;
    // Targets mix with the same shares as inputs.
    for (int64_t i = 0; i < target_numbers_; ++i) target[i] *= 1 - share;
    if (source_->spec().targets == Targets::kLabels) {
      target[scratch->record.label] += share;
      return;
    }
    for (int64_t i = 0; i < target_numbers_; ++i) {
      float number = 0;
      std::memcpy(&number, scratch->record.target.data() + 4 * i, sizeof number);
      target[i] += share * number;
    }
  }

  std::unique_ptr<Source> source_;
  FeedOptions options_;
  SampleSpec spec_;
  std::unique_ptr<ImageTransform> images_;  ///< null for floats and tokens
  int64_t input_numbers_ = 1, target_numbers_ = 1;
  BatchMemory memory_;
};

}  // namespace

std::unique_ptr<Dataset> make_files_dataset(std::unique_ptr<Source> source,
                                            const FeedOptions& options) {
  return std::make_unique<FilesDataset>(std::move(source), options);
}

}  // namespace lockstep::data
