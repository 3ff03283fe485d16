# RANKFOLD_FETCH_DEPS=ON: what is not installed is fetched at pinned commits and built with rankfold.
include(FetchContent)
set(rankfold_fetched "")
set(CMAKE_POLICY_DEFAULT_CMP0063 NEW) # hidden visibility for their libraries as well

# rankfold_fetch(<target> <name> <repository> <commit> <find_package arguments>...)
macro(rankfold_fetch target name repository commit)
  if(NOT TARGET ${target})
    find_package(${ARGN} QUIET)
  endif()
  if(NOT TARGET ${target})
    list(APPEND rankfold_fetched ${name})
    FetchContent_Declare(${name} GIT_REPOSITORY ${repository} GIT_TAG ${commit} ${${name}_arguments})
    FetchContent_MakeAvailable(${name})
  endif()
endmacro()

# Their own tests, documents and install rules stay out.
set(TBB_TEST OFF CACHE BOOL "")
set(TBB_STRICT OFF CACHE BOOL "")
set(TBBMALLOC_BUILD OFF CACHE BOOL "")
set(RE2_BUILD_TESTING OFF CACHE BOOL "")
set(JSON_BuildTests OFF CACHE BOOL "")
set(DOCTEST_WITH_TESTS OFF CACHE BOOL "")
set(CLI11_BUILD_TESTS OFF CACHE BOOL "")
set(CLI11_BUILD_EXAMPLES OFF CACHE BOOL "")
# Eigen is headers; its build system defines far more than that, so it is not entered.
set(eigen3_arguments SOURCE_SUBDIR headers_only)

rankfold_fetch(Eigen3::Eigen eigen3 https://gitlab.com/libeigen/eigen.git
               3147391d946bb4b6c68edd901f2add6ac1f31f8c Eigen3 3.4 NO_MODULE) # 3.4.0
if(NOT TARGET Eigen3::Eigen)
  add_library(Eigen3::Eigen INTERFACE IMPORTED GLOBAL)
  target_include_directories(Eigen3::Eigen INTERFACE "${eigen3_SOURCE_DIR}")
endif()
rankfold_fetch(TBB::tbb tbb https://github.com/uxlfoundation/oneTBB.git
               8b829acc65569019edb896c5150d427f288e8aba TBB) # 2021.11.0
rankfold_fetch(nlohmann_json::nlohmann_json nlohmann_json https://github.com/nlohmann/json.git
               9cca280a4d0ccf0c08f47a99aa71d1b0e52f8d03 nlohmann_json 3.11) # 3.11.3
rankfold_fetch(re2::re2 re2 https://github.com/google/re2.git
               5723bb8950318135ed9cf4fc76bed988a087f536 re2 CONFIG) # 2022-06-01
if(RANKFOLD_TESTS OR RANKFOLD_TOOLS)
  rankfold_fetch(doctest::doctest doctest https://github.com/doctest/doctest.git
                 ae7a13539fb71f270b87eb2e874fbac80bc8dda2 doctest 2.4.9) # 2.4.11
  rankfold_fetch(fmt::fmt fmt https://github.com/fmtlib/fmt.git
                 a33701196adfad74917046096bf5a2aa0ab0bb50 fmt 9) # 9.1.0
endif()
if(RANKFOLD_TOOLS)
  rankfold_fetch(CLI11::CLI11 cli11 https://github.com/CLIUtils/CLI11.git
                 f4d0731cebb123ff0ace712c099dffbcd2c58e5a CLI11) # 2.4.1
endif()

if(rankfold_fetched)
  message(STATUS "rankfold: fetched ${rankfold_fetched}")
  if(RANKFOLD_INSTALL)
    message(STATUS "rankfold: no install rules, since an installed library could not name what was fetched")
    set(RANKFOLD_INSTALL OFF)
  endif()
endif()
