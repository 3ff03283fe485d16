# The target re2::re2, by RE2's own package files or by looking for library and header: the packages
# of Debian and Ubuntu carry no CMake files.
if(NOT TARGET re2::re2)
  find_package(re2 CONFIG QUIET)
endif()
if(NOT TARGET re2::re2)
  find_path(RANKFOLD_RE2_INCLUDE_DIR re2/re2.h)
  find_library(RANKFOLD_RE2_LIBRARY re2)
  mark_as_advanced(RANKFOLD_RE2_INCLUDE_DIR RANKFOLD_RE2_LIBRARY)
  if(RANKFOLD_RE2_INCLUDE_DIR AND RANKFOLD_RE2_LIBRARY)
    add_library(re2::re2 UNKNOWN IMPORTED)
    set_target_properties(
      re2::re2 PROPERTIES IMPORTED_LOCATION "${RANKFOLD_RE2_LIBRARY}"
                          INTERFACE_INCLUDE_DIRECTORIES "${RANKFOLD_RE2_INCLUDE_DIR}")
  endif()
endif()
