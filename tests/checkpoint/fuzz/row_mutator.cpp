#include "row_mutator.h"

#include <array>

#include <fmt/format.h>

#include "checkpoint/format/tensor_slice.h"

namespace lockstep::fuzz {

int64_t RowMutator::odd_number() {
  static constexpr std::array<int64_t, 18> kOdd{
      0,       1,       2,       3,         7,         -1,        -2,        64,        4095,
      1 << 16, 1 << 20, 1 << 30, 1LL << 31, 1LL << 32, 1LL << 40, 1LL << 62, INT64_MAX, INT64_MIN};
  const uint64_t near = chance(10) ? below(5) - 2 : 0;  // may go round
  return static_cast<int64_t>(static_cast<uint64_t>(kOdd[below(kOdd.size())]) + near);
}

void RowMutator::start(uint64_t index) { random_.seed(seed_ * 0x9e3779b97f4a7c15 + index); }

std::string RowMutator::index_of_case(uint64_t index, uint64_t which) {
  start(index);
  rows_ = seeds_[which % seeds_.size()];
  for (uint64_t i = chance(60) ? 1 : 1 + below(4); i > 0; --i) mutate_rows();
  std::string table = checkpoint::encode_table(rows_);
  if (chance(15)) {
    change_bytes(&table);
    mend_checksums(&table);
  }
  return table;
}

std::string RowMutator::bytes_of_case(uint64_t index, std::string bytes) {
  start(index);
  for (uint64_t i = below(4); i > 0; --i) change_bytes(&bytes);
  return bytes;
}

void RowMutator::mutate_rows() {
  const uint64_t kind = below(100);
  if (rows_.empty() || kind < 55) return change_entry();
  if (kind < 60) return change_header();
  if (kind < 75) return change_bytes(&any_value());
  if (kind < 85) return rename_row();
  if (kind < 94) return copy_value();
  if (kind < 96) return void(rows_.erase(any_key()));
  if (kind < 98) return add_many_rows();
  add_many_slices();
}

void RowMutator::change_entry() {
  if (rows_.empty()) return;
  std::string& value = any_value();
  Entry entry;
  if (!entry.ParseFromString(value)) return;
  switch (below(8)) {
    case 0:
      entry.set_dtype(chance(80) ? static_cast<int32_t>(below(26))
                                 : static_cast<int32_t>(odd_number()));
      break;
    case 1:
      entry.set_shard_id(static_cast<int32_t>(odd_number()));
      break;
    case 2:
      entry.set_offset(odd_number());
      break;
    case 3:
      entry.set_size(chance(50) ? odd_number() : static_cast<int64_t>(below(64)));
      break;
    case 4:
      entry.set_crc32c(static_cast<uint32_t>(random_()));
      break;
    case 5:
      change_shape(&entry);
      break;
    default:
      change_slices(&entry);
  }
  value = entry.SerializeAsString();
}

void RowMutator::change_shape(Entry* entry) {
  auto* shape = entry->mutable_shape();
  if (chance(5)) shape->set_unknown_rank(true);
  if (chance(30)) shape->add_dim()->set_size(odd_number());
  if (chance(3))
    for (int i = 0; i < 5000; ++i) shape->add_dim()->set_size(1);
  if (shape->dim_size() > 0 && chance(60))
    shape->mutable_dim(static_cast<int>(below(static_cast<uint64_t>(shape->dim_size()))))
        ->set_size(odd_number());
  if (shape->dim_size() > 0 && chance(10)) shape->mutable_dim()->RemoveLast();
}

void RowMutator::change_slices(Entry* entry) {
  auto* slices = entry->mutable_slices();
  if (chance(20)) slices->Add();
  if (slices->empty()) return;
  auto* slice = slices->Mutable(static_cast<int>(below(static_cast<uint64_t>(slices->size()))));
  if (chance(15)) slices->Add()->CopyFrom(*slice);
  if (chance(10)) slices->RemoveLast();
  if (slices->empty()) return;
  slice = slices->Mutable(static_cast<int>(below(static_cast<uint64_t>(slices->size()))));
  if (chance(20)) slice->add_extent();
  if (slice->extent_size() == 0) return;
  auto* extent =
      slice->mutable_extent(static_cast<int>(below(static_cast<uint64_t>(slice->extent_size()))));
  if (chance(40)) extent->set_start(odd_number());
  if (chance(40)) extent->set_length(odd_number());
  if (chance(10)) extent->clear_length();
}

void RowMutator::change_header() {
  checkpoint::pb::BundleHeaderProto header;
  header.ParseFromString(rows_[""]);
  if (chance(50)) header.set_num_shards(static_cast<int32_t>(odd_number()));
  if (chance(20)) header.mutable_version()->set_min_consumer(static_cast<int32_t>(odd_number()));
  if (chance(20)) header.set_endianness(checkpoint::pb::BundleHeaderProto::BIG);
  rows_[""] = header.SerializeAsString();
}

void RowMutator::change_bytes(std::string* bytes) {
  const size_t at = bytes->empty() ? 0 : below(bytes->size());
  switch (below(5)) {
    case 0:
      if (!bytes->empty()) (*bytes)[at] = static_cast<char>((*bytes)[at] ^ (1 << below(8)));
      break;
    case 1:
      if (!bytes->empty()) (*bytes)[at] = static_cast<char>(chance(50) ? 0xff : random_());
      break;
    case 2:
      bytes->insert(at, std::string(1 + below(9), static_cast<char>(random_())));
      break;
    case 3:
      bytes->erase(at, 1 + below(9));
      break;
    default:
      bytes->insert(at, bytes->substr(below(at + 1), 1 + below(40)));
  }
}

void RowMutator::rename_row() {
  const std::string key = any_key();
  auto row = rows_.extract(key);
  std::string name = key;
  const uint64_t kind = below(4);
  if (kind == 0) name = checkpoint::slice_key(any_key(), {{odd_number()}, {odd_number()}});
  if (kind == 1) name += any_key();
  if (kind == 2) change_bytes(&name);
  if (kind == 3) name = std::string(below(100'000), 'k');
  row.key() = name;
  rows_.insert(std::move(row));
}

void RowMutator::copy_value() {
  const std::string value = any_value();
  if (chance(50))
    any_value() = value;
  else
    rows_[any_key() + fmt::format("/{}", below(10))] = value;
}

void RowMutator::add_many_rows() {
  const std::string value = any_value(), key = any_key();
  const uint64_t count = chance(10) ? 400'000 : chance(10) ? 100'000 : below(3000);
  for (uint64_t i = 0; i < count; ++i) rows_[key + fmt::format("{:x}", i)] = value;
}

/// A tensor in many slices, sound or nearly so.
void RowMutator::add_many_slices() {
  const auto count = static_cast<int64_t>(chance(30) ? 100'000 : below(3000));
  const bool with_rows = chance(50);
  const int64_t length = chance(70) ? 1 : odd_number(), step = chance(70) ? 1 : pick(3);
  Entry parent;
  parent.set_dtype(1);
  parent.mutable_shape()->add_dim()->set_size(chance(80) ? count : odd_number());
  for (int64_t i = 0; i < count; ++i) {
    auto* extent = parent.add_slices()->add_extent();
    extent->set_start(i * step);
    extent->set_length(length);
    if (!with_rows) continue;
    Entry slice;
    slice.set_dtype(1);
    slice.mutable_shape()->add_dim()->set_size(length);
    slice.set_size(4 * (length & 0xffff));
    rows_[checkpoint::slice_key("many", {{i * step}, {length}})] = slice.SerializeAsString();
  }
  rows_["many"] = parent.SerializeAsString();
}

}  // namespace lockstep::fuzz
