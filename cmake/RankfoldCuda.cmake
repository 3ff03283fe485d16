# Whether the cuda backend is built. AUTO builds it where a toolkit is installed that is new enough and works; one
# that is not is skipped by name, with the reason in rankfold_cuda_reason. ON makes the same reason an error.
# Which nvcc: CMAKE_CUDA_COMPILER, the environment's CUDACXX, CUDAToolkit_ROOT or CUDA_PATH, the PATH, then the usual
# place.
set(RANKFOLD_CUDA_ARCHITECTURES "80;90a-real" CACHE STRING
    "GPU architectures of the cuda backend, as CMAKE_CUDA_ARCHITECTURES")
set(rankfold_cuda_found OFF)
set(rankfold_cuda_reason "RANKFOLD_CUDA was OFF")
set(rankfold_cuda_minimum 12.4)

# The first lines of what a program said, as one line of a message.
function(rankfold_excerpt text result)
  string(REGEX REPLACE "[\r\n\t ]+" " " text "${text}")
  string(STRIP "${text}" text)
  string(SUBSTRING "${text}" 0 240 text)
  set(${result} "${text}" PARENT_SCOPE)
endfunction()

# Sets rankfold_nvcc, or rankfold_cuda_reason where there is none.
function(rankfold_find_nvcc)
  unset(nvcc)
  # What an earlier configuration did not find may be there now.
  if(CMAKE_CUDA_COMPILER)
    set(nvcc "${CMAKE_CUDA_COMPILER}")
  elseif(NOT "$ENV{CUDACXX}" STREQUAL "")
    set(nvcc "$ENV{CUDACXX}")
  endif()
  if(nvcc AND NOT IS_ABSOLUTE "${nvcc}")
    find_program(named_nvcc NAMES "${nvcc}" NO_CACHE)
    if(named_nvcc)
      set(nvcc "${named_nvcc}")
    endif()
  elseif(NOT nvcc)
    find_program(nvcc NAMES nvcc NO_CACHE HINTS "${CUDAToolkit_ROOT}" ENV CUDAToolkit_ROOT ENV CUDA_PATH
                 PATHS /usr/local/cuda PATH_SUFFIXES bin)
    if(NOT nvcc)
      set(rankfold_cuda_reason "no CUDA toolkit was found (no nvcc in the PATH or in /usr/local/cuda/bin); install CUDA \
${rankfold_cuda_minimum} or newer, or name its nvcc in CMAKE_CUDA_COMPILER" PARENT_SCOPE)
      set(rankfold_nvcc "" PARENT_SCOPE)
      return()
    endif()
  endif()
  set(rankfold_nvcc "${nvcc}" PARENT_SCOPE)
endfunction()

