// The grammar of RANKFOLD_BACKEND, and how a wish is quoted in an error.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string_view>

#include "rankfold/export.hpp"
#include "rankfold/status.hpp"

RANKFOLD_NAMESPACE_BEGIN
namespace detail {

// An array, so that it has one address everywhere: BackendWish::source is compared with it.
inline constexpr char kBackendVariable[] = "RANKFOLD_BACKEND";
inline constexpr std::size_t kMaxBackendName = 63;  ///< fits BackendListing::name

/// What somebody asked for, and by which way, so that an error can name both.
struct BackendWish {
  const char* source = kBackendVariable;  ///< the variable, or "the specification" (by code)
  char value[96] = {};                    ///< as written, cut and made printable
  char name[kMaxBackendName + 1] = {};    ///< lower case, alias resolved; "" for auto
  std::int32_t device = 0;

  bool automatic() const noexcept { return name[0] == '\0'; }
};

/// Whether a backend may be registered under this name: [a-z][a-z0-9_]*, not too long.
bool is_backend_name(std::string_view name) noexcept;

/// Fills *wish. invalid_argument (malformed) quotes the grammar. `text` null reads as "".
Status parse_backend_wish(const char* source, const char* text, BackendWish* wish) noexcept;

/// Number of single-character edits between two names; large for long ones.
int edit_distance(std::string_view a, std::string_view b) noexcept;

}  // namespace detail
RANKFOLD_NAMESPACE_END
