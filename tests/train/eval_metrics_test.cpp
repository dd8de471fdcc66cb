// Metrics of evaluations, against loops over samples.
#include <ATen/Functions.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <map>

#include "base/error.h"
#include "data/dataset_table.h"
#include "model/networks/model_table.h"
#include "model/networks/small_networks.h"
#include "support/thread_world.h"
#include "train/evaluator.h"

namespace lockstep::train {
namespace eval_metrics_test {

using data::SampleSpec;
using data::TargetKind;
using ::testing::HasSubstr;

SampleSpec spec_of(TargetKind kind, int64_t num_classes) {
  return {.input_shape = {3}, .target_kind = kind, .num_classes = num_classes};
}

/// Options of `eval: {TEXT}`; faults as text.
EvalOptions options_of(const std::string& text, std::string* faults_text = nullptr) {
  Diagnostics faults;
  const YamlDocument document = YamlDocument::parse("run.yaml", "{" + text + "}", &faults);
  EvalOptions options = read_eval_options(ConfigReader(document.root(), "eval", document, &faults));
  if (faults_text != nullptr)
    *faults_text = faults.text();
  else
    EXPECT_TRUE(faults.empty()) << faults.text();
  return options;
}

std::string faults_of(const std::string& text) {
  std::string faults;
  (void)options_of(text, &faults);
  return faults;
}

std::map<std::string, at::Tensor> by_name(const std::vector<EvalValue>& values) {
  std::map<std::string, at::Tensor> found;
  for (const EvalValue& value : values) found[value.name] = value.value;
  return found;
}

constexpr const char* kAll =
    "metrics: [top_k, confusion_matrix, precision_recall, perplexity], top_k: {k: 2}";

/// All metrics of the outputs, seen in batches of `batch` samples.
std::map<std::string, at::Tensor> found_in(const SampleSpec& spec, const at::Tensor& outputs_BO,
                                           const at::Tensor& targets_BY, int64_t batch,
                                           const std::string& text = kAll) {
  std::vector<EvalValue> all;
  for (const EvalMetric& metric : make_eval_metrics(options_of(text), spec, true)) {
    at::Tensor sums = at::zeros({metric.num_sums}, at::kDouble);
    for (int64_t i = 0; i < outputs_BO.size(0); i += batch) {
      const int64_t count = std::min(batch, outputs_BO.size(0) - i);
      sums +=
          metric.sums(metric_data(outputs_BO.narrow(0, i, count), targets_BY.narrow(0, i, count)));
    }
    for (EvalValue& value : metric.values(sums)) all.push_back(value);
  }
  return by_name(all);
}

/// Outputs of 23 samples and 4 classes, of which the last is in no target and class 2 never the
/// highest.
struct Sheet {
  Sheet() {
    for (int64_t i = 0; i < 23; ++i) {
      classes.push_back(i * i % 3);
      rows.push_back({std::sin(static_cast<double>(i)), std::cos(1.7 * static_cast<double>(i)),
                      -2.0 + 0.01 * static_cast<double>(i),
                      0.9 * std::sin(0.3 * static_cast<double>(i))});
    }
  }
  size_t chosen(size_t i) const {
    return static_cast<size_t>(std::max_element(rows[i].begin(), rows[i].end()) - rows[i].begin());
  }
  at::Tensor outputs_BC() const {
    at::Tensor outputs = at::empty({23, 4});
    for (size_t i = 0; i < 23; ++i)
      for (size_t c = 0; c < 4; ++c)
        outputs[static_cast<int64_t>(i)][static_cast<int64_t>(c)] = rows[i][c];
    return outputs;
  }
  at::Tensor targets_B() const { return at::tensor(classes, at::kLong); }

