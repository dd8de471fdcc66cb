#include "checkpoint/save/shard_writer.h"

#include <algorithm>
#include <bit>
#include <cstring>
#include <system_error>

#include <fmt/format.h>

#include "base/digest.h"
#include "base/error.h"
#include "base/files/files.h"
#include "base/files/large_files.h"
#include "checkpoint/format/bundle_encoding.h"
#include "checkpoint/format/entry_proto.h"
#include "checkpoint/format/tensor_slice.h"
#include "checkpoint/proto/shard_report.pb.h"

namespace lockstep::checkpoint {

// StagedShard: lays out and fills the image of a shard. Layout depends on shapes only; filling
// copies and checksums in one pass.

namespace {

static_assert(std::endian::native == std::endian::little, "files are little-endian");

constexpr int64_t kPartBytes = int64_t{1} << 20;  // copied, then hashed from the cache

int64_t rounded_up(int64_t num_bytes) {
  return (num_bytes + kTensorAlignment - 1) / kTensorAlignment * kTensorAlignment;
}

/// Returns the range's elements as a file stores them. The result shares the tensor's memory if
/// possible.
at::Tensor stored_elements(const at::Tensor& tensor, const ElementRange& range) {
  return tensor.detach()
      .reshape({-1})
      .narrow(0, range.begin_E, range.num_elements())
      .cpu()
      .resolve_conj()
      .resolve_neg()
      .contiguous();
}

/// Returns the elements of stored ones that this rank holds. Elements of other ranks have undefined
/// values, so they must not be checked for +0.
ElementRange held_elements(const StoredTensor& piece, const MaskIndex& kept,
                           const ElementRange& stored) {
  if (piece.held_dense)
    for (const ElementRange& held : *piece.held_dense) {
      const ElementRange kept_here = kept.stored(held);
      if (kept_here.begin_E <= stored.begin_E && stored.begin_E < kept_here.end_E) return held;
    }
  return {0, piece.tensor.numel()};
}

/// Packs the kept elements of a pruned tensor, part by part.
class Packer {
 public:
  Packer(const StoredTensor& piece, const ElementRange& stored)
      : piece_(piece),
        kept_(piece.kept_bits, piece.tensor.numel()),
        elements_(piece.tensor.detach().cpu().contiguous()),  // itself if possible
        held_(held_elements(piece, kept_, stored)) {}

  /// Packs these stored elements, and checks that the pruned ones among them are +0.
  void pack(const ElementRange& stored, char* to) const {
    const ElementRange all = kept_.elements(stored);
    const ElementRange here{std::max(all.begin_E, held_.begin_E), std::min(all.end_E, held_.end_E)};
    if (!kept_.pack(static_cast<const char*>(elements_.const_data_ptr()), here,
                    static_cast<int>(piece_.element_bytes), to))
      throw Error(ExitCode::kBug, "checkpoint",
                  fmt::format("'{}': an element that its mask prunes is not 0, so a sparse "
                              "checkpoint would lose it; set checkpoint.sparse: false",
                              piece_.name));
  }

