# cmake -DPROGRAM=... -DOUTPUT=... -DLABELS=... -DTIMEOUT=... -DENVIRONMENT=... -P list_suites.cmake
# Writes a CTest file with one test for each test suite of a GoogleTest program: a process a case would spend most of its time
# loading LibTorch. The output of a failing suite names the case.
execute_process(COMMAND "${PROGRAM}" --gtest_list_tests OUTPUT_VARIABLE listed RESULT_VARIABLE failed)
if(failed)
  file(REMOVE "${PROGRAM}")  # else the next build takes it for done
  message(FATAL_ERROR "${PROGRAM} --gtest_list_tests: ${failed}")
endif()

set(tests "")
string(REGEX MATCHALL "(^|\n)[A-Za-z0-9_/]+\\." suites "${listed}")
foreach(suite IN LISTS suites)
  string(REGEX REPLACE "[\n.]" "" suite "${suite}")
  if(suite MATCHES "DISABLED_")
    continue()
  endif()
  string(APPEND tests "add_test([=[${suite}]=] [=[${PROGRAM}]=] [=[--gtest_filter=${suite}.*]=] --gtest_brief=1)\n"
    "set_tests_properties([=[${suite}]=] PROPERTIES LABELS [=[${LABELS}]=] PROCESSORS 2 TIMEOUT ${TIMEOUT} ENVIRONMENT [=[${ENVIRONMENT}]=]\n"
    "  SKIP_REGULAR_EXPRESSION [=[PASSED  ] 0 tests[.]\n.  SKIPPED . [0-9]+ tests?[.]\n$]=])\n")
endforeach()
if(tests STREQUAL "")
  message(FATAL_ERROR "${PROGRAM} has no test")
endif()
file(WRITE "${OUTPUT}" "${tests}")
