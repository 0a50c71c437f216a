#include <nanobind/nanobind.h>

#include "verglas/version.hpp"

NB_MODULE(_verglas, m) { m.attr("__version__") = VERGLAS_VERSION; }
