# lockstep_module(<folder> [COLD] [NO_LIBTORCH] SOURCES ... [USES <folder> ...] [LINKS <target> ...] [PRIVATE_LINKS <target> ...]
#                 [FOLDERS "<sub-folder>: <sub-folder> ..." ...])
# Makes a top-level folder the static library lockstep::<folder>. USES is the only place that declares dependencies between folders:
# CMake links by it, and the test `layers` checks every #include against it. FOLDERS declares the same for sub-folders: each with the
# sub-folders that it uses. There `.` means the folder's own files, and `/infer/exports` a folder of another module that only this
# sub-folder may use (LINKS names its library). COLD: code that runs a few times in a run. It is compiled with -O1, which takes a quarter
# less time. NO_LIBTORCH: no precompiled header, most of which is LibTorch's.
#
# lockstep_library(<name> ...) has the same arguments and makes another library inside a folder (dist/mpi).
set_property(GLOBAL PROPERTY GLOBAL_DEPENDS_NO_CYCLES ON)  # otherwise CMake silently accepts a cycle of static libraries

add_library(lockstep_options INTERFACE)
target_compile_features(lockstep_options INTERFACE cxx_std_20)
target_include_directories(lockstep_options INTERFACE
  $<BUILD_INTERFACE:${PROJECT_SOURCE_DIR}> $<INSTALL_INTERFACE:include> $<INSTALL_INTERFACE:include/lockstep>)
find_package(fmt REQUIRED)
target_link_libraries(lockstep_options INTERFACE fmt::fmt)  # its definitions must be those of the precompiled header

add_library(lockstep_warnings INTERFACE)
target_compile_options(lockstep_warnings INTERFACE -Wall -Wextra -Wshadow -Wnon-virtual-dtor
  -Wno-missing-field-initializers  # members omitted in a designated initialiser have their defaults
  -Wno-restrict)                   # g++ 12 warns about its own string header
if(LOCKSTEP_WARNINGS_AS_ERRORS)
  target_compile_options(lockstep_warnings INTERFACE -Werror)
endif()

# Precompiled headers: pch.h for the libraries, test_pch.h for the tests. They save seconds in every file that includes LibTorch's or
# GoogleTest's headers. lockstep_pch(<name> HEADER <file> [LINKS ...] [OPTIONS ...]); OPTIONS must equal those of all its users.
function(lockstep_pch name)
  cmake_parse_arguments(PARSE_ARGV 1 arg "" "HEADER" "LINKS;OPTIONS")
  file(WRITE "${CMAKE_BINARY_DIR}/${name}.cpp" "")
  add_library(${name} OBJECT "${CMAKE_BINARY_DIR}/${name}.cpp")
  target_link_libraries(${name} PRIVATE lockstep_options LibTorch::cpu ${arg_LINKS})
  target_compile_options(${name} PRIVATE ${arg_OPTIONS})
  target_precompile_headers(${name} PRIVATE "${PROJECT_SOURCE_DIR}/cmake/${arg_HEADER}")
endfunction()
if(LOCKSTEP_PCH)
  lockstep_pch(lockstep_pch HEADER pch.h)
endif()

# Settings of every own C++ target: options, warnings, the precompiled header.
function(lockstep_target target)
  target_compile_options(${target} PRIVATE $<TARGET_PROPERTY:lockstep_warnings,INTERFACE_COMPILE_OPTIONS>)
  get_target_property(type ${target} TYPE)
  if(type STREQUAL EXECUTABLE)  # CMake would pass -fPIE, but the precompiled header was made with -fPIC
    set_target_properties(${target} PROPERTIES POSITION_INDEPENDENT_CODE OFF)
    target_compile_options(${target} PRIVATE -fPIC)
  endif()
  if(LOCKSTEP_PCH)
    target_precompile_headers(${target} REUSE_FROM lockstep_pch)
  endif()
  lockstep_unity(${target})
endfunction()

# Compiles sources in batches if LOCKSTEP_UNITY is on: headers and templates are read once a batch.
function(lockstep_unity target)
  if(LOCKSTEP_UNITY)
    set_target_properties(${target} PROPERTIES UNITY_BUILD ON UNITY_BUILD_BATCH_SIZE 32)
    target_compile_options(${target} PRIVATE -Wno-subobject-linkage)  # g++ takes the sources of a batch for headers
  endif()
endfunction()

function(lockstep_library name)
  cmake_parse_arguments(PARSE_ARGV 1 arg "COLD;NO_LIBTORCH" "" "SOURCES;USES;LINKS;PRIVATE_LINKS")
  add_library(lockstep_${name} STATIC ${arg_SOURCES})
  add_library(lockstep::${name} ALIAS lockstep_${name})
  list(TRANSFORM arg_USES PREPEND lockstep:: OUTPUT_VARIABLE used)
  target_link_libraries(lockstep_${name} PUBLIC lockstep_options LibTorch::cpu ${used} ${arg_LINKS} PRIVATE ${arg_PRIVATE_LINKS})
  lockstep_target(lockstep_${name})
  if(arg_COLD)
    target_compile_options(lockstep_${name} PRIVATE $<$<CONFIG:Release>:-O1>)
  endif()
  if(arg_NO_LIBTORCH)
    set_target_properties(lockstep_${name} PROPERTIES DISABLE_PRECOMPILE_HEADERS ON)
  endif()
  set_target_properties(lockstep_${name} PROPERTIES EXPORT_NAME ${name})
  set_property(GLOBAL APPEND PROPERTY LOCKSTEP_LIBRARIES lockstep_${name})
