# Flags of rankfold's own targets, as one interface target; nothing of it is installed.
include(CheckCXXCompilerFlag)

set(CMAKE_CXX_STANDARD 20)
set(CMAKE_CXX_STANDARD_REQUIRED ON)
set(CMAKE_CXX_EXTENSIONS OFF)
set(CMAKE_CXX_VISIBILITY_PRESET hidden)
set(CMAKE_VISIBILITY_INLINES_HIDDEN ON)
set(CMAKE_POSITION_INDEPENDENT_CODE ON)
set(CMAKE_EXPORT_COMPILE_COMMANDS ON)
if(PROJECT_IS_TOP_LEVEL AND NOT CMAKE_BUILD_TYPE AND NOT CMAKE_CONFIGURATION_TYPES)
  set(CMAKE_BUILD_TYPE Release CACHE STRING "Build type" FORCE)
endif()

add_library(rankfold_flags INTERFACE)
target_compile_options(
  rankfold_flags
  INTERFACE $<$<COMPILE_LANGUAGE:C,CXX>:-Wall;-Wextra;-Wpedantic;-Wshadow;-Wconversion;-Wno-sign-conversion>
            $<$<COMPILE_LANGUAGE:CXX>:-Wnon-virtual-dtor>
            $<$<AND:$<BOOL:${RANKFOLD_WERROR}>,$<COMPILE_LANGUAGE:C,CXX>>:-Werror>
            $<$<AND:$<BOOL:${RANKFOLD_WERROR}>,$<COMPILE_LANGUAGE:CUDA>>:-Werror=all-warnings>)
# g++ 12 warns of overlapping copies inside std::string's operator+ where there are none (GCC bug 105651).
if(CMAKE_CXX_COMPILER_ID STREQUAL "GNU" AND CMAKE_CXX_COMPILER_VERSION VERSION_LESS 13)
  target_compile_options(rankfold_flags INTERFACE $<$<COMPILE_LANGUAGE:CXX>:-Wno-restrict>)
endif()
if(RANKFOLD_SANITIZE)
  list(JOIN RANKFOLD_SANITIZE "," sanitizers)
  target_compile_options(rankfold_flags INTERFACE -fsanitize=${sanitizers} -fno-omit-frame-pointer
                                                  -fno-sanitize-recover=all -g1)
  target_link_options(rankfold_flags INTERFACE -fsanitize=${sanitizers})
endif()

# For code whose speed nobody feels, as test programs and tables of cases are: optimising it is most of what
# a build takes. It stands after CMAKE_BUILD_TYPE's own level, so it wins; a Debug build has none to lower.
add_library(rankfold_flags_quick INTERFACE)
if(RANKFOLD_SANITIZE)
  set(rankfold_quick_level $<$<NOT:$<CONFIG:Debug>>:-O0>)
else()
  set(rankfold_quick_level $<$<NOT:$<CONFIG:Debug>>:-O1>)
endif()
target_compile_options(rankfold_flags_quick INTERFACE ${rankfold_quick_level})

# AUTO looks at the build machine, since ./run builds where it runs. A distribution sets BASELINE.
set(rankfold_arch_flags "")
if(RANKFOLD_ARCH STREQUAL "AUTO")
  if(CMAKE_SYSTEM_PROCESSOR MATCHES "x86_64|AMD64" AND EXISTS /proc/cpuinfo)
    file(STRINGS /proc/cpuinfo cpu_flags REGEX "^flags" LIMIT_COUNT 1)
    if(cpu_flags MATCHES " avx2( |$)" AND cpu_flags MATCHES " fma( |$)" AND cpu_flags MATCHES " f16c( |$)")
      set(rankfold_arch_flags -mavx2 -mfma -mf16c -mbmi -mbmi2 -mlzcnt)
    endif()
  endif()
elseif(NOT RANKFOLD_ARCH STREQUAL "BASELINE")
  set(rankfold_arch_flags -march=${RANKFOLD_ARCH})
endif()
message(STATUS "rankfold: reference backend instruction set ${RANKFOLD_ARCH} (${rankfold_arch_flags})")
