// An override says what the same text in the file says: the same settings, or the same faults.

#include <fstream>
#include <random>

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "daemon/config/run_config.h"
#include "support/temporary_folder.h"

namespace lockstep::daemon {
namespace override_equality_test {

constexpr int kNumTexts = 1000;

/// Position of the text: the file's part before the key, then the key's own lines.
struct Spot {
  std::string path;
  std::string before;  ///< of the section, ends where the key's line begins
  std::string indent;  ///< of the key
  std::string usual;   ///< a value that is no fault
};

const std::string kStart =
    "version: 1.0.0\n"
    "run: &r {name: a, seed: &seed 3}\n"
    "train: {max_steps: &few 5}\n";
const std::string kData =
    "data:\n  global_batch_size: 8\n  train: &d {type: digits, split: &part train}\n";

const std::vector<Spot>& spots() {
  static const std::vector<Spot> all = {
      {"optimizer.learning_rate", kData + "optimizer:\n  type: sgd\n", "  ", "0.1"},
      {"optimizer.type", kData + "optimizer:\n  learning_rate: 0.1\n", "  ", "sgd"},
      {"optimizer", kData, "", "{type: sgd}"},
      {"sync.shard_optimizer", kData + "sync:\n", "  ", "true"},
      {"checkpoint.prefix", kData + "checkpoint:\n", "  ", "m"},
      {"checkpoint.include", kData + "checkpoint:\n", "  ", "[model]"},
      {"checkpoint.save_checkpoints_steps", kData + "checkpoint:\n", "  ", "7"},
      {"model.layers", kData + "model:\n  type: mlp\n", "  ", "[64, 10]"},
      {"model", kData, "", "{type: digits_net}"},
      {"data.eval", kData, "  ", "{type: digits}"},
      {"data.eval.samples", kData + "  eval:\n    type: random\n", "    ", "12"},
      {"data.eval.shape", kData + "  eval:\n    type: random\n", "    ", "[2, 3]"},
      {"modifiers", kData, "", "[!EpochRangeModifier {start_epoch: 0, end_epoch: 1}]"},
      {"summary.per_layer", kData + "summary:\n", "  ", "true"}};
  return all;
}

/// The file with `text` at the spot; its further lines stand below it.
std::string file_with(const Spot& spot, const std::string& text) {
  std::string shifted;
  for (const char c : text) {
    shifted += c;
    if (c == '\n') shifted += spot.indent + "  ";
  }
  const std::string key = spot.path.substr(spot.path.rfind('.') + 1);
  return kStart + spot.before + spot.indent + key + ": " + shifted + "\n";
}

class Texts {
 public:
  explicit Texts(unsigned seed) : random_(seed) {}

  std::string next() {
    switch (below(8)) {
      case 0:
        return block();
      case 1:
        return noise();
      default:
        return value(below(5));
    }
  }

 private:
  size_t below(size_t bound) { return random_() % bound; }
  template <size_t N>
  std::string one_of(const char* const (&words)[N]) {
    return words[below(N)];
  }

