#pragma once

#include <optional>
#include <string_view>

namespace lockstep::daemon {

/// The number that a quantity of Kubernetes stands for: 2, 500m, 1.5, 4Gi, 20G, 1e9. Nothing for
/// any other text, and below 0.
std::optional<double> kubernetes_quantity(std::string_view text);

}  // namespace lockstep::daemon
