#pragma once

#include <vector>

#include "base/tensors/superaccumulator.h"
#include "optim/elementwise.h"

namespace lockstep::optim {

/// w -= rate * |w| / |r| * r, with the direction r of rules::LambDirection and the lengths |w| and
/// |r| of the whole parameter; where |w| is 0 or |r| below 1e-30, w -= rate * r. So weights whose
/// gradients have stopped come to rest: as r fades, |w| / |r| would pass what a float holds.
/// Source: You et al. 2020, algorithm 2, with the identity as its phi.
///
/// Lengths are sums of squares that are exact over rows (base/tensors/square_sums.h), so they have
/// the same bits where the parameter is divided among ranks: one message of 1,088 bytes a parameter
/// then joins them. On a device they are rounded region by region.
class Lamb final : public Elementwise<rules::LambDirection> {
 public:
  Lamb(const OptimizerOptions& options, std::vector<FlatBuffer>& buffers, const ParamTable& params);
  bool is_elementwise() const override { return false; }

 private:
  /// Of one parameter.
  struct Squares {
    Superaccumulator values, directions;
    void add(const Squares& others);
    double trust_ratio() const;
  };

  void update(const FlatBuffer& buffer, SlotPart* part, const GroupRates& rates) override;
  void update_in_pieces(const FlatBuffer& buffer, const SlotPart& part, const GroupRates& rates);
  void end_step(const StepRates& rates) override;
  void add_squares_of(const FlatBuffer& buffer, const FlatSlice& slice, const ParamShard& region,
                      Squares* sums) const;
  void join();

  std::vector<int64_t> row_E_by_param_;
  std::vector<Squares> squares_;  // by parameter, of this step's regions
};

}  // namespace lockstep::optim
