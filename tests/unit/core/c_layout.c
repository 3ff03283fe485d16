#include "c_layout.h"

#include "c_structs.h"

#define S(name) {#name, sizeof(C_##name)},
#define M(name, member) {#name "." #member, offsetof(C_##name, member)},
const LayoutLine kCLayout[] = {
#include "c_layout_table.h"
};
const size_t kNumCLayout = sizeof(kCLayout) / sizeof(kCLayout[0]);