endfunction()

function(lockstep_module folder)
  cmake_parse_arguments(PARSE_ARGV 1 arg "COLD;NO_LIBTORCH" "" "SOURCES;USES;LINKS;PRIVATE_LINKS;FOLDERS")
  set(kind "")
  foreach(flag IN ITEMS COLD NO_LIBTORCH)
    if(arg_${flag})
      list(APPEND kind ${flag})
    endif()
  endforeach()
  lockstep_library(${folder} ${kind} SOURCES ${arg_SOURCES} USES ${arg_USES} LINKS ${arg_LINKS} PRIVATE_LINKS ${arg_PRIVATE_LINKS})
  list(JOIN arg_USES " " uses)
  set_property(GLOBAL APPEND PROPERTY LOCKSTEP_LAYERS "${folder}: ${uses}")
  list(TRANSFORM arg_FOLDERS PREPEND "${folder}/")
  set_property(GLOBAL APPEND PROPERTY LOCKSTEP_LAYERS ${arg_FOLDERS})
endfunction()

# lockstep_kernels(<folder> <source> ...)  sources that are compiled for several instruction sets (base/simd/targets.h).
# g++ 12 vectorises all their loops only with -O3 and -fno-math-errno (square roots). Vectors are as wide as those of the instruction set.
# Contraction would round differently between instruction sets. Small loops would run at half speed if they cross a line of the cache of
# decoded instructions. The precompiled header has none of these options, and unity builds do not suit sources that include themselves.
find_path(LOCKSTEP_HIGHWAY hwy/foreach_target.h REQUIRED)  # headers only
function(lockstep_kernels folder)
  set(options "$<$<CONFIG:Release>:-O3;-falign-loops=32>" -ffp-contract=off -fno-math-errno -fno-trapping-math)
  if(CMAKE_SYSTEM_PROCESSOR STREQUAL "x86_64")
    list(APPEND options -mprefer-vector-width=512)
  endif()
  set_source_files_properties(${ARGN} PROPERTIES
    COMPILE_OPTIONS "${options}" SKIP_PRECOMPILE_HEADERS ON SKIP_UNITY_BUILD_INCLUSION ON)
  target_include_directories(lockstep_${folder} SYSTEM PRIVATE "${LOCKSTEP_HIGHWAY}")
endfunction()

# lockstep_protos(<name> <file.proto> ...)  messages of these files as the static library lockstep_<name>_pb. Sources include
# "<folder>/<file>.pb.h". Generated code is compiled without warnings and without the precompiled header.
find_package(Protobuf 3.21 REQUIRED)
function(lockstep_protos name)
  set(pb_dir "${PROJECT_BINARY_DIR}/generated")
  list(TRANSFORM ARGN PREPEND "${CMAKE_CURRENT_SOURCE_DIR}/" OUTPUT_VARIABLE protos)
  set(sources "")
  foreach(proto IN LISTS protos)
    cmake_path(RELATIVE_PATH proto BASE_DIRECTORY "${PROJECT_SOURCE_DIR}" OUTPUT_VARIABLE out)
    cmake_path(REPLACE_EXTENSION out LAST_ONLY pb)
    add_custom_command(OUTPUT "${pb_dir}/${out}.cc" "${pb_dir}/${out}.h"
      COMMAND ${CMAKE_COMMAND} -E make_directory "${pb_dir}"
      COMMAND protobuf::protoc -I "${PROJECT_SOURCE_DIR}" --cpp_out "${pb_dir}" "${proto}"
      DEPENDS ${protos})
    list(APPEND sources "${pb_dir}/${out}.cc")
  endforeach()
  add_library(lockstep_${name}_pb STATIC ${sources})
  target_compile_features(lockstep_${name}_pb PUBLIC cxx_std_20)
  target_compile_options(lockstep_${name}_pb PRIVATE -w)
  target_include_directories(lockstep_${name}_pb SYSTEM PUBLIC $<BUILD_INTERFACE:${pb_dir}>)
  target_link_libraries(lockstep_${name}_pb PUBLIC protobuf::libprotobuf)
  set_property(GLOBAL APPEND PROPERTY LOCKSTEP_LIBRARIES lockstep_${name}_pb)
endfunction()

# lockstep_program(<name> SOURCES ... LINKS ...)  the program bin/<name>, target <name>_program.
function(lockstep_program name)
  cmake_parse_arguments(PARSE_ARGV 1 arg "" "" "SOURCES;LINKS")
  add_executable(${name}_program ${arg_SOURCES})
  target_link_libraries(${name}_program PRIVATE ${arg_LINKS})
  set_target_properties(${name}_program PROPERTIES OUTPUT_NAME ${name} RUNTIME_OUTPUT_DIRECTORY "${PROJECT_BINARY_DIR}/bin")
  lockstep_target(${name}_program)