  std::string scalar() {
    return one_of({"0.1",        "1e-3",
                   "5",          "-3",
                   "0x10",       ".nan",
                   "1e400",      "null",
                   "~",          "Null",
                   "true",       "False",
                   "yes",        "",
                   "''",         "\"\"",
                   "'it''s'",    "\"a\\tb\\u00e9\"",
                   "digits",     "random",
                   "sgd",        "adam",
                   "test",       "é",
                   "数据",       "\xF0\x9F\x98\x80",
                   "a b  c",     "a#b",
                   "a #b",       "eval(1+2)",
                   "eval(x)",    "012",
                   "1_000",      "12:30:45",
                   "*d",         "*part",
                   "*r",         "*few",
                   "*nowhere",   "&a 1",
                   "&a",         "!x y",
                   "!!int 5",    "!!str 5",
                   "!<tag:a> 5", "! 5",
                   "off",        "'*.conv'",
                   "re:.*",      "__ALL__",
                   "2026-01-01", "\"\\xff\"",
                   "m"});
  }
  std::string key() {
    return one_of({"type", "split", "layers", "learning_rate", "samples", "shape", "start_epoch",
                   "end_epoch", "x", "<<", "é", "null", "\"a b\"", "? a", "*part", "seed"});
  }
  std::string value(size_t depth) {
    if (depth == 0) return scalar();
    switch (below(7)) {
      case 0:
        return list(depth);
      case 1:
        return "{" + pairs(depth) + "}";
      case 2:
        return one_of(
                   {"!EpochRangeModifier ", "!SetLearningRateModifier ", "!x ", "&a ", "!x &b "}) +
               value(depth - 1);
      case 3:
        return "[!EpochRangeModifier {start_epoch: " + scalar() + ", end_epoch: " + scalar() + "}]";
      case 4:
        return "[&q " + scalar() + ", *q, " + value(depth - 1) + "]";
      case 5:
        return std::string(depth * 14, '[') + std::string(depth * 14, ']');
      default:
        return scalar();
    }
  }
  std::string list(size_t depth) {
    std::string text = "[";
    for (size_t i = 0, n = below(4); i < n; ++i) text += (i > 0 ? ", " : "") + value(depth - 1);
    return text + "]";
  }
  std::string pairs(size_t depth) {
    std::string text;
    for (size_t i = 0, n = below(4); i < n; ++i)
      text += (i > 0 ? ", " : "") + key() + ": " + value(depth - 1);
    return text;
  }
  /// Several lines.
  std::string block() {
    const std::string start = one_of({"", "|", ">", "!x", "&a", "|2", "# note", "a"});
    std::string text = start;
    for (size_t i = 0, n = 1 + below(3); i < n; ++i)
      text += "\n" + one_of({"", "  ", "\t"}) +
              one_of({"- ", "", "type: ", "k: ", "# ", "---", "...", "learning_rate: ", "? "}) +
              scalar();
    return text;
  }
  /// Characters without a plan.
  std::string noise() {
    std::string text;
    for (size_t i = 0, n = 1 + below(12); i < n; ++i)
      text += one_of({"[",  "]", "{", "}", ",",  ":", ": ", "\"", "'",    "&",   "*", "!",
                      "|",  ">", "%", "@", "`",  "#", " #", "-",  "- ",   "?",   " ", "\t",
                      "\n", "a", "1", "é", "\\", "=", "~",  "<<", "\x01", "\r\n"});
    return text;
  }

  std::mt19937 random_;
};

struct Outcome {
  std::vector<std::string> settings;
  std::vector<std::string> faults;
  bool operator==(const Outcome&) const = default;
};

std::string text_of(const Outcome& outcome) {
  return fmt::format("settings: {}\nfaults: {}", fmt::join(outcome.settings, "; "),
                     fmt::join(outcome.faults, "; "));
}

class OverrideEquality : public ::testing::Test {
 protected:
  Outcome outcome_of(const std::string& file, const std::vector<Override>& overrides) {
    const std::string path = (folder_.path() / "run.yaml").string();
    std::ofstream(path) << file;
    Diagnostics faults;
    const RunConfig config = load_run_config(path, overrides, &faults);
    Outcome outcome;
    for (const Fault& fault : faults.list())  // without the place of an alias
      outcome.faults.push_back(fault.message.substr(0, fault.message.find(" (used in ")));
    if (!faults.empty()) return outcome;
    for (const std::string& line : config.settings)  // the recipe's digest is that of the file
      if (!line.starts_with("recipe sha256=")) outcome.settings.push_back(line);
    return outcome;
  }

  tests::TemporaryFolder folder_;
};

TEST_F(OverrideEquality, AThousandTextsSayInAnOverrideWhatTheySayInTheFile) {
  Texts texts(20261122);
  int num_accepted = 0, num_refused = 0, num_changed = 0;
  for (int i = 0; i < kNumTexts; ++i) {
    const Spot& spot = spots()[static_cast<size_t>(i) % spots().size()];
    const std::string text = texts.next();
    Outcome in_file = outcome_of(file_with(spot, text), {});
    const Outcome above =
        outcome_of(file_with(spot, spot.usual), {parse_set(spot.path + "=" + text)});
    // A syntax error of YAML ends the reading of an override. A file is read further for other
    // faults.
    if (!above.faults.empty() && in_file.faults.size() > above.faults.size())
      in_file.faults.resize(above.faults.size());
    EXPECT_EQ(in_file, above) << spot.path << "=" << text << "\nin the file: " << text_of(in_file)
                              << "\nas an override: " << text_of(above);
    const Outcome before = outcome_of(file_with(spot, spot.usual), {});
    EXPECT_TRUE(before.faults.empty()) << text_of(before);
    (above.faults.empty() ? num_accepted : num_refused) += 1;
    num_changed += above.faults.empty() && !(above == before) ? 1 : 0;
  }
  EXPECT_GT(num_accepted, kNumTexts / 20);
  EXPECT_GT(num_changed, kNumTexts / 20);
  EXPECT_GT(num_refused, kNumTexts / 4);
}

}  // namespace override_equality_test
}  // namespace lockstep::daemon
