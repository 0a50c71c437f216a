#include "chain/cost.hpp"

namespace verglas::chain {

Cost cost_of(const FusionChain& c) {
  Cost cost;
  for (const Operand& o : c.operands) {
    double elements = 1;
    for (std::size_t i = 0; i < o.dim.size(); ++i)
      if (o.dim[i] == 0 || o.stride[i] != 0) elements *= static_cast<double>(o.dim[i]);
    const double bytes = elements * bits_of(o.dtype) / 8;
    cost.operand_bytes.push_back(bytes);
    (o.is_output ? cost.bytes_written : cost.bytes_read) += bytes;
  }
  const auto extent = [&](std::size_t i) { return static_cast<double>(c.declared[i]); };
  const auto domain = [&](const std::array<bool, 3>& varies) {
    double n = 1;
    for (std::size_t i = 0; i < 3; ++i)
      if (varies[i]) n *= extent(i);
    return n;
  };
  const double rows = c.grouping.combines() ? static_cast<double>(c.grouping.tokens) : extent(1);
  cost.product_operations = 2 * extent(0) * rows * extent(2) * extent(3) * static_cast<double>(c.gemms.size());
  for (const Step& s : c.steps) cost.elementwise_operations += domain(c.values[static_cast<std::size_t>(s.value)].varies);
  for (const Reduction& r : c.reductions)
    cost.elementwise_operations += domain(c.values[static_cast<std::size_t>(r.value)].varies);
  for (const Quantise& q : c.quantised)
    cost.elementwise_operations += 2 * domain(c.values[static_cast<std::size_t>(q.value)].varies);
  for (const PointerTable& t : c.tables)
    cost.bytes_read += static_cast<double>(c.grouping.experts) * static_cast<double>(t.extent[0]) *
                       static_cast<double>(t.extent[1]) * bits_of(t.dtype) / 8;
  for (const MatrixInput& in : c.inputs) {
    const Role& role = c.roles[static_cast<std::size_t>(in.role)];
    double elements = 1;
    for (const Symbol s : role.symbol) elements *= static_cast<double>(declared_extent(c, s));
    cost.elementwise_operations += elements * static_cast<double>(in.prologue.size() + (in.scale_role >= 0 ? 1 : 0));
  }
  return cost;
}

}  // namespace verglas::chain