endfunction()

# Tests are compiled with little optimisation, since they run once. Helpers of each test are in a namespace named after its file.
set(LOCKSTEP_TEST_OPTIONS $<$<CONFIG:Release>:-O1>)
if(LOCKSTEP_PCH AND LOCKSTEP_TESTS)
  find_package(GTest REQUIRED)
  lockstep_pch(lockstep_test_pch HEADER test_pch.h LINKS GTest::gtest GTest::gmock OPTIONS ${LOCKSTEP_TEST_OPTIONS})
endif()
function(lockstep_test_target target)
  lockstep_target(${target})
  target_compile_options(${target} PRIVATE ${LOCKSTEP_TEST_OPTIONS})
  if(LOCKSTEP_PCH)
    set_target_properties(${target} PROPERTIES PRECOMPILE_HEADERS_REUSE_FROM lockstep_test_pch)
  endif()
endfunction()

# lockstep_test(<name> SOURCES ... [LINKS ...] [ALONE <suite> ...] [WAITS <suite> ...])  one GoogleTest program, whose suites share
# a few CTest cases, <name>.1 and so on. ALONE: suites with their own case: they take long, start processes or threads that need the
# machine for themselves, or may be skipped. WAITS: the same for suites that mostly wait.
function(lockstep_test name)
  cmake_parse_arguments(PARSE_ARGV 1 arg "" "" "SOURCES;LINKS;ALONE;WAITS")
  list(JOIN arg_ALONE "," alone)
  list(JOIN arg_WAITS "," waits)
  add_executable(${name} ${arg_SOURCES})
  target_link_libraries(${name} PRIVATE ${arg_LINKS} GTest::gtest_main GTest::gmock)
  target_include_directories(${name} PRIVATE "${PROJECT_SOURCE_DIR}/tests")
  target_compile_definitions(${name} PRIVATE LOCKSTEP_SOURCE_DIR="${PROJECT_SOURCE_DIR}")
  lockstep_test_target(${name})
  set(environment "")
  set(timeout 300)
  if(LOCKSTEP_SANITIZE)
    set(timeout 1200)
  endif()
  if(LOCKSTEP_SANITIZE MATCHES "thread")  # the sanitizer does not see how LibTorch's OpenMP threads synchronise
    set(environment OMP_NUM_THREADS=1)
  endif()
  set(suites "${CMAKE_CURRENT_BINARY_DIR}/${name}_suites.cmake")
  add_custom_command(TARGET ${name} POST_BUILD
    COMMAND ${CMAKE_COMMAND} -DPROGRAM=$<TARGET_FILE:${name}> -DOUTPUT=${suites} -DLABELS=unit -DTIMEOUT=${timeout}
      -DENVIRONMENT=${environment} -DALONE=${alone} -DWAITS=${waits} -P "${PROJECT_SOURCE_DIR}/cmake/list_suites.cmake"
    BYPRODUCTS "${suites}")
  file(CONFIGURE OUTPUT "${CMAKE_CURRENT_BINARY_DIR}/${name}_include.cmake" @ONLY
    CONTENT "if(EXISTS [=[@suites@]=])\n  include([=[@suites@]=])\nelse()\n  add_test(@name@_is_not_built @name@_is_not_built)\nendif()\n")
  set_property(DIRECTORY APPEND PROPERTY TEST_INCLUDE_FILES "${CMAKE_CURRENT_BINARY_DIR}/${name}_include.cmake")
endfunction()

# lockstep_rank_test(<name> SOURCES ... [LINKS ...] RANKS 1 2 4)  the same program under mpirun -n N.
# Its main() is tests/support/mpi_main.cpp: every rank runs every TEST; one failing rank fails the run.
function(lockstep_rank_test name)
  cmake_parse_arguments(PARSE_ARGV 1 arg "" "" "SOURCES;LINKS;RANKS")
  add_executable(${name} ${arg_SOURCES} "${PROJECT_SOURCE_DIR}/tests/support/mpi_main.cpp")
  target_link_libraries(${name} PRIVATE ${arg_LINKS} lockstep::dist_mpi GTest::gtest GTest::gmock)
  lockstep_test_target(${name})
  foreach(ranks IN LISTS arg_RANKS)
    add_test(NAME ${name}.n${ranks} COMMAND "${PROJECT_SOURCE_DIR}/launch/mpirun.sh" ${ranks} $<TARGET_FILE:${name}>)
    set(half_cores ${ranks})
    set(cost 60)
    if(ranks LESS 2)
      set(half_cores 2)
    elseif(ranks GREATER 2)  # starts first: later it would wait until enough cores are free
      math(EXPR cost "300 + ${ranks}")
    endif()
    set_tests_properties(${name}.n${ranks} PROPERTIES LABELS ranks TIMEOUT 400 COST ${cost} PROCESSORS ${half_cores}
      ENVIRONMENT "${LOCKSTEP_QUICK_START}")
  endforeach()
endfunction()
