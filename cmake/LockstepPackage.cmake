# Layout of `cmake --install`, and the package that find_package(Lockstep) finds:
#   include/lockstep/   headers, as #include "lockstep/dist/communicator.h"
#   lib/                static libraries; targets lockstep::dist, lockstep::recal, lockstep::checkpoint, lockstep::lockstepd, ...
#   lib/lockstep/       lockstep-tensors (the commands of lockstep that need LibTorch), the CUDA module and the Python module with its package, if they were
#                       built; the backend of torch.distributed, which the wheel's Python package loads
#   bin/                lockstepd, lockstep
# LibTorch is not installed: programs find it where it was during the build (RPATH), other projects by LIBTORCH or
# -DLibTorch_ROOT_DIR (FindLibTorch.cmake, which is installed). With LOCKSTEP_BUNDLE_LIBTORCH its libraries are copied into
# lib/lockstep/, so that the programs run in any folder: `make package` makes such a .deb and archive.
option(LOCKSTEP_BUNDLE_LIBTORCH "install LibTorch's libraries with the programs" OFF)
include(CMakePackageConfigHelpers)
set(package_dir "${CMAKE_INSTALL_LIBDIR}/cmake/Lockstep")

get_property(libraries GLOBAL PROPERTY LOCKSTEP_LIBRARIES)
install(TARGETS ${libraries} lockstep_options EXPORT lockstep
  ARCHIVE DESTINATION "${CMAKE_INSTALL_LIBDIR}" COMPONENT development)
install(TARGETS lockstepd_program lockstep_program RUNTIME DESTINATION "${CMAKE_INSTALL_BINDIR}" COMPONENT runtime)
install(TARGETS lockstep-tensors_program RUNTIME DESTINATION lib/lockstep COMPONENT runtime)
install(PROGRAMS "${PROJECT_SOURCE_DIR}/launch/mpirun.sh" DESTINATION "${CMAKE_INSTALL_LIBEXECDIR}/lockstep" COMPONENT runtime)
install(DIRECTORY "${PROJECT_SOURCE_DIR}/launch/kubernetes" "${PROJECT_SOURCE_DIR}/launch/slurm"
  DESTINATION "${CMAKE_INSTALL_DATADIR}/lockstep/launch" USE_SOURCE_PERMISSIONS COMPONENT runtime)
install(DIRECTORY "${PROJECT_SOURCE_DIR}/configs" DESTINATION "${CMAKE_INSTALL_DATADIR}/lockstep" COMPONENT runtime)
install(DIRECTORY "${PROJECT_SOURCE_DIR}/metrics/grafana" "${PROJECT_SOURCE_DIR}/metrics/alerts" DESTINATION "${CMAKE_INSTALL_DATADIR}/lockstep"
  COMPONENT runtime FILES_MATCHING PATTERN "*.json" PATTERN "*.yml" PATTERN "*.yaml")
install(FILES "${PROJECT_SOURCE_DIR}/LICENSE" DESTINATION "${CMAKE_INSTALL_DOCDIR}" COMPONENT runtime)
foreach(name IN ITEMS lockstep lockstepd)
  install(FILES "${PROJECT_BINARY_DIR}/help/${name}.1" DESTINATION "${CMAKE_INSTALL_MANDIR}/man1" COMPONENT runtime)
  install(FILES "${PROJECT_BINARY_DIR}/help/${name}" DESTINATION "${CMAKE_INSTALL_DATADIR}/bash-completion/completions" COMPONENT runtime)
endforeach()
file(RELATIVE_PATH own_libraries "/${CMAKE_INSTALL_BINDIR}" /lib/lockstep)  # nccl_module_paths() searches this folder too
set_property(TARGET lockstepd_program lockstep_program APPEND PROPERTY INSTALL_RPATH "$ORIGIN/${own_libraries}")
set_property(TARGET lockstep-tensors_program APPEND PROPERTY INSTALL_RPATH "$ORIGIN")
if(NOT LOCKSTEP_BUNDLE_LIBTORCH)  # CMake itself omits files below the source folder, such as .venv
  set_property(TARGET lockstepd_program lockstep_program lockstep-tensors_program APPEND PROPERTY INSTALL_RPATH "${LibTorch_ROOT_DIR}/lib")
  # Otherwise CMake pads the build's path with colons, and the loader takes an empty entry for the current folder of the program.
  set_target_properties(lockstepd_program lockstep_program lockstep-tensors_program PROPERTIES BUILD_WITH_INSTALL_RPATH ON)
