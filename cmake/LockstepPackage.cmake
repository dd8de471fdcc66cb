# What `cmake --install` puts where, and the package that find_package(Lockstep) finds:
#   include/lockstep/   headers, as #include "lockstep/dist/communicator.h"
#   lib/                static libraries; targets lockstep::dist, lockstep::recal, lockstep::checkpoint, lockstep::lockstepd, ...
#   lib/lockstep/       the CUDA module, where it was built
#   bin/                lockstepd, lockstep
# LibTorch is not part of it: programs find it where it was when they were built (RPATH), others by LIBTORCH or
# -DLibTorch_ROOT_DIR (FindLibTorch.cmake, which comes along).
include(GNUInstallDirs)
include(CMakePackageConfigHelpers)
set(package_dir "${CMAKE_INSTALL_LIBDIR}/cmake/Lockstep")

get_property(libraries GLOBAL PROPERTY LOCKSTEP_LIBRARIES)
install(TARGETS ${libraries} lockstep_options lockstep_checkpoint_pb lockstep_onnx_pb EXPORT lockstep
  ARCHIVE DESTINATION "${CMAKE_INSTALL_LIBDIR}" COMPONENT development)
install(TARGETS lockstepd_program lockstep_program RUNTIME DESTINATION "${CMAKE_INSTALL_BINDIR}" COMPONENT runtime)
if(TARGET lockstep_nccl)
  install(TARGETS lockstep_nccl LIBRARY DESTINATION "${CMAKE_INSTALL_LIBDIR}/lockstep" COMPONENT runtime)
endif()

get_property(layers GLOBAL PROPERTY LOCKSTEP_LAYERS)
list(FILTER layers EXCLUDE REGEX "/")
foreach(layer IN LISTS layers)
  string(REGEX REPLACE ":.*" "" folder "${layer}")
  install(DIRECTORY "${PROJECT_SOURCE_DIR}/${folder}" DESTINATION "${CMAKE_INSTALL_INCLUDEDIR}/lockstep" COMPONENT development
    FILES_MATCHING PATTERN "*.h")
endforeach()

install(EXPORT lockstep NAMESPACE lockstep:: DESTINATION "${package_dir}" FILE LockstepTargets.cmake COMPONENT development)
configure_package_config_file("${CMAKE_CURRENT_LIST_DIR}/LockstepConfig.cmake.in" "${PROJECT_BINARY_DIR}/LockstepConfig.cmake"
  INSTALL_DESTINATION "${package_dir}")
write_basic_package_version_file("${PROJECT_BINARY_DIR}/LockstepConfigVersion.cmake" COMPATIBILITY SameMinorVersion)
install(FILES "${PROJECT_BINARY_DIR}/LockstepConfig.cmake" "${PROJECT_BINARY_DIR}/LockstepConfigVersion.cmake"
  "${CMAKE_CURRENT_LIST_DIR}/FindLibTorch.cmake" "${CMAKE_CURRENT_LIST_DIR}/python_torch.py"
  DESTINATION "${package_dir}" COMPONENT development)
