// Tensors and strings of a checkpoint.
#include "checkpoint/format/bundle_reader.h"

#include <set>

#include <ATen/ops/empty.h>
#include <fmt/format.h>
#include <sys/resource.h>

#include "base/error.h"
#include "checkpoint/format/bundle_encoding.h"
#include "checkpoint/format/checkpoint_files.h"
#include "checkpoint/format/rank_faults.h"
#include "checkpoint/format/tensor_slice.h"
#include "checkpoint/format/tensor_type.h"

namespace lockstep::checkpoint {

// A tensor is read in groups of places: map, verify the crc, then copy to live memory.
// read_places() does the work on several threads.

namespace {

/// Limit of the index file, enough for some 300 million slices. Decoding takes a multiple of the
/// index's bytes, and a sparse file of any size costs an attacker nothing.
constexpr int64_t kMaxIndexBytes = int64_t{16} << 30;

/// Bytes that are read and verified before the first of them is copied, unless one tensor needs
/// more. They stay in the processor's last-level cache, and little of a file is mapped at a time.
constexpr int64_t kGroupBytes = int64_t{16} << 20;
/// The same from a store, where each group ends with waits for its last answers.
constexpr int64_t kRemoteGroupBytes = int64_t{128} << 20;

constexpr std::string_view kRemedy = "restore another checkpoint, or remove this one";

/// True if the memory can be written directly: on the CPU, row-major, values as stored.
bool is_plain(const at::Tensor& tensor) {
  return tensor.is_cpu() && tensor.is_contiguous() && !tensor.is_conj() && !tensor.is_neg();
}

/// Returns the smallest range of the tensor's elements that contains a box.
ElementRange range_of(const TensorBox& box, const std::vector<int64_t>& shape) {
  const int64_t num_elements = box.num_elements();
  if (num_elements == 0) return {};
  return {tensor_element(box, shape, 0), tensor_element(box, shape, num_elements - 1) + 1};
}

/// True if a range has an element in common with the ranges.
bool has_common(const std::vector<ElementRange>& held, const ElementRange& range) {
  bool found = false;
  for_each_common(held, range.begin_E, range.end_E, [&](int64_t, int64_t) { found = true; });
  return found;
}

/// Calls use(place, box) for each place of a tensor: its slices, or itself.
template <typename Use>
void for_each_place(const BundleEntry& entry, Use use) {
  if (!entry.is_sliced()) use(entry, whole_box(entry.shape));
  for (const BundleSlice& slice : entry.slices) use(slice, slice.box);
}

/// Converts a permission fault into kIo. It says nothing about the checkpoint, so no caller may
/// fall back to an older one.
template <typename Open>
auto permitted(const Open& open) {
  try {
    return open();
  } catch (const files::NoPermission& fault) {
    throw Error(ExitCode::kIo, "checkpoint", plain_text(fault));
  }
}

/// Raises the soft limit of open files, within the hard limit. Checkpoints may have more shards
/// than the usual 1,024.
void allow_open_files(int64_t num_files) {
  constexpr rlim_t kOthers = 512;  // sockets, logs, libraries
  rlimit limit{};
  const rlim_t wanted = static_cast<rlim_t>(num_files) + kOthers;
  if (::getrlimit(RLIMIT_NOFILE, &limit) != 0 || limit.rlim_cur >= wanted) return;
  limit.rlim_cur = std::min(wanted, limit.rlim_max);
  (void)::setrlimit(RLIMIT_NOFILE, &limit);  // if it fails, opening a shard reports it
}

}  // namespace

void with_plain_copy(const at::Tensor& live, bool keep,
                     const std::function<void(const at::Tensor& target)>& use) {
  const at::Tensor target = live.detach();
  if (is_plain(target)) return use(target);
  const at::Tensor copy =
      at::empty(target.sizes(),
                target.options().device(at::kCPU).memory_format(at::MemoryFormat::Contiguous));
  // Elements outside the wanted ranges must survive the copy back.
  if (keep) copy.copy_(target);
  use(copy);
  target.copy_(copy);
}

BundleReader::BundleReader(const std::string& prefix, int num_threads)
    : prefix_(require_save(prefix)),
      num_threads_(num_threads > 0 ? num_threads : default_num_threads(files::is_remote(prefix_))),
      index_(
          decode_index(permitted([&] { return files::read(index_path(prefix_), kMaxIndexBytes); }),
                       index_path(prefix_))) {
  allow_open_files(index_.num_shards);
}

void BundleReader::open_shards() {
  for (int32_t number = 0; number < index_.num_shards; ++number) (void)shard(number);
}

int64_t BundleReader::shard_bytes(int32_t number) {
  const auto opened = shards_.find(number);
  const std::string path = shard_path(prefix_, number, index_.num_shards);
  if ((opened != shards_.end() && opened->second) || !is_there(path))
    return shard(number).file.num_bytes();  // opening a missing shard gives the error
  return permitted([&] { return files::facts_of(path).num_bytes; });
}

const BundleEntry* BundleReader::find(const std::string& name) const {
  const auto place = index_.entries.find(name);
  return place == index_.entries.end() ? nullptr : &place->second;
}

const BundleEntry& BundleReader::entry(const std::string& name) const {
  const BundleEntry* found = find(name);
  if (found == nullptr)
    throw Error(ExitCode::kBadData, "checkpoint",
                fmt::format("{}: no tensor '{}'", index_path(prefix_), name));
  return *found;
}

BundleReader::Shard& BundleReader::shard(int32_t number) {
  std::unique_ptr<Shard>& shard = shards_[number];
  if (!shard)
    shard = permitted(
        [&] { return std::make_unique<Shard>(shard_path(prefix_, number, index_.num_shards)); });
  return *shard;
}

void BundleReader::refuse(const std::string& name, const std::string& what) const {
  const BundleEntry& bad = entry(name);
  if (!bad.is_sliced()) refuse_place(name, bad, what);
  throw Error(ExitCode::kBadData, "checkpoint",
              fmt::format("{}: tensor '{}' (in {} slices): {}; {}", index_path(prefix_), name,
                          bad.slices.size(), what, kRemedy));
}

void BundleReader::refuse_place(const std::string& name, const BundlePlace& place,
                                const std::string& what) const {
  std::string slice;
  const std::vector<BundleSlice>& slices = entry(name).slices;
  const BundlePlace* first = slices.data();  // by address: slices may be many
  if (!slices.empty() && !std::less<>()(&place, first) && !std::less<>()(&slices.back(), &place))
    slice = fmt::format(" slice {}", box_text(static_cast<const BundleSlice&>(place).box));
  throw Error(ExitCode::kBadData, "checkpoint",
              fmt::format("{}: tensor '{}'{} at byte {}: {}; {}",
                          shard_path(prefix_, place.shard, index_.num_shards), name, slice,
                          place.offset, what, kRemedy));
}

void BundleReader::require_form(const std::string& name, const at::Tensor& live) const {
  const BundleEntry& saved = entry(name);
  const std::optional<int32_t> type = type_number(live.scalar_type());
  if (type == saved.dtype && live.sizes() == at::IntArrayRef(saved.shape)) return;
  refuse(name, fmt::format("is {}, expected {}", type_and_shape(saved.dtype, saved.shape),
                           type_and_shape(type.value_or(0), live.sizes())));
}

void BundleReader::require_inside(const std::string& name, const BundlePlace& place) {
  const int64_t num_bytes = shard(place.shard).file.num_bytes();
  if (place.end() > num_bytes)
    refuse_place(name, place,
                 fmt::format("needs {} bytes, the file ends at byte {} (truncated?)",
                             place.num_bytes, num_bytes));
}

void BundleReader::require_inside(const std::string& name) {
  for_each_place(entry(name),
                 [&](const BundlePlace& place, const TensorBox&) { require_inside(name, place); });
}

at::Tensor BundleReader::read(const std::string& name) {
  const BundleEntry& saved = entry(name);
  const auto type = scalar_type(saved.dtype);
  if (!type)
    throw Error(ExitCode::kBadData, "checkpoint",
                fmt::format("{}: tensor '{}' has elements of the type {}, which is not supported; "
                            "other values of this checkpoint are",
                            index_path(prefix_), name, type_name(saved.dtype)));
  require_inside(name);
  const at::Tensor values = at::empty(saved.shape, *type);
  read_all({{name, values}});
  return values;
}

// Plain tensors are read together; others need a copy, one at a time.
void BundleReader::read_all(const std::vector<TensorRead>& reads) {
  std::vector<TensorRead> plain;
  for (const TensorRead& read : reads) {
    require_form(read.name, read.live);
    if (read.held) check_ranges(*read.held, read.live.numel());
    if (is_plain(read.live)) plain.push_back(read);
  }
  read_plain(plain);
  for (const TensorRead& read : reads)
    if (!is_plain(read.live)) {  // memory for one tensor at a time
      require_inside(read.name);
      with_plain_copy(read.live, read.held.has_value(), [&](const at::Tensor& copy) {
        read_plain({{read.name, copy, read.held}});
      });
    }
}

void BundleReader::read_plain(const std::vector<TensorRead>& reads) {
  const int64_t most_bytes = files::is_remote(prefix_) ? kRemoteGroupBytes : kGroupBytes;
  for (size_t i = 0; i < reads.size();) {
    std::vector<PlaceRead> places;
    // All wanted places of a tensor belong to one group, so it is written entirely or not.
    for (int64_t num_bytes = 0; i < reads.size() && num_bytes < most_bytes; ++i)
      num_bytes += add_places(reads[i], &places);
    run(places);
  }
}

/// Adds the wanted places of a tensor to the list. Returns their bytes.
int64_t BundleReader::add_places(const TensorRead& read, std::vector<PlaceRead>* places) {
  const BundleEntry& saved = entry(read.name);
  auto* const values = static_cast<char*>(read.live.detach().mutable_data_ptr());
  int64_t num_bytes = 0;
  for_each_place(saved, [&](const BundlePlace& place, const TensorBox& box) {
    if (read.held && !has_common(*read.held, range_of(box, saved.shape))) return;
    require_inside(read.name, place);
    places->push_back({.name = &read.name,
                       .file = &shard(place.shard).mapping,
                       .place = &place,
                       .box = box,
                       .shape = &saved.shape,
                       .item_bytes = static_cast<int64_t>(read.live.element_size()),
                       .is_bool = read.live.scalar_type() == at::kBool,
                       .values = values,
                       .held = read.held ? &*read.held : nullptr});
    num_bytes += place.num_bytes;
  });
  return num_bytes;
}

void BundleReader::run(const std::vector<PlaceRead>& places) {
  const std::vector<PlaceDefect> defects =
      read_places(places, num_threads_, files::is_remote(prefix_));
  std::set<int32_t> used;
  for (const PlaceRead& read : places) used.insert(read.place->shard);
  for (const int32_t number : used) shard(number).mapping.release();
  if (!defects.empty())
    refuse_place(*places[defects[0].item].name, *places[defects[0].item].place, defects[0].what);
}

void BundleReader::check_place(const std::string& name, size_t slice) {
  const BundleEntry& saved = entry(name);
  const BundlePlace* place = &saved;
  if (saved.is_sliced()) place = &saved.slices.at(slice);
  if (saved.dtype == kStringType) return check_strings(name);
  const auto type = scalar_type(saved.dtype);
  require_inside(name, *place);
  if (!type) return;  // the checksum of other types covers unknown bytes
  run({{.name = &name,
        .file = &shard(place->shard).mapping,
        .place = place,
        .shape = &saved.shape,
        .item_bytes = static_cast<int64_t>(c10::elementSize(*type)),
        .is_bool = *type == at::kBool}});
}

// Strings of a checkpoint. They are small and therefore read at once, without mapping.

void BundleReader::check_strings(const std::string& name) {
  const BundleEntry& place = entry(name);
  const std::string bytes = bytes_of(name);
  const uint32_t found = decoded(name, [&] { return crc_of_strings(bytes, place.num_elements()); });
  if (found != place.masked_crc)
    refuse(name, wrong_crc_text(place.num_bytes, found, place.masked_crc));
}

std::string BundleReader::bytes_of(const std::string& name) {
  const BundleEntry& place = entry(name);
  require_inside(name);
  std::string bytes(static_cast<size_t>(place.num_bytes), '\0');
  shard(place.shard).file.read_at(place.offset, bytes);
  return bytes;
}

std::string BundleReader::read_text(const std::string& name) {
  if (!entry(name).shape.empty()) refuse(name, "is not a single string");
  return read_strings(name).front();
}

std::vector<std::string> BundleReader::read_strings(const std::string& name) {
  const BundleEntry& place = entry(name);
  if (place.dtype != kStringType) refuse(name, "contains numbers, not strings");
  const std::string bytes = bytes_of(name);
  DecodedStrings strings =
      decoded(name, [&] { return decode_strings(bytes, place.num_elements()); });
  if (strings.masked_crc != place.masked_crc)
    refuse(name, wrong_crc_text(place.num_bytes, strings.masked_crc, place.masked_crc));
  return std::move(strings.texts);
}

}  // namespace lockstep::checkpoint
