#pragma once
/// The version of the library. It stands here alone: CMake and pyproject.toml read it from the line below.
#define VERGLAS_VERSION_MAJOR 0
#define VERGLAS_VERSION_MINOR 1
#define VERGLAS_VERSION_PATCH 0
#define VERGLAS_VERSION "0.1.0"
