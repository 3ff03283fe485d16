# Headers, libraries and the package files that find_package(rankfold) reads.
include(GNUInstallDirs)
include(CMakePackageConfigHelpers)

set(rankfold_package_dir "${CMAKE_INSTALL_LIBDIR}/cmake/rankfold")
set(rankfold_installed_targets rankfold_core ${rankfold_builtin_targets} rankfold)

foreach(target ${rankfold_installed_targets})
  # Shared libraries find each other wherever the tree is moved to.
  set_target_properties(${target} PROPERTIES INSTALL_RPATH "$ORIGIN")
endforeach()
install(
  TARGETS ${rankfold_installed_targets}
  EXPORT rankfoldTargets
  ARCHIVE DESTINATION "${CMAKE_INSTALL_LIBDIR}"
  LIBRARY DESTINATION "${CMAKE_INSTALL_LIBDIR}"
  RUNTIME DESTINATION "${CMAKE_INSTALL_BINDIR}")
set(rankfold_header_folders core/include/rankfold reference/include/rankfold)
if(TARGET rankfold_cuda)
  list(APPEND rankfold_header_folders backends/cuda/include/rankfold)
endif()
install(DIRECTORY ${rankfold_header_folders}
        DESTINATION "${CMAKE_INSTALL_INCLUDEDIR}" FILES_MATCHING PATTERN "*.hpp" PATTERN "*.h")
install(EXPORT rankfoldTargets NAMESPACE rankfold:: DESTINATION "${rankfold_package_dir}")

configure_package_config_file(cmake/rankfoldConfig.cmake.in "${PROJECT_BINARY_DIR}/rankfoldConfig.cmake"
                              INSTALL_DESTINATION "${rankfold_package_dir}")
# Before 1.0 a minor version may break what links to it.
write_basic_package_version_file("${PROJECT_BINARY_DIR}/rankfoldConfigVersion.cmake"
                                 COMPATIBILITY SameMinorVersion)
install(FILES "${PROJECT_BINARY_DIR}/rankfoldConfig.cmake"
              "${PROJECT_BINARY_DIR}/rankfoldConfigVersion.cmake" cmake/FindRE2.cmake
        DESTINATION "${rankfold_package_dir}")

# pkg-config: static libraries name what they need in turn.
if(BUILD_SHARED_LIBS)
  set(rankfold_pc_requires "")
else()
  set(rankfold_pc_requires "tbb, re2")
endif()
set(rankfold_pc_libraries "")
if(TARGET rankfold_cuda AND NOT BUILD_SHARED_LIBS)
  get_target_property(cudart CUDA::cudart_static IMPORTED_LOCATION)
  cmake_path(GET cudart PARENT_PATH cudart)
  set(rankfold_pc_libraries "-L${cudart} -lcudart_static -lrt -ldl")
endif()
list(TRANSFORM rankfold_builtin_targets PREPEND "-l" OUTPUT_VARIABLE rankfold_pc_backends)
list(JOIN rankfold_pc_backends " " rankfold_pc_backends)
# Relative to the file itself, so that the tree may be moved.
file(RELATIVE_PATH rankfold_pc_prefix "/prefix/${CMAKE_INSTALL_LIBDIR}/pkgconfig" /prefix)
configure_file(cmake/rankfold.pc.in "${PROJECT_BINARY_DIR}/rankfold.pc" @ONLY)
install(FILES "${PROJECT_BINARY_DIR}/rankfold.pc" DESTINATION "${CMAKE_INSTALL_LIBDIR}/pkgconfig")

# tools/ installs the command.
if(TARGET rankfold_tool)
  set_target_properties(rankfold_tool PROPERTIES INSTALL_RPATH "$ORIGIN/../${CMAKE_INSTALL_LIBDIR}")
endif()
