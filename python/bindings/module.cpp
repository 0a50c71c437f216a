#include <pthread.h>

#include "bindings.hpp"
#include "unlocked.hpp"
#include "verglas/version.hpp"

NB_MODULE(_verglas, m) {
  using namespace verglas::python;
  nb::set_leak_warnings(false);  // torch and JAX keep what is registered with them until after the interpreter looks
  m.attr("__version__") = VERGLAS_VERSION;
  bind_errors(m);
  bind_enums(m);
  bind_tensor(m);
  bind_plan(m);
  bind_graph(m);
  bind_operations(m);
  bind_operation_calls(m);
  bind_xla(m);
  Py_AtExit(wait_for_calls);
  pthread_atfork(nullptr, nullptr, forget_calls);
}
