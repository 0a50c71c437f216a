# tests/fuzz/<name>.cpp is one libFuzzer program, fuzz_<name>. Its corpus is tests/fuzz/corpus/<name>/, small and committed.
# As a test each runs over its corpus and then for a bounded number of fresh inputs.
if(NOT CMAKE_CXX_COMPILER_ID STREQUAL "Clang")
  message(FATAL_ERROR "VERGLAS_BUILD_FUZZ needs clang (got ${CMAKE_CXX_COMPILER_ID}): use the preset fuzz")
endif()
set(VERGLAS_FUZZ_RUNS 100000 CACHE STRING "Inputs that the test of each fuzz program tries")
target_compile_options(verglas PRIVATE -fsanitize=fuzzer-no-link)
file(GLOB harnesses CONFIGURE_DEPENDS tests/fuzz/*.cpp)
enable_testing()
foreach(source IN LISTS harnesses)
  cmake_path(GET source STEM name)
  add_executable(fuzz_${name} ${source})
  target_include_directories(fuzz_${name} PRIVATE src tests)
  target_link_libraries(fuzz_${name} PRIVATE verglas verglas_options fmt::fmt nlohmann_json::nlohmann_json tl::expected
                        Threads::Threads)
  target_compile_options(fuzz_${name} PRIVATE -fsanitize=fuzzer-no-link)
  target_link_options(fuzz_${name} PRIVATE -fsanitize=fuzzer)
  set(found ${PROJECT_BINARY_DIR}/fuzz/${name})
  file(MAKE_DIRECTORY ${found})
  set(corpus ${PROJECT_SOURCE_DIR}/tests/fuzz/corpus/${name})
  if(NOT EXISTS ${corpus})
    set(corpus "")
  endif()
  # The first folder receives new inputs: the committed corpus is only read.
  add_test(NAME fuzz.${name} COMMAND fuzz_${name} -runs=${VERGLAS_FUZZ_RUNS} -max_total_time=120 -timeout=10 -seed=1
                                                  -artifact_prefix=${found}/ ${found} ${corpus})
  set_tests_properties(fuzz.${name} PROPERTIES LABELS fuzz)
endforeach()
