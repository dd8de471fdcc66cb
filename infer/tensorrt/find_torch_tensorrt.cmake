# Looks for what the TensorRT module is compiled with: Torch-TensorRT's header and library, as its wheel of LibTorch's version holds
# them, in .venv and beside LibTorch, and CUDA's headers. TensorRT itself is needed only where the module is opened.
#   LOCKSTEP_TENSORRT_MISSING   what was not found; empty: all is there
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
