# Finds LibTorch 2.11 without its own CMake files, which need a CUDA toolkit and a newer CMake.
#
# Takes, as tools/setup does, $LIBTORCH, else the torch 2.11 that python3 imports, else .venv (filled by tools/setup).
# The result is cached. Another $LIBTORCH, or a missing folder, starts a new search.
#   LibTorch::cpu   libtorch_cpu and libc10, all that a CPU rank links
#   LibTorch_ROOT_DIR, LibTorch_VERSION
function(lockstep_is_libtorch folder result)
  if(EXISTS "${folder}/include/ATen/ATen.h" AND EXISTS "${folder}/lib/libtorch_cpu.so")
    set(${result} TRUE PARENT_SCOPE)
  else()
    set(${result} FALSE PARENT_SCOPE)
  endif()
endfunction()

lockstep_is_libtorch("${LibTorch_ROOT_DIR}" is_libtorch)
set(environment_asks "$ENV{LIBTORCH}")
if(LibTorch_ROOT_DIR AND NOT DEFINED LOCKSTEP_LIBTORCH_SEEN)
  set(environment_asks "")  # -DLibTorch_ROOT_DIR=... was given, which is more explicit
elseif(environment_asks STREQUAL "${LOCKSTEP_LIBTORCH_SEEN}")
  set(environment_asks "")  # already used
endif()

if(environment_asks)
  lockstep_is_libtorch("${environment_asks}" is_libtorch)
  if(NOT is_libtorch)
    message(FATAL_ERROR "LIBTORCH=${environment_asks} has no include/ATen/ATen.h or lib/libtorch_cpu.so")
  endif()
  set(LibTorch_ROOT_DIR "${environment_asks}" CACHE PATH "folder of LibTorch (holds include and lib)" FORCE)
elseif(NOT is_libtorch)
  execute_process(COMMAND python3 "${CMAKE_CURRENT_LIST_DIR}/python_torch.py"
    OUTPUT_VARIABLE python_torch OUTPUT_STRIP_TRAILING_WHITESPACE ERROR_QUIET)
  file(GLOB venv_torch "${PROJECT_SOURCE_DIR}/.venv/lib/python3*/site-packages/torch")
  unset(LibTorch_ROOT_DIR CACHE)
  foreach(folder IN LISTS python_torch venv_torch)
    lockstep_is_libtorch("${folder}" is_libtorch)
    if(is_libtorch)
      set(LibTorch_ROOT_DIR "${folder}" CACHE PATH "folder of LibTorch (holds include and lib)")
      break()
    endif()
  endforeach()
endif()
if(NOT "$ENV{LIBTORCH}" STREQUAL "" OR NOT DEFINED LOCKSTEP_LIBTORCH_SEEN)
  set(LOCKSTEP_LIBTORCH_SEEN "$ENV{LIBTORCH}" CACHE INTERNAL "the LIBTORCH that was followed last")
endif()

if(LibTorch_ROOT_DIR AND EXISTS "${LibTorch_ROOT_DIR}/include/torch/headeronly/version.h")
  file(STRINGS "${LibTorch_ROOT_DIR}/include/torch/headeronly/version.h" version_lines REGEX "TORCH_VERSION_(MAJOR|MINOR|PATCH) [0-9]+")
elseif(LibTorch_ROOT_DIR)
  file(STRINGS "${LibTorch_ROOT_DIR}/include/torch/csrc/api/include/torch/version.h" version_lines REGEX "TORCH_VERSION_(MAJOR|MINOR|PATCH) [0-9]+")
endif()
string(REGEX MATCHALL "[0-9]+" version_parts "${version_lines}")
list(JOIN version_parts "." LibTorch_VERSION)

include(FindPackageHandleStandardArgs)
find_package_handle_standard_args(LibTorch REQUIRED_VARS LibTorch_ROOT_DIR VERSION_VAR LibTorch_VERSION
  REASON_FAILURE_MESSAGE "run tools/setup, or set LIBTORCH to a folder that holds include/ and lib/")

if(LibTorch_FOUND AND NOT TARGET LibTorch::cpu)
  add_library(LibTorch::cpu INTERFACE IMPORTED)
  # After the system's folders: the wheel contains its own fmt and protobuf headers, which must not take precedence.
  target_compile_options(LibTorch::cpu INTERFACE
    "SHELL:-idirafter ${LibTorch_ROOT_DIR}/include"
    "SHELL:-idirafter ${LibTorch_ROOT_DIR}/include/torch/csrc/api/include"
    -fopenmp)  # without it at::parallel_for() runs on one thread
  # LibTorch's own OpenMP, so that a process has one pool of threads. The option -fopenmp would link the compiler's.
  file(GLOB openmp LIST_DIRECTORIES false "${LibTorch_ROOT_DIR}/lib/libgomp*.so*")
  if(NOT openmp)
    set(openmp gomp)
  endif()
  target_link_libraries(LibTorch::cpu INTERFACE
    "${LibTorch_ROOT_DIR}/lib/libtorch_cpu.so" "${LibTorch_ROOT_DIR}/lib/libc10.so" ${openmp})
  target_link_options(LibTorch::cpu INTERFACE -Wl,--allow-shlib-undefined)
endif()