# Compiles and links a small program of C++20 for every architecture asked for; sets `result` to what is wrong, or
# to nothing. A run that went well is remembered.
function(rankfold_try_nvcc nvcc version result)
  set(host "${CMAKE_CUDA_HOST_COMPILER}")
  if(NOT host)
    set(host "$ENV{CUDAHOSTCXX}")
  endif()
  set(key "${nvcc};${version};${host};${RANKFOLD_CUDA_ARCHITECTURES}")
  if("${RANKFOLD_CUDA_TRIED}" STREQUAL "${key}")
    set(${result} "" PARENT_SCOPE)
    return()
  endif()
  set(flags -std=c++20 --cudart=static)
  if(host)
    list(APPEND flags "--compiler-bindir=${host}")
  endif()
  foreach(architecture ${RANKFOLD_CUDA_ARCHITECTURES})
    string(REGEX REPLACE "-(real|virtual)$" "" number "${architecture}")
    if(number MATCHES "^[0-9]+[af]?$")
      list(APPEND flags "--generate-code=arch=compute_${number},code=sm_${number}")
    endif()
  endforeach()
  set(folder "${PROJECT_BINARY_DIR}/try_cuda")
  file(WRITE "${folder}/try_cuda.cu" "\
#include <concepts>
#include <cstdio>
#include <span>
template <std::integral T>
__global__ void add(T* to, T what) { *to += what; }
int main() {
  int count = 0;
  std::span<int> one(&count, 1);
  if (cudaGetDeviceCount(one.data()) == cudaSuccess) add<<<1, 1>>>(one.data(), 1);
  return 0;
}
")
  execute_process(
    COMMAND "${nvcc}" ${flags} "${folder}/try_cuda.cu" -o "${folder}/try_cuda"
    OUTPUT_VARIABLE output ERROR_VARIABLE output RESULT_VARIABLE code)
  if(code STREQUAL "0")
    set(RANKFOLD_CUDA_TRIED "${key}" CACHE INTERNAL "the toolkit that compiled a small program")
    set(${result} "" PARENT_SCOPE)
  else()
    rankfold_excerpt("${output}" output)
    set(${result} "exit status ${code}: ${output}" PARENT_SCOPE)
  endif()
endfunction()

# Sets rankfold_nvcc, and rankfold_cuda_reason to nothing or to why it is not to be used.
function(rankfold_probe_nvcc)
  rankfold_find_nvcc()
  set(rankfold_nvcc "${rankfold_nvcc}" PARENT_SCOPE)
  if(NOT rankfold_nvcc)
    set(rankfold_cuda_reason "${rankfold_cuda_reason}" PARENT_SCOPE)
    return()
  endif()
  execute_process(COMMAND "${rankfold_nvcc}" --version OUTPUT_VARIABLE output ERROR_VARIABLE output
                  RESULT_VARIABLE code)
  if(NOT code STREQUAL "0" OR NOT output MATCHES "release ([0-9]+\\.[0-9]+)")
    rankfold_excerpt("${output}" output)
    set(rankfold_cuda_reason "${rankfold_nvcc} does not say its version (${code}: ${output})" PARENT_SCOPE)
    return()
  endif()
  set(version "${CMAKE_MATCH_1}")
  if(version VERSION_LESS rankfold_cuda_minimum)
    set(rankfold_cuda_reason
        "${rankfold_nvcc} is of CUDA ${version}, which is too old; ${rankfold_cuda_minimum} or newer is needed" PARENT_SCOPE)
    return()
  endif()
  rankfold_try_nvcc("${rankfold_nvcc}" "${version}" wrong)
  if(wrong)
    set(rankfold_cuda_reason "${rankfold_nvcc} of CUDA ${version} does not compile a small program of C++20 (${wrong})"
        PARENT_SCOPE)
    return()
  endif()
  set(rankfold_cuda_reason "" PARENT_SCOPE)
endfunction()

if(NOT RANKFOLD_CUDA MATCHES "^(AUTO|ON|OFF)$")
  message(FATAL_ERROR "RANKFOLD_CUDA is \"${RANKFOLD_CUDA}\"; it should be AUTO, ON or OFF")
endif()
if(NOT RANKFOLD_CUDA STREQUAL "OFF")
  rankfold_probe_nvcc()
  if(NOT rankfold_cuda_reason)
    set(CMAKE_CUDA_ARCHITECTURES "${RANKFOLD_CUDA_ARCHITECTURES}")
    if(NOT CMAKE_CUDA_COMPILER)
      set(CMAKE_CUDA_COMPILER "${rankfold_nvcc}" CACHE FILEPATH "CUDA compiler" FORCE)
    endif()
    enable_language(CUDA)
    # Targets name the runtime that they link; CMake's own choice would come beside it.
    set(CMAKE_CUDA_RUNTIME_LIBRARY None)
    # CMake 3.25 does not know that CUDA 13 has this flag.
    if(NOT DEFINED CMAKE_CUDA20_STANDARD_COMPILE_OPTION)
      set(CMAKE_CUDA20_STANDARD_COMPILE_OPTION "-std=c++20")
      set(CMAKE_CUDA20_EXTENSION_COMPILE_OPTION "-std=c++20")
    endif()
    find_package(CUDAToolkit ${rankfold_cuda_minimum})
    if(TARGET CUDA::cudart_static)
      set(rankfold_cuda_found ON)
    else()
      set(rankfold_cuda_reason "the toolkit of ${rankfold_nvcc} has no static runtime library (libcudart_static.a)")
    endif()
  endif()
  if(rankfold_cuda_found)
    list(JOIN RANKFOLD_CUDA_ARCHITECTURES ", " architectures)
    message(STATUS "rankfold: cuda backend with CUDA ${CUDAToolkit_VERSION} for ${architectures}")
  elseif(RANKFOLD_CUDA STREQUAL "ON")
    message(FATAL_ERROR "RANKFOLD_CUDA=ON: ${rankfold_cuda_reason}")
  else()
    message(STATUS "rankfold: no cuda backend: ${rankfold_cuda_reason}")
  endif()
endif()
