// Local work runs in fault_of(). shared_fault() then gives all ranks the same fault, so that none
// waits for a rank that has failed.
#include "checkpoint/format/rank_faults.h"

#include <exception>
#include <new>
#include <string_view>
#include <system_error>
#include <vector>

#include <c10/util/Exception.h>
#include <fmt/format.h>

#include "checkpoint/proto/shard_report.pb.h"

namespace lockstep::checkpoint {
namespace {

/// True if LibTorch is out of memory. On CPUs it reports that only by its text.
bool is_out_of_memory(const c10::Error& fault) {
  return dynamic_cast<const c10::OutOfMemoryError*>(&fault) != nullptr ||
         std::string_view(fault.what()).find("can't allocate memory") != std::string_view::npos;
}

}  // namespace

Error current_error() {
  try {
    throw;
  } catch (const Error& fault) {
    // An Error keeps its code; only foreign exceptions are classified.
    return fault;
  } catch (const std::system_error& fault) {  // of the file system, or no more threads
    return {ExitCode::kIo, "checkpoint", fault.what()};
  } catch (const std::bad_alloc&) {
    return {ExitCode::kIo, "checkpoint", "no memory"};
  } catch (const c10::Error& fault) {
    if (is_out_of_memory(fault))
      return {ExitCode::kIo, "checkpoint",
              std::string("out of memory: ") + fault.what_without_backtrace()};
    return {ExitCode::kBug, "checkpoint", fault.what()};
  } catch (const std::exception& fault) {
    return {ExitCode::kBug, "checkpoint", fault.what()};
  }
}

// The area is added again when the text becomes part of another Error.
std::string plain_text(const Error& fault) {
  const std::string text = fault.what();
  const size_t end = text.find("] ");
  return text.starts_with('[') && end != std::string::npos ? text.substr(end + 2) : text;
}

std::optional<Error> shared_fault(dist::Communicator& control, const std::optional<Error>& fault) {
  pb::FaultReport report;
  if (fault) {
    report.set_code(static_cast<int32_t>(fault->code()));
    report.set_text(plain_text(*fault));
  }
  // Every rank must call this collective, with or without a fault.
  const std::vector<std::string> texts = dist::gather_texts(control, report.SerializeAsString());
  for (size_t rank = 0; rank < texts.size(); ++rank) {
    check(report.ParseFromString(texts[rank]), "the fault report of a rank cannot be read");
    if (report.code() != 0)
      return Error(static_cast<ExitCode>(report.code()), "checkpoint",
                   texts.size() == 1 ? report.text()
                                     : fmt::format("rank {}: {}", rank, report.text()))
          .everywhere();
  }
  return std::nullopt;
}

}  // namespace lockstep::checkpoint
