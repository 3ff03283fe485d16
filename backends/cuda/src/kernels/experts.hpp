// Strategies experts_gathered and experts_sorted.
#pragma once

#include "general.hpp"

RANKFOLD_NAMESPACE_BEGIN
namespace cuda {
namespace experts {

/// How a block finds its rows.
enum Finder : int {
  kByKey = 0,  ///< a block a (expert, slot), which looks through the rows
  kByRow = 1,  ///< a block a row; those that are not the first of their (expert, slot) leave again
  kPlain = 2,  ///< a block a row, for itself
};

}  // namespace experts
}  // namespace cuda
RANKFOLD_NAMESPACE_END
