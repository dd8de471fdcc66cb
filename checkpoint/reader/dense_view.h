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

/// Description of one tensor, independent of how it is stored.
struct DenseTensor {
  int32_t dtype = 0;           ///< type number as in tensor_type.h
  std::vector<int64_t> shape;  ///< of the dense tensor
  /// Entry of the tensor, or of its kept values if it is sparse.
  const BundleEntry* entry = nullptr;
  std::string mask_name;  ///< in the index; empty unless it is sparse
  int64_t dense_bytes = 0;
  /// Size in the shards, without the mask, which is a tensor itself.
  int64_t stored_bytes = 0;

  bool is_sparse() const { return !mask_name.empty(); }
};

/// Tensors of a checkpoint under their own names. For a sparse tensor the checkpoint stores only
/// the values that a mask keeps (docs/checkpoint_format.md, Sparse tensors). This view lists the
/// dense tensor and hides its parts. The reader must outlive the view. One thread at a time.
class DenseView {
 public:
  /// Throws Error(kBadData) if parts of a sparse tensor are missing or inconsistent.
  explicit DenseView(BundleReader* reader);

  /// Returns the names as in an index, sorted.
  const std::vector<std::string>& names() const { return names_; }
  /// Returns a tensor's description; nullopt if there is none. It is built on each call, because an
  /// index may have very many tensors.
  std::optional<DenseTensor> find(const std::string& name) const;
  bool contains(const std::string& name) const { return find(name).has_value(); }
  bool is_text(const std::string& name) const;
  /// True if the tensor is stored as the values that a mask keeps.
  bool is_sparse(const std::string& name) const { return sparse_.contains(name); }

  /// Returns a new CPU tensor; pruned elements are +0. Not for texts. Throws as BundleReader::read,
  /// and Error(kBadData) if the mask keeps another number of elements than the values have.
  at::Tensor read(const std::string& name);
  /// Reads like BundleReader::read_all.
  void read_all(const std::vector<TensorRead>& reads);
  /// Returns the strings in row-major order.
  std::vector<std::string> read_texts(const std::string& name);
  /// Checks the mask of a sparse tensor as read() does, without memory for the dense tensor. The
  /// crc of the parts is not checked.
  void check_mask(const std::string& name) { (void)mask_of(name); }

 private:
  void add_sparse(const std::string& key, const std::string& form_name);
  SparseForm form_at(const std::string& form_name);
  at::Tensor mask_of(const std::string& name);
  void read_sparse(const TensorRead& read);

  BundleReader& reader_;
  std::vector<std::string> names_;
  std::map<std::string, DenseTensor> sparse_;
  std::set<std::string> parts_;              ///< names that are parts of sparse tensors
  std::map<std::string, at::Tensor> masks_;  ///< masks read so far; weight and moments share one
};

}  // namespace lockstep::checkpoint