 private:
  const StoredTensor& piece_;
  const MaskIndex kept_;
  const at::Tensor elements_;
  const ElementRange held_;
};

}  // namespace

StagedShard::StagedShard(const std::vector<StoredTensor>& pieces,
                         const std::vector<ShardItem>& parts, int32_t shard, StagingBuffer* memory)
    : memory_(memory) {
  lay_out(pieces, parts, shard);
  memory_->reserve(padded_bytes());
  const auto num_chunks = static_cast<size_t>((padded_bytes() + StagingBuffer::kChunkBytes - 1) /
                                              StagingBuffer::kChunkBytes);
  chunks_.resize(num_chunks);
  num_releases_ = std::vector<std::atomic<int>>(num_chunks);
}

int64_t StagedShard::padded_bytes() const { return rounded_up(num_bytes_); }

std::span<const char> StagedShard::chunk_at(int64_t begin) const {
  return {chunks_.at(begin / StagingBuffer::kChunkBytes),
          static_cast<size_t>(std::min(StagingBuffer::kChunkBytes, padded_bytes() - begin))};
}

void StagedShard::release_chunk(int64_t begin) {
  const auto chunk = static_cast<size_t>(begin / StagingBuffer::kChunkBytes);
  if (++num_releases_.at(chunk) == num_readers_) memory_->give_back(chunks_.at(chunk));
}

int64_t StagedShard::bytes_of(const std::vector<StoredTensor>& pieces,
                              const std::vector<ShardItem>& parts) {
  StagedShard staged;
  staged.lay_out(pieces, parts, 0);
  return staged.padded_bytes();
}

void StagedShard::lay_out(const std::vector<StoredTensor>& pieces,
                          const std::vector<ShardItem>& parts, int32_t shard) {
  for (const ShardItem& part : parts) add_slots(pieces[part.piece], part.range, shard);
}

void StagedShard::add_slots(const StoredTensor& piece, const ElementRange& range, int32_t shard) {
  if (piece.is_text()) {
    EncodedStrings encoded = encode_strings({piece.text});
    Slot slot{&piece, range, {{shard, 0, 0, encoded.masked_crc}, {}}, std::move(encoded.bytes)};
    const auto num_bytes = static_cast<int64_t>(slot.text.size());
    return add_slot(std::move(slot), num_bytes);
  }
  if (piece.num_elements() == 0)
    return add_slot({&piece, range, {{shard, 0, 0, masked_crc32c(0)}, whole_box(piece.shape)}, {}},
                    0);
  int64_t begin_E = range.begin_E;
  for (TensorBox& box : boxes_of(range, piece.shape)) {
    const ElementRange elements{begin_E, begin_E + box.num_elements()};
    begin_E = elements.end_E;
    add_slot({&piece, elements, {{shard, 0, 0, 0}, std::move(box)}, {}},
             elements.num_elements() * piece.element_bytes);
  }
}

void StagedShard::add_slot(Slot slot, int64_t num_bytes) {
  // An empty tensor needs no alignment: the file ends with the last byte of the last tensor.
  slot.slice.offset = num_bytes > 0 ? rounded_up(num_bytes_) : num_bytes_;
  slot.slice.num_bytes = num_bytes;
  num_bytes_ = slot.slice.end();
  slots_.push_back(std::move(slot));
}

std::span<char> StagedShard::room_at(int64_t offset) {
  char*& chunk = chunks_.at(offset / StagingBuffer::kChunkBytes);
  if (chunk == nullptr) chunk = memory_->take();
  const int64_t inside = offset % StagingBuffer::kChunkBytes;
  return {chunk + inside, static_cast<size_t>(StagingBuffer::kChunkBytes - inside)};
}

template <typename Write>
void StagedShard::write_parts(int64_t offset, int64_t num_bytes, const Write& write) {
  int64_t size = 0;
  for (int64_t at = 0; at < num_bytes; at += size) {
    const std::span<char> room = room_at(offset + at);
    size = std::min({kPartBytes, num_bytes - at, static_cast<int64_t>(room.size())});
    write(room.data(), at, size);
    watermark_.raise(offset + at + size);
  }
}

void StagedShard::fill() {
  try {
    int64_t end = 0;
    const auto zeros_to = [&](int64_t offset) {
      write_parts(end, offset - end, [](char* to, int64_t, int64_t size) {
        std::memset(to, 0, static_cast<size_t>(size));
      });
    };
    for (Slot& slot : slots_) {
      zeros_to(slot.slice.offset);
      fill_slot(&slot);
      end = slot.slice.end();
    }
    zeros_to(padded_bytes());
  } catch (...) {
    watermark_.give_up();
    throw;
  }
}

void StagedShard::fill_slot(Slot* slot) {
  const StoredTensor& piece = *slot->piece;
  const auto [offset, num_bytes] = std::pair(slot->slice.offset, slot->slice.num_bytes);
  if (piece.is_text())  // encode_strings() has set its crc
    return write_parts(offset, num_bytes, [&](char* to, int64_t at, int64_t size) {
      slot->text.copy(to, static_cast<size_t>(size), static_cast<size_t>(at));
    });
  uint32_t crc = 0;
  const auto hash = [&crc](const char* bytes, int64_t size) {
    crc = crc32c({bytes, static_cast<size_t>(size)}, crc);
  };
  if (piece.kept_bits.defined()) {
    const Packer packer(piece, slot->range);
    if (num_bytes == 0) packer.pack(slot->range, nullptr);  // all elements are pruned
    write_parts(offset, num_bytes, [&](char* to, int64_t at, int64_t size) {
      const int64_t first_E = slot->range.begin_E + at / piece.element_bytes;
      packer.pack({first_E, first_E + size / piece.element_bytes}, to);
      hash(to, size);
    });
  } else if (num_bytes > 0) {
    const at::Tensor elements = stored_elements(piece.tensor, slot->range);
    const auto* from = static_cast<const char*>(elements.const_data_ptr());
    write_parts(offset, num_bytes, [&](char* to, int64_t at, int64_t size) {
      std::memcpy(to, from + at, static_cast<size_t>(size));
      hash(to, size);
    });
  }
  slot->slice.masked_crc = masked_crc32c(crc);
}

// ShardWriter: threads write the strides of the staged image as soon as the watermark passes them,
// and give their memory back.

constexpr int64_t kChunkBytes = StagingBuffer::kChunkBytes;

namespace {

/// File that is written with direct I/O.
class FileSink final : public ShardSink {
 public:
  FileSink(const std::filesystem::path& path, int64_t num_bytes) : file_(path, num_bytes) {}

