#pragma once

#include <cstdlib>
#include <string_view>

#include <gtest/gtest.h>

namespace lockstep::tests {

/// True if a missing tool or oracle fails a test instead of skipping it, as in CI.
inline bool oracles_are_required() {
  const char* value = std::getenv("LOCKSTEP_REQUIRE_ORACLES");
  return value != nullptr && std::string_view(value) == "ON";
}

}  // namespace lockstep::tests

/// Ends the test because a tool or an oracle (PyTorch, TensorFlow, promtool, a module that is not
/// built) is not there: skipped, or failed where LOCKSTEP_REQUIRE_ORACLES is ON. What the
/// environment forbids is a GTEST_SKIP() instead. In the body of a test or of SetUp().
#define LOCKSTEP_MISSING_ORACLE(reason)                          \
  do {                                                           \
    if (::lockstep::tests::oracles_are_required())               \
      FAIL() << (reason) << " (LOCKSTEP_REQUIRE_ORACLES is ON)"; \
    else                                                         \
      GTEST_SKIP() << (reason);                                  \
  } while (false)
