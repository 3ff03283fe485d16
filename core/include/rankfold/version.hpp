// The version of the library. CMake reads these three lines; nothing repeats them.
#pragma once

#include "rankfold/export.hpp"

#define RANKFOLD_VERSION_MAJOR 0
#define RANKFOLD_VERSION_MINOR 1
#define RANKFOLD_VERSION_PATCH 0

RANKFOLD_NAMESPACE_BEGIN

/// Version of the library that was linked, for example "0.1.0". A static string.
RANKFOLD_EXPORT const char* version() noexcept;

RANKFOLD_NAMESPACE_END
