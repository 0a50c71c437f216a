#pragma once
#include <algorithm>
#include <chrono>
#include <functional>
#include <thread>
#include <vector>

/// Two ways to do one thing, measured in one run: batches of five in turn, order swapped each batch, first batch thrown away.
/// Before a batch a rest and a call that is not counted: threads of the other side that wait in a loop would take a processor.
namespace bench {

struct Ratio {
  double ours_ms = 0, rival_ms = 0;  ///< medians
  double ratio = 0;                  ///< rival ÷ ours: above 1 we are faster
  double low = 0, high = 0;          ///< of the ratios of the batches
};

inline double median(std::vector<double> v) {
  std::nth_element(v.begin(), v.begin() + static_cast<std::ptrdiff_t>(v.size() / 2), v.end());
  return v[v.size() / 2];
}

inline double time_ms(const std::function<void()>& f) {
  const auto start = std::chrono::steady_clock::now();
  f();
  return std::chrono::duration<double, std::milli>(std::chrono::steady_clock::now() - start).count();
}

inline Ratio side_by_side(const std::function<void()>& ours, const std::function<void()>& rival, int batches) {
  constexpr int kBatch = 5;
  constexpr std::chrono::milliseconds kRest{60};
  std::vector<double> all_ours, all_rival, ratios;
  for (int b = 0; b <= batches; ++b) {
    std::vector<double> x, y;
    const auto run = [&](const std::function<void()>& f, std::vector<double>& into) {
      std::this_thread::sleep_for(kRest);
      f();
      for (int i = 0; i < kBatch; ++i) into.push_back(time_ms(f));
    };
    if (b % 2 == 0) {
      run(ours, x);
      run(rival, y);
    } else {
      run(rival, y);
      run(ours, x);
    }
    if (b == 0) continue;
    all_ours.insert(all_ours.end(), x.begin(), x.end());
    all_rival.insert(all_rival.end(), y.begin(), y.end());
    ratios.push_back(median(y) / median(x));
  }
  Ratio r;
  r.ours_ms = median(all_ours);
  r.rival_ms = median(all_rival);
  r.ratio = r.rival_ms / r.ours_ms;
  r.low = *std::min_element(ratios.begin(), ratios.end());
  r.high = *std::max_element(ratios.begin(), ratios.end());
  return r;
}

}  // namespace bench
