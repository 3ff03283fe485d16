# RE2::RE2 from RE2's own package file where there is one, else by looking for header and library: the
# packages of Debian and Ubuntu carry no CMake files.
find_package(re2 CONFIG QUIET)
if(TARGET re2::re2)
  set(RE2_LIBRARY re2::re2)
  get_target_property(RE2_INCLUDE_DIR re2::re2 INTERFACE_INCLUDE_DIRECTORIES)
  if(NOT RE2_INCLUDE_DIR)
    set(RE2_INCLUDE_DIR "(of re2::re2)")
  endif()
else()
  find_path(RE2_INCLUDE_DIR re2/re2.h)
  find_library(RE2_LIBRARY re2)
endif()
mark_as_advanced(RE2_INCLUDE_DIR RE2_LIBRARY)

include(FindPackageHandleStandardArgs)
find_package_handle_standard_args(
  RE2 REQUIRED_VARS RE2_LIBRARY RE2_INCLUDE_DIR
  REASON_FAILURE_MESSAGE "Debian and Ubuntu: apt-get install libre2-dev")

if(RE2_FOUND AND NOT TARGET RE2::RE2)
  if(TARGET re2::re2)
    add_library(RE2::RE2 INTERFACE IMPORTED)
    set_target_properties(RE2::RE2 PROPERTIES INTERFACE_LINK_LIBRARIES re2::re2)
  else()
    find_package(Threads REQUIRED)
    add_library(RE2::RE2 UNKNOWN IMPORTED)
    set_target_properties(
      RE2::RE2 PROPERTIES IMPORTED_LOCATION "${RE2_LIBRARY}" INTERFACE_INCLUDE_DIRECTORIES "${RE2_INCLUDE_DIR}"
                          INTERFACE_LINK_LIBRARIES Threads::Threads)
  endif()
endif()