  std::vector<int64_t> classes;
  std::vector<std::vector<double>> rows;
};

TEST(EvalMetrics, CountClassesAsALoopDoes) {
  const Sheet sheet;
  double counts[4][4] = {};
  double in_top_2 = 0, loss = 0;
  for (size_t i = 0; i < 23; ++i) {
    const auto own = static_cast<size_t>(sheet.classes[i]);
    counts[own][sheet.chosen(i)] += 1;
    std::vector<double> falling = sheet.rows[i];
    std::sort(falling.rbegin(), falling.rend());
    in_top_2 += sheet.rows[i][own] >= falling[1] ? 1 : 0;
    double sum = 0;
    for (const double output : sheet.rows[i]) sum += std::exp(output);
    loss += std::log(sum) - sheet.rows[i][own];
  }
  for (const int64_t batch : {1, 5, 23}) {
    auto found =
        found_in(spec_of(TargetKind::kClass, 4), sheet.outputs_BC(), sheet.targets_B(), batch);
    EXPECT_DOUBLE_EQ(found.at("top_2").item<double>(), in_top_2 / 23);
    EXPECT_NEAR(found.at("perplexity").item<double>(), std::exp(loss / 23), 1e-6);
    double precisions = 0;
    for (int64_t c = 0; c < 4; ++c) {
      double said = 0, are = 0;
      for (int64_t other = 0; other < 4; ++other) {
        said += counts[other][c];
        are += counts[c][other];
        EXPECT_EQ(found.at("confusion_matrix")[c][other].item<int64_t>(), counts[c][other]);
      }
      const double precision = said > 0 ? counts[c][c] / said : 0;
      precisions += precision;
      EXPECT_DOUBLE_EQ(found.at("precision")[c].item<double>(), precision);
      EXPECT_DOUBLE_EQ(found.at("recall")[c].item<double>(), are > 0 ? counts[c][c] / are : 0);
    }
    EXPECT_DOUBLE_EQ(found.at("macro_precision").item<double>(), precisions / 4);
  }
}

TEST(EvalMetrics, TokensAreSamplesAndSoftLabelsTheirMostProbableClass) {
  const Sheet sheet;
  const at::Tensor outputs_BC = sheet.outputs_BC().narrow(0, 0, 22);
  const at::Tensor classes_B = sheet.targets_B().narrow(0, 0, 22);
  const auto plain = found_in(spec_of(TargetKind::kClass, 4), outputs_BC, classes_B, 5);
  const auto tokens = found_in(spec_of(TargetKind::kTokens, 4), outputs_BC.view({2, 11, 4}),
                               classes_B.view({2, 11}), 1);
  const auto soft =
      found_in(spec_of(TargetKind::kSoft, 4), outputs_BC, at::one_hot(classes_B, 4) * 0.9 + 0.025,
               5, "metrics: [top_k, confusion_matrix], top_k: {k: 2}");
  EXPECT_TRUE(plain.at("confusion_matrix").equal(tokens.at("confusion_matrix")));
  EXPECT_TRUE(plain.at("confusion_matrix").equal(soft.at("confusion_matrix")));
  EXPECT_TRUE(plain.at("top_2").equal(soft.at("top_2")));
  EXPECT_NEAR(plain.at("perplexity").item<double>(), tokens.at("perplexity").item<double>(), 1e-6);
}

TEST(EvalMetrics, NoNumberIsNotAmongTheHighest) {
  const at::Tensor outputs_BC = at::full({1, 3}, std::numeric_limits<double>::quiet_NaN());
  const auto found = found_in(spec_of(TargetKind::kClass, 3), outputs_BC.to(at::kFloat),
                              at::zeros({1}, at::kLong), 1, "metrics: [top_k], top_k: {k: 3}");
  EXPECT_EQ(found.at("top_3").item<double>(), 0);
}

/// TensorFlow's in_top_k says False for [0.1, NaN, 0.0] and class 0.
TEST(EvalMetrics, ASampleWithAnOutputThatIsNotFiniteIsNotAmongTheHighest) {
  for (const double other :
       {std::numeric_limits<double>::quiet_NaN(), std::numeric_limits<double>::infinity(),
        -std::numeric_limits<double>::infinity()}) {
    const at::Tensor outputs_BC = at::tensor({0.1, other, 0.0}, at::kFloat).view({1, 3});
    const auto found = found_in(spec_of(TargetKind::kClass, 3), outputs_BC,
                                at::zeros({1}, at::kLong), 1, "metrics: [top_k], top_k: {k: 2}");
    EXPECT_EQ(found.at("top_2").item<double>(), 0) << other;
  }
}

TEST(EvalMetrics, RanksOfAnyNumberFindTheSame) {
  const data::DigitsDataset test("test", "");
  const EvalOptions options = options_of(std::string("batch_size: 50, ") + kAll);
  std::vector<double> top_2;
  for (const int world_size : {1, 2, 4}) {
    tests::run_ranks(world_size, [&](dist::Communicator& comm) {
      const auto net = model::digits_net().make({{1, 8, 8}, 10, 17});
      const EvalResult result =
          evaluate(ModelHandler(*net), Loss("auto", {}, test.spec()), test, options, comm);
      auto found = by_name(result.metrics);
      const at::Tensor matrix_CC = found.at("confusion_matrix");
      EXPECT_EQ(matrix_CC.sum().item<int64_t>(), 359);
      EXPECT_DOUBLE_EQ(matrix_CC.trace().item<double>() / 359, *result.accuracy);
      EXPECT_NEAR(found.at("perplexity").item<double>(), std::exp(result.loss), 1e-5);
      const at::Tensor recall_C = matrix_CC.diagonal() / matrix_CC.sum(1);
      EXPECT_TRUE(at::allclose(found.at("recall"), recall_C.to(at::kDouble)));
      if (comm.rank() == 0) top_2.push_back(found.at("top_2").item<double>());
    });
  }
  EXPECT_THAT(top_2, ::testing::Each(top_2[0]));
}

TEST(EvalMetrics, TheLineForPeopleHasTheNumbersOfAllSamples) {
  EvalResult result{.loss = 0.25, .num_samples = 4};
  EXPECT_EQ(text_of(result), "loss 0.2500 over 4 samples");
  result.accuracy = 0.5;
  result.metrics = {{"top_2", at::full({}, 0.75, at::kDouble)},
                    {"recall", at::full({3}, 0.1, at::kDouble)},
                    {"confusion_matrix", at::full({3, 3}, 1, at::kLong)}};
  EXPECT_EQ(text_of(result), "loss 0.2500, accuracy 0.5000, top_2 0.7500 over 4 samples");
}

EvalMetric samples_seen(const SampleSpec&) {
  return {.num_sums = 1,
          .sums =
              [](const coord::DataMap& data) {
                return at::full({1}, data.tensor("logits").size(0), at::kDouble);
              },
          .values = [](const at::Tensor& sums_S) -> std::vector<EvalValue> {
            return {{"samples_seen", sums_S[0]}};
          }};
}

TEST(EvalMetrics, AProgramAddsRowsOfItsOwn) {
  eval_metric_types().add({"samples_seen", [](ConfigReader*) { return samples_seen; }});
  const Sheet sheet;
  const auto found = found_in(spec_of(TargetKind::kClass, 4), sheet.outputs_BC(), sheet.targets_B(),
                              5, "metrics: [samples_seen]");
  EXPECT_EQ(found.at("samples_seen").item<double>(), 23);
}

TEST(EvalMetrics, PerplexityOfTokensIsUsual) {
  const auto usual = [](TargetKind kind, const std::string& text, bool outputs_are_usual) {
    return make_eval_metrics(options_of(text), spec_of(kind, 4), outputs_are_usual).size();
  };
  EXPECT_EQ(usual(TargetKind::kTokens, "", true), 1U);
  EXPECT_EQ(usual(TargetKind::kTokens, "", false), 0U);
  EXPECT_EQ(usual(TargetKind::kTokens, "metrics: []", true), 0U);
  EXPECT_EQ(usual(TargetKind::kClass, "", true), 0U);
}

TEST(EvalMetrics, FaultsOfTheRunFileAreToldWithNames) {
  EXPECT_THAT(faults_of("metrics: [top_q]"), HasSubstr("did you mean 'top_k'?"));
  EXPECT_THAT(faults_of("metrics: [top_k, top_k]"), HasSubstr("names 'top_k' twice"));
  EXPECT_THAT(faults_of("metrics: [top_k], top_k: {n: 2}"),
              HasSubstr("unknown key 'n' in 'eval.top_k'"));
  EXPECT_FALSE(options_of("metrics: null, top_k: null").metrics.has_value());
  EXPECT_THAT(faults_of("top_k: {k: 2}"), HasSubstr("'eval.top_k' has no effect"));
}

void expect_refused(const std::string& text, const SampleSpec& spec, const std::string& message) {
  try {
    (void)make_eval_metrics(options_of(text), spec, true);
    ADD_FAILURE() << text << " is not refused";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ExitCode::kConfig);
    EXPECT_THAT(error.what(), HasSubstr(message));
  }
}

TEST(EvalMetrics, WhatDoesNotFitTheDataIsRefused) {
  expect_refused("metrics: [top_k]", spec_of(TargetKind::kClass, 4),
                 "eval.top_k.k is 5, but the data has 4 classes");
  expect_refused("metrics: [confusion_matrix]", spec_of(TargetKind::kClass, 1001),
                 "confusion_matrix supports at most 1000 classes, the data has 1001");
  expect_refused("metrics: [precision_recall]", spec_of(TargetKind::kValues, 1),
                 "precision_recall does not support");
  expect_refused("metrics: [perplexity]", spec_of(TargetKind::kSoft, 4),
                 "perplexity needs tokens or class numbers");
}

}  // namespace eval_metrics_test
}  // namespace lockstep::train
