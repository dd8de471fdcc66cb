#pragma once

#include <cstdint>
#include <random>
#include <string>
#include <vector>

#include "checkpoint/proto/bundle.pb.h"
#include "tests/checkpoint/bundle/table_rows.h"

namespace lockstep::fuzz {

/// Makes false and hostile indexes of good ones, with right checksums. What case i of a seed is
/// depends on nothing else.
class RowMutator {
 public:
  /// `seeds` must hold one at least.
  RowMutator(std::vector<checkpoint::TableRows> seeds, uint64_t seed)
      : seeds_(std::move(seeds)), seed_(seed) {}

  /// The bytes of an index. Begins with seed number `which` modulo their number.
  std::string index_of_case(uint64_t index, uint64_t which);
  /// Any bytes made of these.
  std::string bytes_of_case(uint64_t index, std::string bytes);

 private:
  using Entry = checkpoint::pb::BundleEntryProto;

  uint64_t below(uint64_t n) { return random_() % n; }
  bool chance(int percent) { return below(100) < static_cast<uint64_t>(percent); }
  int64_t odd_number();
  std::string& any_value() { return std::next(rows_.begin(), pick(rows_.size()))->second; }
  std::string any_key() { return std::next(rows_.begin(), pick(rows_.size()))->first; }
  ptrdiff_t pick(size_t n) { return static_cast<ptrdiff_t>(below(n)); }

  void start(uint64_t index);
  void mutate_rows();
  void change_entry();
  void change_shape(Entry* entry);
  void change_slices(Entry* entry);
  void change_header();
  void change_bytes(std::string* bytes);
  void rename_row();
  void copy_value();
  void add_many_rows();
  void add_many_slices();

  std::vector<checkpoint::TableRows> seeds_;
  uint64_t seed_;
  std::mt19937_64 random_;
  checkpoint::TableRows rows_;
};

/// Puts right crcs behind the blocks of a table whose bytes were changed, as far as its places of
/// blocks can be followed.
void mend_checksums(std::string* table);

}  // namespace lockstep::fuzz
