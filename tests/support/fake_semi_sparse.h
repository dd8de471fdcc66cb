#pragma once

#include <torch/library.h>

namespace lockstep::tests {

/// cuSPARSELt's operators on the CPU, while this lives: the layout of a compressed weight, and the
/// refusals of the real ones for shapes, types and weights that are not 2:4. One at a time.
class FakeSemiSparse {
 public:
  /// refuses: as a GPU without sparse tensor cores.
  explicit FakeSemiSparse(bool refuses = false);
  ~FakeSemiSparse();
  FakeSemiSparse(const FakeSemiSparse&) = delete;
  FakeSemiSparse& operator=(const FakeSemiSparse&) = delete;

  /// Products since the construction, those of ranks in threads too.
  int num_products() const;

 private:
  torch::Library library_;
};

}  // namespace lockstep::tests
