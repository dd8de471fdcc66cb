#pragma once

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include <zlib.h>

/// Files as torch.save() writes them, byte by byte, so that tests can also write what it never
/// would.
namespace lockstep::tests {

using Members = std::vector<std::pair<std::string, std::string>>;

inline std::string le(uint64_t value, size_t num_bytes) {
  std::string bytes;
  for (size_t i = 0; i < num_bytes; ++i)
    bytes += static_cast<char>(i < 8 ? (value >> (8 * i)) & 0xff : 0);
  return bytes;
}

/// A zip archive whose members are stored. `method`: what it says of how they are compressed.
/// Without checksums it says 0 for each.
inline std::string zip_of(const Members& members, uint64_t method = 0, bool has_checksums = true) {
  std::string archive, directory;
  for (const auto& [name, bytes] : members) {
    const auto sum = ::crc32(0, reinterpret_cast<const Bytef*>(bytes.data()),
                             static_cast<unsigned>(bytes.size()));
    const auto crc = has_checksums ? sum : 0;
    const std::string facts = le(0, 2) + le(method, 2) + le(0, 4) + le(crc, 4) +
                              le(bytes.size(), 4) + le(bytes.size(), 4) + le(name.size(), 2) +
                              le(0, 2);
    directory += "PK\x01\x02" + le(0, 4) + facts + le(0, 10) + le(archive.size(), 4) + name;
    archive += "PK\x03\x04" + le(0, 2) + facts + name + bytes;
  }
  return archive + directory + "PK\x05\x06" + le(0, 4) + le(members.size(), 2) +
         le(members.size(), 2) + le(directory.size(), 4) + le(archive.size(), 4) + le(0, 2);
}

// Opcodes of a pickle.
inline std::string p_global(const std::string& module, const std::string& name) {
  return "c" + module + "\n" + name + "\n";
}
inline std::string p_text(const std::string& text) { return "X" + le(text.size(), 4) + text; }
inline std::string p_int(int64_t number) {
  return "\x8a\x08" + le(static_cast<uint64_t>(number), 8);
}
inline std::string p_tuple(const std::vector<std::string>& items) {
  std::string all = "(";
  for (const std::string& item : items) all += item;
  return all + "t";
}
inline std::string p_ints(const std::vector<int64_t>& numbers) {
  std::vector<std::string> items;
  for (const int64_t number : numbers) items.push_back(p_int(number));
  return p_tuple(items);
}
inline std::string p_dict(const Members& items) {
  std::string all = p_global("collections", "OrderedDict") + ")R(";
  for (const auto& [key, value] : items) all += p_text(key) + value;
  return all + "u";
}
inline std::string pickle_of(const std::string& value) { return "\x80\x02" + value + "."; }

struct PickledTensor {
  std::string storage = "0";
  std::string type = "FloatStorage";
  int64_t storage_elements = 0, offset = 0;
  std::vector<int64_t> shape, strides;
  std::string bits = {};  ///< a dict, such as {"neg": True}; empty: none is named

  std::string bytes() const {
    const std::string id = p_tuple({p_text("storage"), p_global("torch", type), p_text(storage),
                                    p_text("cpu"), p_int(storage_elements)});
    return p_global("torch._utils", "_rebuild_tensor_v2") +
           p_tuple({id + "Q", p_int(offset), p_ints(shape), p_ints(strides), "\x89", p_dict({}),
                    bits}) +
           "R";
  }
};

/// The archive of a state dict; `storages` by key.
inline std::string torch_archive(const std::string& pickle, const Members& storages,
                                 bool has_checksums = true) {
  Members members = {{"archive/data.pkl", pickle}, {"archive/byteorder", "little"}};
  for (const auto& [key, bytes] : storages) members.emplace_back("archive/data/" + key, bytes);
  members.emplace_back("archive/version", "3\n");
  return zip_of(members, /*method=*/0, has_checksums);
}

}  // namespace lockstep::tests
