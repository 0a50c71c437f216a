#include "jit/store.hpp"

#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <csignal>
#include <thread>

#include "base/sha256.hpp"
#include "support/child.hpp"
#include "support/fake_nvrtc.hpp"
#include "support/recording_driver.hpp"
#include "support/temp_folder.hpp"

namespace verglas::jit {
namespace {

using support::FakeNvrtc;
using support::RecordingDriver;
using support::TempFolder;
using testing::HasSubstr;

CompileRequest request(const std::string& name = "vg_1") {
  CompileRequest r;
  r.kernel = name;
  r.source = "extern \"C\" __global__ void " + name + "() {}";
  r.headers = {{"a.cuh", "int a;"}, {"b.cuh", "int b;"}};
  return r;
}

struct Bench {
  TempFolder folder;
  KernelCache cache{CacheSettings{folder.path(), {}}};
  KernelStore store{cache};
};

TEST(CacheKey, IsMadeOfEverythingThatDecidesTheCode) {
  const FakeNvrtc nvrtc;
  const std::string key = cache_key(request(), nvrtc.table());
  const auto differs = [&](auto change) {
    CompileRequest r = request();
    cuda::NvrtcTable t = nvrtc.table();
    change(r, t);
    return cache_key(r, t) != key;
  };
  EXPECT_FALSE(differs([](auto&, auto&) {}));
  EXPECT_TRUE(differs([](auto& r, auto&) { r.source[5] = 'X'; }));
  EXPECT_TRUE(differs([](auto& r, auto&) { r.source += ' '; }));
  EXPECT_TRUE(differs([](auto& r, auto&) { r.headers[1].text = "int c;"; }));
  EXPECT_TRUE(differs([](auto& r, auto&) { r.headers[1].name = "c.cuh"; }));
  EXPECT_TRUE(differs([](auto& r, auto&) { r.headers.pop_back(); }));
  EXPECT_TRUE(differs([](auto& r, auto&) { r.kernel = "vg_2"; }));
  EXPECT_TRUE(differs([](auto& r, auto&) { r.arch = "sm_100a"; }));
  EXPECT_TRUE(differs([](auto& r, auto&) { r.definitions = {"A=1"}; }));
  EXPECT_TRUE(differs([](auto& r, auto&) { r.line_info = true; }));
  EXPECT_TRUE(differs([](auto&, auto& t) { t.minor = 1; }));
  EXPECT_TRUE(differs([](auto&, auto& t) { t.major = 12; }));
  EXPECT_TRUE(differs([](auto&, auto& t) { t.build = "another build of 13.0"; }));
}

// Two installations under different folders share their entries; the order of headers means nothing.
TEST(CacheKey, DoesNotDependOnPathsOrOnTheOrderOfHeaders) {
  const FakeNvrtc nvrtc;
  cuda::NvrtcTable elsewhere = nvrtc.table();
  elsewhere.path = "/opt/elsewhere/libnvrtc.so.13";
  CompileRequest turned = request();
  std::swap(turned.headers[0], turned.headers[1]);
  EXPECT_EQ(cache_key(request(), nvrtc.table()), cache_key(turned, elsewhere));
}

TEST(CacheKey, TakesTheDigestOfAHeaderFromTheBuild) {
  const FakeNvrtc nvrtc;
  CompileRequest told = request();
  const std::string digest = sha256_hex(told.headers[0].text);
  told.headers[0].digest = digest;
  EXPECT_EQ(cache_key(request(), nvrtc.table()), cache_key(told, nvrtc.table()));
  EXPECT_EQ(source_key(request()), source_key(told));
}

TEST(CacheKey, KeepsFieldsApart) {
  const FakeNvrtc nvrtc;
  CompileRequest one = request(), two = request();
  one.definitions = {"A", "B"};
  two.definitions = {"A\noption 16 --define-macro=B"};
  EXPECT_NE(cache_key(one, nvrtc.table()), cache_key(two, nvrtc.table()));
}

TEST(KernelStore, CompilesOnceAndThenReadsTheCache) {
  const FakeNvrtc nvrtc;
  Bench b;
  const CompiledKernel first = b.store.compile(nvrtc.table(), request()), second = b.store.compile(nvrtc.table(), request());
  EXPECT_EQ(first.cubin, second.cubin);
  EXPECT_EQ(nvrtc.compiles(), 1);
  EXPECT_EQ(nvrtc.live_programs(), 0);
  KernelCache other_cache(CacheSettings{b.folder.path(), {}});
  KernelStore other(other_cache);
  EXPECT_EQ(other.compile(nvrtc.table(), request()).cubin, first.cubin);
  EXPECT_EQ(nvrtc.compiles(), 1);
}

// one byte of a kernel changed, with an older time on the file, compiles again; changed back, the first entry is hit.
TEST(KernelStore, CompilesAgainForOneByteAndFindsTheOldEntryWhenItIsRestored) {
  const FakeNvrtc nvrtc;
  Bench b;
  const std::string first = b.store.compile(nvrtc.table(), request()).cubin;
  CompileRequest changed = request();
  changed.headers[0].text = "int A;";
  const std::string second = b.store.compile(nvrtc.table(), changed).cubin;
  EXPECT_NE(first, second);
  EXPECT_EQ(nvrtc.compiles(), 2);
  const timespec old[2] = {{1000, 0}, {1000, 0}};
  ::utimensat(AT_FDCWD, (b.folder / entry_name(cache_key(request(), nvrtc.table()))).c_str(), old, 0);
  EXPECT_EQ(b.store.compile(nvrtc.table(), request()).cubin, first);
  EXPECT_EQ(nvrtc.compiles(), 2);
}

TEST(KernelStore, AFailedCompileIsNotStoredAndTheNextOneWorks) {
  FakeNvrtc nvrtc;
  Bench b;
  nvrtc.set_log("vg_1.cu(1): error: no such thing");
  nvrtc.fail_next("nvrtcCompileProgram", cuda::NVRTC_ERROR_COMPILATION);
  try {
    b.store.compile(nvrtc.table(), request());
    FAIL() << "compiled";
  } catch (const Error& e) {
    EXPECT_EQ(e.code(), ErrorCode::compile_failed);
    EXPECT_STREQ(e.what(),
                 "compile_failed [jit.compile] nvrtcCompileProgram of kernel vg_1 for sm_90a with NVRTC 13.0 answers "
                 "NVRTC_ERROR_COMPILATION:\nvg_1.cu(1): error: no such thing");
  }
  EXPECT_TRUE(b.cache.list().empty());
  EXPECT_EQ(nvrtc.live_programs(), 0);
  nvrtc.set_log("");
  EXPECT_FALSE(b.store.compile(nvrtc.table(), request()).cubin.empty());
}

TEST(KernelStore, EveryCallOfNvrtcMayFailOnceWithoutALeak) {
  FakeNvrtc nvrtc;
  for (const char* call : {"nvrtcCreateProgram", "nvrtcCompileProgram", "nvrtcGetCUBINSize", "nvrtcGetCUBIN"}) {
    Bench b;
    nvrtc.fail_next(call, cuda::NVRTC_ERROR_OUT_OF_MEMORY);
    try {
      b.store.compile(nvrtc.table(), request());
      ADD_FAILURE() << call;
    } catch (const Error& e) {
      EXPECT_THAT(e.what(), HasSubstr(call));
    }
    EXPECT_EQ(nvrtc.live_programs(), 0) << call;
    EXPECT_FALSE(b.store.compile(nvrtc.table(), request()).cubin.empty()) << call;
  }
  // The log is only for people: without it the kernel is as good.
  for (const char* call : {"nvrtcGetProgramLogSize", "nvrtcGetProgramLog"}) {
    Bench b;
    nvrtc.set_log("some log");
    nvrtc.fail_next(call, cuda::NVRTC_ERROR_OUT_OF_MEMORY);
    EXPECT_FALSE(b.store.compile(nvrtc.table(), request()).cubin.empty()) << call;
  }
}

TEST(KernelStore, OneThreadCompilesAKeyAndTheOthersWait) {
  FakeNvrtc nvrtc;
  const RecordingDriver driver;
  Bench b;
  nvrtc.hold();
  std::vector<std::shared_ptr<const LoadedKernel>> got(8);
  std::vector<std::jthread> threads;
  for (auto& into : got) threads.emplace_back([&] { into = b.store.load(driver.table(), nvrtc.table(), request(), {}); });
  nvrtc.wait_for_compile();
  nvrtc.release();
  threads.clear();
  EXPECT_EQ(nvrtc.compiles(), 1);
  EXPECT_EQ(driver.count("cuLibraryLoadData"), 1);
  for (const auto& kernel : got) EXPECT_EQ(kernel, got[0]);
}

TEST(KernelStore, UnloadsWithTheLastOwnerAndLoadsAgainFromTheCache) {
  const FakeNvrtc nvrtc;
  const RecordingDriver driver(std::vector<support::FakeDevice>(2));
  Bench b;
  auto one = b.store.load(driver.table(), nvrtc.table(), request(), {});
  auto two = b.store.load(driver.table(), nvrtc.table(), request(), {});
  EXPECT_EQ(one, two);
  one->prepare(0);
  one->prepare(1);
  one.reset();
  EXPECT_EQ(driver.live().libraries, 1);
  two.reset();
  EXPECT_EQ(driver.live().total(), 0);
  EXPECT_TRUE(b.store.load(driver.table(), nvrtc.table(), request(), {}));
  EXPECT_EQ(nvrtc.compiles(), 1);
  EXPECT_EQ(driver.live().total(), 0);
}

// a service with ever-changing shapes does not grow.
TEST(KernelStore, DoesNotGrowWithKernelsThatAreGone) {
  const FakeNvrtc nvrtc;
  const RecordingDriver driver;
  KernelCache cache(CacheSettings{"", "a test"});
  KernelStore store(cache);
  for (int i = 0; i < 1000; ++i) store.load(driver.table(), nvrtc.table(), request("vg_" + std::to_string(i)), {})->prepare(0);
  EXPECT_EQ(store.size(), 0U);
  EXPECT_EQ(driver.live().total(), 0);
  EXPECT_EQ(driver.count("cuLibraryLoadData"), 1000);
}

TEST(KernelStore, KernelsThatNeedDifferentLimitsAreLoadedApartAndCompiledOnce) {
  const FakeNvrtc nvrtc;
  const RecordingDriver driver;
  Bench b;
  const auto small = b.store.load(driver.table(), nvrtc.table(), request(), {1000, false});
  const auto large = b.store.load(driver.table(), nvrtc.table(), request(), {200000, false});
  EXPECT_NE(small, large);
  EXPECT_EQ(nvrtc.compiles(), 1);
}

// Each process has its own compiler, so that up to 16 may compile; all get the same kernel, and one sound entry remains.
TEST(KernelStore, SixteenProcessesFillAnEmptyCacheAtOnce) {
  const TempFolder folder;
  const std::string complaint = support::in_children(16, [&](int i) -> std::string {
    const FakeNvrtc nvrtc;
    KernelCache cache(CacheSettings{folder / "new/cache", {}});
    KernelStore store(cache);
    std::string expected;
    for (int k = 0; k < 4; ++k) {
      const std::string name = "vg_" + std::to_string((i + k) % 4);
      if (store.compile(nvrtc.table(), request(name)).kernel != name) return "wrong kernel";
      if (store.compile(nvrtc.table(), request(name)).kernel != name) return "wrong kernel on the second time";
    }
    const CacheState state = cache.state();
    if (state.damaged + state.foreign + state.store_failures + state.memory_hits != 0)
      return "damaged " + std::to_string(state.damaged) + ", foreign " + std::to_string(state.foreign) + ", failures " +
             std::to_string(state.store_failures) + " " + state.why_not;
    return "";
  });
  EXPECT_EQ(complaint, "");
  KernelCache cache(CacheSettings{folder / "new/cache", {}});
  EXPECT_EQ(cache.list().size(), 4U);
  for (const CacheItem& item : cache.list()) EXPECT_EQ(item.fault, "");
  EXPECT_EQ(std::distance(std::filesystem::directory_iterator(folder / "new/cache"), std::filesystem::directory_iterator{}), 4);
}

// While others publish, list, clear and evict.
TEST(KernelStore, ProcessesThatClearAndEvictDoNotDisturbOthers) {
  const TempFolder folder;
  const std::string complaint = support::in_children(8, [&](int i) -> std::string {
    const FakeNvrtc nvrtc;
    CacheSettings settings{folder.path(), {}};
    if (i % 4 == 2) settings.limit_bytes = 3000;
    KernelCache cache(settings);
    KernelStore store(cache);
    for (int round = 0; round < 30; ++round) {
      if (i % 4 == 0) cache.clear();
      if (i % 4 == 1)
        for (const CacheItem& item : cache.list())
          if (!item.fault.empty()) return item.name + ": " + item.fault;
      const std::string name = "vg_" + std::to_string(round % 7);
      if (store.compile(nvrtc.table(), request(name)).kernel != name) return "wrong kernel";
    }
    return cache.state().damaged + cache.state().foreign == 0 ? "" : "an entry was found damaged";
  });
  EXPECT_EQ(complaint, "");
}

TEST(KernelStore, AWriterKilledHalfWayHarmsNobody) {
  const TempFolder folder;
  const std::string said = support::in_child([&]() -> std::string {
    const FakeNvrtc nvrtc;
    // What publish_file leaves when the process dies between write and rename.
    support::write_file(folder / ".999-1.part", std::string(5000, 'x'));
    ::kill(::getpid(), SIGKILL);
    return "";
  });
  EXPECT_THAT(said, HasSubstr("killed by signal 9"));
  const FakeNvrtc nvrtc;
  KernelCache cache(CacheSettings{folder.path(), {}});
  KernelStore store(cache);
  EXPECT_EQ(store.compile(nvrtc.table(), request()).kernel, "vg_1");
  EXPECT_EQ(cache.list().size(), 1U);
  const timespec old[2] = {{1000, 0}, {1000, 0}};
  ::utimensat(AT_FDCWD, (folder / ".999-1.part").c_str(), old, 0);
  store.compile(nvrtc.table(), request("vg_2"));
  EXPECT_FALSE(std::filesystem::exists(folder / ".999-1.part"));
}

TEST(KernelStore, WorksWithoutAnyFolder) {
  const FakeNvrtc nvrtc;
  KernelCache cache(CacheSettings{"", "a test"});
  KernelStore store(cache);
  const std::string first = store.compile(nvrtc.table(), request()).cubin;
  EXPECT_EQ(store.compile(nvrtc.table(), request()).cubin, first);
  EXPECT_EQ(nvrtc.compiles(), 1);
}

}  // namespace
}  // namespace verglas::jit
