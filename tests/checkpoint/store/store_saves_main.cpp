// Saves in an object store, for store_saves_test.py:
//   save PREFIX WORLD KEEP NUMBER...  saves SmallState(NUMBER): "saved NUMBER" or "failed NUMBER"
//   restore PREFIX WORLD              "restored NUMBER" if every value is that save's
//   verify FOLDER                     the defects of all checkpoints, one a line
//   gc FOLDER                         removes what is interrupted, of any age
// In mode `save` it waits for a line on stdin before each number. STORE_COPIES names a folder for
// copies of two hosts, host0 and host1, which ranks take in turn. Exit code 1 means an error, which
// is printed.
#include <cstdio>
#include <cstdlib>
#include <exception>
#include <filesystem>
#include <iostream>
#include <string>
#include <vector>

#include "base/error.h"
#include "checkpoint/restore.h"
#include "checkpoint/save/saver.h"
#include "checkpoint/tools/gc.h"
#include "dist/communicator.h"
#include "remote/object_store.h"
#include "tests/checkpoint/save_fixture.h"
#include "tests/support/thread_world.h"

namespace lockstep::checkpoint {
namespace {

using Words = std::vector<std::string>;

/// Returns the folder of a rank's host; empty: no copies.
std::string copies_folder(const dist::Communicator& ranks) {
  const char* const dir = std::getenv("STORE_COPIES");
  return dir == nullptr ? "" : dir + std::string("/host") + std::to_string(ranks.rank() % 2);
}

void save(const Words& words) {
  lockstep::tests::run_ranks(std::stoi(words.at(1)), [&](dist::Communicator& ranks) {
    Saver saver({.prefix = words.at(0),
                 .keep_checkpoint_max = std::stoll(words.at(2)),
                 .copies_folder = copies_folder(ranks),
                 .min_cut_bytes = 1024},
                ranks);
    for (size_t i = 3; i < words.size(); ++i) {
      std::string line;
      if (ranks.rank() == 0) std::getline(std::cin, line);
      ranks.barrier();
      tests::SmallState state(std::stoll(words[i]));
      const SaveResult result = saver.save(state.list(), std::stoll(words[i]));
      if (ranks.rank() != 0) continue;
      std::printf(result.ok ? "saved %s\n" : "failed %s: %s\n", words[i].c_str(),
                  result.error.c_str());
      std::fflush(stdout);
    }
  });
}

void restore(const Words& words) {
  const std::filesystem::path prefix(words.at(0));
  lockstep::tests::run_ranks(std::stoi(words.at(1)), [&](dist::Communicator& ranks) {
    tests::SmallState state(-1);
    const auto report = restore_latest(prefix.parent_path(), prefix.filename().string(),
                                       state.list(), ranks, copies_folder(ranks));
    const bool is_whole = !report || state == tests::SmallState(report->number);
    if (ranks.rank() == 0)
      std::printf("%s %lld\n", is_whole ? "restored" : "MIXED",
                  report ? static_cast<long long>(report->number) : -1);
  });
}

void verify_all(const Words& words) {
  for (const SaveName& save : find_saves(words.at(0)))
    for (const std::string& defect : verify(save.prefix)) std::printf("%s\n", defect.c_str());
}

}  // namespace
}  // namespace lockstep::checkpoint

int main(int argc, char** argv) {
  using namespace lockstep::checkpoint;
  lockstep::remote::add_stores();
  const std::string mode = argv[1];
  const Words words(argv + 2, argv + argc);
  try {
    if (mode == "save") save(words);
    if (mode == "restore") restore(words);
    if (mode == "verify") verify_all(words);
    if (mode == "gc")
      std::printf("%s", collect_garbage(words.at(0), {.min_age_s = 0}).text.c_str());
    return 0;
  } catch (const std::exception& fault) {
    std::printf("%s\n", fault.what());
    return 1;
  }
}
