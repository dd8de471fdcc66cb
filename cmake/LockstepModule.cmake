# lockstep_module(<folder> [COLD] [NO_LIBTORCH] SOURCES ... [USES <folder> ...] [LINKS <target> ...] [PRIVATE_LINKS <target> ...]
#                 [FOLDERS "<sub-folder>: <sub-folder> ..." ...])
# A top-level folder as static library lockstep::<folder>. USES is the only place where a dependency between folders is
# declared: CMake links by it, and the test `layers` checks every #include against it. FOLDERS says the same of the
# folders inside it, each with those that it uses, which stand above it; `.` is the folder's own files, `/infer/exports` a folder of
# another module that this folder alone stands above, and LINKS names its library. COLD: its code runs a few
# times a run, and is compiled with -O1, in a quarter less time. NO_LIBTORCH: without the precompiled header, most of which is LibTorch's.
#
# lockstep_library(<name> ...) with the same arguments makes a further library inside a folder (dist/mpi).
set_property(GLOBAL PROPERTY GLOBAL_DEPENDS_NO_CYCLES ON)  # else CMake accepts a cycle of static libraries silently

add_library(lockstep_options INTERFACE)
target_compile_features(lockstep_options INTERFACE cxx_std_20)
target_include_directories(lockstep_options INTERFACE
  $<BUILD_INTERFACE:${PROJECT_SOURCE_DIR}> $<INSTALL_INTERFACE:include> $<INSTALL_INTERFACE:include/lockstep>)
find_package(fmt REQUIRED)
target_link_libraries(lockstep_options INTERFACE fmt::fmt)  # its definitions must be those of the precompiled header

add_library(lockstep_warnings INTERFACE)
target_compile_options(lockstep_warnings INTERFACE -Wall -Wextra -Wshadow -Wnon-virtual-dtor
  -Wno-missing-field-initializers  # members left out of a designated initialiser have their defaults
  -Wno-restrict)                   # g++ 12 warns of its own string header
if(LOCKSTEP_WARNINGS_AS_ERRORS)
  target_compile_options(lockstep_warnings INTERFACE -Werror)
endif()

# Precompiled headers: pch.h for the libraries, test_pch.h for the tests. LibTorch's and GoogleTest's headers take seconds in
# every file otherwise. lockstep_pch(<name> HEADER <file> [LINKS ...] [OPTIONS ...]); OPTIONS are those of all who use it.
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

# Everything of ours that compiles C++ passes here: options, warnings, the precompiled header.
function(lockstep_target target)
  target_compile_options(${target} PRIVATE $<TARGET_PROPERTY:lockstep_warnings,INTERFACE_COMPILE_OPTIONS>)
  get_target_property(type ${target} TYPE)
  if(type STREQUAL EXECUTABLE)  # CMake would say -fPIE, and the precompiled header was made with -fPIC
    set_target_properties(${target} PROPERTIES POSITION_INDEPENDENT_CODE OFF)
    target_compile_options(${target} PRIVATE -fPIC)
  endif()
  if(LOCKSTEP_PCH)
    target_precompile_headers(${target} REUSE_FROM lockstep_pch)
  endif()
  lockstep_unity(${target})
endfunction()

# Compiles its sources in batches, where the build asks for that: headers and templates are read once a batch.
function(lockstep_unity target)
  if(LOCKSTEP_UNITY)
    set_target_properties(${target} PROPERTIES UNITY_BUILD ON UNITY_BUILD_BATCH_SIZE 32)
    target_compile_options(${target} PRIVATE -Wno-subobject-linkage)  # it takes the sources of a batch for headers
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

# lockstep_kernels(<folder> <source> ...)  those of its sources that are compiled for several instruction sets (base/simd/targets.h).
# Only -O3 makes g++ 12 vectorise all their loops, and only without errno from roots. Vectors are as wide as the set's. Contraction
# would round differently from one set to the next. Small loops would run at half speed where they cross a line of the decoded
# instructions. The precompiled header was made with none of this, and unity builds do not fit sources that include themselves.
find_path(LOCKSTEP_HIGHWAY hwy/foreach_target.h REQUIRED)  # headers alone
function(lockstep_kernels folder)
  set(options "$<$<CONFIG:Release>:-O3;-falign-loops=32>" -ffp-contract=off -fno-math-errno -fno-trapping-math)
  if(CMAKE_SYSTEM_PROCESSOR STREQUAL "x86_64")
    list(APPEND options -mprefer-vector-width=512)
  endif()
  set_source_files_properties(${ARGN} PROPERTIES
    COMPILE_OPTIONS "${options}" SKIP_PRECOMPILE_HEADERS ON SKIP_UNITY_BUILD_INCLUSION ON)
  target_include_directories(lockstep_${folder} SYSTEM PRIVATE "${LOCKSTEP_HIGHWAY}")
endfunction()

# lockstep_protos(<name> <file.proto> ...)  the messages of these files as static library lockstep_<name>_pb, which sources include as
# "<folder>/<file>.pb.h". Generated code is not our code: no warnings, no precompiled header.
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

# Tests are compiled with little optimisation, as they run once. The helpers of each stand in a namespace named after its file.
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
# a few CTest cases, <name>.1 and so on. ALONE: suites with a case of their own: they take long, they start processes or threads that
# nothing may run beside, or may be skipped. WAITS: the same for those that mostly wait.
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
  if(LOCKSTEP_SANITIZE MATCHES "thread")  # LibTorch's OpenMP threads synchronise where the sanitizer cannot see it
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
    elseif(ranks GREATER 2)  # first of all: later it would wait until others have left it the cores
      math(EXPR cost "300 + ${ranks}")
    endif()
    set_tests_properties(${name}.n${ranks} PROPERTIES LABELS ranks TIMEOUT 400 COST ${cost} PROCESSORS ${half_cores}
      ENVIRONMENT "${LOCKSTEP_QUICK_START}")
  endforeach()
endfunction()
