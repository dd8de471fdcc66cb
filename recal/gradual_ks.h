#pragma once

#include <memory>
#include <string>

#include "recal/modifier.h"
#include "recal/param_selector.h"

namespace lockstep::recal {

/// Sparsity is the pruned fraction of one parameter's weights, in [0, 1).
struct GradualKSOptions {
  ParamSelector params;
  double init_sparsity = 0;   ///< in force from start_epoch
  double final_sparsity = 0;  ///< in force from end_epoch
  Decimal start_epoch;
  Decimal end_epoch;
  Decimal update_frequency;          ///< epochs from one mask to the next
  std::string inter_func = "cubic";  ///< cubic, linear, inverse_cubic
  bool leave_enabled = true;         ///< masks are kept after the end
};

/// How far from init (0) to final (1) sparsity after the fraction `done` in [0, 1] of the window:
///   linear         done
///   cubic          1 - (1 - done)^3        (Zhu & Gupta 2017, arXiv:1710.01878, eq. 1)
///   inverse_cubic  1 - (1 - done)^(1/3)
double curve(std::string_view inter_func, double done);

/// Prunes the smallest weights of each named parameter, more at each update. Update k falls on the
/// first step at or after epoch start + k * update_frequency and takes the curve's value at that
/// epoch, so that the values do not depend on the batch size; the last one falls on end_epoch.
class GradualKS final : public Modifier {
 public:
  static constexpr std::string_view kTag = "GradualKSModifier";
  static std::unique_ptr<Modifier> read(YamlFields* in, Place place);

  GradualKS(GradualKSOptions options, Place place)
      : Modifier(std::move(place)), options_(std::move(options)) {}

  std::string_view tag() const override { return kTag; }
  Window window() const override { return {options_.start_epoch, options_.end_epoch}; }
  std::string summary() const override;
  void contribute(TimelineBuilder* builder) const override;

  /// Scheduled sparsity of update k (0 at start_epoch).
  double sparsity_of_update(int64_t k) const;

 private:
  GradualKSOptions options_;
};

}  // namespace lockstep::recal
