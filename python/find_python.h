#pragma once

#include <string>

namespace lockstep::python {

/// Python interpreter and its torch.
struct Interpreter {
  std::string program;        ///< sys.executable
  std::string library;        ///< libpython, to be loaded; empty if this Python has none
  std::string version;        ///< such as 3.11.2
  std::string torch_version;  ///< such as 2.11.0+cu130; empty without torch
  std::string torch_commit;   ///< commit of PyTorch's repository
};

/// Finds the interpreter for a run: `wanted` if not empty, else that of the active virtual
/// environment ($VIRTUAL_ENV). Else python3 of $PATH if its torch is the linked one. Else the one
/// of the environment that contains the linked LibTorch.
///
/// Throws Error(kConfig), naming the interpreter and the reason, if it is not usable. Reasons: it
/// cannot be started, has no shared library, or has another torch than the linked one.
Interpreter find_python(const std::string& wanted);

/// Values TORCH_VERSION and COMMIT_SHA of the linked LibTorch.
struct LinkedTorch {
  std::string version, commit;
};
LinkedTorch linked_torch();

}  // namespace lockstep::python
