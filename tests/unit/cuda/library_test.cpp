#include "cuda/library.hpp"

#include <dlfcn.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <map>

#include "cuda/cublaslt_table.hpp"
#include "cuda/driver_table.hpp"
#include "cuda/nvrtc_table.hpp"
#include "support/temp_folder.hpp"

namespace verglas::cuda {
namespace {

using support::TempFolder;
using testing::AllOf;
using testing::HasSubstr;
using testing::Not;

std::string fixture(const std::string& folder) { return VERGLAS_FIXTURE_LIBRARIES "/" + folder; }

/// Variables of a search; a machine where nothing is installed but what a test names.
std::map<std::string, std::string> g_variables;
SearchPlaces nowhere(std::map<std::string, std::string> variables = {}) {
  g_variables = std::move(variables);
  SearchPlaces places;
  places.variable = [](const char* name) -> const char* {
    const auto it = g_variables.find(name);
    return it == g_variables.end() ? nullptr : it->second.c_str();
  };
  places.loaded = places.loader_path = places.system_folders = false;
  return places;
}

LibraryReport search_nvrtc(const SearchPlaces& places, int driver_version = 0) {
  NvrtcTable table;
  const LibraryReport report = open_nvrtc(table, places, driver_version);
  if (report.found) {
    EXPECT_NE(table.nvrtcCompileProgram, nullptr);
    EXPECT_EQ(report.version, std::to_string(table.major) + "." + std::to_string(table.minor));
    EXPECT_THAT(table.build, HasSubstr("bytes"));
  }
  return report;
}
LibraryReport search_driver(const SearchPlaces& places) {
  DriverTable table;
  const LibraryReport report = open_driver(table, places);
  if (report.found) {
    EXPECT_NE(table.cuLaunchKernelEx, nullptr);
  }
  return report;
}

/// site-packages with a wheel's folder in which the fixture's libraries lie.
void install(const std::string& folder, const std::string& into) {
  std::filesystem::create_directories(into);
  for (const auto& file : std::filesystem::directory_iterator(fixture(folder))) std::filesystem::copy(file.path(), into);
}

TEST(LibrarySearch, FindsWhatTheVariableNamesFileOrFolder) {
  for (const std::string& value : {fixture("nvrtc13"), fixture("nvrtc13") + "/libnvrtc.so.13"}) {
    const LibraryReport r = search_nvrtc(nowhere({{"VERGLAS_NVRTC", value}}));
    EXPECT_TRUE(r.found) << r.sentence;
    EXPECT_EQ(r.origin, "VERGLAS_NVRTC");
    EXPECT_EQ(r.sentence, "NVRTC 13.0 from " + fixture("nvrtc13") + "/libnvrtc.so.13 (VERGLAS_NVRTC)");
  }
}

TEST(LibrarySearch, LooksNowhereElseWhenTheVariableIsSet) {
  SearchPlaces places = nowhere({{"VERGLAS_NVRTC", "/no/such/place"}, {"CUDA_HOME", "/also/not"}});
  places.toolkits = {"/usr/local/cuda"};
  places.loader_path = true;
  const LibraryReport r = search_nvrtc(places);
  EXPECT_FALSE(r.found);
  ASSERT_EQ(r.attempts.size(), 1U);
  EXPECT_EQ(r.attempts[0].where, "/no/such/place");
}

TEST(LibrarySearch, OffHidesALibrary) {
  const LibraryReport r = search_driver(nowhere({{"VERGLAS_CUDA_DRIVER", "off"}}));
  EXPECT_FALSE(r.found);
  EXPECT_THAT(r.sentence, HasSubstr("VERGLAS_CUDA_DRIVER: is \"off\""));
}

// A-57 (d)
TEST(LibrarySearch, OfNothingNamesFilesFoldersAndWhatToInstall) {
  const TempFolder empty;
  SearchPlaces places = nowhere({{"CUDA_HOME", "/no/cuda"}});
  places.site_packages = {empty.path()};
  const LibraryReport r = search_nvrtc(places);
  EXPECT_FALSE(r.found);
  EXPECT_EQ(r.sentence,
            "NVRTC was not found (names libnvrtc.so.13, libnvrtc.so.12, libnvrtc.so; tried /no/cuda/lib64: no such folder; "
            "/no/cuda/lib: no such "
            "folder; " +
                empty.path() + "/nvidia/cu13/lib: no such folder; " + empty.path() +
                "/nvidia/cuda_nvrtc/lib: no such folder); install NVIDIA's CUDA toolkit 12.4 or newer, or the wheel "
                "nvidia-cuda-nvrtc (CUDA 13) or "
                "nvidia-cuda-nvrtc-cu12, or set VERGLAS_NVRTC to the library or its folder");
  EXPECT_THAT(search_nvrtc(nowhere()).sentence, HasSubstr("tried nothing"));
}

// A-57 (a) and A-58: a wheel below a folder with a space, a quote and a letter beyond ASCII.
TEST(LibrarySearch, FindsThePipWheelsOfEitherMajor) {
  const TempFolder site("it's a gl\xc3\xa4s");
  SearchPlaces places = nowhere();
  places.site_packages = {"/no/such/site", site.path()};
  install("nvrtc12", site / "nvidia/cuda_nvrtc/lib");
  EXPECT_EQ(search_nvrtc(places).version, "12.9");
  install("nvrtc13", site / "nvidia/cu13/lib");
  const LibraryReport r = search_nvrtc(places);
  EXPECT_EQ(r.version, "13.0");
  EXPECT_EQ(r.origin, "pip wheel");
}

// A-57 (b)
TEST(LibrarySearch, FindsTheToolkitInEitherFolder) {
  for (const char* lib : {"lib64", "lib"}) {
    const TempFolder toolkit;
    install("nvrtc13", toolkit / lib);
    const LibraryReport by_variable = search_nvrtc(nowhere({{"CUDA_HOME", toolkit.path()}}));
    EXPECT_EQ(by_variable.origin, "toolkit") << by_variable.sentence;
    SearchPlaces places = nowhere();
    places.toolkits = {toolkit.path()};
    EXPECT_EQ(search_nvrtc(places).origin, "toolkit");
  }
}

TEST(LibrarySearch, PrefersTheToolkitToTheWheels) {
  const TempFolder toolkit, site;
  install("nvrtc12", toolkit / "lib64");
  install("nvrtc13", site / "nvidia/cu13/lib");
  SearchPlaces places = nowhere({{"CUDA_PATH", toolkit.path()}});
  places.site_packages = {site.path()};
  EXPECT_EQ(search_nvrtc(places).version, "12.9");
}

// A-57 (c): the newest that the driver can load.
TEST(LibrarySearch, OfTwoMajorsTakesTheNewestThatTheDriverServes) {
  const SearchPlaces places = nowhere({{"VERGLAS_NVRTC", fixture("nvrtc_both")}});
  EXPECT_EQ(search_nvrtc(places, 0).version, "13.1");
  EXPECT_EQ(search_nvrtc(places, 13000).version, "13.1");
  const LibraryReport r = search_nvrtc(places, 12080);
  EXPECT_EQ(r.version, "12.4");
  ASSERT_EQ(r.attempts.size(), 2U);
  EXPECT_EQ(r.attempts[0].outcome, "is version 13.1, and the driver is for CUDA 12.8");
  EXPECT_EQ(r.attempts[1].outcome, "opened");
}

TEST(LibrarySearch, PassesOverLibrariesThatDoNotServe) {
  const auto outcome = [](const std::string& folder) {
    const LibraryReport r = search_nvrtc(nowhere({{"VERGLAS_NVRTC", fixture(folder)}}));
    EXPECT_FALSE(r.found) << folder;
    return r.attempts.empty() ? "" : r.attempts[0].outcome;
  };
  EXPECT_EQ(outcome("nvrtc_old"), "is version 12.3, older than 12.4");
  EXPECT_EQ(outcome("nvrtc_incomplete"), "has no symbol nvrtcGetCUBIN");
  EXPECT_EQ(outcome("nvrtc_ampere"), "is version 13.0 without sm_90");
  // And the search goes on behind one.
  const TempFolder toolkit, site;
  install("nvrtc_incomplete", toolkit / "lib64");
  install("nvrtc12", site / "nvidia/cuda_nvrtc/lib");
  SearchPlaces places = nowhere({{"CUDA_HOME", toolkit.path()}});
  places.site_packages = {site.path()};
  EXPECT_EQ(search_nvrtc(places).version, "12.9");
}

TEST(LibrarySearch, SurvivesAFileThatIsNoLibrary) {
  const TempFolder folder;
  support::write_file(folder / "libnvrtc.so.13", "not an ELF file");
  const LibraryReport r = search_nvrtc(nowhere({{"VERGLAS_NVRTC", folder.path()}}));
  EXPECT_FALSE(r.found);
  EXPECT_THAT(r.attempts[0].outcome, HasSubstr("libnvrtc.so.13"));
}

TEST(LibrarySearch, UsesWhatTheProcessHasLoaded) {
  void* handle = dlopen((fixture("driver13") + "/libcuda.so.1").c_str(), RTLD_NOW | RTLD_LOCAL);
  ASSERT_NE(handle, nullptr);
  SearchPlaces places = nowhere();
  places.loaded = true;
  const LibraryReport r = search_driver(places);
  EXPECT_TRUE(r.found) << r.sentence;
  EXPECT_EQ(r.origin, "already loaded");
  dlclose(handle);
}

TEST(DriverSearch, AcceptsDriversFrom124On) {
  EXPECT_EQ(search_driver(nowhere({{"VERGLAS_CUDA_DRIVER", fixture("driver13")}})).version, "13.0");
  EXPECT_EQ(search_driver(nowhere({{"VERGLAS_CUDA_DRIVER", fixture("driver12")}})).version, "12.4");
}

TEST(DriverSearch, SaysWhyADriverDoesNotServe) {
  const auto outcome = [](const std::string& folder) {
    const LibraryReport r = search_driver(nowhere({{"VERGLAS_CUDA_DRIVER", fixture(folder)}}));
    EXPECT_FALSE(r.found) << folder;
    EXPECT_THAT(r.sentence, HasSubstr("install NVIDIA's driver"));
    return r.attempts.empty() ? "" : r.attempts[0].outcome;
  };
  EXPECT_EQ(outcome("driver_old"), "is a driver for CUDA 12.3, older than 12.4");
  EXPECT_EQ(outcome("driver_incomplete"), "has no symbol cuLaunchKernelEx");
  EXPECT_EQ(outcome("driver_no_device"), "is a driver for CUDA 13.0, but cuInit answers CUDA_ERROR_NO_DEVICE (100)");
  EXPECT_EQ(outcome("driver_stub"), "is the toolkit's stub for linking, not a driver");
}

TEST(DriverSearch, DoesNotTakeTheStubOfARealToolkit) {
  const std::string stub = "/usr/local/cuda/lib64/stubs/libcuda.so";
  if (!std::filesystem::exists(stub)) GTEST_SKIP() << "no stub in /usr/local/cuda";
  EXPECT_FALSE(search_driver(nowhere({{"VERGLAS_CUDA_DRIVER", stub}})).found);
}

TEST(DriverSearch, DoesNotLookInToolkitsOrWheels) {
  const TempFolder toolkit;
  install("driver13", toolkit / "lib64");
  EXPECT_FALSE(search_driver(nowhere({{"CUDA_HOME", toolkit.path()}})).found);
}

TEST(CublasLtSearch, AcceptsVersionsFrom124On) {
  CublasLtTable table;
  const LibraryReport good = open_cublaslt(table, nowhere({{"VERGLAS_CUBLASLT", fixture("cublaslt13")}}));
  EXPECT_EQ(good.version, "13.0.1");
  EXPECT_EQ(table.version, 130001);
  EXPECT_NE(table.cublasLtMatmul, nullptr);
  const LibraryReport old = open_cublaslt(table, nowhere({{"VERGLAS_CUBLASLT", fixture("cublaslt_old")}}));
  EXPECT_FALSE(old.found);
  EXPECT_EQ(old.attempts[0].outcome, "is version 12.3.4, older than 12.4");
}

TEST(LibraryBuild, TellsBuildsApartByContentAndNotByPlace) {
  const TempFolder one, two;
  install("nvrtc13", one.path());
  install("nvrtc13", two.path());
  NvrtcTable a, b, c;
  ASSERT_TRUE(open_nvrtc(a, nowhere({{"VERGLAS_NVRTC", one.path()}}), 0).found);
  ASSERT_TRUE(open_nvrtc(b, nowhere({{"VERGLAS_NVRTC", two.path()}}), 0).found);
  ASSERT_TRUE(open_nvrtc(c, nowhere({{"VERGLAS_NVRTC", fixture("nvrtc12")}}), 0).found);
  EXPECT_NE(a.path, b.path);
  EXPECT_EQ(a.build, b.build);
  EXPECT_NE(a.build, "");
}

TEST(TableOverride, StandsInNestsAndHides) {
  DriverTable outer, inner;
  const DriverOverride first(&outer);
  EXPECT_EQ(driver().value(), &outer);
  {
    const DriverOverride second(&inner);
    EXPECT_EQ(driver().value(), &inner);
    const DriverOverride none(nullptr);
    ASSERT_FALSE(driver());
    EXPECT_EQ(driver().error().rule, Rule::driver_missing);
  }
  EXPECT_EQ(driver().value(), &outer);
}

// New site-packages make a search that failed worth another try; success is for good.
int g_opens = 0;
TEST(LazyTable, SearchesOnceAndAgainOnlyForNewFolders) {
  struct Empty {};
  LazyTable<Empty> lazy(Rule::driver_missing, [](Empty&, const SearchPlaces&) {
    LibraryReport r;
    r.found = ++g_opens >= 2;
    r.sentence = "not there";
    return r;
  });
  EXPECT_EQ(lazy.get().error().text, "not there");
  EXPECT_FALSE(lazy.get());
  EXPECT_EQ(g_opens, 1);
  add_site_packages("/a/new/folder/of/this/test");
  EXPECT_TRUE(lazy.get());
  EXPECT_EQ(g_opens, 2);
  add_site_packages("/another/new/folder/of/this/test");
  add_site_packages("/another/new/folder/of/this/test");
  EXPECT_TRUE(lazy.get());
  EXPECT_TRUE(lazy.report().found);
  EXPECT_EQ(g_opens, 2);
}

}  // namespace
}  // namespace verglas::cuda
