#pragma once
/// The version of the library, as set in CMakeLists.txt and pyproject.toml (a test compares the three).
#define VERGLAS_VERSION_MAJOR 0
#define VERGLAS_VERSION_MINOR 1
#define VERGLAS_VERSION_PATCH 0
#define VERGLAS_VERSION "0.1.0"