  int64_t stride() const override { return kChunkBytes; }
  // One thread prepares its next write while the disk works on the other's.
  int num_threads() const override { return 2; }
  void write(int64_t offset, const std::vector<std::span<const char>>& chunks) override {
    file_.write(offset, chunks.at(0));
  }
  void finish() override { file_.finish(); }

 private:
  files::DirectWriter file_;
};

}  // namespace

std::unique_ptr<ShardSink> file_sink(const std::filesystem::path& path, int64_t num_bytes) {
  return std::make_unique<FileSink>(path, num_bytes);
}

ShardWriter::ShardWriter(std::unique_ptr<ShardSink> sink, StagedShard* staged)
    : staged_(staged), sink_(std::move(sink)) {
  staged_->add_reader();
  const int64_t num_strides = (staged->padded_bytes() + sink_->stride() - 1) / sink_->stride();
  try {
    for (int64_t i = 0; i < std::min<int64_t>(sink_->num_threads(), num_strides); ++i)
      threads_.emplace_back([this] { write_strides(); });
  } catch (const std::system_error&) {
  }  // thread limit reached: the existing threads write, and finish() does
}

ShardWriter::~ShardWriter() {
  stopped_ = true;
  // Wakes writers that wait for bytes which will never come.
  staged_->level().give_up();
  threads_.clear();  // joins
}

void ShardWriter::write_strides() {
  const int64_t num_bytes = staged_->padded_bytes();
  try {
    while (!stopped_) {
      // Each stride is claimed by exactly one thread.
      const int64_t begin = next_.fetch_add(sink_->stride());
      if (begin >= num_bytes) return;
      const int64_t end = std::min(begin + sink_->stride(), num_bytes);
      if (!staged_->level().wait_for(end)) return;
      std::vector<std::span<const char>> chunks;
      for (int64_t at = begin; at < end; at += kChunkBytes) chunks.push_back(staged_->chunk_at(at));
      // After a fault only the memory is given back, which the image may need.
      if (!has_failed_) write(begin, chunks);
      for (int64_t at = begin; at < end; at += kChunkBytes) staged_->release_chunk(at);
    }
  } catch (...) {
    failed();
  }
}

void ShardWriter::write(int64_t begin, const std::vector<std::span<const char>>& chunks) {
  try {
    sink_->write(begin, chunks);
  } catch (...) {
    failed();
  }
}

/// Stores the first fault, which finish() throws.
void ShardWriter::failed() {
  const std::lock_guard lock(mutex_);
  if (!fault_) fault_ = std::current_exception();
  has_failed_ = true;
}

void ShardWriter::finish() {
  write_strides();   // those that no thread has claimed
  threads_.clear();  // joins
  if (fault_) std::rethrow_exception(fault_);
  sink_->finish();
}

void require_written(const std::filesystem::path& path,
                     const std::vector<StagedShard::Slot>& slots) {
  const files::Reader file(path);
  std::string bytes;
  for (const StagedShard::Slot& slot : slots) {
    const int64_t end = slot.slice.end();
    uint32_t crc = 0;
    bool same_text = true;
    for (int64_t at = slot.slice.offset; at < end; at += kChunkBytes) {
      bytes.resize(static_cast<size_t>(std::min(kChunkBytes, end - at)));
      file.read_at(at, bytes);
      crc = crc32c(bytes, crc);
      // A text's crc is not that of its bytes (EncodedStrings), so texts are compared byte by byte.
      if (slot.piece->is_text())
        same_text = same_text && slot.text.compare(static_cast<size_t>(at - slot.slice.offset),
                                                   bytes.size(), bytes) == 0;
    }
    if (slot.piece->is_text() ? same_text : masked_crc32c(crc) == slot.slice.masked_crc) continue;
    throw Error(ExitCode::kBadData, "checkpoint",
                fmt::format("{}: '{}' at byte {} reads back other bytes than were written; check "
                            "the disk and its connection",
                            path.string(), slot.piece->name, slot.slice.offset));
  }
}

// Reports: the protobuf ShardReport; the entries in it have the index's own wire form.

static void add_item(const pb::ShardReport::Item& item, int32_t num_shards, BundleIndex* index) {
  BundleEntry stored = from_proto(item.entry(), num_shards);
  if (!item.has_shape()) {
    check(index->entries.emplace(item.name(), std::move(stored)).second,
          "'" + item.name() + "' was written twice");
    return;
  }
  BundleEntry& entry = index->entries[item.name()];
  entry.dtype = stored.dtype;
  entry.shape.clear();
  for (const auto& dim : item.shape().dim()) entry.shape.push_back(dim.size());
  entry.slices.push_back(
      {stored, {{item.start().begin(), item.start().end()}, std::move(stored.shape)}});
}

static void require_complete(const StoredTensor& piece, BundleIndex* index) {
  const auto found = index->entries.find(piece.name);
  check(found != index->entries.end(), "'" + piece.name + "' was written by no rank");
  BundleEntry& entry = found->second;
  if (!entry.is_sliced()) return;
  // Ranks report in their own order; the index lists slices by position.
  std::ranges::sort(
      entry.slices, {}, [](const auto& slice) -> const auto& { return slice.box.start; });
  int64_t num_elements = 0;
  for (const BundleSlice& slice : entry.slices) num_elements += slice.box.num_elements();
  check(num_elements == piece.num_elements(),
        "the ranks' slices do not cover '" + piece.name + "'");
}

std::string shard_report(const StagedShard& staged) {
  pb::ShardReport report;
  for (const StagedShard::Slot& slot : staged.slots()) {
    auto* item = report.add_items();
    item->set_name(slot.piece->name);
    *item->mutable_entry() = to_proto(slot.piece->dtype, slot.slice);
    if (slot.is_whole()) continue;
    item->mutable_start()->Assign(slot.slice.box.start.begin(), slot.slice.box.start.end());
    for (const int64_t dim : slot.piece->shape) item->mutable_shape()->add_dim()->set_size(dim);
  }
  return report.SerializeAsString();
}

void IndexBuilder::add(const std::string& text) {
  pb::ShardReport report;
  check(report.ParseFromString(text), "a rank's list of tensors cannot be read");
  for (const auto& item : report.items()) add_item(item, index_.num_shards, &index_);
}

BundleIndex IndexBuilder::finish(const std::vector<StoredTensor>& pieces) {
  for (const StoredTensor& piece : pieces) require_complete(piece, &index_);
  check(index_.entries.size() == pieces.size(),
        "a rank wrote something that does not belong to the checkpoint");
  return std::move(index_);
}

}  // namespace lockstep::checkpoint
