#pragma once

#include <string>

namespace lockstep::python {

/// An interpreter and its torch.
struct Interpreter {
  std::string program;        ///< sys.executable
  std::string library;        ///< libpython, to be opened; empty: this Python has none
  std::string version;        ///< 3.11.2
  std::string torch_version;  ///< 2.11.0+cu130; empty: no torch
  std::string torch_commit;   ///< of PyTorch's repository
};

/// The interpreter that a run uses: `wanted` if it is not empty, else the active virtual
/// environment's ($VIRTUAL_ENV), else python3 of $PATH if its torch is the linked one, else the one
/// of the environment that holds the linked LibTorch.
///
/// Throws Error(kConfig) that names the interpreter and what it lacks: it cannot be started, has no
/// shared library, or its torch is not the one that this program is linked to.
Interpreter find_python(const std::string& wanted);

/// TORCH_VERSION and COMMIT_SHA of the linked LibTorch.
struct LinkedTorch {
  std::string version, commit;
};
LinkedTorch linked_torch();

}  // namespace lockstep::python
