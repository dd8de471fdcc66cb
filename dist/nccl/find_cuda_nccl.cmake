# Looks for the headers and libraries that the NCCL module needs: in the NVIDIA wheels beside LibTorch and in .venv first
# (their NCCL is LibTorch's own, and a process can hold only one), then in a CUDA toolkit.
#   LOCKSTEP_CUDA_MISSING   what was not found; empty: all is there
#   LOCKSTEP_CUDA_FOUND_IN  where, for the status line
set(LOCKSTEP_CUDA_TOOLKIT /usr/local/cuda CACHE PATH "folder of a CUDA toolkit with NCCL (holds include and lib or lib64)")
set(LOCKSTEP_CUDA_WHEELS "" CACHE PATH "folder of NVIDIA's wheels (site-packages/nvidia); empty: beside LibTorch and in .venv")

if(LOCKSTEP_CUDA_WHEELS)
  file(GLOB cuda_roots "${LOCKSTEP_CUDA_WHEELS}/*")
else()
  file(GLOB cuda_roots "${LibTorch_ROOT_DIR}/../nvidia/*" "${PROJECT_SOURCE_DIR}/.venv/lib/python3*/site-packages/nvidia/*")
endif()
list(APPEND cuda_roots "${LOCKSTEP_CUDA_TOOLKIT}")

# find_cuda_part(<name> HEADERS <header>... LIBRARIES <file>...)  the first root that holds all of the headers and one
# of the libraries: <name>_INCLUDE, <name>_LIBRARY.
function(find_cuda_part name)
  cmake_parse_arguments(PARSE_ARGV 1 arg "" "" "HEADERS;LIBRARIES")
  foreach(root IN LISTS cuda_roots)
    set(complete ON)
    foreach(header IN LISTS arg_HEADERS)
      if(NOT EXISTS "${root}/include/${header}")
        set(complete OFF)
      endif()
    endforeach()
    foreach(file IN ITEMS lib64 lib)
      list(TRANSFORM arg_LIBRARIES PREPEND "${root}/${file}/" OUTPUT_VARIABLE candidates)
      foreach(library IN LISTS candidates)
        if(complete AND EXISTS "${library}")
          set(${name}_INCLUDE "${root}/include" PARENT_SCOPE)
          set(${name}_LIBRARY "${library}" PARENT_SCOPE)
          return()
        endif()
      endforeach()
    endforeach()
  endforeach()
endfunction()

find_cuda_part(cudart HEADERS cuda_runtime_api.h crt/host_defines.h LIBRARIES libcudart.so libcudart.so.13)
find_cuda_part(nccl HEADERS nccl.h LIBRARIES libnccl.so libnccl.so.2)

set(LOCKSTEP_CUDA_MISSING "")
if(NOT cudart_INCLUDE)
  list(APPEND LOCKSTEP_CUDA_MISSING "CUDA headers (cuda_runtime_api.h with crt/host_defines.h and libcudart)")
endif()
if(NOT nccl_INCLUDE)
  list(APPEND LOCKSTEP_CUDA_MISSING "NCCL (nccl.h and libnccl)")
endif()
if(NOT EXISTS "${LibTorch_ROOT_DIR}/lib/libc10_cuda.so" OR NOT EXISTS "${LibTorch_ROOT_DIR}/include/c10/cuda/CUDAStream.h")
  list(APPEND LOCKSTEP_CUDA_MISSING "a LibTorch with CUDA (libc10_cuda.so)")
endif()
list(JOIN LOCKSTEP_CUDA_MISSING ", " LOCKSTEP_CUDA_MISSING)
set(LOCKSTEP_CUDA_FOUND_IN "CUDA in ${cudart_INCLUDE}, NCCL in ${nccl_INCLUDE}")
