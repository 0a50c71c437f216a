# Installs Verglas into a fresh prefix, moves the prefix (the package must not remember where it was made), then configures,
# builds and runs the project in this folder against it.
#   cmake -DSOURCE= -DWORK= -DSHARED=ON|OFF -DVERSION= -DGENERATOR= -DCXX= -DLAUNCHER= -P install_and_build.cmake
function(run)
  list(JOIN ARGV " " shown)
  message(STATUS "${shown}")
  execute_process(COMMAND ${ARGV} RESULT_VARIABLE result)
  if(NOT result EQUAL 0)
    message(FATAL_ERROR "exit status ${result}: ${shown}")
  endif()
endfunction()

# The prefix is made anew each time; the build of the library is kept, so that a second run compiles nothing.
file(REMOVE_RECURSE "${WORK}/first prefix" "${WORK}/prefix" "${WORK}/build")
set(common -G ${GENERATOR} -DCMAKE_BUILD_TYPE=Release -DCMAKE_CXX_COMPILER=${CXX} "-DCMAKE_CXX_COMPILER_LAUNCHER=${LAUNCHER}")
run(${CMAKE_COMMAND} -S ${SOURCE} -B "${WORK}/library" ${common} -DBUILD_SHARED_LIBS=${SHARED} -DVERGLAS_BUILD_TESTS=OFF
    -DVERGLAS_BUILD_BENCH=OFF -DVERGLAS_BUILD_EXAMPLES=OFF "-DCMAKE_INSTALL_PREFIX=${WORK}/first prefix")
run(${CMAKE_COMMAND} --build "${WORK}/library")
run(${CMAKE_COMMAND} --install "${WORK}/library")
file(RENAME "${WORK}/first prefix" "${WORK}/prefix")

# nlohmann_json and tl::expected are ours alone: a consumer who has neither must not notice.
run(${CMAKE_COMMAND} -S ${CMAKE_CURRENT_LIST_DIR} -B "${WORK}/build" ${common} "-DCMAKE_PREFIX_PATH=${WORK}/prefix"
    -DCMAKE_DISABLE_FIND_PACKAGE_nlohmann_json=ON -DCMAKE_DISABLE_FIND_PACKAGE_tl-expected=ON -DWANTED_VERSION=${VERSION})
run(${CMAKE_COMMAND} --build "${WORK}/build")
run("${WORK}/build/consumer" ${VERSION})

if(EXISTS "${WORK}/prefix/bin/verglas")
  run("${WORK}/prefix/bin/verglas" --help)
endif()
