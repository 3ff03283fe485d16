# rankfold: the registry with every backend of this build. The list is generated and explicit: a
# linker drops static initialisers from static libraries.
set(rankfold_backends reference)
set(rankfold_backend_includes "#include \"rankfold/reference.hpp\"\n")
set(rankfold_backend_lines "  added(registry, reference::descriptor());\n")

# A backend that is left out is registered by name, so that asking for it says what to do.
foreach(backend cuda kokkos)
  string(TOUPPER "RANKFOLD_${backend}" option)
  if(${option} STREQUAL "OFF")
    set(reason "this build was configured with ${option}=OFF")
  elseif(EXISTS "${PROJECT_SOURCE_DIR}/backends/${backend}/CMakeLists.txt")
    add_subdirectory("${PROJECT_SOURCE_DIR}/backends/${backend}" "${PROJECT_BINARY_DIR}/backends/${backend}")
    set(reason "${RANKFOLD_${backend}_REASON}")
  else()
    set(reason "rankfold ${PROJECT_VERSION} comes without it")
    if(${option} STREQUAL "ON")
      message(FATAL_ERROR "${option}=ON: the ${backend} backend is not part of rankfold ${PROJECT_VERSION}. "
                          "Use ${option}=AUTO or OFF.")
    endif()
  endif()
  if(TARGET rankfold_${backend})
    list(APPEND rankfold_backends ${backend})
    string(APPEND rankfold_backend_includes "#include \"rankfold/${backend}.hpp\"\n")
    string(APPEND rankfold_backend_lines "  added(registry, ${backend}::descriptor());\n")
  else()
    string(APPEND rankfold_backend_lines
           "  missing(registry, {\"${backend}\", \"${option}=ON\", \"${reason}\"});\n")
  endif()
endforeach()
message(STATUS "rankfold: backends of this build: ${rankfold_backends}")

configure_file("${PROJECT_SOURCE_DIR}/cmake/builtin_backends.cpp.in"
               "${PROJECT_BINARY_DIR}/generated/builtin_backends.cpp" @ONLY)
add_library(rankfold "${PROJECT_BINARY_DIR}/generated/builtin_backends.cpp")
add_library(rankfold::rankfold ALIAS rankfold)
list(TRANSFORM rankfold_backends PREPEND rankfold_ OUTPUT_VARIABLE rankfold_backend_targets)
target_link_libraries(rankfold PUBLIC rankfold_core PRIVATE $<BUILD_INTERFACE:rankfold_flags>
                                                            ${rankfold_backend_targets})
set_target_properties(rankfold PROPERTIES VERSION ${PROJECT_VERSION}
                                          SOVERSION ${PROJECT_VERSION_MAJOR}.${PROJECT_VERSION_MINOR})
