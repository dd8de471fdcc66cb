# The only target that compiles against Torch-TensorRT: a module that programs open at run time if a run file needs it
# (infer/tensorrt.cpp). CMakeLists.txt includes this file; return() continues there.
set(LOCKSTEP_WITH_TENSORRT auto CACHE STRING "build the TensorRT module: on, off, auto (if Torch-TensorRT is found)")
if(NOT LOCKSTEP_WITH_TENSORRT MATCHES "^(on|off|auto)$")
  message(FATAL_ERROR "LOCKSTEP_WITH_TENSORRT must be on, off or auto, not '${LOCKSTEP_WITH_TENSORRT}'")
endif()
if(LOCKSTEP_WITH_TENSORRT STREQUAL off)
  message(STATUS "TensorRT module: off (LOCKSTEP_WITH_TENSORRT=off)")
  return()
endif()

# Headers and libraries of the module: Torch-TensorRT's header and library from its wheel for LibTorch's version, in .venv and next to
# LibTorch, and CUDA's headers. TensorRT itself is needed only on machines that open the module.
#   LOCKSTEP_TENSORRT_MISSING   missing parts; empty if all were found
set(LOCKSTEP_TORCH_TENSORRT "" CACHE PATH "folder of Torch-TensorRT (holds include and lib); empty: beside LibTorch and in .venv")

set(tensorrt_roots "${LOCKSTEP_TORCH_TENSORRT}")
if(NOT LOCKSTEP_TORCH_TENSORRT)
  file(GLOB tensorrt_roots "${LibTorch_ROOT_DIR}/../torch_tensorrt" "${PROJECT_SOURCE_DIR}/.venv/lib/python3*/site-packages/torch_tensorrt")
endif()
file(GLOB cuda_roots "${LibTorch_ROOT_DIR}/../nvidia/*" "${LOCKSTEP_CUDA_WHEELS}/*"
  "${PROJECT_SOURCE_DIR}/.venv/lib/python3*/site-packages/nvidia/*")
list(APPEND cuda_roots "${LOCKSTEP_CUDA_TOOLKIT}" /usr/local/cuda)

find_path(TorchTensorRT_INCLUDE torch_tensorrt/torch_tensorrt.h PATHS ${tensorrt_roots} PATH_SUFFIXES include NO_DEFAULT_PATH)
find_library(TorchTensorRT_LIBRARY torchtrt PATHS ${tensorrt_roots} PATH_SUFFIXES lib NO_DEFAULT_PATH)
find_path(TorchTensorRT_CUDA_INCLUDE cuda_runtime.h PATHS ${cuda_roots} PATH_SUFFIXES include NO_DEFAULT_PATH)

set(LOCKSTEP_TENSORRT_MISSING "")
if(NOT TorchTensorRT_INCLUDE OR NOT TorchTensorRT_LIBRARY)
  list(APPEND LOCKSTEP_TENSORRT_MISSING "Torch-TensorRT (torch_tensorrt.h and libtorchtrt.so)")
endif()
if(NOT TorchTensorRT_CUDA_INCLUDE)
  list(APPEND LOCKSTEP_TENSORRT_MISSING "CUDA headers (cuda_runtime.h)")
endif()
if(NOT EXISTS "${LibTorch_ROOT_DIR}/lib/libtorch_cuda.so")
  list(APPEND LOCKSTEP_TENSORRT_MISSING "a LibTorch with CUDA (libtorch_cuda.so)")
endif()
list(JOIN LOCKSTEP_TENSORRT_MISSING ", " LOCKSTEP_TENSORRT_MISSING)

if(LOCKSTEP_TENSORRT_MISSING AND LOCKSTEP_WITH_TENSORRT STREQUAL on)
  message(FATAL_ERROR "LOCKSTEP_WITH_TENSORRT=on, but not found: ${LOCKSTEP_TENSORRT_MISSING}; install the wheel torch-tensorrt of LibTorch's "
    "version, or set LOCKSTEP_TORCH_TENSORRT")
elseif(LOCKSTEP_TENSORRT_MISSING)
  message(STATUS "TensorRT module: off (LOCKSTEP_WITH_TENSORRT=auto; not found: ${LOCKSTEP_TENSORRT_MISSING})")
  return()
endif()
message(STATUS "TensorRT module: on (Torch-TensorRT in ${TorchTensorRT_INCLUDE})")

add_library(lockstep_tensorrt MODULE tensorrt_module.cpp)
target_include_directories(lockstep_tensorrt SYSTEM PRIVATE "${TorchTensorRT_INCLUDE}" "${TorchTensorRT_CUDA_INCLUDE}")
target_compile_definitions(lockstep_tensorrt PRIVATE LOCKSTEP_BUILD_ID="${LOCKSTEP_BUILD_ID}")
target_link_libraries(lockstep_tensorrt PRIVATE lockstep_options LibTorch::cpu "${TorchTensorRT_LIBRARY}")
set_target_properties(lockstep_tensorrt PROPERTIES DEFINE_SYMBOL "" CXX_VISIBILITY_PRESET hidden
  LIBRARY_OUTPUT_DIRECTORY "${PROJECT_BINARY_DIR}/lib/lockstep")
lockstep_target(lockstep_tensorrt)
