/* What the C compiler says: sizes and offsets in the order of c_layout_table.h. */
#pragma once

#include <stddef.h>

typedef struct {
  const char* name;
  size_t value;
} LayoutLine;

#ifdef __cplusplus
extern "C" {
#endif
extern const LayoutLine kCLayout[];
extern const size_t kNumCLayout;
#ifdef __cplusplus
}
#endif
