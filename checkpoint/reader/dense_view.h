#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include <ATen/core/Tensor.h>

#include "checkpoint/reader/bundle_reader.h"
#include "checkpoint/reader/sparse_form.h"

namespace lockstep::checkpoint {

/// What a save says of one tensor, however it is stored.
struct DenseTensor {
  int32_t dtype = 0;           ///< number as in tensor_type.h
  std::vector<int64_t> shape;  ///< of the dense tensor
  /// Entry of the tensor; of its kept values if it is sparse.
  const BundleEntry* entry = nullptr;
  std::string mask_name;  ///< in the index; empty unless it is sparse
  int64_t dense_bytes = 0;
  /// In the shards, without the mask, which is a tensor of its own.
  int64_t stored_bytes = 0;

  bool is_sparse() const { return !mask_name.empty(); }
};

/// The tensors of a save under the names that they have whole. Where a save holds only the values
/// that a mask keeps (docs/checkpoint_format.md, Sparse tensors), their tensor stands here under
/// its own name, and its parts do not. The reader must outlive the view. One thread at a time.
class DenseView {
 public:
  /// Throws Error(kBadData) if the parts of a sparse tensor are missing or do not fit each other.
  explicit DenseView(BundleReader* reader);

  /// Names as in an index, sorted.
  const std::vector<std::string>& names() const { return names_; }
  /// Nothing if there is no such tensor. Made anew for each call: an index may have very many.
  std::optional<DenseTensor> find(const std::string& name) const;
  bool contains(const std::string& name) const { return find(name).has_value(); }
  bool is_text(const std::string& name) const;
  /// Stored as the values that a mask keeps.
  bool is_sparse(const std::string& name) const { return sparse_.contains(name); }

  /// A new CPU tensor, pruned elements +0. Not for texts. Throws as BundleReader::read, and
  /// Error(kBadData) if a mask does not keep as many elements as there are values.
  at::Tensor read(const std::string& name);
  /// As BundleReader::read_all.
  void read_all(const std::vector<TensorRead>& reads);
  /// In row-major order.
  std::vector<std::string> read_texts(const std::string& name);
  /// Checks what read() checks of a sparse tensor beyond the crc of its parts, without taking
  /// memory for it.
  void check_mask(const std::string& name) { (void)mask_of(name); }

 private:
  void add_sparse(const std::string& key, const std::string& form_name);
  SparseForm form_at(const std::string& form_name);
  at::Tensor mask_of(const std::string& name);
  void read_sparse(const TensorRead& read);

  BundleReader& reader_;
  std::vector<std::string> names_;
  std::map<std::string, DenseTensor> sparse_;
  std::set<std::string> parts_;              ///< names that stand for no tensor of their own
  std::map<std::string, at::Tensor> masks_;  ///< read so far; weight and moments share theirs
};

}  // namespace lockstep::checkpoint