else()
  set_target_properties(lockstepd_program lockstep_program lockstep-tensors_program PROPERTIES INSTALL_RPATH_USE_LINK_PATH OFF)
  install(CODE "
    file(GET_RUNTIME_DEPENDENCIES LIBRARIES \"${LibTorch_ROOT_DIR}/lib/libtorch_cpu.so\" RESOLVED_DEPENDENCIES_VAR found
      UNRESOLVED_DEPENDENCIES_VAR missing PRE_EXCLUDE_REGEXES \"^ld-linux\" POST_EXCLUDE_REGEXES \"^/(usr/)?lib(64)?/\")
    if(missing)
      message(FATAL_ERROR \"libtorch_cpu.so needs \${missing}, which is missing\")
    endif()
    file(INSTALL \"${LibTorch_ROOT_DIR}/lib/libtorch_cpu.so\" \${found} FOLLOW_SYMLINK_CHAIN
      DESTINATION \"\${CMAKE_INSTALL_PREFIX}/lib/lockstep\")" COMPONENT runtime)
endif()
if(TARGET lockstep_nccl AND NOT LOCKSTEP_BUNDLE_LIBTORCH)  # GPUs need 2 GB more of LibTorch than are copied
  install(TARGETS lockstep_nccl LIBRARY DESTINATION lib/lockstep COMPONENT runtime)
endif()
if(TARGET lockstep_tensorrt AND NOT LOCKSTEP_BUNDLE_LIBTORCH)
  install(TARGETS lockstep_tensorrt LIBRARY DESTINATION lib/lockstep COMPONENT runtime)
endif()
if(TARGET lockstep_pytorch_module AND NOT LOCKSTEP_BUNDLE_LIBTORCH)  # it needs the torch of a Python; `make wheel` builds it
  install(TARGETS lockstep_pytorch_module lockstep_stores LIBRARY DESTINATION lib/lockstep COMPONENT runtime OPTIONAL)
endif()
if(TARGET lockstep_python_module)
  install(TARGETS lockstep_python_module LIBRARY DESTINATION lib/lockstep COMPONENT runtime)
  install(DIRECTORY "${PROJECT_SOURCE_DIR}/python/lockstep_glue" DESTINATION lib/lockstep COMPONENT runtime
    FILES_MATCHING PATTERN "*.py")
  install(FILES "${PROJECT_SOURCE_DIR}/python/lockstep/layers.py" DESTINATION lib/lockstep/lockstep_glue COMPONENT runtime)
  install(DIRECTORY "${PROJECT_BINARY_DIR}/lib/lockstep/stand_ins" DESTINATION lib/lockstep COMPONENT runtime)
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

# `make package`: lockstep_VERSION_ARCH.deb and the same tree as .tar.zst, which can be unpacked anywhere on Debian 12.
set(CPACK_PACKAGE_VENDOR "Lockstep")
set(CPACK_PACKAGE_CONTACT "Lockstep's maintainers <noreply@localhost>")
set(CPACK_PACKAGE_DESCRIPTION_SUMMARY "${PROJECT_DESCRIPTION}")
set(CPACK_RESOURCE_FILE_LICENSE "${PROJECT_SOURCE_DIR}/LICENSE")
set(CPACK_GENERATOR DEB TZST)
set(CPACK_COMPONENTS_ALL runtime)
set(CPACK_DEB_COMPONENT_INSTALL ON)
set(CPACK_ARCHIVE_COMPONENT_INSTALL ON)
set(CPACK_COMPONENTS_GROUPING ALL_COMPONENTS_IN_ONE)
file(WRITE "${PROJECT_BINARY_DIR}/CPackProject.cmake"  # top-level folder only in the archive: dpkg unpacks into /
  "string(COMPARE NOTEQUAL \"\${CPACK_GENERATOR}\" DEB CPACK_COMPONENT_INCLUDE_TOPLEVEL_DIRECTORY)\n")
set(CPACK_PROJECT_CONFIG_FILE "${PROJECT_BINARY_DIR}/CPackProject.cmake")
set(CPACK_ARCHIVE_THREADS 0)
set(CPACK_STRIP_FILES ON)
set(CPACK_DEBIAN_FILE_NAME DEB-DEFAULT)
set(CPACK_DEBIAN_PACKAGE_SECTION science)
set(CPACK_DEBIAN_COMPRESSION_TYPE zstd)
set(CPACK_DEBIAN_PACKAGE_SHLIBDEPS ON)
set(CPACK_DEBIAN_PACKAGE_SHLIBDEPS_PRIVATE_DIRS "${LibTorch_ROOT_DIR}/lib")
set(CPACK_DEBIAN_PACKAGE_DEPENDS openmpi-bin)
include(CPack)
