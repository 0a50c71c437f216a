# Whole-build targets: the coverage report.
find_program(GCOVR_PROGRAM gcovr)
if(GCOVR_PROGRAM)
  add_custom_target(
    coverage_report
    COMMAND ${GCOVR_PROGRAM} --root ${PROJECT_SOURCE_DIR} --filter ${PROJECT_SOURCE_DIR}/src/ --filter ${PROJECT_SOURCE_DIR}/include/
            --exclude-throw-branches --object-directory ${PROJECT_BINARY_DIR} --print-summary
            --xml ${PROJECT_BINARY_DIR}/coverage.xml --html-details ${PROJECT_BINARY_DIR}/coverage.html --txt ${PROJECT_BINARY_DIR}/coverage.txt
    COMMAND ${CMAKE_COMMAND} -E cat ${PROJECT_BINARY_DIR}/coverage.txt
    WORKING_DIRECTORY ${PROJECT_BINARY_DIR}
    COMMENT "Coverage by file; pages in ${PROJECT_BINARY_DIR}/coverage.html"
    VERBATIM)
endif()
