# The target rankfold: core, every backend of this build, and the generated list of them. It alone knows
# which backends there are.
set(RANKFOLD_BUILTIN_INCLUDES "")
set(RANKFOLD_BUILTIN_CALLS "")
set(rankfold_builtin_targets "")

# rankfold_builtin(<name> <CMake option that builds it>): the target rankfold_<name>, where there is one,
# offers rankfold/<name>.hpp with rankfold::<name>::descriptor().
function(rankfold_builtin name option)
  if(TARGET rankfold_${name})
    string(APPEND RANKFOLD_BUILTIN_INCLUDES "#include \"rankfold/${name}.hpp\"\n")
    string(APPEND RANKFOLD_BUILTIN_CALLS "  static Status ${name}_refusal;\n"
           "  add(registry, ${name}::descriptor(), \"${option}\", &${name}_refusal);\n")
    list(APPEND rankfold_builtin_targets rankfold_${name})
  else()
    string(REGEX REPLACE "=.*" "" variable "${option}")
    if(name STREQUAL "cuda" AND NOT "${${variable}}" STREQUAL "OFF")
      set(reason "${rankfold_cuda_reason}")
    elseif("${${variable}}" STREQUAL "ON")
      message(FATAL_ERROR "${option}: this version of rankfold does not have the ${name} backend; "
                          "set ${variable} to AUTO or OFF")
    elseif("${${variable}}" STREQUAL "OFF")
      set(reason "${variable} was OFF")
    else()
      set(reason "this version of rankfold does not have it; take one that does")
    endif()
    # A reason may quote what a compiler said.
    string(REPLACE "\\" "\\\\" reason "${reason}")
    string(REPLACE "\"" "\\\"" reason "${reason}")
    string(APPEND RANKFOLD_BUILTIN_CALLS
           "  (void)registry.add_missing({\"${name}\", \"${option}\", \"${reason}\"});\n")
  endif()
  set(RANKFOLD_BUILTIN_INCLUDES "${RANKFOLD_BUILTIN_INCLUDES}" PARENT_SCOPE)
  set(RANKFOLD_BUILTIN_CALLS "${RANKFOLD_BUILTIN_CALLS}" PARENT_SCOPE)
  set(rankfold_builtin_targets "${rankfold_builtin_targets}" PARENT_SCOPE)
endfunction()

rankfold_builtin(cuda RANKFOLD_CUDA=ON)
rankfold_builtin(kokkos RANKFOLD_KOKKOS=ON)
rankfold_builtin(reference "")  # no option: part of every build
if(NOT TARGET rankfold_reference)
  message(FATAL_ERROR "the reference backend is part of every build")
endif()

configure_file(${PROJECT_SOURCE_DIR}/cmake/builtin_backends.cpp.in
               ${PROJECT_BINARY_DIR}/generated/builtin_backends.cpp @ONLY)
add_library(rankfold ${PROJECT_BINARY_DIR}/generated/builtin_backends.cpp)
add_library(rankfold::rankfold ALIAS rankfold)
target_link_libraries(rankfold PUBLIC rankfold_core ${rankfold_builtin_targets}
                      PRIVATE $<BUILD_INTERFACE:rankfold_flags>)
set_target_properties(rankfold PROPERTIES DEFINE_SYMBOL ""
                                          VERSION ${PROJECT_VERSION}
                                          SOVERSION ${PROJECT_VERSION_MAJOR}.${PROJECT_VERSION_MINOR}
                                          EXPORT_NAME rankfold)
