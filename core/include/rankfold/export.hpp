// What is visible outside the shared library, and the namespace that carries the ABI.
#pragma once

// Everything else is compiled with hidden visibility.
#if defined(__GNUC__) || defined(__clang__)
#define RANKFOLD_EXPORT [[gnu::visibility("default")]]
#else
#define RANKFOLD_EXPORT
#endif

// All public names live in rankfold::v0; `rankfold::x` finds them through the inline namespace.
// A change of the ABI changes the inner name, so that two versions never link to each other.
#define RANKFOLD_NAMESPACE_BEGIN \
  namespace rankfold {           \
  inline namespace v0 {
#define RANKFOLD_NAMESPACE_END \
  }                            \
  }
