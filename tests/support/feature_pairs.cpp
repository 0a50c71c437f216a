#include "support/feature_pairs.hpp"

#include <algorithm>
#include <atomic>
#include <cstdio>
#include <queue>
#include <thread>
#include <unordered_map>
#include <utility>

#include "chain/analyse.hpp"
#include "engine/sm90/engine.hpp"
#include "support/feature_graph.hpp"

namespace support {

using namespace verglas;

std::string DrawnPlan::line() const {
  std::string s = "VERGLAS_CASE=" + std::to_string(seed) + ":";
  for (const std::string& f : features) s += " " + f + ";";
  for (const auto& [name, value] : knobs) s += " " + name + " " + std::to_string(value);
  return s;
}

std::vector<DrawnPlan> plans_of(std::uint64_t seed) {
  std::vector<DrawnPlan> all;
  Graph g;
  try {
    FeatureGraph(seed).describe(g);
    g.validate();
  } catch (const Error&) {  // not every drawing is a graph
    return {};
  }
  const auto chain = chain::analyse(g.data());
  if (!chain || !sm90::claim_chain(*chain)) return {};
  for (Knobs& knobs : sm90::configurations_of(*chain, 132)) {
    std::vector<std::string> features = features_of(*chain, knobs);
    all.push_back({seed, std::move(knobs), std::move(features)});
  }
  return all;
}

std::vector<DrawnPlan> plans_with_all_pairs(std::size_t graphs) {
  std::vector<std::vector<DrawnPlan>> of_seed(graphs);
  {
    std::vector<std::jthread> workers;
    std::atomic<std::size_t> next{0};
    for (unsigned t = 0; t < std::thread::hardware_concurrency(); ++t)
      workers.emplace_back([&] {
        for (std::size_t i = next++; i < graphs; i = next++) of_seed[i] = plans_of(i);
      });
  }
  std::vector<DrawnPlan> all;
  for (auto& plans : of_seed) all.insert(all.end(), std::make_move_iterator(plans.begin()), std::make_move_iterator(plans.end()));

  std::unordered_map<std::string, std::uint32_t> number;
  std::vector<std::vector<std::uint32_t>> of_plan;
  for (const DrawnPlan& d : all) {
    auto& numbers = of_plan.emplace_back();
    for (const std::string& f : d.features)
      numbers.push_back(number.emplace(f, static_cast<std::uint32_t>(number.size())).first->second);
  }
  std::vector<bool> met(number.size() * number.size());
  const auto each_fresh = [&](std::size_t plan, auto&& f) {
    const auto& n = of_plan[plan];
    for (std::size_t i = 0; i < n.size(); ++i)
      for (std::size_t j = i + 1; j < n.size(); ++j) {
        const std::size_t pair = std::min(n[i], n[j]) * number.size() + std::max(n[i], n[j]);
        if (!met[pair]) f(pair);
      }
  };
  const auto gain_of = [&](std::size_t plan) {
    std::size_t gain = 0;
    each_fresh(plan, [&](std::size_t) { ++gain; });
    return gain;
  };
  // Gains only fall: what is best by a gain that is up to date is the best. Of equals the first drawn.
  std::priority_queue<std::pair<std::size_t, std::size_t>> queue;
  for (std::size_t i = 0; i < all.size(); ++i) queue.emplace(gain_of(i), all.size() - i);
  std::vector<DrawnPlan> taken;
  std::size_t pairs = 0;
  while (!queue.empty() && queue.top().first > 0) {
    const std::size_t key = queue.top().second, plan = all.size() - key, gain = gain_of(plan);
    queue.pop();
    if (!queue.empty() && gain < queue.top().first) {
      queue.emplace(gain, key);
      continue;
    }
    each_fresh(plan, [&](std::size_t pair) { met[pair] = true; });
    pairs += gain;
    if (gain > 0) taken.push_back(std::move(all[plan]));
  }
  std::printf("%zu plans of %zu have all %zu pairs of features\n", taken.size(), all.size(), pairs);
  return taken;
}

}  // namespace support
