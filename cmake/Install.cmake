# find_package(dlattn): the installed package and the build tree.
#
# Components: `dlattn` is all that a C++ user needs (library, headers, CMake package); `python` is the Python module,
# which python/CMakeLists.txt installs. The wheel installs both into its package folder (pyproject.toml:
# wheel.install-dir, install.components) and names that folder in the entry point group "cmake.root", so that
# find_package(dlattn) finds a pip-installed wheel.
include(CMakePackageConfigHelpers)
if(SKBUILD)
  set(CMAKE_INSTALL_LIBDIR lib)
  set(CMAKE_INSTALL_INCLUDEDIR include)
else()
  include(GNUInstallDirs)
endif()
set(dlattn_package_dir ${CMAKE_INSTALL_LIBDIR}/cmake/dlattn)

install(
  TARGETS dlattn
  EXPORT dlattn-targets
  RUNTIME DESTINATION ${CMAKE_INSTALL_BINDIR} COMPONENT dlattn
  LIBRARY DESTINATION ${CMAKE_INSTALL_LIBDIR} COMPONENT dlattn
  ARCHIVE DESTINATION ${CMAKE_INSTALL_LIBDIR} COMPONENT dlattn
  FILE_SET HEADERS DESTINATION ${CMAKE_INSTALL_INCLUDEDIR} COMPONENT dlattn)
install(
  EXPORT dlattn-targets
  NAMESPACE dlattn::
  DESTINATION ${dlattn_package_dir}
  COMPONENT dlattn)
export(EXPORT dlattn-targets NAMESPACE dlattn:: FILE ${PROJECT_BINARY_DIR}/dlattn-targets.cmake)

configure_package_config_file(
  ${PROJECT_SOURCE_DIR}/cmake/dlattn-config.cmake.in ${PROJECT_BINARY_DIR}/dlattn-config.cmake
  INSTALL_DESTINATION ${dlattn_package_dir}
  NO_SET_AND_CHECK_MACRO)
write_basic_package_version_file(${PROJECT_BINARY_DIR}/dlattn-config-version.cmake COMPATIBILITY SameMinorVersion)
install(
  FILES ${PROJECT_BINARY_DIR}/dlattn-config.cmake ${PROJECT_BINARY_DIR}/dlattn-config-version.cmake
  DESTINATION ${dlattn_package_dir}
  COMPONENT dlattn)
