# Every option of the build, with its default. A project that adds rankfold as a subdirectory gets the
# library alone.
option(BUILD_SHARED_LIBS "Build shared libraries" OFF)
option(RANKFOLD_TESTS "Build the tests" ${PROJECT_IS_TOP_LEVEL})
option(RANKFOLD_TOOLS "Build the rankfold command" ${PROJECT_IS_TOP_LEVEL})
option(RANKFOLD_INSTALL "Add rankfold to the install target" ${PROJECT_IS_TOP_LEVEL})
option(RANKFOLD_FUZZ "Build the fuzz targets (libFuzzer with clang, corpus replay with g++); set RANKFOLD_SANITIZE, too" OFF)
option(RANKFOLD_BENCH "Build the CPU benchmarks of bench/" OFF)
option(RANKFOLD_WERROR "Turn warnings into errors" OFF)
option(RANKFOLD_FETCH_DEPS "Fetch pinned releases of dependencies that are not installed" OFF)
set(RANKFOLD_SANITIZE "" CACHE STRING "Sanitizers for every target: address;undefined or thread")
set(RANKFOLD_ARCH "AUTO" CACHE STRING
    "Instruction set of the reference backend: AUTO (AVX2 where the build machine has it), BASELINE, or a value for -march=")
set(RANKFOLD_CUDA "AUTO" CACHE STRING "The cuda backend: AUTO, ON or OFF")
set(RANKFOLD_KOKKOS "AUTO" CACHE STRING "The kokkos backend: AUTO, ON or OFF")
set_property(CACHE RANKFOLD_CUDA RANKFOLD_KOKKOS PROPERTY STRINGS AUTO ON OFF)
