#pragma once

#include <torch/version.h>

#include "estimator/estimator_spec.h"
#include "estimator/headers_digest.h"

// Declaration of a plug-in: one of the two macros below, once, outside of namespaces.
//
//   LOCKSTEP_ESTIMATOR(Moons)         the class Moons, derived from EstimatorSpec, is estimator
//                                     `Moons` of the run file
//   LOCKSTEP_PLUGIN(add_rows)         void add_rows() adds rows to the program's tables:
//                                     model::model_types(), data::dataset_types(),
//                                     recal::modifier_kinds(), metrics::step_metrics(),
//                                     coord::callback_types(), train::loss_types(),
//                                     train::eval_metric_types(),
//                                     estimator::estimator_types()
//
// Build it with the CMake target lockstep::plugin, which is headers only. Functions and tables of
// Lockstep are those of the program that opens the file. It is opened once per process, when the
// run file is read, and remains. The main thread then calls add_rows(). Its exception ends the run
// with the exit code of an Error, else 78.

#ifndef LOCKSTEP_VERSION
#error \
    "LOCKSTEP_VERSION is not defined: target_link_libraries(<your target> PRIVATE lockstep::plugin)"
#endif

#define LOCKSTEP_TEXT_OF_VALUE(value) #value
#define LOCKSTEP_TEXT_OF(macro) LOCKSTEP_TEXT_OF_VALUE(macro)

/// Properties that a plug-in and the program that opens it must share.
#define LOCKSTEP_PLUGIN_STAMP                                           \
  "Lockstep " LOCKSTEP_VERSION " with headers " LOCKSTEP_HEADERS_DIGEST \
  ", LibTorch " TORCH_VERSION ", C++ ABI " LOCKSTEP_TEXT_OF(            \
      __GXX_ABI_VERSION) " with C++11 strings " LOCKSTEP_TEXT_OF(_GLIBCXX_USE_CXX11_ABI)

/// Marker before the stamp in the file, so that the stamp is found before any of the file's code
/// runs.
#define LOCKSTEP_PLUGIN_MARK "@(#)lockstep plug-in for: "

#define LOCKSTEP_PLUGIN(add_rows)                                                        \
  extern "C" {                                                                           \
  extern __attribute__((visibility("default"))) const char lockstep_plugin_stamp[];      \
  const char lockstep_plugin_stamp[] = LOCKSTEP_PLUGIN_MARK LOCKSTEP_PLUGIN_STAMP;       \
  __attribute__((visibility("default"))) void lockstep_plugin_add_rows() { add_rows(); } \
  }

#define LOCKSTEP_ESTIMATOR(Class)                                             \
  static void lockstep_add_estimator() {                                      \
    ::lockstep::estimator::estimator_types().add(                             \
        {.name = #Class, .value = [] { return std::make_unique<Class>(); }}); \
  }                                                                           \
  LOCKSTEP_PLUGIN(lockstep_add_estimator)
