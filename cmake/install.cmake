# What leaves the build: the library, its headers, a package for find_package(verglas), and the command.
# Python wheels take the component `python` (python/bindings/CMakeLists.txt) and nothing from here.
include(GNUInstallDirs)
include(CMakePackageConfigHelpers)

set(VERGLAS_CMAKE_DIR ${CMAKE_INSTALL_LIBDIR}/cmake/verglas)
install(TARGETS verglas EXPORT verglas_targets COMPONENT verglas)
install(DIRECTORY include/verglas TYPE INCLUDE COMPONENT verglas FILES_MATCHING PATTERN "*.hpp" PATTERN "*.h")
install(EXPORT verglas_targets FILE verglas-targets.cmake NAMESPACE verglas:: DESTINATION ${VERGLAS_CMAKE_DIR} COMPONENT verglas)
configure_package_config_file(cmake/verglas-config.cmake.in ${PROJECT_BINARY_DIR}/verglas-config.cmake
                              INSTALL_DESTINATION ${VERGLAS_CMAKE_DIR})
write_basic_package_version_file(${PROJECT_BINARY_DIR}/verglas-config-version.cmake COMPATIBILITY SameMinorVersion)
install(FILES ${PROJECT_BINARY_DIR}/verglas-config.cmake ${PROJECT_BINARY_DIR}/verglas-config-version.cmake
        DESTINATION ${VERGLAS_CMAKE_DIR} COMPONENT verglas)
install(FILES LICENSE DESTINATION ${CMAKE_INSTALL_DOCDIR} COMPONENT verglas)

# src/tool defines the program verglas_tool, whose file is named verglas.
if(TARGET verglas_tool)
  set_target_properties(verglas_tool PROPERTIES INSTALL_RPATH "$ORIGIN/../${CMAKE_INSTALL_LIBDIR}")
  install(TARGETS verglas_tool RUNTIME COMPONENT verglas)
  if(SKBUILD)
    install(TARGETS verglas_tool RUNTIME DESTINATION ${SKBUILD_SCRIPTS_DIR} COMPONENT python)
  endif()
endif()
