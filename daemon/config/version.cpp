#include "daemon/config/program.h"

#include <cstring>

#include <elf.h>
#include <fmt/format.h>
#include <link.h>
#include <torch/version.h>

#include "build_commit.h"

// The build id identifies the binary itself. Version and commit can be equal for two different
// builds.
namespace lockstep::daemon {
namespace {

/// ELF notes are padded to multiples of 4 bytes.
constexpr size_t aligned(size_t num_bytes) { return (num_bytes + 3) / 4 * 4; }

/// Finds the build id in the notes of one segment; empty if there is none.
std::string build_id_in(const char* notes, size_t num_bytes) {
  const char* const end = notes + num_bytes;
  while (static_cast<size_t>(end - notes) > sizeof(ElfW(Nhdr))) {
    ElfW(Nhdr) note;
    std::memcpy(&note, notes, sizeof(note));
    const char* name = notes + sizeof(note);
    const char* content = name + aligned(note.n_namesz);
    if (note.n_type == NT_GNU_BUILD_ID && std::memcmp(name, "GNU", sizeof("GNU")) == 0) {
      std::string id;
      for (size_t i = 0; i < note.n_descsz; ++i)
        id += fmt::format("{:02x}", static_cast<unsigned char>(content[i]));
      return id;
    }
    notes = content + aligned(note.n_descsz);
  }
  return "";
}

/// Callback of dl_iterate_phdr. The first object is the program itself.
int take_build_id(dl_phdr_info* object, size_t, void* id) {
  for (int i = 0; i < object->dlpi_phnum; ++i) {
    const ElfW(Phdr)& part = object->dlpi_phdr[i];
    auto& text = *static_cast<std::string*>(id);
    if (part.p_type != PT_NOTE || !text.empty()) continue;
    // NOLINTNEXTLINE(performance-no-int-to-ptr)
    const auto* notes = reinterpret_cast<const char*>(object->dlpi_addr + part.p_vaddr);
    text = build_id_in(notes, part.p_memsz);
  }
  return 1;  // stop: no further object
}

std::string build_id() {
  std::string id;
  (void)dl_iterate_phdr(take_build_id, &id);
  return id;
}

}  // namespace

VersionFacts version_facts() {
  return {LOCKSTEP_VERSION,   LOCKSTEP_COMMIT,     TORCH_VERSION,
          "g++ " __VERSION__, LOCKSTEP_BUILD_TYPE, build_id()};
}

std::string version_text(const std::string& program, const OpenedLibraries& libraries) {
  const VersionFacts facts = version_facts();
  return fmt::format(
      "{} {}\ncommit    {}\nLibTorch  {}\nMPI       {}\nNCCL      {}\nPython    {}\ncompiler  "
      "{}\nbuild     {}",
      program, facts.version, facts.commit, facts.torch, libraries.mpi, libraries.nccl,
      libraries.python, facts.compiler, facts.build_type);
}

}  // namespace lockstep::daemon
